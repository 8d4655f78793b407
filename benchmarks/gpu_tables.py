"""The tables of the benchmarks on a GPU in docs/measurements.md, from the files in results/gpu.

python benchmarks/gpu_tables.py [results/gpu]
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from asng._untrusted import read_json

CURE = "take it from the repository again"
ROOT = Path(__file__).parents[1]
Rows = Sequence[Mapping[str, Any]]
KINDS = {  # by what the names of layers begin with
    "pools": ("avg_pool", "max_pool"),
    "batch norms": ("batch_norm",),
    "pointwise": ("pointwise",),
    "sums": ("sum",),
    "reductions": ("reduction",),
    "joins": ("join",),
    "separable convolutions": ("sep_conv",),
}
DTYPES = ("bfloat16", "float32")
COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "ms per step": lambda row: f"{row['step_ms']:.1f} ({row['fastest_ms']:.1f} to {row['slowest_ms']:.1f})",
    "first step": lambda row: f"{row['first_step_s']:.1f} s",
    "kernels": lambda row: f"{row['kernels']:,.0f}",
    "busy, ms": lambda row: f"{row['busy_ms']:.1f}",
    "busy share": lambda row: f"{row['busy_share']:.0%}",
    "memory reserved": lambda row: f"{row['reserved_gb']:.1f} GB",
    "peak memory": lambda row: f"{row['peak_gb']:.1f} GB",
    "losses": lambda row: f"{row['losses']}",
    "largest difference": lambda row: f"{row['largest']:.1e}",
    "of the first step": lambda row: f"{row['first']:.1e}",
}


def table_of(rows: Rows, first: str = "row") -> str:
    """In Markdown: the columns of which the rows have the numbers; ms are the median, the fastest and the slowest."""
    cells: list[dict[str, str]] = []
    for row in rows:
        cells.append({})
        for head, cell in COLUMNS.items():
            with suppress(KeyError):
                cells[-1][head] = cell(row)
    heads = [head for head in COLUMNS if any(head in row for row in cells)]
    lines = [f"| {first} | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for row, found in zip(rows, cells, strict=True):
        lines.append(f"| {row['name']} | " + " | ".join(found.get(head, "") for head in heads) + " |")
    return "\n".join(lines)


def table_of_layers(rows: Rows) -> str:
    """In Markdown: layers by shapes, with the microseconds of fused and of torch's kernels and of the floor."""
    times = {
        (f"{row['layer']}, {row['dtype']}", row["shape"]): " / ".join(
            f"{row[key]:.1f}" for key in ("fused_us", "torch_us", "floor_us")
        )
        for row in rows
    }
    layers, shapes = (list(dict.fromkeys(names)) for names in zip(*times, strict=True))
    lines = ["| fused / torch / floor, µs | " + " | ".join(shapes) + " |", "|---" * (1 + len(shapes)) + "|"]
    for layer in layers:
        lines.append(f"| {layer} | " + " | ".join(times.get((layer, shape), "") for shape in shapes) + " |")
    return "\n".join(lines)


def _of_kind(rows: Rows, kind: str, dtype: str) -> Rows:
    return [row for row in rows if row["layer"].startswith(KINDS[kind]) and row["dtype"] == dtype]


def table_of_ratios(rows: Rows) -> str:
    """In Markdown: the lowest and the highest time with fused kernels, over torch's and over the floor."""
    heads = [f"{dtype}, over {other}" for dtype in DTYPES for other in ("torch's", "the floor")]
    lines = ["| layers | " + " | ".join(heads) + " | slower than torch's |", "|---" * (2 + len(heads)) + "|"]
    for kind in KINDS:
        cells, slower, count = [], 0, 0
        for dtype in DTYPES:
            found = _of_kind(rows, kind, dtype)
            for other in ("torch_us", "floor_us"):
                ratios = [row["fused_us"] / row[other] for row in found]
                cells.append(f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "")
            slower, count = slower + sum(row["fused_us"] > row["torch_us"] for row in found), count + len(found)
        lines.append(f"| {kind} | {' | '.join(cells)} | {slower} of {count} |")
    return "\n".join(lines)


def table_of_errors(rows: Rows) -> str:
    """In Markdown: the largest errors of each kind of layers, relative to float64, with fused and torch's kernels."""
    heads = [f"{dtype}, {kernels}" for dtype in DTYPES for kernels in ("fused", "torch")]
    lines = ["| layers | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for kind in KINDS:
        errors = [
            max((row[f"{kernels}_error"] for row in _of_kind(rows, kind, dtype)), default=None)
            for dtype in DTYPES
            for kernels in ("fused", "torch")
        ]
        cells = ["" if error is None else f"{error:.1e}".replace("e-0", "e-") for error in errors]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_rows(rows: Rows) -> str:
    if "layer" not in rows[0]:
        return table_of(rows)
    return "\n\n".join([table_of_layers(rows), table_of_ratios(rows), table_of_errors(rows)])


def machine_of(result: Mapping[str, Any]) -> str:
    """The GPU and the versions of a run; files of older runs lack some."""
    named = {"PyTorch": "torch", "CUDA": "cuda", "Triton": "triton", "cuda-bindings": "cuda-bindings"}
    versions = [f"{name} {result[key]}" for name, key in named.items() if key in result]
    driver = [f"driver for CUDA {result['driver']}"] if "driver" in result else []
    return ", ".join([result["gpu"], *versions, *driver])


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """The GPU, versions and rows of each benchmark, by the name of its file."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise SystemExit(f"there are no results of benchmarks (gpu_search.json, ...) in {folder}")
    return {path.stem: read_json(path, CURE, dict[str, Any]) for path in paths}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "gpu"
    for name, result in read_results(folder).items():
        print(f"{name}: {machine_of(result)}\n\n{draw_rows(result['rows'])}\n")


if __name__ == "__main__":
    main()
