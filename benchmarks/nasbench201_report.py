"""What nasbench201.py shows of its results: tables in Markdown and a figure."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

COMPARED = ("random", "evolution 10/3", "evolution 10/10", "evolution 100/25", "TPE", "CatCMAwM", "ASNG 2", "ASNG 15")
SHOWN = (10, 30, 100, 300, 1000)  # evaluations in the tables
MODE = ", mode"

Array = np.ndarray[Any, Any]


def curves(rows: Sequence[dict[str, Any]], kind: str = "test") -> dict[str, Array]:
    """Regrets (seeds, checkpoints) of each method and choice."""
    found: dict[str, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        for choice, label in (("best", row["method"]), ("mode", row["method"] + MODE)):
            if choice in row:
                found.setdefault(label, []).append(row[choice][kind])
    order = dict.fromkeys([*COMPARED, *(row["method"] for row in rows)])
    return {label: np.array(found[label]) for m in order for label in (m, m + MODE) if label in found}


def standard_error(numbers: Array) -> Array:
    """Over the first axis."""
    return np.asarray(numbers.std(0, ddof=1) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0 * numbers[0])


def show_tables(rows: Sequence[dict[str, Any]], at: list[int]) -> str:
    """Test regret against evaluations, how much ASNG differs from others, and more about the last checkpoint."""
    shown = [at.index(n) for n in SHOWN if n in at] or [len(at) - 1]
    numbers = [f"{at[i]:,}" for i in shown]
    test = curves(rows)
    means = [[label, *(format_mean(t[:, i]) for i in shown)] for label, t in test.items()]
    pairs = [(a, b) for a in COMPARED for b in COMPARED if "ASNG" in a and "ASNG" not in b and {a, b} <= {*test}]
    differences = [
        [f"{a} less {b}", *(format_difference(test[a][:, i], test[b][:, i]) for i in shown)] for a, b in pairs
    ]
    parts = [
        f"Mean test regret with its standard error, by evaluations:\n\n{markdown(['method', *numbers], means)}",
        f"Differences:\n\n{markdown(['methods', *numbers], differences)}",
        f"After {at[-1]:,} evaluations:\n\n{show_last(rows)}",
    ]
    return "\n\n".join(parts)


def show_last(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    valid = curves(rows, "valid")
    for label, numbers in curves(rows).items():
        low, median, high = np.percentile(numbers[:, -1], [25, 50, 75])
        regret = valid[label][:, -1]
        different = np.mean([row["distinct"][-1] for row in rows if row["method"] == label.removesuffix(MODE)])
        cells = [f"{median:.2f}", f"{low:.2f} to {high:.2f}", format_mean(regret, 3), f"{(regret == 0).mean():.0%}"]
        lines.append([label, *cells, f"{different:,.0f}", str(len(numbers))])
    head = [
        "method",
        "median",
        "quartiles",
        "validation regret",
        "best one chosen",
        "different ones evaluated",
        "seeds",
    ]
    return markdown(head, lines)


def format_mean(numbers: Array, digits: int = 2) -> str:
    return f"{numbers.mean():.{digits}f} ± {standard_error(numbers):.{digits}f}"


def format_difference(ours: Array, theirs: Array) -> str:
    """Bold where it is more than two standard errors."""
    difference, error = ours.mean() - theirs.mean(), np.hypot(standard_error(ours), standard_error(theirs))
    text = f"{difference:+.2f} ± {error:.2f}"
    return f"**{text}**" if abs(difference) > 2 * error else text


def markdown(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def draw(rows: Sequence[dict[str, Any]], at: list[int], path: Path) -> None:
    """Mean test regret with standard errors: the highest accuracy seen on the left, ASNG's two choices on the right."""
    from matplotlib.figure import Figure

    from asng.experiments._figures import BLUE, GREEN, ORANGE, PURPLE, SKY

    colors = dict(zip(COMPARED, ["gray", GREEN, GREEN, GREEN, ORANGE, PURPLE, SKY, BLUE], strict=True))
    styles = {"evolution 10/3": "--", "evolution 100/25": ":"}
    found = curves(rows)
    names = [name for name in COMPARED if name in found]
    panels = {
        "choice: highest validation accuracy seen": names,
        "ASNG: the same, and its mode (dashed)": [
            label for name in names for label in (name, name + MODE) if name + MODE in found
        ],
    }
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, (title, labels) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        for label in labels:
            name, mode = label.removesuffix(MODE), label.endswith(MODE)
            color, style = colors[name], "--" if mode else styles.get(name, "-")
            means, errors = found[label].mean(0), standard_error(found[label])
            axes.loglog(at, means, style, color=color, label=None if mode else name)
            axes.fill_between(at, np.maximum(means - errors, 1e-4), means + errors, color=color, alpha=0.2, linewidth=0)
        axes.set(title=title, xlabel="evaluations", ylim=(1e-3, 5))
        axes.grid(alpha=0.3)
        if labels:
            axes.legend(fontsize="small")
    figure.axes[0].set_ylabel("mean test regret (percentage points)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, metadata={"Software": None})
