"""Every example runs and finds what it says; the family of examples/poisson.py passes the families' checks."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_checks import CHECKS, Case

import asng

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
FINDS = {
    "poisson": "best: {'place': 'station', 'papers': 18} with a profit of 27.0",
    "ask_tell": "most likely: {'activation': 'gelu', 'layers': 5, 'rate': 0.00",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_without_warnings_and_prints_its_result(path, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(asng.__file__).parents[1])}
    command = [sys.executable, "-W", "error", str(path)]
    run = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert run.stdout.strip()
    assert FINDS.get(path.stem, "") in run.stdout


def test_the_examples_that_promise_a_result_are_there():
    assert set(FINDS) <= {path.stem for path in EXAMPLES}


@pytest.fixture(scope="module")
def poisson():
    path = Path(__file__).parents[1] / "examples" / "poisson.py"
    spec = importlib.util.spec_from_file_location("poisson", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("check", CHECKS)
def test_the_poisson_family_passes_every_check(poisson, check):
    rates = np.array([[0.5], [1.0], [7.3], [30.0]])
    check(Case(poisson.Poisson(0.5, 30), rates, np.diag))  # the variance is the rate


def test_prior_knowledge_reaches_a_family_of_ones_own(poisson):
    space: dict[str, Any] = {
        "n": asng.Custom(poisson.Poisson(0.5, 30), value=int),
        "kind": asng.Categorical(["a", "b"]),
    }
    assert asng.ASNG(space, initial={"n": 12.0}, seed=0).distribution()["n"] == 12
    assert asng.ASNG(space, initial={"n": 99.0}, seed=0).distribution()["n"] == 30  # projected


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_poisson_example_is_solved_for_other_seeds_too(poisson, seed):
    papers = asng.Custom(poisson.Poisson(0.5, 50), value=int)
    space: dict[str, Any] = {"place": asng.Categorical(["kiosk", "station"]), "papers": papers}
    result = asng.minimize(poisson.loss, space, evaluations=1000, seed=seed)
    assert result.values == {"place": "station", "papers": 18}
    assert result.mode["place"] == "station"
