"""`asng cifar10 search`, `retrain` and `evaluate`, on a release of a few images of noise."""

import json
import math
import os
import signal
from pathlib import Path
from shutil import copytree

import pytest
import requests

from asng.experiments import _figures
from asng.experiments.cifar10 import data, drawing
from asng.experiments.cifar10.drop_path import measure_cut_off
from asng.experiments.cifar10.layers import auxiliary_head
from asng.experiments.cifar10.space import SPACE, num_parameters, random_values, values_of
from asng.nas.architecture import from_json, to_json
from asng.runs import read_config
from tests.helpers.commands import (
    records_of,
    refusal,
    request_recorder,
    run,
    summary_of,
)
from tests.helpers.small_cifar10 import archive_of, random_files, release_of, server, write

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "results" / "cifar10"
IMAGES = 8  # in each file
SIZE = ["--channels", "2", "--cells", "3", "--batch-size", "4"]
TINY = [*SIZE, "--num-train-images", "24", "--epochs", "1"]


@pytest.fixture(scope="module", autouse=True)
def release(tmp_path_factory):
    """Few images in place of the official ones, found through the environment; pictures only where they are tested."""
    files = random_files(IMAGES)
    folder = write(tmp_path_factory.mktemp("data") / data.FOLDER, files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "RELEASE", release_of(files))
        patch.setenv("ASNG_DATA", str(folder.parent))
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield folder


@pytest.fixture(scope="module")
def search_run(tmp_path_factory):
    """A search with all defaults but its size: its folder, and what the command said."""
    above = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(above)
        return above / "runs" / "cifar10-asng-seed0", run("cifar10", "search", *TINY)


@pytest.fixture
def plain(monkeypatch):
    """No pictures, which take longer than all the rest."""
    monkeypatch.setattr(_figures, "draw_curves", lambda *arguments: None)
    monkeypatch.setattr(drawing, "draw_cells", lambda *arguments: None)


