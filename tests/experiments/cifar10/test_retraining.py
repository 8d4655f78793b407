"""Training from scratch on CIFAR-10: sizes, schedule, dropped paths, resumption, and testing; on images of noise."""
# mypy: disable-error-code="arg-type, index, union-attr"

import json
import math
import threading

import pytest
import torch
import torch.nn.functional as F

from asng import nas
from asng.experiments._image_runs import evaluate, retrain, search
from asng.experiments._images import Batches, ImageSet
from asng.experiments._jobs import TRAIN, SearchJob, TrainJob
from asng.experiments.cifar10.data import augment_batches
from asng.experiments.cifar10.network import Cell, count_without_auxiliary
from asng.experiments.cifar10.nodes import Fork
from asng.experiments.cifar10.space import channels_for, num_parameters, random_values
from asng.experiments.cifar10.task import (
    Cifar10,
    Cifar10RetrainSettings,
    Cifar10SearchSettings,
    accuracy,
)
from asng.fused._dispatch import SideStream
from asng.nas import _checkpoints as checkpoints
from asng.runs import CHECKPOINT, METRICS, read_config
from tests.helpers.commands import records_of

pytestmark = pytest.mark.long

TINY = Cifar10RetrainSettings(epochs=3, channels=2, cells=3, batch_size=4, num_train_images=12)
VALUES = random_values(5)


def settings_with(**settings):
    return Cifar10RetrainSettings(**{**vars(TINY), **settings})


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (16, 3, 32, 32), generator=generator, dtype=torch.uint8)
    some = ImageSet(pixels, torch.randint(10, (16,), generator=generator))
    return some, some.subset(torch.arange(10))


def rates_of(job):
    return {module.drop_path.item() for module in job.model.modules() if isinstance(module, Cell)}


def test_the_defaults_are_the_papers():
    settings = Cifar10RetrainSettings()
    assert (settings.epochs, settings.cells, settings.batch_size, settings.lr) == (600, 20, 80, 0.025)
    assert (settings.drop_path, settings.auxiliary, settings.max_params) == (0.3, 0.4, 4_000_000)


def test_the_channels_are_as_many_as_the_parameters_allow(images):
    task, settings = Cifar10(*images), settings_with(channels=None, max_params=20_000)
    job = TrainJob(task, settings, VALUES)
    summary, channels = task.summarize(settings, VALUES, job.model), channels_for(VALUES, cells=3, max_params=20_000)
    parameters = count_without_auxiliary(job.model)
    assert summary == {"channels": channels, "parameters": parameters, "effective_parameters": parameters}
    assert summary["parameters"] == num_parameters(VALUES, channels, 3) <= 20_000  # batch norms scale


def test_learning_rate_and_drop_path_follow_the_epoch(images):
    job = TrainJob(Cifar10(*images), TINY, VALUES)
    assert job.steps_per_epoch == 3
    for number in (0, 2, 3, 5, 6, 8):
        job.step(number)
        epoch = number // 3
        assert rates_of(job) == {0.3 * epoch / 3}
        rate = job._train_step.optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(0.025 * (1 + math.cos(math.pi * epoch / 3)) / 2)


def test_a_step_is_sgd_on_the_loss_of_both_heads(images):
    job, twin = (TrainJob(Cifar10(*images), settings_with(drop_path=0.0, auxiliary=40.0), VALUES) for _ in range(2))
    optimizer = torch.optim.SGD(twin.model.parameters(), lr=0.025, momentum=0.9, weight_decay=3e-4)
    batches = Batches(images[0], torch.arange(12), 4, augment_batches, 0, TRAIN)
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
    job = TrainJob(Cifar10(*images), settings_with(amp_dtype="bfloat16"), VALUES)
    kinds = []
    job.model.get_submodule("classifier").register_forward_hook(
        lambda layer, inputs, output: kinds.append(output.dtype)
    )
    job.step(0)
    assert kinds == [torch.bfloat16]


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def to_gpu(images):
    return [ImageSet(some.images.cuda(), some.labels.cuda()) for some in images]


