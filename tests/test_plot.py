"""Figures of results."""

# mypy: disable-error-code="union-attr"

import io
import sys

import pytest

from asng import plot

pytest.importorskip("matplotlib")
nas = pytest.importorskip("asng.nas")


def small_front(measures=("parameters",)):
    def at(score, *costs):
        return nas.Architecture({"n": 1}, 0.5, True, score=score, costs=costs[: len(measures)])

    return nas.Front((at(0.9, 10.0, 3.0), at(0.5, 20.0, 2.0)), (at(0.95, 20.0, 3.0),), measures)


def test_a_figure_of_a_front_shows_all_points_over_each_cost():
    figure = plot.front(small_front(("parameters", "Latency")))
    assert [axes.get_xlabel() for axes in figure.axes] == ["parameters", "Latency"]
    others, points = figure.axes[1].lines
    assert points.get_xydata().tolist() == [[3.0, 0.9], [2.0, 0.5]]
    assert others.get_xydata().tolist() == [[3.0, 0.95]]


def test_the_front_of_one_cost_is_a_line_of_steps():
    figure = plot.front(small_front())
    *_, line = figure.axes[0].lines
    assert line.get_drawstyle() == "steps-post"
    assert line.get_xydata().tolist() == [[10.0, 0.9], [20.0, 0.5]]
    figure.savefig(file := io.BytesIO(), format="png")
    assert file.getvalue()[:4] == b"\x89PNG"


def test_without_matplotlib_there_is_a_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"figures need matplotlib .*: pip install '\.\[plot\]'"):
        plot.front(small_front())
