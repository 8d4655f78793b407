"""Fuzzed files of runs: settings, records, results, reports, and the cache of faces."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from asng import nas, report
from asng.experiments import digits, digits_tuning, toy
from asng.experiments.inpainting.faces import read_faces
from asng.runs import METRICS, Run, make_config, read_config, settings_from_config
from tests.fuzz.mutations import SPACE, is_refused, mutate_bytes, mutate_json
from tests.helpers.report_pages import Page, values_of
from tests.helpers.small_faces import texture


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a run that is fuzzed."""

    layers: int = 6
    lr: float = 0.1
    widths: tuple[int, ...] | None = (8, 16)


def mutate_file(path: Path, rng: Random) -> None:
    """Damage a file of JSON, or of JSON lines: its bytes, or one of its values."""
    content = path.read_bytes()
    if rng.random() < 0.5:
        path.write_bytes(mutate_bytes(content, rng))
    elif path.suffix == ".json":
        path.write_text(json.dumps(mutate_json(json.loads(content), rng)))
    else:
        records = mutate_json([json.loads(line) for line in content.splitlines()], rng)
        lines = records if isinstance(records, list) else [records]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def fuzz_json_files(rng: Random, folder: Path) -> bool:
    """Mutated config.json, metrics.jsonl and architecture.json: refused by their names, or read in their shape."""
    config = {"experiment": "toy", "kind": "sweep", **dataclasses.asdict(Settings())}
    records = [{"epoch": number, "train_loss": 0.5} for number in range(1, 4)]
    values = {"op": "a", "n": 3, "x": 0.5, "lr": 0.1}
    with Run(folder, config, METRICS) as run:
        for record in records:
            run.append(record)
    name = rng.choice(["config.json", METRICS, "architecture.json"])
    if name == "architecture.json":
        text = mutate_bytes(nas.to_json(values).encode(), rng)
        read: dict[str, Any] = {}
        if is_refused(lambda: read.update(nas.from_json(text.decode(errors="surrogateescape"), SPACE))):
            return False
        assert all(SPACE[variable].contains(value) for variable, value in read.items())
        return True
    mutate_file(folder / name, rng)

    def open_run() -> None:
        settings_from_config(Settings, read_config(folder, "toy"), folder)
        with Run(folder, config, METRICS) as run:
            run.results()
            run.restore(records)
            assert run.results() == records

    return not is_refused(open_run)


SWEEP = toy.ToySettings(runs=2, iterations=10, lrs=(0.05,), powers=(0.0,), alphas=(1.5,), workers=1)
DIGITS = digits.DigitsSettings(epochs=1, training_epochs=2)
TUNE = digits_tuning.TuneSettings(trials=2, epochs=2)
ARCHITECTURE = digits.HANDCRAFTED


def _swept() -> list[dict[str, Any]]:
    return [{"setting": list(setting), "iterations": [3, None]} for setting in toy.settings_of(SWEEP)]


def _search_records() -> list[dict[str, Any]]:
    both = {"seed": 0, "values": ARCHITECTURE, "seconds": 1.0}
    trained = {**both, "valid_accuracy": None, "accuracy": 0.9, "parameters": 10}
    kinds = ("found", "handcrafted", "random", "random_first", "random_best")
    records = [{**trained, "kind": kind, "valid_accuracy": 0.8 if kind == "random" else None} for kind in kinds]
    search = {**both, "kind": "search", "probability": 0.5, "most_likely": ARCHITECTURE, "certainty": 0.7}
    return [search, *records]


def _tune_records() -> list[dict[str, Any]]:
    hyper = {name: variable.decode(0.0) for name, variable in digits_tuning.SPACE.items()}
    trial = {"hyper": hyper, "losses": [0.5, 0.4], "loss": 0.4, "values": ARCHITECTURE}
    records: list[dict[str, Any]] = [{**trial, "kind": kind} for kind in ("trial", "trial", "untuned")]
    trainings = [{"kind": f"train {name}", "accuracy": 0.9, "parameters": 10} for name in ("tuned", "untuned")]
    return [*records, *trainings]


def _read_sweep(run: Run) -> None:
    reached = toy.read_records(run.folder, SWEEP)
    if len(reached) == len(toy.settings_of(SWEEP)):
        json.dumps(toy.summarize(SWEEP, reached), allow_nan=False)


def _read_digits(run: Run) -> None:
    records = digits.read_records(run.folder, DIGITS)
    if len(records) == len(_search_records()):
        json.dumps(digits.summarize(DIGITS, records), allow_nan=False)


