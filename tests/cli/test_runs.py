"""`asng runs` and `asng resume`: what a folder of runs holds, and a run continued from its folder alone."""

import json
import os
import signal

import pytest

from asng import cli
from asng.cli.runs import describe_run, format_run
from asng.experiments import toy
from asng.nas._loop import Epoch
from asng.runs import Run, make_config
from tests.helpers.commands import records_of, refusal, run, summary_of
from tests.helpers.stripes import LINE, TINY, Stripes

pytestmark = pytest.mark.slow

LONGER = [*TINY, "--epochs", "3"]
SWEEP = ["--variables", "3", "--choices", "2", "--runs", "2", "--iterations", "50", "--powers", "0", "1"]


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """An empty folder, and a table with one more experiment, which takes no time."""
    monkeypatch.setitem(cli.EXPERIMENTS, "stripes", LINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def press_ctrl_c(monkeypatch):
    """A function after which Ctrl-C comes in the nth call of a method, once."""

    def press(owner, name, nth):
        calls, method = [], getattr(owner, name)

        def call(*arguments):
            calls.append(name)
            if len(calls) == nth:
                signal.raise_signal(signal.SIGINT)
            return method(*arguments)

        monkeypatch.setattr(owner, name, call)

    return press


def list_runs(where="."):
    return {each["folder"]: each for each in json.loads(run("runs", where, "--json").out)["runs"]}


# The list


def test_a_finished_an_interrupted_and_a_running_run_are_told_apart(folder, press_ctrl_c):
    assert run("stripes", "search", *LONGER, "--out", "a").code == 0
    assert run("stripes", "retrain", "a", *TINY, "--quiet").code == 0
    press_ctrl_c(Epoch, "add", 5)
    assert run("stripes", "search", *LONGER, "--out", "b").code == 130
    with Run("c", make_config("toy", "sweep", toy.QUICK)) as running:
        running.append({"setting": ["ASNG", 0.05, 0.0, 1.5], "iterations": []})
        found = list_runs()
    assert {name: each["state"] for name, each in found.items()} == {
        "a": "finished",
        "a/retrain-seed0": "finished",
        "b": "interrupted",
        "c": "running",
    }
    assert list_runs()["c"]["state"] == "interrupted"
    assert {name: each["run"] for name, each in found.items()} == {
        "a": "stripes search",
        "a/retrain-seed0": "stripes retrain",
        "b": "stripes search",
        "c": "toy sweep",
    }
    assert found["a"]["progress"] == {"done": 3, "total": 3, "unit": "epochs"}
    assert found["b"]["progress"] == {"done": 2, "total": 3, "unit": "epochs"}
    assert found["c"]["progress"] == {"done": 1, "total": 15, "unit": "results"}
    best = max(record["test_accuracy"] for record in records_of(folder / "a"))
    assert found["a"]["best"] == {"name": "test_accuracy", "value": best}
    own = sum(path.stat().st_size for path in (folder / "a").iterdir() if path.is_file())
    assert found["a"]["bytes"] == own
    assert 0 <= found["a"]["age_seconds"] < 600


def test_the_list_fits_into_a_terminal_and_quiet_prints_the_folders(folder):
    assert run("stripes", "search", *TINY, "--quiet").code == 0
    done = run("runs")
    first, second, last = done.out.splitlines()
    assert first.startswith("runs/stripes-asng-seed0  (")
    assert second.split()[:3] == ["stripes", "search", "finished"]
    assert last == "1 run in runs"
    assert max(map(len, done.out.splitlines())) <= 80
    assert run("runs", "--quiet").out == "runs/stripes-asng-seed0\n"


def test_before_the_first_run_the_list_is_empty_and_says_how_to_begin(folder):
    for words in ([], ["."]):
        line = f"no runs in {words[0] if words else 'runs'}; asng digits search makes a first one, in a minute or two\n"
        assert run("runs", *words) == (0, line, "")
    assert json.loads(run("runs", "--json").out) == {"runs": []}
    (folder / "runs").mkdir()
    assert refusal("runs", "rnus") == "there is no folder rnus; did you mean runs?"


def test_accuracies_are_listed_in_percent_and_psnr_in_decibels():
    def show(name, value):
        about = {"folder": "a", "run": "toy sweep", "state": "finished", "progress": None, "fault": None}
        best = {"name": name, "value": value}
        return " ".join(format_run({**about, "best": best, "bytes": 10, "age_seconds": 1.0})[1].split()[3:])

    assert show("test_accuracy", 0.97251) == "best test accuracy 97.25 %"
    assert show("psnr", 26.0512) == "best psnr 26.05 dB"
    assert show("valid_loss", 0.25) == "best valid loss 0.25"


def test_hostile_folders_are_listed_as_damaged_or_passed_over(folder):
    def make(name, config, **files):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(config)
        for file, content in files.items():
            (folder / name / f"{file}.jsonl").write_text(content)

    good = json.dumps({"experiment": "stripes", "kind": "search", "epochs": 3})
    make("deep", "[" * 100_000, metrics="")
    make("text", "no json", metrics="")
    make("other program's", '{"architectures": ["BertModel"]}', metrics="")
    make("letters\x1b[2J", good, metrics='{"epoch": 1}\n')
    make("lines", good, metrics='{"epoch": 1}\n5\n')
    make("growing", good, metrics='{"epoch": 1}\n{"epo')
    make("odd", json.dumps({"experiment": "digits", "kind": "search", "epochs": "x", "training_epochs": 0}), results="")
    make("numbers", json.dumps({"experiment": "toy", "kind": "sweep", "alphas": 1e999, "lrs": 3}), results="")
    make("nan", good, metrics='{"epoch": 1, "test_accuracy": NaN, "valid_loss": 1e999}\n')
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "config.json")
    (folder / "pipe" / "metrics.jsonl").touch()
    (folder / "loop").symlink_to(".")
    done = run("runs", ".", "--json")
    states = {each["folder"]: each["state"] for each in json.loads(done.out)["runs"]}
    assert states == {
        "deep": "damaged",
        "growing": "interrupted",
        "letters\x1b[2J": "interrupted",
        "lines": "damaged",
        "nan": "interrupted",
        "numbers": "interrupted",
        "odd": "interrupted",
        "pipe": "damaged",
        "text": "damaged",
    }
    shown = run("runs", ".")
    assert shown.code == 0
    assert "\x1b" not in shown.out
    assert (describe_run(folder / "nan") or {})["best"] is None


