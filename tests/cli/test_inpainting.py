"""`asng inpainting search`, `retrain` and `evaluate`, on a folder of small images of one color each."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from asng.cli import images
from asng.experiments import _figures
from asng.experiments.inpainting.encoding import base_values, chain, depth, random_values, search_space
from asng.nas.architecture import to_json
from asng.runs import CHECKPOINT
from tests.helpers.commands import (
    records_of,
    refusal,
    request_recorder,
    run,
    summary_of,
    wait_until,
)

pytestmark = pytest.mark.slow

SPACE = ["--layers", "3", "--widths", "2", "4"]
STEPS = ["--iterations", "2", "--checkpoint-every", "2", "--batch-size", "2"]
TINY = [*SPACE, *STEPS]


def fill(folder, n=12):
    folder.mkdir()
    for number in range(n):
        Image.new("RGB", (70, 64), (20 * number, 255 - 20 * number, 100)).save(folder / f"{number:02}.png")
    return folder


@pytest.fixture(scope="module", autouse=True)
def faces(tmp_path_factory):
    """A folder of images, found through the environment."""
    folder = fill(tmp_path_factory.mktemp("data") / "faces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASNG_DATA", str(folder.parent))
        yield folder


@pytest.fixture(scope="module")
def search_run(tmp_path_factory):
    """A search with another mask than the default: its folder, and what the command said."""
    above = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(above)
        return above / "runs" / "inpainting-int-half-asng-seed0", run("inpainting", "search", *TINY, *INT)


INT = ["--encoding", "int", "--mask", "half"]


@pytest.fixture
def plain(monkeypatch):
    """No curves, which take longer than all the rest."""
    monkeypatch.setattr(_figures, "draw_curves", lambda *arguments: None)


@pytest.fixture
def request_of(monkeypatch, tmp_path):
    """Notes what `search` and `retrain` are asked for, and ends there; in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return request_recorder(monkeypatch, "inpainting")


# Search


def test_a_search_is_captured_unless_torchs_kernels_are_asked_for(request_of):
    assert request_of("search")[-2].is_capturable
    assert not request_of("search", "--kernels", "torch")[-2].is_capturable


def test_a_search_leaves_its_run_and_says_what_it_found_and_how_to_go_on(search_run):
    folder, done = search_run
    assert (done.code, done.err) == (0, "")
    assert {"config.json", "metrics.jsonl", "architecture.json", "summary.json"} <= {p.name for p in folder.iterdir()}
    lines = done.out.splitlines()
    assert "11 faces to train with, 1 to test with (drawn with seed 0)" in lines
    (record,) = [line for line in lines if line.startswith("checkpoint 1, train loss ")]
    assert all(word in record for word in ("step 2", "valid loss", "largest probability", "delta", "test psnr"))
    assert lines[lines.index("Found (the other layers are inactive):") + 1 :] == [
        *summary_of(folder)["chain"],
        "Train it from scratch: asng inpainting retrain runs/inpainting-int-half-asng-seed0",
    ]
    assert "\x1b" not in done.out  # plain when not a terminal


def test_without_tests_nothing_is_tested_and_a_limit_holds(plain, tmp_path):
    done = run("inpainting", "search", *TINY, "--no-test", "--max-params", "2000", "--out", tmp_path)
    assert done.code == 0
    assert "test_psnr" not in records_of(tmp_path)[0]
    assert 0 < records_of(tmp_path)[0]["feasible"] <= 1
    assert summary_of(tmp_path)["feasible"]


