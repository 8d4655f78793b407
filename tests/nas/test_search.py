"""search: the loop on any batches, its schedule and progress, and what it finds."""
# mypy: disable-error-code="func-returns-value"

import copy
import io
import itertools
import math
import random
import re
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from asng import ASNG, Categorical, Integer, Normal, Real, nas
from asng.nas import Decision, OneOf, OneShot, SearchResult, select, space_of, top
from asng.nas.result import probability
from tests.helpers.searches import Net, batches, cross_entropy, data, interrupt_at, outcome, run_search, same

pytestmark = pytest.mark.usefixtures("same_numbers")

# What it gives back --------------------------------------------------------------------------------


@pytest.mark.long
def test_a_search_ends_with_a_plain_model_its_architecture_and_history():
    torch.manual_seed(1)
    model = Net(dropout=0)
    x, y = data(400, 5)
    result = run_search(model, batches(40, 1), batches(40, 2), epochs=12)
    assert isinstance(result, SearchResult)
    assert result.feasible
    assert result.values == result.arch_optimizer.mode()
    assert result.values["first"] != 2  # it would not know of its input
    assert not any(isinstance(module, Decision) for module in result.model.modules())
    assert (result.model(x).argmax(1) == y).float().mean() > 0.7
    assert [record["epoch"] for record in result.history] == list(range(1, 13))
    assert result.history[-1]["train_loss"] < 0.7 * result.history[0]["train_loss"]
    assert set(result.history[0]) == {
        "epoch",
        "train_loss",
        "valid_loss",
        "seconds",
        "steps",
        "largest_probability",
        "delta",
        "distribution",
    }
    assert 0 < result.probability <= 1


def test_a_result_prints_as_tables_without_optimizer_and_layers():
    result = run_search(epochs=1)
    decisions, _, epochs = repr(result).split("\n\n")
    assert [line.split()[0] for line in decisions.splitlines()] == ["decision", *result.values]
    assert len(epochs.splitlines()) == 2
    assert "ASNG" not in repr(result)
    assert "Linear" not in repr(result)


