"""Other searches of the CIFAR-10 space: first-order DARTS, the authors' procedure, and their table."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cifar10_others as bench
import darts
import pytest
import torch

from asng import nas
from asng.experiments.cifar10 import data, space
from asng.experiments.cifar10.network import Net
from asng.experiments.cifar10.task import Cifar10DataSettings
from asng.runs import ARCHITECTURE, CONFIG, METRICS, SUMMARY, make_config, write_json
from tests.helpers.small_cifar10 import random_files, release_of, write

FLAGS: dict[str, Any] = {
    "epochs": 2,
    "channels": 2,
    "cells": 3,
    "batch_size": 4,
    "num_train_images": 16,
    "num_test_images": 16,
}
TIMES = ("seconds", "images_per_second")


@pytest.fixture
def where(tmp_path, monkeypatch):
    files = random_files(16)
    write(tmp_path / data.FOLDER, files)
    monkeypatch.setattr(data, "RELEASE", release_of(files))
    return Cifar10DataSettings(tmp_path, "cpu")


def metrics_of(folder):
    lines = (folder / METRICS).read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def mixed_net(seed=0):
    torch.manual_seed(seed)
    return darts.MixedNet(Net(channels=2, cells=3))


def test_a_node_has_all_operations_on_all_states_before_it():
    net = mixed_net()
    assert [net.alphas[kind].shape for kind in space.CELL_KINDS] == [(20, 5)] * 2
    net(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_an_architecture_in_the_mixed_network_is_that_of_the_search():
    values = {name: 0 if ".in" in name else value for name, value in space.random_values(0).items()}  # all ends loose
    torch.manual_seed(0)
    net, images = Net(channels=2, cells=3), torch.randn(4, 3, 32, 32)
    expected = nas.extract(net, values)(images)
    assert torch.allclose(darts.MixedNet(net)(images, values), expected, atol=1e-5)


def test_what_is_found_has_the_two_heaviest_edges_of_each_node():
    alphas = mixed_net().alphas
    with torch.no_grad():
        for kind in alphas.values():
            kind.zero_()
        alphas["reduction"][9 + 1, 3] = 2.0  # node 3 begins at edge 2 + 3 + 4
        alphas["reduction"][9 + 4, 0] = 1.0
    found = darts.derive(alphas)
    assert set(found) == set(space.SPACE)
    assert [found[f"reduction3.{part}"] for part in ("in1", "op1", "in2", "op2")] == [1, "sep_conv3", 4, "identity"]
    assert all(found[f"{kind}{n}.in1"] != found[f"{kind}{n}.in2"] for kind in space.CELL_KINDS for n in range(5))


@pytest.mark.slow
def test_validation_images_move_the_logits_and_training_images_the_weights(where):
    job = bench.Darts(bench.Cifar10.load(where), bench.Cifar10SearchSettings(**FLAGS))

    def copies():
        return [p.detach().clone() for p in job.mixed.weights()], [
            p.detach().clone() for p in job.mixed.alphas.values()
        ]

    weights, alphas = copies()
    job._alpha_step(job.valid_batches(0))
    assert all(map(torch.equal, copies()[0], weights))
    assert not any(map(torch.equal, copies()[1], alphas))
    _, alphas = copies()
    job._weight_step(job.train_batches(0))
    assert not any(map(torch.equal, copies()[0], weights))
    assert all(map(torch.equal, copies()[1], alphas))
    assert not set(job._halves[0].tolist()) & set(job._halves[1].tolist())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kernels", ["fused", "torch"])
def test_on_a_gpu_both_steps_are_captured(kernels, where, monkeypatch):
    task = bench.Cifar10.load(Cifar10DataSettings(where.data, "cuda", kernels))

    def losses():
        job = bench.Darts(task, bench.Cifar10SearchSettings(**{**FLAGS, "channels": 8}))
        return [float(loss) for index in range(3) for loss in job.step(index).values()]

    captured = losses()
    monkeypatch.setattr(bench.TrainStep, "_replay", bench.TrainStep._step)
    assert captured == pytest.approx(losses(), rel=1e-2)


@pytest.mark.long
@pytest.mark.parametrize("method", bench.METHODS)
def test_an_interrupted_search_ends_as_an_uninterrupted_one(method, where, tmp_path, monkeypatch):
    bench.run_seed(method, tmp_path / "whole", where, FLAGS, 1)
    steps = bench.JOBS[method].step

    def interrupt(job, index):
        if index == 3:
            raise KeyboardInterrupt
        return steps(job, index)

    monkeypatch.setattr(bench.JOBS[method], "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.run_seed(method, tmp_path / "parts", where, FLAGS, 1)
    assert not bench.is_finished(tmp_path / "parts" / f"{method}1")
    monkeypatch.setattr(bench.JOBS[method], "step", steps)
    bench.run_seed(method, tmp_path / "parts", where, FLAGS, 1)
    whole, parts = (tmp_path / name / f"{method}1" for name in ("whole", "parts"))
    assert metrics_of(whole) == metrics_of(parts)
    assert len(metrics_of(whole)) == 2
    assert (whole / ARCHITECTURE).read_text() == (parts / ARCHITECTURE).read_text()
    found = space.values_of(metrics_of(whole)[-1]["architecture"])
    assert json.loads((whole / SUMMARY).read_text())["values"] == found


@pytest.mark.slow
def test_finished_seeds_are_shown_and_skipped(where, tmp_path, monkeypatch):
    (tmp_path / "runs" / "darts0").mkdir(parents=True)  # not finished
    assert bench.show_table(tmp_path / "runs") == f"there are no finished runs in {tmp_path / 'runs'}"
    bench.run_seed("authors", tmp_path / "runs", where, FLAGS, 0)
    *_, row = table = bench.show_table(tmp_path / "runs").splitlines()
    assert len(table) == 3
    assert row.startswith("| authors' procedure | 0 | 2 | ")
    monkeypatch.setattr(bench, "JOBS", {})
    bench.run_seed("authors", tmp_path / "runs", where, FLAGS, 0)


def test_a_finished_search_of_other_settings_is_refused(tmp_path):
    (tmp_path / "darts0").mkdir()
    settings = bench.Cifar10SearchSettings(**FLAGS)
    write_json(tmp_path / "darts0" / CONFIG, make_config("cifar10", "darts", settings))
    write_json(tmp_path / "darts0" / SUMMARY, {})
    bench.run_seed("darts", tmp_path, Cifar10DataSettings(), FLAGS, 0)
    with pytest.raises(ValueError, match=r"darts0 holds a run of other settings \(epochs: 2 there, 25 here\)"):
        bench.run_seed("darts", tmp_path, Cifar10DataSettings(), {**FLAGS, "epochs": 25}, 0)


def test_zero_epochs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        bench, "run_parallel", lambda function, seeds, workers: ((seed, function(seed)) for seed in seeds)
    )
    with pytest.raises(SystemExit, match="epochs must be at least 1, got 0"):
        bench.main(["darts", "--epochs", "0", "--device", "cpu", "--out", str(tmp_path)])


SIGNALLED = """
import signal, sys, cifar10_others

def run_parallel(*_):
    signal.raise_signal(signal.SIGTERM)
    yield

cifar10_others.run_parallel = run_parallel
cifar10_others.main(["darts", "--out", sys.argv[1]])
"""


@pytest.mark.slow
def test_sigterm_is_answered_as_ctrl_c(tmp_path):
    path = os.pathsep.join([str(Path(bench.__file__).parent), *filter(None, sys.path)])
    process = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 130
    assert process.stderr.endswith(f"Interrupted. Finished parts are in {tmp_path}; the same command continues.\n")
