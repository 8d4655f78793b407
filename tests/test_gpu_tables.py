"""The tables of the benchmarks on a GPU are those that the kept files give."""

from pathlib import Path

import gpu_tables as bench
import pytest

ROOT = Path(__file__).parents[1]
TABLES = bench.read_tables(ROOT / "results" / "gpu")


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_rows_of_the_file(name):
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    missing = [row for row in bench.table_of(TABLES[name]).splitlines()[2:] if row not in page]
    assert not missing, missing


def test_the_busy_share_is_shown_where_it_was_measured():
    old, new = TABLES["gpu_search"], TABLES["gpu_widths"]
    assert "busy share" not in bench.table_of(old)
    assert "busy share" in bench.table_of(new)


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(SystemExit, match="there are no results of benchmarks"):
        bench.read_tables(tmp_path)
