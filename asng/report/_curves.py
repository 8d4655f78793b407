"""The curves of a report as data for its script: what is drawn against steps and time, with mean and spread."""

import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from asng.report._html import clean, format_number, round_number
from asng.report._read import RunData, is_normal, is_number

HALVES = ("train", "valid", "test")  # beginnings of names: a panel has all three
NOT_DRAWN = {"epoch", "step", "checkpoint", "seconds", "capture_seconds", "capture_gb", "calibration_batches"}
TITLES = {
    "loss": "Loss",
    "psnr": "PSNR [dB]",
    "ssim": "SSIM",
    "score": "Score of the judge",
    "feasible": "Share of feasible candidates",
    "largest_probability": "Certainty: mean of the largest probabilities",
    "entropy": "Entropy: mean over the decisions, 1 at the start",
    "delta": "Step size of the distribution (delta)",
    "changes": "Decisions whose most likely value changed",
    "images_per_second": "Images per second",
    "not_finite": "Losses that were not finite",
}
LAST = list(TITLES)[4:]  # the order of the last panels
COLORS = 8  # that the style sheet has


class Curve(NamedTuple):
    """Points of one quantity: steps, seconds, numbers, and the ends of a band around them."""

    name: str
    steps: list[float]
    seconds: list[float]
    numbers: list[float]
    spread: list[float] | None = None
    color: int = 0
    dash: int = 0
    faint: bool = False  # one of the runs behind a mean


class Panel(NamedTuple):
    """A chart with its curves."""

    title: str
    curves: list[Curve]
    log: bool = False
    log_x: bool = False
    x: str = "step"
    unit: bool = False  # from 0 to 1

    def to_json(self, max_points: int) -> dict[str, Any]:
        """The panel as its script reads it."""
        options = {"log": self.log, "logX": self.log_x, "x": self.x, "unit": self.unit}
        return {"title": clean(self.title), **options, "curves": [_to_json(curve, max_points) for curve in self.curves]}

    def describe(self) -> str:
        """The panel in words, for those who do not see it."""
        parts = []
        for curve in [curve for curve in self.curves if not curve.faint and curve.numbers][:8]:
            first, last = format_number(curve.numbers[0]), format_number(curve.numbers[-1])
            ends = f"{min(curve.numbers):.4g} to {max(curve.numbers):.4g}"
            parts.append(f"{clean(curve.name) or 'it'} goes from {first} to {last}, within {ends}")
        return f"{clean(self.title)}: {'; '.join(parts)}."


def _to_json(curve: Curve, max_points: int) -> dict[str, Any]:
    kept = thin(curve.numbers, max_points)
    columns = {"step": curve.steps, "time": curve.seconds, "y": curve.numbers}
    if curve.spread is not None:
        columns["spread"] = curve.spread
    data = {name: [round_number(column[index]) for index in kept] for name, column in columns.items()}
    return {"name": clean(curve.name), "color": curve.color, "dash": curve.dash, "faint": curve.faint, **data}


