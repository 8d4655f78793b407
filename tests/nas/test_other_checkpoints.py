"""Checkpoints of another search, and damaged ones, are refused by what differs."""

import functools
import itertools
import os
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CyclicLR, ExponentialLR, LambdaLR, OneCycleLR, SequentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from asng import ASNG, SNG
from asng._files import previous_path
from asng.nas import Flops, Latency, Limit, OneOf, parameters, space_of
from asng.nas import _checkpoints as checkpoints
from tests.helpers.searches import Augmented, Net, batches, data, interrupt_at, run_search

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]

ROWS = torch.zeros(8, 4)


class Stream:
    """Batches of which nobody knows how many there are."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(batches(self.n))


def groups_of(job):
    return job["search"]["weight_optimizer"]["param_groups"]


def states_of(job):
    return job["search"]["weight_optimizer"]["state"]


def test_fewer_batches_than_before_the_pause_are_noticed(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_search(train_loader=Stream(5), checkpoint=path, loss_fn=interrupt_at(16))
    with pytest.raises(ValueError, match="train_loader gives only 2 batches, but was at step 4 when it stopped"):
        run_search(train_loader=Stream(2), checkpoint=path)


def test_a_checkpoint_of_another_search_is_refused_by_name(tmp_path):
    path = tmp_path / "checkpoint.pt"
    run_search(checkpoint=path)
    others: dict[str, Any] = {
        "another space (first: ": {
            "model": nn.Sequential(OneOf("first", [nn.Sequential(nn.Linear(4, 3)), nn.Linear(4, 3)]))
        },
        "first.options.0.weight: (8, 4) there, (9, 4) here": {"model": Net(width=9)},
        "another space (depth: ": {"model": Net(depth=4)},
        "(epochs: 2 there, 1 here)": {"epochs": 1},
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
        "(sync_batchnorm: False there, True here)": {"sync_batchnorm": True},
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


@pytest.mark.parametrize("schedules", [(None, lambda w: StepLR(w, 1)), (lambda w: StepLR(w, 1), None)])
def test_another_kind_of_schedule_is_no_other_number_of_epochs(tmp_path, schedules):
    path = tmp_path / "checkpoint.pt"
    with_weights(path, lambda p: torch.optim.SGD(p, 0.1), schedules[0])
    with pytest.raises(ValueError, match=r"another run \(lr_scheduler: .* there, .* here\); to") as error:
        with_weights(path, lambda p: torch.optim.SGD(p, 0.1), schedules[1], epochs=5)
    assert "epochs" not in str(error.value)


def test_a_nested_schedule_is_refused_by_what_differs_inside(tmp_path):
    path = tmp_path / "checkpoint.pt"

    def make_sequential(lr, factor):
        return SequentialLR(lr, [StepLR(lr, 1, gamma=0.5), LambdaLR(lr, factor)], milestones=[1])

    def halve(epoch):
        return 0.5**epoch

    with_weights(path, lambda p: torch.optim.SGD(p, 0.1), lambda w: make_sequential(w, halve))
    assert len(with_weights(path, lambda p: torch.optim.SGD(p, 0.1), lambda w: make_sequential(w, halve)).history) == 2
    for reason, schedule in (
        (
            "_schedulers.0.gamma: 0.5 there, 0.1 here",
            lambda w: SequentialLR(w, [StepLR(w, 1), LambdaLR(w, halve)], milestones=[1]),
        ),
        (
            "_schedulers.1.lr_lambdas: ['halve'] there, ['<lambda>'] here",
            lambda w: make_sequential(w, lambda epoch: 0.1),
        ),
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


def test_an_input_without_repr_is_named_alike_in_every_process():
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


def test_other_frozen_weights_are_another_search(tmp_path):
    def one(*frozen):
        model = Net()
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
        run_search(model, checkpoint=tmp_path / "c.pt", epochs=1)

    first, second, *_ = dict(Net().named_parameters())
    one(first)
    one(first)
    with pytest.raises(ValueError, match=re.escape(f"(frozen.{first}: True there, None here)")):
        one()
    with pytest.raises(ValueError, match=re.escape(f"frozen.{second}: None there, True here)")):
        one(first, second)


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
        run_search(train_loader=before(), checkpoint=path, loss_fn=interrupt_at(5))
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
            run_search(model, epochs=4, loss_fn=interrupt_at(call), **settings)
    assert len(run_search(model, epochs=4, **settings).history) == 4


def test_other_implementations_of_the_same_weight_optimizer_continue(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        with_weights(path, lambda p: torch.optim.Adam(p, 0.1, fused=True), loss_fn=interrupt_at(25))
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
        ("history", [{"epoch": 2}]),
        ("history", [{}]),
        ("measured", {"train_loss": ["a"]}),
        *((f"job.{name}", "a") for name in ("steps", "losses", "search", "lr_scheduler", "rng_at_epoch_start")),
        ("rng.generators", "a"),
        ("job.rng_at_epoch_start", {}),
        ("job.valid_at_epoch_start", ("a", {})),
        ("job.valid_at_epoch_start", (2, {})),
        ("job.search.costs", {"device": 1, "measures": 2, "known": 3, "nearest": 4}),
    ],
)
def test_a_part_of_a_checkpoint_that_is_of_another_type_is_refused(tmp_path, part, wrong):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_search(checkpoint=path, loss_fn=interrupt_at(23))
    whole = checkpoints.load(path)
    *outer, name = part.split(".")
    functools.reduce(dict.__getitem__, outer, whole)[name] = wrong
    checkpoints.save(path, whole)
    with pytest.raises(ValueError, match=r"checkpoint\.pt is of another run \(.*\); use another path, or delete it"):
        run_search(checkpoint=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda job: job["lr_scheduler"].update(last_epoch={}), "lr_scheduler.last_epoch is {}, in the place of 0"),
        (lambda job: job["lr_scheduler"].update(_last_lr=5), "lr_scheduler._last_lr is 5, in the place of"),
        (lambda job: groups_of(job)[0].update(lr="a"), "param_groups.0.lr is 'a', in the place of 0.025"),
        (lambda job: groups_of(job)[0].update(momentum=None), "param_groups.0.momentum is None, in the place of 0.9"),
        (lambda job: groups_of(job)[0].update(lr=torch.ones(2)), "param_groups.0.lr is tensor([1., 1.]), in the place"),
        (lambda job: job["lr_scheduler"].update(last_epoch=torch.ones(2)), "lr_scheduler.last_epoch is tensor([1., 1."),
        (lambda job: states_of(job).update({0: "a"}), "state.0 is 'a', in the place of {}"),
        (
            lambda job: states_of(job)[0].update(momentum_buffer=torch.ones(7)),
            "state.0.momentum_buffer is tensor([1., 1",
        ),
        (
            lambda job: states_of(job)[0].update(momentum_buffer=0.5),
            "state.0.momentum_buffer is 0.5, of a parameter of",
        ),
    ],
)
def test_a_schedule_or_rate_of_another_type_is_refused(tmp_path, change, message):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_search(checkpoint=path, loss_fn=interrupt_at(23))
    whole = checkpoints.load(path)
    change(whole["job"])
    checkpoints.save(path, whole)
    with pytest.raises(ValueError, match=rf"checkpoint\.pt is of another run \(.*{re.escape(message)}"):
        run_search(checkpoint=path)


def test_a_damaged_checkpoint_is_refused_and_the_previous_offered(tmp_path):
    path = tmp_path / "checkpoint.pt"
    run_search(checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"damaged .*the one before it is .*checkpoint\.asng-previous\.pt: rename it"):
        run_search(checkpoint=path)
    os.replace(previous_path(path), path)
    assert len(run_search(checkpoint=path).history) == 2
