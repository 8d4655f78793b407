"""The commands that all image experiments have, on a few images of noise."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from asng.cli.images import _load_task, next_command
from asng.cli.terminal import Output
from asng.experiments import _figures
from asng.experiments._task import DataSettings
from asng.experiments.cifar10 import data, drawing
from asng.experiments.cifar10 import task as cifar10
from asng.experiments.inpainting import task as inpainting
from tests.helpers.commands import (
    MAIN,
    assert_continues_after_ctrl_c,
    assert_refused_in_use,
    records_of,
    refusal,
    request_recorder,
    run,
    summary_of,
    unexplained_flags,
)
from tests.helpers.small_cifar10 import random_files, release_of, write
from tests.helpers.small_faces import texture

pytestmark = pytest.mark.slow

IMAGES = 12
# Runs with the small release of CIFAR-10, in another process.
PROGRAM = """
import json, sys
from asng.cli import main
from asng.experiments.cifar10 import data
data.RELEASE = data.Release(**json.loads(sys.argv[1]))
main(sys.argv[2:])
"""


class Experiment(NamedTuple):
    """Words of commands, and what they stand for."""

    name: str
    size: list[str]
    steps: list[str]  # of a run with one checkpoint
    longer: list[str]  # of one with several, of a few steps each
    search: Any
    small: Any
    retrain: Any
    small_retrain: Any
    label: str
    metric: str


EXPERIMENTS = [
    Experiment(
        name="cifar10",
        size=["--channels", "2", "--cells", "3"],
        steps=["--batch-size", "4", "--num-train-images", "24", "--epochs", "1"],
        longer=["--batch-size", "2", "--num-train-images", "16", "--epochs", "3"],
        search=cifar10.Cifar10SearchSettings(),
        small=cifar10.SMALL,
        retrain=cifar10.Cifar10RetrainSettings(),
        small_retrain=cifar10.SMALL_RETRAIN,
        label="",
        metric="test_accuracy",
    ),
    Experiment(
        name="inpainting",
        size=["--layers", "3", "--widths", "2", "4"],
        steps=["--iterations", "2", "--checkpoint-every", "2", "--batch-size", "2"],
        longer=["--iterations", "24", "--checkpoint-every", "3", "--batch-size", "2"],
        search=inpainting.InpaintingSearchSettings(),
        small=inpainting.SMALL,
        retrain=inpainting.InpaintingRetrainSettings(mask="center"),
        small_retrain=replace(inpainting.SMALL_RETRAIN, mask="pixel"),
        label="cat-center-",
        metric="test_psnr",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def folder_of_data(tmp_path_factory):
    """A small release of CIFAR-10 and some faces, found through the environment."""
    files, folder = random_files(IMAGES), tmp_path_factory.mktemp("data")
    write(folder / data.FOLDER, files)
    for number in range(IMAGES):
        texture(folder / "faces" / f"{number:02}.png", (64, 64), number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "RELEASE", release_of(files))
        patch.setenv("ASNG_DATA", str(folder))
        yield folder


@pytest.fixture(params=EXPERIMENTS, ids=lambda experiment: experiment.name)
def experiment(request, monkeypatch):
    """An experiment, without pictures, which take longer than all the rest."""
    monkeypatch.setattr(_figures, "draw_curves", lambda *arguments: None)
    monkeypatch.setattr(drawing, "draw_cells", lambda *arguments: None)
    return request.param


@pytest.fixture
def request_of(experiment, monkeypatch, tmp_path):
    """Notes what `search` and `retrain` are asked for, and ends there; in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return request_recorder(monkeypatch, experiment.name)


def search(experiment, folder, *words):
    done = run(experiment.name, "search", *experiment.size, *experiment.steps, *words, "--out", folder)
    assert (done.code, done.err) == (0, "")
    return done


def test_how_to_go_on_repeats_what_matters():
    folder, where = Path("a"), DataSettings(Path("d"), "cpu")
    assert next_command("cifar10", "retrain", folder, DataSettings()) == "asng cifar10 retrain a"
    again = next_command("cifar10", "retrain", folder, where, small=True)
    assert again == "asng cifar10 retrain a --small --data d --device cpu"


