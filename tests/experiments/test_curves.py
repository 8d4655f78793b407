"""Curves of what trainings measured: every number in its place, the same file for the same numbers."""

import re
from typing import Any

import pytest

from asng.experiments import _figures

RECORDS: list[dict[str, Any]] = [
    {"epoch": 1, "step": 10, "train_loss": 2.0, "valid_loss": 2.5, "valid_accuracy": 0.25, "seconds": 3.0},
    {"epoch": 2, "step": 20, "train_loss": 1.0, "valid_loss": None, "valid_accuracy": 0.5, "seconds": 3.0},
]


def lines_of(monkeypatch, records, folder):
    """What is drawn: panel -> label -> points."""
    seen = {}
    panel = _figures._draw_panel

    def watch(axes, *arguments):
        panel(axes, *arguments)
        seen[axes.get_ylabel()] = {
            line.get_label(): list(zip(*(data.tolist() for data in line.get_data()), strict=True))
            for line in axes.lines
        }

    monkeypatch.setattr(_figures, "_draw_panel", watch)
    _figures.draw_curves(records, folder)
    return seen


def test_each_kind_of_metric_has_its_panel(monkeypatch, tmp_path):
    seen = lines_of(monkeypatch, RECORDS, tmp_path)
    assert seen == {
        "loss": {"train": [(10, 2.0), (20, 1.0)], "valid": [(10, 2.5)]},
        "accuracy [%]": {"valid": [(10, 25.0), (20, 50.0)]},
    }


@pytest.mark.long
def test_the_files_are_there_with_their_text_and_equal_when_drawn_again(tmp_path):
    one, other = (_figures.draw_curves(RECORDS, tmp_path / name) for name in ("one", "other"))
    assert [path.name for path in one] == ["curves.svg", "curves.png"]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, other, strict=True))
    assert re.search(r">\s*accuracy \[%\]\s*<", one[0].read_text())


@pytest.mark.parametrize("records", [[], [{"step": 1, "seconds": 2.0}]])
def test_nothing_to_draw_is_an_error(tmp_path, records):
    with pytest.raises(ValueError, match="nothing to draw"):
        _figures.draw_curves(records, tmp_path)
