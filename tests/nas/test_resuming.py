"""Searches that are stopped, killed and continued end with the same bits; checkpoints that do not fit are refused."""

import functools
import itertools
import os
import random
import re
import shutil
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CyclicLR, ExponentialLR, LambdaLR, OneCycleLR, SequentialLR, StepLR
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from asng import ASNG, SNG
from asng._files import lock_checkpoint, previous_path
from asng.nas import Flops, Latency, Limit, OneOf, parameters, space_of
from asng.nas import _checkpoints as checkpoints
from tests.helpers.processes import POINTS, ended, forking, ready, searching, started, waiting
from tests.helpers.searches import Net, batches, cross_entropy, data, outcome, run_search, same, small_search

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]

ROWS = torch.zeros(8, 4)

# Stopping and going on -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcomes without a pause, with each kind of data loaders."""
    return {own: small_search(None, own_generator=own) for own in (False, True)}


def interrupted_at(call, number=signal.SIGINT):
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == call:
            signal.raise_signal(number)
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
        small_search(path, own_generator=own_generator, loss_fn=interrupted_at(call))
    assert signal.getsignal(signal.SIGINT) is handler
    random.random()  # whatever happens in between
    torch.rand(3)
    assert same(small_search(path, own_generator=own_generator), whole[own_generator])