def test_the_folder_is_named_after_what_is_searched_unless_it_is_given(experiment, request_of):
    name, label = experiment.name, experiment.label
    assert request_of("search")[1] == Path(f"runs/{name}-{label}asng-seed0")
    small = f"runs/{name}-small-{label.replace('center', 'pixel')}sng-seed3"
    assert request_of("search", "--method", "sng", "--seed", "3", "--small")[1] == Path(small)
    assert request_of("search", "--small", "--out", "here")[1] == Path("here")
    assert request_of("retrain", "--architecture", "random", "--out", "here")[2] == Path("here")


def test_small_changes_defaults_and_flags_still_count(experiment, request_of):
    assert request_of("search")[0] == experiment.search
    assert request_of("search", "--small")[0] == experiment.small != experiment.search
    assert request_of("search", "--batch-size", "3", "--small", "--lr", "1")[0] == replace(
        experiment.small, batch_size=3, lr=1.0
    )
    random = ["--architecture", "random"]
    assert request_of("retrain", *random)[0] == experiment.retrain
    assert request_of("retrain", *random, "--small", "--batch-size", "9")[0] == replace(
        experiment.small_retrain, batch_size=9
    )


def test_without_tests_nothing_is_tested(experiment, tmp_path):
    search(experiment, tmp_path, "--no-test")
    assert experiment.metric not in records_of(tmp_path)[0]


def test_sng_is_searched_with_by_the_same_command(experiment, tmp_path):
    search(experiment, tmp_path, "--method", "sng")
    assert "delta" not in records_of(tmp_path)[0]
    assert summary_of(tmp_path)["probability"] > 0


def test_random_search_chooses_at_its_end_and_is_evaluated_only_then(experiment, tmp_path):
    done = search(experiment, tmp_path, "--method", "uniform", "--num-random", "4")
    assert "choosing among 4 architectures" in done.out.splitlines()
    assert summary_of(tmp_path)["probability"] is None
    assert run(experiment.name, "evaluate", tmp_path).code == 0
    (tmp_path / "architecture.json").unlink()  # as before its end
    error = refusal(experiment.name, "evaluate", tmp_path)
    assert error == f"{tmp_path} is a random search, which chooses an architecture at its end; let it finish"


def test_a_limit_that_none_meets_is_wrong_input_and_leaves_no_folder(experiment, tmp_path):
    words = ["search", *experiment.size, *experiment.steps, "--max-params", "1", "--out", tmp_path / "run"]
    assert refusal(experiment.name, *words).startswith("the smallest architecture has ")
    assert not (tmp_path / "run").exists()


def test_losses_that_are_never_finite_are_one_line_with_a_cure(experiment, tmp_path):
    words = ["search", *experiment.size, *experiment.longer, "--lr", "1e30", "--out", tmp_path]
    assert "were NaN or infinite; lower the learning rate" in refusal(experiment.name, *words)


@pytest.mark.long
def test_ctrl_c_saves_and_the_same_command_ends_as_if_nothing_had_been(experiment, tmp_path):
    words = [experiment.name, "search", *experiment.size, *experiment.longer, "--no-test"]
    program = (PROGRAM, [json.dumps(asdict(data.RELEASE))]) if experiment.name == "cifar10" else (MAIN, [])
    assert_continues_after_ctrl_c(tmp_path, words, *program)


def test_a_folder_in_use_is_refused(experiment, tmp_path):
    random = ["--architecture", "random", "--small", *experiment.steps]
    assert_refused_in_use(tmp_path, experiment.name, "search", *experiment.size, *experiment.steps)
    assert_refused_in_use(tmp_path / "more", experiment.name, "retrain", *random)


