"""The tables of a report: numbers of runs, results, limits, fronts, settings."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from asng._html import Html, element, format_duration, format_number, join, table
from asng.report._command import repeat_commands
from asng.report._read import FrontData, RunData, dicts_in, is_number

HIDDEN = {"values", "distribution", "last", "chain", "rows", "points", "ranges", "accuracy", "shown", "tree", "limits"}
HIDDEN |= {"front", "seconds", "flags", "random_count"}
NOT_FINAL = {"seed", "epoch", "step", "steps", "checkpoint", "seconds", "not_finite", "capture_seconds", "capture_gb"}
FIRST = ("test", "valid", "score", "train", "parameters", "certainty", "probability", "seconds")  # beginnings of names
LAST = ("largest_probability", "delta", "calibration_batches", "images_per_second", "feasible")
FOUND = {"accuracy": "test_accuracy", "parameters": "parameters"}  # of the training of what a search found
MAIN = ("accuracy", "psnr", "error", "loss", "score")  # of results: what is drawn
MAX_ROWS, MAX_TILES, MAX_DOTS = 200, 7, 200


def section(title: str, *children: Any, **attributes: Any) -> Html:
    """A section; its id leads the links at the top to it."""
    name = title.partition(":")[0].lower().replace(" ", "-")
    return element("section", element("h2", title), *children, id=name, **attributes)


def overview_section(groups: Mapping[str, Sequence[RunData]]) -> Html:
    """The main numbers, large; of several runs also a row for each, and for several seeds their means."""
    runs = [run for members in groups.values() for run in members]
    names = sorted(dict.fromkeys(name for run in runs for name in _final_numbers(run)), key=_rank)
    if len(runs) == 1:
        state = element("p", _state(runs[0]).capitalize(), class_="soft")
        return section("Overview", state, _tiles(names, _cells(_final_numbers(runs[0]), names)))
    rows = []
    for label, members in groups.items():
        for run in members:
            numbers = _cells(_final_numbers(run), names)
            rows.append([run.title, _state(run), format_number(run.config.get("seed")), *numbers])
        if len(members) > 1:
            means = [_mean(name, [_final_numbers(run).get(name) for run in members]) for name in names]
            title = f"mean ± standard deviation{f' of {label}' if len(groups) > 1 else ''}"
            rows.append([element("b", title), f"{len(members)} runs", "", *means])
    head = ["run", "state", "seed", *map(_to_words, names)]
    tiles = _tiles(names, rows[-1][3:]) if len(groups) == 1 else None
    return section("Overview", tiles, table(head, rows[:MAX_ROWS], "Runs and their last numbers", class_="runs"))


def _rank(name: str) -> tuple[int, int]:
    first = next((index for index, start in enumerate(FIRST) if name.startswith(start)), len(FIRST) - 1)
    return LAST.index(name) + 1 if name in LAST else 0, first


def _tiles(names: Sequence[str], texts: Sequence[Any]) -> Html:
    shown = [pair for pair in zip(names, texts, strict=True) if pair[1] and pair[0] not in LAST][:MAX_TILES]
    tiles = [element("div", element("dt", _to_words(name)), element("dd", text)) for name, text in shown]
    return element("dl", *tiles, class_="tiles") if tiles else Html("")


def _to_words(name: str) -> str:
    return "time" if name == "seconds" else name.replace("_", " ")


def _cells(numbers: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [_format(name, numbers[name]) if name in numbers else "" for name in names]


def _format(name: str, number: float) -> str:
    if name.endswith("seconds") and number >= 0:
        return format_duration(number)
    is_fraction = isinstance(number, float) and 0.001 <= abs(number) < 1000 and not number.is_integer()
    return f"{number:#.4g}" if is_fraction else format_number(number)  # digits of a column stand below each other


def _final_numbers(run: RunData) -> dict[str, Any]:
    """The last numbers of a run, and those of its summary and tests."""
    last = run.records[-1] if run.records else {}
    numbers = {name: value for name, value in last.items() if name not in NOT_FINAL and is_number(value)}
    numbers |= {name: value for name, value in run.summary.items() if name not in HIDDEN and is_number(value)}
    numbers |= {} if run.certainty is None else {"certainty": run.certainty}
    for record in (record for record in run.results if record.get("kind") == "found"):
        numbers |= {to: record[name] for name, to in FOUND.items() if is_number(record.get(name))}
    for name, evaluation in run.evaluations.items():
        ending = name.removeprefix("evaluation").removesuffix(".json")
        numbers |= {f"{key}{ending}": value for key, value in evaluation.items() if is_number(value)}
    if any(run.seconds):
        numbers["seconds"] = run.seconds[-1]
    return numbers


def _state(run: RunData) -> str:
    progress = run.progress if run.records or run.results else None
    if progress is None:
        return "finished" if run.is_finished else f"{len(run.results):,} results" if run.results else "nothing yet"
    done = "{:,.0f} of {:,.0f} {}".format(*progress)
    return f"finished, {done}" if run.is_finished else done


def _mean(name: str, numbers: Sequence[Any]) -> Html | str:
    """Numbers of several runs; one line, or two in a narrow table.

    >>> _mean("loss", [1.0, None, 3.0])
    '2.0 <span class="together">± 1.4</span>'
    """
    known = [float(number) for number in numbers if number is not None]
    if len(known) < 2:
        return _format(name, known[0]) if known and len(numbers) == 1 else ""
    mean, deviation = _format(name, fmean(known)), _format(name, stdev(known))
    if not name.endswith("seconds") and 1e-6 < stdev(known) < 1e15:  # two digits of the deviation, as many of the mean
        digits = max(0, 1 - math.floor(math.log10(stdev(known))))
        mean, deviation = f"{fmean(known):,.{digits}f}", f"{stdev(known):,.{digits}f}"
    return join([mean, " ", element("span", f"± {deviation}", class_="together")])


def results_section(groups: Mapping[str, Sequence[RunData]]) -> Html | None:
    """Results that stand for themselves, such as trainings of what was found and of baselines: means by their kind."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for label, runs in groups.items():
        for record in (record for run in runs for record in run.results):
            if isinstance(kind := record.get("kind", record.get("method")), str):
                kinds.setdefault(f"{label}: {kind}" if len(groups) > 1 else kind, []).append(record)
    kinds = dict(list(kinds.items())[:MAX_ROWS])
    columns = [n for r in kinds.values() for record in r for n in record if n != "seed" and is_number(record[n])]
    names = sorted(dict.fromkeys(columns), key=lambda name: (name not in MAIN, name == "seconds"))[:12]
    if not names:
        return None
    main = names[0]
    numbers = {kind: [record[main] for record in r if is_number(record.get(main))] for kind, r in kinds.items()}
    ends = [number for listed in numbers.values() for number in listed]
    rows = []
    for kind, records in kinds.items():
        means = [_mean(name, [r[name] for r in records if is_number(r.get(name))]) for name in names]
        rows.append([_to_words(kind), _dots(numbers[kind], min(ends), max(ends)), len(records), *means])
    scale = join([f"{_to_words(main)}: ", element("span", f"{format_number(min(ends))} to {format_number(max(ends))}")])
    head = ["kind", scale, "number", *map(_to_words, names)]
    caption = "Means and standard deviations by kind; each dot is one result"
    return section("Results and baselines", table(head, rows, caption, class_="results"))