@pytest.mark.long
def test_beside_a_running_search_others_may_read_but_not_write(plain, tmp_path):
    words = ["inpainting", "search", *SPACE, "--batch-size", "2", "--iterations", "80", "--checkpoint-every", "2"]
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert run(*words, "--out", whole).code == 0
    command = [sys.executable, "-m", "asng", *words, "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as first:
        wait_until(lambda: (folder / CHECKPOINT).exists() or first.poll() is not None)
        os.kill(first.pid, signal.SIGSTOP)  # it is there, and does not go on meanwhile
        said = refusal(*words, "--out", folder)
        assert re.match(rf"{folder} is in use by process {first.pid} on .* since \d{{4}}-\d\d-\d\d ", said)
        assert run("inpainting", "evaluate", folder).code == 0
        assert (folder / "evaluation.json").exists()
        os.kill(first.pid, signal.SIGKILL)
    done = run(*words, "--out", folder)
    assert (done.code, done.err) == (0, "")
    assert records_of(folder) == records_of(whole)
    assert {**summary_of(folder), "last": 0} == {**summary_of(whole), "last": 0}
    evaluated = {"evaluation.json", "restored.png"}
    assert {path.name for path in folder.iterdir()} - evaluated == {path.name for path in whole.iterdir()}


# Retraining


def test_what_a_search_found_is_retrained_behind_its_mask_and_evaluated(search_run, plain):
    folder, _ = search_run
    done = run("inpainting", "retrain", folder, *STEPS)
    assert (done.code, done.err) == (0, "")
    inside = folder / "retrain-seed0"
    assert json.loads((inside / "config.json").read_text())["mask"] == "half"
    found = json.loads((folder / "architecture.json").read_text())
    assert json.loads((inside / "architecture.json").read_text()) == found
    summary = summary_of(inside)
    ends = [f"{summary['parameters']:,} parameters", f"Test it: asng inpainting evaluate {inside}"]
    assert done.out.splitlines()[-len(summary["chain"]) - 2 :] == [*summary["chain"], *ends]
    tested = run("inpainting", "evaluate", inside)
    assert (tested.code, tested.err) == (0, "")
    report = json.loads((inside / "evaluation.json").read_text())
    assert (report["kind"], report["steps"], report["images"]) == ("retrain", 2, 1)
    shown = f"PSNR {report['psnr']:.2f} dB, SSIM {report['ssim']:.4f} on 1 faces"
    assert tested.out.splitlines()[1:] == [
        "testing on 1 faces: 0 %",
        "testing on 1 faces: 100 %",
        shown,
        f"Picture: {inside / 'restored.png'}",
    ]
    assert (inside / "restored.png").exists()


def test_other_pictures_are_restored_beside_the_test_faces(search_run, plain, tmp_path):
    folder = tmp_path / "retrained"
    assert run("inpainting", "retrain", search_run[0], *STEPS, "--out", folder).code == 0
    others = fill(tmp_path / "others", 2)
    (others / "torn.png").write_bytes(b"no image")
    done = run("inpainting", "evaluate", folder, "--pictures", others)
    assert (done.code, done.err) == (0, "")
    assert any(line.startswith("Left out: torn.png") for line in done.out.splitlines())
    report = json.loads((folder / "evaluation-others.json").read_text())
    assert [one["image"] for one in report["per_image"]] == ["00.png", "01.png"]
    assert done.out.splitlines()[-1] == f"Picture: {folder / 'restored-others.png'}"
    assert (folder / "restored-others.png").exists()
    assert not (folder / "evaluation.json").exists()
    assert "there is no folder" in refusal("inpainting", "evaluate", folder, "--pictures", tmp_path / "none")


def test_other_pictures_need_no_other_data(search_run, plain, tmp_path, monkeypatch):
    monkeypatch.setenv("ASNG_DATA", str(tmp_path / "gone"))
    assert run("inpainting", "evaluate", search_run[0], "--pictures", fill(tmp_path / "one", 1)).code == 0
    assert (search_run[0] / "evaluation-one.json").exists()


def test_test_faces_of_other_data_are_refused(search_run, tmp_path):
    error = refusal("inpainting", "evaluate", search_run[0], "--data", fill(tmp_path / "others", 5))
    assert re.search(r"other faces \(11 to train.*than these \(4 to train.*--data and lists, or .* --pictures", error)


def test_another_mask_may_be_given(request_of, search_run):
    assert request_of("retrain", search_run[0])[0].mask == "half"
    assert request_of("retrain", search_run[0], "--architecture", "base")[0].mask == "half"
    assert request_of("retrain", search_run[0], "--mask", "pixel")[0].mask == "pixel"
    assert request_of("retrain", search_run[0], "--mask=center")[0].mask == "center"
    assert request_of("retrain", "--architecture", "random")[0].mask == "center"


def test_trainings_with_another_mask_have_folders_of_their_own(request_of, search_run):
    folder = search_run[0]
    for words, names in (
        ((), ("retrain-seed0", "retrain-pixel-seed0")),
        (("--architecture", "base"), ("base-seed0", "base-pixel-seed0")),
        (("--architecture", "random", "--seed", "2"), ("random-seed2", "random-pixel-seed2")),
    ):
        for masks, name in zip(((), ("--mask", "half"), ("--mask", "pixel")), (names[0], *names), strict=True):
            assert request_of("retrain", folder, *words, *masks)[2] == folder / name
    assert request_of("retrain", folder, "--mask", "pixel", "--out", "here")[2] == Path("here")


@pytest.mark.slow
def test_a_dry_run_says_where_the_faces_are(faces):
    assert f"Data: faces in {faces}" in run("inpainting", "search", *TINY, "--dry-run").out.splitlines()


@pytest.mark.long
def test_it_is_said_how_many_of_the_faces_are_used(faces, tmp_path):
    for count, said in (("4", "4 of 11 faces"), ("11", "11 faces"), ("50", "11 faces")):
        done = run("inpainting", "search", *TINY, "--num-train-images", count, "--out", tmp_path / count)
        assert done.out.startswith(f"{said} to train with, 1 to test with")


def test_an_architecture_is_read_from_a_file_or_drawn_by_seed(request_of, tmp_path):
    for encoding in ("cat", "int"):
        values = random_values(search_space(encoding, 4, widths=(3, 7)), seed=1)
        (tmp_path / "network.json").write_text(to_json(values))
        assert request_of("retrain", "--architecture", "network.json")[1:3] == (
            values,
            Path("runs/inpainting-network-seed0"),
        )
    random_split = request_of("retrain", "--architecture", "random", "--seed", "3")
    assert random_split[1:3] == (random_values(search_space("cat"), 3), Path("runs/inpainting-random-seed3"))


def test_baselines_beside_a_search_are_of_its_space(request_of, search_run):
    folder, _ = search_run
    space = search_space("int", 3, widths=(2, 4))
    random_split = request_of("retrain", folder, "--architecture", "random", "--seed", "5")
    assert random_split[1:3] == (random_values(space, 5), folder / "random-seed5")
    found = json.loads((folder / "architecture.json").read_text())["values"]
    _, values, where, *_ = request_of("retrain", folder, "--architecture", "base")
    assert where == folder / "base-seed0"
    assert values == base_values(space, depth(found), channels=4)
    assert {(layer.kernel, layer.skip, layer.channels) for layer in chain(values)} == {(3, True, 4)}
    assert request_of("retrain", folder, "--architecture", "base", "--out", "here")[2] == Path("here")


@pytest.mark.parametrize(("encoding", "widths", "channels"), [("cat", [48, 96], 48), ("int", [100, 120], 100)])
def test_base_has_the_channels_of_the_space_that_are_nearest_to_64(request_of, tmp_path, encoding, widths, channels):
    settings = {"experiment": "inpainting", "kind": "search", "encoding": encoding, "layers": 4, "widths": widths}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "architecture.json").write_text(to_json(random_values(search_space(encoding, 4, widths=widths), 1)))
    _, values, *_ = request_of("retrain", tmp_path, "--architecture", "base")
    assert {(layer.kernel, layer.skip, layer.channels) for layer in chain(values)} == {(3, True, channels)}