@pytest.fixture
def request_of(monkeypatch, tmp_path):
    """Notes what `search` and `retrain` are asked for, and ends there; in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return request_recorder(monkeypatch, "cifar10")


# Search


@pytest.mark.parametrize("verb", [["search"], ["retrain", "--architecture", "random"]], ids=["search", "retrain"])
def test_a_dry_run_says_where_the_data_is_and_what_would_be_downloaded(verb, release, tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "get", lambda *arguments, **options: pytest.fail("it downloads"))
    words = ["cifar10", *verb, *TINY, "--dry-run"]
    assert run(*words).out.splitlines()[0] == f"Data: CIFAR-10 in {release}"
    missing = run(*words, "--data", str(tmp_path), "--json")
    assert json.loads(missing.out)["data"] == (
        f"CIFAR-10 is not in {tmp_path / data.FOLDER}; the run downloads it ({data.RELEASE.size / 1e6:.0f} MB from "
        f"{data.RELEASE.url}); random images take its place here"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_retraining_counts_parameters_as_its_limit_and_names_the_auxiliary_head(release):
    words = ["cifar10", "retrain", "--architecture", "random", *TINY, "--dry-run"]
    estimate = json.loads(run(*words, "--json").out)
    assert estimate["parameters"] == num_parameters(random_values(0), 2, 3)
    head = sum(parameter.numel() for parameter in auxiliary_head(8, affine=True).parameters())
    assert estimate["training_only_parameters"] == head
    line = f"Parameters: {estimate['parameters']:,}, and {head:,} only for training, such as an auxiliary head,"
    assert f"{line} which limits do not count" in run(*words).out.splitlines()


def test_a_training_in_which_dropped_paths_cut_many_images_off_says_so_before_it_begins(tmp_path, plain):
    chain = values_of([number for node in range(5) for number in (1 + node, 1 + node, 1, 1)] * 2)
    (tmp_path / "chain.json").write_text(to_json(chain))
    words = ["cifar10", "retrain", "--architecture", tmp_path / "chain.json", *SIZE, "--num-train-images", "24"]
    says = "By the end of this training dropped paths cut 29% of the images off from the output"
    line = f"{says}, which then learns nothing from them (8% with --drop-path 0.15)"
    twice = [*words, "--epochs", "2"]  # in the second of which half of the probability is reached
    assert line in run(*twice, "--dry-run").out.splitlines()
    first, second, *_ = run(*twice, "--out", tmp_path / "run").out.splitlines()
    assert first == line
    assert second.startswith("epoch 1, ")
    assert "dropped paths" not in run(*words, "--epochs", "1", "--dry-run").out


def test_a_dry_run_of_several_seeds_says_it_of_any_of_their_random_architectures():
    words = ["cifar10", "retrain", "--architecture", "random", "--channels", "2", "--cells", "8", "--batch-size", "4"]
    lines = run(*words, "--num-train-images", "24", "--seed", "3", "--seeds", "2", "--dry-run").out.splitlines()
    (line,) = [line for line in lines if "dropped paths" in line]
    share = measure_cut_off(random_values(4), 8, 0.3 * 599 / 600).output
    assert f"cut {share:.0%} of the images" in line


def test_a_search_leaves_its_run_and_says_how_to_go_on(search_run):
    folder, done = search_run
    assert (done.code, done.err) == (0, "")
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "metrics.jsonl", "architecture.json", "summary.json", "cells.png", "cells.svg"} <= names
    lines = done.out.splitlines()
    assert lines[0].startswith("epoch 1, train loss ")
    assert all(
        word in lines[0] for word in ("step 3", "valid accuracy", "largest probability", "delta", "test accuracy")
    )
    values = from_json((folder / "architecture.json").read_text(), SPACE)
    assert lines[1] == "Found:"
    for node, line in enumerate(lines[2:12]):
        kind, number = ("normal", "reduction")[node // 5], node % 5
        slots = [(values[f"{kind}{number}.op{k}"], values[f"{kind}{number}.in{k}"]) for k in (1, 2)]
        sources = ["cell k-2", "cell k-1", *(f"node {n}" for n in range(5))]
        ends = " + ".join(f"{operation} of {sources[source]}" for operation, source in slots)
        assert line == f"{kind} node {number}: {ends}"
    *_, size, cells, cure = lines[12:]
    channels, number = (read_config(folder)[name] for name in ("channels", "cells"))
    assert size.startswith(f"{num_parameters(values, channels, number, affine=False):,} parameters")
    assert size.endswith(" with the channels of the search")
    assert cells == "Cells: runs/cifar10-asng-seed0/cells.png"
    assert cure == "Train it from scratch: asng cifar10 retrain runs/cifar10-asng-seed0"
    assert "\x1b" not in done.out  # plain when not a terminal


def test_steps_are_captured_unless_that_is_turned_off(request_of):
    assert request_of("search")[-1]["capture"]
    assert not request_of("search", "--no-capture")[-1]["capture"]


@pytest.mark.parametrize("verb", [["search"], ["retrain", "--architecture", "random"]], ids=["search", "retrain"])
def test_kernels_are_fused_unless_torchs_are_asked_for(request_of, verb):
    assert request_of(*verb)[-2].kernels == "fused"
    assert request_of(*verb, "--kernels", "torch")[-2].kernels == "torch"


@pytest.mark.long
def test_an_architecture_is_found_within_the_most_parameters(plain, tmp_path):
    sizes = sorted(num_parameters(random_values(seed), 2, 3, affine=False) for seed in range(40))
    assert run("cifar10", "search", *TINY, "--max-params", sizes[10], "--out", tmp_path).code == 0
    assert num_parameters(summary_of(tmp_path)["values"], 2, 3, affine=False) <= sizes[10]


# Retraining


@pytest.mark.long
def test_what_a_search_found_is_retrained_inside_of_its_folder(search_run, plain):
    folder, _ = search_run
    done = run("cifar10", "retrain", folder, *TINY)
    assert (done.code, done.err) == (0, "")
    inside = folder / "retrain-seed0"
    found = json.loads((folder / "architecture.json").read_text())
    assert json.loads((inside / "architecture.json").read_text()) == found
    summary = summary_of(inside)
    accuracy = 100 * summary["last"]["test_accuracy"]
    last = f"Test accuracy {accuracy:.2f} %, {summary['parameters']:,} parameters, 2 channels"
    assert done.out.splitlines()[-2:] == [last, f"Test it: asng cifar10 evaluate {inside}"]
    tested = run("cifar10", "evaluate", inside)
    result = f"Test accuracy {accuracy:.2f} % after 6 steps (trained from scratch)"
    testing = [f"testing on 8 images: {done} %" for done in (0, 100)]
    assert tested.out.splitlines() == [*testing, result]


@pytest.mark.parametrize("folder", sorted(RESULTS.glob("seed*")), ids=lambda folder: folder.name)
def test_published_searches_can_be_retrained(request_of, folder):
    values = request_of("retrain", str(folder))[1]
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert values == values_of(records[-1]["architecture"])
    assert len(records) == json.loads((folder / "config.json").read_text())["epochs"]


def test_an_architecture_may_come_from_a_file_or_from_a_seed(request_of, tmp_path):
    (tmp_path / "cell.json").write_text(to_json(random_values(8)))
    settings, values, folder, *_ = request_of("retrain", "--architecture", "cell.json", "--seed", "2")
    assert (settings.seed, values, folder) == (2, random_values(8), Path("runs/cifar10-cell-seed2"))
    _, values, folder, *_ = request_of("retrain", "--architecture", "random", "--seed", "3")
    assert (values, folder) == (random_values(3), Path("runs/cifar10-random-seed3"))
    assert request_of("retrain", "--architecture", "random", "--out", "here")[2] == Path("here")


def test_an_architecture_of_another_space_is_wrong_input(tmp_path, search_run):
    either = "give either the folder of a search, or --architecture"
    assert refusal("cifar10", "retrain", search_run[0], "--architecture", "cell.json").startswith(either)
    path = tmp_path / "cell.json"
    for content, message in (
        ('{"op": 1}', 'an architecture is {"version": 1'),
        (to_json({"layer1.channels": 64}), "the space has no 'layer1.channels'; it has normal0.in1"),
        (to_json({**random_values(0), "normal0.op1": "conv7"}), "'conv7' is outside of"),
    ):
        path.write_text(content)
        assert refusal("cifar10", "retrain", "--architecture", path).startswith(f"{path}: {message}")


# Evaluation


def test_evaluating_a_search_tests_what_it_found_with_shared_weights(search_run):
    accuracy = 100 * summary_of(search_run[0])["last"]["test_accuracy"]
    done = run("cifar10", "evaluate", search_run[0])
    what = "the architecture found so far, with shared weights"
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"Test accuracy {accuracy:.2f} % after 3 steps ({what})"


# Data


def test_a_run_of_another_kind_is_refused_by_its_kind(search_run, tmp_path):
    folder = tmp_path / "darts0"
    copytree(search_run[0], folder)
    config = read_config(folder)
    (folder / "config.json").write_text(json.dumps({**config, "kind": "darts"}))
    assert refusal("cifar10", "evaluate", str(folder)) == (
        f"{folder} holds a run of 'darts'; give one of asng cifar10 search or asng cifar10 retrain, "
        "which trains what others found"
    )


def test_damaged_or_missing_data_is_one_line_and_leaves_no_run(tmp_path, release):
    for name in data.RELEASE.files:
        (tmp_path / name).write_bytes((release / name).read_bytes())
    (tmp_path / "data_batch_3.bin").write_bytes(b"short")
    words = ["--data", tmp_path, "--out", tmp_path / "run"]
    assert refusal("cifar10", "search", *words).startswith(f"{tmp_path / 'data_batch_3.bin'} has 5 bytes, not 24,584; ")
    (tmp_path / "data_batch_3.bin").unlink()
    assert refusal("cifar10", "search", *words).startswith(f"{tmp_path} lacks data_batch_3.bin; ")
    nothing = tmp_path / "nothing" / data.FOLDER
    error = refusal("cifar10", "retrain", "--architecture", "random", "--data", nothing, "--out", tmp_path / "run")
    assert error.startswith(f"CIFAR-10 is not in {nothing} and could not be downloaded (")
    assert not (tmp_path / "run").exists()
    assert refusal("cifar10", "search", "--device", "gpu").startswith("there is no device 'gpu'")


@pytest.mark.long
@pytest.mark.parametrize("interrupt", [False, True])
def test_a_download_has_a_bar_and_ctrl_c_in_it_promises_nothing(plain, tmp_path, monkeypatch, interrupt):
    def press_ctrl_c(answer, size, whole=requests.Response.iter_content):
        for chunk in whole(answer, size):
            yield chunk
            os.kill(os.getpid(), signal.SIGINT)

    if interrupt:
        monkeypatch.setattr(requests.Response, "iter_content", press_ctrl_c)
    with server(monkeypatch, archive_of(random_files(IMAGES))):
        done = run("cifar10", "search", *TINY, "--no-test", "--data", tmp_path / "new", "--out", tmp_path / "run")
    if interrupt:
        assert (done.code, done.err) == (130, "Interrupted.\n")
        assert list(tmp_path.iterdir()) == []
    else:
        assert done.code == 0
        assert "download: 100 %\nepoch 1, " in done.out
        again = run("cifar10", "search", *TINY, "--no-test", "--data", tmp_path / "new", "--out", tmp_path / "run")
        assert "download:" not in again.out


def test_ctrl_c_while_data_is_read_is_no_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_read", lambda *arguments: os.kill(os.getpid(), signal.SIGINT))
    done = run("cifar10", "search", *TINY, "--out", tmp_path / "run")
    assert (done.code, done.out, done.err) == (130, "", "Interrupted.\n")


REAL, OFFICIAL = os.environ.get("ASNG_DATA"), data.RELEASE


@pytest.mark.long
@pytest.mark.skipif(REAL is None, reason="ASNG_DATA names no folder of data")
def test_a_search_on_real_images(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "RELEASE", OFFICIAL)
    words = ["--small", "--epochs", "1", "--num-train-images", "512", "--num-test-images", "200"]
    assert run("cifar10", "search", *words, "--data", REAL, "--out", tmp_path).code == 0
    (record,) = records_of(tmp_path)
    assert math.isfinite(record["train_loss"])
    assert 0 < record["test_accuracy"] < 1
