"""The default job: search, training from scratch and baselines, small enough for a test."""
# mypy: disable-error-code="arg-type, index, union-attr"

import json
import math
import shutil
import signal
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from asng import ASNG, nas
from asng._untrusted import read_json_lines
from asng.experiments import digits
from asng.nas._checkpoints import Checkpoint
from asng.nas._loop import run_job
from asng.nas.architecture import from_dict

SMALL = digits.DigitsSettings(epochs=2, training_epochs=2)


@pytest.fixture(autouse=True)
def _one_thread():
    with digits.one_thread():
        yield


def test_the_three_parts_of_the_data_are_all_of_it_and_follow_the_seed():
    data, again, other = digits.load_split(0), digits.load_split(0), digits.load_split(1)
    assert [len(labels) for _, labels in (data.train, data.valid, data.test)] == [600, 600, 597]
    images = torch.cat([data.train[0], data.valid[0], data.test[0]])
    everything = torch.cat([other.train[0], other.valid[0], other.test[0]])
    assert images.shape == (1797, 1, 8, 8)
    assert (images.min(), images.max()) == (0, 1)
    assert torch.equal(images.flatten(1).sum(1).sort().values, everything.flatten(1).sum(1).sort().values)
    assert torch.equal(data.test[0], again.test[0])
    assert not torch.equal(data.test[0], other.test[0])


def test_every_architecture_of_the_space_runs_and_extracts_to_the_same():
    model = digits.Net().eval()
    images = digits.load_split(0).test[0][:4]
    space = nas.space_of(model)
    assert len(space) == 15
    for candidate in ASNG(space, seed=0).ask(40):
        nas.select(model, candidate.values)
        small = nas.extract(model, candidate.values)
        torch.testing.assert_close(small(images), model(images))


def test_the_handcrafted_network_is_of_the_space():
    model = nas.extract(digits.Net(), digits.HANDCRAFTED)
    stem, block, head = 9 * 24 + 24, 9 * 24 * 24 + 2 * 24, 24 * 10 + 10
    assert sum(parameter.numel() for parameter in model.parameters()) == stem + 4 * block + head


@pytest.mark.long
def test_a_seed_gives_the_same_search_and_the_same_training_again():
    data = digits.load_split(3)
    settings = replace(SMALL, seed=3)
    first, second = (digits.search(settings, data) for _ in range(2))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    trained = [digits.train(settings, data, first["values"]) for _ in range(2)]
    assert {**trained[0], "seconds": 0} == {**trained[1], "seconds": 0}


@pytest.mark.long
def test_training_learns_the_digits():
    settings = digits.DigitsSettings(training_epochs=5)
    assert digits.train(settings, digits.load_split(0), digits.HANDCRAFTED)["accuracy"] > 0.9


@pytest.mark.slow
def test_validation_images_are_held_out_of_a_training_that_they_judge():
    data = digits.load_split(0)
    wrong = replace(data, valid=(data.valid[0], (data.valid[1] + 1) % 10))  # labels that would be learned
    settings = replace(SMALL, training_epochs=6)
    right, judged = (digits.train(settings, each, digits.HANDCRAFTED, hold_out=True) for each in (data, wrong))
    assert right["accuracy"] == judged["accuracy"]
    assert right["valid_accuracy"] > 0.5 > judged["valid_accuracy"]
    assert digits.train(SMALL, data, digits.HANDCRAFTED)["valid_accuracy"] is None


@pytest.mark.slow
def test_a_warm_up_trains_the_weights_and_leaves_the_distribution():
    thetas: list[list[float]] = []
    weights: list[torch.Tensor] = []

    def keep(record):
        if isinstance(record, dict):  # of an epoch
            thetas.append(oneshot.arch_optimizer.theta.tolist())
            weights.append(next(oneshot.model.parameters()).detach().clone())

    oneshot, job = digits.make_search(replace(SMALL, epochs=3), digits.load_split(0), keep)
    start = oneshot.arch_optimizer.theta.tolist()
    with closing(job):
        history = run_job(job, epochs=3)
    assert thetas[:2] == [start, start] != thetas[1:]
    assert not torch.equal(weights[0], weights[1])
    assert [math.isnan(record["valid_loss"]) for record in history] == [True, True, False]
    assert [record["steps"] for record in history] == [0, 0, 9]  # that moved the distribution


@pytest.mark.slow
def test_the_second_stage_finds_the_lowest_loss_on_all_validation_images(monkeypatch):
    oneshots, data = [], digits.load_split(0)
    make_search = digits.make_search

    def keep(*arguments):
        oneshot, job = make_search(*arguments)
        oneshots.append(oneshot)
        return oneshot, job

    monkeypatch.setattr(digits, "make_search", keep)
    found = digits.search(SMALL, data)
    (oneshot,) = oneshots
    (likely,) = nas.top(oneshot)
    assert found["most_likely"] == likely.values
    assert found["certainty"] == likely.certainty
    best, most_likely = (loss_of(oneshot, data, found[name]) for name in ("values", "most_likely"))
    assert best == min(loss_of(oneshot, data, each.values) for each in nas.top(oneshot, digits.TOP_K)) < most_likely


def loss_of(oneshot, data, values):
    """The mean loss on the validation images, of an architecture extracted and recalibrated by hand."""
    model = nas.extract(oneshot.model, values)
    nas.recalibrate(model, [data.train[0]])
    with torch.no_grad():
        return digits.classification_loss(model.eval(), data.valid).item()