def test_base_is_as_deep_as_what_runs_and_has_64_channels(request_of, tmp_path):
    settings = {"experiment": "inpainting", "kind": "search", "encoding": "cat", "layers": 20, "widths": None}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    halving = {f"layer{number}.type": "3x3 down" for number in range(1, 21)}  # from 64x64 to 1x1 takes six of them
    found = base_values(search_space("cat"), 12) | halving
    (tmp_path / "architecture.json").write_text(to_json(found))
    _, values, *_ = request_of("retrain", tmp_path, "--architecture", "base")
    assert [(layer.kernel, layer.skip, layer.channels) for layer in chain(values)] == [(3, True, 64)] * 6


def test_an_architecture_of_no_autoencoder_is_wrong_input(tmp_path, search_run):
    path = tmp_path / "network.json"
    said = "give either the folder of a search, or --architecture with a JSON file or the word random or base"
    assert refusal("inpainting", "retrain", search_run[0], "--architecture", path) == said
    assert refusal("inpainting", "retrain", "--architecture", "base").startswith("base has as many layers as")
    values = base_values(search_space("cat", 3, widths=(2, 4)), 2, channels=2)
    for content, message in (
        (to_json({"normal0.in1": 1}), "this is not an autoencoder: "),
        (to_json({**values, "layer2.channels": "many"}), "this is not an autoencoder: "),
        (to_json({**values, "layer1.type": "7x7 skip"}), "'7x7 skip' is outside of"),
        (to_json({**values, "layer2.connection": 3}), "3 is outside of"),  # it would lead in a circle
        (to_json({k: v for k, v in values.items() if k != "output.connection"}), "no value for 'output.connection'"),
    ):
        path.write_text(content)
        assert refusal("inpainting", "retrain", "--architecture", path).startswith(f"{path}: {message}")


