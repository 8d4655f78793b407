"""The command line: what it prints, its exit codes, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time

import pytest

from asng import cli
from asng.experiments import toy

SIZE = ["--variables", "10", "--choices", "4", "--rates", "0.05", "--alphas", "1.5"]
SMALL = [*SIZE, "--runs", "4", "--iterations", "1500", "--powers", "0", "2"]
LONGER = [*SIZE, "--runs", "5", "--iterations", "5000", "--powers", "0", "3", "4"]  # most of these never succeed


def asng(*arguments):
    command = [sys.executable, "-m", "asng", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_toy_problem_ends_in_a_table_and_the_path_of_the_picture(tmp_path):
    done = asng("toy", *SMALL, "--out", tmp_path / "toy")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(method in done.stdout for method in toy.METHODS)
    assert done.stdout.rstrip().endswith(str(tmp_path / "toy" / "toy.png"))
    assert {file.name for file in (tmp_path / "toy").iterdir()} == {
        "config.json",
        "results.jsonl",
        "summary.json",
        "toy.png",
        "toy.svg",
    }
    assert "\x1b" not in done.stdout  # plain when not a terminal


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_continues(tmp_path):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert asng("toy", *LONGER, "--out", whole).returncode == 0

    command = [sys.executable, "-m", "asng", "toy", *LONGER, "--out", str(parted)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, text=True
    )
    results = parted / "results.jsonl"
    wait_until(lambda: results.exists() and results.read_text().count("\n") >= 1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == f"Interrupted. What is finished is in {parted}; the same command continues.\n"
    wait_until(lambda: not group_exists(process.pid))  # no worker stays behind
    kept = results.read_text()
    assert 1 <= kept.count("\n") < (whole / "results.jsonl").read_text().count("\n")
    assert not (parted / "summary.json").exists()

    assert asng("toy", *LONGER, "--out", parted).returncode == 0
    assert results.read_text().startswith(kept)
    for name in ("summary.json", "toy.svg"):
        assert (parted / name).read_bytes() == (whole / name).read_bytes()


def wait_until(holds, seconds=30):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def group_exists(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy", "--runs", "0"], "asng: runs must be at least 1, got 0\n"),
        (["toy", "--alphas", "0.5"], "asng: alphas must be above 1, got (0.5,)\n"),
        (["tony"], "asng: no command 'tony'; there is 'digits search', 'toy'\n"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", message)


def test_a_folder_of_another_configuration_is_wrong_input(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"experiment": "digits"}')
    with pytest.raises(SystemExit) as left:
        cli.main(["toy", "--out", str(tmp_path)])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert "experiment: digits there, toy here" in error
    assert error.count("\n") == 1


def test_a_flag_that_is_not_a_number_is_wrong_input(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["toy", "--runs", "many"])
    assert left.value.code == 2
    assert "--runs" in capsys.readouterr().err


def test_help_teaches_by_examples(capsys):
    cli.main([])
    assert "asng toy" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        cli.main(["toy", "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for part in ("asng toy --quick", "Examples:", "--rates", "--out", "the same command continues"):
        assert part in text


def test_quick_changes_defaults_and_flags_still_count(monkeypatch, tmp_path):
    seen = []

    def run(sweep, folder, progress):
        seen.append((sweep, folder))
        return {"runs": 1, "iterations": 1, "ranges": [], "points": []}

    monkeypatch.setattr(toy, "run", run)
    cli.main(["toy", "--quick", "--runs", "3", "--out", str(tmp_path)])
    cli.main(["toy", "--runs", "3"])
    assert seen[0][0].runs == seen[1][0].runs == 3
    assert seen[0][0].iterations == toy.QUICK.iterations
    assert seen[1][0].iterations == toy.Settings().iterations
    assert seen[0][1] == tmp_path
    assert str(seen[1][1]) == "runs/toy"