def test_the_end_of_a_batch_job_saves_as_ctrl_c_does(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt, match="the same call continues from there"):
        small_search(path, loss_fn=interrupted_at(43, signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert same(small_search(path), whole[False])


def test_ctrl_c_without_a_checkpoint_says_that_nothing_is_saved():
    with pytest.raises(KeyboardInterrupt, match="after step 1; nothing was saved, since no checkpoint was given"):
        run_search(loss_fn=interrupted_at(1))


def test_a_second_ctrl_c_does_not_wait():
    def loss(model, batch):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        run_search(loss_fn=loss)


def test_a_search_runs_in_a_thread_too():
    results = []
    thread = threading.Thread(target=lambda: results.append(run_search()))
    thread.start()
    thread.join()
    assert len(results[0].history) == 2


def test_many_pauses_change_nothing(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    result, pauses = None, 0
    while result is None:
        try:
            result = small_search(path, loss_fn=interrupted_at(7))
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
        run_search(loss_fn=slow, checkpoint=tmp_path / "c.pt")
    first = run_search(checkpoint=tmp_path / "c.pt").history[0]
    assert first["seconds"] > 8 * 0.05


def test_a_search_that_is_done_is_not_done_again(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    small_search(path)
    assert same(small_search(path, loss_fn=lambda model, batch: pytest.fail("a step")), whole[False])


class Augmented(torch.utils.data.Dataset):
    """Every reading is another: by NumPy's and Python's global random numbers, and torch's."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        x, y = data(40)
        noise = random.random() + np.random.random() + torch.rand(()).item()  # noqa: NPY002
        return x[index] + noise, y[index]


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"sampler": True}], ids=["plain", "workers", "sampler"])
def test_augmented_data_go_on_the_same(tmp_path, settings):
    def one(path, loss_fn=cross_entropy):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        dataset = Augmented()
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(5)) if "sampler" in settings else None
        workers = {"num_workers": settings.get("num_workers", 0)}
        train = DataLoader(dataset, batch_size=8, sampler=sampler, shuffle=sampler is None, **workers)
        model = Net()
        return outcome(model, run_search(model, train, DataLoader(dataset, 8), loss_fn, epochs=3, checkpoint=path))

    expected = one(None)
    for call in (27, 42):
        path = tmp_path / f"{call}.pt"
        with pytest.raises(KeyboardInterrupt):
            one(path, interrupted_at(call))
        assert same(one(path), expected)


def test_a_longer_search_on_a_schedule_of_one_s_own_goes_on(tmp_path):
    def one(epochs):
        model = Net()
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lr_scheduler = StepLR(weight_optimizer, 1)
        return run_search(
            model,
            weight_optimizer=weight_optimizer,
            lr_scheduler=lr_scheduler,
            epochs=epochs,
            checkpoint=tmp_path / "c.pt",
        )

    one(2)
    assert [record["epoch"] for record in one(4).history] == [1, 2, 3, 4]


def test_an_amp_search_goes_on_with_its_scale(tmp_path):
    path = tmp_path / "checkpoint.pt"
    expected = small_search(None, amp_dtype=torch.float16, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        small_search(path, amp_dtype=torch.float16, epochs=3, loss_fn=interrupted_at(30))
    assert same(small_search(path, amp_dtype=torch.float16, epochs=3), expected)


# Checkpoints that do not fit -----------------------------------------------------------------------


class Stream:
    """Batches of which nobody knows how many there are."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(batches(self.n))


def test_fewer_batches_than_before_the_pause_are_noticed(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_search(train_loader=Stream(5), checkpoint=path, loss_fn=interrupted_at(16))
    with pytest.raises(ValueError, match="train_loader gives only 2 batches, but was at step 4 when it stopped"):
        run_search(train_loader=Stream(2), checkpoint=path)


def test_a_checkpoint_of_another_search_is_refused_by_name(tmp_path):
    path = tmp_path / "checkpoint.pt"
    run_search(checkpoint=path)
    others: dict[str, Any] = {
        "first.options.0.weight: (8, 4) there, None here": {
            "model": nn.Sequential(OneOf("first", [nn.Sequential(nn.Linear(4, 3)), nn.Linear(4, 3)]))
        },
        "first.options.0.weight: (8, 4) there, (9, 4) here": {"model": Net(width=9)},
        "blocks.blocks.3": {"model": Net(depth=4)},
        "(epochs: 2 there, 3 here)": {"epochs": 3},
        "(limits: [] there, ['parameters <= 200.0'] here)": {"limits": [Limit(parameters, 200)]},
        "(arch_optimizer.alpha: 1.5 there, 2.0 here; ": {"arch_optimizer": ASNG(space_of(Net()), alpha=2.0)},
        "(arch_optimizer.population_size: 2 there, 4 here; ": {
            "arch_optimizer": ASNG(space_of(Net()), population_size=4)
        },
        "(arch_optimizer.method: ASNG there, SNG here; ": {"arch_optimizer": SNG(space_of(Net()))},
        "(arch_optimizer.seed: 0 (0,) there, 4 here)": {"arch_optimizer": ASNG(space_of(Net()), seed=4)},
        "(seed: 0 there, 1 here; ": {"seed": 1},
        "(max_grad_norm: 5.0 there, None here)": {"max_grad_norm": None},
        "(amp_dtype: None there, torch.bfloat16 here)": {"amp_dtype": torch.bfloat16},
        "(mask_inactive: False there, True here)": {"mask_inactive": True},
        "(train_loader.batches: 5 there, 6 here)": {"train_loader": batches(6, 1)},
        "(valid_loader.class: list there, tuple here)": {"valid_loader": tuple(batches(5, 2))},
    }
    for reason, settings in others.items():
        with pytest.raises(ValueError) as error:  # noqa: PT011
            run_search(checkpoint=path, **settings)
        assert str(error.value).startswith(f"{path} is of another run (")
        assert reason in str(error.value)
        assert "use another path, or delete it to start over" in str(error.value)
    assert len(run_search(checkpoint=path).history) == 2


def with_weights(path, make, lr_scheduler=None, **settings):
    """A search with a weight optimizer of one's own."""
    model = Net()
    weight_optimizer = make(model.parameters())
    lr_scheduler = None if lr_scheduler is None else lr_scheduler(weight_optimizer)
    return run_search(model, weight_optimizer=weight_optimizer, lr_scheduler=lr_scheduler, checkpoint=path, **settings)


def test_another_weight_optimizer_or_schedule_is_refused_by_name(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with_weights(path, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda w: StepLR(w, 1))
    for reason, make, lr_scheduler in (
        ("weight_optimizer.0.lr: 0.1 there, 0.2 here", lambda p: torch.optim.SGD(p, 0.2, momentum=0.9), StepLR),
        ("weight_optimizer.0.momentum: 0.9 there, 0 here", lambda p: torch.optim.SGD(p, 0.1), StepLR),
        ("weight_optimizer.class: SGD there, Adam here", lambda p: torch.optim.Adam(p, 0.1), StepLR),
        ("lr_scheduler.class: StepLR there, Expo", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), ExponentialLR),
    ):
        with pytest.raises(ValueError, match=re.escape(reason)):
            with_weights(path, make, lambda w, lr_scheduler=lr_scheduler: lr_scheduler(w, 1))
    with pytest.raises(ValueError, match=re.escape("lr_scheduler.gamma: 0.1 there, 0.5 here")):
        with_weights(path, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda w: StepLR(w, 1, gamma=0.5))


def test_a_nested_schedule_is_refused_by_what_differs_inside(tmp_path):
    path = tmp_path / "checkpoint.pt"

    def nested(lr, factor):
        return SequentialLR(lr, [StepLR(lr, 1, gamma=0.5), LambdaLR(lr, factor)], milestones=[1])

    def halve(epoch):
        return 0.5**epoch

    with_weights(path, lambda p: torch.optim.SGD(p, 0.1), lambda w: nested(w, halve))
    assert len(with_weights(path, lambda p: torch.optim.SGD(p, 0.1), lambda w: nested(w, halve)).history) == 2
    for reason, schedule in (
        (
            "_schedulers.0.gamma: 0.5 there, 0.1 here",
            lambda w: SequentialLR(w, [StepLR(w, 1), LambdaLR(w, halve)], milestones=[1]),
        ),
        ("_schedulers.1.lr_lambdas: ['halve'] there, ['<lambda>'] here", lambda w: nested(w, lambda epoch: 0.1)),
        ("_milestones: [1] there, [2]", lambda w: SequentialLR(w, [StepLR(w, 1, 0.5), LambdaLR(w, halve)], [2])),
    ):
        with pytest.raises(ValueError, match=re.escape(reason)):
            with_weights(path, lambda p: torch.optim.SGD(p, 0.1), schedule)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (lambda w: OneCycleLR(w, 0.1, total_steps=9), lambda w: OneCycleLR(w, 0.1, total_steps=9, pct_start=0.7)),
        (lambda w: CyclicLR(w, 0.01, 0.1, step_size_up=2), lambda w: CyclicLR(w, 0.01, 0.1, step_size_up=5)),
    ],
    ids=["one cycle", "cyclic"],
)
def test_a_schedule_of_other_phases_is_another_search(tmp_path, there, here):
    def one(schedule):
        with_weights(tmp_path / "checkpoint.pt", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), schedule)

    one(there)
    one(there)
    with pytest.raises(ValueError, match="of another run"):
        one(here)


def test_a_measure_of_an_input_without_text_of_its_own_is_the_same_in_every_process():
    class Graph:
        pass

    assert repr(Flops(Graph())) == repr(Flops(Graph())) == "Flops([Graph])"


@pytest.mark.parametrize(
    ("reason", "there", "here"),
    [
        ("seed: 1 there, 2 here", {"seed": np.int64(1)}, {"seed": np.int64(2)}),
        ("seed: 5 () there, 6 () here", {"seed": np.random.SeedSequence(5)}, {"seed": np.random.SeedSequence(6)}),
        ("seed: None there, 0 here", {}, {"seed": 0}),
        ("initial.first: None there, [0.5, 0.25, 0.25] here", {}, {"initial": {"first": np.array([0.5, 0.25, 0.25])}}),
        ("initial.depth: [2, 1] there, [3, 1] here", {"initial": {"depth": (2, 1)}}, {"initial": {"depth": (3, 1)}}),
    ],
)
def test_another_seed_or_prior_is_another_search(tmp_path, reason, there, here):
    def one(settings):
        run_search(checkpoint=tmp_path / "c.pt", epochs=1, arch_optimizer=ASNG(space_of(Net()), **settings))

    one(there)
    one(there)
    with pytest.raises(ValueError, match=re.escape(f"(arch_optimizer.{reason})")):
        one(here)


def test_fewer_epochs_than_are_done_are_refused(tmp_path):
    for epochs in (3, 4):
        with_weights(tmp_path / "c.pt", lambda p: torch.optim.SGD(p, 0.1), lambda w: StepLR(w, 1), epochs=epochs)
    with pytest.raises(ValueError, match=r"c\.pt is of another run \(it has 4 epochs, more than the 3 asked for\)"):
        with_weights(tmp_path / "c.pt", lambda p: torch.optim.SGD(p, 0.1), lambda w: StepLR(w, 1), epochs=3)


@pytest.mark.parametrize(
    ("there", "here", "reason"),
    [
        (Limit(parameters, 200), Limit(parameters, 150), "['parameters <= 200.0'] there, ['parameters <= 150.0'] here"),
        (
            Limit(Flops(ROWS), 9e9),
            Limit(Flops(ROWS[:1]), 9e9),
            "['Flops([(8, 4) torch.float32]) <= 9000000000.0'] there",
        ),
        (Limit(Latency(ROWS), 9), Limit(Latency(ROWS[:1]), 9), "['Latency([(8, 4) torch.float32]) <= 9.0'] there, ['L"),
        (
            Limit(Latency(ROWS), 9),
            Limit(Latency(ROWS, device="cpu"), 9),
            "['Latency([(8, 4) torch.float32], device=cpu",
        ),
    ],
)
def test_another_limit_is_another_search(tmp_path, there, here, reason):
    path = tmp_path / "checkpoint.pt"
    run_search(checkpoint=path, limits=[there])
    with pytest.raises(ValueError, match=re.escape(reason)):
        run_search(checkpoint=path, limits=[here])


def loader(dataset=None, **settings):
    return DataLoader(dataset or TensorDataset(*data(40)), **{"batch_size": 8, "shuffle": True, **settings})


def test_a_loader_of_other_data_is_refused_by_what_differs(tmp_path):
    path = tmp_path / "checkpoint.pt"
    run_search(train_loader=loader(), checkpoint=path)
    for reason, train in (
        ("train_loader.batches: 5 there, 10 here; train_loader.batch_size: 8 there, 4 here", loader(batch_size=4)),
        ("train_loader.sampler: RandomSampler there, SequentialSampler here", loader(shuffle=False)),
        ("train_loader.examples: 40 there, 39 here", loader(TensorDataset(*data(39)))),
        ("train_loader.dataset: TensorDataset there, Augmented here", loader(Augmented())),
    ):
        with pytest.raises(ValueError, match=re.escape(reason)):
            run_search(train_loader=train, checkpoint=path)


class Longer(torch.utils.data.IterableDataset):
    """A stream that says it is shorter than it is, of which torch warns if a loader was asked for its length."""

    def __len__(self):
        return 1

    def __iter__(self):
        return iter(zip(*data(24), strict=True))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (loader, lambda: loader(num_workers=1)),
        (lambda: loader(Longer(), shuffle=None), lambda: loader(Longer(), shuffle=None)),
        (lambda: Stream(4), lambda: Stream(4)),
    ],
    ids=["other workers", "a stream", "no length"],
)
def test_data_of_every_kind_are_continued(tmp_path, before, after):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_search(train_loader=before(), checkpoint=path, loss_fn=interrupted_at(5))
    assert len(run_search(train_loader=after(), checkpoint=path).history) == 2


