"""Captured steps of a search beside plain ones: optimizers, schedules, what interrupts them, limits."""

# mypy: disable-error-code="attr-defined, index, union-attr"

import copy
import math
from functools import partial

import pytest
import torch

from asng.nas import Limit, parameters
from asng.nas import oneshot as oneshot_module
from tests.helpers.captures import (
    Choosy,
    Counted,
    cross_entropy_and_accuracy,
    iteration,
    oneshot,
    step,
    with_gradient,
)
from tests.helpers.searches import batches, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


OPTIMIZERS = [
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    partial(torch.optim.AdamW, lr=0.01),
    partial(torch.optim.ASGD, lr=0.1, t0=3),
    partial(torch.optim.NAdam, lr=0.01),
    partial(torch.optim.Rprop, lr=0.01),
]
OPTIMIZER_NAMES = [optimizer.func.__name__ for optimizer in OPTIMIZERS]


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
