"""Warnings to the reader of a report."""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from asng._convergence import MIN_CERTAINTY, MIN_STEPS, is_noise
from asng._html import format_number, is_normal
from asng.experiments.cifar10.picture import STATES
from asng.experiments.cifar10.space import CELL_KINDS, cell_paths, describe_idle_parts, idle_cells
from asng.report._cells import is_cells
from asng.report._read import MAX_NUMBER, RunData, is_number
from asng.report._tree import running_decisions

PARAMETER_FREE = {"identity", "none", "skip", "zero", "average", "max", "avg_pool", "max_pool", "avg_pool_3x3"}
MAX_FREE = 0.8  # of the operations of a network or of a cell
MIN_DECIDED = 0.5  # certainty of a search of more steps, or of unknown ones
MIN_OPERATIONS = 3
MAX_CELLS = 1000


def find_warnings(run: RunData) -> list[str]:
    """The warnings about a run, a sentence each; empty where there are none."""
    return [
        *run.faults,
        *_find_losses_not_finite(run),
        *_find_unmet_limits(run),
        *_find_short_search(run),
        *_find_collapse(run),
        *_find_cells_without_influence(run),
    ]


def _find_losses_not_finite(run: RunData) -> Iterator[str]:
    bad: dict[str, list[float]] = {}
    known: set[str] = set()  # names that have had a number: null is NaN then, and not what was never measured
    for step, record in zip(run.steps, run.records, strict=True):
        for name, value in record.items():
            is_lost = value is None and name in known and record.get("feasible") != 0
            if name == "not_finite" and is_number(value) and value > 0:
                bad.setdefault("losses", []).append(step)
            elif (isinstance(value, float) and not abs(value) <= MAX_NUMBER) or is_lost:
                bad.setdefault(name.replace("_", " "), []).append(step)
            if is_number(value):
                known.add(name)
    for name, steps in bad.items():
        times = "once" if len(steps) == 1 else f"in {len(steps)} records"
        yield (
            f"NaN or infinite {name} {times}, first at {run.unit} {format_number(steps[0])}: "
            "lower the learning rate, clip the gradient, or look for a division by zero."
        )


def _find_unmet_limits(run: RunData) -> Iterator[str]:
    shares = [record["feasible"] for record in run.records if is_number(record.get("feasible"))]
    if run.summary.get("feasible") is False:
        yield "No architecture met the limits; this is the nearest. Raise the limits, or allow smaller choices."
    elif shares and max(shares) == 0:
        so_far = ", so nothing was trained" if run.summary else " so far"
        yield f"No candidate has met the limits{so_far}. Raise the limits, or allow smaller choices."


def _find_short_search(run: RunData) -> Iterator[str]:
    """Warn of few steps or noise, and an undecided distribution, as `nas.search` does."""
    distribution = run.final_distribution
    choices = [parameters for parameters in distribution.values() if not is_normal(parameters)]
    if not choices or not run.records or run.config.get("method") == "uniform":
        return
    free = sum(len(parameters) - 1 for parameters in choices) + 2 * (len(distribution) - len(choices))
    certainty, name = run.certainty, "its certainty"
    if certainty is None:
        certainty, name = fmean(max(p.values()) for p in choices), "the mean of the largest probabilities"
    steps = _judged_steps(run)
    if steps is not None and steps < MIN_STEPS * free and certainty < MIN_CERTAINTY:
        yield (
            f"The search was too short: {name} is {certainty:.2f} after {format_number(steps)} steps; "
            f"{len(distribution)} decisions such as these take at least {format_number(MIN_STEPS * free)}. "
            "Search for longer."
        )
    elif steps is not None and certainty < MIN_CERTAINTY and _is_noise(run, steps, free):
        yield (
            f"The scores were mostly noise: the step size fell to {run.records[-1]['delta']:.2g} in "
            f"{format_number(steps)} steps, as it does for random scores. Use larger validation batches, or use "
            "nas.rerank."
        )
    elif run.certainty is not None and certainty < MIN_DECIDED:
        yield (
            f"The search ended undecided: its certainty is {certainty:.2f}, from 0 at the start to 1 at most; noise "
            "alone leads to about 0.5. Search for longer, or use larger validation batches."
        )


def _is_noise(run: RunData, steps: float, free: int) -> bool:
    delta: Any = run.records[-1].get("delta")
    return is_number(delta) and is_noise(delta, steps, free)


def _judged_steps(run: RunData) -> float | None:
    """The number of steps that moved the distribution; None where the records do not say it."""
    steps = [record.get("steps") for record in run.records]
    if all(map(is_number, steps)):
        return float(sum(steps))  # type: ignore[arg-type]
    return run.steps[-1] if run.unit == "step" else None


def _find_collapse(run: RunData) -> Iterator[str]:
    for where, operations in _operations(run).items():
        free = sum(operation in PARAMETER_FREE for operation in operations)
        if len(operations) >= MIN_OPERATIONS and free >= MAX_FREE * len(operations):
            yield (
                f"{free} of {len(operations)} operations of the {where} have no parameters, which one-shot searches "
                "tend to favor. Compare with another seed or a longer search, trained from scratch."
            )


def _operations(run: RunData) -> dict[str, list[str]]:
    """The operations of a network that run, or those of each of its cells."""
    values = run.values
    if is_cells(values):
        return {f"{kind} cell": [op for pair in cell_paths(values, kind) for _, op in pair] for kind in CELL_KINDS}
    running = running_decisions(run)
    named = {n: value for n, value in values.items() if n in running and n.rpartition(".")[2].startswith("op")}
    return {"network": [value for value in named.values() if isinstance(value, str)]}


def _find_cells_without_influence(run: RunData) -> Iterator[str]:
    values, cells = run.values, run.config.get("cells")
    if is_cells(values):
        idle = idle_cells(values, cells) if type(cells) is int and 3 <= cells <= MAX_CELLS else []
        yield from describe_idle_parts(values, idle, (STATES[0], STATES[1]))
        yield from _find_idle_parameters(run)
    inactive = run.summary.get("inactive")
    if isinstance(inactive, list) and inactive:
        yield f"{len(inactive)} decisions have no effect on this network: {format_number(inactive)}."


def _find_idle_parameters(run: RunData) -> Iterator[str]:
    whole, effective = (run.summary.get(name, 0) for name in ("parameters", "effective_parameters"))
    if is_number(whole) and is_number(effective) and 0 <= effective < whole:
        yield f"Cells and inputs that are not used hold {1 - effective / whole:.0%} of the parameters."