@GPU
@pytest.mark.parametrize(("amp_dtype", "is_last"), [("off", False), ("bfloat16", True)])
def test_on_a_gpu_torchs_kernels_run_channels_last_in_mixed_precision(images, amp_dtype, is_last):
    job = TrainJob(Cifar10(*to_gpu(images), kernels="torch"), settings_with(amp_dtype=amp_dtype), VALUES)
    seen = []
    job.model.get_submodule("stem.0").register_forward_hook(
        lambda layer, inputs, output: seen.append(
            [x.is_contiguous(memory_format=torch.channels_last) for x in (inputs[0], layer.weight)]
        )
    )
    job.step(0)
    assert {tuple(formats) for formats in seen} == {(is_last, is_last)}


@GPU
def test_on_a_gpu_what_runs_side_by_side_trains_as_it_does_in_turn(images, monkeypatch):
    """Bit for bit: no stream reads what another has not written yet, or writes where another still reads."""
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    begin_side, begin_fork = SideStream.__init__, Fork.__init__

    def on_one_stream(side, x, *, are_kept):
        begin_side(side, x, are_kept=are_kept)
        side._side = side._outer

    def in_turn(fork, *arguments):
        begin_fork(fork, *arguments)
        fork.is_captured = False

    def train():
        settings = settings_with(channels=8, cells=5, amp_dtype="bfloat16", drop_path=0.9)
        job = TrainJob(Cifar10(*to_gpu(images)), settings, VALUES)
        for number in range(9):
            job.step(number)
        return [parameter.detach().clone() for parameter in job.model.parameters()]

    side_by_side, again = train(), train()
    monkeypatch.setattr(SideStream, "__init__", on_one_stream)
    monkeypatch.setattr(Fork, "__init__", in_turn)
    for weights in (again, train()):
        assert all(map(torch.equal, weights, side_by_side))


@GPU
@pytest.mark.parametrize("amp_dtype", ["off", "bfloat16"])
def test_on_a_gpu_all_kernels_are_compiled_before_the_first_one_is_launched(images, monkeypatch, amp_dtype):
    jit = pytest.importorskip("triton.runtime.jit")
    compile_kernel, compiled = jit.JITFunction._do_compile, []

    def note(kernel, *args, **named):
        compiled.append((kernel.__name__, threading.current_thread()))
        return compile_kernel(kernel, *args, **named)

    monkeypatch.setattr(jit.JITFunction, "_do_compile", note)
    job = TrainJob(Cifar10(*to_gpu(images)), settings_with(channels=24, cells=3, amp_dtype=amp_dtype), VALUES)
    job.step(0)
    assert len(compiled) > 10
    assert [name for name, thread in compiled if not thread.name.startswith("ThreadPoolExecutor")] == []


def test_weights_and_mini_batches_follow_from_the_seed(images):
    def draw(seed):
        job = TrainJob(Cifar10(*images), settings_with(seed=seed), VALUES)
        return job.model.state_dict()["stem.0.weight"].tolist(), [
            job.train_batches(number)[1].tolist() for number in range(6)
        ]

    assert draw(1) == draw(1)
    assert all(one != other for one, other in zip(draw(0), draw(1), strict=True))


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, retrain(Cifar10(*images), TINY, VALUES, folder)


def test_without_tests_the_last_epoch_is_tested_and_nothing_else_changes(images, whole, tmp_path):
    retrain(Cifar10(*images), settings_with(test=False), VALUES, tmp_path)
    untested, tested = records_of(tmp_path), records_of(whole[0])
    assert ["test_accuracy" in record for record in untested] == [False, False, True]
    assert untested == [{name: record[name] for name in own} for own, record in zip(untested, tested, strict=True)]


class Killed(Exception):
    pass


@pytest.mark.parametrize("number", [4, 7])
def test_a_training_that_stops_anywhere_resumes_bit_equal(images, whole, tmp_path, monkeypatch, number):
    step = TrainJob.step

    def until(self, at):
        if at == number:
            raise KeyboardInterrupt if at % 2 else Killed
        return step(self, at)

    with monkeypatch.context() as patch:
        patch.setattr(TrainJob, "step", until)
        with pytest.raises((Killed, KeyboardInterrupt)):
            retrain(Cifar10(*images), TINY, VALUES, tmp_path)
    torch.manual_seed(77)
    retrain(Cifar10(*images), TINY, VALUES, tmp_path)
    assert records_of(tmp_path) == records_of(whole[0])
    one, other = (checkpoints.load(path / CHECKPOINT)["job"] for path in (whole[0], tmp_path))
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


def test_a_record_counts_the_images_of_an_epoch(whole):
    for record in map(json.loads, (whole[0] / METRICS).read_text().splitlines()):
        assert record["images_per_second"] == pytest.approx(3 * 4 / record["seconds"])


