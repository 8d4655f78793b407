"""Captured steps as far as a CPU can run them: the same code, with a switch in Python in place of the graph's."""

# mypy: disable-error-code="attr-defined, index, union-attr"

import copy
import inspect
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from asng import Categorical, Integer, nas
from asng.experiments.cifar10.network import Net as CifarNet
from asng.nas import Limit, OneOf, Value, Width, parameters, select
from asng.nas import oneshot as oneshot_module
from asng.nas._capture import trace
from asng.nas._capture.branch import SplitGroups, zeros_like
from asng.nas._capture.cases import Columns
from asng.nas._capture.update import CAPTURABLE, WeightUpdate
from asng.nas.supernet import Supernet
from tests.helpers.captures import (
    Body,
    Choosy,
    Counted,
    assert_same_steps,
    cross_entropy_and_accuracy,
    iteration,
    oneshot,
    step,
    with_gradient,
)
from tests.helpers.searches import Net, batches, cross_entropy, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


# Steps ---------------------------------------------------------------------------------------------


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


def test_zeros_in_one_piece_of_memory_are_like_the_tensors():
    alike = [torch.ones(3, 5).t(), torch.ones(2, 3, 4, 4, dtype=torch.bfloat16), torch.ones(()), torch.ones(0, 2)]
    alike[1] = alike[1].to(memory_format=torch.channels_last)
    zeros = zeros_like([tensor.to("meta") for tensor in alike], torch.device("cpu"))
    for tensor, expected in zip(zeros, map(torch.zeros_like, alike), strict=True):
        assert torch.equal(tensor, expected)
        assert (tensor.stride(), tensor.dtype) == (expected.stride(), expected.dtype)
        tensor.fill_(1)  # and no other
    assert [tensor.untyped_storage().data_ptr() for tensor in zeros[::2]] == [zeros[0].data_ptr()] * 2


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


@pytest.mark.usefixtures("graphless")
def test_a_learning_rate_may_be_a_tensor():
    model = Choosy()
    twin = copy.deepcopy(model)
    plain, captured = (
        oneshot(m, weight_optimizer=torch.optim.SGD(m.parameters(), torch.tensor(0.1), momentum=0.9), capture=c)
        for m, c in ((model, False), (twin, True))
    )
    for train, valid in pairs(5):
        assert captured.step(train, valid) == plain.step(train, valid)
        for search in (plain, captured):
            search.weight_optimizer.param_groups[0]["lr"].mul_(0.5)
    assert captured.capture_cost
    torch.testing.assert_close([*twin.parameters()], [*model.parameters()], rtol=0, atol=0)


@pytest.mark.usefixtures("graphless")
@pytest.mark.filterwarnings("error")
def test_a_schedule_after_captured_steps_does_not_miss_the_step_of_the_optimizer():
    search = oneshot(Choosy(), capture=True)
    schedule = torch.optim.lr_scheduler.StepLR(search.weight_optimizer, 1)
    for train, valid in pairs(3):
        search.step(train, valid)
        schedule.step()  # which would warn of it
    assert search.capture_cost
    assert search.weight_optimizer.param_groups[0]["lr"] == pytest.approx(schedule.base_lrs[0] * 0.1**3)


@pytest.mark.usefixtures("graphless")
def test_steps_do_not_depend_on_the_default_device():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    for train, valid in pairs(3):
        expected = plain.step(train, valid)
        with torch.device("meta"):  # as that of a GPU
            assert captured.step(train, valid) == expected


def test_a_dry_run_leaves_weights_buffers_selection_and_rng_alone():
    model = Net(norm=True)
    select(model, {"first": 1, "depth": 2})
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    iteration(oneshot(model), batches(1)[0])
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), rng)
    assert model.first.value == 1
    assert model.first.forward.__self__ is model.first


OPTIMIZERS = [
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    partial(torch.optim.AdamW, lr=0.01),
    partial(torch.optim.ASGD, lr=0.1, t0=3),
    partial(torch.optim.NAdam, lr=0.01),
    partial(torch.optim.Rprop, lr=0.01),
]
OPTIMIZER_NAMES = [optimizer.func.__name__ for optimizer in OPTIMIZERS]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=OPTIMIZER_NAMES)
def test_a_gradient_that_is_not_finite_leaves_weights_and_state(optimizer):
    model = Choosy()
    search = oneshot(model, weight_optimizer=optimizer(model.parameters()))
    x, y = batches(1)[0]
    opened = iteration(search, (x, y))
    step(search, opened, (x, y), (x, y))
    before = copy.deepcopy([tensor for tensor in opened.update.tensors() if tensor.is_floating_point()])
    losses, _ = step(search, opened, (x * math.nan, y), (x, y))
    assert all(map(math.isnan, losses))
    after = [tensor for tensor in opened.update.tensors() if tensor.is_floating_point()]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=OPTIMIZER_NAMES)
