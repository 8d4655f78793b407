"""What the tests of the commands share: running one in this process, and Ctrl-C to one in another."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from asng import checkpoints, cli
from asng.experiments import training
from asng.runs import METRICS


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: int | str | None
    out: str
    err: str


def run(*arguments) -> Done:
    """Run a command here."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
    return Done(code, out.getvalue(), err.getvalue())


def refused(*arguments) -> str:
    """Run a command with wrong input; returns the one line that it says about it."""
    done = run(*arguments)
    assert done.code == 2
    assert done.err.startswith("asng: ")
    assert done.err.count("\n") == 1
    return done.err[len("asng: ") : -1]


def interrupted(program: list[str], ready) -> Done:
    """Start Python in another process, and press Ctrl-C as soon as it is ready."""
    process = subprocess.Popen(
        [sys.executable, *map(str, program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        wait_until(lambda: ready() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all that it started, too
        out, err = process.communicate(timeout=60)
        wait_until(lambda: not group_exists(process.pid))  # no worker stays behind
    finally:
        process.kill()
        process.wait()
    return Done(process.returncode, out, err)


def continued_after_ctrl_c(folder, words, program=("-m", "asng")) -> int:
    """Run a search whole, and in two parts with Ctrl-C between them: both end the same. Returns where it was cut."""
    whole, parted = folder / "whole", folder / "parted"
    assert run(*words, "--out", whole).code == 0
    metrics = parted / METRICS
    done = interrupted([*program, *words, "--out", parted], lambda: metrics.exists() and "\n" in metrics.read_text())
    said = f"Interrupted. What is finished is in {parted}; the same command continues.\n"
    assert (done.code, done.err) == (130, said)
    number: int = checkpoints.load(parted / training.CHECKPOINT)["number"]
    assert not (parted / "summary.json").exists()
    assert run(*words, "--out", parted).code == 0
    assert records_of(parted) == records_of(whole)
    assert {**summary_of(parted), "last": 0} == {**summary_of(whole), "last": 0}
    return number


def wait_until(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def records_of(folder) -> list[dict]:
    """The metrics of a run, without what the clock decides."""
    lines = (folder / METRICS).read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "images_per_second")} for line in lines]


def unexplained(help_text: str) -> list[str]:
    """The flags of a help text that no words stand behind."""
    _, options = help_text.split(" options ", 1)
    parts = [part.split("(default")[0] for part in re.split(r"\n[│ ]+(?=--[a-z])", options)[1:]]
    assert len(parts) >= 2, "this is no help text"
    return [part for part in parts if len(re.findall("[a-z]{2,}", re.sub(r"^--\S+( \{.*?\})?", "", part))) < 2]


def summary_of(folder) -> dict:
    """What a run that has ended says of itself."""
    return json.loads((folder / "summary.json").read_text())


class Asked(Exception):
    """Ends a command where its computation would begin."""


def asking(monkeypatch, command, experiment):
    """A function that runs a command up to its computation, and returns what `search` or `retrain` is asked for."""
    seen = []

    def ask(*arguments, **_):
        seen.append(arguments)
        raise Asked

    def which(*words):
        with pytest.raises(Asked):
            run(experiment, *words)
        return seen[-1]

    monkeypatch.setattr(command, "search", ask)
    monkeypatch.setattr(command, "retrain", ask)
    return which
