"""Candidates are ranked by a judge: any number, with its metrics, without gradients; by default the loss."""

# mypy: disable-error-code="index, union-attr"

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from asng.nas import Limit, Linear, Width, parameters, selected
from tests.helpers.captures import Choosy, oneshot
from tests.helpers.searches import (
    Net,
    Switch,
    batches,
    cross_entropy,
    interrupt_at,
    make_oneshot,
    pairs,
    run_search,
    same,
    small_search,
)

pytestmark = pytest.mark.usefixtures("same_numbers")


def errors(model, batch):
    """The share of errors, a number of Python, with the loss beside it."""
    logits = model(batch[0])
    wrong = (logits.argmax(1) != batch[1]).float().mean().item()
    return wrong, {"loss": nn.functional.cross_entropy(logits, batch[1]), "depth": selected(model)["depth"]}


def test_without_a_judge_the_scores_are_the_losses():
    step = make_oneshot().step(*batches(2))
    assert step.scores == step.valid_losses
    assert step.score == step.valid_loss


def test_a_judge_ranks_the_candidates_in_place_of_the_loss():
    depth = run_search(judge=lambda model, batch: -selected(model)["depth"], epochs=30).values["depth"]
    assert depth == 3
    depth = run_search(judge=lambda model, batch: selected(model)["depth"], epochs=30).values["depth"]
    assert depth == 1


def test_a_judge_that_is_the_loss_changes_no_number():
    records = []
    for judge in (None, cross_entropy):
        torch.manual_seed(0)
        search = make_oneshot(judge=judge)
        steps = [search.step(*pair) for pair in pairs(5)]
        records.append(([(s.train_losses, s.scores) for s in steps], search.arch_optimizer.theta.tolist()))
    assert records[0] == records[1]


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        (2, 2.0),
        (np.float32(0.5), 0.5),
        (np.array(0.25), 0.25),
        (Fraction(1, 4), 0.25),
        (torch.tensor([3]), 3.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    ],
)
def test_anything_that_converts_to_a_float_is_a_score(returned, score):
    step = make_oneshot(judge=lambda model, batch: (returned, {"twice": 2 * score})).step(*batches(2))
    assert step.scores == (score, score)
    assert step.valid_metrics == ({"twice": 2 * score},) * 2
    assert step.valid_losses == ()
    assert math.isnan(step.valid_loss)


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (None, "None"),
        ("good", "'good'"),
        (torch.ones(2), "a tensor of shape (2,) and torch.float32"),
        (torch.tensor(1j), "a tensor of shape () and torch.complex64"),
        (1j, "1j"),
        ((1.0, {}, 2.0), "(1.0, {}, 2.0)"),
    ],
)
def test_what_is_no_number_is_refused(returned, shown):
    search = make_oneshot(judge=lambda model, batch: returned)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        search.step(*batches(2))
    assert str(caught.value).endswith(f"the lower the better, or (number, metrics), got {shown}")
    assert "in the architecture" not in str(caught.value)


def test_a_judge_that_is_no_function_is_refused():
    with pytest.raises(ValueError, match=r"judge must be a function \(model, batch\) -> number, .*, got 'accuracy'"):
        make_oneshot(judge="accuracy")


def judge_in_evaluation(model, batch):
    model.eval()
    return cross_entropy(model, batch)


def test_modes_that_a_judge_changes_are_restored_after_it():
    search = make_oneshot(Net(norm=True), judge=judge_in_evaluation)
    frozen = next(module for module in search.model.modules() if isinstance(module, nn.BatchNorm1d))
    frozen.eval()
    modes = [module.training for module in search.model.modules()]
    with pytest.warns(UserWarning, match="the judge puts batch norms into evaluation mode"):
        search.step(*batches(2))
    search.step(*batches(2))  # which does not warn again
    assert [module.training for module in search.model.modules()] == modes
    assert modes.count(False) == 1


def test_a_judge_in_evaluation_mode_is_fine_where_there_are_no_batch_norms():
    search = make_oneshot(judge=judge_in_evaluation)
    search.step(*batches(2))
    assert all(module.training for module in search.model.modules())


def test_a_judge_runs_without_gradients_in_training_mode_and_autocast():
    seen = []

    def judge(model, batch):
        seen.append((torch.is_grad_enabled(), model.training, model(batch[0]).dtype))
        return 0.0

    make_oneshot(judge=judge, amp_dtype=torch.bfloat16).step(*batches(2))
    assert seen == [(False, True, torch.bfloat16)] * 2


