"""The examples in the README run as they stand, and find what they look for."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from asng import nas

README = Path(__file__).parents[1] / "README.md"
NETWORK, BLACK_BOX = 0, 1  # the examples, in their order


@pytest.fixture(scope="module")
def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_there_are_two_short_examples(examples):
    assert [len(example.splitlines()) <= 30 for example in examples] == [True, True]


def test_the_black_box_runs_and_finds_the_optimum(examples, capsys):
    names: dict[str, Any] = {}
    exec(examples[BLACK_BOX], names)
    found = names["result"].values
    assert found["layers"] == 3
    assert abs(found["lr"] - 0.01) < 0.002
    assert {found[f"op{number}"] for number in range(8)} == {"conv3"}
    assert "conv3" in capsys.readouterr().out


@pytest.mark.slow
def test_the_black_box_does_not_depend_on_its_seed(examples):
    losses = []
    for seed in range(20):
        names: dict[str, Any] = {}
        exec(examples[BLACK_BOX].replace("seed=1", f"seed={seed}"), names)
        losses.append(names["result"].loss)
    assert max(losses) < 0.01


@pytest.mark.slow
def test_the_search_finds_a_network_that_fits_within_its_limit(examples, capsys):
    names: dict[str, Any] = {}
    exec(examples[NETWORK], names)
    found = names["result"]
    assert found.feasible
    assert sum(parameter.numel() for parameter in found.model.parameters()) <= 1000
    assert not any(isinstance(module, nas.Decision) for module in found.model.modules())
    x = torch.linspace(-1, 1, 201)[:, None]
    assert names["loss_fn"](found.model, x) < 0.1 * torch.sin(3 * x).var()
    assert found.certainty > 0.8
    printed, shown = capsys.readouterr().out, README.read_text().split("and prints:\n\n```\n")[1].split("\n```")[0]
    assert printed.startswith(shown.splitlines()[0])
    assert "\nfeasible: parameters " in printed
    assert "Sequential" in printed


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) < 200


def test_figures_of_the_readme_stand_in_the_results():
    table = README.read_text().split("## Results")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|") and "---" not in line][1:]
    results = "".join((README.parent / "docs" / f"{page}.md").read_text() for page in ("results", "measurements"))
    numbers = {number for row in rows for number in re.findall(r"\d+\.\d+(?:e-\d+)?|\d,\d{3}", row)}
    assert len(numbers) > 25
    assert [number for number in sorted(numbers) if not re.search(rf"(?<![\d.]){re.escape(number)}", results)] == []


def test_files_that_the_readme_names_are_there():
    links = re.findall(r"\]\(((?!http)[^)#]*)[)#]", README.read_text())
    assert {"docs/first_search.md", "docs/results.md"} <= set(links)
    assert [link for link in links if not (README.parent / link).exists()] == []
