"""What the benchmarks on a GPU share: timed steps, kernels counted by torch's profiler, tables."""

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def measure(step: Callable[[], Any], steps: int, *, warmup: int = 3, profiled: int = 3) -> dict[str, float]:
    """Milliseconds of steps, seconds of the first one, kernels, milliseconds of the GPU at work, gigabytes."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(warmup + steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    times = seconds[warmup:]
    median = statistics.median(times)
    kernels, busy = profile_kernels(step, profiled)
    return {
        "step_ms": 1e3 * median,
        "fastest_ms": 1e3 * min(times),
        "slowest_ms": 1e3 * max(times),
        "first_step_s": seconds[0],
        "kernels": kernels,
        "busy_ms": busy,
        "reserved_gb": torch.cuda.memory_reserved() / 1e9,
    }


def profile_kernels(step: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Kernels and copies of a step, and the milliseconds that they take one after another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
        on_device: Any = torch.autograd.DeviceType.CUDA
        events = [event for event in profiler.events() or () if event.device_type == on_device]
    return len(events) / steps, sum(event.device_time_total for event in events) / 1e3 / steps


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    width = 2 + max(len(row["name"]) for row in rows)
    heads = ("ms a step", "fastest", "slowest", "first, s", "kernels", "GPU busy, ms", "reserved, GB")
    print(" " * width + "".join(f"{head:>14}" for head in heads))
    keys = ("step_ms", "fastest_ms", "slowest_ms", "first_step_s", "kernels", "busy_ms", "reserved_gb")
    for row in rows:
        print(f"{row['name']:<{width}}" + "".join(f"{row[key]:>14,.{0 if key == 'kernels' else 1}f}" for key in keys))


def describe_gpu() -> dict[str, Any]:
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}


def require_gpu(name: str) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"{name} needs a CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
