"""search: the loop on any batches, what it finds, and runs that are stopped, killed and continued."""
# mypy: disable-error-code="func-returns-value"

import copy
import io
import itertools
import math
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from searches import (
    POINTS,
    Net,
    batches,
    cross_entropy,
    crowd,
    data,
    ended,
    outcome,
    ready,
    same,
    searching,
    searching_together,
    small_search,
    started,
    torchrun,
)
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from asng import ASNG, Categorical, Integer, Normal, Real, checkpoints
from asng.nas import (
    Decision,
    Found,
    Limit,
    OneOf,
    OneShot,
    Value,
    found,
    most_likely,
    parameters,
    search,
    select,
    space_of,
)
from asng.nas.result import probability


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)
    torch.set_num_threads(1)


def searched(model=None, train=None, valid=None, loss=cross_entropy, *, epochs=2, progress=False, **settings):
    model = Net() if model is None else model
    train = batches(5, 1) if train is None else train
    valid = batches(5, 2) if valid is None else valid
    return search(model, train, valid, loss, epochs=epochs, progress=progress, **settings)


# What it gives back --------------------------------------------------------------------------------


def test_a_search_ends_with_a_plain_model_its_architecture_and_history():
    torch.manual_seed(1)
    model = Net(dropout=0)
    x, y = data(400, 5)
    result = searched(model, batches(40, 1), batches(40, 2), epochs=12)
    assert isinstance(result, Found)
    assert result.inside
    assert result.values == result.optimizer.mode()
    assert result.values["first"] != 2  # it would not know of its input
    assert not any(isinstance(module, Decision) for module in result.model.modules())
    assert (result.model(x).argmax(1) == y).float().mean() > 0.7
    assert [record["epoch"] for record in result.history] == list(range(1, 13))
    assert result.history[-1]["train_loss"] < 0.7 * result.history[0]["train_loss"]
    assert set(result.history[0]) == {"epoch", "train_loss", "valid_loss", "seconds", "largest_probability", "delta"}
    assert 0 < result.probability <= 1


def test_history_holds_the_means_of_the_steps():
    model, other = Net(dropout=0), Net(dropout=0)
    other.load_state_dict(model.state_dict())
    result = searched(model, epochs=1)
    stream = np.random.SeedSequence(0).spawn(1)[0]
    weights = torch.optim.SGD(other.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    oneshot = OneShot(other, ASNG(space_of(other), seed=stream), weights, cross_entropy, clip_norm=5.0)
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


def nested():
    """A choice of which one branch holds another choice."""
    inner = OneOf("inner", [nn.Linear(4, 3), nn.Linear(4, 3)])
    model = nn.Sequential(OneOf("outer", {"plain": nn.Linear(4, 3), "nested": inner}))
    prior = {"outer": [0.25, 0.75], "inner": [0.4, 0.6]}
    weights = torch.optim.SGD(model.parameters(), lr=0.1)
    return lambda outer: OneShot(
        model, ASNG(space_of(model), initial=prior | {"outer": outer}, seed=0), weights, cross_entropy
    )


def test_the_probability_is_that_of_the_network_so_that_what_has_no_effect_does_not_count():
    made = nested()
    oneshot = made([0.75, 0.25])
    outer, inner = (oneshot.optimizer.distribution()[name] for name in ("outer", "inner"))
    draws = [c.values for c in copy.deepcopy(oneshot.optimizer).ask(20_000)]
    plain, second = most_likely(oneshot), most_likely(made([0.25, 0.75]))
    assert plain == ({"outer": "plain", "inner": 1}, True, pytest.approx(outer[0]))
    assert plain.probability == pytest.approx(np.mean([v["outer"] == "plain" for v in draws]), abs=0.02)
    assert second.values == {"outer": "nested", "inner": 1}
    assert second.probability == pytest.approx(outer[0] * inner[1])
    assert found(oneshot).probability == plain.probability


def test_looking_at_the_most_likely_copies_and_changes_nothing(monkeypatch):
    oneshot = nested()([0.75, 0.25])
    select(oneshot.model, {"outer": "nested", "inner": 0})
    before = oneshot.optimizer.state_dict()
    result = found(oneshot)
    monkeypatch.setattr("asng.nas.result.extract", lambda *_: pytest.fail("extracted"))
    assert most_likely(oneshot) == (result.values, result.inside, result.probability)
    assert oneshot.optimizer.state_dict() == before
    assert oneshot.model[0].value == "nested"


def test_the_same_seed_gives_the_same_numbers_whatever_the_global_state():
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(4)
        model = Net(dropout=0)
        torch.manual_seed(random.randrange(1000))
        loader = DataLoader(TensorDataset(*data(40)), batch_size=8, shuffle=True)
        results.append(outcome(model, searched(model, loader, loader, seed=seed)) | {"torch": None})
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
    "iterable",
    [
        batches(3),
        tuple(batches(3)),
        Generated(3),
        DataLoader(TensorDataset(*data(24)), batch_size=8),
        DataLoader(TensorDataset(*data(24)), batch_size=8, shuffle=True, num_workers=1),
    ],
    ids=["list", "tuple", "generators", "loader", "workers"],
)
def test_any_iterable_of_batches_will_do(iterable):
    calls = []
    result = searched(train=iterable, valid=iterable, loss=lambda m, b: calls.append(1) or cross_entropy(m, b))
    assert len(calls) == 2 * 3 * 4
    assert len(result.history) == 2


