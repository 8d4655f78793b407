"""Reports of runs: one HTML file that needs nothing else, for a browser, a phone or a printer."""

import os
from bisect import bisect_left
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from asng._checks import check_int
from asng._files import as_path, atomic_write, make_folder_for
from asng._untrusted import shorten
from asng.report._page import Page
from asng.report._read import RunData, limit_decisions, read_runs

__all__ = ["write"]

MAX_PAGE = 2_000_000
DETAILS = [(points, 2000) for points in (1000, 500, 250, 120, 60, 30)] + [(30, 400), (30, 100), (30, 25)]
"""Points of a curve and decisions of a run: as many as fit."""


def write(
    folders: Iterable[str | os.PathLike[str]], path: str | os.PathLike[str], *, reload_every: int | None = None
) -> Path:
    """Write a report of one or several runs: one self-contained HTML file, for browsers, phones and printers.

    It shows the main numbers, warnings, the architecture as a graph or as nested boxes, curves, the probabilities of
    all decisions over time, Pareto front, limits, baselines, pictures, settings, and the command that repeats the run.
    Runs that differ only in their seeds also get mean and standard deviation. Runs need not be finished. Warnings name
    damaged files. Long curves are thinned, so that the page stays below 2 MB.

    Args:
        folders: Folders of runs, each with a `config.json`, from `asng` commands or `SearchResult.save`.
        path: Path of the HTML file, which is replaced atomically.
        reload_every: Seconds after which an open page reloads; None for never.

    Returns:
        The path of the HTML file.

    Raises:
        ValueError: There are no folders, one is not a run, there are too many runs for one page, or an argument has a
            wrong type.

    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Path(folder)
    ...     _ = (run / "config.json").write_text(json.dumps({"experiment": "mine", "seed": 3}))
    ...     _ = (run / "metrics.jsonl").write_text('{"epoch": 1, "train_loss": 0.5}\\n')
    ...     page = write([run], run / "report.html").read_text()
    >>> "<h1>mine</h1>" in page
    True
    """
    if isinstance(folders, (str, os.PathLike)):
        raise ValueError(f"folders must be a list of folders, got {folders!r}; give [{folders!r}]")
    if not isinstance(folders, Iterable) or getattr(folders, "ndim", 1) == 0:
        cure = "; save it first, by its save(folder)" if hasattr(folders, "save") else ""
        raise ValueError(f"folders must be a list of folders, got {shorten(folders)}{cure}")
    if reload_every is not None:
        reload_every = check_int(reload_every, "reload_every", min=1)
    page = as_path(path, "path")
    runs = [run for folder in folders for run in read_runs(as_path(folder, "a folder of folders"))]
    if not runs:
        raise ValueError("there are no folders; give those of one or more runs")
    content = _render(runs, reload_every).encode()
    make_folder_for(page)
    with atomic_write(page) as file:
        file.write(content)
    return page


def _render(runs: list[RunData], reload_every: int | None) -> str:
    """The page with the most details that fit, found by bisection."""

    @cache
    def render(detail: int) -> str:
        points, decisions = DETAILS[detail]
        return Page([limit_decisions(run, decisions) for run in runs], points, reload_every).render()

    def fits(detail: int) -> bool:
        return len(render(detail).encode()) < MAX_PAGE

    detail = 0 if fits(0) else bisect_left(range(len(DETAILS)), True, key=fits)  # most pages fit as they are
    if detail == len(DETAILS):
        raise ValueError(f"a page of these {len(runs)} runs is larger than {MAX_PAGE:,} bytes; report fewer of them")
    return render(detail)