@pytest.mark.parametrize("worst", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_worst(worst):
    def judge(model, x):
        return worst if selected(model)["which"] == 0 else 1e200

    search = make_oneshot(Switch(), loss_fn=lambda model, x: model(x), judge=judge)
    scores = [score for _ in range(60) for score in search.step(torch.ones(3), torch.ones(3)).scores]
    assert 1e200 in scores
    assert search.arch_optimizer.mode() == {"which": 1}


def test_infeasible_candidates_have_no_score():
    search = make_oneshot(judge=errors, limits=[Limit(parameters, 150)])
    steps = [search.step(*pair) for pair in pairs(10)]
    rows = [row for step in steps for row in zip(step.scores, step.violations, step.valid_metrics, strict=True)]
    assert {score is None for score, *_ in rows} == {True, False}
    assert all((score is None) == (violation > 0) == (metrics == {}) for score, violation, metrics in rows)


def test_the_history_has_the_mean_score_and_the_metrics_of_both_halves():
    def loss_fn(model, batch):
        return cross_entropy(model, batch), {"depth": 7}

    for record in run_search(loss_fn=loss_fn, judge=errors, epochs=2).history:
        assert list(record)[:3] == ["epoch", "train_loss", "score"]
        assert 0 <= record["score"] <= 1
        assert record["train_depth"] == 7
        assert 1 <= record["valid_depth"] <= 3
        assert record["valid_loss"] > 0  # a metric of the judge


def test_a_judge_without_finite_scores_ends_the_search():
    with pytest.raises(ValueError, match="all scores of epoch 1 were NaN or infinite; check the judge"):
        run_search(judge=lambda model, batch: math.nan)


@pytest.mark.slow
def test_a_search_with_a_judge_resumes_bit_for_bit(tmp_path):
    whole = small_search(None, judge=errors)
    with pytest.raises(KeyboardInterrupt):
        small_search(tmp_path / "search.pt", judge=errors, loss_fn=interrupt_at(21))
    assert same(small_search(tmp_path / "search.pt", judge=errors), whole)


@pytest.mark.slow
def test_a_checkpoint_of_another_judge_is_refused(tmp_path):
    path = tmp_path / "search.pt"
    run_search(judge=errors, checkpoint=path)
    with pytest.raises(ValueError, match="judge"):
        run_search(judge=cross_entropy, checkpoint=path)
    with pytest.raises(ValueError, match="judge"):
        run_search(checkpoint=path)
    assert run_search(judge=errors, checkpoint=path).history


# Captured steps ------------------------------------------------------------------------------------


def half_loss(model, batch):
    return cross_entropy(model, batch) / 2, {"rows": len(batch[0])}


@pytest.mark.slow
@pytest.mark.usefixtures("graphless")
def test_a_judge_that_returns_a_tensor_is_captured():
    torch.manual_seed(0)
    plain = oneshot(Choosy(), judge=half_loss)
    torch.manual_seed(0)
    captured = oneshot(Choosy(), judge=half_loss, capture=True)
    for pair in pairs(5):
        assert captured.step(*pair) == plain.step(*pair)  # a warning would be an error
    assert captured.capture_cost


def wide():
    width = Width("width", [4, 8])
    return nn.Sequential(Linear(4, width), Linear(width, 3))


@pytest.mark.slow
@pytest.mark.usefixtures("graphless")
@pytest.mark.parametrize("make", [Choosy, wide])
def test_a_judge_that_returns_a_number_runs_as_usual_after_one_warning(make):
    """Masks for widths, which are tried next, do not change that, and the reason is not said again."""

    def judge(model, batch):
        return float(cross_entropy(model, batch))

    torch.manual_seed(0)
    plain = oneshot(make(), judge=judge)
    torch.manual_seed(0)
    captured = oneshot(make(), judge=judge, capture=True)
    first, second = pairs(2)
    with pytest.warns(UserWarning, match=r"runs as usual: the judge returns a Python number, [\w ]*; return a tensor$"):
        assert captured.step(*first) == plain.step(*first)
    assert captured.step(*second) == plain.step(*second)


@pytest.mark.slow
@pytest.mark.usefixtures("graphless")
@pytest.mark.filterwarnings("ignore:the judge puts batch norms into evaluation mode")
def test_a_captured_judge_that_calls_eval_leaves_the_training_passes_as_they_are():
    steps = []
    for settings in ({}, {"capture": True}):
        torch.manual_seed(0)
        search = oneshot(Choosy(dropout=0.0), judge=judge_in_evaluation, **settings)
        steps.append([search.step(*pair) for pair in pairs(4)])
        assert all(module.training for module in search.model.modules())
    assert [step.train_losses for step in steps[0]] == [step.train_losses for step in steps[1]]
    assert search.capture_cost


def penalized_loss(model, batch):
    return cross_entropy(model, batch) + 0.1 * selected(model)["depth"]


@pytest.mark.slow
@pytest.mark.usefixtures("graphless")
def test_a_soft_penalty_on_selected_values_runs_as_usual_with_the_reason():
    torch.manual_seed(0)
    plain = oneshot(Choosy(), judge=penalized_loss)
    torch.manual_seed(0)
    captured = oneshot(Choosy(), judge=penalized_loss, capture=True)
    first, second = pairs(2)
    with pytest.warns(UserWarning, match="runs as usual: decision 'op' .* is read in Python outside a choice"):
        assert captured.step(*first) == plain.step(*first)
    assert captured.step(*second) == plain.step(*second)
