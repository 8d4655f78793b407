"""The examples in the README run as they stand, and find what they look for; so does the guide to one-shot search."""

import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from asng import ASNG, nas

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_there_are_two_short_examples(examples):
    assert [len(example.splitlines()) <= 30 for example in examples] == [True, True]


def test_the_first_example_runs_and_finds_the_optimum(examples, capsys):
    names: dict[str, Any] = {}
    exec(examples[0], names)
    found = names["optimizer"].mode()
    assert found["layers"] == 3
    assert abs(found["rate"] - 0.01) < 0.002
    assert {found[f"op{number}"] for number in range(8)} == {"conv3"}
    assert "conv3" in capsys.readouterr().out


@pytest.mark.slow
def test_the_first_example_does_not_depend_on_its_seed(examples):
    losses = []
    for seed in range(20):
        names: dict[str, Any] = {}
        exec(examples[0].replace("seed=1", f"seed={seed}"), names)
        losses.append(names["optimizer"].best.loss)
    assert max(losses) < 0.1


@pytest.mark.long
def test_the_second_example_finds_a_network_that_fits_within_its_limit(examples, capsys):
    names: dict[str, Any] = {}
    exec(examples[1], names)
    found = names["result"]
    assert found.feasible
    assert sum(parameter.numel() for parameter in found.model.parameters()) <= 1000
    assert not any(isinstance(module, nas.Decision) for module in found.model.modules())
    x = torch.linspace(-1, 1, 201)[:, None]
    assert names["loss_fn"](found.model, x) < 0.1 * torch.sin(3 * x).var()
    assert "Sequential" in capsys.readouterr().out


def test_files_that_the_readme_names_are_there():
    links = re.findall(r"\]\(((?!http)[^)]*)\)", README.read_text())
    assert "docs/guide.md" in links
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_the_guide_to_one_shot_search_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide = (README.parent / "docs" / "guide.md").read_text()
    section = guide.split("## One-shot search")[1].split("\n## ")[0]
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)), names)
    assert list(names["space"]) == ["width", "depth", "activation"]
    nas.select(names["model"], names["result"].values)
    assert names["result"].feasible
    assert names["again"].values == names["result"].values
    x = torch.zeros(2, 4)
    for one, other in zip(names["again"].model.parameters(), names["result"].model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert names["small"].eval()(x).shape == (2, 1)
    assert names["tuned"].evaluations == len(names["curves"]) == 8
    assert {len(curve) for curve in names["curves"]} > {3}  # some trials are pruned, some are not
    assert not any(isinstance(module, nas.Decision) for module in names["small"].modules())


def test_the_guide_to_black_boxes_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    guide = (README.parent / "docs" / "guide.md").read_text()
    section = guide.split("## Black boxes")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    assert capsys.readouterr().out.startswith("Result(values={'optimizer': 'adam', 'layers': 5, 'lr': 0.00")
    assert names["result"].loss < 0.02
    exec("\n".join(blocks[1:]), names)
    assert names["result"].evaluations == 100
    assert (tmp_path / "search.json").exists()


# Recipes ------------------------------------------------------------------------------------------

RECIPES = README.parent / "docs" / "recipes.md"


@pytest.mark.slow
def test_the_recipes_run_as_they_stand_and_find_good_networks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", RECIPES.read_text(), flags=re.DOTALL)), names)
    assert names["accuracy"] > 0.9
    assert [len(names["front"].points) > 2, len(names["history"])] == [True, 10]
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 5
    distances = [record["score"] for record in names["result"].history]  # of a GAN
    assert distances[-1] < 0.6 * distances[0]
    for name in ("network.pt", "front.png", "history.png"):
        assert (tmp_path / name).exists()


@pytest.mark.slow
def test_the_steps_that_the_recipes_plan_for_are_those_measured():
    text = RECIPES.read_text()
    source = text.split("## How many steps")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"ASNG": ASNG}
    exec(source, names)
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| \d+ \|$", text, flags=re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        decisions, choices, free, *steps = map(int, row)
        assert free == decisions * (choices - 1)
        for noise, expected in enumerate(steps):  # that of 3 takes too long to repeat
            assert median(names["steps_needed"](decisions, choices, noise, seed) for seed in range(5)) == expected
    assert "take 250, 75 and 30 steps with 2, 4 and 8 candidates" in text
    for size, expected in ((4, 75), (8, 30)):
        assert median(names["steps_needed"](20, 5, 0, seed, size) for seed in range(5)) == expected