def test_baselines_need_a_search_that_has_finished(tmp_path):
    (tmp_path / "config.json").write_text('{"experiment": "cifar10", "kind": "search"}')
    words = ["inpainting", "retrain", tmp_path, "--architecture"]
    for word in ("base", "random"):
        assert refusal(*words, word).startswith(
            f"{tmp_path} is not a run of inpainting: its config.json says 'cifar10'"
        )
    (tmp_path / "config.json").write_text('{"experiment": "inpainting", "kind": "retrain"}')
    for word in ("base", "random"):
        assert (
            refusal(*words, word) == f"{tmp_path} is not a search; --architecture {word} needs the folder of a search"
        )
    settings = {"experiment": "inpainting", "kind": "search", "encoding": "cat", "layers": 3, "widths": [2, 4]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert refusal(*words, "base").startswith(f"there is no {tmp_path / 'architecture.json'} yet; let the run get that")


def test_evaluating_a_search_tests_what_it_found(search_run):
    done = run("inpainting", "evaluate", search_run[0])
    assert done.code == 0
    last = summary_of(search_run[0])["last"]
    assert f"PSNR {last['test_psnr']:.2f} dB, SSIM {last['test_ssim']:.4f} on 1 faces\n" in done.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seed", "1"], "seed: 0 there, 1 here"),
        (["--lr", "0.5"], "lr: 0.025 there, 0.5 here"),
        (["--iterations", "4"], "iterations: 2 there, 4 here"),
    ],
)
def test_the_checkpoint_of_a_run_with_one_other_setting_is_refused(search_run, plain, tmp_path, flags, message):
    words = ["inpainting", "search", *TINY, *INT, *flags, "--out", tmp_path]
    assert run(*words).code == 0
    ours = tmp_path / CHECKPOINT
    ours.write_bytes((search_run[0] / CHECKPOINT).read_bytes())
    for again in (words, ["inpainting", "evaluate", tmp_path]):
        assert refusal(*again).startswith(
            f"{ours} is of another run ({message}); to continue it, restore these settings; "
        )


def test_evaluating_does_not_write_through_links(search_run, tmp_path):
    precious = tmp_path / "precious"
    for name in ("restored-faces.png", "evaluation-faces.json"):
        precious.write_text("precious")
        (search_run[0] / name).symlink_to(precious)
    fill(tmp_path / "faces")
    assert run("inpainting", "evaluate", search_run[0], "--pictures", tmp_path / "faces").code == 0
    assert precious.read_text() == "precious"


# Data


def test_faces_are_read_once_and_what_is_damaged_is_said(request_of, tmp_path):
    folder = fill(tmp_path / "some")
    names = ["broken.png", "broken:cat:.png", "broken[/x].png", "broken[red].png"]
    (folder / "broken[").mkdir()
    for name in [*names, "other1.png", "other2.png", "other3.png"]:
        (folder / name).write_text("no image")
    out = []
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(images, "search", lambda *arguments, **options: {"feasible": True, "chain": [], "last": {}})
            out.append(run("inpainting", "search", "--data", folder).out.splitlines())
    assert out[0][:2] == ["reading faces: 0 %", "reading faces: 100 %"]
    assert out[0][2:] == out[1]  # no bar where there is nothing to do
    assert out[1][0] == "11 faces to train with, 1 to test with (drawn with seed 0)"
    assert [line.split(" (")[0] for line in out[1][1:6]] == [f"Left out: {name}" for name in [*names, "other1.png"]]
    assert out[1][6] == "... and 2 more"


