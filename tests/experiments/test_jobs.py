"""Searches of the image experiments, on a task whose best choice is known."""
# mypy: disable-error-code="arg-type, assignment"

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from asng import ASNG, SNG, Categorical, Integer, RandomSearch, nas
from asng._checks import check_settings
from asng.experiments._images import ImageSet
from asng.experiments._jobs import TOP_K, SearchJob
from asng.experiments._settings import EpochSettings, SearchSettings
from asng.experiments._task import Task
from asng.nas._loop import Epoch
from asng.nas.architecture import to_json


class Shifted(nn.Module):
    """x + weight + shift, where the shift is one of 3, 1, 0 and 5."""

    def __init__(self, integer=False):
        super().__init__()
        self.shift = nas.Value("shift", Categorical([3.0, 1.0, 0.0, 5.0]))
        self.more = nas.Value("more", Integer(1, 9)) if integer else None
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.weight + self.shift.value + (0 if self.more is None else 0 * self.more.value)


@dataclass(frozen=True, kw_only=True)
class Settings(SearchSettings, EpochSettings):
    """Eight images: two steps in an epoch."""

    epochs: int = 4
    batch_size: int = 2
    test: bool = False


class Shift(Task):
    """Nothing to lose at a shift of 0; architectures have 40, 20, 10 and 60 parameters."""

    name, search_settings, weight_decay = "shift", Settings, 0.1
    build_network = measure = load = None

    def __init__(self, model):
        images = ImageSet(torch.zeros(8, 3, 1, 1, dtype=torch.uint8))
        super().__init__(images, images)
        self.model = model

    def transform(self, settings):
        return lambda images, chosen, generators: (torch.zeros(2),)

    def build_supernet(self, settings):
        return self.model

    def search_space(self, searched):  # type: ignore[override]  # as every test has a model of its own
        return nas.space_of(self.model)

    def search_loss(self, model, batch):
        return model(batch[0]).square().mean()

    def size_of(self, settings):
        return lambda model, values: int(10 * (1 + values["shift"]))

    def smallest_values(self, model):
        return {"shift": 0.0}


def make_job(model=None, task=Shift, **settings):
    return SearchJob(task(model or Shifted()), Settings(**settings))


def certainty(job):
    shown = job.status(Epoch())
    return {name: value for name, value in shown.items() if name != "images_per_second"}


# A step


def test_a_step_reports_mean_losses_at_the_learning_rate_of_a_cosine():
    search = make_job(lr=1e-9)
    record = search.step(2)  # the second of four epochs
    assert set(record) == {"train_loss", "valid_loss"}
    means = {float((a**2 + b**2) / 2) for a in (3, 1, 0, 5) for b in (3, 1, 0, 5)}
    assert any(math.isclose(record["train_loss"], mean, abs_tol=1e-6) for mean in means)
    group = search.oneshot.weight_optimizer.param_groups[0]
    assert group["lr"] == pytest.approx(1e-9 * (1 + math.cos(math.pi / 4)) / 2)
    assert (group["momentum"], group["weight_decay"]) == (0.9, 0.1)


def test_under_a_limit_a_step_reports_the_feasible_share():
    search = make_job(max_params=30)
    records = [search.step(0) for _ in range(20)]
    assert {record["feasible"] for record in records} <= {0.0, 0.5, 1.0}
    assert all(("valid_loss" in record) == (record["feasible"] > 0) for record in records)
    assert search.result()["feasible"]
    assert search.result()["values"]["shift"] in (1.0, 0.0)


def test_a_limit_below_the_smallest_architecture_is_refused():
    with pytest.raises(ValueError, match="smallest architecture has 10 parameters, more than max_params=5"):
        make_job(max_params=5)


def test_a_limit_that_no_draw_meets_ends_in_the_nearest_architecture():
    class Larger(Shift):
        def smallest_values(self, model):
            return {"shift": -1.0}  # which is never drawn

    search = make_job(task=Larger, max_params=5)
    assert search.step(0) == {"feasible": 0.0}
    found = search.result()
    assert not found["feasible"]
    assert found["values"] == {"shift": 0.0}


def test_the_methods_are_the_three_optimizers():
    for method, kind in (("asng", ASNG), ("sng", SNG), ("uniform", RandomSearch)):
        assert type(make_job(method=method, population_size=4).arch_optimizer) is kind


def test_delta_is_the_first_step_size_of_asng_and_the_constant_one_of_sng():
    assert make_job(delta=0.1).arch_optimizer.delta == 0.1
    assert make_job(method="sng", delta=0.1).arch_optimizer.state_dict()["settings"]["delta"] == 0.1
    with pytest.raises(ValueError, match="delta_init must be a number above 0"):
        make_job(delta=-1.0)
    with pytest.raises(ValueError, match=r"the method uniform has no step size, got delta=0\.1; leave it out"):
        make_job(method="uniform", delta=0.1)