def test_settings_that_are_refused_late_leave_no_folder(images, tmp_path):
    with pytest.raises(ValueError, match="more than max_params=10"):
        retrain(Cifar10(*images), settings_with(channels=None, max_params=10), VALUES, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_architecture_is_refused(images, whole):
    with pytest.raises(ValueError, match=r"another configuration \(architecture\.values\..*; and \d+ more\); "):
        retrain(Cifar10(*images), TINY, random_values(6), whole[0])


def test_evaluating_gives_the_accuracy_of_the_last_record(images, whole):
    result = evaluate(Cifar10(*images), whole[0], read_config(whole[0], "cifar10", CHECKPOINT))
    assert result == {"kind": "retrain", "steps": 9, "test_accuracy": whole[1]["last"]["test_accuracy"]}


def test_evaluating_a_search_gives_the_accuracy_of_what_it_found(images, tmp_path):
    settings = Cifar10SearchSettings(epochs=1, channels=2, cells=3, batch_size=4, num_train_images=16)
    summary = search(Cifar10(*images), settings, tmp_path)
    result = evaluate(Cifar10(*images), tmp_path, read_config(tmp_path, "cifar10", CHECKPOINT))
    assert result == {"kind": "search", "steps": 2, "test_accuracy": summary["last"]["test_accuracy"]}


def test_evaluating_a_search_tests_all_images(images, tmp_path, monkeypatch):
    def count(network, images, max_images=None, progress=None):
        return max_images or len(images)

    monkeypatch.setattr("asng.experiments.cifar10.task.accuracy", count)
    settings = Cifar10SearchSettings(
        epochs=1, channels=2, cells=3, batch_size=4, num_train_images=16, num_test_images=3
    )
    assert search(Cifar10(*images), settings, tmp_path)["last"]["test_accuracy"] == 3
    assert evaluate(Cifar10(*images), tmp_path, read_config(tmp_path, "cifar10", CHECKPOINT))["test_accuracy"] == 10


def test_evaluating_tells_how_far_it_is(images, whole):
    many = ImageSet(images[0].images.repeat(15, 1, 1, 1), images[0].labels.repeat(15))
    heard: list[float] = []
    evaluate(Cifar10(images[0], many), whole[0], read_config(whole[0]), heard.append)
    assert heard == [0, 100 / 240, 200 / 240, 1]


def test_evaluating_a_checkpoint_of_another_run_says_what_to_do(images, whole, tmp_path):
    retrain(Cifar10(*images), settings_with(epochs=1, channels=4), VALUES, tmp_path)
    (tmp_path / CHECKPOINT).write_bytes((whole[0] / CHECKPOINT).read_bytes())
    with pytest.raises(ValueError, match=r"another run \(.*use another path, or delete it"):
        evaluate(Cifar10(*images), tmp_path, read_config(tmp_path, "cifar10", CHECKPOINT))


def test_training_learns_to_tell_colors_apart():
    """Two labels, two colors, some noise: what was trained tells nearly all of them right."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(2, (40,), generator=generator)
    colors = torch.tensor([[200, 60, 60], [60, 60, 200]])[labels][:, :, None, None]
    pixels = (colors + torch.randint(-40, 40, (40, 3, 32, 32), generator=generator)).to(torch.uint8)
    train, test = (ImageSet(pixels, labels).subset(part) for part in (torch.arange(24), torch.arange(24, 40)))
    job = TrainJob(Cifar10(train, test), settings_with(epochs=15, num_train_images=24, batch_size=8), VALUES)
    for number in range(45):
        job.step(number)
    assert accuracy(job.model, test) >= 0.9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drop_path": 1.0}, "drop_path must be at least 0 and below 1, got 1.0"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"auxiliary": -0.4}, "auxiliary must be at least 0, got -0.4"),
        ({"auxiliary": math.nan}, "auxiliary must be at least 0, got nan"),
        ({"max_params": 0}, "max_params must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        settings_with(**settings)


def test_the_trained_network_has_no_decision_left(images):
    job = TrainJob(Cifar10(*images), TINY, VALUES)
    assert not any(isinstance(module, nas.Decision) for module in job.model.modules())
    assert isinstance(
        SearchJob(
            Cifar10(*images), Cifar10SearchSettings(epochs=1, channels=2, cells=3, batch_size=4, num_train_images=16)
        ).model,
        torch.nn.Module,
    )
