"""What ask and tell cost per evaluation, beside cmaes, nevergrad and optuna, and how that cost grows.

    python benchmarks/ask_tell.py --out runs/ask_tell          about three minutes
    python benchmarks/ask_tell.py --out runs/ask_tell --quick  a smoke run; its numbers mean little

How it is measured. One core: process time, BLAS held to one thread. Every run optimizes a real loss
of the values from the start of a search, so converged distributions and skipped updates occur as in
use. A whole search is timed, loop and all; what reading the values and evaluating the loss cost is
timed on the last candidates of the same search, and taken off. Reading the clock between the calls
instead costs a system call each, and shows half a microsecond more. Libraries take turns within each
repetition; the table shows the median over the repetitions and the smallest.

What is counted. asng: ask, with the dict of values of every candidate, and tell. The others: ask and
tell alone, which favors them; what it costs to get a dict of values out of them stands in a column of
its own. lambda is the population size of cmaes. nevergrad and optuna have none: they are asked lambda
times, then told lambda times (nevergrad knows of it as num_workers). Both take milliseconds, so they
get fewer evaluations; optuna's cost also grows with the trials behind it. Variables with one choice
are left out for the others: cmaes refuses them.
"""
# ruff: noqa: E402

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[_name] = "1"  # read when NumPy is loaded, hence before everything else

import argparse
import gc
import json
import math
import platform
import resource
import statistics
import sys
import time
import tracemalloc
import warnings
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from libraries import LIBRARIES, SPACES, Space, WithAsng, WithCmaes, categorical_space, find_installed, loss

clock = time.process_time


# Measuring ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Microseconds of process time per evaluation."""

    ask_tell: float
    values: float


def measure(library: Any, space: Space, population_size: int, evaluations: int, seed: int) -> Cost:
    """One search of `evaluations` from its start."""
    adapter = library(space, population_size, seed)
    ask, values, tell = adapter.ask, adapter.values, adapter.tell
    rounds = math.ceil(evaluations / population_size)
    last: deque[Any] = deque(maxlen=50)
    gc.collect()
    start = clock()
    for _ in range(rounds):
        candidates = ask()
        tell(candidates, [loss(row) for row in values(candidates)])
        last.append(candidates)
    total = (clock() - start) / rounds
    reading = _seconds_per_item(values, last)
    evaluating = _seconds_per_item(lambda rows: [loss(row) for row in rows], [values(c) for c in last])
    unit = 1e6 / population_size
    return Cost(ask_tell=(total - reading - evaluating) * unit, values=reading * unit)


def _seconds_per_item(work: Callable[[Any], Any], items: Collection[Any]) -> float:
    """The smallest of a few passes over the items."""
    passes = []
    for _ in range(5):
        start = clock()
        for item in items:
            work(item)
        passes.append((clock() - start) / len(items))
    return min(passes)


def compare(libraries: list[Any], repeats: int, share: float) -> list[dict[str, Any]]:
    """Every library on every space for lambda 2 and 16, taking turns within each repetition."""
    settings = [(name, population_size) for name in SPACES for population_size in (2, 16)]
    costs: dict[tuple[str, int, str], list[Cost]] = {}
    for library in libraries:  # imports and first calls stay out of the measured runs
        measure(library, categorical_space(4), 2, 20, seed=0)
    gc.collect()
    gc.freeze()  # nor does the garbage collector search through what the libraries keep
    for repeat in range(repeats):
        for name, population_size in settings:
            for library in libraries:
                evaluations = max(32, int(library.evaluations * share))
                cost = measure(library, SPACES[name](), population_size, evaluations, seed=repeat)
                costs.setdefault((name, population_size, library.label), []).append(cost)
    return [
        {
            "space": name,
            "population_size": population_size,
            "library": label,
            "runs": len(runs),
            **_summary(label, runs),
        }
        for (name, population_size, label), runs in costs.items()
    ]


def _summary(label: str, runs: list[Cost]) -> dict[str, float]:
    # asng hands out dicts: whatever reading them costs is part of its price.
    total = [run.ask_tell + (run.values if label == "asng" else 0.0) for run in runs]
    return {
        "median_us": statistics.median(total),
        "min_us": min(total),
        **{f"{part}_us": statistics.median(asdict(run)[part] for run in runs) for part in ("ask_tell", "values")},
    }


def growth(sizes: list[int], repeats: int, share: float) -> dict[str, Any]:
    """asng at lambda 2 on more and more categorical variables of five; the smallest of the repetitions."""
    runs: dict[int, list[float]] = {size: [] for size in sizes}
    for repeat in range(repeats):
        for size in sizes:
            evaluations = max(20, int(share * min(2000, 400_000 / size)))
            cost = measure(WithAsng, categorical_space(size), 2, evaluations, seed=repeat)
            runs[size].append(cost.ask_tell + cost.values)
    rows = [
        {"variables": size, "us": min(us), "median_us": statistics.median(us), "us_per_variable": min(us) / size}
        for size, us in runs.items()
    ]
    large = [row for row in rows if row["variables"] >= 1000]
    return {"rows": rows, "exponent": _exponent(rows), "exponent_from_1000": _exponent(large)}


def _exponent(rows: list[dict[str, Any]]) -> float:
    """The power of the number of variables that the cost grows with: the slope of the logarithms."""
    x, y = (np.log([row[key] for row in rows]) for key in ("variables", "us"))
    return float(np.polyfit(x, y, 1)[0])