def test_lists_are_given_together_and_split_the_faces(request_of, faces, tmp_path):
    for name, numbers in (("train.txt", range(5)), ("test.txt", range(5, 8))):
        (tmp_path / name).write_text("".join(f"{number:02}.png\n" for number in numbers))
    lists = ["--train-list", tmp_path / "train.txt", "--test-list", tmp_path / "test.txt"]
    task = request_of("search", *lists)[2]
    assert (len(task.train), len(task.test)) == (5, 3)
    assert refusal("inpainting", "search", *lists[:2]) == "give --train-list and --test-list together, or neither"


def test_the_next_command_is_told_the_same_data(plain, faces, tmp_path):
    for name, numbers in (("train.txt", range(5)), ("test.txt", range(5, 8))):
        (tmp_path / name).write_text("".join(f"{number:02}.png\n" for number in numbers))
    lists = ["--train-list", tmp_path / "train.txt", "--test-list", tmp_path / "test.txt"]
    words = [*STEPS, "--batch-size", "1", "--data", faces, "--device", "cpu", *lists]
    done = run("inpainting", "search", *SPACE, *words, "--out", tmp_path / "a run")
    flags = f"--data {faces} --device cpu {' '.join(map(str, lists))}"
    retrain = f"asng inpainting retrain '{tmp_path / 'a run'}' {flags}"
    assert done.out.splitlines()[-1] == f"Train it from scratch: {retrain}"
    done = run(*shlex.split(retrain)[1:], *STEPS, "--batch-size", "1")
    evaluate = f"asng inpainting evaluate '{tmp_path / 'a run' / 'retrain-seed0'}' {flags}"
    assert done.out.splitlines()[-1] == f"Test it: {evaluate}"
    assert "on 3 faces" in run(*shlex.split(evaluate)[1:]).out


def test_damaged_or_missing_data_is_one_line_and_leaves_no_run(tmp_path):
    words = ["inpainting", "search", "--out", tmp_path / "run", "--data"]
    assert refusal(*words, tmp_path / "nothing").startswith(f"there is no folder {tmp_path / 'nothing'}; name the one")
    (tmp_path / "empty").mkdir()
    assert refusal(*words, tmp_path / "empty").startswith(f"{tmp_path / 'empty'} holds no images")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "1.png").write_text("no image")
    assert refusal(*words, tmp_path / "bad").startswith(f"all 1 images in {tmp_path / 'bad'} are damaged, such as")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_while_faces_are_read_promises_nothing(tmp_path, monkeypatch):
    folder = fill(tmp_path / "some")
    monkeypatch.setattr(
        "asng.experiments.inpainting.faces._crop_all", lambda *arguments: os.kill(os.getpid(), signal.SIGINT)
    )
    done = run("inpainting", "search", *TINY, "--data", folder, "--out", tmp_path / "run")
    assert (done.code, done.err) == (130, "Interrupted.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


REAL = os.environ.get("ASNG_DATA")


@pytest.mark.long
@pytest.mark.skipif(REAL is None, reason="ASNG_DATA names no folder of data")
def test_a_search_on_real_faces(plain, tmp_path):
    words = ["--small", "--iterations", "40", "--checkpoint-every", "20", "--num-train-images", "400"]
    assert run("inpainting", "search", *words, "--data", REAL, "--out", tmp_path).code == 0
    first, second = records_of(tmp_path)
    assert second["train_loss"] < first["train_loss"]
    assert second["test_psnr"] > 9  # black images come to 6 dB


def test_more_layers_than_memory_holds_are_refused():
    assert refusal("inpainting", "search", "--layers", 1001) == "--layers must be at most 1000, got 1001"
