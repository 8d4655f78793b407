"""Memory, handles, threads and time stay constant in long runs: the benchmark in a short form."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux says how much memory a process has")
def test_memory_handles_and_time_are_constant():
    command = [sys.executable, str(ROOT / "benchmarks" / "long_runs.py"), "--tells", "20000", "--steps", "400"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("   constant\n") == 2
