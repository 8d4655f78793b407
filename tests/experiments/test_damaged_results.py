"""results.jsonl of the toy problem and of digits: what no run writes is refused before anything takes long."""

import json
from typing import Any

import pytest

from asng.experiments import digits, toy
from asng.runs import Run, make_config

SWEEP = toy.ToySettings(runs=2, iterations=10, lrs=(0.05,), powers=(0.0,), alphas=(1.5,), workers=1)
DIGITS = digits.DigitsSettings(epochs=1, training_epochs=1)
SWEPT: dict[str, Any] = {"setting": ["SNG", 0.05, 0.0, None], "iterations": [3, None]}
FOUND: dict[str, Any] = {
    "seed": 0,
    "kind": "search",
    "values": digits.HANDCRAFTED,
    "probability": 0.5,
    "most_likely": digits.HANDCRAFTED,
    "certainty": 0.7,
    "seconds": 1.0,
}
TRAINED: dict[str, Any] = {
    "seed": 0,
    "values": digits.HANDCRAFTED,
    "valid_accuracy": None,
    "accuracy": 0.9,
    "parameters": 10,
    "seconds": 1.0,
}


def open_with(folder, experiment, kind, settings, lines):
    """A folder of a run of these settings that holds these lines."""
    config = make_config(experiment, kind, settings)
    config.pop("workers", None)
    with Run(folder, config):
        (folder / "results.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(autouse=True)
def _nothing_takes_long(monkeypatch):
    def never(*arguments):
        raise AssertionError("it began to compute")

    monkeypatch.setattr(toy, "run_parallel", never)
    monkeypatch.setattr(digits, "search", never)
    monkeypatch.setattr(digits, "train", never)


@pytest.mark.parametrize(
    "record",
    [
        5,
        None,
        [],
        {},
        {**SWEPT, "setting": 5},
        {**SWEPT, "setting": ["SNG", 0.05, [0.0], None]},
        {**SWEPT, "setting": ["SNG", 0.05, 7.0, None]},
        {**SWEPT, "iterations": [3, "x"]},
        {**SWEPT, "iterations": [3, -1]},
        {**SWEPT, "iterations": [3, 11]},
        {**SWEPT, "iterations": [3]},
        {**SWEPT, "more": 1},
    ],
    ids=str,
)
def test_a_record_that_no_sweep_writes_is_refused(tmp_path, record):
    open_with(tmp_path, "toy", "sweep", SWEEP, [json.dumps(SWEPT), json.dumps(record)])
    with pytest.raises(ValueError, match=rf"^{tmp_path}/results\.jsonl is damaged \(.*\); delete the folder"):
        toy.run(SWEEP, tmp_path)


@pytest.mark.parametrize(
    "record",
    [
        5,
        None,
        {},
        {**TRAINED, "kind": "best"},
        {**TRAINED, "kind": "handcrafted"},  # before what was found
        {**TRAINED, "kind": "found", "accuracy": 2.0},
        {**TRAINED, "kind": "found", "accuracy": "high"},
        {**TRAINED, "kind": "found", "valid_accuracy": 0.9},  # of images that it was trained on
        {**TRAINED, "kind": "found", "values": {"width": 24}},
        {**TRAINED, "kind": "found", "values": None},
        {**FOUND, "seconds": "long"},
        FOUND,  # twice
        {**TRAINED, "kind": "found", "seed": 1},
    ],
    ids=str,
)
def test_a_record_that_no_search_of_digits_writes_is_refused(tmp_path, record):
    open_with(tmp_path, "digits", "search", DIGITS, [json.dumps(FOUND), json.dumps(record)])
    with pytest.raises(ValueError, match=rf"^{tmp_path}/results\.jsonl is damaged \(.*\); delete the folder"):
        digits.run(DIGITS, tmp_path)


@pytest.mark.parametrize("name", ["values", "most_likely"])
def test_a_search_that_found_what_is_not_in_the_space_is_refused(tmp_path, name):
    record = {**FOUND, name: {**digits.HANDCRAFTED, "width": 99}}
    open_with(tmp_path, "digits", "search", DIGITS, [json.dumps(record)])
    with pytest.raises(ValueError, match=r"is damaged \(99 is outside of .*'width'\)\); delete the folder"):
        digits.run(DIGITS, tmp_path)


def test_records_that_are_as_written_are_taken(tmp_path):
    random = [{**TRAINED, "kind": "random", "valid_accuracy": 0.8}] * DIGITS.num_random
    first, last = (
        [{**TRAINED, "kind": kind} for kind in kinds]
        for kinds in (("found", "handcrafted"), ("random_first", "random_best"))
    )
    records = [FOUND, *first, *random, *last]
    open_with(tmp_path, "digits", "search", DIGITS, map(json.dumps, records))
    assert digits.run(DIGITS, tmp_path)["accuracy"]["found"]["mean"] == 0.9
