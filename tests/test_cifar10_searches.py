"""The table of the searches on CIFAR-10 is the one that the kept files give."""

from pathlib import Path

import cifar10_searches as bench
import pytest
from PIL import Image, ImageChops, ImageStat

ROOT = Path(__file__).parents[1]
CELLS = "cifar10-seed0-cells.png"


@pytest.fixture
def searches():
    return bench.read_searches(ROOT / "results" / "cifar10")


def test_the_page_has_the_table_of_the_files(searches):
    assert bench.table_of(searches) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_page_has_the_sizes_of_the_networks_found(searches):
    assert bench.sizes_of(searches) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_page_has_what_the_searches_cost(searches):
    assert bench.costs_of(searches) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_page_names_the_searches_with_cells_without_influence():
    _, found = bench.name_idle(ROOT / "results" / "cifar10").splitlines()
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = page.split("### The paper's search")[1].split("\n### ")[0]
    names, cells = found.split(": cells ")
    assert cells == "14, 16, 18"
    assert [name for name in names.split(", ") if name.split("/")[-1].removeprefix("seed") not in section] == []


def test_few_random_architectures_have_cells_without_influence():
    assert bench.idle_share(draws=200) < 0.1


def test_an_epoch_that_was_not_tested_has_a_dash(searches):
    table = bench.table_of([searches[0]._replace(tests={})], [100])
    assert table.splitlines()[-1] == "| 0 | 100 | 82.6 % | - | 0.954 | 0 |"


def test_choices_are_compared_with_those_at_the_end(searches):
    assert searches[0].count_differences(100) == 0
    assert searches[0].count_differences(10) == 6


def test_the_figure_is_drawn(searches, tmp_path):
    bench.draw(searches, tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_the_cells_are_drawn_as_the_pages_show_them(tmp_path):
    bench.draw_cells(ROOT / "results" / "cifar10" / "seed0", tmp_path / "cells.png")
    drawn, shown = (Image.open(path).convert("L") for path in (tmp_path / "cells.png", ROOT / "docs" / CELLS))
    assert drawn.size == shown.size
    assert ImageStat.Stat(ImageChops.difference(drawn, shown)).mean[0] < 1  # fonts may differ by a little


def test_a_folder_without_searches_is_named(tmp_path):
    with pytest.raises(SystemExit, match="there is no seed0"):
        bench.read_searches(tmp_path)
