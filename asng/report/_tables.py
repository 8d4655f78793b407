"""The tables of a report: numbers of runs, decisions, results, limits, settings."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from asng.report._command import repeat_command
from asng.report._html import Html, element, format_number, join, table
from asng.report._read import RunData, is_normal, is_number

HIDDEN = {"values", "distribution", "last", "chain", "rows", "points", "ranges", "accuracy", "shown"}
NOT_FINAL = {"epoch", "step", "checkpoint", "seconds", "not_finite", "capture_seconds", "capture_gb"}
MAX_ROWS = 200  # of a table


def section(title: str, *children: Any, **attributes: Any) -> Html:
    return element("section", element("h2", title), *children, **attributes)


def overview_section(groups: Mapping[str, Sequence[RunData]]) -> Html:
    """A row for each run, and for runs of several seeds their means."""
    runs = [run for members in groups.values() for run in members]
    finals = {id(run): _final_numbers(run) for run in runs}
    names = list(dict.fromkeys(name for run in runs for name in finals[id(run)]))
    rows = []
    for label, members in groups.items():
        for run in members:
            seed = format_number(run.config.get("seed"))
            rows.append([run.title, seed, _state(run), *(format_number(finals[id(run)].get(n, "")) for n in names)])
        if len(members) > 1:
            cells = [
                _mean_and_deviation([finals[id(run)][n] for run in members if n in finals[id(run)]]) for n in names
            ]
            title = f"mean ± standard deviation{f' of {label}' if len(groups) > 1 else ''}"
            rows.append([element("b", title), "", f"{len(members)} runs", *cells])
    head = ["run", "seed", "state", *(name.replace("_", " ") for name in names)]
    return section("Overview", table(head, rows[:MAX_ROWS], "Runs and their last numbers"))


def _final_numbers(run: RunData) -> dict[str, Any]:
    """The last numbers of a run, and those of its summary and tests."""
    last = run.records[-1] if run.records else {}
    numbers = {name: value for name, value in last.items() if name not in NOT_FINAL and is_number(value)}
    numbers |= {name: value for name, value in run.summary.items() if name not in HIDDEN and is_number(value)}
    for name, evaluation in run.evaluations.items():
        ending = name.removeprefix("evaluation").removesuffix(".json")
        numbers |= {f"{key}{ending}": value for key, value in evaluation.items() if is_number(value)}
    if run.records:
        numbers["seconds"] = run.seconds[-1]
    return numbers


def _state(run: RunData) -> str:
    progress, is_finished = run.progress, bool(run.summary)
    if progress is None:
        return "finished" if is_finished else f"{len(run.results)} results"
    unit = "epochs" if is_number(run.config.get("epochs")) else "iterations"
    done = f"{format_number(int(progress[0]))} of {format_number(int(progress[1]))} {unit}"
    return f"finished, {done}" if is_finished else done


def _mean_and_deviation(numbers: Sequence[float]) -> Html | str:
    """Numbers of several runs; one line, or two in a narrow table.

    >>> _mean_and_deviation([1.0, 3.0])
    '2 <span class="together">± 1.414</span>'
    """
    if len(numbers) < 2:
        return ""
    deviation = element("span", f"± {format_number(float(stdev(numbers)))}", class_="together")
    return join([format_number(float(fmean(numbers))), " ", deviation])


def decisions_table(run: RunData) -> Html:
    """A row for each decision: its value, and how likely the choices are."""
    distribution, inactive = run.final_distribution, run.summary.get("inactive")
    idle = set(map(str, inactive)) if isinstance(inactive, list) else set()
    rows: list[list[Any]] = []
    for name, value in run.values.items():
        shown = format_number(value) + (" (no effect)" if name in idle else "")
        rows.append([name, shown, *([_bars(distribution.get(name, {}), value)] if distribution else [])])
    head = ["decision", "value", *(["probabilities"] if distribution else [])]
    return table(head, rows, f"Decisions of {run.title}", class_="decisions")


def _bars(parameters: Mapping[str, float], value: Any) -> Any:
    if is_normal(parameters):
        return f"mean {format_number(parameters['mean'])}, standard deviation {format_number(parameters['std'])}"
    bars = []
    for choice, probability in list(parameters.items())[:40]:
        width = f"width:{100 * min(max(probability, 0.0), 1.0):.1f}%"
        bar = element("span", element("span", style=width), class_="bar", aria_hidden="true")
        label = element("b", choice) if choice == str(value) else choice
        bars.append(element("li", bar, label, f" {probability:.3f}"))
    return element("ul", *bars, class_="bars") if bars else ""


def results_section(runs: Sequence[RunData]) -> Html | None:
    """Results that stand for themselves, such as trainings of what was found and of baselines: means by their kind."""
    rows = []
    for run in runs:
        kinds: dict[str, list[dict[str, Any]]] = {}
        for record in run.results:
            if isinstance(kind := record.get("kind", record.get("method")), str):
                kinds.setdefault(kind, []).append(record)
        for kind, records in list(kinds.items())[:MAX_ROWS]:
            names = dict.fromkeys(name for record in records for name in record if name != "seed")
            for name in names:
                numbers = [float(record[name]) for record in records if is_number(record.get(name))]
                if numbers:
                    cells = [_mean_and_deviation(numbers) or format_number(numbers[0])]
                    cells += [format_number(len(numbers)), format_number(min(numbers)), format_number(max(numbers))]
                    where = f"{run.title}: {kind}" if len(runs) > 1 else kind
                    rows.append([where, name.replace("_", " "), *cells])
    if not rows:
        return None
    head = ["kind", "number", "mean ± standard deviation", "how many", "lowest", "highest"]
    return section("Results and baselines", table(head, rows[:MAX_ROWS], "Results by kind"))


def limits_section(runs: Sequence[RunData]) -> Html | None:
    """Limits of searches beside what was found, and how many candidates met them."""
    rows = []
    for run in runs:
        limit, cost = run.config.get("max_params"), run.summary.get("parameters")
        shares = [record["feasible"] for record in run.records if is_number(record.get("feasible"))]
        if not (is_number(limit) or shares or run.config.get("limits")):
            continue
        bounds = (
            f"parameters <= {format_number(limit)}" if is_number(limit) else format_number(run.config.get("limits"))
        )
        met = run.summary.get("feasible")
        found = "" if not is_number(cost) else f"{format_number(cost)} parameters"
        first, last = ("", "") if not shares else (f"{shares[0]:.0%}", f"{shares[-1]:.0%}")
        rows.append([run.title, bounds, found, "" if met is None else format_number(met), first, last])
    if not rows:
        return None
    head = ["run", "limit", "found", "met", "candidates that met it at first", "at last"]
    return section("Limits", table(head, rows, "Limits and costs"))


def settings_section(runs: Sequence[RunData]) -> Html:
    """Settings, outcome and machine, a column for each run; and how to repeat it."""
    settings = [{name: v for name, v in run.config.items() if not isinstance(v, dict)} for run in runs]
    outcomes = [{n: v for n, v in run.summary.items() if n not in HIDDEN} for run in runs]
    for run, outcome in zip(runs, outcomes, strict=True):
        outcome["folder"] = str(run.folder)
    parts = [_columns("setting", runs, settings, "Settings"), _columns("outcome", runs, outcomes, "Outcome")]
    commands = [command for run in runs if (command := repeat_command(run)) is not None]
    repeat = [element("pre", element("code", command), tabindex="0") for command in commands]
    title = element("h3", "Commands that repeat the runs" if len(runs) > 1 else "Command that repeats the run")
    look = "pair" if len(runs) == 1 else None
    return section("Settings", element("div", *parts, class_=look), *([title, *repeat] if repeat else []))


def _columns(head: str, runs: Sequence[RunData], columns: Sequence[Mapping[str, Any]], caption: str) -> Html:
    """Values by their names, a column for each run; rows in which runs differ are marked."""
    names = list(dict.fromkeys(name for column in columns for name in column))[:MAX_ROWS]
    rows = []
    for name in names:
        cells = [format_number(column[name]) if name in column else "" for column in columns]
        shown = [element("mark", cell) for cell in cells] if len(set(cells)) > 1 else cells
        rows.append([name.replace("_", " "), *shown])
    titles = [run.title for run in runs] if len(runs) > 1 else ["value"]
    return table([head, *titles], rows, caption, class_="values")