@pytest.mark.parametrize("make", [None, lambda w: OneCycleLR(w, 0.1, total_steps=9), lambda w: StepLR(w, 1, 0.1)])
def test_the_same_objects_are_continued_as_new_ones_are(tmp_path, make):
    model = Net()
    weight_optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    arch_optimizer = ASNG(space_of(model), seed=0)
    lr_scheduler = None if make is None else make(weight_optimizer)
    settings = {
        "weight_optimizer": weight_optimizer,
        "arch_optimizer": arch_optimizer,
        "lr_scheduler": lr_scheduler,
        "checkpoint": tmp_path / "c.pt",
    }
    for call in (29, 23):  # after the second epoch has begun, when rates have moved
        with pytest.raises(KeyboardInterrupt):
            run_search(model, epochs=4, loss_fn=interrupted_at(call), **settings)
    assert len(run_search(model, epochs=4, **settings).history) == 4


def test_other_implementations_of_the_same_weight_optimizer_continue(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        with_weights(path, lambda p: torch.optim.Adam(p, 0.1, fused=True), loss_fn=interrupted_at(25))
    assert len(with_weights(path, lambda p: torch.optim.Adam(p, 0.1, foreach=True)).history) == 2


def test_a_checkpoint_that_lacks_something_is_refused_by_its_name(tmp_path):
    path = tmp_path / "checkpoint.pt"
    run_search(checkpoint=path)
    whole = checkpoints.load(path)
    for state in (whole, whole["job"], whole["job"]["search"]):
        for part in list(state):
            kept = state.pop(part)
            checkpoints.save(path, whole)
            with pytest.raises(ValueError, match=rf"is of another run \(.*it has no '{part}'\); use another path"):
                run_search(checkpoint=path)
            state[part] = kept


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        *itertools.product(("index", "steps", "history", "measured", "seconds", "rng", "job"), ("a", [1, 2])),
        ("index", -1),
        ("measured", {"train_loss": ["a"]}),
        *((f"job.{name}", "a") for name in ("steps", "losses", "search", "lr_scheduler", "rng_at_epoch_start")),
        ("rng.data", "a"),
        ("job.rng_at_epoch_start", {}),
        ("job.valid_at_epoch_start", ("a", {})),
        ("job.valid_at_epoch_start", (2, {})),
        ("job.search.costs", {"device": 1, "measures": 2, "known": 3, "nearest": 4}),
    ],
)
def test_a_part_of_a_checkpoint_that_is_of_another_type_is_refused(tmp_path, part, wrong):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_search(checkpoint=path, loss_fn=interrupted_at(23))
    whole = checkpoints.load(path)
    *outer, name = part.split(".")
    functools.reduce(dict.__getitem__, outer, whole)[name] = wrong
    checkpoints.save(path, whole)
    with pytest.raises(ValueError, match=r"checkpoint\.pt is of another run \(.*\); use another path, or delete it"):
        run_search(checkpoint=path)


