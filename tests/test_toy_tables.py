"""The tables and the figure of the toy problem are those that the kept files give."""

import re
from pathlib import Path

import pytest
import toy_tables as bench
from PIL import Image, ImageChops, ImageStat

from asng.experiments import toy
from asng.experiments.toy import Setting, ToySettings
from asng.runs import Run, make_config

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SMALL = ToySettings(runs=2, iterations=50, lrs=(0.05,), powers=(0.0, 0.5), alphas=(1.5, 2.0))


@pytest.fixture(scope="module")
def kept():
    return bench.read_summary(ROOT / "results" / "toy")


@pytest.mark.parametrize("table_of", [bench.table_of_ranges, bench.table_of_measures])
def test_the_page_has_the_table_of_the_files(kept, table_of):
    assert table_of(kept) in PAGE


def test_the_page_has_the_size_of_the_sweep(kept):
    text = f"{kept['runs']} runs of each of {len(kept['points'])} settings"
    assert text in " ".join(PAGE.split())
    assert f"within {kept['iterations']:,} iterations" in " ".join(PAGE.split())


def test_the_figure_is_drawn_as_the_page_shows_it(kept, tmp_path):
    toy.draw_sweep(kept, tmp_path)
    drawn, shown = (Image.open(folder / "toy.png").convert("L") for folder in (tmp_path, ROOT / "docs"))
    assert drawn.size == shown.size
    assert ImageStat.Stat(ImageChops.difference(drawn, shown)).mean[0] < 1  # fonts may differ by a little


def test_the_lowest_measure_of_a_step_size_is_bold_and_failures_are_counted():
    reached: dict[Setting, list[int | None]] = {setting: [None, None] for setting in toy.settings_of(SMALL)}
    reached[Setting("ASNG", 0.05, 0.0, 1.5)] = [1000, 2000]
    reached[Setting("ASNG", 0.05, 0.0, 2.0)] = [1, 1]  # another alpha has no column
    reached[Setting("SNG", 0.05, 0.0, None)] = [None, 900]
    assert bench.table_of_measures(toy.summarize(SMALL, reached)).splitlines() == [
        "| lr | step size | ASNG | SNG | Adam |",
        "| --- | --- | --- | --- | --- |",
        "| 0.05 | 1 | **1,500** | 1,800 (1 of 2) | never |",
        "| 0.05 | 0.091 | never | never | never |",
    ]


def test_a_sweep_that_is_not_finished_is_named(tmp_path):
    with Run(tmp_path, make_config("toy", "sweep", SMALL)) as run:
        run.append({"setting": toy.settings_of(SMALL)[0], "iterations": [None, 50]})
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path} has 1 of 8 settings")):
        bench.read_summary(tmp_path)
