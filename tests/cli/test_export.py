"""`asng export`: networks of runs of all experiments, in a process without asng."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from asng import Integer, minimize, nas
from asng._progress import no_progress
from asng.cli import EXPERIMENTS, commands, parts_of_command
from asng.cli.flags import flags_of
from asng.experiments import _export, _figures, digits
from asng.experiments.cifar10 import data, drawing
from asng.experiments.cifar10.task import Cifar10
from asng.experiments.inpainting.task import Inpainting
from asng.nas._checkpoints import Checkpoint
from asng.nas._loop import run_job
from asng.nas.export import FILES
from tests.helpers.commands import refusal, run, unexplained_flags
from tests.helpers.elsewhere import WITH_ONNXRUNTIME, WITH_SOURCE, WITH_TORCH, run_elsewhere
from tests.helpers.searches import run_search
from tests.helpers.small_cifar10 import random_files, release_of, write

pytestmark = pytest.mark.slow

CIFAR10 = ["--channels", "2", "--cells", "3", "--batch-size", "4", "--num-train-images", "24", "--epochs", "1"]
FACES = ["--iterations", "2", "--checkpoint-every", "2", "--batch-size", "2"]
DIGITS = ["--epochs", "2", "--training-epochs", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a run of each kind, on few images, none of which is there afterwards but CIFAR-10's."""
    above = tmp_path_factory.mktemp("runs")
    files = random_files(8)
    images = write(above / "data" / data.FOLDER, files)
    faces = above / "faces"
    faces.mkdir()
    for number in range(12):
        Image.new("RGB", (64, 64), (20 * number, 200, 100)).save(faces / f"{number:02}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(above)
        patch.setattr(data, "RELEASE", release_of(files))
        patch.setattr(_figures, "draw_curves", lambda *arguments: None)
        patch.setattr(drawing, "draw_cells", lambda *arguments: None)
        where = ["--data", str(images.parent)]
        assert run("cifar10", "search", *CIFAR10, *where, "--out", "cells").code == 0
        assert run("cifar10", "retrain", "cells", *CIFAR10, *where, "--out", "trained-cells").code == 0
        there = ["--data", str(faces)]
        space = ["--layers", "4", "--widths", "2", "4"]
        assert run("inpainting", "search", *space, *FACES, *there, "--out", "chain").code == 0
        assert run("inpainting", "retrain", "chain", *FACES, *there, "--out", "trained-chain").code == 0
        assert run("digits", "search", *DIGITS, "--out", "digits").code == 0
        shutil.rmtree(faces)
        yield above


def network_of(name, above):
    if name == "digits":
        return _export.load_digits_run(above / name).network
    task = Cifar10 if "cells" in name else Inpainting
    return _export.load_image_run(task, above / name, above / "data", no_progress).network


WORDS = {
    "cells": "Weights: shared weights of the search, with batch statistics of this architecture, after 3 steps",
    "trained-cells": "Weights: trained from scratch, after 6 steps",
    "chain": "Weights: shared weights of the search after 2 steps",
    "trained-chain": "Weights: trained from scratch, after 2 steps",
    "digits": "Weights: trained from scratch as in the run, with seed 0; test accuracy ",
}


@pytest.mark.long
@pytest.mark.parametrize("name", WORDS)
def test_the_network_of_a_run_runs_elsewhere_and_computes_the_same(name, runs):
    out = runs / f"{name}-exported"
    needed = ["--data", str(runs / "data")] if name == "cells" else []
    done = run("export", str(runs / name), "--out", str(out), *needed)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(WORDS[name])
    assert {path.name for path in out.iterdir()} == set(FILES.values())
    network = network_of(name, runs).eval()
    saved = json.loads((out / "architecture.json").read_text())
    found = json.loads((runs / name / "architecture.json").read_text())
    assert saved == found
    size = (1, 8, 8) if name == "digits" else (3, 32, 32) if "cells" in name else (3, 64, 64)
    inputs = {batch: torch.rand(batch, *size) for batch in (1, 5)}
    for batch, x in inputs.items():
        torch.save(x, out / f"in{batch}.pt")
        np.save(out / f"in{batch}.npy", x.numpy())
    for program, forbidden, tolerance in [
        (WITH_SOURCE, ["asng"], 0.0),
        (WITH_TORCH, ["asng"], 1e-5),
        (WITH_ONNXRUNTIME, ["asng", "torch"], 1e-4),
    ]:
        run_elsewhere(program, out, forbidden)
        for batch, x in inputs.items():
            with torch.no_grad():
                expected = network(x)
            path = out / f"out{batch}"
            is_onnx = program is WITH_ONNXRUNTIME
            output = torch.from_numpy(np.load(f"{path}.npy")) if is_onnx else torch.load(f"{path}.pt")
            torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.long
def test_the_digits_network_is_the_one_that_the_run_tested(runs):
    lines = (runs / "digits" / "results.jsonl").read_text().splitlines()
    tested = next(record for record in map(json.loads, lines) if record["kind"] == "found")
    exported = _export.load_digits_run(runs / "digits")
    assert exported.values == tested["values"]
    assert digits.accuracy_of(exported.network, digits.load_split(0).test) == tested["accuracy"]


def test_auxiliary_heads_and_cells_that_do_not_run_are_left_out(runs):
    from safetensors.torch import load_file

    done = run("export", str(runs / "trained-cells"), "--format", "safetensors", "--out", str(runs / "weights"))
    assert done.code == 0
    names = load_file(runs / "weights" / "weights.safetensors").keys()
    full = network_of("trained-cells", runs).state_dict().keys()
    assert any(name.startswith("auxiliary") for name in full)
    assert not any(name.startswith("auxiliary") for name in names)


def test_a_search_that_goes_on_gives_the_most_likely_architecture_so_far(runs):
    settings = digits.DigitsSettings(epochs=2, training_epochs=1)
    folder = runs / "going-on"
    shutil.copytree(runs / "digits", folder)
    (folder / "results.jsonl").unlink()
    config = json.loads((folder / "config.json").read_text())
    checkpoint = Checkpoint(folder / "checkpoint.pt", config)
    data_of_seed = digits.load_split(0)
    oneshot, job = digits.make_search(settings, data_of_seed)
    with digits.one_thread():
        run_job(job, epochs=2, checkpoint=checkpoint)
    done = run("export", str(folder), "--format", "json")
    assert (done.code, done.err) == (0, "")
    assert "shared weights of the search, with batch statistics of this architecture, after 18 steps" in done.out
    assert "not finished" in done.out
    saved = nas.from_json((folder / "export" / "architecture.json").read_text(), nas.space_of(digits.Net()))
    assert saved == nas.top(oneshot)[0].values


def test_an_export_is_not_overwritten(runs):
    out = runs / "once"
    words = ["export", str(runs / "trained-chain"), "--format", "json", "--out", str(out)]
    assert run(*words).code == 0
    assert "architecture.json exists already and is not overwritten" in refusal(*words)


def test_the_help_explains_all_flags_with_examples():
    done = run("export", "--help")
    assert done.code == 0
    assert "asng export runs/digits" in done.out
    assert unexplained_flags(done.out) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"experiment": "toy", "kind": "sweep"}, "is a run of 'toy', which has no network; asng export takes cifar10"),
        ({"experiment": "digits", "kind": "tune"}, "is an asng digits tune; asng export takes asng digits search"),
        ({"experiment": "cifar10", "kind": "search"}, "checkpoint.pt yet; let the run get that far"),
        ({"experiment": ["digits"]}, "which has no network"),
        ({"experiment": "9" * 5000}, "999..., which has no network"),
        ({"experiment": "digits", "kind": "search"}, "is damaged (it has no 'epochs')"),
    ],
)
def test_a_run_without_a_network_is_refused_in_one_line(config, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert message in refusal("export", str(tmp_path))


@pytest.mark.parametrize("given", ["mine", "mine.pt"])
def test_a_search_of_ones_own_is_told_the_call_that_exports_it(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(4, 8), nas.OneOf("act", [nn.ReLU(), nn.Tanh()]), nn.Linear(8, 3))
    result = run_search(model, checkpoint="mine.pt")
    result.save("mine", {"experiment": "my own"})
    said = refusal("export", given)
    assert said.startswith(
        {"mine": "mine is a search of your own", "mine.pt": "mine.pt is a file, not the folder"}[given]
    )
    if given == "mine":
        assert "the same nas.search call with its checkpoint continues it" in refusal("resume", given)
    (call,) = re.findall(r"nas\.export\(.*?\)", said)
    files = eval(call, {"nas": nas, "result": result, "inputs": torch.zeros(3, 4)})
    assert {path.parent for path in files.values()} == {Path("mine/export")}
    assert (
        nas.from_json(Path("mine/export/architecture.json").read_text(), result.arch_optimizer.space) == result.values
    )


@pytest.mark.parametrize(
    "settings", [{"experiment": name} for name in EXPERIMENTS] + [{"kind": "training"}, {}], ids=str
)
def test_a_search_of_ones_own_is_one_whatever_its_settings_call_it(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_search(nn.Sequential(nas.OneOf("act", [nn.ReLU(), nn.Tanh()]), nn.Linear(4, 3))).save("mine", settings)
    for verb in ("export", "resume"):
        assert refusal(verb, "mine").startswith("mine is a search of your own")
    for verb in ("retrain", "evaluate"):
        assert "mine is not a run of cifar10, but a search of your own" in refusal("cifar10", verb, "mine")
    (listed,) = json.loads(run("runs", ".", "--json").out)["runs"]
    assert listed["state"] == "finished"
    assert run("report", "mine").code == 0


@pytest.mark.parametrize("verb", ["report", "resume"])
def test_a_checkpoint_is_told_that_the_same_call_continues_it(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    minimize(lambda values: values["n"], {"n": Integer(1, 9)}, evaluations=2, checkpoint="mine.json", progress=False)
    cure = "the same call continues a checkpoint of nas.search or asng.minimize"
    assert refusal(verb, "mine.json") == f"mine.json is a file, not the folder of a run; {cure}"


def test_no_setting_of_a_command_is_that_of_saved_results():
    names = {flag.name for command in commands() for flag in flags_of(*parts_of_command(command))}
    assert "optimizer" not in names


def test_a_damaged_checkpoint_is_refused(runs, tmp_path):
    shutil.copytree(runs / "trained-chain", tmp_path / "damaged")
    (tmp_path / "damaged" / "checkpoint.pt").write_bytes(b"PK nothing")
    assert "is damaged or no checkpoint" in refusal("export", str(tmp_path / "damaged"))
