"""The search on CIFAR-10: what it computes, that it resumes bit-equal, its baselines; on a few images of noise."""
# mypy: disable-error-code="arg-type, index, union-attr"

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from asng import ASNG, RandomSearch, nas
from asng.experiments import _jobs
from asng.experiments._image_runs import search
from asng.experiments._images import Batches, ImageSet, halves
from asng.experiments._jobs import TRAIN, VALID, SearchJob
from asng.experiments.cifar10.data import augment_batches, normalize
from asng.experiments.cifar10.space import SPACE, num_parameters, random_values, values_of
from asng.experiments.cifar10.task import Cifar10, Cifar10SearchSettings, accuracy
from asng.nas import _checkpoints as checkpoints
from asng.nas._checkpoints import Checkpoint
from asng.nas._loop import Epoch, run_job
from asng.nas.architecture import from_json
from asng.runs import CHECKPOINT, METRICS, Run
from tests.helpers.commands import records_of

pytestmark = pytest.mark.long

TINY = Cifar10SearchSettings(epochs=2, channels=2, cells=3, batch_size=4, num_train_images=24)


@pytest.fixture(scope="module")
def images():
    def some(n, seed):
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.randint(256, (n, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return ImageSet(pixels, torch.randint(10, (n,), generator=generator))

    return some(30, 0), some(20, 1)


def settings_with(**settings):
    return Cifar10SearchSettings(**{**vars(TINY), **settings})


def listen(job, note):
    """Let `note(model, batch)` hear of every loss that is about to be computed."""

    def loss(model, batch):
        note(model, batch)
        return inner(model, batch)

    inner, job.oneshot._loss_fn = job.oneshot._loss_fn, loss


def make_job(settings, images):
    return SearchJob(Cifar10(*images), settings)


def test_the_defaults_are_the_papers():
    settings = Cifar10SearchSettings()
    assert (settings.epochs, settings.channels, settings.cells, settings.batch_size) == (100, 16, 8, 64)
    assert (settings.population_size, settings.lr, settings.method, settings.num_train_images) == (
        2,
        0.025,
        "asng",
        50_000,
    )
    assert settings.max_params is None
    assert settings.amp_dtype == "off"


def test_an_iteration_is_the_papers(images):
    """Two fresh architectures on a mini-batch of one half move the weights; two more on one of the other, theta."""
    job = make_job(TINY, images)
    group = job.oneshot.weight_optimizer.param_groups[0]
    assert isinstance(job.arch_optimizer, ASNG)
    assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.9, 3e-4, False)
    first, second = halves(24, TINY.seed)
    seen = []
    listen(job, lambda model, batch: seen.append((batch, torch.is_grad_enabled())))
    values = job.step(4)
    assert [differentiated for _, differentiated in seen] == [True, True, False, False]
    train, valid = (
        Batches(images[0], half, 4, augment_batches, TINY.seed, place)(4) for place, half in enumerate((first, second))
    )
    for (batch, _), expected in zip(seen, (train, train, valid, valid), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(batch, expected, strict=True))
    assert math.isfinite(values["train_loss"])
    assert 0 <= values["valid_accuracy"] <= 1


def test_the_weights_move_by_sgd_with_momentum_decay_and_clipping(images):
    """Of weights that were touched before but are not sampled, too."""
    job, twin = (make_job(TINY, images) for _ in range(2))
    inner = job.oneshot._loss_fn
    job.oneshot._loss_fn = lambda model, batch: 100 * inner(model, batch)[0]  # so that clipping matters
    optimizer = torch.optim.SGD(twin.model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    train = Batches(images[0], halves(24, TINY.seed)[0], 4, augment_batches, TINY.seed, TRAIN)
    for number in range(3):
        optimizer.zero_grad(set_to_none=False)
        pixels, labels = train(number)
        for candidate in twin.arch_optimizer.ask():
            nas.select(twin.model, candidate.values)
            (100 * F.cross_entropy(twin.model(pixels), labels) / 2).backward()
        assert torch.nn.utils.clip_grad_norm_(twin.model.parameters(), 5.0) > 5
        optimizer.step()
        job.step(number)
        twin.arch_optimizer.load_state_dict(job.arch_optimizer.state_dict())
    for (name, one), other in zip(job.model.named_parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


def test_columns_of_nodes_that_are_not_loose_decay_from_the_first_step(images):
    """As in the authors' program, where the output convolution of a cell is one weight."""
    job = make_job(TINY, images)
    cells: Any = job.model.cells
    before = [cell.join.weight.detach().clone() for cell in cells]
    job.step(0)
    for cell, old in zip(cells, before, strict=True):
        node0 = slice(0, cell.join.out_channels)
        assert not torch.equal(cell.join.weight, old)
        torch.testing.assert_close(cell.join.weight[:, node0], old[:, node0] * (1 - 0.025 * 3e-4), rtol=1e-6, atol=0)


def test_as_many_architectures_as_asked_for_see_each_mini_batch(images):
    job = make_job(settings_with(population_size=3), images)
    seen = []
    listen(job, lambda model, batch: seen.append(batch[0]))
    job.step(0)
    assert [torch.equal(batch, seen[0]) for batch in seen] == [True] * 3 + [False] * 3
    assert all(torch.equal(batch, seen[3]) for batch in seen[3:])


@pytest.mark.parametrize("amp_dtype", ["bfloat16", "float16"])
def test_mixed_precision_is_that_of_both_halves(images, amp_dtype):
    job = make_job(settings_with(amp_dtype=amp_dtype), images)
    kinds = []
    job.model.classifier.register_forward_hook(lambda layer, inputs, output: kinds.append(output.dtype))
    assert math.isfinite(job.step(0)["valid_loss"])
    assert kinds == [getattr(torch, amp_dtype)] * 4
    assert {parameter.dtype for parameter in job.model.parameters()} == {torch.float32}


def test_weights_halves_and_architectures_follow_from_the_seed(images):
    def draw(seed):
        job = make_job(settings_with(seed=seed), images)
        numbers = sorted(job.train_batches(number)[1].tolist() for number in range(3))
        first = [candidate.values for candidate in job.arch_optimizer.ask()]
        return (
            job.model.state_dict()["stem.0.weight"].tolist(),
            sorted(job.train_batches._indices.tolist()),
            first,
            numbers,
        )

    assert draw(1) == draw(1)
    assert all(one != other for one, other in zip(draw(0), draw(1), strict=True))


def test_the_learning_rate_falls_once_an_epoch_on_a_cosine(images):
    job = make_job(settings_with(epochs=4), images)
    rates = []
    for number in range(0, 4 * job.steps_per_epoch, job.steps_per_epoch - 1):
        job.step(number)
        rates.append((number // job.steps_per_epoch, job.oneshot.weight_optimizer.param_groups[0]["lr"]))
    assert job.steps_per_epoch == 3
    for epoch, rate in rates:
        assert rate == pytest.approx(0.025 * (1 + math.cos(math.pi * epoch / 4)) / 2)


def test_the_accuracy_is_that_of_the_architectures_that_are_judged(images):
    job = make_job(TINY, images)
    judged = []
    listen(job, lambda model, batch: judged.append((model(batch[0]).detach(), batch[1])))
    for number in range(3):
        judged.clear()
        values = job.step(number)
        right = [(logits.argmax(1) == labels).float().mean().item() for logits, labels in judged[2:]]
        assert float(values["valid_accuracy"]) == pytest.approx(sum(right) / 2)


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, search(Cifar10(*images), TINY, folder)


def test_a_run_leaves_metrics_architecture_pictures_and_a_summary(whole):
    folder, summary = whole
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", METRICS, "checkpoint.pt", "architecture.json", "summary.json"} <= names
    for name in ("cells", "probabilities", "curves"):
        assert {f"{name}.svg", f"{name}.png"} <= names
    records = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2]
    for record in records:
        assert {"train_loss", "valid_loss", "valid_accuracy", "largest_probability", "delta"} <= set(record)
        assert {"test_accuracy", "seconds", "images_per_second"} <= set(record)
        assert record["images_per_second"] == pytest.approx(3 * 2 * 4 / record["seconds"])
        assert set(values_of(record["architecture"])) == set(SPACE)
        assert record["calibration_batches"] == 3  # so the log says that batch statistics were estimated again
    values = from_json((folder / "architecture.json").read_text(), SPACE)
    assert values == summary["values"] == values_of(records[-1]["architecture"])
    probabilities = json.loads((folder / "summary.json").read_text())["distribution"]
    for name, variable in SPACE.items():
        assert variable.choices[int(np.argmax(probabilities[name]))] == values[name]


class Killed(Exception):
    pass


@pytest.mark.parametrize("number", [1, 3])
def test_a_search_that_stops_anywhere_resumes_bit_equal(images, whole, tmp_path, monkeypatch, number):
    folder, summary = whole
    step = SearchJob.step

    def until(self, at):
        if at == number:
            raise Killed
        return step(self, at)

    with monkeypatch.context() as patch:
        patch.setattr(SearchJob, "step", until)
        with pytest.raises(Killed):
            run(TINY, images, tmp_path)
    torch.manual_seed(1234)
    job = run(TINY, images, tmp_path)
    assert {name: p.tolist() for name, p in job.arch_optimizer.distribution().items()} == summary["distribution"]
    one, other = (checkpoints.load(path / CHECKPOINT)["job"] for path in (folder, tmp_path))
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    assert records_of(folder) == records_of(tmp_path)


def run(settings, images, folder):
    """A search without the pictures at its end."""
    job = make_job(settings, images)
    with Run(folder, {}, METRICS) as kept:
        run_job(job, epochs=settings.epochs, checkpoint=Checkpoint(kept.folder / CHECKPOINT, {}, kept))
    return job


def test_testing_changes_nothing_but_the_record(images, whole, tmp_path):
    silent = run(settings_with(test=False), images, tmp_path).arch_optimizer.distribution()
    assert {name: p.tolist() for name, p in silent.items()} == whole[1]["distribution"]
    assert all("test_accuracy" not in record for record in records_of(tmp_path))


def test_the_extracted_network_is_tested_after_recalibration(images):
    job = make_job(TINY, images)
    for number in range(3):
        job.step(number)
    values = random_values(3)
    before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    result = accuracy(job.network(values), images[1])
    assert all(torch.equal(before[name], tensor) for name, tensor in job.model.state_dict().items())
    network = nas.extract(job.model, values)
    train = Batches(images[0], halves(24, TINY.seed)[0], 4, augment_batches, TINY.seed, TRAIN)
    nas.recalibrate(network, [train(number)[0] for number in range(3)])
    network.eval()
    with torch.no_grad():
        right = [network(normalize(image[None])).argmax().item() for image in images[1].images]
    assert result == np.mean(np.array(right) == images[1].labels.numpy())


def test_only_as_many_images_are_tested_as_asked_for(images, monkeypatch):
    job = make_job(settings_with(num_test_images=5), images)
    monkeypatch.setattr(
        "asng.experiments.cifar10.task.accuracy", lambda network, images, max_images, progress: max_images
    )
    assert job.finish_epoch(Epoch())["test_accuracy"] == 5
    few = ImageSet(images[1].images[:5], images[1].labels[:5])
    network = job.network(random_values(0))
    assert accuracy(network, images[1], 5) == accuracy(network, few)


def test_accuracy_leaves_the_mode_of_a_network_alone(images):
    network = nas.extract(make_job(TINY, images).model, random_values(0)).train()
    accuracy(network, images[1])
    assert network.training


def test_random_search_never_moves_and_takes_the_best_of_many(images, tmp_path, monkeypatch):
    monkeypatch.setattr(_jobs, "TOP_K", 3)
    settings = settings_with(method="uniform", num_random=8)
    job = make_job(settings, images)
    assert isinstance(job.arch_optimizer, RandomSearch)
    for number in range(2):
        job.step(number)
    assert job.finish_epoch(Epoch())["largest_probability"] == pytest.approx(
        np.mean([1 / len(v.choices) for v in SPACE.values()])
    )
    drawn = [c.values for c in RandomSearch(SPACE, seed=np.random.SeedSequence(0).spawn(2)[1]).ask(8)]
    valid = Batches(images[0], halves(24, 0)[1], 4, augment_batches, 0, VALID)

    def loss(values, numbers):
        nas.select(job.model, values)
        with torch.no_grad():
            parts = [F.cross_entropy(job.model(images), labels) for images, labels in map(valid, numbers)]
        return np.mean([part.item() for part in parts])

    first = sorted(drawn, key=lambda values: loss(values, [0]))  # all on the same mini-batch
    modes = []
    job.model.register_forward_pre_hook(lambda model, inputs: modes.append(model.training))
    assert job.result()["values"] == min(first[:3], key=lambda values: loss(values, range(valid.steps)))
    assert modes[: 8 + 3 * valid.steps] == [True] * (8 + 3 * valid.steps)  # with batch statistics
    assert "test_accuracy" not in job.finish_epoch(Epoch())


def test_random_search_takes_no_architecture_whose_loss_is_not_finite(images):
    job = make_job(settings_with(method="uniform", num_random=4), images)
    drawn = job._draw_feasible()
    losses = iter([math.nan, 3.0, math.inf, 2.0, *[math.nan] * 3, *[1.0] * 3, *[math.inf] * 6])
    job._task.search_loss = lambda model, batch: torch.tensor(next(losses))
    assert job.result()["values"] == drawn[1]  # its losses are 3, then 1; those of drawn[3] 2, then nan


def test_random_search_is_feasible_or_says_at_once_that_it_cannot_be(images):
    sizes = sorted(num_parameters(random_values(seed), 2, 3, affine=False) for seed in range(40))
    job = make_job(settings_with(method="uniform", num_random=20, max_params=sizes[10]), images)
    drawn = job._draw_feasible()
    assert 0 < len(drawn) < 20
    assert num_parameters(job.result()["values"], 2, 3, affine=False) <= sizes[10]
    with pytest.raises(ValueError, match="none of 3 architectures meets the limit; raise max_params"):
        make_job(settings_with(method="uniform", num_random=3, max_params=500), images)


def test_a_limit_that_nothing_meets_leaves_no_folder(images, tmp_path):
    with pytest.raises(ValueError, match="smallest architecture has 452 parameters, more than max_params=451"):
        search(Cifar10(*images), settings_with(max_params=451), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    make_job(settings_with(max_params=452), images)


def test_the_limit_is_on_the_parameters_of_the_network_of_the_search(images):
    job = make_job(TINY, images)
    for seed in range(3):
        small = nas.extract(job.model, random_values(seed))
        size = job._task.size_of(TINY)(job.model, random_values(seed))
        assert size == sum(parameter.numel() for parameter in small.parameters())


def test_a_limit_on_parameters_holds_for_what_is_run_and_what_is_found(images, tmp_path):
    sizes = sorted(num_parameters(random_values(seed), 2, 3, affine=False) for seed in range(40))
    limit = sizes[10]
    job = make_job(settings_with(max_params=limit), images)
    ran: list[int] = []
    judged: list[int] = []

    def note(model, batch):
        values = {module.name: module.value for module in model.modules() if isinstance(module, nas.Decision)}
        (ran if torch.is_grad_enabled() else judged).append(num_parameters(values, 2, 3, affine=False))

    listen(job, note)
    for number in range(4):
        before = len(judged)
        assert job.step(number)["feasible"] == (len(judged) - before) / 2
    assert 0 < len(judged) < 8
    assert max(ran + judged) <= limit
    found = job.result()
    assert found["feasible"]
    assert num_parameters(found["values"], 2, 3, affine=False) <= limit


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"population_size": 1}, "population_size must be at least 2, got 1"),
        ({"cells": 2}, "cells must be at least 3, got 2"),
        ({"lr": math.nan}, "lr must be above 0, got nan"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        settings_with(**settings)


def test_what_has_no_influence_on_the_output_is_told_with_the_parameters_that_have_one(images):
    task, values = Cifar10(*images), values_of([0, 0, 3, 4] * 5 + [0, 1, 3, 4] * 5)
    summary = task.summarize(Cifar10SearchSettings(cells=4, channels=2), values)
    lines = task.describe_found({"values": values, **summary}, Path("run"))
    whole, effective = (num_parameters(values, 2, 4, affine=False, effective=flag) for flag in (False, True))
    assert lines[11:] == [
        "The normal cell does not use cell k-1.",
        "Without influence on the output (counted from 0): cells 2.",
        f"{whole:,} parameters ({effective:,} with an influence on the output) with the channels of the search",
        "Cells: run/cells.png",
    ]