def test_runs_of_another_format_are_listed_as_that_and_not_as_damaged(folder):
    (folder / "old").mkdir()
    (folder / "old" / "metrics.jsonl").touch()
    config = {"experiment": "cifar10", "kind": "search", "version": "0.1.0", "rate": 0.025}
    (folder / "old" / "config.json").write_text(json.dumps(config))
    (old,) = json.loads(run("runs", ".", "--json").out)["runs"]
    assert old["state"] == "other format"
    assert old["fault"].startswith("old is a run of format 1, made by asng '0.1.0'; this asng, ")
    assert refusal("resume", "old") == old["fault"]


# Resuming


@pytest.mark.parametrize("verb", ["search", "retrain"])
def test_a_run_that_is_resumed_from_its_folder_ends_as_if_it_had_not_been_interrupted(verb, folder, press_ctrl_c):
    random = ["--architecture", "random"] if verb == "retrain" else []
    words = ["stripes", verb, *LONGER, *random, "--seed", "3", "--out"]
    assert run(*words, "whole").code == 0
    press_ctrl_c(Epoch, "add", 5)
    assert run(*words, "parted").code == 130
    done = run("resume", "parted")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Continuing stripes {verb} in parted\n")
    assert records_of(folder / "parted") == records_of(folder / "whole")
    assert {**summary_of(folder / "parted"), "last": 0} == {**summary_of(folder / "whole"), "last": 0}