def test_a_first_gradient_that_is_not_finite_begins_no_state(optimizer):
    model = Choosy()
    plain, other = (oneshot(m, weight_optimizer=optimizer(m.parameters())) for m in (model, copy.deepcopy(model)))
    x, y = batches(1)[0]
    opened = iteration(other, (x, y))
    plain.step((x * math.nan, y), (x, y))
    step(other, opened, (x * math.nan, y), (x, y))
    opened.update.store()
    for search in (plain, other):
        search.weight_optimizer.param_groups[0]["lr"] /= 2  # from which states begin
    for train, valid in pairs(3):
        assert other.step(train, valid) == plain.step(train, valid)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=OPTIMIZER_NAMES)
def test_plain_steps_go_on_where_an_open_iteration_stopped(optimizer):
    model = Choosy()
    twin = copy.deepcopy(model)
    plain, other = (oneshot(m, weight_optimizer=optimizer(m.parameters())) for m in (model, twin))
    opened = iteration(other, batches(1)[0])
    for number, (train, valid) in enumerate(pairs(12)):
        plain.step(train, valid)
        if number % 4 < 2:
            opened.update.load()
            step(other, opened, train, valid)
            opened.update.store()
        else:
            other.step(train, valid)
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert with_gradient(twin) == with_gradient(model)


@pytest.mark.usefixtures("graphless")
def test_captured_steps_give_way_to_plain_ones_and_go_on():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    data = pairs(9)
    small = tuple(tensor[:5] for tensor in data[0][0])
    data[3:3] = [(small, small)]
    for number, (train, valid) in enumerate(data):
        assert captured.step(train, valid) == plain.step(train, valid)
        if number == 6:
            captured.load_state_dict(copy.deepcopy(captured.state_dict()))
    captured.state_dict()
    assert set(captured.capture_cost) == {"capture_seconds", "capture_gb"}
    assert with_gradient(captured.model) == with_gradient(plain.model)
    torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("graphless")
@pytest.mark.parametrize(("name", "captures"), [("lr", 1), ("momentum", 2)])
def test_a_state_that_is_loaded_brings_its_settings(name, captures):
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    for number, (train, valid) in enumerate(pairs(6)):
        assert captured.step(train, valid) == plain.step(train, valid)
        for search in (plain, captured):
            if number == 2:
                state = copy.deepcopy(search.state_dict())
                state["weight_optimizer"]["param_groups"][0][name] /= 10
                search.load_state_dict(state)
            search.weight_optimizer.param_groups[0]["lr"] *= 0.9  # as a schedule does
    assert captured._captured._captures == captures


@pytest.mark.usefixtures("graphless")
@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16])
def test_weights_that_are_frozen_for_a_while_are_captured_again(amp_dtype):
    model = Choosy()
    plain, captured = (
        oneshot(m, amp_dtype=amp_dtype, capture=c) for m, c in ((model, False), (copy.deepcopy(model), True))
    )
    for number, (train, valid) in enumerate(pairs(12)):
        for search in (plain, captured):
            search.model.stem.requires_grad_(not 4 <= number < 8)
        assert captured.step(train, valid) == plain.step(train, valid)
    captured.state_dict()
    assert with_gradient(captured.model) == with_gradient(plain.model)
    torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("graphless")