@pytest.mark.parametrize("valid", [1, 2, 5, 9])
def test_every_batch_of_train_is_used_and_valid_starts_over(valid):
    seen = []
    searched(
        train=[("train", i) for i in range(5)],
        valid=[("valid", i) for i in range(valid)],
        loss=lambda model, batch: seen.append(batch) or model(torch.ones(1, 4)).mean(),
        epochs=2,
    )
    expected = [pair for _ in range(2) for i in range(5) for pair in [("train", i)] * 2 + [("valid", i % valid)] * 2]
    assert seen == expected


def test_the_paper_s_schedule_is_the_default():
    rates = []
    model = Net()
    weights = torch.optim.SGD(model.parameters(), lr=0.025)
    weights.register_step_post_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    searched(model, batches(1), batches(1), weights=weights, epochs=5)
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
    weights = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weights.register_step_post_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    searched(model, batches(1), batches(1), weights=weights, schedule=make(weights), epochs=4)
    assert rates == pytest.approx(expected)


# Wrong arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, r"epochs must be a whole number, got 1\.5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"train": 3}, "train must give batches when it is iterated, such as a DataLoader, got 3"),
        ({"train": []}, "train gave no batches in epoch 1; is it empty, or used up?"),
        ({"valid": []}, "valid gave no batches; is it empty, or used up?"),
        ({"train": iter(batches(2))}, "train is an iterator .* ends after one epoch of 2; pass what it is made from"),
        ({"valid": (b for b in batches(2))}, r"valid is an iterator \(generator\), which ends after one epoch of 2"),
        ({"valid": (b for b in batches(2)), "epochs": 1}, "valid gave no batches; is it empty, or used up?"),
        ({"model": nn.Linear(4, 3)}, "the model has no decisions"),
        ({"optimizer": ASNG({"a": Categorical(["x", "y"])})}, "another space than the model's"),
        ({"weights": torch.optim.SGD(Net().parameters(), 0.1)}, "weights does not hold the model's parameters"),
        ({"clip_norm": 0}, "clip_norm must be above 0, or None"),
        (
            {"schedule": torch.optim.lr_scheduler.StepLR(torch.optim.SGD(Net().parameters(), 0.1), 1)},
            "the schedule is of another optimizer; pass the one",
        ),
    ],
)
def test_wrong_arguments_are_named_with_their_cure(settings, message):
    with pytest.raises(ValueError, match=message):
        searched(**settings)


def test_one_epoch_takes_an_iterator():
    assert len(searched(train=iter(batches(2)), valid=iter(batches(2)), epochs=1).history) == 1


def test_a_sampler_that_deals_out_batches_is_refused():
    dataset = TensorDataset(*data(16))
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset, num_replicas=2, rank=0))
    with pytest.raises(ValueError, match="train has a DistributedSampler, but all processes need the same batches"):
        searched(train=loader)