def tells(total: int, blocks: int = 10) -> dict[str, Any]:
    """One long run: time and memory block by block; then memory that Python holds, exactly."""
    adapter = WithAsng(categorical_space(), 2, seed=0)
    rows = []
    for block in range(1, blocks + 1):
        parts = [_seconds(adapter, total // blocks // 20) for _ in range(20)]
        # The median over short parts, since other processes disturb some of them.
        rows.append({"tells": block * total // blocks, "us": statistics.median(parts) * 1e6 / 2, "rss_kib": _rss()})
    first, last = (statistics.median(row["us"] for row in part) for part in (rows[1:4], rows[-3:]))
    return {"rows": rows, "time_ratio": last / first, "bytes_per_tell": _growth_per_tell(max(2000, total // 20))}


def _seconds(adapter: WithAsng, rounds: int) -> float:
    """Seconds of one ask and tell, the loss included: it costs the same in every block."""
    start = clock()
    for _ in range(rounds):
        candidates = adapter.ask()
        adapter.tell(candidates, [loss(candidate.values) for candidate in candidates])
    return (clock() - start) / rounds


def _growth_per_tell(rounds: int) -> float:
    """Bytes per tell that one run holds more after all tells than after a tenth of them."""
    adapter = WithAsng(categorical_space(), 2, seed=1)
    tracemalloc.start()
    held = []
    for part in (rounds // 10, rounds - rounds // 10):
        _seconds(adapter, part)
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return (held[1] - held[0]) / (rounds - rounds // 10)


def _rss() -> int:
    """KiB of memory this process has resident now; where that is unknown, the most it ever had."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# Targets ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    name: str
    limit: float
    measured: float | None  # None where a library is missing
    met: bool | None


def targets(comparison: list[dict[str, Any]], grown: dict[str, Any], told: dict[str, Any]) -> list[Target]:
    cost = {(row["space"], row["population_size"], row["library"]): row["median_us"] for row in comparison}
    first = cost["40 categorical of 5", 2, "asng"]
    theirs = cost.get(("40 categorical of 5", 2, WithCmaes.label))
    wanted = [
        ("40 categorical of 5, lambda 2: µs per evaluation", 16.0, first),
        ("the same, as a share of CatCMAwM's", 1 / 3, None if theirs is None else first / theirs),
        ("mixed, lambda 2: µs per evaluation", 35.0, cost["mixed", 2, "asng"]),
        ("growth from 1,000 to 10,000 variables: exponent", 1.1, grown["exponent_from_1000"]),
        ("time of the last tells over the first", 1.1, told["time_ratio"]),
        ("bytes held more per tell (an object has 16 or more)", 8.0, told["bytes_per_tell"]),
    ]
    return [Target(name, limit, got, None if got is None else got <= limit) for name, limit, got in wanted]


# Report -------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1] for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].strip() if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": os.getloadavg()[0],
    }


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Columns as wide as what stands in them, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    print(f"\n{title}")
    for first, *others in [columns, *rows]:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


def show(result: dict[str, Any]) -> None:
    compared = [
        [
            r["space"],
            str(r["population_size"]),
            r["library"],
            *(f"{r[k]:,.1f}" for k in ("median_us", "min_us", "values_us")),
        ]
        for r in result["comparison"]
    ]
    columns = ["space", "lambda", "library", "ask + tell, median", "min", "reading values"]
    table("µs of process time per evaluation", columns, compared)
    grown = result["growth"]
    rows = [[f"{r['variables']:,}", f"{r['us']:,.1f}", f"{r['us_per_variable']:.3f}"] for r in grown["rows"]]
    table("Growth: asng, lambda 2, categorical variables of 5", ["variables", "µs", "µs per variable"], rows)
    print(f"fitted exponent {grown['exponent']:.2f}, from 1,000 variables on {grown['exponent_from_1000']:.2f}")
    rows = [[f"{r['tells']:,}", f"{r['us']:.1f}", f"{r['rss_kib']:,}"] for r in result["tells"]["rows"]]
    table("One long run: asng, 40 variables, lambda 2", ["tells", "µs, loss included", "KiB resident"], rows)
    said = {True: "met", False: "MISSED", None: "-"}
    rows = [
        [t["name"], f"{t['limit']:.4g}", "-" if t["measured"] is None else f"{t['measured']:.4g}", said[t["met"]]]
        for t in result["targets"]
    ]
    table("Targets", ["target", "at most", "measured", ""], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/ask_tell"), help="folder for ask_tell.json")
    parser.add_argument("--quick", action="store_true", help="a smoke run of seconds")
    parser.add_argument("--only", nargs="+", choices=[x.package for x in LIBRARIES], help="compare fewer libraries")
    settings = parser.parse_args()
    warnings.simplefilter("ignore")  # the other libraries' own, for instance a division by zero at lambda 2
    wanted = settings.only or [library.package for library in LIBRARIES]
    libraries, versions, missing = find_installed(["asng", *wanted])
    for name in missing:
        print(f"{name} is not installed and left out; to compare with it: pip install '.[bench]'", file=sys.stderr)
    share, repeats = (0.01, 1) if settings.quick else (1.0, 5)
    about = machine()
    print(", ".join(f"{key} {value}" for key, value in {**about, **versions}.items()))
    comparison = compare(libraries, repeats, share)
    grown = growth([10, 30, 100, 300, 1000, 3000, 10_000], repeats, share)
    told = tells(2_000 if settings.quick else 200_000)
    result = {
        "machine": about,
        "versions": versions,
        "missing": missing,
        "quick": settings.quick,
        "comparison": comparison,
        "growth": grown,
        "tells": told,
        "targets": [asdict(target) for target in targets(comparison, grown, told)],
    }
    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / "ask_tell.json"
    path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    show(result)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