@pytest.mark.parametrize("settings", [{}, {"amp_dtype": torch.bfloat16}], ids=["float32", "bfloat16"])
def test_passes_without_a_feasible_candidate_do_nothing(settings, monkeypatch):
    monkeypatch.setattr(oneshot_module, "MAX_DRAWS", 0)  # so that there are too few for the weights, too
    model = Counted(Choosy())
    settings |= {"limits": [Limit(parameters, 220)], "population_size": 3, "loss_fn": cross_entropy_and_accuracy}
    plain, captured = oneshot(model, **settings), oneshot(copy.deepcopy(model), capture=True, **settings)
    numbers = []
    for train, valid in pairs(30):
        expected = plain.step(train, valid)
        assert captured.step(train, valid) == expected
        numbers.append((sum(loss is not None for loss in expected.valid_losses), len(expected.train_losses)))
        assert captured.model.passes.tolist() == [sum(half) for half in zip(*numbers, strict=True)]
    judged, trained = zip(*numbers, strict=True)
    assert set(judged) == set(trained) == {0, 1, 2, 3}
    captured.state_dict()
    assert captured.capture_cost
    assert with_gradient(captured.model) == with_gradient(plain.model)
    torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(captured.arch_optimizer.distribution(), plain.arch_optimizer.distribution())


# Parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.SGD,
        partial(torch.optim.SGD, momentum=0.9),
        partial(torch.optim.SGD, momentum=0.9, nesterov=True),
        *(getattr(torch.optim, name) for name in CAPTURABLE),
        partial(torch.optim.Adam, amsgrad=True),
        partial(torch.optim.RMSprop, momentum=0.9, centered=True),
        partial(torch.optim.ASGD, t0=2),
        partial(torch.optim.NAdam, decoupled_weight_decay=True),
    ],
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_flat_gradients_move_weights_as_torch_does(optimizer, weight_decay):
    settings = {"lr": 0.1} | ({} if optimizer is torch.optim.Rprop else {"weight_decay": weight_decay})
    ours = [
        nn.Parameter(torch.randn(())),
        nn.Parameter(torch.randn(3, 5)),
        nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.randn(4, 70)[:, ::2]),
    ]
    theirs = copy.deepcopy(ours)
    made = [optimizer(p, **settings) for p in (ours, theirs)]
    flat = WeightUpdate(made[0], math.inf, 1)
    for number in range(8):
        flat.begin()
        for index, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            if number >= index:  # the others are touched later
                gradient = torch.randn_like(one)
                flat.weights[0].gradients[id(one)].copy_(gradient)
                two.grad = gradient
        flat.step(flat.lrs)
        made[1].step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        for one in made:
            one.param_groups[0]["lr"] *= 0.7  # with which the state of some begins


def test_all_of_torchs_capturable_optimizers_are_captured():
    kinds = [kind for kind in vars(torch.optim).values() if inspect.isclass(kind)]
    assert sorted(k.__name__ for k in kinds if "capturable" in inspect.signature(k).parameters) == sorted(CAPTURABLE)


def test_the_index_of_a_decision_is_the_position_of_its_value():
    model = nn.Sequential(OneOf("op", {"a": nn.ReLU(), "b": nn.Tanh()}), Body())
    select(model, {"op": "b", "depth": 3})
    assert (model[0].index, model[1].depth.index) == (1, 2)


def test_columns_tell_the_case_of_an_architecture():
    columns = Columns(Supernet(Choosy()))
    columns.add_cases([(("op", 0),), (("op", 1), ("inner", 0)), (("op", 1), ("inner", 1)), (("op", 2),)])
    assert columns.add_decision("depth") == 1
    values = {"op": 1, "inner": 1, "depth": 3, "source": 0, "last": 0}
    assert columns.encode(values) == [2, 2]


def times(values, factor):
    return [factor * values["op"], values["depth"]]


def test_columns_hold_the_numbers_that_functions_make_of_the_values():
    columns = Columns(Supernet(Choosy()))
    assert [columns.add_function(times, (factor,), 2) for factor in (10, 20, 10)] == [0, 2, 0]
    values = {"op": 1, "inner": 1, "depth": 3, "source": 0, "last": 0}
    assert columns.encode(values) == [10, 3, 20, 3]


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


@pytest.mark.parametrize("settings", [{}, {"stride": 2, "padding": 1}, {"bias": False}])
@pytest.mark.parametrize("transposed", ["", "Transpose"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_grouped_convolutions_are_split_into_one_per_group(settings, transposed, axes):
    conv = getattr(nn, f"Conv{transposed}{axes}d")(8, 12, 3, groups=4, **settings)
    x = torch.randn(2, 8, *[6] * axes)
    names = []

    class Names(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function)
            return function(*args, **(kwargs or {}))

    with Names(), SplitGroups():
        split = conv(x)
    torch.testing.assert_close(split, conv(x))
    assert names.count(getattr(torch, f"conv{'_transpose' if transposed else ''}{axes}d")) == 4
