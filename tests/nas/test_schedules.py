"""Learning rates of a search: stepped after every epoch or every step, by the user's schedule or a cosine to 0."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from asng.nas import Limit
from tests.helpers.searches import Net, batches, cross_entropy, interrupt_at, outcome, run_search, same

pytestmark = pytest.mark.usefixtures("same_numbers")


def lrs_of(make=None, loss_fn=cross_entropy, *, epochs=2, optimizer=None, **settings):
    """The learning rate of each step of a search."""
    model, lrs = Net(), []
    weight_optimizer = torch.optim.SGD(model.parameters(), 0.1) if optimizer is None else optimizer(model)

    def callback(record):
        if not isinstance(record, dict):
            lrs.append(used[-1])

    used: list[float] = []

    def loss(model, batch):
        used.append(weight_optimizer.param_groups[0]["lr"])
        return loss_fn(model, batch)

    options = {"weight_optimizer": weight_optimizer, "lr_scheduler": None if make is None else make(weight_optimizer)}
    run_search(model, loss_fn=loss, epochs=epochs, callback=callback, **options, **settings)
    return lrs


def test_a_schedule_may_be_stepped_after_every_step():
    lrs = lrs_of(lambda w: StepLR(w, 1, gamma=0.5), scheduler_interval="step")
    assert lrs == pytest.approx([0.1 * 0.5**step for step in range(10)])
    assert lrs_of(lambda w: StepLR(w, 1, gamma=0.5)) == pytest.approx([0.1] * 5 + [0.05] * 5)


def test_one_cycle_runs_over_all_steps():
    lrs = lrs_of(lambda w: OneCycleLR(w, 0.4, total_steps=10, pct_start=0.3), scheduler_interval="step")
    assert len(lrs) == 10
    assert max(lrs) == lrs[2] == pytest.approx(0.4)
    assert lrs[-1] < 1e-4


@pytest.mark.parametrize(("interval", "steps"), [("step", 10), ("epoch", 2)])
def test_a_cycle_that_ends_too_early_is_refused_before_the_search(interval, steps):
    with pytest.raises(
        ValueError, match=rf"after total_steps=1 and cannot go on, but this search steps it {steps} times; search"
    ):
        lrs_of(lambda w: OneCycleLR(w, 0.4, total_steps=1), scheduler_interval=interval)


@pytest.mark.parametrize(
    "make", [lambda w: OneCycleLR(w, 0.4, total_steps=10), lambda w: CosineAnnealingLR(w, 10)], ids=["cycle", "cosine"]
)
def test_a_schedule_by_steps_that_is_stepped_after_epochs_is_warned_of(make):
    with pytest.warns(UserWarning, match=r"made for 10 steps, .* each of 2 epochs; pass scheduler_interval='step'"):
        lrs_of(make)
    lrs_of(make, scheduler_interval="step")


class Stream:
    """Batches of no known number."""

    def __iter__(self):
        return iter(batches(2))


def test_a_cycle_that_ends_in_a_stream_says_so_at_its_end():
    with pytest.raises(ValueError, match="after total_steps=3 and cannot go on, but this search steps it 4 times"):
        lrs_of(lambda w: OneCycleLR(w, 0.4, total_steps=3), train_loader=Stream(), scheduler_interval="step", epochs=2)


def test_the_default_cosine_may_run_in_steps():
    expected = [0.05 * (1 + math.cos(math.pi * step / 10)) for step in range(10)]
    assert lrs_of(scheduler_interval="step") == pytest.approx(expected)
    assert lrs_of() == pytest.approx([0.1] * 5 + [0.05] * 5)


def test_a_default_schedule_that_begins_at_0_is_warned_of():
    model = Net()
    weights = torch.optim.SGD([{"params": model.first.parameters()}, {"params": model.blocks.parameters()}], 0.1)
    weights.add_param_group({"params": model.head.parameters(), "lr": 0.0})  # one group may be kept
    run_search(model, weight_optimizer=weights)
    with pytest.warns(UserWarning, match=r"learning rate of weight_optimizer is 0, .* earlier search .* make a new"):
        run_search(model, weight_optimizer=weights)
    run_search(model, weight_optimizer=weights, lr_scheduler=LambdaLR(weights, lambda epoch: 0.1 * epoch))  # a warm-up


def test_the_same_call_after_a_finished_search_is_not_warned_of_its_learning_rate(tmp_path):
    model = Net()
    weights = torch.optim.SGD(model.parameters(), 0.1)
    for epochs in (2, 2, 4):
        run_search(model, weight_optimizer=weights, checkpoint=tmp_path / "search.pt", epochs=epochs)


class Plateau(ReduceLROnPlateau):
    """Notes what it is given."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.seen: list[float] = []

    def step(self, metrics, epoch=None):  # type: ignore[override]
        self.seen.append(float(metrics))


