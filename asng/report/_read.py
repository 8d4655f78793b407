"""The files of a run, as far as a report shows them. Anybody may have written them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from asng._html import clean
from asng._untrusted import mismatch, parse_json, read_bytes, read_json
from asng.experiments.cifar10.space import SPACE as CELL_SPACE
from asng.runs import ARCHITECTURE, ENVIRONMENT, METRICS, RESULTS, SUMMARY, read_config, seed_folders

Distribution = dict[str, dict[str, float]]  # per decision: probabilities by choice, or a mean and a std

LENGTHS = ("epochs", "iterations")  # settings that say how long a run is, in epochs or in steps
UNITS = ("step", "epoch", "checkpoint")  # fields of a record that say when it was written
MAX_POINTS = 2000  # of a front
MAX_MEASURES = 8  # of a front
MAX_SEEDS = 100  # of a folder
MAX_NUMBER = 1e100
Simple = None | bool | int | float | str


@dataclass(frozen=True)
class RunData:
    """A run: its settings, and what it has written so far."""

    folder: Path
    config: dict[str, Any]
    records: list[dict[str, Any]] = field(default_factory=list)  # of a training or search, one per epoch
    results: list[dict[str, Any]] = field(default_factory=list)  # that stand for themselves
    summary: dict[str, Any] = field(default_factory=dict)
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the name of the file
    values: dict[str, Any] = field(default_factory=dict)  # the architecture
    faults: tuple[str, ...] = ()  # damaged files
    part: str = ""  # of a folder with several seeds
    environment: dict[str, Any] = field(default_factory=dict)  # of the newest start: versions, machine, command line

    @property
    def title(self) -> str:
        """The name of the folder, and which part of it this is."""
        return self.name + self.part

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name or str(self.folder)

    @property
    def kind(self) -> str:
        """Experiment and kind of run."""
        parts = [self.config.get(name) for name in ("experiment", "benchmark", "kind")]
        return " ".join(part for part in parts if isinstance(part, str)) or "search"

    @cached_property
    def steps(self) -> list[float]:
        """The step, or epoch, at which each record was written."""
        return [
            next((float(record[name]) for name in UNITS if is_number(record.get(name))), float(index))
            for index, record in enumerate(self.records, start=1)
        ]

    @property
    def unit(self) -> str:
        """The unit of `steps`."""
        return next((name for name in UNITS if any(is_number(record.get(name)) for record in self.records)), "record")

    @property
    def inactive(self) -> set[str]:
        """The decisions without effect on the architecture."""
        listed = self.summary.get("inactive")
        return set(map(clean, listed)) if isinstance(listed, list) else set()

    @property
    def certainty(self) -> float | None:
        """The certainty at the end of the search, from 0 to 1; None where the run does not hold it."""
        found = [self.summary, *(result for result in self.results if result.get("kind") == "search")]
        return next((float(each["certainty"]) for each in found if is_number(each.get("certainty"))), None)

    @cached_property
    def seconds(self) -> list[float]:
        """The time from the start to each record."""
        return list(accumulate(float(r["seconds"]) if is_number(r.get("seconds")) else 0.0 for r in self.records))

    @property
    def progress(self) -> tuple[float, float, str] | None:
        """The amount done, the total and the unit; None where they are unknown."""
        if (total := _count_results(self.config)) is not None:
            seeds = len({str(record.get("seed")) for record in self.results}) or 1
            return len(self.results), max(len(self.results), seeds * total), "results"
        done = {"epochs": float(len(self.records)), "iterations": self.steps[-1] if self.records else 0.0}
        lengths = [name for name in LENGTHS if is_number(self.config.get(name)) and self.config[name] > 0]
        return (done[lengths[0]], float(self.config[lengths[0]]), lengths[0]) if lengths else None

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do: the summary, which comes last, is there."""
        return bool(self.summary) and (self.progress is None or self.progress[0] >= self.progress[1])

    @cached_property
    def distributions(self) -> list[Distribution]:
        """The distribution after each record; empty ones where the run did not write it."""
        return [to_distribution(record.get("distribution"), self.values) for record in self.records]

    @cached_property
    def final_distribution(self) -> Distribution:
        """The newest distribution; empty where the run has none."""
        newest = self.distributions[-1] if self.records else {}
        return newest or to_distribution(self.summary.get("distribution"), self.values)


def _count_results(config: Mapping[str, Any]) -> int | None:
    """The number of lines per seed in results.jsonl of a finished run; None for a run of metrics, or a damaged one."""
    try:
        match config.get("experiment"), config.get("kind"):
            case "digits", "search":
                return 5 + max(1, round(2 * float(config["epochs"]) / float(config["training_epochs"])))
            case "digits", "tune":
                return int(config["trials"]) + 3
            case "toy", "sweep":
                methods = len({1.5, *config["alphas"]}) + 2
                return int(len(config["lrs"]) * methods * len(config["powers"]))
    except (KeyError, ValueError, TypeError, ArithmeticError):
        pass
    return None


def read_runs(folder: Path) -> list[RunData]:
    """The runs of a folder: one, or one for each seed where its lines, or folders in it, are of several.

    ValueError for a folder that is none.
    """
    if seeds := seed_folders(folder):
        return [run for each in seeds[:MAX_SEEDS] for run in read_runs(each)]
    run = read_run(folder)
    lines = [*run.records, *run.results]
    numbers: list[int] = sorted({line["seed"] for line in lines if type(line.get("seed")) is int})
    return [run] if len(numbers) < 2 else [_one_seed(run, seed) for seed in numbers[:MAX_SEEDS]]