def test_an_epoch_without_a_finite_loss_ends_the_search(tmp_path):
    path = tmp_path / "checkpoint.pt"
    calls = itertools.count()
    with pytest.raises(RuntimeError, match="all losses of epoch 2 were NaN or infinite; lower the learning rate"):
        searched(
            loss=lambda model, batch: cross_entropy(model, batch) * (math.nan if next(calls) >= 20 else 1),
            epochs=4,
            checkpoint=path,
        )
    assert len(checkpoints.load(path)["run"]["history"]) == 1


# Progress ------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "shown"), [(Terminal, True, True), (Terminal, False, False), (io.StringIO, True, False)]
)
def test_progress_is_shown_on_a_terminal_alone(stream, progress, shown, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    text = stream()
    monkeypatch.setattr(sys, "stderr", text)
    searched(progress=progress)
    assert ("epoch 2/2 step 5 loss" in text.getvalue()) == shown
    assert bool(text.getvalue()) == shown
    assert capsys.readouterr().out == ""


# Limits --------------------------------------------------------------------------------------------


def test_the_result_meets_every_limit():
    limits = [Limit(parameters, 150), Limit(lambda model, values: values["depth"], 2, "depth")]
    result = searched(epochs=6, limits=limits)
    assert result.inside
    assert sum(p.numel() for p in result.model.parameters()) <= 150
    assert result.values["depth"] <= 2
    assert all(0 < record["inside"] <= 1 for record in result.history)


class Free(nn.Module):
    """Any combination is as good as any other."""

    def __init__(self):
        super().__init__()
        self.choices = nn.ModuleList([Value(name, Categorical([0, 1])) for name in "abc"])
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self):
        return self.weight.sum()


def test_where_the_most_likely_is_outside_the_most_likely_inside_is_taken():
    model = Free()
    likely = {"a": [0.2, 0.8], "b": [0.4, 0.6], "c": [0.3, 0.7]}
    optimizer = ASNG(space_of(model), initial=likely, seed=0)
    weights = torch.optim.SGD(model.parameters(), lr=0.1)
    limit = Limit(lambda model, values: sum(values.values()), 2)
    oneshot = OneShot(model, optimizer, weights, lambda model, _: model(), limits=[limit])
    before = optimizer.state_dict()
    result = found(oneshot)
    assert optimizer.mode() == {"a": 1, "b": 1, "c": 1}
    assert result.values == {"a": 1, "b": 0, "c": 1}  # where the zero costs least
    a, b, c = (optimizer.distribution()[name] for name in "abc")
    assert result.probability == pytest.approx(a[1] * b[0] * c[1])
    assert result.inside
    assert optimizer.state_dict() == before  # looking draws nothing


def test_one_in_two_hundred_inside_is_drawn():
    model = Free()
    model.choices = nn.ModuleList([Value(name, Categorical(range(6))) for name in "abc"])
    weights = torch.optim.SGD(model.parameters(), lr=0.1)
    limit = Limit(lambda model, values: 15 - sum(values.values()), 0.5)
    oneshot = OneShot(model, ASNG(space_of(model), seed=0), weights, lambda model, _: model(), limits=[limit])
    assert most_likely(oneshot)[:2] == ({"a": 5, "b": 5, "c": 5}, True)


def test_one_met_during_the_search_serves_where_draws_find_none():
    model = Free()
    names = [f"v{i}" for i in range(8)]
    model.choices = nn.ModuleList([Value(name, Categorical(range(6))) for name in names])
    weights = torch.optim.SGD(model.parameters(), lr=0.1)
    limit = Limit(lambda model, values: sum(5 - value for value in values.values()), 1)
    oneshot = OneShot(model, ASNG(space_of(model), seed=0), weights, lambda model, _: model(), limits=[limit])
    rare = dict.fromkeys(names, 5)
    oneshot.excess(rare)
    result = found(oneshot)
    assert result.values == rare
    assert result.inside