def _read_tuning(run: Run) -> None:
    records = digits_tuning.read_records(run.folder, TUNE)
    if len(records) == len(_tune_records()):
        json.dumps(digits_tuning.summarize(records, records[0], TUNE), allow_nan=False)


RESULTS: dict[str, tuple[Any, Callable[[], list[dict[str, Any]]], Callable[[Run], None]]] = {
    "toy sweep": (SWEEP, _swept, _read_sweep),
    "digits search": (DIGITS, _search_records, _read_digits),
    "digits tune": (TUNE, _tune_records, _read_tuning),
}


def fuzz_results(rng: Random, folder: Path) -> bool:
    """Mutated results.jsonl of all experiments that have one: refused, or good to go on from."""
    name = rng.choice(list(RESULTS))
    settings, records, read = RESULTS[name]
    experiment, kind = name.split()
    config = make_config(experiment, kind, settings)

    def open_run() -> None:
        with Run(folder, config) as run:
            read(run)

    with Run(folder, config) as run:
        run.restore(records())
        read(run)
    mutate_file(folder / "results.jsonl", rng)
    return not is_refused(open_run)


def fuzz_reports(rng: Random, folder: Path) -> bool:
    """Mutated files of one or two runs: refused by name, or a page whose only script is asng's own."""
    for number in range(rng.randint(1, 2)):
        _write_run(folder / f"run{number}", rng)
    for path in rng.sample(sorted(folder.glob("run*/*")), rng.randint(1, 3)):
        mutate_file(path, rng)
    page = folder / "report.html"
    if is_refused(lambda: report.write(sorted(folder.glob("run*")), page)):
        assert not page.exists()
        return False
    read = Page(page)
    assert [own.get("id") for own in read.tags("script")] == ["data", None]
    assert {tag for tag, _ in read.elements}.isdisjoint({"img", "iframe", "object", "link", "base", "form"})
    assert all(str(own["href"]).startswith("#") for own in read.tags("a"))  # to sections of the page
    json.loads(read.code["data"])
    assert "\x1b" not in read.source
    return True


def _write_run(folder: Path, rng: Random) -> None:
    """A run of any experiment, as far as a report shows it."""
    folder.mkdir()
    experiment = rng.choice(["cifar10 search", "inpainting search", "cifar10 retrain", "toy sweep", "digits search"])
    name, kind = experiment.split()
    distribution = {"op": {"conv": 0.4, "pool": 0.6}, "n": {"mean": 1.0, "std": 0.5}, "list": [0.5, 0.5]}
    records = [
        {"epoch": n, "step": n, "seconds": 1.0, "train_loss": 1 / n, "distribution": distribution} for n in (1, 2)
    ]
    files: dict[str, Any] = {
        "config": {
            "experiment": name,
            "kind": kind,
            "version": "0.1.0",
            "format": 2,
            "seed": 0,
            "epochs": 2,
            "layers": 3,
        },
        "summary": {"feasible": True, "probability": 0.5, "inactive": ["n"], "distribution": distribution, "rows": []},
        "architecture": values_of(op="conv", n=3, encoder=[[3, 8, True], [5, 16, False]]),
        "evaluation": {"kind": kind, "steps": 2, "accuracy": 0.9},
    }
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    lines = {"metrics": records}
    if experiment in RESULTS:
        lines = {"results": RESULTS[experiment][1]()}
        summary = toy.summarize(SWEEP, {toy.Setting(*r["setting"]): r["iterations"] for r in _swept()})
        if name == "digits":
            summary = digits.summarize(DIGITS, _search_records())
        (folder / "summary.json").write_text(json.dumps(summary))
    for file, of_file in lines.items():
        (folder / f"{file}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in of_file))


def fuzz_face_caches(rng: Random, folder: Path) -> bool:
    """A damaged cache of faces: built again, so that the faces are the same; nothing but the cache is written."""
    pictures, cache = folder / "pictures", folder / "cache"
    for number in range(3):
        texture(pictures / f"{number}.png", (8, 8), number)
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    try:
        expected = read_faces(pictures, size=8)
        (path,) = (path for path in cache.rglob("*") if path.is_file())
        damaged = mutate_bytes(path.read_bytes(), rng)
        path.write_bytes(damaged)
        found = read_faces(pictures, size=8)
        taken = path.read_bytes() == damaged
    finally:
        del os.environ["XDG_CACHE_HOME"]
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before
    assert found.names == expected.names
    assert found.damaged == expected.damaged
    assert np.array_equal(found.images, expected.images)
    assert sorted(folder.iterdir()) == [cache, pictures]
    return taken
