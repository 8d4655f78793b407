"""What all commands share: the overview, bars, exit codes; and `asng toy sweep` and `asng digits search`."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from asng import __version__, cli
from asng._signals import DEFAULTS
from asng.cli.terminal import command_progress_bar
from asng.experiments import toy
from asng.runs import Run
from tests.helpers.commands import MAIN, assert_refused_in_use, hold_at, interrupt, refusal, run, unexplained_flags

pytestmark = pytest.mark.slow

SIZE = ["--variables", "10", "--choices", "4", "--lrs", "0.05", "--alphas", "1.5"]
SMALL = [*SIZE, "--runs", "4", "--iterations", "1500", "--powers", "0", "2"]
LONGER = [*SIZE, "--runs", "5", "--iterations", "2500", "--powers", "0", "3", "4"]  # most of these never succeed
LIVE = "epoch 1/100 step 123/390, train loss 2.305, valid loss 2.301, valid accuracy 0.1125, delta 1.234, 1234 images/s"


# The overview


def test_without_a_command_all_of_them_are_listed():
    for words in ([], ["-h"], ["--help"]):
        done = run(*words)
        assert (done.code, done.err) == (0, "")
        for command, purpose in cli.commands().items():
            assert re.search(rf"asng {command} +{purpose}", done.out)


def test_the_version_is_that_of_the_package():
    done = run("--version")
    assert (done.code, done.out, done.err) == (0, f"asng {__version__}\n", "")
    module = subprocess.run([sys.executable, "-m", "asng", "--version"], capture_output=True, text=True, check=True)
    assert module.stdout == done.out


def test_an_experiment_alone_lists_its_verbs():
    for words in (["cifar10"], ["cifar10", "--help"]):
        done = run(*words)
        assert done.code == 0
        assert done.out.startswith("usage: asng cifar10 VERB [flags]\n")
        assert re.findall(r"  asng (\w+ \w+)", done.out) == ["cifar10 search", "cifar10 retrain", "cifar10 evaluate"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tony"],
            "no command 'tony'; asng has cifar10, digits, inpainting, toy, runs, resume, report, export; "
            "did you mean toy?",
        ),
        (["--quick"], "no command '--quick'; asng has cifar10, digits, inpainting, toy, runs, resume, report, export"),
        (
            ["cifar10", "serach"],
            "no command 'cifar10 serach'; cifar10 has search, retrain, evaluate; did you mean search?",
        ),
        (["digits", "--seeds", "3"], "no command 'digits --seeds'; digits has search, tune"),
        (["toy", "--quick"], "no command 'toy --quick'; toy has sweep"),
        (
            ["--versoin"],
            "no command '--versoin'; asng has cifar10, digits, inpainting, toy, runs, resume, report, export; "
            "did you mean --version?",
        ),
    ],
)
def test_a_command_that_is_none_is_wrong_input_and_the_others_are_named(words, message):
    assert refusal(*words) == message


def test_every_command_in_the_overview_can_be_run():
    assert all(callable(cli.function_of(command)) for command in cli.commands())


def test_the_overview_does_not_wait_for_torch():
    program = "import sys; from asng.cli import main; main([]); print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stderr == "False\n"


@pytest.mark.parametrize(("words", "missing"), [("toy sweep", "rich.table"), ("digits search", "sklearn.datasets")])
def test_a_package_that_is_missing_is_one_line_with_the_cure(words, missing, tmp_path):
    program = f"import sys; sys.modules[{missing!r}] = None\n{MAIN}"
    command = [sys.executable, "-c", program, *words.split(), "--out", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(rf"asng: .*{missing}.*; the commands need pip install 'asng\[experiments\]'\n", done.stderr)


@pytest.mark.parametrize("number", DEFAULTS)
def test_a_signal_anywhere_is_exit_code_130_without_a_traceback(monkeypatch, number):
    monkeypatch.setattr(cli, "function_of", lambda command: lambda words: os.kill(os.getpid(), number))
    done = run("toy", "sweep")
    assert (done.code, done.out, done.err) == (130, "", "")


INTERRUPT_AN_IMPORT = """
import signal, sys

