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
from pathlib import Path
from typing import NamedTuple

import pytest

from asng import cli
from asng.cli import images
from asng.nas import _checkpoints as checkpoints
from asng.nas._loop import Epoch
from asng.runs import CHECKPOINT, METRICS, Run
from tests.helpers.tasks import LONG

MAIN = """
import sys
from asng.cli import main
main(sys.argv[1:])
"""
HOLD = """
import os, signal
from pathlib import Path
from {module} import {owner}

woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
calls, method = 0, {owner}.{name}

def hold(*arguments):
    global calls
    method(*arguments)
    calls += 1
    if calls == {nth}:
        Path({sign!r}).touch()
        os.read(woken, 1)

{owner}.{name} = hold
"""


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


def refusal(*arguments) -> str:
    """Run a command with wrong input; returns the one line that it says about it."""
    done = run(*arguments)
    assert done.code == 2
    assert done.err.startswith("asng: ")
    assert done.err.count("\n") == 1
    return done.err[len("asng: ") : -1]


def hold_at(owner: type, name: str, nth: int, sign: Path) -> str:
    """Put before a program, it leaves a sign after the nth call of a method, and goes on when Ctrl-C has come."""
    return HOLD.format(module=owner.__module__, owner=owner.__name__, name=name, nth=nth, sign=str(sign))


def assert_refused_in_use(folder, *arguments) -> None:
    """Run a command in a folder that is in use: it is refused in one line that says by whom, and changes nothing."""
    with Run(folder, {}) as other:
        before = {path: path.read_bytes() for path in folder.iterdir()}
        said = refusal(*arguments, "--out", folder)
        assert said.startswith(f"{folder} is in use by process {os.getpid()} on ")
        assert said.endswith("; wait until it ends, or use another folder (--out)")
        assert {path: path.read_bytes() for path in other.folder.iterdir()} == before


def interrupt(program: list[str], ready, *numbers: int) -> Done:
    """Start Python in another process, and press Ctrl-C, or send other signals in a row, as soon as it is ready."""
    process = subprocess.Popen(
        [sys.executable, *map(str, program)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        wait_until(lambda: ready() or process.poll() is not None)
        for number in numbers or (signal.SIGINT,):
            os.killpg(process.pid, number)  # as a terminal does: to all that it started, too
        out, err = process.communicate(timeout=LONG)
        wait_until(lambda: not group_exists(process.pid))  # no worker stays behind
    finally:
        process.kill()
        process.wait()
    return Done(process.returncode, out, err)


def assert_continues_after_ctrl_c(folder, words, program=MAIN, arguments=()):
    """Run a search whole, and in two parts with Ctrl-C in the fifth step: both end the same."""
    whole, parted, sign = folder / "whole", folder / "parted", folder / "fifth step"
    assert run(*words, "--out", whole).code == 0
    held = hold_at(Epoch, "add", 5, sign) + program
    done = interrupt(["-c", held, *arguments, *words, "--out", parted], sign.exists)
    said = f"Interrupted. Finished parts are in {parted}; the same command continues.\n"
    assert (done.code, done.err) == (130, said)
    assert checkpoints.load(parted / CHECKPOINT)["index"] == 5
    assert not (parted / "summary.json").exists()
    assert run(*words, "--out", parted).code == 0
    assert records_of(parted) == records_of(whole)
    assert {**summary_of(parted), "last": 0} == {**summary_of(whole), "last": 0}


def wait_until(holds):
    deadline = time.monotonic() + LONG
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


def unexplained_flags(help_text: str) -> list[str]:
    """The flags of a help text that no words stand behind."""
    parts = re.split(r"\n  (?=--[a-z])", help_text)[1:]
    assert len(parts) >= 2, "this is no help text"
    return [part for part in parts if len(re.findall("[a-z]{2,}", re.sub(r"^--\S+( \{.*?\})?", "", part))) < 2]


def summary_of(folder) -> dict:
    """What a run that has ended says of itself."""
    return json.loads((folder / "summary.json").read_text())


class Asked(Exception):
    """Ends a command where its computation would begin."""


def request_recorder(monkeypatch, experiment):
    """A function that runs a command up to its computation, and returns what `search` or `retrain` is asked for."""
    seen = []

    def ask(*arguments, **options):
        task, settings, *others, _ = arguments
        seen.append((settings, *others, task, options))
        raise Asked

    def which(*words):
        with pytest.raises(Asked):
            run(experiment, *words)
        return seen[-1]

    monkeypatch.setattr(images, "search", ask)
    monkeypatch.setattr(images, "retrain", ask)
    return which
