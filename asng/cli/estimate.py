"""The output of --dry-run."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from asng._html import format_duration


def describe_estimate(estimate: Mapping[str, Any], seeds: int = 1) -> list[str]:
    """An estimate in lines.

    >>> numbers = {"steps": 10, "seconds_per_step": 0.5, "seconds": 5.0, "memory_bytes": 2**30, "disk_bytes": 2**20}
    >>> describe_estimate({"parameters": 1000, **numbers})[:3]
    ['Parameters: 1,000', 'Steps: 10, about 0.5 s each', 'Time: 5 s']
    """
    lines = []
    if "variables" in estimate:
        count = estimate["architectures"]
        size = "unbounded values" if count is None else f"{format_count(count)} architectures"
        lines.append(f"Search space: {estimate['variables']} variables, {size}")
    if "parameters" in estimate:
        lines.append(f"Parameters: {estimate['parameters']:,}")
    if extra := estimate.get("training_only_parameters"):
        lines[-1] += f", and {extra:,} only for training, such as an auxiliary head, which limits do not count"
    if "networks" in estimate:
        smallest, median, largest = (f"{estimate['networks'][name]:,}" for name in ("smallest", "median", "largest"))
        lines[-1] += " in the shared weights"
        lines.append(f"Networks: {smallest} to {largest} parameters, median {median} (100 random architectures)")
    lines.append(f"Steps: {estimate['steps']:,}, about {estimate['seconds_per_step']:.2g} s each")
    bound = "at most " if estimate.get("at_most") else ""
    each = f" for each of {seeds} seeds, {format_duration(seeds * estimate['seconds'])} in all" if seeds > 1 else ""
    lines.append(f"Time: {bound}{format_duration(estimate['seconds'])}{each}")
    if "fastest_step" in estimate:
        factors = (estimate[name] / estimate["seconds_per_step"] for name in ("fastest_step", "slowest_step"))
        low, high = (format_duration(seeds * estimate["seconds"] * factor) for factor in factors)
        if estimate["fastest_step"] == estimate["slowest_step"]:
            lines[-1] += ", by a single step"
        elif low != high:
            lines[-1] += f"; {low} to {high} by the fastest and the slowest of these steps"
    lines += describe_load(estimate.get("load"), estimate.get("threads", 1))
    if estimate["memory_bytes"] is not None:
        lines.append(f"Memory: {decimal(estimate['memory_bytes'])} at the peak of these steps")
    if estimate["disk_bytes"] is not None:
        free = decimal(shutil.disk_usage(Path()).free)
        lines.append(f"Disk: {decimal(seeds * estimate['disk_bytes'])} for checkpoints; {free} free here")
    return [*lines, "Nothing was run or written; leave out --dry-run to start."]


def describe_load(load: float | None, threads: int) -> list[str]:
    """A line on other work on the machine, by the load per core, if there is any; before runs, too.

    >>> describe_load(3.0, threads=1), describe_load(0.5, threads=2)
    (['Load: 3.0 processes per core; an idle machine is faster'], [])
    """
    if load is None or load <= 1.0:
        return []
    cure = f"; OMP_NUM_THREADS=1 keeps torch's {threads} threads from waiting for each other" if threads > 1 else ""
    return [f"Load: {load:.1f} processes per core; an idle machine is faster{cure}"]


def format_count(count: int) -> str:
    """A number of architectures.

    >>> format_count(1944), format_count(5**80)
    ('1,944', '8.2e+55')
    """
    return f"{count:,}" if count < 10**9 else f"{count // 10 ** (len(str(count)) - 2) / 10:g}e+{len(str(count)) - 1}"
