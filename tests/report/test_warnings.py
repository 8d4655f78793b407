"""What reports warn of."""

import math

import pytest
import torch

from asng import report
from asng.experiments.cifar10.space import SMALLEST
from asng.experiments.cifar10.space import values_of as cells_of
from tests.helpers.report_pages import SEEDS, Page, values_of, write_run
from tests.helpers.searches import run_search

UNDECIDED = {f"op{index}": {"conv": 0.5, "skip": 0.3, "pool": 0.2} for index in range(4)}
SURE = {name: {"conv": 0.98, "skip": 0.01, "pool": 0.01} for name in UNDECIDED}


def warnings_of(tmp_path, config=None, records=(), **files):
    run = write_run(tmp_path / "run", config, records, **files)
    return Page(report.write([run], tmp_path / "report.html")).text("Warnings")


def test_a_sound_run_has_no_warnings(tmp_path):
    records = [{"epoch": 1, "step": 30, "train_loss": 0.5, "distribution": SURE}]
    assert warnings_of(tmp_path, None, records) == "Warnings None."


def test_an_undecided_search_of_few_steps_was_too_short(tmp_path):
    records = [{"step": 30, "distribution": UNDECIDED}]
    text = warnings_of(tmp_path, None, records)
    assert "too short: the mean of the largest probabilities is 0.50 after 30 steps; 4 decisions" in text
    assert "take at least 40" in text


@pytest.mark.parametrize(
    ("steps", "distribution", "method"), [(40, UNDECIDED, "asng"), (30, SURE, "asng"), (30, UNDECIDED, "uniform")]
)
def test_long_decided_and_random_searches_were_not_too_short(steps, distribution, method, tmp_path):
    records = [{"step": steps, "distribution": distribution}]
    assert warnings_of(tmp_path, {"experiment": "mine", "method": method}, records) == "Warnings None."


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_nan_and_infinity_are_named_with_their_first_step(bad, tmp_path):
    records = [{"step": 10, "train_loss": 1.0}, {"step": 20, "train_loss": bad}, {"step": 30, "train_loss": bad}]
    text = warnings_of(tmp_path, None, records)
    assert "NaN or infinite train loss in 2 records, first at step 20" in text


def test_numbers_that_json_could_not_hold_were_not_finite(tmp_path):
    records = [{"epoch": 1, "train_loss": 1.0, "score": 1.0}, {"epoch": 2, "train_loss": None, "score": None}]
    text = warnings_of(tmp_path, None, records)
    assert "NaN or infinite train loss once, first at epoch 2" in text
    assert "NaN or infinite score once, first at epoch 2" in text


def test_numbers_that_were_not_measured_are_no_nan(tmp_path):
    warmup = [{"epoch": 1, "train_loss": 1.0, "valid_loss": None}, {"epoch": 2, "train_loss": 1.0, "valid_loss": 1.0}]
    assert warnings_of(tmp_path, None, warmup) == "Warnings None."
    infeasible = [{"epoch": 1, "train_loss": 1.0, "feasible": 1.0}, {"epoch": 2, "train_loss": None, "feasible": 0.0}]
    assert warnings_of(tmp_path / "limits", None, infeasible) == "Warnings None."


def test_a_saved_search_that_ended_undecided_is_named(tmp_path):
    records = [{"epoch": 1, "train_loss": 1.0, "distribution": UNDECIDED}]
    assert "undecided: its certainty is 0.31" in warnings_of(tmp_path, None, records, summary={"certainty": 0.31})
    sure = warnings_of(tmp_path / "sure", None, records, summary={"certainty": 0.8})
    assert sure == "Warnings None."


@pytest.mark.parametrize(("steps", "certainty", "is_short"), [(39, 0.8, True), (40, 0.8, False), (39, 0.95, False)])
def test_a_search_by_epochs_was_too_short_by_its_steps_and_its_certainty(steps, certainty, is_short, tmp_path):
    records = [
        {"epoch": 1, "steps": 0, "distribution": UNDECIDED},
        {"epoch": 2, "steps": 30, "distribution": UNDECIDED},
    ]
    records.append({"epoch": 3, "steps": steps - 30, "distribution": UNDECIDED})
    text = warnings_of(tmp_path, None, records, summary={"certainty": certainty})
    short = f"The search was too short: its certainty is {certainty:.2f} after {steps} steps; 4 decisions"
    assert (short in text) == is_short
    assert is_short or text == "Warnings None."


@pytest.mark.parametrize(("delta", "is_noise"), [(0.01, True), (0.1, False)])
def test_a_step_size_that_fell_as_on_noise_is_named(delta, is_noise, tmp_path):
    records = [{"epoch": n, "steps": 500, "delta": delta, "distribution": UNDECIDED} for n in (1, 2)]
    text = warnings_of(tmp_path, None, records, summary={"certainty": 0.7})
    assert ("mostly noise: the step size fell to 0.01 in 1,000 steps" in text) == is_noise
    assert is_noise or text == "Warnings None."