def test_where_none_is_inside_a_warning_says_how_near_it_came(tmp_path):
    limits = [Limit(parameters, 50), Limit(lambda model, values: values["depth"], 2, "depth")]
    smallest = parameters(Net(), {"first": 2, "depth": 1})
    message = (
        rf"no architecture met all limits; the nearest has parameters {smallest} of at most 50, depth 1 of at most 2"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        result = searched(epochs=8, limits=limits)
    assert caught[0].filename.endswith("search.py")
    assert not result.inside
    assert result.values == {"first": 2, "depth": 1}
    assert sum(p.numel() for p in result.model.parameters()) == smallest
    assert all(record["inside"] == 0 for record in result.history)


# Stopping and going on -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcomes without a pause, with each kind of data loaders."""
    return {own: small_search(None, own_generator=own) for own in (False, True)}


def interrupted_at(call):
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(model, batch)

    return loss


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("call", [1, 2, 4, 13, 20, 21, 43, 78, 119, 120])
def test_ctrl_c_finishes_the_step_saves_and_the_same_call_goes_on(tmp_path, whole, call, own_generator):
    path = tmp_path / "new" / "checkpoint.pt"
    step, per_epoch = (call + 3) // 4, 5
    epoch, within = (step - 1) // per_epoch + 1, (step - 1) % per_epoch + 1
    message = rf"stopped in epoch {epoch} of 6 after step {within}; saved in {path}: the same call continues from there"
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=message):
        small_search(path, own_generator=own_generator, loss=interrupted_at(call))
    assert signal.getsignal(signal.SIGINT) is handler
    random.random()  # whatever happens in between
    torch.rand(3)
    assert same(small_search(path, own_generator=own_generator), whole[own_generator])


def test_ctrl_c_without_a_checkpoint_says_that_nothing_is_saved():
    with pytest.raises(KeyboardInterrupt, match="after step 1; nothing was saved, since no checkpoint was given"):
        searched(loss=interrupted_at(1))


def test_a_second_ctrl_c_does_not_wait():
    def loss(model, batch):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        searched(loss=loss)


def test_a_search_runs_in_a_thread_too():
    results = []
    thread = threading.Thread(target=lambda: results.append(searched()))
    thread.start()
    thread.join()
    assert len(results[0].history) == 2