# What it has found


def test_certainty_is_the_mean_largest_probability_and_the_step_size():
    search = make_job()
    assert certainty(search) == {"largest_probability": 0.25, "delta": 1.0}
    for _ in range(5):
        search.step(0)
    expected = float(np.max(search.arch_optimizer.distribution()["shift"]))
    assert certainty(search) == {"largest_probability": expected, "delta": search.arch_optimizer.delta}
    assert expected > 0.25


def test_integers_have_no_probabilities_that_could_be_the_largest():
    assert certainty(make_job(Shifted(integer=True)))["largest_probability"] == 0.25
    model = nn.Module()
    model.more = nas.Value("more", Integer(1, 9))
    model.weight = nn.Parameter(torch.zeros(()))
    assert certainty(make_job(model)) == {"delta": 1.0}


def test_only_asng_has_a_step_size():
    assert certainty(make_job(method="sng")) == certainty(make_job(method="uniform")) == {"largest_probability": 0.25}


@pytest.mark.parametrize("method", ["asng", "sng"])
def test_the_best_choice_is_found_and_the_distribution_fits_into_json(method):
    search = make_job(Shifted(integer=True), method=method, lr=1e-9)
    for _ in range(150):
        search.step(0)
    found = search.result()
    assert found["values"]["shift"] == 0.0
    assert found["values"] == search.top_values()
    assert found["probability"] > 0
    distribution = json.loads(json.dumps(found["distribution"]))
    assert np.argmax(distribution["shift"]) == 2
    assert len(distribution["more"]) == 2  # mean and deviation


def test_random_search_never_moves_and_takes_the_best_that_it_judges():
    search = make_job(method="uniform", num_random=40)
    for _ in range(3):
        search.step(0)
    assert search.top_values() is None
    found = search.result()
    assert (found["values"], found["probability"]) == ({"shift": 0.0}, None)
    assert found["distribution"] == {"shift": [0.25] * 4}
    assert search.result() == found  # drawn again from the same seed


def test_random_search_shows_how_far_its_choice_is():
    shown = []
    search = make_job(method="uniform", num_random=40)
    search.result(lambda fraction, text, *, line=False: shown.append((fraction, text, line)))
    assert shown[0] == (0.0, "choosing among 40 architectures", True)
    fractions = [fraction for fraction, _, _ in shown]
    assert len(shown) == 1 + 40 + TOP_K
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert not any(line for _, _, line in shown[1:])


def test_random_search_takes_feasible_ones_only():
    class WithoutBest(Shift):
        def size_of(self, settings):
            return lambda model, values: 100 if values["shift"] == 0.0 else 1

        def smallest_values(self, model):
            return {"shift": 1.0}

    assert make_job(task=WithoutBest, method="uniform", num_random=40, max_params=10).result()["values"] == {
        "shift": 1.0
    }
    with pytest.raises(ValueError, match="none of 1 architectures meets the limit; raise max_params"):
        make_job(method="uniform", num_random=1, max_params=10, seed=1)


def test_a_result_is_the_most_likely_or_random_searchs_choice(tmp_path):
    search = make_job()
    assert search.load_result(tmp_path) == search.top_values()
    random = make_job(method="uniform")
    with pytest.raises(ValueError, match=r"is a random search, which chooses .* at its end; let it finish"):
        random.load_result(tmp_path)
    (tmp_path / "architecture.json").write_text(to_json({"shift": 5.0}))
    assert random.load_result(tmp_path) == {"shift": 5.0}
    assert search.load_result(tmp_path) == search.top_values()


def test_a_search_goes_on_from_its_state():
    whole, parted = make_job(seed=3), make_job(seed=3)
    for number in range(4):
        whole.step(number)
        parted.step(number)
    again = make_job(seed=99)
    again.load_state_dict(parted.state_dict())
    for number in range(4, 8):
        assert whole.step(number) == again.step(number)
    assert whole.result() == again.result()


# Settings


@dataclass(frozen=True)
class Some:
    count: int = 3
    seed: int = 0
    lr: float = 0.1
    none: int | None = None


def test_numbers_are_checked_and_named():
    check_settings(Some())
    check_settings(Some(), count=3)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        check_settings(Some(count=0))
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        check_settings(Some(seed=-1))
    with pytest.raises(ValueError, match="count must be at least 4, got 3"):
        check_settings(Some(), count=4)
    for lr in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"lr must be above 0, got {lr}"):
            check_settings(Some(lr=lr), count=3)
