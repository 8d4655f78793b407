"""The curves of a report as data for its script: what is drawn against steps and time, with mean and spread."""

import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from asng._html import clean, format_number, is_normal, round_number
from asng.report._read import FrontData, RunData, dicts_in, is_number
from asng.report._tree import flatten, spread_of, tree_of

HALVES = ("train", "valid", "test")  # beginnings of names: a panel has all three
NOT_DRAWN = {"seed", "epoch", "step", "steps", "checkpoint", "seconds", "capture_seconds", "capture_gb"}
NOT_DRAWN |= {"calibration_batches"}
TITLES = {  # of panels, with what they show
    "loss": ("Loss", ""),
    "psnr": ("PSNR", "dB"),
    "ssim": ("SSIM", "1: equal"),
    "score": ("Score of the judge", "lower is better"),
    "largest_probability": ("Largest probability", "mean over the decisions"),
    "entropy": ("Entropy", "mean over the decisions, 1: uniform"),
    "delta": ("Step size", "delta of the distribution"),
    "changes": ("Changed decisions", "most likely values that changed"),
    "feasible": ("Feasible candidates", "share that met the limits"),
    "images_per_second": ("Speed", "images per second"),
    "not_finite": ("NaN or infinite losses", "steps"),
}
OF_DISTRIBUTION = list(TITLES)[4:9]
OF_COST = list(TITLES)[9:]
NOT_IN_LABELS = {"seed", "architecture"}
PALETTE = 8  # colors of the style sheet
MAX_PROBABILITIES = 200_000  # of a run; of more, those of some moments at equal distances
MAX_CHOICES = 24  # of a decision, the most likely at last


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
    labels: list[str] | None = None  # of points that are no line


class Panel(NamedTuple):
    """A chart with its curves."""

    title: str
    curves: list[Curve]
    note: str = ""  # what is shown, or its unit
    x: str = "step"
    log: bool = False
    log_x: bool = False
    is_share: bool = False  # from 0 to 1
    is_over_time: bool = True  # may be drawn against seconds
    is_factor: bool = False  # spreads are those of logarithms

    def to_json(self, max_points: int) -> dict[str, Any]:
        """The panel as its script reads it."""
        options = {"log": self.log, "logX": self.log_x, "x": clean(self.x), "share": self.is_share}
        options |= {"time": self.is_over_time, "factor": self.is_factor}
        return {"title": clean(self.title), **options, "curves": [_to_data(curve, max_points) for curve in self.curves]}

    def describe(self) -> str:
        """The panel in words, for those who do not see it."""
        parts = []
        for curve in [curve for curve in self.curves if not curve.faint and curve.numbers][:8]:
            first, last = format_number(curve.numbers[0]), format_number(curve.numbers[-1])
            ends = f"{min(curve.numbers):.4g} to {max(curve.numbers):.4g}"
            parts.append(f"{clean(curve.name) or 'it'} goes from {first} to {last}, within {ends}")
        note = f" ({clean(self.note)})" if self.note else ""
        return f"{clean(self.title)}{note}: {'; '.join(parts)}."


def _to_data(curve: Curve, max_points: int) -> dict[str, Any]:
    kept = thin(curve.numbers, max_points)
    columns = {"step": curve.steps, "time": curve.seconds, "y": curve.numbers}
    if curve.spread is not None:
        columns["spread"] = curve.spread
    data: dict[str, Any] = {n: [round_number(column[index]) for index in kept] for n, column in columns.items()}
    if curve.labels is not None:
        data["labels"] = [clean(curve.labels[index]) for index in kept]
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
        span = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        kept |= {min(span, key=numbers.__getitem__), max(span, key=numbers.__getitem__)}
    return sorted(kept)


