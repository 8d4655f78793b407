"""What notebooks show for results, architectures, fronts and optimizers: tables with the numbers that are printed."""

import re
from html import unescape
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from asng import ASNG, Categorical, Integer, Real, nas
from asng.nas import Architecture, Front


def cells_of(html: str) -> list[list[str]]:
    """The texts of a table's rows, of all tables one after another."""
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    return [[unescape(re.sub(r"<[^>]*>", "", cell.replace("</li>", " "))).strip() for cell in row] for row in rows]


def test_a_result_has_tables_of_its_decisions_and_epochs():
    model = nn.Sequential(nas.OneOf("op", {"tanh": nn.Tanh(), "relu": nn.ReLU()}), nn.Linear(2, 1))
    batches = [torch.randn(4, 2) for _ in range(3)]
    result = nas.search(model, batches, [*batches], lambda m, x: m(x).square().mean(), epochs=2, progress=False)
    html = result._repr_html_()
    probabilities = result.arch_optimizer.distribution()["op"]
    assert cells_of(html)[:2] == [
        ["decision", "value", "probabilities"],
        ["op", result.values["op"], f"tanh {probabilities[0]:.3f} relu {probabilities[1]:.3f}"],
    ]
    assert f"<b>{result.values['op']}</b>" in html
    assert f"certainty {result.certainty:.2f}</p>" in html
    assert [row[0] for row in cells_of(html)[2:]] == ["epoch", "1", "2"]


def test_a_front_has_the_table_that_it_prints():
    points = (Architecture({"op": "<conv>"}, 0.5, True, score=0.9, costs=(10.0,)),)
    front = Front(points, others=(), measures=("parameters",))
    assert " ".join(text for row in cells_of(front._repr_html_()) for text in row).split() == repr(front).split()


def test_an_architecture_is_a_table_of_its_decisions():
    html = Architecture({"op": "conv", "depth": 2}, 0.25, True, inactive=("op",), score=0.5)._repr_html_()
    assert cells_of(html) == [["decision", "value"], ["op", "conv (no effect)"], ["depth", "2"]]
    assert "<p>probability 0.25, feasible True, certainty nan, score 0.5</p>" in html


def test_an_optimizer_is_a_table_of_its_distribution():
    space = {"op": Categorical(["a", "<b>"]), "n": Integer(1, 9), "lr": Real(1e-4, 1.0, log=True)}
    html = ASNG(space, initial={"op": [0.25, 0.75], "n": (3, 2.5)})._repr_html_()
    assert cells_of(html)[:3] == [
        ["variable", "distribution"],
        ["op", "a 0.250 <b> 0.750"],
        ["n", "mean 3, standard deviation 2.5"],
    ]
    assert cells_of(html)[3][1].startswith("mean 0.01, standard deviation ")


@pytest.mark.parametrize("name", ["<script>", "a & b"])
def test_names_are_escaped(name):
    html = ASNG({name: Categorical(["a", "b"])})._repr_html_()
    assert name not in html
    assert cells_of(html)[1][0] == name


def test_figures_are_pictures_without_pyplot():
    plot = pytest.importorskip("asng.plot")
    pytest.importorskip("matplotlib")
    history = [{"train_loss": 0.9}, {"train_loss": 0.5}]
    assert plot.history(SimpleNamespace(history=history))._repr_png_().startswith(b"\x89PNG")
