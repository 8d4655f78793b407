"""Training from scratch on CIFAR-10: sizes, schedule, dropped paths, resumption, and testing; on images of noise."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from commands import records_of

from asng import nas
from asng.experiments import training
from asng.experiments.cifar10.data import Cifar10Batches, Images
from asng.experiments.cifar10.network import Cell, count_without_auxiliary
from asng.experiments.cifar10.retraining import Cifar10RetrainJob, Cifar10RetrainSettings, evaluate, retrain
from asng.experiments.cifar10.search import Cifar10SearchJob, Cifar10SearchSettings, accuracy, search
from asng.experiments.cifar10.space import channels_for, num_parameters, random_values
from asng.experiments.searching import TRAIN
from asng.nas import _checkpoints as checkpoints
from asng.runs import METRICS

pytestmark = pytest.mark.long

TINY = Cifar10RetrainSettings(epochs=3, channels=2, cells=3, batch=4, num_train_images=12)
VALUES = random_values(5)


def changed(**settings):
    return Cifar10RetrainSettings(**{**vars(TINY), **settings})


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (16, 3, 32, 32), generator=generator, dtype=torch.uint8)
    some = Images(pixels, torch.randint(10, (16,), generator=generator))
    return some, some.subset(torch.arange(10))


def rates_of(job):
    return {module.drop_path for module in job.model.modules() if isinstance(module, Cell)}


def test_the_defaults_are_the_papers():
    settings = Cifar10RetrainSettings()
    assert (settings.epochs, settings.cells, settings.batch, settings.lr) == (600, 20, 80, 0.025)
    assert (settings.drop_path, settings.auxiliary, settings.max_params) == (0.3, 0.4, 4_000_000)


def test_the_channels_are_as_many_as_the_parameters_allow(images):
    job = Cifar10RetrainJob(changed(channels=None, max_params=20_000), VALUES, *images)
    assert job.channels == channels_for(VALUES, cells=3, at_most=20_000)
    assert (
        job.parameters == count_without_auxiliary(job.model) == num_parameters(VALUES, job.channels, 3) <= 20_000
    )  # batch norms scale


def test_the_learning_rate_and_dropped_paths_follow_the_epoch_linearly_and_on_a_cosine(images):
    job = Cifar10RetrainJob(TINY, VALUES, *images)
    assert job.steps == 3
    for number in (0, 2, 3, 5, 6, 8):
        job.step(number)
        epoch = number // 3
        assert rates_of(job) == {0.3 * epoch / 3}
        rate = job._train_step.optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(0.025 * (1 + math.cos(math.pi * epoch / 3)) / 2)


def test_the_loss_is_that_of_both_heads_and_a_step_is_sgd_with_momentum_decay_and_clipping(images):
    job, twin = (Cifar10RetrainJob(changed(drop_path=0.0, auxiliary=40.0), VALUES, *images) for _ in range(2))
    optimizer = torch.optim.SGD(twin.model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    batches = Cifar10Batches(images[0], torch.arange(12), 4, 0, TRAIN)
    for number in range(2):
        loss = job.step(number)["train_loss"]
        pixels, labels = batches(number)
        scores, auxiliary = twin.model(pixels)
        expected = F.cross_entropy(scores, labels) + 40 * F.cross_entropy(auxiliary, labels)
        optimizer.zero_grad()
        expected.backward()
        assert torch.nn.utils.clip_grad_norm_(twin.model.parameters(), 5.0) > 5
        optimizer.step()
        assert float(loss) == expected.item()
    assert all(torch.equal(a, b) for a, b in zip(job.model.parameters(), twin.model.parameters(), strict=True))


def test_mixed_precision_is_that_of_the_training(images):
    job = Cifar10RetrainJob(changed(amp_dtype="bfloat16"), VALUES, *images)
    kinds = []
    job.model.get_submodule("classifier").register_forward_hook(
        lambda layer, inputs, output: kinds.append(output.dtype)
    )
    job.step(0)
    assert kinds == [torch.bfloat16]


def test_weights_and_mini_batches_follow_from_the_seed(images):
    def drawn(seed):
        job = Cifar10RetrainJob(changed(seed=seed), VALUES, *images)
        return job.model.state_dict()["stem.0.weight"].tolist(), [
            job._batches(number)[1].tolist() for number in range(6)
        ]

    assert drawn(1) == drawn(1)
    assert all(one != other for one, other in zip(drawn(0), drawn(1), strict=True))


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, retrain(TINY, VALUES, folder, *images)


class Killed(Exception):
    pass


@pytest.mark.parametrize("number", [2, 4, 6, 7])
def test_a_training_that_stops_anywhere_resumes_bit_equal(images, whole, tmp_path, monkeypatch, number):
    step = Cifar10RetrainJob.step

    def until(self, at):
        if at == number:
            raise KeyboardInterrupt if at % 2 else Killed
        return step(self, at)

    with monkeypatch.context() as patch:
        patch.setattr(Cifar10RetrainJob, "step", until)
        with pytest.raises((Killed, KeyboardInterrupt)):
            retrain(TINY, VALUES, tmp_path, *images)
    torch.manual_seed(77)
    retrain(TINY, VALUES, tmp_path, *images)
    assert records_of(tmp_path) == records_of(whole[0])
    one, other = (checkpoints.load(path / training.CHECKPOINT)["job"] for path in (whole[0], tmp_path))
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


def test_a_record_counts_the_images_of_an_epoch(whole):
    for record in map(json.loads, (whole[0] / METRICS).read_text().splitlines()):
        assert record["images_per_second"] == pytest.approx(3 * 4 / record["seconds"])


def test_settings_that_are_refused_late_leave_no_folder(images, tmp_path):
    with pytest.raises(ValueError, match="more than at_most=10"):
        retrain(changed(channels=None, max_params=10), VALUES, tmp_path / "run", *images)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_architecture_is_refused(images, whole):
    with pytest.raises(ValueError, match=r"another configuration \(architecture\.values\..*; and \d+ more\); "):
        retrain(TINY, random_values(6), whole[0], *images)


def test_evaluating_gives_the_accuracy_of_the_last_record(images, whole):
    result = evaluate(whole[0], *images)
    assert result == {"kind": "retrain", "steps": 9, "test_accuracy": whole[1]["last"]["test_accuracy"]}


def test_evaluating_a_search_gives_the_accuracy_of_what_it_found(images, tmp_path):
    settings = Cifar10SearchSettings(epochs=1, channels=2, cells=3, batch=4, num_train_images=16)
    summary = search(settings, tmp_path, *images)
    result = evaluate(tmp_path, *images)
    assert result == {"kind": "search", "steps": 2, "test_accuracy": summary["last"]["test_accuracy"]}


def test_evaluating_a_search_tests_all_images(images, tmp_path, monkeypatch):
    monkeypatch.setattr("asng.experiments.cifar10.search.accuracy", lambda network, images, progress: len(images))
    settings = Cifar10SearchSettings(epochs=1, channels=2, cells=3, batch=4, num_train_images=16, num_test_images=3)
    assert search(settings, tmp_path, *images)["last"]["test_accuracy"] == 3
    assert evaluate(tmp_path, *images)["test_accuracy"] == 10


def test_evaluating_tells_how_far_it_is(images, whole):
    many = Images(images[0].images.repeat(15, 1, 1, 1), images[0].labels.repeat(15))
    heard: list[float] = []
    evaluate(whole[0], images[0], many, heard.append)
    assert heard == [0, 100 / 240, 200 / 240, 1]


def test_evaluating_a_checkpoint_of_another_run_says_what_to_do(images, whole, tmp_path):
    retrain(changed(epochs=1, channels=4), VALUES, tmp_path, *images)
    (tmp_path / training.CHECKPOINT).write_bytes((whole[0] / training.CHECKPOINT).read_bytes())
    with pytest.raises(ValueError, match=r"another run \(.*replace it by this run's own, or delete it"):
        evaluate(tmp_path, *images)


def test_evaluating_what_is_no_run_says_so(images, whole, tmp_path):
    with pytest.raises(ValueError, match="is no run"):
        evaluate(tmp_path, *images)
    (tmp_path / "config.json").write_text('{"experiment": "toy"}')
    with pytest.raises(ValueError, match="no run of cifar10"):
        evaluate(tmp_path, *images)
    (tmp_path / "config.json").write_text((whole[0] / "config.json").read_text())
    with pytest.raises(ValueError, match=r"no checkpoint\.pt yet"):
        evaluate(tmp_path, *images)


def test_training_learns_to_tell_colors_apart():
    """Two labels, two colors, some noise: what was trained tells nearly all of them right."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(2, (40,), generator=generator)
    colors = torch.tensor([[200, 60, 60], [60, 60, 200]])[labels][:, :, None, None]
    pixels = (colors + torch.randint(-40, 40, (40, 3, 32, 32), generator=generator)).to(torch.uint8)
    train, test = (Images(pixels, labels).subset(part) for part in (torch.arange(24), torch.arange(24, 40)))
    job = Cifar10RetrainJob(changed(epochs=15, num_train_images=24, batch=8), VALUES, train, test)
    for number in range(45):
        job.step(number)
    assert accuracy(job.model, test) >= 0.9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drop_path": 1.0}, "drop_path must be at least 0 and below 1, got 1.0"),
        ({"num_train_images": 3}, "num_train_images must be at least a mini-batch of 4, got 3"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"auxiliary": -0.4}, "auxiliary must be at least 0, got -0.4"),
        ({"auxiliary": math.nan}, "auxiliary must be at least 0, got nan"),
        ({"max_params": 0}, "max_params must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        changed(**settings)


def test_the_trained_network_has_no_decision_left(images):
    job = Cifar10RetrainJob(TINY, VALUES, *images)
    assert not any(isinstance(module, nas.Decision) for module in job.model.modules())
    assert isinstance(
        Cifar10SearchJob(
            Cifar10SearchSettings(epochs=1, channels=2, cells=3, batch=4, num_train_images=16), *images
        ).model,
        torch.nn.Module,
    )