def interrupt(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "cb" and {after!r} in sys.modules:  # cleans up after an import
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

sys.setprofile(interrupt)
from _asng_command import main
main()
"""


@pytest.mark.parametrize(("after", "code"), [("numpy.version", -signal.SIGINT), ("rich", 130)])
def test_ctrl_c_where_python_drops_exceptions_of_imports_ends_the_command(after, code, tmp_path):
    program = INTERRUPT_AN_IMPORT.format(after=after)
    command = [sys.executable, "-c", program, "toy", "sweep", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert list(tmp_path.iterdir()) == []


SIGNAL_IN_AN_IMPORT = """
import os
from asng import cli

def import_module(name):
    try:
        os.kill(os.getpid(), {number})
    finally:
        print("an exception went through the import of a library")

cli.import_module = import_module
cli.main(["toy", "sweep"])
"""


@pytest.mark.parametrize("number", DEFAULTS)
def test_a_signal_during_imports_ends_the_command_without_an_exception(number):
    command = [sys.executable, "-c", SIGNAL_IN_AN_IMPORT.format(number=int(number))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


SIGNAL_AT_THE_EXIT = """
import _asng_command, os, signal, threading, time
from asng import cli

def interrupt_later():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)

def main():
    threading.Thread(target=interrupt_later).start()  # for which the exit waits
    raise SystemExit(130)

cli.main = main
_asng_command.main()
"""


def test_another_ctrl_c_during_the_exit_ends_it_without_a_traceback():
    done = subprocess.run([sys.executable, "-c", SIGNAL_AT_THE_EXIT], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


# Bars


def frames(width, *news, folder=None, pause=0.15):
    """What a terminal of a width is sent, cut where it is cleared for something new, without its other controls."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, _environ={})
    with command_progress_bar("cifar10 search", folder, console) as progress:
        for fraction, text, line in news:
            progress(fraction, text, line=line)
            time.sleep(pause)
    sent = re.split(r"\x1b\[2K(?:\x1b\[1A\x1b\[2K)*", file.getvalue().replace("\r", ""))
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame) for frame in sent]


@pytest.mark.parametrize(("width", "lines"), [(80, 3), (160, 2)])
def test_a_long_text_breaks_below_the_bar_and_the_bar_stays_whole(width, lines):
    shown = [frame for frame in frames(width, (0.1, LIVE, False), (0.2, LIVE, False)) if frame]
    assert shown
    for frame in shown:
        bar, *text = frame.rstrip("\n").split("\n")
        assert re.fullmatch(r"cifar10 search [━╸╺]+ +\d+% after \d:\d\d:\d\d left [-\d:]+ *", bar)
        assert len(text) == lines - 1
        assert " ".join(" ".join(text).split()) == LIVE
        assert max(len(line) for line in (bar, *text)) <= width


def test_what_is_worth_a_line_stays_above_the_bar():
    sent = frames(80, (0.5, "epoch 1, train loss 2.3", True), (1.0, "epoch 2, train loss 2.2", True))
    assert [line for frame in sent for line in frame.split("\n") if line.startswith("epoch")] == [
        "epoch 1, train loss 2.3",
        "epoch 2, train loss 2.2",
    ]


def test_a_task_that_starts_over_has_a_time_of_its_own():
    lines = [(0.5, "epoch 1"), (1.0, "epoch 2"), (0.0, "choosing"), (0.25, "choosing"), (0.5, "choosing")]
    sent = "".join(frames(80, *((fraction, text, True) for fraction, text in lines)))
    assert re.search(r"100% after 0:00:\d\d left 0:00:00", sent)
    assert re.search(r" 25% after 0:00:\d\d left -:--:--", sent)  # nothing is known yet of how fast it goes
    assert re.search(r" 50% after 0:00:\d\d left 0:00:0[1-9]", sent)


def test_where_there_is_nothing_to_do_no_bar_appears():
    assert frames(80) == [""]


