"""The table of larger populations for noisy losses is the one that the kept file gives."""

import json
import sys
from pathlib import Path

import noisy_population as bench

ROOT = Path(__file__).parents[1]


def row_of(evaluations, small, other):
    return {"problem": "some", "evaluations": evaluations, bench.SMALL: small} | {
        f"1/{share}": other for share in bench.SHARES
    }


def test_differences_beyond_two_standard_errors_are_counted_from_1000_evaluations_on():
    better, worse, equal = [0.5, 0.01, 900], [1.5, 0.3, 900], [1.1, 0.3, 900]
    rows = [row_of(n, [1.0, 0.01, 900], other) for n, other in ((300, worse), (1000, better), (3000, equal))]
    assert bench.count_differences(rows).endswith("1/20 is better than small in 1 of 2 and worse in 0.")
    assert bench.show({"rows": rows}).splitlines()[3].startswith("| some | 1,000 | 900 | 1 ± 0.01 | 0.5 ± 0.01 |")


def test_the_page_has_the_table_of_the_file(capsys, monkeypatch):
    folder, page = ROOT / "results" / "noisy_population", (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["noisy_population.py", "--draw", str(folder)])
    bench.main()
    table, _, summary = capsys.readouterr().out.strip().partition("\n\n")
    assert table in page
    assert "1/40 is better than small in 23 of 33 and worse in 3" in summary
    assert "is better by more than two standard errors in 23 of 33 settings" in " ".join(page.split())
    result = json.loads((folder / "noisy_population.json").read_text(encoding="utf-8"))
    assert (result["quick"], result["seeds"]) == (False, list(range(20)))
