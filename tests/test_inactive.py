"""The table of variables without effect is the one that the kept file gives."""

import json
import sys
from pathlib import Path

import inactive as bench

ROOT = Path(__file__).parents[1]


def row_of(difference, error):
    of = {"paper": [0.3, 0.1], "mask_inactive": [0.3 + difference, 0.1], "difference": [difference, error]}
    return {"depth": "integer", "blocks": 10, "best": 2, "population_size": 8, "last": of, "average": of}


def test_differences_beyond_two_standard_errors_are_counted():
    rows = [row_of(-0.1, 0.01), row_of(0.1, 0.06), row_of(0.0, 0.0)]
    table = bench.show({"seeds": 3, "steps": 60, "rows": rows})
    assert table.splitlines()[2] == "| integer | 2 of 10 | 8 | 0.300 | 0.200 | -0.100 ± 0.010 | -0.100 ± 0.010 |"
    assert table.endswith("leaving out is better in 1 of 3 settings and worse in 0.")


def test_the_page_has_the_table_of_the_file(capsys, monkeypatch):
    folder = ROOT / "results" / "inactive"
    monkeypatch.setattr(sys, "argv", ["inactive.py", "--draw", str(folder)])
    bench.main()
    table, _, summary = capsys.readouterr().out.strip().partition("\n\n")
    assert table in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    result = json.loads((folder / "inactive.json").read_text(encoding="utf-8"))
    assert (result["quick"], result["seeds"], result["steps"]) == (False, 40, 600)
    assert summary.startswith("40 seeds of 600 steps each.")
