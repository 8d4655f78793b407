"""Every example runs and finds what it says; the family of examples/poisson.py passes the families' checks."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asng
from tests.helpers.examples import CLAIMS, EXAMPLES, FINDS, check_fit, run
from tests.helpers.family_checks import CHECKS, Case


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_without_warnings_and_finds_what_it_says(path, tmp_path):
    for name, library in {"hugging_face": "transformers", "lightning": "pytorch_lightning", "tuning": "optuna"}.items():
        if path.stem == name:
            pytest.importorskip(library)  # which make test-integrations installs
    printed = run(["-W", "error", str(path)], tmp_path)
    assert printed.strip()
    assert FINDS.get(path.stem, "") in printed
    CLAIMS.get(path.stem, len)(printed)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short(path):
    assert len(path.read_text().splitlines()) < 60


@pytest.mark.long
def test_two_processes_find_what_one_finds(tmp_path):
    path = str(next(path for path in EXAMPLES if path.stem == "two_processes"))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", path]
    together = run(command, tmp_path, PYTHONWARNINGS="error")
    check_fit(together)
    assert "processes: 2" in together
    alone = run([path], tmp_path)
    assert together.splitlines()[0] == alone.splitlines()[0]  # the architecture and its probability


def test_the_examples_that_promise_a_result_are_there():
    assert set(FINDS) | set(CLAIMS) == {path.stem for path in EXAMPLES}


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
    with pytest.warns(UserWarning, match=r"initial\['n'\] = 99.0 becomes 30.0"):
        assert asng.ASNG(space, initial={"n": 99.0}, seed=0).distribution()["n"] == 30  # projected


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_poisson_example_is_solved_for_other_seeds_too(poisson, seed):
    papers = asng.Custom(poisson.Poisson(0.5, 50), value=int)
    space: dict[str, Any] = {"place": asng.Categorical(["kiosk", "station"]), "papers": papers}
    result = asng.minimize(poisson.loss, space, evaluations=1000, seed=seed)
    assert result.values == {"place": "station", "papers": 18}
    assert result.mode["place"] == "station"