def test_history_holds_the_means_of_the_steps():
    model, other = Net(dropout=0), Net(dropout=0)
    other.load_state_dict(model.state_dict())
    result = run_search(model, epochs=1)
    stream = np.random.SeedSequence(0).spawn(1)[0]
    weight_optimizer = torch.optim.SGD(other.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    oneshot = OneShot(other, ASNG(space_of(other), seed=stream), weight_optimizer, cross_entropy, max_grad_norm=5.0)
    steps = [oneshot.step(*pair) for pair in zip(batches(5, 1), batches(5, 2), strict=True)]
    train, valid = (np.mean([s.train_losses for s in steps]), np.mean([s.valid_losses for s in steps]))
    assert result.history[0]["train_loss"] == pytest.approx(train)
    assert result.history[0]["valid_loss"] == pytest.approx(valid)
    assert same(outcome(model, result)["weights"], dict(other.state_dict()))  # only OneShot


def test_probability_is_that_of_choices_and_integers():
    space = {"c": Categorical([0, 1, "x"]), "n": Integer(1, 4), "r": Real(0, 1)}
    distribution = {"c": np.array([0.2, 0.5, 0.3]), "n": Normal(2.0, 1.0), "r": Normal(0.5, 0.1)}
    draws = np.clip(np.rint(np.random.default_rng(0).normal(2.0, 1.0, 200_000)), 1, 4)
    total = 0.0
    for value in (1, 2, 3, 4):
        one = probability(distribution, space, {"c": 1, "n": value, "r": 0.1})
        assert one == pytest.approx(0.5 * (draws == value).mean(), abs=0.003)
        total += one
    assert total == pytest.approx(0.5)


def make_nested():
    """A choice of which one branch holds another choice."""
    inner = OneOf("inner", [nn.Linear(4, 3), nn.Linear(4, 3)])
    model = nn.Sequential(OneOf("outer", {"plain": nn.Linear(4, 3), "nested": inner}))
    prior = {"outer": [0.25, 0.75], "inner": [0.4, 0.6]}
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return lambda outer: OneShot(
        model, ASNG(space_of(model), initial=prior | {"outer": outer}, seed=0), weight_optimizer, cross_entropy
    )


def test_the_probability_has_the_same_bits_in_every_process():
    """Whatever the hashes of strings are there: factors are taken in the order of the space."""
    model = nn.Sequential(*(OneOf(f"choice {i}", [nn.Identity(), nn.ReLU()]) for i in range(40)))
    initial = {f"choice {i}": [1 - 1 / (i % 37 + 3), 1 / (i % 37 + 3)] for i in range(40)}
    arch_optimizer = ASNG(space_of(model), initial=initial, seed=0)
    weight_optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    (likely,) = top(OneShot(model, arch_optimizer, weight_optimizer, cross_entropy))
    assert likely.probability == probability(arch_optimizer.distribution(), arch_optimizer.space, likely.values)


def test_inactive_decisions_do_not_count_in_the_probability():
    make_oneshot = make_nested()
    oneshot = make_oneshot([0.75, 0.25])
    outer, inner = (oneshot.arch_optimizer.distribution()[name] for name in ("outer", "inner"))
    draws = [c.values for c in copy.deepcopy(oneshot.arch_optimizer).ask(20_000)]
    plain, second = top(oneshot)[0], top(make_oneshot([0.25, 0.75]))[0]
    assert plain[:3] == ({"outer": "plain", "inner": 1}, pytest.approx(outer[0]), True)
    assert plain.probability == pytest.approx(np.mean([v["outer"] == "plain" for v in draws]), abs=0.02)
    assert second.values == {"outer": "nested", "inner": 1}
    assert second.probability == pytest.approx(outer[0] * inner[1])
    assert nas.result(oneshot).probability == plain.probability


def test_looking_at_the_most_likely_copies_and_changes_nothing(monkeypatch):
    oneshot = make_nested()([0.75, 0.25])
    select(oneshot.model, {"outer": "nested", "inner": 0})
    before = oneshot.arch_optimizer.state_dict()
    result = nas.result(oneshot)
    monkeypatch.setattr(nas.Supernet, "extract", lambda *_: pytest.fail("extracted"))
    assert top(oneshot)[0][:5] == (result.values, result.probability, True, result.certainty, result.inactive)
    assert oneshot.arch_optimizer.state_dict() == before
    assert oneshot.model[0].value == "nested"


def test_top_orders_networks_by_their_probability_whatever_has_no_effect_in_them():
    """Here each of the values of the plain network has a probability of 0.1, and all together one of 0.4."""
    inner = OneOf("inner", [nn.Linear(4, 3) for _ in range(4)])
    model = nn.Sequential(OneOf("outer", {"plain": nn.Linear(4, 3), "nested": inner}))
    arch_optimizer = ASNG(space_of(model), initial={"outer": [0.4, 0.6]}, seed=0)
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mode, *others = top(OneShot(model, arch_optimizer, weight_optimizer, cross_entropy), 5)
    assert (mode.values["outer"], others[0].values["outer"]) == ("nested", "plain")
    assert [one.probability for one in others] == pytest.approx([0.4, 0.15, 0.15, 0.15])


def test_top_lists_each_network_once_most_likely_first():
    oneshot = make_nested()([0.75, 0.25])
    plain, *others = top(oneshot, 3)
    assert top(oneshot) == [plain]
    assert [one.values for one in others] == [{"outer": "nested", "inner": 1}, {"outer": "nested", "inner": 0}]
    assert sum(one.probability for one in (plain, *others)) == pytest.approx(1)
    assert top(oneshot, 9) == [plain, *others]  # there are no more
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        top(oneshot, 0)


def test_the_same_seed_gives_the_same_numbers_whatever_the_global_state():
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(4)
        model = Net(dropout=0)
        torch.manual_seed(random.randrange(1000))
        train, valid = (DataLoader(TensorDataset(*data(40)), batch_size=8, shuffle=True) for _ in range(2))
        results.append(outcome(model, run_search(model, train, valid, seed=seed)) | {"torch": None})
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


# Batches -------------------------------------------------------------------------------------------


class Generated:
    """A new generator for each epoch."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        yield from batches(self.n)


@pytest.mark.parametrize(
    "make",
    [
        lambda: batches(3),
        lambda: tuple(batches(3)),
        lambda: Generated(3),
        lambda: DataLoader(TensorDataset(*data(24)), batch_size=8),
        lambda: DataLoader(TensorDataset(*data(24)), batch_size=8, shuffle=True, num_workers=1),
    ],
    ids=["list", "tuple", "generators", "loader", "workers"],
)
def test_any_iterable_of_batches_will_do(make):
    calls = []
    result = run_search(
        train_loader=make(),
        valid_loader=make(),
        loss_fn=lambda m, b: calls.append(1) or cross_entropy(m, b),
    )
    assert len(calls) == 2 * 3 * 4
    assert len(result.history) == 2


def test_the_same_batches_for_weights_and_architectures_are_warned_of():
    with pytest.warns(UserWarning, match="train_loader and valid_loader are the same object, .* give valid_loader"):
        run_search(train_loader=(both := batches(3)), valid_loader=both, epochs=1)


def test_every_batch_of_train_is_used_once_in_every_epoch():
    seen = []
    run_search(
        train_loader=[("train", i) for i in range(5)],
        valid_loader=[("valid", i) for i in range(9)],
        loss_fn=lambda model, batch: seen.append(batch) or model(torch.ones(1, 4)).mean(),
        epochs=2,
    )
    steps = [([("train", i % 5)] * 2, [("valid", i % 9)] * 2) for i in range(10)]
    assert seen == [batch for step in steps for half in step for batch in half]


def test_the_paper_s_schedule_is_the_default():
    rates = []
    model = Net()
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.025)
    weight_optimizer.register_step_post_hook(lambda used, *_: rates.append(used.param_groups[0]["lr"]))
    run_search(model, batches(1), batches(1), weight_optimizer=weight_optimizer, epochs=5)
    assert rates == pytest.approx([0.025 * (1 + math.cos(math.pi * epoch / 5)) / 2 for epoch in range(5)])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda w: torch.optim.lr_scheduler.StepLR(w, 2, gamma=0.1), [1e-3, 1e-3, 1e-4, 1e-4]),
        (
            lambda w: torch.optim.lr_scheduler.ReduceLROnPlateau(w, patience=0, threshold=10.0, threshold_mode="abs"),
            [1e-3, 1e-3, 1e-4, 1e-5],
        ),
    ],
)
def test_a_given_schedule_is_used(make, expected):
    rates = []
    model = Net()
    weight_optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weight_optimizer.register_step_post_hook(lambda used, *_: rates.append(used.param_groups[0]["lr"]))
    run_search(
        model, batches(1), batches(1), weight_optimizer=weight_optimizer, lr_scheduler=make(weight_optimizer), epochs=4
    )
    assert rates == pytest.approx(expected)


# Losses that explode -------------------------------------------------------------------------------


def explode_from(from_call, factor):
    calls = itertools.count()

    def loss(model, batch):
        return cross_entropy(model, batch) * (factor if next(calls) >= from_call else 1)

    return loss


@pytest.mark.parametrize(("call", "epoch", "first"), [(2, 1, "step"), (20, 2, "epoch"), (44, 3, "epoch")])
def test_finite_losses_that_explode_are_warned_of(call, epoch, first):
    with pytest.warns(UserWarning, match=rf"of epoch {epoch} is .*e\+.*, after .* in the first {first}; .*lower the l"):
        assert len(run_search(loss_fn=explode_from(call, 1e6), epochs=3).history) == 3


def test_losses_that_grow_somewhat_are_not_warned_of():
    assert len(run_search(loss_fn=explode_from(20, 500), epochs=3).history) == 3  # a warning is an error


# Progress ------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def plain_environment(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_shown_on_stderr_if_wanted(stream, progress, monkeypatch, capsys):
    pytest.importorskip("rich")
    text = stream()
    monkeypatch.setattr(sys, "stderr", text)
    run_search(progress=progress)
    assert ("epoch 2, train loss " in text.getvalue()) == progress
    assert bool(text.getvalue()) == progress
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize("rich", [True, False])
def test_without_a_terminal_there_is_a_line_after_every_epoch(rich, monkeypatch, capsys):
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    run_search(progress=True, epochs=3)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"search: epoch {epoch}" for epoch in (1, 2, 3)]
    assert all("train loss" in line and "valid loss" in line for line in lines)


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
@pytest.mark.parametrize("progress", [True, False])
def test_a_continued_search_says_where_if_progress_is_wanted(stream, progress, monkeypatch, tmp_path):
    pytest.importorskip("rich")

    def run(epochs, loss_fn=cross_entropy):
        monkeypatch.setattr(sys, "stderr", text := stream())
        with suppress(KeyboardInterrupt):
            run_search(loss_fn=loss_fn, epochs=epochs, checkpoint=tmp_path / "search.pt", progress=progress)
        return re.findall(r"(?:search: )?continues.*", text.getvalue())

    prefix = "" if stream is Terminal else "search: "
    assert run(2, interrupt_at(14)) == []  # it begins
    assert run(2) == ([f"{prefix}continues in epoch 1 of 2 after step 4"] if progress else [])
    assert run(2) == []  # it was finished
    assert run(3) == ([f"{prefix}continues in epoch 3 of 3 after step 0"] if progress else [])


def test_without_rich_progress_is_a_line_in_ten_seconds(monkeypatch):
    text, now = Terminal(), 0.0

    def one_second(model, batch):  # four times per step
        nonlocal now
        now += 1.0
        return cross_entropy(model, batch)

    monkeypatch.setattr(sys, "stderr", text)
    monkeypatch.setitem(sys.modules, "rich.console", None)  # as if it were not installed
    monkeypatch.setattr("time.monotonic", lambda: now)
    run_search(loss_fn=one_second, progress=True)
    shown = re.findall(
        r"^\d+.\d%: epoch (\d)/2 step (\d), train loss [\d.]+, valid loss [\d.]+$", text.getvalue(), re.MULTILINE
    )
    assert shown == [("1", "3"), ("2", "1"), ("2", "4")]
    assert text.getvalue().count("\n") == len(shown)
