"""What the benchmarks on a GPU share: timed steps, kernels counted by torch's profiler, the table and its file."""

import argparse
import json
import math
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from asng.nas._capture.switch import installed_versions

COLUMNS = {  # head: key and format
    "ms a step": ("step_ms", ",.1f"),
    "fastest": ("fastest_ms", ",.1f"),
    "slowest": ("slowest_ms", ",.1f"),
    "first, s": ("first_step_s", ",.1f"),
    "kernels": ("kernels", ",.0f"),
    "GPU busy, ms": ("busy_ms", ",.1f"),
    "busy share": ("busy_share", ".0%"),
    "reserved, GB": ("reserved_gb", ",.1f"),
    "peak, GB": ("peak_gb", ",.1f"),
}
WARMUP, PROFILED = 3, 3  # steps
LISTED = 30  # kinds of kernels


class Row(NamedTuple):
    """One way to compute a step: `prepare` makes a function that runs one, `steps` times."""

    name: str
    prepare: Callable[[], Callable[[], Any]]
    steps: int


class Kernel(NamedTuple):
    """When a kernel or a copy ran, in microseconds."""

    name: str
    start: float
    end: float


def run_benchmark(description: str | None, name: str, rows: Callable[[bool], Iterable[Row]]) -> None:
    """The command line of a benchmark; `rows(quick)` are measured, printed and written one after another."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help=f"folder for {name}.json")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="measure rows of these names, or that contain one of these"
    )
    parser.add_argument("--list-kernels", action="store_true", help="also the kernels that take longest, of each row")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    settings = parser.parse_args()
    known = {row.name: row for row in rows(settings.quick)}
    chosen = [known[row] for row in choose_names(known, settings.only)]
    if not torch.cuda.is_available():
        raise SystemExit(f"benchmarks/{name}.py needs a CUDA device")
    width = 2 + max(len(row.name) for row in chosen)
    machine = describe_gpu()
    print(", ".join(f"{name} {version}" for name, version in machine.items()))
    print(" " * width + "".join(f"{head:>14}" for head in COLUMNS), flush=True)
    result: dict[str, Any] = {"quick": settings.quick, **machine, "rows": []}
    settings.out.mkdir(parents=True, exist_ok=True)
    for row in chosen:
        # In a process of its own: once torch's profiler has run in one, all that comes later is slower.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            numbers = process.submit(measure, row).result()
        cells = (f"{numbers[key]:>14{form}}" for key, form in COLUMNS.values())
        print(f"{row.name:<{width}}" + "".join(cells), flush=True)
        if settings.list_kernels:
            print(show_kernels(numbers["longest"]), flush=True)
        result["rows"].append({"name": row.name, **numbers})
        (settings.out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def choose_names(names: Iterable[str], parts: Sequence[str]) -> list[str]:
    """The names that contain one of the parts; a part that is a name itself is that one alone."""
    names = list(names)
    chosen = {part: [part] if part in names else [name for name in names if part in name] for part in parts}
    if missing := [part for part, found in chosen.items() if not found]:
        raise SystemExit(f"--only: no row contains {missing[0]!r}; there are:\n" + "\n".join(names))
    return [name for name in names if any(name in found for found in chosen.values())]


def measure(row: Row) -> dict[str, Any]:
    """Milliseconds of steps, seconds of the first one, kernels and how long they run, gigabytes in the end and at most.

    What a capture needs only for a while is a part of the peak, and not of what is reserved in the end.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    step, seconds = row.prepare(), []
    for _ in range(WARMUP + row.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    times = seconds[WARMUP:]
    memory = {"reserved_gb": torch.cuda.memory_reserved() / 1e9, "peak_gb": torch.cuda.max_memory_reserved() / 1e9}
    profile_steps(step, 1)  # the profiler takes long at first
    kernels = profile_steps(step, PROFILED)
    step_ms = 1e3 * statistics.median(times)
    return {
        "step_ms": step_ms,
        "fastest_ms": 1e3 * min(times),
        "slowest_ms": 1e3 * max(times),
        "first_step_s": seconds[0],
        "kernels": len(kernels) / PROFILED,
        "busy_ms": sum(kernel.end - kernel.start for kernel in kernels) / 1e3 / PROFILED,
        "busy_share": min(1.0, union_length(kernel[1:] for kernel in kernels) / 1e3 / PROFILED / step_ms),
        **memory,
        "longest": sum_kernels(kernels, PROFILED)[:LISTED],
    }


def profile_steps(step: Callable[[], Any], n: int) -> list[Kernel]:
    """The kernels and copies of n steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(n):
                step()
            torch.cuda.synchronize()
        on_device: Any = torch.autograd.DeviceType.CUDA
        events = [e for e in profiler.events() or () if e.device_type == on_device and not e.is_user_annotation]
    return [Kernel(event.name, event.time_range.start, event.time_range.end) for event in events]


def sum_kernels(kernels: Iterable[Kernel], steps: int) -> list[dict[str, Any]]:
    """By name, how many run in a step and how long all of them take, those that take longest first."""
    found = defaultdict[str, list[float]](list)
    for name, start, end in kernels:
        found[name].append(end - start)
    rows = [{"name": name, "kernels": len(us) / steps, "us": sum(us) / steps} for name, us in found.items()]
    return sorted(rows, key=lambda row: -row["us"])


def show_kernels(rows: Iterable[dict[str, Any]]) -> str:
    lines = [f"{'us a step':>12}{'kernels':>10}  kernel, of those that take longest"]
    return "\n".join([*lines, *(f"{row['us']:>12,.0f}{row['kernels']:>10,.0f}  {row['name'][:90]}" for row in rows)])


def union_length(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals: during which at least one kernel runs."""
    total, until = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def describe_gpu() -> dict[str, Any]:
    return {"gpu": torch.cuda.get_device_name(), **find_versions()}


def find_versions() -> dict[str, Any]:
    """The versions that times depend on, of what is installed; that of the driver is the newest CUDA that it has."""
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for package in ("triton", "cuda-bindings"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    if driver := installed_versions().driver:
        found["driver"] = f"{driver // 1000}.{driver % 1000 // 10}"
    return found