def test_many_pauses_change_nothing(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    result, pauses = None, 0
    while result is None:
        try:
            result = small_search(path, loss=interrupted_at(7))
        except KeyboardInterrupt:
            pauses += 1
    assert pauses == 15  # two steps at a time, of thirty
    assert same(result, whole[False])


def test_the_seconds_of_an_epoch_count_from_before_the_pause(tmp_path):
    calls = itertools.count(1)

    def slow(model, batch):
        time.sleep(0.05)
        if next(calls) == 8:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(model, batch)

    with pytest.raises(KeyboardInterrupt):
        searched(loss=slow, checkpoint=tmp_path / "c.pt")
    first = searched(checkpoint=tmp_path / "c.pt").history[0]
    assert first["seconds"] > 8 * 0.05


def test_a_search_that_is_done_is_not_done_again(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    small_search(path)
    assert same(small_search(path, loss=lambda model, batch: pytest.fail("a step")), whole[False])


class Augmented(torch.utils.data.Dataset):
    """Every reading is another: by NumPy's and Python's global random numbers, and torch's."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        x, y = data(40)
        noise = random.random() + np.random.random() + torch.rand(()).item()  # noqa: NPY002
        return x[index] + noise, y[index]


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"sampler": True}], ids=["plain", "workers", "sampler"])
def test_augmented_data_go_on_the_same(tmp_path, settings):
    def one(path, loss=cross_entropy):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        dataset = Augmented()
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(5)) if "sampler" in settings else None
        workers = {"num_workers": settings.get("num_workers", 0)}
        train = DataLoader(dataset, batch_size=8, sampler=sampler, shuffle=sampler is None, **workers)
        model = Net()
        return outcome(model, searched(model, train, DataLoader(dataset, 8), loss, epochs=3, checkpoint=path))

    expected = one(None)
    for call in (27, 42):
        path = tmp_path / f"{call}.pt"
        with pytest.raises(KeyboardInterrupt):
            one(path, interrupted_at(call))
        assert same(one(path), expected)


def test_fewer_batches_than_before_the_pause_are_noticed(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        searched(checkpoint=path, loss=interrupted_at(16))
    with pytest.raises(ValueError, match="train gives only 2 batches, but was at step 4 when it stopped"):
        searched(train=batches(2), checkpoint=path)


def test_a_checkpoint_of_another_search_is_refused_by_name(tmp_path):
    path = tmp_path / "checkpoint.pt"
    searched(checkpoint=path)
    others: dict[str, Any] = {
        "first.options.0.weight is (8, 4) there, absent here": {
            "model": nn.Sequential(OneOf("first", [nn.Sequential(nn.Linear(4, 3)), nn.Linear(4, 3)]))
        },
        "first.options.0.weight is (8, 4) there, (9, 4) here": {"model": Net(width=9)},
        "blocks.blocks.3": {"model": Net(depth=4)},
        "planned for 2 epochs, not 3": {"epochs": 3},
        "its limits are on [], these on ['parameters']": {"limits": [Limit(parameters, 200)]},
        "optimizer with another settings": {"optimizer": ASNG(space_of(Net()), alpha=2.0)},
    }
    for reason, settings in others.items():
        with pytest.raises(ValueError) as error:  # noqa: PT011
            searched(checkpoint=path, **settings)
        assert str(error.value).startswith(f"{path} is of another search (")
        assert reason in str(error.value)
        assert "use another path, or delete it to start anew" in str(error.value)
    assert len(searched(checkpoint=path).history) == 2


def test_a_checkpoint_that_lacks_something_is_refused_by_its_name(tmp_path):
    path = tmp_path / "checkpoint.pt"
    searched(checkpoint=path)
    whole = checkpoints.load(path)
    for state in (whole, whole["run"], whole["run"]["search"]):
        for part in list(state):
            kept = state.pop(part)
            checkpoints.save(path, whole)
            with pytest.raises(ValueError, match=rf"is of another search \(.*it has no '{part}'\); use another path"):
                searched(checkpoint=path)
            state[part] = kept


def test_a_longer_search_on_a_schedule_of_one_s_own_goes_on(tmp_path):
    def one(epochs):
        model = Net()
        weights = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(weights, 1)
        return searched(model, weights=weights, schedule=schedule, epochs=epochs, checkpoint=tmp_path / "c.pt")

    one(2)
    assert [record["epoch"] for record in one(4).history] == [1, 2, 3, 4]


def test_a_damaged_checkpoint_ends_the_search_with_the_previous_one_offered(tmp_path):
    path = tmp_path / "checkpoint.pt"
    searched(checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"damaged .*the one before it is .*checkpoint\.previous\.pt: rename it"):
        searched(checkpoint=path)
    os.replace(checkpoints.previous(path), path)
    assert len(searched(checkpoint=path).history) == 2


def test_an_amp_search_goes_on_with_its_scale(tmp_path):
    path = tmp_path / "checkpoint.pt"
    expected = small_search(None, amp=torch.float16, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        small_search(path, amp=torch.float16, epochs=3, loss=interrupted_at(30))
    assert same(small_search(path, amp=torch.float16, epochs=3), expected)


# Processes that are killed -------------------------------------------------------------------------


def result_of(folder):
    return torch.load(folder / "result.pt", weights_only=True)


@pytest.mark.parametrize("own_generator", [False, True])
def test_killed_at_any_moment_and_resumed_ends_with_the_same_bits(tmp_path, whole, own_generator):
    moments = random.Random(11 + own_generator)
    kills, longest = 0, 0.1
    while not (tmp_path / "result.pt").exists():
        process = started(searching, str(tmp_path), {"own_generator": own_generator})
        ready(process, tmp_path)
        process.join(moments.uniform(0, longest))
        longest *= 1.1  # whatever the machine, it ends
        if process.exitcode is None:
            process.kill()
            kills += 1
        assert ended(process) in (0, -signal.SIGKILL)
    assert kills >= 2
    assert same(result_of(tmp_path), whole[own_generator])


@pytest.mark.parametrize("save", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_saving_and_resumed_ends_with_the_same_bits(tmp_path, whole, point, save):
    killed = started(searching, str(tmp_path), {}, (point, save))
    code = ended(killed)
    if code == 0:
        assert save == 1  # there is no previous one yet
        assert point in ("second name", "before the last rename", "renamed")
    else:
        assert code == -signal.SIGKILL
        newest = tmp_path / "checkpoint.pt"
        known = len(checkpoints.load(newest)["run"]["history"]) if newest.exists() else 0
        assert known == (save if point == "renamed" or (save == 1 and point == "previous in place") else save - 1)
        assert ended(started(searching, str(tmp_path), {})) == 0
    assert same(result_of(tmp_path), whole[False])


def test_a_process_stopped_by_ctrl_c_goes_on_with_the_same_bits(tmp_path, whole):
    moments = random.Random(3)
    longest, messages = 0.1, []
    while not (tmp_path / "result.pt").exists():
        process = started(searching, str(tmp_path), {})
        ready(process, tmp_path)
        process.join(moments.uniform(0, longest))
        longest *= 1.1
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT)
        assert ended(process) in (0, 1, 3)  # 3: stopped; 1: before there was anything to stop, or after it
        if (tmp_path / "stopped.txt").exists():
            messages.append((tmp_path / "stopped.txt").read_text())
    assert any("the same call continues from there" in message for message in messages)
    assert same(result_of(tmp_path), whole[False])


# Several processes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("own_generator", [False, True])
def test_two_processes_search_what_one_searches(tmp_path, own_generator):
    """All their seeds differ, and the first one's count. No dropout: each process would have its own."""
    settings = {"epochs": 4, "own_generator": own_generator, "dropout": 0.0}
    members = crowd(searching_together, tmp_path, settings)
    alone = small_search(None, **settings)
    assert [ended(member) for member in members] == [0, 0]
    for rank in range(2):
        result = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert result["optimizer"] == alone["optimizer"]
        assert result["history"] == alone["history"]
        for name, value in result["weights"].items():
            torch.testing.assert_close(value, alone["weights"][name])


def test_torchrun_searches_what_one_process_searches_and_ends_when_a_process_dies(tmp_path):
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    begin = time.monotonic()
    whole, killed = torchrun(folders[0]), torchrun(folders[1], "25")  # in the third epoch of four
    assert killed.wait(60) != 0
    assert whole.wait(60) == 0, (folders[0] / "log.txt").read_text()
    assert time.monotonic() - begin < 60
    alone = small_search(None, epochs=4, dropout=0.0)
    for rank in range(2):
        result = torch.load(folders[0] / f"rank{rank}.pt", weights_only=True)
        assert result["optimizer"] == alone["optimizer"]
        assert result["values"] == alone["values"]
        for name, value in result["weights"].items():
            torch.testing.assert_close(value, alone["weights"][name])
    assert "Signal 9 (SIGKILL)" in (folders[1] / "log.txt").read_text()
    assert not list(folders[1].glob("rank*.pt"))
    assert len(checkpoints.load(folders[1] / "checkpoint.pt")["run"]["history"]) == 2
    members = crowd(searching_together, folders[1], {"epochs": 4, "dropout": 0.0})  # continue from there
    assert [ended(member) for member in members] == [0, 0]
    for rank in range(2):
        assert torch.load(folders[1] / f"rank{rank}.pt", weights_only=True)["optimizer"] == alone["optimizer"]


def test_ctrl_c_in_one_process_stops_all_and_all_go_on(tmp_path):
    settings = {"epochs": 3, "dropout": 0.0}
    members = crowd(searching_together, tmp_path, {**settings, "interrupt_at": 17})
    assert [ended(member) for member in members] == [0, 0]
    for rank in range(2):
        assert "stopped in epoch 2 of 3 after step 4; saved in" in (tmp_path / f"stopped{rank}.txt").read_text()
    (tmp_path / "group").unlink(missing_ok=True)
    members = crowd(searching_together, tmp_path, settings)
    assert [ended(member) for member in members] == [0, 0]
    alone = small_search(None, **settings)
    for rank in range(2):
        result = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert result["optimizer"] == alone["optimizer"]
        assert result["history"] == alone["history"]


def test_a_damaged_checkpoint_ends_all_processes_with_the_same_error(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    members = crowd(searching_together, tmp_path, {"epochs": 3})
    assert [ended(member, 20) for member in members] == [1, 1]
    for rank in range(2):
        assert "checkpoint.pt is damaged or no checkpoint" in (tmp_path / f"stderr{rank}.txt").read_text()
