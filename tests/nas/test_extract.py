"""Extraction: a plain network that equals the selected one and is as large as it, with nothing of the search left."""
# mypy: disable-error-code="arg-type, index, union-attr, list-item, attr-defined, operator"
# (torch's modules are looked into)

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

import asng
from asng import nas
from asng.nas import OneOf, Pick, Repeat, Value, Width, extract, select, space_of
from asng.nas import _static as static_modules
from asng.nas.supernet import Supernet
from asng.space import Integer, Real
from tests.helpers.decisions import is_static, size_of

# Joint decisions: a cell whose loose ends are joined by a 1x1 convolution with columns for every node.


class Cell(nas.Searchable):
    """Nodes that add two earlier ones; those that no later node uses are joined."""

    def __init__(self, channels: int, nodes: int = 4) -> None:
        super().__init__()
        self.channels = channels
        self.inputs = nn.ModuleList(
            nn.ModuleList(Pick(f"node{n}.{side}", 1 + n) for side in "ab") for n in range(nodes)
        )
        self.ops = nn.ModuleList(
            OneOf(f"op{n}", [nn.Identity(), nas.Conv2d(channels, channels, 3, padding=1)]) for n in range(nodes)
        )
        self.join = nn.Conv2d(nodes * channels, channels, 1, bias=False)

    def loose(self) -> list[int]:
        """The nodes that nobody takes; node n is number n + 1 among the inputs."""
        taken = {pick.value for picks in self.inputs for pick in picks}
        return [n for n in range(len(self.ops)) if n + 1 not in taken]

    def columns(self) -> list[int]:
        return [n * self.channels + c for n in self.loose() for c in range(self.channels)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = run_nodes(self, x)
        joined = torch.cat([ends[n] for n in self.loose()], dim=1)
        return nn.functional.conv2d(joined, self.join.weight[:, self.columns()])

    def build_static(self) -> nn.Module:
        frozen = FrozenCell()
        frozen.inputs, frozen.ops = self.inputs, self.ops  # with decisions, which are frozen after it
        frozen.ends = self.loose()
        frozen.join = nn.Conv2d(len(self.columns()), self.channels, 1, bias=False)
        frozen.join.weight = nn.Parameter(self.join.weight[:, self.columns()])
        return frozen


class FrozenCell(nn.Module):
    ends: list[int]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = run_nodes(self, x)
        return self.join(torch.cat([ends[n] for n in self.ends], dim=1))


def run_nodes(cell: Any, x: torch.Tensor) -> list[torch.Tensor]:
    done = [x]
    for (first, second), op in zip(cell.inputs, cell.ops, strict=True):
        done.append(op(first(done) + second(done)))
    return done[1:]


class Net(nn.Module):
    """A supernet with every kind of decision; more cells have the same decisions."""

    def __init__(self, cells: int = 2) -> None:
        super().__init__()
        width = Width("width", 2, 6)
        self.stem = nas.Conv2d(3, width * 2, Value("k", Integer(1, 2)) * 2 - 1, padding=1, bias=False)
        self.norm = nas.BatchNorm2d(width * 2)
        self.depthwise = nas.Conv2d(width * 2, width * 2, 3, padding=1, groups=width * 2)
        self.down = nas.ConvTranspose2d(Width("width", 2, 6) * 2, 4, 2, stride=2)
        self.cells = nn.Sequential(*(Cell(4) for _ in range(cells)))
        self.blocks = Repeat("depth", [nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()) for _ in range(3)], low=0)
        self.head = nn.ModuleDict(
            {"hidden": nas.Linear(4, Width("units", [5, 7])), "last": nas.Linear(Width("units", [5, 7]), 2)}
        )
        self.scale = Value("scale", Real(0.5, 2.0))
        self.layer_norm = nas.LayerNorm(Width("units", [5, 7]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(self.depthwise(self.norm(self.stem(x))))
        x = self.blocks(self.cells(x)).mean((2, 3)) * self.scale.value
        return self.head["last"](self.layer_norm(torch.relu(self.head["hidden"](x))))


def draw(model: nn.Module, seed: int) -> dict[str, Any]:
    return asng.ASNG(space_of(model), seed=seed).ask(1)[0].values


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net()


@pytest.mark.long
@pytest.mark.parametrize("training", [True, False])
@settings(max_examples=25, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_the_extracted_network_equals_the_selected_one(net, training, seed):
    net.train(training)
    values = draw(net, seed)
    before = copy.deepcopy(net.state_dict())
    extracted = extract(net, values)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert is_static(extracted)
    assert all(module.training == training for module in extracted.modules())
    x = torch.randn(2, 3, 5, 5)
    select(net, values)
    expected = net(x)
    assert torch.allclose(extracted(x), expected, rtol=1e-4, atol=1e-5)
    for twin in (copy.deepcopy(extracted), pickle.loads(pickle.dumps(extracted))):
        assert torch.allclose(twin.eval()(x), extracted.eval()(x))
    theirs = {parameter.data_ptr() for parameter in net.parameters()}
    assert not theirs & {parameter.data_ptr() for parameter in extracted.parameters()}
    assert size_of(extracted) == by_hand(values, cells=2)


def by_hand(values: dict[str, Any], cells: int) -> int:
    """The parameters that an architecture needs."""
    wide, units = 2 * values["width"], values["units"]
    kernel = 2 * values["k"] - 1
    outer = 3 * wide * kernel**2 + 2 * wide + (9 * wide + wide) + (wide * 4 * 4 + 4)
    taken = {values[f"node{n}.{side}"] for n in range(4) for side in "ab"}
    loose = [n for n in range(4) if n + 1 not in taken]
    cell = sum((4 * 4 * 9 + 4) * values[f"op{n}"] for n in range(4)) + len(loose) * 4 * 4
    head = (4 * units + units) + 2 * units + (2 * units + 2)
    return outer + cells * cell + values["depth"] * (16 + 4) + head


def test_a_larger_network_takes_the_same_architecture(net):
    values = draw(net, 3)
    large = extract(Net(cells=20), values)
    assert size_of(large) == by_hand(values, cells=20)
    assert len(large.cells) == 20
    assert is_static(large)
    assert large(torch.randn(2, 3, 4, 4)).shape == (2, 2)


def test_the_larger_network_trains(net):
    large = extract(Net(cells=3), draw(net, 4))
    large(torch.randn(2, 3, 4, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in large.parameters())


def test_extracting_leaves_the_selection_as_it_was(net):
    first, second = draw(net, 1), draw(net, 2)
    assert first != second
    select(net, first)
    extract(net, second)
    assert net.scale.value == first["scale"]
    fresh = Net()
    extract(fresh, first)
    with pytest.raises(RuntimeError, match="no value yet"):
        _ = fresh.scale.value


@pytest.mark.long
def test_an_extracted_network_is_exported_by_torch(net):
    extracted = extract(net.eval(), draw(net, 5)).eval()
    x = torch.randn(2, 3, 5, 5)
    exported = torch.export.export(extracted, (x,))
    assert torch.allclose(exported.module()(x), extracted(x), atol=1e-6)


@pytest.mark.long
def test_an_extracted_network_of_torchs_layers_needs_no_asng_to_load(tmp_path):
    model = nn.Sequential(
        OneOf("op", [nas.Conv2d(3, Width("w", 2, 4), 3), nn.ReLU()]), nas.BatchNorm2d(Width("w", 2, 4))
    )
    torch.save(extract(model, {"op": 0, "w": 3}), tmp_path / "model.pt")
    program = f"""
import sys
sys.modules["asng"] = None  # so that importing it fails
import torch
print(torch.load({str(tmp_path / "model.pt")!r}, weights_only=False))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "(0): Conv2d(3, 3, kernel_size=(3, 3)" in done.stdout


def test_the_plain_modules_import_nothing_of_the_package():
    assert "asng" not in inspect.getsource(static_modules)


# The selection of a supernet is its own.


def test_a_selected_model_is_copied_and_pickled_with_its_selection(net):
    values = draw(net, 6)
    select(net.eval(), values)
    x = torch.randn(2, 3, 5, 5)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(x), net(x))
        select(twin, draw(net, 7))
        assert net.scale.value == values["scale"]


def test_selected_values_come_back_after_an_error(net):
    values = draw(net, 8)
    supernet = Supernet(net)
    supernet.select(values)
    with pytest.raises(KeyError), supernet.select_temporarily(draw(net, 9)):
        raise KeyError
    assert net.scale.value == values["scale"]


# The copy is what copy.deepcopy would make.


class Odd(nn.Module):
    """Attributes of many kinds, modules that copy themselves in their own way, and references between modules."""

    def __init__(self) -> None:
        super().__init__()
        self.op = OneOf("op", [nn.Linear(4, 4), nn.Tanh()])
        self.lstm, self.attention = nn.LSTM(4, 4, batch_first=True), nn.MultiheadAttention(4, 2, batch_first=True)
        self.scaled = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)
        self.shared: dict[str, Any] = {}
        self.norm.shared = self.shared  # type: ignore[assignment]
        self.made = self.norm.weight * 2  # not a leaf
        self.own_copies = CopiesItself()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.scaled(self.attention(*3 * [self.lstm(self.op(x))[0]])[0])
        return self.norm(y.flatten(0, 1)) * self.made.detach()


class CopiesItself(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.copies = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "CopiesItself":
        twin = CopiesItself()
        twin.copies = self.copies + 1
        return twin


def test_modules_that_copy_themselves_in_their_own_way_are_copied_so():
    torch.manual_seed(0)
    model = Odd().eval()
    extracted: Any = extract(model, {"op": 0})
    select(model, {"op": 0})
    x = torch.randn(3, 5, 4)
    assert torch.equal(extracted(x), model(x))
    assert extracted.own_copies.copies == 1
    assert extracted.norm.shared is extracted.shared is not model.shared
    assert extracted.made is not model.made
    assert type(extracted.scaled) is not nn.Linear  # still parametrized
    assert {p.data_ptr() for p in extracted.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())
    nn.init.zeros_(extracted.lstm.weight_ih_l0)
    assert not torch.equal(extracted(x), model(x))


def test_without_values_a_model_is_extracted_as_it_is_selected():
    model = nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()]))
    with pytest.raises(RuntimeError, match="decision 'act' has no value yet"):
        extract(model)
    select(model, {"act": 1})
    assert type(extract(model)[0]) is nn.Tanh
    assert Supernet(model).num_parameters() == 0


def test_an_extracted_batch_norm_holds_no_more_memory_than_it_needs():
    extracted: Any = extract(nn.Sequential(nas.BatchNorm1d(Width("w", 2, 1000))), {"w": 2})
    assert extracted[0].running_mean.untyped_storage().nbytes() == 2 * 4
    assert extracted[0].weight.untyped_storage().nbytes() == 2 * 4


@pytest.mark.parametrize("trained", [True, False])
def test_a_parametrized_layer_stays_trainable_after_extraction(trained):
    layer = parametrizations.weight_norm(nas.Linear(4, nas.Width("w", [2, 4])))
    layer.requires_grad_(trained)
    static = nas.extract(nn.Sequential(layer), {"w": 2})
    assert {parameter.requires_grad for parameter in static.parameters()} == {trained}
