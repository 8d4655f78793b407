"""The benchmark of gradients in several precisions, on a release of a few images of noise."""

import gradients as bench
import pytest
import torch

from asng.experiments._image_runs import retrain
from asng.experiments._jobs import TrainJob
from asng.experiments.cifar10 import data, space
from asng.experiments.cifar10.task import Cifar10, Cifar10RetrainSettings
from tests.helpers.small_cifar10 import random_files, release_of, write

pytestmark = pytest.mark.slow
SETTINGS = Cifar10RetrainSettings(epochs=1, channels=2, cells=3, batch_size=8, num_train_images=16)


@pytest.fixture
def task(tmp_path, monkeypatch):
    files = random_files(16)
    write(tmp_path / data.FOLDER, files)
    monkeypatch.setattr(data, "RELEASE", release_of(files))
    return Cifar10(*data.load_cifar10(tmp_path, torch.device("cpu")))


def test_float32_is_nearer_to_float64_than_bfloat16(task):
    values = space.random_values(0)
    job = TrainJob(task, SETTINGS, values)
    start = bench.Start(SETTINGS, values, job.model.state_dict())
    batches = [job.train_batches(number) for number in range(2)]
    expected = bench.compute_gradients(task, start, batches, bench.Way(), torch.float64)
    same = bench.compare(expected, expected)
    assert same == {"error": 0.0, "along": pytest.approx(1.0), "of_mean": 0.0, "loss": 0.0}
    rows = {
        name: bench.compare(bench.compute_gradients(task, start, batches, way), expected)
        for name, way in bench.list_ways(task.device).items()
    }
    assert rows["float32"]["error"] < 0.1 < rows["bfloat16"]["error"]
    assert rows["float32"]["along"] == pytest.approx(1.0, abs=0.1)
    assert abs(rows["float32"]["loss"]) < abs(rows["bfloat16"]["loss"]) < 0.1


def test_errors_that_cancel_out_leave_the_mean():
    expected = [(1.0, torch.tensor([3.0, 4.0])), (2.0, torch.tensor([3.0, 4.0]))]
    found = [(1.5, torch.tensor([3.0, 5.0])), (2.0, torch.tensor([3.0, 3.0]))]
    row = {"error": 0.2, "along": 1.0, "of_mean": 0.0, "loss": 0.25}
    assert bench.compare(found, expected) == pytest.approx(row)


def test_the_weights_of_a_training_are_those_of_its_checkpoint(task, tmp_path):
    values = space.random_values(0)
    retrain(task, SETTINGS, values, tmp_path / "run")
    initial = TrainJob(task, SETTINGS, values).model.state_dict()
    start = bench.find_start(task, tmp_path / "run")
    assert start.settings == SETTINGS
    assert start.values == values
    assert start.weights.keys() == initial.keys()
    assert not torch.equal(start.weights["stem.0.weight"], initial["stem.0.weight"])