def test_a_plateau_in_steps_sees_each_score_that_there_is():
    few = Limit(lambda model, values: values["depth"], 1, name="depth")
    scores: list[float] = []
    model = Net()
    weights = torch.optim.SGD(model.parameters(), 0.1)
    plateau = Plateau(weights)
    found = run_search(
        model,
        weight_optimizer=weights,
        lr_scheduler=plateau,
        scheduler_interval="step",
        limits=[few],
        callback=lambda record: scores.append(getattr(record, "score", math.nan)),
        epochs=4,
        seed=1,
    )
    judged = [score for score in scores if not math.isnan(score)]
    assert plateau.seen == judged
    assert 0 < len(judged) < len(scores) - len(found.history)  # in some steps there was nothing to judge


@pytest.mark.filterwarnings("ignore:the distribution has not moved")
def test_a_plateau_in_epochs_sees_the_mean_score_of_a_judge():
    model = Net()
    weights = torch.optim.SGD(model.parameters(), 0.1)
    plateau = Plateau(weights)
    run_search(model, weight_optimizer=weights, lr_scheduler=plateau, judge=lambda model, batch: 7)
    assert plateau.seen == [7.0, 7.0]


def test_another_interval_is_refused():
    with pytest.raises(ValueError, match='scheduler_interval must be "epoch" or "step", got \'batch\''):
        run_search(scheduler_interval="batch")


def test_the_default_cosine_in_steps_needs_a_length():
    with pytest.raises(ValueError, match=r"train_loader has no length, .*; pass an lr_scheduler"):
        run_search(train_loader=Stream(), scheduler_interval="step")


def one_cycle_search(checkpoint, loss_fn=cross_entropy):
    torch.manual_seed(0)
    model = Net()
    weights = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    options = {"lr_scheduler": OneCycleLR(weights, 0.4, total_steps=20), "scheduler_interval": "step"}
    found = run_search(model, loss_fn=loss_fn, weight_optimizer=weights, epochs=4, checkpoint=checkpoint, **options)
    return outcome(model, found)


@pytest.mark.slow
@pytest.mark.parametrize("call", [2, 21, 47])
def test_a_schedule_in_steps_resumes_bit_for_bit(tmp_path, call):
    whole = one_cycle_search(None)
    with pytest.raises(KeyboardInterrupt):
        one_cycle_search(tmp_path / "search.pt", interrupt_at(call))
    assert same(one_cycle_search(tmp_path / "search.pt"), whole)


OF_SEQUENTIAL = pytest.mark.filterwarnings("ignore:The epoch parameter in")  # by torch 2.6's SequentialLR itself


def warm_up(weights):
    return SequentialLR(weights, [LinearLR(weights, 0.1, total_iters=3), ExponentialLR(weights, 0.5)], [3])


def warm_up_times_decay(weights):
    return ChainedScheduler([LinearLR(weights, 0.1, total_iters=3), ExponentialLR(weights, 0.5)])


@OF_SEQUENTIAL
@pytest.mark.parametrize("make", [warm_up, warm_up_times_decay])
def test_schedules_made_of_others_are_stepped_as_torch_steps_them(make):
    weights = torch.optim.SGD([torch.zeros(1)], 0.1)
    scheduler, expected = make(weights), []
    for _ in range(10):
        expected.append(weights.param_groups[0]["lr"])
        weights.step()
        scheduler.step()
    assert lrs_of(make, scheduler_interval="step") == pytest.approx(expected)


@OF_SEQUENTIAL
@pytest.mark.parametrize("make", [warm_up, warm_up_times_decay])
def test_schedules_made_of_others_resume_bit_for_bit(tmp_path, make):
    def search_with(checkpoint, loss_fn=cross_entropy):
        torch.manual_seed(0)
        model = Net()
        weights = torch.optim.SGD(model.parameters(), 0.1)
        options = {"lr_scheduler": make(weights), "weight_optimizer": weights, "scheduler_interval": "step"}
        return outcome(model, run_search(model, loss_fn=loss_fn, epochs=2, checkpoint=checkpoint, **options))

    with pytest.raises(KeyboardInterrupt):
        search_with(tmp_path / "search.pt", interrupt_at(21))
    assert same(search_with(tmp_path / "search.pt"), search_with(None))


@pytest.mark.slow
def test_a_checkpoint_of_another_interval_is_refused(tmp_path):
    run_search(checkpoint=tmp_path / "search.pt")
    with pytest.raises(ValueError, match="scheduler_interval"):
        run_search(checkpoint=tmp_path / "search.pt", scheduler_interval="step")
