"""Figures of results, for notebooks and files; they need matplotlib."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOR, GRAY = "#0072B2", "0.75"
HALF_COLORS = {"train": COLOR, "valid": "#D55E00"}  # of a step; blue and vermilion, which color-blind people tell apart
OTHER = "#009E73"
COLUMNS = 4
NOT_DRAWN = {"epoch", "steps", "seconds", "delta", "distribution", "capture_seconds", "capture_gb"}
MAX_LABELS = 8  # lines of a panel that are named
LAST = "largest_probability"  # of the panels


def history(result: Any) -> "Figure":
    """Draw losses, metrics and the largest probabilities over the epochs of a search.

    Each loss or metric has a panel with both halves of the steps (training weights, scoring architectures). Further
    panels show the score of a judge, the share of feasible candidates, and the mean of the decisions' largest
    probabilities.

    Args:
        result: A result of `asng.nas.search`, or of `asng.nas.result` with a history.

    Returns:
        A matplotlib figure, shown in notebooks; `figure.savefig("history.svg")` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: `result` is not a result, or its history is empty.

    >>> from types import SimpleNamespace
    >>> first, second = {"train_loss": 0.9, "valid_loss": 1.1}, {"train_loss": 0.5, "valid_loss": 0.6}
    >>> figure = history(SimpleNamespace(history=[first, second]))
    >>> [(line.get_label(), line.get_ydata().tolist()) for line in figure.axes[0].lines]
    [('train', [0.9, 0.5]), ('valid', [1.1, 0.6])]
    """
    _check_result(result, "history")
    records = result.history
    if not isinstance(records, Sequence) or not all(isinstance(record, Mapping) for record in records):
        raise ValueError(f"the history must be a list of records, dicts of names and numbers, got {repr(records)[:80]}")
    names = dict.fromkeys(name for record in records for name in record if name not in NOT_DRAWN)
    if not names:
        raise ValueError("the history is empty; pass the records of your epochs, as in nas.result(oneshot, history)")
    panels: dict[str, dict[str, str]] = {}  # the names in the records by panel and label
    for name in sorted(names, key=LAST.__eq__):  # which keeps the order of the others
        half, _, rest = name.partition("_")
        panel, label = (rest, half) if half in HALF_COLORS and rest else (name, name)
        panels.setdefault(panel, {})[label] = name
    figure, axes = _panels(len(panels), height=2.6)
    for panel, (title, lines) in zip(axes, panels.items(), strict=True):
        panel.set(title=title.replace("_", " "), xlabel="epoch")
        for label, name in sorted(lines.items()):
            epochs = [record.get("epoch", index) for index, record in enumerate(records, 1)]
            numbers = [record.get(name, math.nan) for record in records]
            panel.plot(epochs, numbers, ".-", color=HALF_COLORS.get(label, OTHER), label=label)
        panel.locator_params(axis="x", integer=True)
        if len(lines) > 1:
            panel.legend(frameon=False)
    return figure


def probabilities(result: Any) -> "Figure":
    """Draw how the distribution of a search moved, one panel for each decision.

    Categorical decisions have a line per choice; numbers have the mean with a band of one standard deviation.

    Args:
        result: A result of `asng.nas.search`.

    Returns:
        A matplotlib figure, shown in notebooks; `figure.savefig("probabilities.svg")` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: `result` is not a result, or its history has no distributions.

    >>> from types import SimpleNamespace
    >>> records = [{"distribution": {"act": {"relu": p, "tanh": 1 - p}}} for p in (0.5, 0.75)]
    >>> figure = probabilities(SimpleNamespace(history=records))
    >>> [(line.get_label(), line.get_ydata().tolist()) for line in figure.axes[0].lines]
    [('relu', [0.5, 0.75]), ('tanh', [0.5, 0.25])]
    """
    _check_result(result, "history")
    records = [record for record in result.history if "distribution" in record]
    if not records:
        raise ValueError(
            "the history has no distributions; pass what nas.search returned, or to nas.result records with "
            "'distribution': arch_optimizer.distribution()"
        )
    epochs = [record.get("epoch", index) for index, record in enumerate(records, 1)]
    names = list(records[0]["distribution"])
    figure, axes = _panels(len(names), height=2.6)
    for panel, name in zip(axes, names, strict=True):
        over_time = [record["distribution"][name] for record in records]
        panel.set(title=name, xlabel="epoch")
        panel.locator_params(axis="x", integer=True)
        if over_time[0].keys() == {"mean", "std"}:
            mean, std = (np.array([one[key] for one in over_time]) for key in ("mean", "std"))
            panel.plot(epochs, mean, ".-", color=COLOR)
            panel.fill_between(epochs, mean - std, mean + std, color=COLOR, alpha=0.2, linewidth=0)
            continue
        for label, last in over_time[-1].items():
            if isinstance(last, float):  # not of a family of the user's own
                panel.plot(epochs, [one[label] for one in over_time], ".-", label=_format_choice(label))
        panel.set_ylim(0, 1)
        if len(panel.lines) <= MAX_LABELS:
            panel.legend(frameon=False)
    return figure


def distribution(result: Any) -> "Figure":
    """Draw the final distribution of a search, one panel for each decision.

    Categorical decisions have a bar per choice, the value of the result in blue. Numbers have the mean and one standard
    deviation, within their bounds. Decisions without effect on the result are gray.

    Args:
        result: A result of `asng.nas.search` or `asng.nas.result`.

    Returns:
        A matplotlib figure, shown in notebooks; `figure.savefig("distribution.svg")` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: `result` is not a result.

    >>> from types import SimpleNamespace
    >>> import asng
    >>> optimizer = asng.ASNG({"act": asng.Categorical(["relu", "tanh"])}, initial={"act": [0.25, 0.75]})
    >>> figure = distribution(SimpleNamespace(values={"act": "tanh"}, inactive=(), arch_optimizer=optimizer))
    >>> [axes.get_title() for axes in figure.axes]
    ['act: tanh']
    >>> [round(float(bar.get_width()), 3) for bar in figure.axes[0].patches]
    [0.25, 0.75]
    """
    _check_result(result, "arch_optimizer", "values", "inactive")
    optimizer, values = result.arch_optimizer, result.values
    now = optimizer.distribution()
    longest = max(np.size(parameters) for parameters in now.values())
    figure, axes = _panels(len(now), height=min(0.9 + 0.25 * longest, 10.0))
    for panel, (name, parameters) in zip(axes, now.items(), strict=True):
        variable, is_active = optimizer.space[name], name not in result.inactive
        color = COLOR if is_active else GRAY
        panel.set_title(f"{name}: {_format_choice(values[name])}", color="black" if is_active else "0.5")
        if isinstance(parameters, np.ndarray) and variable.values() is not None:
            _draw_choices(panel, variable, parameters, variable.index(values[name]), color)
        elif hasattr(parameters, "std") and (ends := variable.range()) is not None:
            _draw_number(panel, parameters, ends, variable.log, color)
        else:  # of a family of the user's own
            panel.text(0.5, 0.5, str(parameters), ha="center", va="center", transform=panel.transAxes)
            panel.set_axis_off()
    return figure


def _draw_choices(axes: "Axes", variable: Any, probabilities: Any, chosen: int, color: str) -> None:
    colors = [color if index == chosen else GRAY for index in range(len(probabilities))]
    labels = [_format_choice(value) for value in variable.values()]
    axes.barh(range(len(probabilities)), probabilities, color=colors, tick_label=labels)
    axes.invert_yaxis()  # the first on top
    axes.set(xlim=(0, 1), xlabel="probability")


def _draw_number(axes: "Axes", normal: Any, bounds: tuple[float, float], log: bool, color: str) -> None:
    low, high = bounds
    if log:  # then std is that of the logarithm
        ends = normal.mean * math.exp(-min(normal.std, 700.0)), normal.mean * math.exp(min(normal.std, 700.0))
        axes.set_xscale("log")
    else:
        ends = normal.mean - normal.std, normal.mean + normal.std
    axes.plot([max(ends[0], low), min(ends[1], high)], [0, 0], color=color, linewidth=3)
    axes.plot([normal.mean], [0], "o", color=color)
    margin = 0 if log else 0.03 * (high - low)
    axes.set(xlim=(low - margin, high + margin), yticks=[], xlabel="mean and standard deviation")
    axes.spines["left"].set_visible(False)


def front(front: Any) -> "Figure":
    """Draw a Pareto front: the score over each cost, with the architectures that are not on the front in gray.

    Args:
        front: A front of `asng.nas.front`.

    Returns:
        A matplotlib figure, shown in notebooks; `figure.savefig("front.svg")` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: `front` is not a front, but for example the result of a search.

    >>> from asng import nas
    >>> points = (nas.Architecture({"n": 1}, 0.5, True, score=0.9, costs=(10.0,)),)
    >>> figure = front(nas.Front(points, others=(), measures=("parameters",)))
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['parameters']
    """
    if not all(hasattr(front, name) for name in ("points", "others", "measures")):
        raise ValueError(
            f"this draws what nas.front returns, got a {type(front).__name__}; pass nas.front(result, ...), or draw a "
            "result by plot.history and plot.distribution"
        )
    figure, panels = _panels(len(front.measures), height=3.5, width=4.0)
    for index, (axes, measure) in enumerate(zip(panels, front.measures, strict=True)):
        axes.set(xlabel=measure, ylabel="" if index else "score")
        axes.locator_params(axis="x", nbins=5)  # numbers of parameters are long
        for architectures, color, label in ((front.others, GRAY, "others"), (front.points, COLOR, "front")):
            costs, scores = [a.costs[index] for a in architectures], [a.score for a in architectures]
            axes.plot(costs, scores, "o", color=color, markersize=5, label=label)
        if len(panels) == 1:  # with more of them the front is a surface
            axes.plot(costs, scores, color=color, drawstyle="steps-post")
    panels[0].legend(frameon=False)
    return figure


def _check_result(result: Any, *attributes: str) -> None:
    if not all(hasattr(result, name) for name in attributes):
        shown = " ".join(repr(result).split())[:80]
        raise ValueError(f"draw a result of asng.nas.search or asng.nas.result, got {shown}")


def _panels(count: int, *, height: float, width: float = 3.2) -> tuple["Figure", list["Axes"]]:
    """A figure of its own, without pyplot's global state, and its panels in rows; sizes in inches of one panel."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"figures need matplotlib ({error}): pip install 'asng[plot]'") from None

    class NotebookFigure(Figure):
        """A figure that notebooks show without pyplot and its magic."""

        def _repr_png_(self) -> bytes:
            self.savefig(file := io.BytesIO(), format="png")
            return file.getvalue()

    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = NotebookFigure(figsize=(1 + width * columns, height * rows), layout="constrained")
    panels = [figure.add_subplot(rows, columns, index + 1) for index in range(count)]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _format_choice(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 20 else f"{text[:17]}..."
