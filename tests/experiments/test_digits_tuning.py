"""Hyperparameters of digits chosen by short searches: pruning, resuming, what is refused."""

import json
import math

import pytest
import torch

from asng.experiments import digits
from asng.experiments import digits_tuning as tuning
from asng.experiments.digits import load_split

SMALL = tuning.TuneSettings(trials=6, epochs=2, startup_trials=3, min_epochs=1, training_epochs=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    return folder, tuning.run(SMALL, folder)


def records_in(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_trials_are_searches_of_which_those_behind_end_early(finished):
    folder, summary = finished
    *trials, untuned, _, _ = records_in(folder)
    assert [record["kind"] for record in trials] == ["trial"] * 6
    assert all(len(trial["losses"]) == 2 for trial in trials[:3])
    for number, trial in enumerate(trials[3:], start=3):
        first = sorted(other["losses"][0] for other in trials[:number])
        middle = (first[(number - 1) // 2] + first[number // 2]) / 2
        assert (len(trial["losses"]) == 1) == (trial["losses"][0] > middle)
    assert summary["pruned"] == sum(len(trial["losses"]) == 1 for trial in trials) > 0
    assert summary["epochs"] == 12 - summary["pruned"]
    assert untuned["hyper"] == digits.UNTUNED


def test_the_best_whole_trial_is_trained_beside_the_untuned_one(finished):
    folder, summary = finished
    whole = [record for record in records_in(folder)[:6] if len(record["losses"]) == 2]
    assert summary["tuned"]["loss"] == min(trial["loss"] for trial in whole)
    for name in ("tuned", "untuned"):
        assert 0 <= summary[name]["accuracy"] <= 1
    assert json.loads((folder / "architecture.json").read_text())["values"] == summary["tuned"]["values"]
    assert json.loads((folder / "summary.json").read_text()) == summary


@pytest.mark.long
@pytest.mark.parametrize("kept", [0, 4, 7, 8])
def test_an_interrupted_tuning_continues_as_it_was(finished, tmp_path, kept, monkeypatch):
    folder, summary = finished
    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "results.jsonl").write_text("".join(lines[:kept]))
    searches, search = [], tuning.search

    def count(*arguments):
        searches.append(arguments)
        return search(*arguments)

    monkeypatch.setattr(tuning, "search", count)
    assert tuning.run(SMALL, tmp_path) == summary
    assert records_in(tmp_path) == records_in(folder)
    assert len(searches) == max(0, 7 - kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hyper": {**digits.UNTUNED, "lr": 0.3}}, "a trial of .* not "),
        ({"hyper": {"lr": 0.3}}, "a trial of 2 epochs and lr"),
        ({"losses": []}, "a trial of 0 epochs"),
        ({"kind": "untuned"}, "untuned, where trial belongs"),
        ({"values": {"width": 99}}, "damaged"),
        ({"loss": "low"}, "damaged"),
    ],
    ids=["other values", "names", "no epochs", "order", "architecture", "type"],
)
def test_records_that_no_tuning_writes_are_refused(finished, tmp_path, change, message):
    folder, _ = finished
    first, *_ = records_in(folder)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "results.jsonl").write_text(json.dumps({**first, **change}) + "\n")
    with pytest.raises(ValueError, match=message):
        tuning.run(SMALL, tmp_path)


def test_an_error_inside_a_trial_ends_the_tuning(tmp_path, monkeypatch):
    """It is not taken for a trial of bad hyperparameters."""

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(tuning, "search", fail)
    with pytest.raises(OSError, match="disk full"):
        tuning.run(SMALL, tmp_path)


@pytest.mark.parametrize("lr", [1e30, 1e38])
def test_weights_that_diverge_are_a_large_loss(lr):
    settings = tuning.TuneSettings(epochs=2, batch_size=300)
    hyper = {"lr": lr, "weight_decay": 1.0, "augmentation": 0.0}
    record = tuning.search(settings, hyper, load_split(0), lambda losses: False, "trial")
    assert math.isfinite(record["loss"])
    assert record["loss"] > 10
    json.dumps(record, allow_nan=False)


def test_augmentation_moves_images_by_its_strength():
    images = load_split(0).train[0][:50]
    assert digits.random_affine(images, 0.0) is images
    torch.manual_seed(0)
    near, far = ((digits.random_affine(images, strength) - images).abs().mean() for strength in (0.01, 0.2))
    assert 0 < near < far / 3
