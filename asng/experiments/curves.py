"""Training curves: losses, accuracies and other metrics, one panel for each kind."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from asng.experiments.figures import COLORS, save_figure

# A panel for each ending of names; what several runs have in common has the same stroke, a run has its color.
PANELS = {"loss": "loss", "accuracy": "accuracy", "psnr": "PSNR [dB]", "ssim": "SSIM", "probability": "certainty"}
STROKES = ("-", "--", ":")


def draw_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path) -> list[Path]:
    """Write curves.svg and curves.png of the records of some runs, by their names; returns the paths.

    Records without anything to draw, or none at all, are an error.
    """
    names = list(dict.fromkeys(name for records in runs.values() for record in records for name in record))
    panels = {ending: [name for name in names if name.endswith(ending)] for ending in PANELS}
    shown = {ending: metrics for ending, metrics in panels.items() if metrics}
    if not shown:
        raise ValueError(f"there is nothing to draw in {names}; records have names that end in {', '.join(PANELS)}")
    figure = Figure(figsize=(4 * len(shown), 3.2), layout="constrained")
    for index, (ending, metrics) in enumerate(shown.items(), start=1):
        _panel(figure.add_subplot(1, len(shown), index), runs, ending, metrics)
    return save_figure(figure, folder, "curves", dpi=150)


def _panel(axes: Any, runs: Mapping[str, Sequence[Mapping[str, Any]]], ending: str, metrics: Sequence[str]) -> None:
    percent = 100 if ending == "accuracy" else 1
    for (run, records), color in zip(runs.items(), cycle(COLORS), strict=False):
        for metric, stroke in zip(metrics, cycle(STROKES), strict=False):
            measured = [record for record in records if record.get(metric) is not None]
            points = [(record["step"], percent * record[metric]) for record in measured]
            label = " ".join(part for part in (run, metric.removesuffix(ending).replace("_", " ").strip()) if part)
            if points:
                axes.plot(*zip(*points, strict=True), stroke, color=color, label=label, marker="o"[len(points) > 1 :])
    axes.set_xlabel("step")
    axes.set_ylabel(PANELS[ending] + (" [%]" if ending == "accuracy" else ""))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False)