def group_runs(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Runs whose settings differ by their seeds alone, by a name that says how the groups differ."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        settings = {name: value for name, value in run.config.items() if name != "seed"}
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
    configs = [members[0].config for members in groups.values()]
    names = dict.fromkeys(name for config in configs for name in config if name not in NOT_IN_LABELS)
    differing = [name for name in names if len({json.dumps(config.get(name)) for config in configs}) > 1]
    labeled: dict[str, list[RunData]] = {}
    for members in groups.values():
        config = members[0].config
        shown = [f"{name} {format_number(config.get(name))}" for name in differing[:4]]
        label = clean(", ".join(shown)[:80]) or (members[0].name if len(groups) > 1 else members[0].kind)
        while label in labeled:
            label += " (another)"
        labeled[label] = members
    return labeled


def metric_panels(groups: Mapping[str, Sequence[RunData]]) -> dict[str, list[Panel]]:
    """A panel for each kind of metric in the records, by what they are about."""
    curves: dict[str, list[Curve]] = {}
    for color, (label, runs) in enumerate(groups.items()):
        by_run = [_metrics(run) for run in runs]
        for name in dict.fromkeys(name for metrics in by_run for name in metrics):
            half, _, rest = name.partition("_")
            panel, half = (rest, half) if half in HALVES and rest else (name, "")
            dash = HALVES.index(half) if half else 0
            shown = (color if len(groups) > 1 else dash) % PALETTE
            text = " ".join(part for part in (label if len(groups) > 1 else "", half) if part)
            of_runs = [metrics[name]._replace(color=shown, dash=dash) for metrics in by_run if name in metrics]
            curves.setdefault(panel, []).extend(_add_mean(text, of_runs, [run.title for run in runs]))
    first, unit = ("loss", "score"), next((run.unit for runs in groups.values() for run in runs if run.records), "step")
    panels: dict[str, list[Panel]] = {"Loss and metrics": [], "Distribution": [], "Cost": []}
    for panel in sorted(curves, key=lambda name: (name not in first, name in TITLES and list(TITLES).index(name))):
        title, note = TITLES.get(panel, (panel.replace("_", " ").capitalize(), ""))
        group = "Distribution" if panel in OF_DISTRIBUTION else "Cost" if panel in OF_COST else "Loss and metrics"
        is_log = panel == "delta" and all(number > 0 for curve in curves[panel] for number in curve.numbers)
        panels[group].append(Panel(title, curves[panel], note, unit, log=is_log))
    return {group: members for group, members in panels.items() if members}


def _add_mean(name: str, curves: list[Curve], titles: Sequence[str]) -> list[Curve]:
    """The mean of several runs with their spread, and the runs themselves behind it."""
    if len(curves) == 1:
        return [curves[0]._replace(name=name)]
    points = [dict(zip(c.steps, zip(c.seconds, c.numbers, strict=True), strict=True)) for c in curves]
    common = [step for step in points[0] if all(step in each for each in points)]
    seconds = [fmean(each[step][0] for each in points) for step in common]
    means = [fmean(each[step][1] for each in points) for step in common]
    spread = [stdev(each[step][1] for each in points) for step in common]
    named = f"{name}, " if name else ""
    mean = Curve(name or "mean", common, seconds, means, spread, curves[0].color, curves[0].dash)
    faint = [c._replace(name=f"{named}{title}", faint=True) for c, title in zip(curves, titles, strict=False)]
    return [*faint, *([mean] if common else [])]


def _metrics(run: RunData) -> dict[str, Curve]:
    """All numbers of the records by their names, and what follows from them."""
    steps, seconds = run.steps, run.seconds
    rows = [{**record, **extra} for record, extra in zip(run.records, _derive_metrics(run), strict=True)]
    names = dict.fromkeys(name for record in rows for name in record if name not in NOT_DRAWN)
    curves = {}
    for name in names:
        kept = [index for index, record in enumerate(rows) if is_number(record.get(name))]
        if kept:
            numbers = [float(rows[index][name]) for index in kept]
            curves[name] = Curve(name, [steps[i] for i in kept], [seconds[i] for i in kept], numbers)
    return curves


def _derive_metrics(run: RunData) -> list[dict[str, float]]:
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
    log_names = {node.name for node in flatten(tree_of(run)) if node.is_log}
    moments = [each for each in zip(run.steps, run.seconds, run.distributions, strict=True) if each[2]]
    if len(moments) < 2:
        return []
    size = sum(map(len, moments[-1][2].values()))
    count = min(len(moments), max(30, MAX_PROBABILITIES // size))
    moments = [moments[round(index * (len(moments) - 1) / (count - 1))] for index in range(count)]
    panels = []
    for name, parameters in moments[-1][2].items():
        if run.values and name not in run.values:
            continue
        kept = [each for each in moments if each[2].get(name, {}).keys() == parameters.keys()]
        steps, seconds, course = [step for step, _, _ in kept], [s for _, s, _ in kept], [now[name] for *_, now in kept]
        value = run.values.get(name)
        if is_normal(parameters):
            mean, std = ([now[part] for now in course] for part in ("mean", "std"))
            is_log = name in log_names and min(mean) > 0
            line = Curve("mean", steps, seconds, mean, [spread_of(abs(each), is_log) for each in std])
            note = format_number(value if is_number(value) else mean[-1])
            panels.append(Panel(name, [line], note, run.unit, log=is_log, is_factor=is_log))
            continue
        choices = sorted(parameters, key=lambda choice: -parameters[choice])[:MAX_CHOICES]
        curves = [
            Curve(choice, steps, seconds, [now[choice] for now in course], None, index % PALETTE, index // PALETTE)
            for index, choice in enumerate(each for each in parameters if each in choices)
        ]
        chosen = str(value) if str(value) in parameters else choices[0]
        panels.append(Panel(name, curves, f"{chosen} {parameters[chosen]:.2f}", run.unit, is_share=True))
    return panels


def sweep_panels(run: RunData) -> list[Panel]:
    """Of the toy problem: what a step size costs each method, one panel for each learning rate."""
    found: dict[Any, dict[str, list[tuple[float, float]]]] = {}
    for point in dicts_in(run.summary.get("points")):
        numbers: list[Any] = [point.get(name) for name in ("lr", "step", "measure")]
        if all(map(is_number, numbers)) and min(numbers[1:]) > 0:
            alpha = f", alpha {format_number(point['alpha'])}" if is_number(point.get("alpha")) else ""
            line = found.setdefault(numbers[0], {}).setdefault(f"{clean(point.get('method'))}{alpha}", [])
            line.append((float(numbers[1]), float(numbers[2])))
    panels = []
    for lr, lines in found.items():
        curves = []
        for index, (name, pairs) in enumerate(lines.items()):
            steps, measures = map(list, zip(*sorted(pairs), strict=True))
            curves.append(Curve(name, steps, steps, measures, None, index % PALETTE))
        note = "median iterations / success rate"
        title, axes = f"Learning rate {format_number(lr)}", {"log": True, "log_x": True, "is_over_time": False}
        panels.append(Panel(title, curves, note, "initial step size", **axes))
    return panels


def front_panels(front: FrontData) -> list[Panel]:
    """A panel for each measure of a Pareto front: scores over costs."""
    panels = []
    for column, measure in enumerate(front.measures):
        curves = []
        for color, (name, points) in enumerate({"front": front.points, "others": front.others}.items()):
            ordered = sorted(points, key=lambda point: point.costs[column])
            costs = [point.costs[column] for point in ordered]
            labels = [", ".join(f"{key} {format_number(v)}" for key, v in point.values.items()) for point in ordered]
            look = 0 if color == 0 else PALETTE - 1
            scores = [point.score for point in ordered]
            curves.append(Curve(name, costs, costs, scores, None, look, faint=color > 0, labels=labels))
        panels.append(Panel(f"Score over {measure}", curves, "lower is better", measure, is_over_time=False))
    return panels
