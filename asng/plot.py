"""Figures of results, for notebooks and files; they need matplotlib."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def front(front: Any) -> "Figure":
    """Draw a Pareto front: the score over each cost, with the architectures that are not on the front in gray.

    Args:
        front: What `asng.nas.front` returned.

    Returns:
        A matplotlib figure, which notebooks show; `figure.savefig("front.svg")` writes it.

    Raises:
        ImportError: matplotlib is not installed.

    >>> from asng import nas
    >>> points = (nas.Architecture({"n": 1}, 0.5, True, score=0.9, costs=(10.0,)),)
    >>> figure = front(nas.Front(points, others=(), measures=("parameters",)))
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['parameters']
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"figures need matplotlib ({error}): pip install '.[plot]'") from None
    panels = len(front.measures)
    figure = Figure(figsize=(1 + 4 * panels, 3.5), layout="constrained")
    for index, measure in enumerate(front.measures):
        axes = figure.add_subplot(1, panels, index + 1, xlabel=measure, ylabel="" if index else "score")
        for architectures, color, label in ((front.others, "0.75", "others"), (front.points, "#0072B2", "front")):
            costs, scores = [a.costs[index] for a in architectures], [a.score for a in architectures]
            axes.plot(costs, scores, "o", color=color, markersize=5, label=label)
        if panels == 1:  # with more of them the front is a surface
            axes.plot(costs, scores, color=color, drawstyle="steps-post")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False)
    return figure
