"""Captured steps as far as a CPU can run them: the same code, with a switch in Python in place of the graph's."""

# mypy: disable-error-code="attr-defined, index, union-attr"

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from asng import Categorical, Integer, nas
from asng.experiments.cifar10.network import Net as CifarNet
from asng.nas import OneOf, Value, Width, select
from asng.nas._capture import trace
from tests.helpers.captures import (
    Body,
    Choosy,
    assert_same_steps,
    iteration,
    oneshot,
    step,
)
from tests.helpers.searches import Net, batches, cross_entropy, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("model", [Choosy, lambda: Net(dropout=0, norm=True)], ids=["choosy", "net"])
def test_an_open_iteration_equals_the_plain_step_bit_for_bit(model, dtype):
    assert_same_steps(model(), dtype=dtype)


def test_choices_with_too_many_cases_get_switches_inside(monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", 4)
    assert_same_steps(Choosy())


def test_mixed_precision_equals_the_plain_step_bit_for_bit():
    assert_same_steps(Choosy(), amp_dtype=torch.bfloat16)


def test_a_module_in_two_choices_keeps_its_weights_in_mixed_precision():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(OneOf("a", [shared, nn.Tanh()]), OneOf("b", [nn.Tanh(), shared]), nn.Linear(4, 3))
    own = [shared.weight, shared.bias]
    opened = iteration(oneshot(model), batches(1)[0], amp_dtype=torch.bfloat16)
    step(oneshot(model), opened, *pairs(1)[0])
    assert all(parameter is before for parameter, before in zip(shared.parameters(), own, strict=True))


class Autocasts(nn.Module):
    """Its forward() has its own mixed precision, made with the class, which keeps the casts of weights."""

    def __init__(self):
        super().__init__()
        self.net = Choosy()

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x):
        return self.net(x)


def test_a_model_with_its_own_mixed_precision_equals_the_plain_step_bit_for_bit():
    assert_same_steps(Autocasts())


class Factor(nn.Module):
    """A weight, and what is computed of it at the first use in a pass."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.kept: list[torch.Tensor] = []

    def forward(self, x):
        self.kept = self.kept or [self.weight.exp()]
        return x * self.kept[0]


class Remembers(nn.Module):
    """Its options share what the first of them computes."""

    def __init__(self):
        super().__init__()
        self.factor, self.stem, self.head = Factor(), nn.Linear(4, 8), nn.Linear(8, 3)
        self.op = OneOf("op", [nn.Sequential(self.factor, nn.Tanh()), nn.Sequential(self.factor, nn.ReLU())])

    def forward(self, x):
        self.factor.kept = []
        return self.head(self.op(self.stem(x)))


def test_weights_behind_what_options_remember_get_their_gradients():
    assert_same_steps(Remembers())


class Recomputes(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False)


def test_choices_that_an_option_recomputes_are_those_of_the_candidate():
    inner = OneOf("inner", [nn.Tanh(), nn.Linear(4, 4)])
    model = nn.Sequential(OneOf("op", [Recomputes(inner), nn.Linear(4, 4)]), nn.Linear(4, 3))
    select(model, {"op": 0, "inner": 0})  # which must not be used
    assert_same_steps(model)


@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
def test_hooks_on_gradients_are_called(amp_dtype):
    (train, valid) = pairs(1, torch.float)[0]
    gradients = []
    for factor in (1, 3):
        torch.manual_seed(0)
        model: Any = Choosy()
        weights = [model.stem.weight, model.last.options[1].weight]
        for weight in weights:
            weight.register_hook(lambda gradient, factor=factor: gradient * factor)
        opened = iteration(oneshot(model), train, amp_dtype=amp_dtype)
        candidates = [{"op": 1, "inner": 0, "depth": 1, "source": 0, "last": 1}] * 2
        opened.step(candidates, train, candidates, valid)
        opened.update.store()
        gradients.append([weight.grad / factor for weight in weights])
    torch.testing.assert_close(*gradients)


def test_clipped_steps_equal_the_plain_ones_up_to_rounding():
    assert_same_steps(Choosy(), dtype=torch.double, max_grad_norm=0.3, same=False)


def test_a_searchable_module_that_reads_its_decision_is_a_switch():
    model = nn.Sequential(Body(), nn.Linear(4, 3))
    assert_same_steps(model)


class Residual(nn.Module):
    """A block whose inner width and depth are decided, and read in Python or by elastic layers."""

    def __init__(self, name):
        super().__init__()
        width = Width(f"{name}.width", [2, 3, 5])
        self.body = nn.Sequential(nas.Linear(4, width), nas.BatchNorm1d(width), nn.ReLU(), nas.Linear(width, 4))
        self.times = Value(f"{name}.times", Integer(1, 3))

    def forward(self, x):
        for _ in range(self.times.value):
            x = x + self.body(x)
        return x


@pytest.mark.parametrize("max_cases", [64, 3], ids=["one switch a block", "a switch in each body"])
def test_where_shapes_differ_the_module_around_is_a_switch(max_cases, monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", max_cases)
    block = Residual("a") if max_cases == 64 else Residual("a").body
    assert_same_steps(nn.Sequential(block, nn.Tanh(), nn.Linear(4, 3)))


class Repeats(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.times, self.linear = times, nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(self.times.value):
            x = self.linear(x).tanh()
        return x


def test_two_blocks_that_read_one_decision_are_both_switches():
    times = Value("times", Integer(1, 3))
    model = nn.Sequential(Repeats(times), Repeats(times), nn.Linear(4, 3))
    assert_same_steps(model)
    assert iteration(oneshot(model), batches(1)[0])._surroundings == [model[0], model[1]]


class Rescales(nn.Module):
    """Writes into what a choice has read, before another one reads it."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.first, self.second = (OneOf(name, [nn.Tanh(), nn.Sigmoid()]) for name in ("first", "second"))

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.first(x) + self.second(x.mul_(2)))