def test_without_a_terminal_tenths_are_said_once(capsys):
    with command_progress_bar("toy", None, Console(width=80)) as progress:
        for fraction in (0.0, 0.04, 0.31, 0.39, 1.0):
            progress(fraction)
    assert capsys.readouterr().out == "toy: 0 %\ntoy: 30 %\ntoy: 100 %\n"
    with command_progress_bar("toy", None, Console(width=80)) as progress:
        for fraction in (0.0, 1.0, 0.2):
            progress(fraction)
    assert capsys.readouterr().out == "toy: 0 %\ntoy: 100 %\ntoy: 20 %\n"


def test_without_a_terminal_what_goes_on_is_said_once_a_minute(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with command_progress_bar("search", None, Console(width=80)) as progress:
        for now, fraction in [
            (59, 0.1),
            (61, 0.12),
            (62, 0.2),
            (100, 0.25),
            (150, 0.3),
            (161, 0.345),
            (221, 0.4),
            (222, 0.5),
        ]:
            progress(fraction, f"step {now}", line=now == 100)
    assert capsys.readouterr().out == "12.0%: step 61\nstep 100\n34.5%: step 161\n50.0%: step 222\n"


def test_ctrl_c_says_where_things_are_only_if_they_are_kept(capsys, tmp_path):
    empty, begun = tmp_path / "empty", tmp_path / "begun"
    begun.mkdir()
    (begun / "results.jsonl").write_text("{}\n")
    for folder, message in (
        (None, "Interrupted.\n"),
        (empty, "Interrupted. Nothing was saved.\n"),
        (begun, f"Interrupted. Finished parts are in {begun}; the same command continues.\n"),
    ):
        with pytest.raises(KeyboardInterrupt), command_progress_bar("toy", folder, Console(width=80)):
            raise KeyboardInterrupt
        assert capsys.readouterr().err == message


# toy and digits


@pytest.mark.long
def test_the_toy_problem_ends_in_a_table_and_the_path_of_the_picture(tmp_path):
    done = run("toy", "sweep", *SMALL, "--out", tmp_path / "toy")
    assert (done.code, done.err) == (0, "")
    assert all(method in done.out for method in toy.METHODS)
    assert done.out.rstrip().endswith(str(tmp_path / "toy" / "toy.png"))
    assert {file.name for file in (tmp_path / "toy").iterdir()} == {
        "config.json",
        "environment.jsonl",
        "results.jsonl",
        "summary.json",
        "toy.png",
        "toy.svg",
    }
    assert "\x1b" not in done.out  # plain when not a terminal


@pytest.mark.parametrize("words", [("toy", "sweep", *SMALL), ("digits", "search")])
def test_a_folder_in_use_is_refused(words, tmp_path):
    assert_refused_in_use(tmp_path, *words)


@pytest.mark.long
@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
    ids=str,
)
def test_a_signal_keeps_what_is_finished_and_the_same_command_continues(tmp_path, numbers):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert run("toy", "sweep", *LONGER, "--out", whole).code == 0

    results = parted / "results.jsonl"
    sign = tmp_path / "first result"
    program = hold_at(Run, "append", 1, sign) + MAIN
    done = interrupt(["-c", program, "toy", "sweep", *LONGER, "--out", str(parted)], sign.exists, *numbers)
    assert done.code == 130
    assert done.err == f"Interrupted. Finished parts are in {parted}; the same command continues.\n"
    kept = results.read_text()
    assert kept.count("\n") == 1 < (whole / "results.jsonl").read_text().count("\n")
    assert not (parted / "summary.json").exists()

    assert run("toy", "sweep", *LONGER, "--out", parted).code == 0
    assert results.read_text().startswith(kept)
    for name in ("summary.json", "toy.svg"):
        assert (parted / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_exit_after_another_is_not_heard(number):
    program = f"""
import atexit, signal
import asng.cli

def interrupt(arguments):
    signal.raise_signal({number})

atexit.register(signal.raise_signal, {number})
asng.cli.function_of = lambda command: interrupt
asng.cli.main(["toy", "sweep"])
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy", "sweep", "--runs", "0"], "--runs must be at least 1, got 0"),
        (["toy", "sweep", "--alphas", "0.5"], "--alphas must be above 1, got (0.5,)"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, message):
    assert refusal(*arguments) == message


def test_a_folder_of_another_configuration_is_wrong_input(tmp_path):
    (tmp_path / "config.json").write_text('{"experiment": "digits"}')
    assert "experiment: digits there, toy here" in refusal("toy", "sweep", "--out", tmp_path)


def test_a_flag_that_is_not_a_number_is_wrong_input():
    done = run("toy", "sweep", "--runs", "many")
    assert done.code == 2
    assert "--runs" in done.err


@pytest.mark.parametrize("command", ["toy sweep", "digits search"])
def test_help_shows_examples_and_explains_every_flag(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    done = run(*command.split(), "--help")
    assert done.code == 0
    for part in (f"Examples:\n  asng {command}", "--out"):
        assert part in done.out
    assert "the same command continues" in " ".join(done.out.split())
    assert unexplained_flags(done.out) == []


def test_quick_changes_defaults_and_flags_still_count(monkeypatch, tmp_path):
    seen = []

    def note(sweep, folder, progress):
        seen.append((sweep, folder))
        return {"runs": 1, "iterations": 1, "ranges": [], "points": []}

    monkeypatch.setattr(toy, "run", note)
    cli.main(["toy", "sweep", "--quick", "--runs", "3", "--out", str(tmp_path)])
    cli.main(["toy", "sweep", "--runs", "3"])
    assert seen[0][0].runs == seen[1][0].runs == 3
    assert seen[0][0].iterations == toy.QUICK.iterations
    assert seen[1][0].iterations == toy.ToySettings().iterations
    assert seen[0][1] == tmp_path
    assert str(seen[1][1]) == "runs/toy"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_digits_continues_after_a_signal_in_a_training(tmp_path, number):
    words = ["digits", "search", "--epochs", "1", "--training-epochs", "1", "--out"]
    whole, parted, sign = tmp_path / "whole", tmp_path / "parted", tmp_path / "second record"
    assert run(*words, whole).code == 0
    program = hold_at(Run, "append", 2, sign) + MAIN
    done = interrupt(["-c", program, *words, str(parted)], sign.exists, number)
    said = f"Interrupted. Finished parts are in {parted}; the same command continues.\n"
    assert (done.code, done.err) == (130, said)
    assert (parted / "results.jsonl").read_text().count("\n") == 2
    assert run(*words, parted).code == 0
    one, other = (json.loads((folder / "summary.json").read_text()) for folder in (whole, parted))
    for summary in (one, other):
        del summary["seconds"], summary["rows"][0]["seconds"], summary["rows"][0]["random_seconds"]
    assert one == other


@pytest.mark.long
def test_digits_ends_in_its_result_beside_the_baselines(tmp_path):
    done = run("digits", "search", "--epochs", "1", "--training-epochs", "1", "--out", tmp_path)
    assert (done.code, done.err) == (0, "")
    summary = json.loads((tmp_path / "summary.json").read_text())
    found = summary["rows"][0]["values"]
    runs = {f"{kind}{i}{block}" for i in "12" for kind in ("op", "act") for block in range(found[f"depth{i}"])}
    shown = {name: value for name, value in found.items() if name in {"width", "depth1", "depth2", *runs}}
    values = ", ".join(f"{name}={value}" for name, value in shown.items())
    chosen = r"the best of the 20 likeliest by validation loss \(nas\.rerank\), probability [\d.e-]+"
    assert re.search(rf"^Found with seed 0, {chosen}: {re.escape(values)}$", done.out, re.MULTILINE)
    kinds = ("found", "random_best", "random_first", "handcrafted")
    assert re.findall(r"(\d+\.\d\d) %", done.out) == [
        f"{100 * summary['accuracy'][kind]['mean']:.2f}" for kind in kinds
    ]
    *_, comment, last = done.out.splitlines()
    assert comment.startswith("With 597 test images the standard error of an accuracy is ")
    assert last == f"Architecture: {tmp_path / 'architecture.json'}"