def test_a_search_that_has_not_finished_cannot_be_retrained(experiment, tmp_path):
    words = (experiment.name, "retrain", tmp_path)
    assert refusal(*words) == f"{tmp_path} is not a run: it has no config.json"
    (tmp_path / "config.json").write_text('{"experiment": "toy", "kind": "search"}')
    assert refusal(*words) == f"{tmp_path} is not a run of {experiment.name}: its config.json says 'toy'"
    (tmp_path / "config.json").write_text(json.dumps({"experiment": experiment.name, "kind": "search"}))
    assert refusal(*words).startswith(f"there is no {tmp_path / 'architecture.json'} yet; let the run get that far")


def test_what_is_no_run_is_not_evaluated(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("ASNG_DATA", str(tmp_path / "nowhere"))  # it is said before data is looked for
    assert refusal(experiment.name, "evaluate", tmp_path) == f"{tmp_path} is not a run: it has no config.json"
    (tmp_path / "config.json").write_text(json.dumps({"experiment": experiment.name, "kind": "search"}))
    assert refusal(experiment.name, "evaluate", tmp_path).startswith(f"there is no {tmp_path / 'checkpoint.pt'} yet")


def test_a_run_of_an_older_version_is_not_evaluated_and_no_data_is_loaded(experiment, tmp_path):
    config = {"experiment": experiment.name, "kind": "search", "version": "0.0.1", "seed": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "checkpoint.pt").touch()
    message = refusal(experiment.name, "evaluate", tmp_path, "--data", tmp_path / "nowhere")
    assert message.startswith(f"{tmp_path} is a run of format 1, made by asng '0.0.1'; this asng, ")


def test_the_checkpoint_of_another_run_is_refused_in_one_line(experiment, tmp_path):
    random = ["retrain", "--architecture", "random", "--small", *experiment.steps, "--out", tmp_path / "retrain"]
    search(experiment, tmp_path / "search")
    assert run(experiment.name, *random).code == 0
    ours = tmp_path / "retrain" / "checkpoint.pt"
    ours.write_bytes((tmp_path / "search" / "checkpoint.pt").read_bytes())
    for words in (["evaluate", tmp_path / "retrain"], random):
        error = refusal(experiment.name, *words)
        assert error.startswith(f"{ours} is of another run (kind: search there, retrain here; ")
        assert error.endswith("; use another path, or delete it to start over")


def test_an_architecture_that_is_not_there_is_wrong_input(experiment, tmp_path):
    path = tmp_path / "network.json"
    assert refusal(experiment.name, "retrain").startswith("give either the folder of a search, or --architecture")
    there_is_none = f"there is no file {path}; give one as architecture.json, or the word random"
    assert refusal(experiment.name, "retrain", "--architecture", path) == there_is_none
    path.write_text("{")
    error = refusal(experiment.name, "retrain", "--architecture", path)
    assert error.startswith(f"{path}: an architecture is JSON")


@pytest.mark.parametrize("words", [("search",), ("retrain", "--architecture", "random"), ("evaluate",)])
def test_the_device_is_the_one_that_is_named(experiment, words, tmp_path):
    if words == ("evaluate",):
        search(experiment, tmp_path, "--no-test")
        words = (*words, tmp_path)
    assert refusal(experiment.name, *words, "--device", "mps").startswith("there is no device 'mps'; give cpu")


@pytest.mark.parametrize("verb", ["search", "retrain", "evaluate"])
def test_help_shows_examples_and_explains_every_flag(experiment, verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    done = run(experiment.name, verb, "--help")
    assert done.code == 0
    assert f"Examples:\n  asng {experiment.name} {verb}" in done.out
    assert "{None}" not in done.out
    assert unexplained_flags(done.out) == []


@pytest.mark.parametrize(
    ("device", "capture", "says"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_on_a_gpu_the_wait_for_the_first_step_is_announced(device, capture, says, capsys):
    class Loaded:
        loading = "loading"

        def __init__(self):
            self.device = torch.device(device)

        @classmethod
        def load(cls, where, progress):
            return cls()

        def describe_data(self, settings):
            return ["some images"]

    task: Any = Loaded
    flags = SimpleNamespace(dry_run=False, out=Path("runs"), where=None, settings=None, capture=capture)
    _load_task(task, flags, Output())
    assert ("The first step is captured" in capsys.readouterr().out) == says
