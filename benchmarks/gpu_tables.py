"""The tables of the benchmarks on a GPU in docs/results.md, from the files in results/gpu.

python benchmarks/gpu_tables.py [results/gpu]
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asng._untrusted import read_json

CURE = "take it from the repository again"
ROOT = Path(__file__).parents[1]
HEADS = ("ms per step", "first step", "kernels", "busy, ms", "busy share", "memory reserved")


def table_of(rows: Sequence[Mapping[str, Any]], first: str = "row") -> str:
    """In Markdown: the median with the fastest and the slowest step; without the busy share where no row has it."""
    heads = [head for head in HEADS if head != "busy share" or any("busy_share" in row for row in rows)]
    lines = [f"| {first} | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for row in rows:
        cells = {
            "ms per step": f"{row['step_ms']:.1f} ({row['fastest_ms']:.1f} to {row['slowest_ms']:.1f})",
            "first step": f"{row['first_step_s']:.1f} s",
            "kernels": f"{row['kernels']:,.0f}",
            "busy, ms": f"{row['busy_ms']:.1f}",
            "busy share": f"{row['busy_share']:.0%}" if "busy_share" in row else "",
            "memory reserved": f"{row['reserved_gb']:.1f} GB",
        }
        lines.append(f"| {row['name']} | " + " | ".join(cells[head] for head in heads) + " |")
    return "\n".join(lines)


def read_tables(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each benchmark, by the name of its file."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise SystemExit(f"there are no results of benchmarks (gpu_search.json, ...) in {folder}")
    return {path.stem: read_json(path, CURE, dict[str, Any])["rows"] for path in paths}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "gpu"
    for name, rows in read_tables(folder).items():
        print(f"{name}:\n\n{table_of(rows)}\n")


if __name__ == "__main__":
    main()
