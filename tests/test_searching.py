"""What the searches on images share, on a model whose best choice is known."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from asng import ASNG, SNG, Categorical, Integer, RandomSearch, __version__, nas
from asng.experiments import training
from asng.experiments.searching import (
    TOP_K,
    SearchJob,
    SearchSettings,
    check_settings,
    read_checkpointed_config,
    run_config,
    settings_from_config,
)
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


def loss(model, batch):
    """Nothing to lose at a shift of 0."""
    return model(batch[0]).square().mean()


def size(model, values):
    return int(10 * (1 + values["shift"]))  # 40, 20, 10, 60


def zeros(number=0):
    """Every mini-batch."""
    return (torch.zeros(2),)


def searching(model=None, **settings):
    return SearchJob(SearchSettings(**settings), model or Shifted(), loss, size=size, weight_decay=0.1)


# A step


def test_a_step_reports_mean_losses_at_the_learning_rate_of_a_cosine():
    search = searching(lr=1e-9)
    record = search.step(zeros(), zeros(), 0.25)
    assert set(record) == {"train_loss", "valid_loss"}
    means = {float((a**2 + b**2) / 2) for a in (3, 1, 0, 5) for b in (3, 1, 0, 5)}
    assert any(math.isclose(record["train_loss"], mean, abs_tol=1e-6) for mean in means)
    group = search.oneshot.weight_optimizer.param_groups[0]
    assert group["lr"] == pytest.approx(1e-9 * (1 + math.cos(math.pi / 4)) / 2)
    assert (group["momentum"], group["weight_decay"]) == (0.9, 0.1)


def test_under_a_limit_a_step_reports_the_feasible_share():
    search = searching(max_params=30)
    records = [search.step(zeros(), zeros(), 0.0) for _ in range(20)]
    assert {record["feasible"] for record in records} <= {0.0, 0.5, 1.0}
    assert all(("valid_loss" in record) == (record["feasible"] > 0) for record in records)
    assert search.result(zeros, 4)["feasible"]
    assert search.result(zeros, 4)["values"]["shift"] in (1.0, 0.0)


def test_a_limit_that_none_meets_ends_in_the_nearest_architecture():
    search = searching(max_params=5)
    assert search.step(zeros(), zeros(), 0.0) == {"feasible": 0.0}
    found = search.result(zeros, 4)
    assert not found["feasible"]
    assert found["values"] == {"shift": 0.0}


def test_the_methods_are_the_three_optimizers():
    for method, kind in (("asng", ASNG), ("sng", SNG), ("uniform", RandomSearch)):
        assert type(searching(method=method, population_size=4).arch_optimizer) is kind


# What it has found


def test_certainty_is_the_mean_largest_probability_and_the_step_size():
    search = searching()
    assert search.certainty() == {"largest_probability": 0.25, "delta": 1.0}
    for _ in range(5):
        search.step(zeros(), zeros(), 0.0)
    expected = float(np.max(search.arch_optimizer.distribution()["shift"]))
    assert search.certainty() == {"largest_probability": expected, "delta": search.arch_optimizer.delta}
    assert expected > 0.25


def test_integers_have_no_probabilities_that_could_be_the_largest():
    assert searching(Shifted(integer=True)).certainty()["largest_probability"] == 0.25
    model = nn.Module()
    model.more = nas.Value("more", Integer(1, 9))
    model.weight = nn.Parameter(torch.zeros(()))
    assert searching(model).certainty() == {"delta": 1.0}


def test_only_asng_has_a_step_size():
    assert (
        searching(method="sng").certainty() == searching(method="uniform").certainty() == {"largest_probability": 0.25}
    )


@pytest.mark.parametrize("method", ["asng", "sng"])
def test_the_best_choice_is_found_and_the_distribution_fits_into_json(method):
    search = searching(Shifted(integer=True), method=method, lr=1e-9)
    for _ in range(150):
        search.step(zeros(), zeros(), 0.0)
    found = search.result(zeros, 4)
    assert found["values"]["shift"] == 0.0
    assert found["values"] == search.top_values()
    assert found["probability"] > 0
    distribution = json.loads(json.dumps(found["distribution"]))
    assert np.argmax(distribution["shift"]) == 2
    assert len(distribution["more"]) == 2  # mean and deviation


def test_random_search_never_moves_and_takes_the_best_that_it_judges():
    search = searching(method="uniform", num_random=40)
    for _ in range(3):
        search.step(zeros(), zeros(), 0.0)
    assert search.top_values() is None
    found = search.result(zeros, 4)
    assert (found["values"], found["probability"]) == ({"shift": 0.0}, None)
    assert found["distribution"] == {"shift": [0.25] * 4}
    assert search.result(zeros, 4) == found  # drawn anew from the same seed


def test_random_search_shows_how_far_its_choice_is():
    shown = []
    search = searching(method="uniform", num_random=40)
    search.result(zeros, 4, lambda fraction, text, *, line=False: shown.append((fraction, text, line)))
    assert shown[0] == (0.0, "choosing among 40 architectures", True)
    fractions = [fraction for fraction, _, _ in shown]
    assert len(shown) == 1 + 40 + TOP_K
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert not any(line for _, _, line in shown[1:])


def test_random_search_takes_feasible_ones_only():
    def outside_of_best(model, values):
        return 100 if values["shift"] == 0.0 else 1

    settings = SearchSettings(method="uniform", num_random=40, max_params=10)
    search = SearchJob(settings, Shifted(), loss, size=outside_of_best, weight_decay=0.0)
    assert search.result(zeros, 4)["values"] == {"shift": 1.0}
    with pytest.raises(ValueError, match="none of 40 architectures meets the limit; raise max_params"):
        searching(method="uniform", num_random=40, max_params=5).result(zeros, 4)


def test_what_a_run_has_found_is_the_most_likely_or_what_random_search_has_chosen(tmp_path):
    search = searching()
    assert search.load_result(tmp_path) == search.top_values()
    random = searching(method="uniform")
    with pytest.raises(ValueError, match=r"is a random search, which chooses .* at its end; let it finish"):
        random.load_result(tmp_path)
    (tmp_path / "architecture.json").write_text(to_json({"shift": 5.0}))
    assert random.load_result(tmp_path) == {"shift": 5.0}
    assert search.load_result(tmp_path) == search.top_values()


def test_a_search_goes_on_from_its_state():
    whole, parted = searching(seed=3), searching(seed=3)
    for number in range(4):
        whole.step(zeros(), zeros(), number / 8)
        parted.step(zeros(), zeros(), number / 8)
    again = searching(seed=99)
    again.load_state_dict(parted.state_dict())
    for number in range(4, 8):
        assert whole.step(zeros(), zeros(), number / 8) == again.step(zeros(), zeros(), number / 8)
    assert whole.result(zeros, 4) == again.result(zeros, 4)


# Settings and folders


@dataclass(frozen=True)
class Some:
    count: int = 3
    lr: float = 0.1


def test_numbers_are_checked_and_named():
    check_settings(Some(), count=3)
    with pytest.raises(ValueError, match="count must be at least 4, got 3"):
        check_settings(Some(), count=4)
    for lr in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"lr must be above 0, got {lr}"):
            check_settings(Some(lr=lr), count=3)


def test_a_folder_says_what_it_is_and_gives_the_settings_back(tmp_path):
    there = run_config("cifar10", "search", Some(count=7))
    assert there == {"experiment": "cifar10", "kind": "search", "version": __version__, "count": 7, "lr": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(there))
    (tmp_path / training.CHECKPOINT).touch()
    assert read_checkpointed_config(tmp_path, "cifar10") == there
    assert settings_from_config(Some, there) == Some(count=7)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ({"experiment": "inpainting", "kind": "search"}, "is no run of cifar10: its config.json says 'inpainting'"),
        ({"experiment": "cifar10", "kind": "walk"}, "is no run of cifar10"),
        ({}, "is no run of cifar10: its config.json says None"),
        (
            {"experiment": "cifar10", "kind": "retrain"},
            r"has no checkpoint\.pt yet; let it run until its first checkpoint",
        ),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path, there, message):
    (tmp_path / "config.json").write_text(json.dumps(there))
    with pytest.raises(ValueError, match=message):
        read_checkpointed_config(tmp_path, "cifar10")


def test_settings_of_another_version_are_refused():
    message = (
        rf"made by asng 0\.0\.7, without the setting 'lr', and this is asng {__version__}; do this with asng 0\.0\.7"
    )
    with pytest.raises(ValueError, match=message):
        settings_from_config(Some, {"count": 3, "version": "0.0.7"})
    with pytest.raises(ValueError, match="do this with asng of another version, or run it again"):
        settings_from_config(Some, {"count": 3})