def _one_seed(run: RunData, seed: int) -> RunData:
    """The part of a run that belongs to a seed; the summary, which is that of all seeds, is left out."""
    records, results = ([line for line in lines if line.get("seed") == seed] for lines in (run.records, run.results))
    found: dict[str, Any] = next((each for each in results if each.get("kind") == "search"), {})
    summary = {name: value for name, value in found.items() if name not in ("seed", "kind", "most_likely")}
    if summary and "tree" in run.summary:
        summary["tree"] = run.summary["tree"]
    return replace(
        run,
        config={**run.config, "seed": seed},
        records=records,
        results=results,
        summary=summary,
        values=_first_dict(found.get("values")),
        part=f" seed {seed}",
    )


def read_run(folder: Path) -> RunData:
    """Read the folder of a run, finished or not; ValueError for one that is none. Damaged files are faults."""
    whole = read_config(folder)
    config = {
        name: value if not mismatch(value, Simple | list[Simple]) else clean(value) for name, value in whole.items()
    }
    faults: list[str] = []

    def read(name: str, key: str | None = None) -> dict[str, Any]:
        path = folder / name
        if not path.exists():
            return {}
        try:
            data = read_json(path, "it is left out", dict[str, Any])
            if key is not None and (fault := mismatch(data.get(key), dict[str, Any])):
                raise ValueError(f"{path} is damaged ({key} {fault}); it is left out")
        except (ValueError, OSError) as error:
            faults.append(str(error))
            return {}
        return data if key is None else dict(data[key])

    evaluations = {path.name: read(path.name) for path in sorted(folder.glob("evaluation*.json"))[:20]}
    summary = read(SUMMARY)
    values = read(ARCHITECTURE, "values") or _first_dict(summary.get("values"), whole.get("architecture"))
    records, results = (_read_lines(folder / name, faults) for name in (METRICS, RESULTS))
    environment = (_read_lines(folder / ENVIRONMENT, faults) or [{}])[-1]
    return RunData(
        folder, config, records, results, summary, evaluations, values, tuple(faults), environment=environment
    )


def limit_decisions(run: RunData, count: int) -> RunData:
    """The run with its first `count` decisions alone, and a fault that says so."""
    if len(run.values) <= count:
        return run
    fault = f"{run.title} has {len(run.values):,} decisions; the first {count:,} are shown."
    return replace(run, values=dict(list(run.values.items())[:count]), faults=(*run.faults, fault))


def dicts_in(data: Any) -> list[dict[str, Any]]:
    """The objects in a list of a file; other items are left out."""
    return [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []


def _first_dict(*candidates: Any) -> dict[str, Any]:
    found = next((each for each in candidates if isinstance(each, dict)), {})
    return found["values"] if isinstance(found.get("values"), dict) else found


def _read_lines(path: Path, faults: list[str]) -> list[dict[str, Any]]:
    """The whole lines of a file that may be growing; damaged ones are left out, and become one fault."""
    if not path.exists():
        return []
    try:
        content = read_bytes(path)
    except (ValueError, OSError) as error:
        faults.append(str(error))
        return []
    records, damaged = [], []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            fault = mismatch(record := parse_json(line), dict[str, Any])
        except ValueError as error:
            fault = str(error)
        if fault:
            damaged.append(f"line {number}: {fault}")
        else:
            records.append(record)
    if damaged:
        faults.append(f"{path} is damaged ({damaged[0]}); {len(damaged)} of its lines are left out")
    return records


def is_number(value: Any) -> bool:
    """Whether a value of a file is a number that can be drawn: finite, and so that sums of squares are."""
    return type(value) in (int, float) and abs(value) <= MAX_NUMBER


def to_distribution(data: Any, values: Mapping[str, Any]) -> Distribution:
    """A distribution of a record or a summary; entries of another shape are left out."""
    found: Distribution = {}
    for name, given in (data if isinstance(data, dict) else {}).items():
        is_list = isinstance(given, list) and given and all(map(is_number, given))
        parameters = dict(zip(_labels(name, given, values), given, strict=True)) if is_list else given
        if isinstance(parameters, dict) and parameters and all(map(is_number, parameters.values())):
            found[name] = {label: float(number) for label, number in parameters.items()}
    return found


def _labels(name: str, numbers: list[float], values: Mapping[str, Any]) -> list[str]:
    """The choices that the numbers of a list belong to."""
    if name in CELL_SPACE and values.keys() == CELL_SPACE.keys() and len(CELL_SPACE[name].choices) == len(numbers):
        return [str(choice) for choice in CELL_SPACE[name].choices]
    is_choice = abs(sum(numbers) - 1) < 1e-6 and min(numbers) >= 0
    if len(numbers) == 2 and not is_choice:
        return ["mean", "std"]
    return [f"choice {index}" for index in range(1, len(numbers) + 1)]


class FrontPoint(NamedTuple):
    """An architecture that was scored."""

    score: float
    costs: list[float]
    values: dict[str, Any]


class FrontData(NamedTuple):
    """A Pareto front, as `SearchResult.save` writes it."""

    measures: list[str]
    points: list[FrontPoint]
    others: list[FrontPoint]


def front_of(run: RunData) -> FrontData | None:
    """The front of a run; None where it has none. Points that are damaged are left out."""
    data = run.summary.get("front")
    if not isinstance(data, dict) or mismatch(data.get("measures"), list[str]) or not data["measures"]:
        return None
    measures = data["measures"][:MAX_MEASURES]

    def points(name: str) -> list[FrontPoint]:
        return [
            FrontPoint(float(point["score"]), [float(c) for c in point["costs"]], _first_dict(point.get("values")))
            for point in dicts_in(data.get(name))[:MAX_POINTS]
            if not mismatch(point.get("costs"), list[float])
            and len(point["costs"]) >= len(measures)
            and all(map(is_number, [point.get("score"), *point["costs"]]))
        ]

    return FrontData(measures, points("points"), points("others"))
