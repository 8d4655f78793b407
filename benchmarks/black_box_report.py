"""Tables and the figure of black_box.py, from its rows."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from black_box_methods import METHODS
from black_box_problems import PROBLEMS

Row = dict[str, Any]
Group = dict[str, list[Row]]
SUITES = ("pbo", "mixint", "bbob")
WHOLE = 1000  # evaluations of a whole run, where a problem has more: on mixint asng alone had those
TARGETS = (250, 500, 1000)  # evaluations of CatCMAwM whose median regret is a target


def groups_of(rows: list[Row]) -> dict[str, Group]:
    """By problem and method, in the order of the script."""
    return {
        problem: {m: of for m in METHODS if (of := [r for r in rows if (r["problem"], r["method"]) == (problem, m)])}
        for problem in PROBLEMS
        if any(row["problem"] == problem for row in rows)
    }


def regret_at(row: Row, evaluations: float) -> float:
    """The regret of the values of the lowest loss seen after a number of evaluations."""
    if evaluations >= row["evaluations"]:
        return float(row["regret"])
    return float(next(regret for n, regret in reversed(row["steps"]) if n <= evaluations))


def show(rows: list[Row]) -> list[str]:
    """All tables: of whole runs, then of shorter ones, as GP has them, with those that had as many evaluations."""
    whole, shorter = split_by_length(rows)
    tables = [*show_summary(whole), *show_medians(whole), *show_ratios(whole)]
    for _, short in sorted(shorter.items()):
        tables += [*show_summary(short), *show_medians(short)]
    return tables


def split_by_length(rows: list[Row]) -> tuple[list[Row], dict[int, list[Row]]]:
    """Those of whole runs, and of shorter ones by their evaluations."""
    whole: list[Row] = []
    shorter: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        is_whole = row["evaluations"] >= min(PROBLEMS[row["problem"]][1], WHOLE)
        (whole if is_whole else shorter[row["evaluations"]]).append(row)
    return whole, shorter


def show_against(rows: list[Row], method: str) -> str:
    """By the test of `show_summary`: on which problems others are better than a method, and who is ahead of all."""
    whole, shorter = split_by_length(rows)
    lengths = {"whole runs": whole, **{f"{n} evaluations": of for n, of in sorted(shorter.items())}}
    lines = []
    for title, of_length in lengths.items():
        if of_length:
            lines += [f"{title}, {method} and others:", *_compare(of_length, method)]
            lines += [f"{title}, ahead of all others:", *_name_leaders(of_length)]
    return "\n".join(lines)


def _compare(rows: list[Row], method: str) -> list[str]:
    worse: dict[tuple[str, str], int] = Counter()
    better: dict[tuple[str, str], list[str]] = defaultdict(list)
    total: dict[tuple[str, str], int] = Counter()
    for problem, regrets in _regrets_of(rows).items():
        for other in METHODS:
            if other != method and {other, method} <= regrets.keys():
                key = other, _kind(problem)
                total[key] += 1
                worse[key] += _is_higher(regrets[other], regrets[method])
                better[key] += [problem] * _is_higher(regrets[method], regrets[other])
    lines = []
    for other, kind in sorted(total, key=lambda key: list(METHODS).index(key[0])):
        names = better[other, kind]
        numbers = f"worse on {worse[other, kind]}, better on {len(names)}"
        where = f": {', '.join(names)}" if names else ""
        lines.append(f"- {other} on {total[other, kind]}, {kind}: {numbers}{where}")
    return lines


def _name_leaders(rows: list[Row]) -> list[str]:
    ahead: dict[str, list[str]] = defaultdict(list)
    for problem, regrets in _regrets_of(rows).items():
        for method, own in regrets.items():
            if all(_is_higher(of, own) for other, of in regrets.items() if other != method):
                ahead[method].append(problem)
    return [f"- {method} on {len(names)}: {', '.join(names)}" for method, names in ahead.items()]


def _regrets_of(rows: list[Row]) -> dict[str, dict[str, list[float]]]:
    """By problem and method, after the evaluations that all methods had."""
    return {
        problem: {method: [regret_at(row, _least(group)) for row in of] for method, of in group.items()}
        for problem, group in groups_of(rows).items()
    }


def show_seconds(rows: list[Row]) -> list[str]:
    """The processor time of a run in seconds, problem and method together: medians by kind of problem."""
    seconds: dict[str, dict[int, dict[str, list[float]]]] = {}
    for problem, group in groups_of(rows).items():
        for row in (row for of in group.values() for row in of):
            of_length = seconds.setdefault(_kind(problem), {}).setdefault(row["evaluations"], {})
            of_length.setdefault(row["method"], []).append(row["seconds"])
    methods = [method for method in METHODS if any(row["method"] == method for row in rows)]
    lines = ["| seconds per run | evaluations | " + " | ".join(methods) + " |", "|---" * (len(methods) + 2) + "|"]
    for kind, lengths in seconds.items():
        for evaluations, found in sorted(lengths.items()):
            cells = [f"{np.median(found[m]):.2g}" if m in found else "" for m in methods]
            lines.append(f"| {kind} | {evaluations} | " + " | ".join(cells) + " |")
    return ["\n".join(lines)] if seconds else []


def show_medians(rows: list[Row]) -> list[str]:
    """Tables of medians, with quartiles in brackets, one for each suite; the lowest median of a line is marked."""
    groups = groups_of(rows)
    suites = {p: p.split()[0] if p.split()[0] in SUITES else "" for p in groups}
    return [
        _table({p: group for p, group in groups.items() if suites[p] == suite})
        for suite in ("", *SUITES)
        if suite in suites.values()
    ]


def _least(group: Group) -> int:
    """The evaluations that all methods had."""
    return int(min(of[0]["evaluations"] for of in group.values()))


def _table(groups: dict[str, Group]) -> str:
    methods = [method for method in METHODS if any(method in group for group in groups.values())]
    lines = ["| problem | evaluations | " + " | ".join(methods) + " |", "|---" * (len(methods) + 2) + "|"]
    for problem, group in groups.items():
        at = _least(group)
        quartiles = {m: np.quantile([regret_at(row, at) for row in of], [0.25, 0.5, 0.75]) for m, of in group.items()}
        lowest = min(middle for _, middle, _ in quartiles.values())
        cells = []
        for method in methods:
            low, middle, high = quartiles.get(method, (0.0, np.inf, 0.0))
            shown = f"**{middle:.3g}**" if middle <= lowest else f"{middle:.3g}"
            cells.append(f"{shown} [{low:.3g}, {high:.3g}]" if method in group else "")
        lines.append(f"| {problem} | {at} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def show_summary(rows: list[Row]) -> list[str]:
    """On how many problems of a kind each method is first or level with the first, of those that it was run on.

    First are the lowest medians. Level are those that a rank-sum test, one-sided at 5 %, tells from none of them; so a
    method that shares the lowest median counts only if the test does not put it behind another one that does. Runs of
    less than half of the seeds do not count.
    """
    counts: dict[str, dict[str, list[bool]]] = {}
    for problem, group in groups_of(rows).items():
        at, seeds = _least(group), max(map(len, group.values()))
        regrets = {m: [regret_at(row, at) for row in of] for m, of in group.items() if 2 * len(of) >= seeds}
        lowest = min(map(np.median, regrets.values()))
        first = [of for of in regrets.values() if np.median(of) == lowest]
        for method, own in regrets.items():
            is_level = not any(_is_higher(own, of) for of in first)
            counts.setdefault(_kind(problem), {}).setdefault(method, []).append(is_level)
    methods = [method for method in METHODS if any(method in of for of in counts.values())]
    lines = ["| problems | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for kind, of in counts.items():
        cells = [f"{sum(of[m])} of {len(of[m])}" if m in of else "" for m in methods]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return ["\n".join(lines)] if counts else []


def _kind(problem: str) -> str:
    if problem.endswith("noisy"):
        return "noisy losses"
    if problem.startswith(("onemax", "leadingones", "pbo")):
        return "20 choices or more"
    kinds = {"mixint": "bbob-mixint", "bbob": "reals (bbob)", "nasbench201": "NAS-Bench-201"}
    return kinds.get(problem.split()[0], "mixed and conditional")


def _is_higher(own: list[float], others: list[float]) -> bool:
    """Whether numbers are higher than others, by the rank-sum test with a normal approximation."""
    _, where, ties = np.unique([*own, *others], return_inverse=True, return_counts=True)
    n, m, total = len(own), len(others), len(own) + len(others)
    rank_sum = (np.cumsum(ties) - (ties - 1) / 2)[where][:n].sum()
    variance = n * m / 12 * (total + 1 - (ties**3 - ties).sum() / (total * (total - 1)))
    return bool(rank_sum - n * (total + 1) / 2 - 0.5 > 1.645 * np.sqrt(variance))


def show_ratios(rows: list[Row]) -> list[str]:
    """On mixint: the evaluations after which more than half of asng's runs have reached a target, over its own.

    The target is CatCMAwM's median regret at some evaluations. Of an even number of runs the middle two are not
    averaged: where just half of them get there, the median of their regrets is still above the target.
    """
    lines = ["| problem | " + " | ".join(f"at {n}" for n in TARGETS) + " |", "|---" * (len(TARGETS) + 1) + "|"]
    within = dict.fromkeys(TARGETS, 0)
    groups = {p: g for p, g in groups_of(rows).items() if p.startswith("mixint") and {"asng", "CatCMAwM"} <= set(g)}
    for problem, group in groups.items():
        cells = []
        for n in TARGETS:
            target = np.median([regret_at(row, n) for row in group["CatCMAwM"]])
            needed = [next((k for k, regret in row["steps"] if regret <= target), np.inf) for row in group["asng"]]
            ratio = sorted(needed)[len(needed) // 2] / n
            within[n] += ratio <= 2
            cells.append(f"{ratio:.2f}" if np.isfinite(ratio) else "not reached")
        lines.append(f"| {problem} | " + " | ".join(cells) + " |")
    lines.append("| at most 2 | " + " | ".join(f"{count} of {len(groups)}" for count in within.values()) + " |")
    return ["\n".join(lines)] if groups else []


def draw(rows: list[Row], path: Path) -> None:
    """Medians and quartiles of regrets against evaluations, one panel per problem outside the suites."""
    from matplotlib.figure import Figure

    groups = {p: group for p, group in groups_of(rows).items() if p.split()[0] not in SUITES}
    columns = 4
    figure = Figure(figsize=(4 * columns, 3 * -(-len(groups) // columns)), layout="constrained")
    grid = figure.subplots(-(-len(groups) // columns), columns, squeeze=False).ravel()
    for axes, (problem, group) in zip(grid, groups.items(), strict=False):
        for number, method in enumerate(METHODS):
            if method not in group:
                continue
            longest = max(row["evaluations"] for row in group[method])
            of = [row for row in group[method] if row["evaluations"] == longest]
            at = np.unique(np.geomspace(5, longest, 30).astype(int))
            low, middle, high = np.quantile([[regret_at(row, n) for n in at] for row in of], [0.25, 0.5, 0.75], axis=0)
            axes.plot(at, middle, color=f"C{number}", label=method, linewidth=2.5 if method == "asng" else 1.2)
            axes.fill_between(at, low, high, color=f"C{number}", alpha=0.12, linewidth=0)
        axes.set_title(problem, fontsize="medium")
        axes.set_yscale("symlog", linthresh=0.01)
        axes.grid(alpha=0.3)
    for axes in grid[len(groups) :]:
        axes.set_axis_off()
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(path, dpi=70)
