"""Models in torch's wrappers: looked through where that is right, refused in one line where it is not."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from asng import nas
from asng.nas import OneOf, Width, extract, parameters, select, selected, space_of
from tests.helpers.processes import crowd, exit_code_of, wrap_together
from tests.helpers.searches import Net, batches, cross_entropy, make_oneshot, outcome, pairs, run_search, same

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


def compile_model(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


WRAPPERS = pytest.mark.parametrize(
    "wrap", [compile_model, nn.DataParallel, lambda model: nn.DataParallel(compile_model(model))]
)


def small():
    """Few architectures, so that each is compiled."""
    width = Width("width", [2, 4])
    return nn.Sequential(nas.Linear(4, width), OneOf("op", [nn.Tanh(), nn.ReLU()]), nas.Linear(width, 3))


@WRAPPERS
def test_a_wrapped_model_is_read_as_the_one_inside(wrap):
    model, values = small(), {"width": 2, "op": 1}
    wrapped = wrap(model)
    assert space_of(wrapped) == space_of(model)
    assert parameters(wrapped, values) == parameters(model, values) == 19
    select(wrapped, values)
    assert selected(wrapped) == selected(model) == values
    x = torch.randn(5, 4)
    network = extract(wrapped, values)
    assert str(network) == str(extract(model, values))  # without the wrapper
    assert torch.equal(network(x), wrapped(x))


@WRAPPERS
def test_a_wrapped_model_is_searched_and_the_loss_gets_the_wrapper(wrap):
    model = small()
    twin, wrapped = copy.deepcopy(model), wrap(model)

    def loss(given, batch):
        assert given is wrapped
        return cross_entropy(given, batch)

    one, other = make_oneshot(wrapped, loss_fn=loss), make_oneshot(twin)
    for pair in pairs(8):
        assert one.step(*pair) == other.step(*pair)
    assert list(one.state_dict()["model"]) == list(twin.state_dict())
    make_oneshot(small()).load_state_dict(one.state_dict())  # with the wrapper or without
    assert str(nas.result(one).model) == str(nas.result(other).model)


def test_a_search_of_a_wrapped_model_goes_on_without_the_wrapper(tmp_path):
    torch.manual_seed(0)
    model = Net()
    expected = outcome(model, run_search(nn.DataParallel(model), checkpoint=tmp_path / "c.pt"))
    assert expected["values"] == selected(model)
    again = Net()
    result = run_search(again, checkpoint=tmp_path / "c.pt", loss_fn=lambda *_: pytest.fail("a step"))
    assert same(outcome(again, result), expected)


@WRAPPERS
def test_a_wrapped_network_is_recalibrated(wrap):
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    twin, given = copy.deepcopy(network), [x for x, _ in batches(3)]
    nas.recalibrate(wrap(network), given)
    nas.recalibrate(twin, given)
    assert same(dict(network.state_dict()), dict(twin.state_dict()))


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """What two processes were told of models in wrappers for several processes."""
    folder = tmp_path_factory.mktemp("wrapped")
    assert [exit_code_of(member) for member in crowd(wrap_together, folder)] == [0, 0]
    one, other = (torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert one == other
    return one


@pytest.mark.parametrize("kind", ["DDP", "DDP inside"])
def test_ddp_is_refused_with_the_cure(messages, kind):
    for call in ("OneShot", "search"):
        assert messages[f"{kind} {call}"] == (
            f"ValueError: {'1' if 'inside' in kind else 'the model'} is in DistributedDataParallel; pass the model "
            "itself, and the same batches in all processes: asng shards the candidates over them, and needs no DDP"
        )


def test_a_model_in_ddp_is_treated_as_the_one_inside(messages):
    for call in ("space_of", "select", "parameters", "extract", "recalibrate"):
        assert messages[f"DDP {call}"] == messages[f"plain {call}"]


@pytest.mark.parametrize("kind", ["FSDP", "fully_shard", "fully_shard inside"])
def test_fsdp_is_refused_with_the_cure(messages, kind):
    for call in ("OneShot", "search", "space_of", "select", "parameters", "extract"):
        assert messages[f"{kind} {call}"] == (
            f"ValueError: {'1' if 'inside' in kind else 'the model'} is sharded by FSDP, but candidates share whole "
            "weights; pass the model itself, not sharded: asng shards the candidates over the processes"
        )


def test_a_module_with_a_child_of_a_wrappers_name_is_no_wrapper():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod, self.scale = small(), nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * self._orig_mod(x)

    model, values = Scaled(), {"width": 2, "op": 1}
    select(model, values)
    x = torch.randn(5, 4)
    assert torch.equal(extract(model)(x), model(x))
    assert torch.equal(extract(nn.Sequential(model))(x), model(x))