def _dots(numbers: Sequence[float], low: float, high: float) -> Html:
    """A strip with a dot for each number, and a line at their mean."""
    width = (high - low) or 1.0
    marks = [element("i", style=f"left:{100 * (number - low) / width:.1f}%") for number in numbers[:MAX_DOTS]]
    if numbers:
        marks.append(element("b", style=f"left:{100 * (fmean(numbers) - low) / width:.1f}%"))
    return element("span", element("span", *marks), class_="strip", aria_hidden="true")


def limits_section(runs: Sequence[RunData]) -> Html | None:
    """Limits of searches, the costs of the results, and the share of candidates that met them."""
    rows = []
    for run in runs:
        shares = [record["feasible"] for record in run.records if is_number(record.get("feasible"))]
        met = "" if (feasible := run.summary.get("feasible")) is None else format_number(feasible)
        first, last = ("", "") if not shares else (f"{shares[0]:.0%}", f"{shares[-1]:.0%}")
        rows += [[run.title, *limit, met, first, last] for limit in _limit_rows(run, bool(shares))]
    if not rows:
        return None
    head = ["run", "cost", "limit", "found", "all limits met", "candidates that met them at first", "at last"]
    return section("Limits and costs", table(head, rows[:MAX_ROWS], "Limits, and the costs of what was found"))


