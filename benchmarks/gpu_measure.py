"""What the benchmarks on a GPU share: timed steps, kernels counted by torch's profiler, the table and its file."""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

COLUMNS = {
    "ms a step": "step_ms",
    "fastest": "fastest_ms",
    "slowest": "slowest_ms",
    "first, s": "first_step_s",
    "kernels": "kernels",
    "GPU busy, ms": "busy_ms",
    "reserved, GB": "reserved_gb",
}
WARMUP, PROFILED = 3, 3  # steps


class Row(NamedTuple):
    """One way to compute a step: `prepare` makes a function that runs one, `steps` times."""

    name: str
    prepare: Callable[[], Callable[[], Any]]
    steps: int


def run_benchmark(description: str | None, name: str, rows: Callable[[bool], Iterable[Row]]) -> None:
    """The command line of a benchmark; `rows(quick)` are measured, printed and written one after another."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help=f"folder for {name}.json")
    parser.add_argument("--only", default="", help="measure rows whose names contain this")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    settings = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(f"benchmarks/{name}.py needs a CUDA device")
    chosen = [row for row in rows(settings.quick) if settings.only in row.name]
    width = 2 + max(len(row.name) for row in chosen)
    print(" " * width + "".join(f"{head:>14}" for head in COLUMNS))
    result: dict[str, Any] = {"quick": settings.quick, **describe_gpu(), "rows": []}
    settings.out.mkdir(parents=True, exist_ok=True)
    for row in chosen:
        # In a process of its own: once torch's profiler has run in one, all that comes later is slower.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            numbers = process.submit(measure, row).result()
        cells = (f"{numbers[key]:>14,.{0 if key == 'kernels' else 1}f}" for key in COLUMNS.values())
        print(f"{row.name:<{width}}" + "".join(cells), flush=True)
        result["rows"].append({"name": row.name, **numbers})
        (settings.out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def measure(row: Row) -> dict[str, float]:
    """Milliseconds of steps, seconds of the first one, kernels, milliseconds of the GPU at work, gigabytes."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    step, seconds = row.prepare(), []
    for _ in range(WARMUP + row.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    times = seconds[WARMUP:]
    kernels, busy = profile_kernels(step)
    return {
        "step_ms": 1e3 * statistics.median(times),
        "fastest_ms": 1e3 * min(times),
        "slowest_ms": 1e3 * max(times),
        "first_step_s": seconds[0],
        "kernels": kernels,
        "busy_ms": busy,
        "reserved_gb": torch.cuda.memory_reserved() / 1e9,
    }


def profile_kernels(step: Callable[[], Any]) -> tuple[float, float]:
    """Kernels and copies of a step, and the milliseconds that they take one after another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(PROFILED):
                step()
            torch.cuda.synchronize()
        on_device: Any = torch.autograd.DeviceType.CUDA
        events = [event for event in profiler.events() or () if event.device_type == on_device]
    return len(events) / PROFILED, sum(event.device_time_total for event in events) / 1e3 / PROFILED


def describe_gpu() -> dict[str, Any]:
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