def thin(numbers: Sequence[float], max_points: int) -> list[int]:
    """Indices of at most `max_points` points: all of them, or the ends and the extremes of equal stretches.

    >>> thin([0, 1, 9, 1, 0, 1, -9, 1], 6)
    [0, 2, 5, 6, 7]
    """
    count = len(numbers)
    if count <= max_points:
        return list(range(count))
    buckets = max(1, (max_points - 2) // 2)
    kept = {0, count - 1}
    for bucket in range(buckets):
        stretch = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        kept |= {min(stretch, key=numbers.__getitem__), max(stretch, key=numbers.__getitem__)}
    return sorted(kept)


def group_runs(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs whose settings differ by their seeds alone, by a name that says how the groups differ."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        settings = {name: value for name, value in run.config.items() if name != "seed"}
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
    configs = [members[0].config for members in groups.values()]
    names = dict.fromkeys(name for config in configs for name in config if name != "seed")
    differing = [name for name in names if len({json.dumps(config.get(name)) for config in configs}) > 1]
    labeled: dict[str, list[RunData]] = {}
    for members in groups.values():
        config = members[0].config
        shown = [f"{name} {format_number(config.get(name))}" for name in differing[:4]]
        label = clean(", ".join(shown)[:80]) or members[0].kind
        while label in labeled:
            label += " (another)"
        labeled[label] = members
    return labeled


def metric_panels(groups: Mapping[str, Sequence[RunData]]) -> list[Panel]:
    """A panel for each kind of metric in the records."""
    curves: dict[str, list[Curve]] = {}
    for color, (label, runs) in enumerate(groups.items()):
        by_run = [_metrics(run) for run in runs]
        for name in dict.fromkeys(name for metrics in by_run for name in metrics):
            half, _, rest = name.partition("_")
            panel, half = (rest, half) if half in HALVES and rest else (name, "")
            dash = HALVES.index(half) if half else 0
            shown = (color if len(groups) > 1 else dash) % COLORS
            text = " ".join(part for part in (label if len(groups) > 1 else "", half) if part)
            of_runs = [metrics[name]._replace(color=shown, dash=dash) for metrics in by_run if name in metrics]
            curves.setdefault(panel, []).extend(_with_mean(text, of_runs, [run.title for run in runs]))
    titles = {panel: TITLES.get(panel, panel.replace("_", " ").capitalize()) for panel in curves}
    order = sorted(curves, key=lambda panel: (panel in LAST and LAST.index(panel) + 1, panel != "loss"))
    return [Panel(titles[panel], curves[panel], log=_is_log(panel, curves[panel])) for panel in order]


def _is_log(panel: str, curves: Sequence[Curve]) -> bool:
    return panel == "delta" and all(number > 0 for curve in curves for number in curve.numbers)


def _with_mean(name: str, curves: list[Curve], titles: Sequence[str]) -> list[Curve]:
    """The mean of several runs with their spread, and the runs themselves behind it."""
    if len(curves) == 1:
        return [curves[0]._replace(name=name)]
    points = [dict(zip(c.steps, zip(c.seconds, c.numbers, strict=True), strict=True)) for c in curves]
    common = [step for step in points[0] if all(step in each for each in points)]
    seconds = [fmean(each[step][0] for each in points) for step in common]
    means = [fmean(each[step][1] for each in points) for step in common]
    spread = [stdev(each[step][1] for each in points) for step in common]
    named = f"{name}, " if name else ""
    mean = Curve(f"{named}mean of {len(curves)} runs", common, seconds, means, spread, curves[0].color, curves[0].dash)
    faint = [c._replace(name=f"{named}{title}", faint=True) for c, title in zip(curves, titles, strict=False)]
    return [*faint, *([mean] if common else [])]


def _metrics(run: RunData) -> dict[str, Curve]:
    """All numbers of the records by their names, and what follows from them."""
    steps, seconds = run.steps, run.seconds
    rows = [*run.records]
    for row, extra in enumerate(_derived(run)):
        rows[row] = {**rows[row], **extra}
    names = dict.fromkeys(name for record in rows for name in record if name not in NOT_DRAWN)
    curves = {}
    for name in names:
        kept = [index for index, record in enumerate(rows) if is_number(record.get(name))]
        if kept:
            numbers = [float(rows[index][name]) for index in kept]
            curves[name] = Curve(name, [steps[i] for i in kept], [seconds[i] for i in kept], numbers)
    return curves


def _derived(run: RunData) -> list[dict[str, float]]:
    """Per record: the entropy of the distribution, and how many decisions have another mode than before."""
    derived: list[dict[str, float]] = []
    before: Any = None
    for record, now in zip(run.records, run.distributions, strict=True):
        entropies = [entropy(parameters) for parameters in now.values() if not is_normal(parameters)]
        fields = {"entropy": fmean(entropies)} if entropies else {}
        code = record.get("architecture")
        if isinstance(code, list) and isinstance(before, list) and len(code) == len(before):
            fields["changes"] = float(sum(a != b for a, b in zip(code, before, strict=True)))
        before = code
        derived.append(fields)
    return derived


def entropy(probabilities: Mapping[str, float]) -> float:
    """The entropy of a choice, as a share of the largest possible one.

    >>> entropy({"a": 0.5, "b": 0.5}), entropy({"a": 1.0, "b": 0.0})
    (1.0, 0.0)
    """
    if len(probabilities) < 2:
        return 0.0
    terms = [p * math.log(p) for p in probabilities.values() if p > 0]
    return abs(sum(terms)) / math.log(len(probabilities))


def probability_panels(run: RunData) -> list[Panel]:
    """A panel for each decision: the probabilities of its choices over time, or a mean with its deviation."""
    moments = [
        (step, second, now) for step, second, now in zip(run.steps, run.seconds, run.distributions, strict=True) if now
    ]
    if len(moments) < 2:
        return []
    panels = []
    for name, parameters in moments[-1][2].items():
        kept = [
            (step, second, now[name]) for step, second, now in moments if now.get(name, {}).keys() == parameters.keys()
        ]
        steps, seconds = [step for step, _, _ in kept], [second for _, second, _ in kept]
        if is_normal(parameters):
            mean, std = ([now[part] for _, _, now in kept] for part in ("mean", "std"))
            panels.append(Panel(name, [Curve("mean", steps, seconds, mean, std)]))
            continue
        curves = [
            Curve(choice, steps, seconds, [now[choice] for _, _, now in kept], None, index % COLORS, index // COLORS)
            for index, choice in enumerate(parameters)
        ]
        panels.append(Panel(name, curves, unit=True))
    return panels


def sweep_panels(run: RunData) -> list[Panel]:
    """Of the toy problem: what a step size costs each method, one panel for each learning rate."""
    found: dict[Any, dict[str, list[tuple[float, float]]]] = {}
    points = run.summary.get("points")
    for point in points if isinstance(points, list) else []:
        numbers: list[Any] = [
            point.get(name) if isinstance(point, dict) else None for name in ("lr", "step", "measure")
        ]
        if all(map(is_number, numbers)) and min(numbers[1:]) > 0:
            alpha = f", alpha {format_number(point['alpha'])}" if is_number(point.get("alpha")) else ""
            line = found.setdefault(numbers[0], {}).setdefault(f"{clean(point.get('method'))}{alpha}", [])
            line.append((float(numbers[1]), float(numbers[2])))
    panels = []
    for lr, lines in found.items():
        curves = []
        for index, (name, pairs) in enumerate(lines.items()):
            steps, measures = map(list, zip(*sorted(pairs), strict=True))
            curves.append(Curve(name, steps, steps, measures, None, index % COLORS))
        title = f"Median iterations / success rate, learning rate {format_number(lr)}"
        panels.append(Panel(title, curves, log=True, log_x=True, x="initial step size"))
    return panels
