"""SGD by kernels of our own against the same update by torch's functions."""

import copy
import math

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from asng.nas._capture.iteration import Iteration
from asng.nas._capture.update import FusedSGDRule, SGDRule, WeightUpdate
from tests.helpers import captures
from tests.helpers.searches import cross_entropy, pairs

SIZES = [(1,), (64,), (65,), (3, 5, 7), (2, 3, 4, 4), (50, 90), (7,)]  # less than a line, and more than a tile
TOUCHED = [{0, 2, 5}, {0, 3}, set(), {1, 2, 3, 4, 5}, {0}]  # in each step; the last parameter is never


@pytest.fixture
def updates(monkeypatch):
    """Makes an update by kernels and one by torch's functions, of the same parameters."""

    def make(settings=(), *, n=2, max_grad_norm=math.inf, dtype=torch.float32, low=(), low_dtype=torch.bfloat16):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(size, dtype=dtype)) for size in SIZES]
        parameters[4].data = parameters[4].data.contiguous(memory_format=torch.channels_last)
        made = []
        for kernels, own in ((True, parameters), (False, copy.deepcopy(parameters))):
            with monkeypatch.context() as context:
                if not kernels:
                    context.delenv("TRITON_INTERPRET")
                optimizer = torch.optim.SGD(own, lr=0.1, **dict(settings))
                update = WeightUpdate(optimizer, max_grad_norm, n)
                if low:
                    update.build(low_dtype, {id(own[index]) for index in low})
            update.load()
            made.append((update, own))
        return made

    return make


def rules(update):
    return {type(rule) for rule in update._rules}


def step(made, touched, seed, factor=1.0):
    """One step with random gradients of some parameters; those of the passes cancel in some of the numbers."""
    update, parameters = made
    generator = torch.Generator().manual_seed(seed)
    update.begin()
    n = len(update.weights)
    for index in sorted(touched):
        gradients = factor * torch.randn(n, *SIZES[index], generator=generator, dtype=torch.float64)
        gradients[1:2, 0] = -gradients[0, 0]
        for number in range(n):
            if (index + number + seed) % 3:  # not in every pass
                update.weights[number].gradients[id(parameters[index])].copy_(gradients[number])
    update.step(update.lrs)


def assert_same(one, two):
    """The same parameters, gradients and momentum, up to roundings of numbers near 1."""
    found = []
    for update, parameters in (one, two):
        update.store()
        state = update._optimizer.state
        found.append([(p, p.grad, state[p].get("momentum_buffer")) for p in parameters])
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def assert_same_steps(one, two):
    for seed, touched in enumerate(TOUCHED):
        for made in (one, two):
            step(made, touched, seed)
        assert_same(one, two)
    assert one[1][-1].grad is None


SETTINGS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"weight_decay": 0.1},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("low", [(), (0, 3, 5, 6)], ids=["float32", "some in bfloat16"])
def test_steps_equal_those_by_torchs_functions(settings, low, updates):
    one, two = updates(settings, low=low)
    assert (rules(one[0]), rules(two[0])) == ({FusedSGDRule}, {SGDRule})
    assert_same_steps(one, two)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("low_dtype", [torch.bfloat16, torch.float16], ids=str)
def test_any_number_of_passes_may_be_added_up(n, low_dtype, updates):
    assert_same_steps(*updates({"momentum": 0.9}, n=n, low=range(len(SIZES)), low_dtype=low_dtype))


@pytest.mark.parametrize("low", [(), (2, 5)], ids=["float32", "some in bfloat16"])
def test_gradients_are_clipped_by_the_norm_of_all(low, updates):
    one, two = updates({"momentum": 0.9, "weight_decay": 0.01}, max_grad_norm=0.5, low=low)
    assert_same_steps(one, two)
    step(one, {5}, 9)
    norm = math.sqrt(sum(p.grad.double().square().sum() for p in one[1] if p.grad is not None))
    assert norm == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("low", [(), range(len(SIZES))], ids=["float32", "bfloat16"])
def test_a_gradient_that_is_not_finite_moves_nothing(low, bad, updates):
    one, two = updates({"momentum": 0.9, "weight_decay": 0.1}, low=low)
    for made in (one, two):
        step(made, {0, 5}, 1)
    before = copy.deepcopy([one[1], one[0]._rules[0].flat_state()])
    for made in (one, two):
        step(made, {0, 3}, 2, factor=bad)
    torch.testing.assert_close([one[1], one[0]._rules[0].flat_state()], before, rtol=0, atol=0)
    assert torch.equal(one[0].groups[0].touched, two[0].groups[0].touched)  # also what was touched by it
    for made in (one, two):
        step(made, {0, 1}, 3)
    assert_same(one, two)


@pytest.mark.parametrize("low", [(), range(len(SIZES))], ids=["float32", "float16"])
def test_passes_find_no_gradients_and_the_newest_weights(low, updates):
    made = updates({"momentum": 0.9}, low=low, low_dtype=torch.float16)[0]
    for seed, touched in enumerate(TOUCHED):
        step(made, touched, seed)
        flat = made[0].groups[0]
        if flat.low is not None:
            assert torch.equal(flat.low, flat.values.to(flat.low.dtype))
        made[0].begin()
        assert not flat.rows.any()


def test_gradients_that_were_written_in_between_are_forgotten(updates):
    update, parameters = made = updates({"momentum": 0.9}, low=range(len(SIZES)))[0]
    step(made, {0, 5}, 1)
    update.store()
    parameters[5].grad.fill_(1.0)  # as a plain step does
    update.load()
    step(made, {0}, 1)
    assert not parameters[5].grad.any()


def test_parameters_in_float64_go_to_torch(updates):
    one, two = updates({"momentum": 0.9}, dtype=torch.float64)
    assert rules(one[0]) == rules(two[0]) == {SGDRule}
    assert_same_steps(one, two)


def test_the_learning_rate_may_be_on_the_device(updates):
    one, two = updates({"momentum": 0.9})
    for (update, parameters), lr in ((one, torch.tensor(0.3, dtype=torch.float64)), (two, 0.3)):
        update.begin()
        update.weights[0].gradients[id(parameters[5])].fill_(0.1)
        update.step([lr])
    assert_same(one, two)


def test_captured_steps_and_plain_ones_may_take_turns():
    torch.manual_seed(0)
    model = captures.Choosy()
    plain, other = (captures.oneshot(m, max_grad_norm=1.0) for m in (model, copy.deepcopy(model)))
    opened = Iteration(other.supernet, other.weight_optimizer, cross_entropy, 2, max_grad_norm=1.0, amp_dtype=None)
    data = pairs(9)
    opened.prepare(data[0][0], data[0][0])
    assert rules(opened.update) == {FusedSGDRule}
    for number, (train, valid) in enumerate(data):
        expected = plain.step(train, valid)
        if number % 3 < 2:
            opened.update.load()
            drawn, candidates = other.arch_optimizer.ask(), other.arch_optimizer.ask()
            _, judged = opened.step([c.values for c in drawn], train, [c.values for c in candidates], valid)
            losses = [numbers.loss for numbers in judged]
            other.arch_optimizer.tell(candidates, losses)
            opened.update.store()
        else:
            losses = [*other.step(train, valid).valid_losses]
        assert losses == pytest.approx([*expected.valid_losses], rel=1e-5)
    assert captures.with_gradient(other.model) == captures.with_gradient(model)
    torch.testing.assert_close([*other.model.parameters()], [*model.parameters()])