def test_a_search_of_ones_own_that_was_too_short_is_named_in_its_report(tmp_path):
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="too short") as caught:
        run_search(epochs=1).save(tmp_path / "short")
    page = Page(report.write([tmp_path / "short"], tmp_path / "short.html"))
    assert str(caught[0].message).split(":")[1].split(" of 1 ")[0].strip() in page.text("Warnings")
    assert "after 5 steps; 2 decisions such as these take at least 20" in page.text("Warnings")
    run_search(epochs=4).save(tmp_path / "long")
    assert "too short" not in Page(report.write([tmp_path / "long"], tmp_path / "long.html")).text("Warnings")


def test_a_page_calls_one_quantity_certainty(tmp_path):
    records = [{"epoch": n, "largest_probability": 0.5, "steps": 50, "distribution": UNDECIDED} for n in (1, 2)]
    page = Page(report.write([write_run(tmp_path / "run", None, records, summary={"certainty": 0.61})], tmp_path / "a"))
    assert "certainty 0.61" in page.text("Overview")
    assert "Largest probability" in page.charts
    assert not any("certainty" in title.lower() for title in page.charts)


def test_losses_that_a_run_counted_as_not_finite_are_named(tmp_path):
    text = warnings_of(tmp_path, None, [{"step": 10, "train_loss": 1.0, "not_finite": 3}])
    assert "NaN or infinite losses once, first at step 10" in text


def test_limits_that_were_never_met_are_named(tmp_path):
    assert "No architecture met the limits" in warnings_of(tmp_path, summary={"feasible": False})
    records = [{"epoch": 1, "feasible": 0.0}, {"epoch": 2, "feasible": 0.0}]
    assert "No candidate has met the limits so far" in warnings_of(tmp_path / "running", None, records)
    found = warnings_of(tmp_path / "finished", None, records, summary={"feasible": True})
    assert "No candidate has met the limits, so nothing was trained" in found


def test_operations_without_parameters_are_a_collapse(tmp_path):
    text = warnings_of(tmp_path, architecture=values_of(**SMALLEST))
    assert "10 of 10 operations of the normal cell have no parameters" in text
    mixed = values_of(op1="conv3", op2="identity", op3="max", op4="conv1")
    assert "Warnings None." in warnings_of(tmp_path / "mixed", architecture=mixed)
    network = values_of(op1="identity", op2="identity", op3="max", op4="average", act="relu")
    assert "4 of 4 operations of the network" in warnings_of(tmp_path / "network", architecture=network)


def test_operations_of_blocks_that_do_not_run_are_no_collapse(tmp_path):
    tree = [{"name": "depth", "range": [1, 4], "inside": {str(n): [{"name": f"op{n}"}] for n in range(1, 5)}}]
    values = {"op1": "conv", "op2": "identity", "op3": "identity", "op4": "identity"}
    short = warnings_of(tmp_path, architecture=values_of(depth=1, **values), summary={"tree": tree})
    assert short == "Warnings None."
    values["op1"] = "max"
    whole = warnings_of(tmp_path / "whole", architecture=values_of(depth=4, **values), summary={"tree": tree})
    assert "4 of 4 operations of the network" in whole


def test_inputs_and_cells_without_influence_are_named(tmp_path):
    values = cells_of([0, 0, 3, 4] * 10)  # all from cell k-2
    summary = {"parameters": 200, "effective_parameters": 150}
    config = {"experiment": "cifar10", "kind": "search", "cells": 8}
    text = warnings_of(tmp_path, config, architecture=values_of(**values), summary=summary)
    assert "The normal cell does not use cell k − 1." in text
    assert "Without influence on the output (counted from 0): cells 0, 2, 4, 6." in text
    assert "Cells and inputs that are not used hold 25% of the parameters." in text


def test_the_parameters_of_an_input_that_is_not_used_are_told_where_all_cells_have_an_influence(tmp_path):
    values = cells_of([0, 0, 3, 4] * 5 + [0, 1, 3, 4] * 5)  # of three cells the last two reduce
    summary = {"parameters": 200, "effective_parameters": 150}
    config = {"experiment": "cifar10", "kind": "search", "cells": 3}
    text = warnings_of(tmp_path, config, architecture=values_of(**values), summary=summary)
    assert "The normal cell does not use cell k − 1. Cells and inputs" in text


def test_the_published_search_with_an_idle_cell_is_found_out(tmp_path):
    text = Page(report.write(SEEDS, tmp_path / "report.html")).text("Warnings")
    assert "seed2: The normal cell does not use cell k − 1." in text


def test_decisions_without_effect_are_named(tmp_path):
    text = warnings_of(tmp_path, summary={"inactive": ["op1", "op2"]})
    assert "2 decisions have no effect on this network: op1, op2." in text