def test_a_damaged_checkpoint_ends_the_search_with_the_previous_one_offered(tmp_path):
    path = tmp_path / "checkpoint.pt"
    run_search(checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"damaged .*the one before it is .*checkpoint\.asng-previous\.pt: rename it"):
        run_search(checkpoint=path)
    os.replace(previous_path(path), path)
    assert len(run_search(checkpoint=path).history) == 2


# One process at a time -----------------------------------------------------------------------------


def test_a_second_search_with_the_same_checkpoint_is_refused(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    first = started(waiting, str(tmp_path))
    ready(first, tmp_path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(
            ValueError, match=rf"^{path} is in use by process {first.pid} on .* since .*; wait until it"
        ):
            small_search(path)
    assert path.read_bytes() == before
    assert len(checkpoints.load(path)["history"]) == 2  # to look at it is fine
    (tmp_path / "go").touch()
    assert ended(first) == 0
    assert same(result_of(tmp_path), whole[False])
    assert same(small_search(path), whole[False])
    assert {"checkpoint.pt", "checkpoint.asng-previous.pt", "go", "result.pt"} == set(os.listdir(tmp_path))


def test_no_file_of_the_users_is_taken_for_the_previous_checkpoint(tmp_path):
    mine = tmp_path / "s.previous.pt"
    mine.write_text("mine")
    run_search(checkpoint=tmp_path / "s.pt")
    assert mine.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["s.asng-previous.pt", "s.previous.pt", "s.pt"]
    with pytest.raises(ValueError, match=r"s\.asng-previous\.pt is kept by another search; rename it to s\.pt$"):
        run_search(checkpoint=tmp_path / "s.asng-previous.pt")


def test_a_search_within_a_search_needs_another_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.pt"

    def loss(model, batch):
        with pytest.raises(ValueError, match=f"is in use by process {os.getpid()} on"):
            run_search(checkpoint=path)
        return cross_entropy(model, batch)

    assert len(run_search(checkpoint=path, loss_fn=loss, train_loader=batches(1), epochs=1).history) == 1


def test_a_worker_that_outlives_its_killed_search_does_not_lock_it(tmp_path, whole):
    first = started(forking, str(tmp_path))
    ready(first, tmp_path)
    first.kill()
    assert ended(first) == -signal.SIGKILL
    child = int((tmp_path / "child").read_text())
    os.kill(child, 0)  # it lives
    assert same(small_search(tmp_path / "checkpoint.pt"), whole[False])
    os.kill(child, signal.SIGKILL)


def test_a_search_whose_checkpoint_another_one_took_over_ends(tmp_path):
    path = tmp_path / "run" / "checkpoint.pt"
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == 25:
            shutil.rmtree(path.parent)
            locks.append(lock_checkpoint(path))
        return cross_entropy(model, batch)

    locks: list[Any] = []
    with pytest.raises(ValueError, match="is in use by process"):
        run_search(checkpoint=path, loss_fn=loss)
    assert not path.exists()
    locks[0].release()


def test_a_search_whose_folder_was_removed_saves_it_anew(tmp_path):
    path = tmp_path / "run" / "checkpoint.pt"
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == 25:
            shutil.rmtree(path.parent)
        return cross_entropy(model, batch)

    run_search(checkpoint=path, loss_fn=loss)
    assert os.listdir(path.parent) == ["checkpoint.pt"]
    assert len(run_search(checkpoint=path).history) == 2


def test_a_link_to_a_checkpoint_stays_and_both_names_are_one_checkpoint(tmp_path):
    (tmp_path / "far").mkdir()
    link, path = tmp_path / "link.pt", tmp_path / "far" / "checkpoint.pt"
    link.symlink_to(path)
    run_search(checkpoint=link)
    assert link.is_symlink()
    assert sorted(os.listdir(path.parent)) == ["checkpoint.asng-previous.pt", "checkpoint.pt"]
    held = lock_checkpoint(path)
    with pytest.raises(ValueError, match="is in use by process"):
        run_search(checkpoint=link)
    held.release()


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
    assert set(os.listdir(tmp_path)) <= {"checkpoint.pt", "checkpoint.asng-previous.pt", "result.pt", "started"}


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
        known = len(checkpoints.load(newest)["history"]) if newest.exists() else 0
        assert known == (save if point == "renamed" or (save == 1 and point == "previous in place") else save - 1)
        assert ended(started(searching, str(tmp_path), {})) == 0
    assert same(result_of(tmp_path), whole[False])
    assert set(os.listdir(tmp_path)) == {"checkpoint.pt", "checkpoint.asng-previous.pt", "result.pt", "started"}


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


def test_a_search_whose_schedule_computes_in_numpy_is_continued(tmp_path):
    def settings():
        model = Net()
        weight_optimizer = torch.optim.SGD(model.parameters(), np.float64(0.1))
        lr_scheduler = LambdaLR(weight_optimizer, lambda epoch: 0.5 * (1 + np.cos(np.pi * epoch / 10)))
        return {"model": model, "weight_optimizer": weight_optimizer, "lr_scheduler": lr_scheduler}

    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_search(checkpoint=path, loss_fn=interrupted_at(23), **settings())
    assert len(run_search(checkpoint=path, **settings()).history) == 2


def test_a_state_that_could_not_be_read_back_is_refused_at_once(tmp_path):
    class Stamped(Net):
        def get_extra_state(self):
            return object()

        def set_extra_state(self, state):
            pass

    with pytest.raises(ValueError, match=r"cannot hold job\.search\.model\._extra_state, which is a object"):
        run_search(Stamped(), checkpoint=tmp_path / "checkpoint.pt", epochs=1)