def _limit_rows(run: RunData, has_shares: bool) -> list[list[str]]:
    """Name, bounds and cost of each limit."""
    listed, bound = run.summary.get("limits"), run.config.get("max_params")
    if is_number(bound):
        listed = [{"name": "parameters", "at_most": bound, "cost": run.summary.get("parameters")}]
    limits = []
    for each in dicts_in(listed)[:20]:
        ends = {"≥": each.get("at_least"), "≤": each.get("at_most")}
        text = " and ".join(f"{sign} {format_number(end)}" for sign, end in ends.items() if is_number(end))
        cost = each.get("cost")
        limits.append([str(each.get("name")), text, format_number(cost) if is_number(cost) else ""])
    if not limits and (has_shares or run.config.get("limits")):
        limits = [["", format_number(run.config.get("limits", "")), ""]]
    return limits


def front_table(front: FrontData) -> Html:
    """The architectures of a Pareto front, a row each."""
    rows = []
    for point in front.points[:MAX_ROWS]:
        values = ", ".join(f"{name} {format_number(value)}" for name, value in point.values.items())
        rows.append([format_number(point.score), *map(format_number, point.costs), values])
    head = ["score", *front.measures, "values"]
    return table(head, rows, "Architectures of the front", class_="texts")


def settings_section(groups: Mapping[str, Sequence[RunData]]) -> Html:
    """Settings by group of runs, outcome and machine by run; and how to repeat them."""
    runs = [run for members in groups.values() for run in members]
    settings = []
    for members in groups.values():
        seeds = {"seed": [run.config.get("seed") for run in members]} if len(members) > 1 else {}
        settings.append({n: v for n, v in {**members[0].config, **seeds}.items() if n != "architecture"})
    outcomes = [
        {n: v for n, v in {**run.environment, **run.summary, "folder": str(run.folder)}.items() if n not in HIDDEN}
        for run in runs
    ]
    titles = [run.title for run in runs]
    parts = [
        _columns("setting", list(groups), settings, "Settings"),
        _columns("outcome", titles, outcomes, "Outcome and machine"),
    ]
    commands = repeat_commands(runs)
    repeat = [element("pre", element("code", command), tabindex="0") for command in commands]
    title = element("h3", "Commands that repeat the runs" if len(commands) > 1 else "Command that repeats the run")
    look = "pair" if len(runs) == 1 else None
    return section("Settings", *([title, *repeat] if repeat else []), element("div", *parts, class_=look))


def _columns(head: str, titles: Sequence[str], columns: Sequence[Mapping[str, Any]], caption: str) -> Html:
    """Values by their names, a column for each title; rows in which columns differ are marked."""
    names = list(dict.fromkeys(name for column in columns for name in column))[:MAX_ROWS]
    rows = []
    for name in names:
        cells = [format_number(column[name]) if name in column else "" for column in columns]
        shown = [element("mark", cell) for cell in cells] if len(set(cells)) > 1 else cells
        rows.append([name.replace("_", " "), *shown])
    return table([head, *(titles if len(titles) > 1 else ["value"])], rows, caption, class_="texts")
