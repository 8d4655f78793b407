"""SGD of training steps by kernels of our own, on tensors anywhere in memory, against torch's."""

import copy
import math

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from asng.experiments._train_step import TrainStep
from asng.fused._sgd import TILE, TiledSGD
from tests.fused.test_sgd import SETTINGS

SIZES = [(1,), (7,), (TILE,), (3, 5, 7), (TILE + 1,), (2, 3, 4, 4), (), (2, TILE), (9,)]
WITHOUT = [{0}, {3, 8}, set(), {4, 7}]  # in each step: the parameters without a gradient


def make(groups, dtype=torch.float32):
    """An SGD of parameters, dealt to groups of their own settings."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(size, dtype=dtype)) for size in SIZES]
    parameters[5].data = parameters[5].data.contiguous(memory_format=torch.channels_last)
    dealt = [{"params": parameters[number :: len(groups)], **settings} for number, settings in enumerate(groups)]
    return parameters, torch.optim.SGD(dealt, lr=0.1)


def give_gradients(parameters, without, seed, factor=1.0):
    generator = torch.Generator().manual_seed(seed)
    for number, parameter in enumerate(parameters):
        gradient = factor * torch.randn(parameter.shape, generator=generator).to(parameter)
        gradient = torch.empty_like(parameter).copy_(gradient)  # in its memory format
        parameter.grad = None if number in without else gradient


def clip_and_step(made, max_norm):
    parameters, optimizer = made
    nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()


def assert_same(one, other):
    """The same parameters and states, up to roundings of numbers near 1."""
    (ours, optimizer), (theirs, torchs) = one, other
    torch.testing.assert_close(ours, [p.float() for p in theirs], rtol=1e-6, atol=1e-6)
    states = [{number: dict(state) for number, state in o.state_dict()["state"].items()} for o in (optimizer, torchs)]
    expected = {number: {name: x.float() for name, x in state.items()} for number, state in states[1].items()}
    torch.testing.assert_close(states[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("max_norm", [0.5, 1e9, math.inf])
@pytest.mark.parametrize("reference", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_steps_are_those_of_torch(settings, reference, max_norm):
    one, other = make([settings]), make([settings], reference)
    sgd = TiledSGD(one[1], max_norm)
    for parameter, values in zip(other[0], one[0], strict=True):
        parameter.data.copy_(values)
    for seed, without in enumerate(WITHOUT):
        give_gradients(one[0], without, seed)
        for parameter, twin in zip(one[0], other[0], strict=True):
            twin.grad = None if parameter.grad is None else parameter.grad.to(twin.dtype)
        sgd.step()
        clip_and_step(other, max_norm)
        assert_same(one, other)


def test_groups_have_their_own_settings_and_one_norm():
    settings = [*SETTINGS[:4], {"momentum": 0.5, "weight_decay": 0.1, "lr": torch.tensor(0.3)}]
    one, other = make(settings), make(settings)
    sgd = TiledSGD(one[1], 0.5)
    for seed, without in enumerate(WITHOUT):
        for parameters, optimizer in (one, other):
            give_gradients(parameters, without, seed)
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + seed)
        sgd.step()
        clip_and_step(other, 0.5)
        assert_same(one, other)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_moves_nothing(bad):
    parameters, optimizer = one = make([{"momentum": 0.9, "weight_decay": 0.1}, {}])
    sgd = TiledSGD(optimizer, 0.5)
    give_gradients(parameters, set(), 1)
    sgd.step()
    before = copy.deepcopy(one)
    give_gradients(parameters, {0}, 2)
    parameters[7].grad[1, -1] = bad
    sgd.step()
    torch.testing.assert_close(parameters, before[0], rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], before[1].state_dict()["state"], rtol=0, atol=0)


def test_autograd_notices_that_values_have_moved():
    parameters, optimizer = make([{"momentum": 0.9}])
    loss = parameters[7].square().sum()
    give_gradients(parameters, {0}, 1)
    TiledSGD(optimizer, 0.5).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_there_may_be_more_tiles_than_parts_of_the_norm(monkeypatch):
    one, other = make([{}]), make([{}])
    monkeypatch.setattr("asng.fused._sgd.PARTS", 4)
    for parameters, _ in (one, other):
        give_gradients(parameters, set(), 1)
    TiledSGD(one[1], 0.5).step()
    clip_and_step(other, 0.5)
    assert_same(one, other)


def test_steps_repeat_bit_for_bit():
    def train():
        parameters, optimizer = make([{"momentum": 0.9, "nesterov": True}])
        sgd = TiledSGD(optimizer, 0.5)
        for seed in range(2):
            give_gradients(parameters, set(), seed)
            sgd.step()
        return parameters

    assert all(torch.equal(*pair) for pair in zip(train(), train(), strict=True))


def test_memory_formats_of_gradients_and_states_may_differ():
    one, other = make([{"momentum": 0.9}]), make([{"momentum": 0.9}])
    for parameters, optimizer in (one, other):
        give_gradients(parameters, set(), 1)
        clip_and_step((parameters, optimizer), 0.5)  # a state of torch's own goes on
        give_gradients(parameters, set(), 2)
    parameters, optimizer = one
    parameters[5].grad = parameters[5].grad.contiguous()
    optimizer.state[parameters[5]]["momentum_buffer"] = optimizer.state[parameters[5]]["momentum_buffer"].contiguous()
    TiledSGD(optimizer, 0.5).step()
    clip_and_step(other, 0.5)
    assert_same(one, other)


def squared_error(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def train_step_of(model, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **settings)
    return TrainStep(model, optimizer, squared_error, max_grad_norm=0.5)


def test_training_steps_with_them_are_those_with_torch():
    torch.manual_seed(1)
    model = nn.Linear(3, 1)
    twin = copy.deepcopy(model)
    ours, torchs = train_step_of(model, fused=True), train_step_of(twin)
    assert ours._sgd is not None
    assert torchs._sgd is None
    batches = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(4)]
    with ours._preserve_weights():
        ours(batches[3])
    for batch in [*batches[:2], (torch.full((8, 3), torch.nan), torch.ones(8, 1)), *batches[2:]]:
        torch.testing.assert_close(ours(batch), torchs(batch), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert_same(([*model.parameters()], ours.optimizer), ([*twin.parameters()], torchs.optimizer))
    resumed = train_step_of(copy.deepcopy(model), fused=True)
    resumed.load_state_dict(copy.deepcopy(torchs.state_dict()))
    torch.testing.assert_close(resumed(batches[0]), torchs(batches[0]))
    assert_same(([*resumed.model.parameters()], resumed.optimizer), ([*twin.parameters()], torchs.optimizer))


class Strided(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2)[:, :1])

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (nn.Linear(3, 1, dtype=torch.float64), {}),
        (Strided(), {}),
        (nn.Linear(3, 1), {"dampening": 0.1}),
        (nn.Linear(3, 1), {"maximize": True}),
    ],
    ids=["float64", "gaps in memory", "dampening", "maximize"],
)
def test_all_else_goes_to_torch(model, settings):
    dtype = next(model.parameters()).dtype
    step = train_step_of(model, fused=True, **settings)
    assert step._sgd is None
    before = step((torch.ones(8, 3, dtype=dtype), torch.zeros(8, 1, dtype=dtype)))
    assert step((torch.ones(8, 3, dtype=dtype), torch.zeros(8, 1, dtype=dtype))) != before
