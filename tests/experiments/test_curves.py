"""Curves of what trainings measured: every number in its place, the same file for the same numbers."""

import re
from typing import Any

import pytest

from asng.experiments import curves

RECORDS: list[dict[str, Any]] = [
    {"epoch": 1, "step": 10, "train_loss": 2.0, "valid_loss": 2.5, "valid_accuracy": 0.25, "seconds": 3.0},
    {"epoch": 2, "step": 20, "train_loss": 1.0, "valid_loss": None, "valid_accuracy": 0.5, "seconds": 3.0},
]


def lines_of(monkeypatch, runs, folder):
    """What is drawn: panel -> label -> points."""
    seen = {}
    panel = curves._panel

    def watch(axes, runs, ending, metrics):
        panel(axes, runs, ending, metrics)
        seen[axes.get_ylabel()] = {
            line.get_label(): list(zip(*(data.tolist() for data in line.get_data()), strict=True))
            for line in axes.lines
        }

    monkeypatch.setattr(curves, "_panel", watch)
    curves.draw_curves(runs, folder)
    return seen


def test_each_kind_of_metric_has_its_panel(monkeypatch, tmp_path):
    seen = lines_of(monkeypatch, {"": RECORDS}, tmp_path)
    assert seen == {
        "loss": {"train": [(10, 2.0), (20, 1.0)], "valid": [(10, 2.5)]},
        "accuracy [%]": {"valid": [(10, 25.0), (20, 50.0)]},
    }


def test_several_runs_are_told_apart_by_their_names(monkeypatch, tmp_path):
    seen = lines_of(monkeypatch, {"seed 0": RECORDS, "seed 1": RECORDS[:1]}, tmp_path)
    assert list(seen["accuracy [%]"]) == ["seed 0 valid", "seed 1 valid"]


@pytest.mark.long
def test_the_files_are_there_with_their_text_and_equal_when_drawn_again(tmp_path):
    one, other = (curves.draw_curves({"": RECORDS}, tmp_path / name) for name in ("one", "other"))
    assert [path.name for path in one] == ["curves.svg", "curves.png"]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, other, strict=True))
    assert re.search(r">\s*accuracy \[%\]\s*<", one[0].read_text())


@pytest.mark.parametrize("records", [[], [{"step": 1, "seconds": 2.0}]])
def test_nothing_to_draw_is_an_error(tmp_path, records):
    with pytest.raises(ValueError, match="nothing to draw"):
        curves.draw_curves({"": records}, tmp_path)