def test_a_warm_up_leaves_epochs_for_the_distribution():
    assert digits.DigitsSettings().warmup_epochs == 120
    assert digits.DigitsSettings(warmup=0.0).warmup_epochs == 0
    assert [digits.DigitsSettings(epochs=epochs).warmup_epochs for epochs in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.long
def test_a_run_compares_and_goes_on_where_it_was_interrupted(tmp_path):
    class Enough(Exception):
        pass

    def interrupt(done):
        if done > 0.55:
            raise Enough

    with pytest.raises(Enough):
        digits.run(SMALL, tmp_path, interrupt)
    before = (tmp_path / "results.jsonl").read_text()
    assert [json.loads(line)["kind"] for line in before.splitlines()] == ["search", "found"]
    heard: list[float] = []
    summary = digits.run(SMALL, tmp_path, heard.append)
    assert (tmp_path / "results.jsonl").read_text().startswith(before)
    assert heard == sorted(heard)
    (row,) = summary["rows"]
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    *_, first, best = records
    random = [record for record in records if record["kind"] == "random"]
    assert summary["random_count"] == len(random) == SMALL.num_random
    assert best["values"] == max(random, key=lambda record: record["valid_accuracy"])["values"]
    assert first["values"] == random[0]["values"]
    assert row["random_best"] == {name: best[name] for name in ("accuracy", "parameters")}
    assert row["random_seconds"] == sum(record["seconds"] for record in random)
    assert summary["accuracy"]["found"] == {"mean": row["found"]["accuracy"], "standard_error": None}
    assert summary["gradients"] == {"found": 2 * 2 * 9, "random_best": SMALL.num_random * 2 * 9}
    assert not list(tmp_path.glob("*.pt"))
    kept = json.loads((tmp_path / "architecture.json").read_text())
    assert from_dict(kept, nas.space_of(digits.Net())) == row["values"]


def test_random_architectures_take_as_many_gradients_as_the_search():
    settings, data = digits.DigitsSettings(), digits.load_split(0)
    half = len(digits.ShuffledBatches(data.train, settings.batch_size, torch.Generator()))
    search = settings.epochs * half * 2  # architectures a step
    assert settings.num_random * settings.training_epochs * half == search
    assert SMALL.num_random == 2
    assert digits.DigitsSettings(epochs=1).num_random == 1


def test_the_best_random_one_is_chosen_by_validation_accuracy():
    def record(name, valid, test):
        return {"kind": "random", "values": name, "valid_accuracy": valid, "accuracy": test}

    found = {"kind": "found", "values": "found", "valid_accuracy": None, "accuracy": 1.0}
    records = [found, record("a", 0.8, 0.9), record("b", 0.9, 0.7), record("c", 0.9, 0.8)]
    assert digits.best_random(records)["values"] == "b"


@pytest.mark.long
@pytest.mark.parametrize("after", [1, 2], ids=["in the warm-up", "behind it"])
def test_a_search_that_is_interrupted_goes_on_from_its_checkpoint(tmp_path, after):
    settings = replace(SMALL, epochs=3, seed=3)
    assert settings.warmup_epochs == 2
    pressed: list[bool] = []  # only once: a second Ctrl-C does not wait for the end of the step

    def interrupt(fraction, text="", *, line=False):
        if fraction >= after / 3 and not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    data, identity = digits.load_split(3), {"seed": 3}
    with pytest.raises(KeyboardInterrupt, match=r"saved in .*: the same call continues"):
        digits.search(settings, data, interrupt, Checkpoint(tmp_path / "c.pt", identity))
    parted = digits.search(settings, data, checkpoint=Checkpoint(tmp_path / "c.pt", identity))
    assert {**parted, "seconds": 0} == {**digits.search(settings, data), "seconds": 0}


@pytest.mark.slow
def test_a_folder_that_is_removed_during_the_search_is_not_made_again(tmp_path):
    def remove(*arguments, **options):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(ValueError, match="run was removed while its run went on; start it again"):
        digits.run(digits.DigitsSettings(epochs=2, training_epochs=1), tmp_path / "run", remove)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_run_has_the_metrics_and_the_distribution_of_every_epoch_also_if_it_was_interrupted(tmp_path):
    def interrupt(fraction, text="", *, line=False):
        if fraction > 0.2 and not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    pressed = []
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    settings = digits.DigitsSettings(epochs=4, training_epochs=4)
    digits.run(settings, whole)
    with pytest.raises(KeyboardInterrupt):
        digits.run(settings, parted, interrupt)
    digits.run(settings, parted)
    one, other = (read_json_lines(folder / "metrics.jsonl", "") for folder in (whole, parted))
    assert [record["epoch"] for record in one] == [1, 2, 3, 4]
    assert one[0]["valid_loss"] is None  # nothing is judged while the weights warm up
    assert sum(one[-1]["distribution"]["op10"].values()) == pytest.approx(1)
    assert [{**record, "seconds": 0} for record in one] == [{**record, "seconds": 0} for record in other]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs.*got 0"),
        ({"lr": -1.0}, "lr.*got -1"),
        ({"warmup": 1.0}, "warmup must be a share.*got 1"),
        ({"warmup": float("nan")}, "warmup.*got nan"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        digits.DigitsSettings(**wrong)
