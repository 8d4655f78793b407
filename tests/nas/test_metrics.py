"""Metrics that a loss function returns beside the loss: per candidate in a step, without effect on the search."""

# mypy: disable-error-code="index, union-attr"

import math
import warnings

import pytest
import torch

from asng.nas import Limit, parameters, selected
from tests.helpers.searches import Net, Switch, batches, cross_entropy, make_oneshot, pairs, run_search

pytestmark = pytest.mark.usefixtures("same_numbers")


def with_metrics(model, batch):
    loss = cross_entropy(model, batch)
    return loss, {"twice": 2 * loss, "rows": len(batch[0]), "depth": torch.tensor([model.blocks.value])}


def test_a_step_has_the_metrics_of_each_candidate_as_floats():
    step = make_oneshot(Net(), loss_fn=with_metrics).step(*batches(2))
    assert [metrics["depth"] for metrics in step.valid_metrics] == [values["depth"] for values in step.candidates]
    for losses, every in ((step.train_losses, step.train_metrics), (step.valid_losses, step.valid_metrics)):
        assert [metrics["twice"] for metrics in every] == pytest.approx([2 * loss for loss in losses])
        assert [metrics["rows"] for metrics in every] == [len(batches(1)[0][0])] * 2
        assert {type(number) for metrics in every for number in metrics.values()} == {float}


def test_without_metrics_the_mappings_are_empty():
    step = make_oneshot(Net()).step(*batches(2))
    assert step.train_metrics == step.valid_metrics == ({}, {})


def test_metrics_change_no_number_of_the_search():
    searches = []
    for loss in (cross_entropy, with_metrics):
        torch.manual_seed(0)
        search = make_oneshot(Net(), loss_fn=loss)
        searches.append(([search.step(*pair).valid_losses for pair in pairs(5)], search.arch_optimizer.theta.tolist()))
    assert searches[0] == searches[1]


def test_infeasible_candidates_have_no_metrics():
    search = make_oneshot(Net(), loss_fn=with_metrics, limits=[Limit(parameters, 150)])
    steps = [search.step(*pair) for pair in pairs(10)]
    rows = [pair for step in steps for pair in zip(step.valid_losses, step.valid_metrics, strict=True)]
    assert {loss is None for loss, _ in rows} == {True, False}
    assert all((loss is None) == (metrics == {}) for loss, metrics in rows)


def test_candidates_that_run_out_of_memory_have_no_metrics():
    def loss(model, x):
        if selected(model)["which"]:
            raise torch.OutOfMemoryError
        return model(x), {"which": selected(model)["which"]}

    search = make_oneshot(Switch(), loss_fn=loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = [search.step(torch.ones(3), torch.ones(3)) for _ in range(4)]
    for step in steps:
        expected = tuple({} if values["which"] else {"which": 0.0} for values in step.candidates)
        assert step.valid_metrics == expected
    assert {} in [metrics for step in steps for metrics in step.valid_metrics]


def test_a_metric_keeps_no_graph_alive():
    seen = []

    def loss(model, batch):
        result, metrics = with_metrics(model, batch)
        seen.append(metrics["twice"].requires_grad)
        return result, metrics

    search = make_oneshot(Net(), loss_fn=loss)
    outcome = search._run(search.arch_optimizer.ask()[0].values, batches(1)[0])
    assert seen == [True]
    assert not outcome.metrics["twice"].requires_grad


def test_the_history_holds_the_mean_metrics_of_both_halves():
    seen: dict[bool, list[int]] = {True: [], False: []}

    def loss(model, batch):
        seen[torch.is_grad_enabled()].append(model.blocks.value)
        return cross_entropy(model, batch), {"depth": model.blocks.value, "loss": 7.0, "aux_loss": math.nan}

    (record,) = run_search(loss_fn=loss, epochs=1).history
    for half, values in (("train", seen[True]), ("valid", seen[False])):
        assert record[f"{half}_depth"] == pytest.approx(sum(values) / len(values))
        assert math.isnan(record[f"{half}_aux_loss"])
        assert record[f"{half}_loss"] < 7


def test_a_finite_metric_does_not_hide_losses_that_are_not():
    def loss(model, batch):
        return cross_entropy(model, batch) * math.nan, {"aux_loss": 1.0}

    with pytest.raises(ValueError, match="all losses of epoch 1 were NaN or infinite"):
        run_search(loss_fn=loss)


def test_records_have_their_keys_in_one_order():
    few = Limit(lambda model, values: values["depth"], 1, name="depth")
    history = run_search(train_loader=batches(1), epochs=12, loss_fn=with_metrics, limits=[few], seed=1).history
    longest = max(map(list, history), key=len)
    assert longest[:4] == ["epoch", "train_loss", "valid_loss", "feasible"]
    assert {len(record) for record in history} != {len(longest)}  # in some epochs there was nothing to judge
    assert all(list(record) == [name for name in longest if name in record] for record in history)