def test_choices_before_and_after_a_write_have_gradients_of_their_own():
    assert_same_steps(Rescales())


def test_a_forward_of_a_module_alone_is_kept():
    model = nn.Sequential(OneOf("op", [nn.Linear(4, 4), nn.Tanh()]), nn.Linear(4, 3))
    own = model[0].forward = partial(model[0].forward)
    iteration(oneshot(model), batches(1)[0])
    assert model[0].forward is own


def test_blocks_with_widths_are_switches_of_their_own():
    model = nn.Sequential(Residual("a"), nn.Tanh(), Residual("b"), nn.Linear(4, 3))
    assert_same_steps(model)
    search = oneshot(model)
    assert iteration(search, batches(1)[0])._surroundings == [model[0], model[2]]


def test_the_cifar10_network_equals_the_plain_step_up_to_rounding():
    data = [
        [(torch.randn(4, 3, 8, 8, dtype=torch.double), torch.randint(10, (4,))) for _ in range(2)] for _ in range(4)
    ]
    assert_same_steps(CifarNet(4, 3), dtype=torch.double, same=False, max_grad_norm=5.0, data=data)


def test_nested_choices_of_the_cifar10_network_are_one_switch():
    model = CifarNet(2, 3)
    opened = iteration(oneshot(model), (torch.randn(2, 3, 8, 8), torch.randint(10, (2,))))
    cells = [site for site in opened._passes["train"].sites if not site.cases]  # each with 10 slots behind it
    slots = [site for site in opened._passes["train"].sites if site.cases]
    assert len(cells) == 3
    assert [len(slot.cases) for slot in slots] == [5 * (2 + node) for node in range(5) for _ in range(2)] * 3
    assert not any(case.sites for slot in slots for case in slot.cases)


class Fills(TorchDispatchMode):
    """Counts the tensors of zeros that are made."""

    number = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.number += operator.__name__.split(".")[0] in ("zeros", "zeros_like", "zero_", "new_zeros")
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
def test_gradients_of_the_inputs_of_all_switches_are_cleared_at_once(amp_dtype):
    numbers = []
    for choices in (1, 6):
        body = [OneOf(f"op{n}", [nn.Linear(4, 4), nn.Tanh(), nn.Identity()]) for n in range(choices)]
        model = nn.Sequential(nn.Linear(4, 4), *body, nn.Linear(4, 3))
        opened = iteration(oneshot(model), batches(1)[0], amp_dtype=amp_dtype)
        with Fills() as fills:
            step(oneshot(model), opened, *pairs(1)[0])
        numbers.append(fills.number)
    assert numbers[0] == numbers[1] > 0