def test_a_sweep_is_resumed_from_its_folder(folder, press_ctrl_c):
    assert run("toy", "sweep", *SWEEP, "--out", "whole").code == 0
    press_ctrl_c(Run, "append", 2)
    assert run("toy", "sweep", *SWEEP, "--workers", "1", "--out", "parted").code == 130
    outcome = json.loads(run("resume", "parted", "--json").out)
    assert outcome["folder"] == "parted"
    assert (folder / "parted" / "summary.json").read_bytes() == (folder / "whole" / "summary.json").read_bytes()
    environment = [json.loads(line) for line in (folder / "parted" / "environment.jsonl").read_text().splitlines()]
    assert [each["flags"]["workers"] for each in environment] == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ["digits", "search", "--epochs", "2", "--training-epochs", "2"],
        ["digits", "tune", "--trials", "2", "--epochs", "1", "--training-epochs", "1"],
    ],
)
def test_digits_are_resumed_from_their_folder(words, folder, press_ctrl_c):
    assert run(*words, "--out", "whole").code == 0
    press_ctrl_c(Run, "append", 2)
    assert run(*words, "--out", "parted").code == 130
    assert run("resume", "parted", "--quiet").out == "Architecture: parted/architecture.json\n"
    one, other = ((folder / name / "architecture.json").read_text() for name in ("whole", "parted"))
    assert one == other
    assert list_runs()["parted"]["state"] == "finished"


def test_the_data_and_the_device_are_those_of_the_start_unless_others_are_given(folder, press_ctrl_c, monkeypatch):
    press_ctrl_c(Epoch, "add", 5)
    assert run("stripes", "search", *LONGER, "--data", "here", "--no-capture", "--out", "run").code == 130
    (start,) = [json.loads(line) for line in (folder / "run" / "environment.jsonl").read_text().splitlines()]
    given = {"data": str(folder / "here"), "device": "cpu", "capture": False, "small": False, "tensorboard": False}
    assert start["flags"] == given
    monkeypatch.chdir("/")
    assert refusal("resume", folder / "run", "--device", "mps").startswith("there is no device 'mps'")
    assert run("resume", folder / "run", "--data", folder / "moved").code == 0
    lines = (folder / "run" / "environment.jsonl").read_text().splitlines()
    assert [json.loads(line)["flags"]["data"] for line in lines] == [str(folder / "here"), str(folder / "moved")]


def test_what_cannot_be_resumed_is_refused_in_one_line_with_a_cure(folder):
    assert run("stripes", "search", *TINY, "--out", "done").code == 0
    cure = "asng report done shows it, and another --out makes more of its kind"
    assert refusal("resume", "done") == f"done is finished; {cure}"
    with Run("busy", make_config("toy", "sweep", toy.QUICK)):
        assert refusal("resume", "busy") == "busy is running already; asng runs busy shows how far it is"
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text('{"experiment": "toy", "kind": "swep"}')
    error = "other/config.json says 'toy swep', which is not a command that makes runs; did you mean toy sweep?"
    assert refusal("resume", "other") == error
    assert refusal("resume") == (
        "asng resume needs RUN: folder of a search, a retraining, a tuning or a sweep, "
        "or the common folder of several seeds"
    )


@pytest.mark.parametrize("flags", ['{"device": 5}', '{"data": ["x"]}', '{"device": "../../dev/null"}'])
def test_a_damaged_environment_is_refused_in_one_line(folder, flags):
    (folder / "run").mkdir()
    settings = make_config("stripes", "search", Stripes.small_search)
    (folder / "run" / "config.json").write_text(json.dumps(settings))
    (folder / "run" / "environment.jsonl").write_text(f'{{"flags": {flags}}}\n')
    assert "device" in (error := refusal("resume", "run")) or "run/environment.jsonl is damaged (data" in error
    (folder / "run" / "environment.jsonl").write_text("{\n")
    assert "environment.jsonl is damaged (line 1: " in refusal("resume", "run")
