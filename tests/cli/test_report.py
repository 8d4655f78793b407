"""`asng report`."""

import json
import shlex
import signal
import subprocess
import sys
import time

import pytest

from asng.cli import digits as digits_command
from asng.cli import images
from asng.cli import toy as toy_command
from asng.cli.flags import parse_command
from asng.experiments.cifar10.task import Cifar10
from asng.experiments.digits import DigitsSettings
from asng.experiments.digits_tuning import TuneSettings
from asng.experiments.inpainting.task import Inpainting
from asng.experiments.toy import QUICK, ToySettings
from asng.report._command import repeat_commands
from asng.report._read import read_runs
from asng.runs import make_config
from tests.helpers.commands import MAIN, refusal, run, unexplained_flags
from tests.helpers.report_pages import SEEDS, Page, values_of, write_run

pytestmark = pytest.mark.slow


def test_a_report_of_one_run_lies_in_its_folder(tmp_path):
    folder = write_run(tmp_path / "one", records=[{"epoch": 1, "train_loss": 0.5}])
    done = run("report", str(folder))
    assert (done.code, done.out, done.err) == (0, f"Report: {folder / 'report.html'}\n", "")
    assert Page(folder / "report.html").curves("Loss")["train"]["y"] == [0.5]


def test_a_report_of_several_runs_lies_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("report", *map(str, SEEDS))
    assert (done.code, done.out) == (0, "Report: report.html\n")
    assert "mean ± standard deviation" in (tmp_path / "report.html").read_text()
    assert run("report", str(SEEDS[0]), "--out", "pages/one.html").code == 0
    assert (tmp_path / "pages" / "one.html").is_file()


def test_the_help_explains_all_flags_with_examples():
    done = run("report", "--help")
    assert done.code == 0
    assert "asng report runs/digits" in done.out
    assert unexplained_flags(done.out) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "asng report needs RUN...: folders of runs"),
        (["nowhere"], "there is no folder nowhere"),
    ],
)
def test_wrong_input_is_refused_in_one_line(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal("report", *words) == message


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    assert refusal("report", str(tmp_path)) == f"{tmp_path} is not a run: it has no config.json"


def test_watching_writes_again_until_ctrl_c_and_then_a_page_that_rests(tmp_path):
    folder = write_run(tmp_path / "one", records=[{"epoch": 1, "train_loss": 0.5}])
    page = folder / "report.html"
    program = f"import asng.cli.report as command; command.INTERVAL = 1\n{MAIN}"
    words = [sys.executable, "-c", program, "report", str(folder), "--watch"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Report: {page}\n"
        assert process.stdout.readline().startswith("It is written every 1 seconds")
        assert json.loads(Page(page).code["data"])["reload"] == 1
        write_run(folder, records=[{"epoch": epoch, "train_loss": 0.5} for epoch in (1, 2)])
        deadline = time.monotonic() + 60
        while "2 of 4 epochs" not in page.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert json.loads(Page(page).code["data"])["reload"] is None
    assert "2 of 4 epochs" in page.read_text()


# The command that repeats a run


@pytest.mark.parametrize("task", [Cifar10, Inpainting])
@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("kind", ["search", "retrain"])
def test_the_command_of_a_report_has_the_settings_of_its_run(task, is_small, kind, tmp_path):
    whole = task.search_settings if kind == "search" else task.train_settings
    small = task.small_search if kind == "search" else task.small_train
    settings = small if is_small else whole()
    more = {} if kind == "search" else {"architecture": values_of(op="conv")}
    folder = write_run(tmp_path / "a run", make_config(task.name, kind, settings, faces="100 and 50", **more))
    words = shlex.split(repeat_commands(read_runs(folder))[0])
    assert words[:3] == ["asng", task.name, kind]
    parsed = images.parse_verb(task, kind, words[3:])
    assert parsed.settings == settings
    assert parsed.out == tmp_path / "a run-again"
    if kind == "retrain":
        assert parsed.architecture == str(folder / "architecture.json")


def test_the_command_of_a_sweep_and_of_digits_have_their_settings(tmp_path):
    config = make_config("toy", "sweep", QUICK)
    del config["workers"]
    words = shlex.split(repeat_commands(read_runs(write_run(tmp_path / "toy", config)))[0])
    assert parse_command(toy_command.SweepCommand, "x", words[3:]).settings == QUICK != ToySettings()

    settings = DigitsSettings(epochs=7, seed=3)
    folder = write_run(tmp_path / "digits", make_config("digits", "search", settings))
    lines = [{"seed": seed, "kind": kind} for seed in (3, 4) for kind in ("search", "found")]
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = shlex.split(repeat_commands(read_runs(folder))[0])
    parsed = parse_command(digits_command.SearchCommand, "x", words[3:])
    assert (parsed.settings, parsed.seeds) == (settings, (2,))


def test_the_command_of_a_tuning_has_its_settings(tmp_path):
    settings = TuneSettings(trials=7, seed=3)
    words = shlex.split(
        repeat_commands(read_runs(write_run(tmp_path / "tune", make_config("digits", "tune", settings))))[0]
    )
    assert words[:3] == ["asng", "digits", "tune"]
    assert parse_command(digits_command.TuneCommand, "x", words[3:]).settings == settings


def test_a_run_of_no_command_has_none(tmp_path):
    assert repeat_commands(read_runs(write_run(tmp_path / "mine"))) == []
    saved = {"experiment": "mine", "kind": "search", "version": "0.1.0", "format": 2, "optimizer": "ASNG"}
    assert repeat_commands(read_runs(write_run(tmp_path / "saved", saved))) == []