def cross_entropy_and_metrics(model, batch):
    loss = cross_entropy(model, batch)
    return loss, {"twice": 2 * loss, "rows": len(batch[0])} if loss.requires_grad else {"half": loss / 2}


def test_metrics_are_read_with_the_losses():
    model = Choosy()
    plain, other = (oneshot(m, loss_fn=cross_entropy_and_metrics) for m in (model, copy.deepcopy(model)))
    opened = iteration(other, batches(1)[0], loss_fn=cross_entropy_and_metrics)
    for train, valid in pairs(3):
        expected = plain.step(train, valid)
        drawn, candidates = other.arch_optimizer.ask(), other.arch_optimizer.ask()
        trained, judged = opened.step([c.values for c in drawn], train, [c.values for c in candidates], valid)
        other.arch_optimizer.tell(candidates, [numbers.loss for numbers in judged])
        got = (tuple(numbers.metrics for numbers in half) for half in (trained, judged))
        assert tuple(got) == (expected.train_metrics, expected.valid_metrics)
        assert expected.train_metrics[0]["rows"] == len(train[0])


def test_param_groups_with_schedules_equal_the_plain_step():
    model = Choosy()
    twin = copy.deepcopy(model)

    def make_oneshot_of(model):
        groups = [
            {"params": model.stem.parameters(), "lr": 0.01},
            {"params": [*model.parameters()][2:], "nesterov": True},
        ]
        weight_optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.5, weight_decay=0.1)
        return oneshot(model, weight_optimizer=weight_optimizer)

    plain, other = make_oneshot_of(model), make_oneshot_of(twin)
    opened = iteration(other, batches(1)[0])
    for train, valid in pairs(5):
        expected = plain.step(train, valid)
        assert (list(expected.train_losses), list(expected.valid_losses)) == step(other, opened, train, valid)
        for search in (plain, other):
            search.weight_optimizer.param_groups[0]["lr"] *= 0.5  # as a schedule does


def test_a_dry_run_leaves_weights_buffers_selection_and_rng_alone():
    model = Net(norm=True)
    select(model, {"first": 1, "depth": 2})
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    iteration(oneshot(model), batches(1)[0])
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), rng)
    assert model.first.value == 1
    assert model.first.forward.__self__ is model.first


def test_a_module_with_its_own_kernel_reads_numbers_and_addresses_of_weights():
    seen = []

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.which = Value("which", Categorical([2, 3, 5]))
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            if not trace.is_open():
                return self.linear(x) * self.which.value
            addresses, anchor = trace.address_weights([self.linear.weight])
            seen.append((addresses.tolist(), self.linear.weight.data_ptr(), anchor.requires_grad))
            return self.linear(x) * trace.read_numbers(self.numbers, length=1) + anchor

        def numbers(self, values):
            return [values["which"]]

    model = Scaled()
    plain, other = oneshot(model), oneshot(copy.deepcopy(model))
    opened = iteration(other, batches(1)[0])
    for train, valid in pairs(5):
        expected = plain.step(train, valid)
        got = step(other, opened, train, valid)
        torch.testing.assert_close([*got[0], *got[1]], [*expected.train_losses, *expected.valid_losses])
    gradients = {weights.gradients[id(other.model.linear.weight)].data_ptr() for weights in opened.update.weights}
    assert {row[1] for ((row,), _, _) in seen} == gradients
    assert all(row[0] == address and has_gradient for ((row,), address, has_gradient) in seen)


def test_a_module_with_its_own_mask_reads_the_index_on_the_device():
    class Mask(nn.Module):
        def __init__(self):
            super().__init__()
            self.which = Value("which", Categorical(range(3)))
            self.weight = nn.Parameter(torch.randn(3, 4, 3))

        def forward(self, x):
            mask = torch.as_tensor(self.which.index) == torch.arange(3)
            return x @ (self.weight * mask[:, None, None]).sum(0)

    model = Mask()
    plain, other = oneshot(model), oneshot(copy.deepcopy(model))
    opened = iteration(other, batches(1)[0])
    for train, valid in pairs(5):
        expected = plain.step(train, valid)
        assert (list(expected.train_losses), list(expected.valid_losses)) == step(other, opened, train, valid)
