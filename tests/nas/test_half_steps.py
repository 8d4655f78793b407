"""The halves of an iteration apart: training the weights, also on micro-batches, and moving the distribution."""

# mypy: disable-error-code="index, union-attr"

import copy
import math
import warnings

import pytest
import torch

from asng import ASNG
from asng.nas import Limit, OneShot, parameters, selected, space_of
from tests.helpers.captures import Choosy, oneshot
from tests.helpers.searches import FailingBackward, Net, Switch, batches, cross_entropy, make_oneshot, pairs

pytestmark = pytest.mark.usefixtures("same_numbers")


def twins(model=None, **settings):
    """Two OneShots that begin alike."""
    model = Net() if model is None else model
    return make_oneshot(model, **settings), make_oneshot(copy.deepcopy(model), **settings)


@pytest.mark.parametrize("limits", [[], [Limit(parameters, 200)]], ids=["free", "limited"])
def test_both_halves_after_each_other_are_a_step_bit_for_bit(limits):
    whole, apart = twins(limits=limits)
    for train, valid in pairs(20):
        torch.manual_seed(1)
        step = whole.step(train, valid)
        torch.manual_seed(1)
        first, second = apart.train_step(train), apart.judge_step(valid)
        assert (first.train_losses, first.train_metrics) == (step.train_losses, step.train_metrics)
        assert (second.scores, second.candidates, second.violations) == (step.scores, step.candidates, step.violations)
        assert first.scores == first.candidates == first.violations == second.train_losses == ()
    torch.testing.assert_close(apart.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    assert apart.arch_optimizer.state_dict() == whole.arch_optimizer.state_dict()


def test_training_leaves_the_distribution_alone():
    search = make_oneshot()
    theta = search.arch_optimizer.theta.tolist()
    weights = [p.clone() for p in search.model.parameters()]
    for train, _ in pairs(5):
        search.train_step(train)
    assert search.arch_optimizer.theta.tolist() == theta
    assert not all(map(torch.equal, weights, search.model.parameters()))


def test_judging_leaves_the_weights_alone():
    search = make_oneshot()
    theta = search.arch_optimizer.theta.tolist()
    weights = [p.clone() for p in search.model.parameters()]
    for _, valid in pairs(5):
        search.judge_step(valid)
    assert search.arch_optimizer.theta.tolist() != theta
    assert all(map(torch.equal, weights, search.model.parameters()))


def test_the_selection_is_restored_after_each_half():
    search = make_oneshot()
    values = {"first": 2, "depth": 1}
    search.supernet.select(values)
    search.train_step(*batches(2))
    assert selected(search.model) == values
    search.judge_step(batches(1)[0])
    assert selected(search.model) == values


def test_micro_batches_give_the_mean_gradient_on_the_same_candidates():
    seen = []

    def loss_fn(model, batch):
        if torch.is_grad_enabled():
            seen.append(selected(model))
        return cross_entropy(model, batch), {"rows": len(batch[0]), "twice": 2 * cross_entropy(model, batch)}

    (x, y), *_ = batches(1, size=12, dtype=torch.double)
    whole, parts = twins(Net(dropout=0).double(), loss_fn=loss_fn)
    one = whole.train_step((x, y))
    seen.clear()
    three = parts.train_step(*zip(x.split(4), y.split(4), strict=True))
    assert seen == [seen[0]] * 3 + [seen[3]] * 3
    assert three.train_losses == pytest.approx(one.train_losses)
    assert [metrics["rows"] for metrics in three.train_metrics] == [4.0, 4.0]
    assert three.train_metrics[0]["twice"] == pytest.approx(one.train_metrics[0]["twice"])
    torch.testing.assert_close([*parts.model.parameters()], [*whole.model.parameters()], rtol=1e-12, atol=1e-12)


def test_micro_batches_hold_one_graph_at_a_time():
    alive = 0

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            nonlocal alive
            alive += 1
            assert alive == 1
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            nonlocal alive
            alive -= 1
            return gradient

    search = make_oneshot(Switch(), loss_fn=lambda model, x: Counted.apply(model(x)))
    search.train_step(*[torch.ones(3)] * 4)
    assert alive == 0


def test_a_step_without_batches_is_refused():
    with pytest.raises(ValueError, match="train_step needs at least one batch, got none"):
        make_oneshot().train_step()


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_lack_of_memory_in_a_later_micro_batch_drops_the_candidate(where):
    class Some(ASNG):
        def ask(self, n=None):
            drawn = super().ask(n)
            for candidate, which in zip(drawn, (0, 1), strict=True):
                candidate.values["which"] = which
            return drawn

    def loss_fn(model, x):
        loss = model(x)
        if x[0] == 2 and selected(model)["which"] == 1:
            if where == "forward":
                raise torch.OutOfMemoryError
            return FailingBackward.apply(loss, torch.OutOfMemoryError)
        return loss

    model = Switch()
    search = OneShot(model, Some(space_of(model), seed=0), torch.optim.SGD(model.parameters(), 1.0), loss_fn)
    with pytest.warns(UserWarning, match="'which': 1} ran out of memory"):
        step = search.train_step(torch.ones(3), torch.full((3,), 2.0))
    assert step.train_losses == (4.5, math.inf)
    assert model.weights[0].tolist() == [1 - 1.5] * 3  # the mean of 1 and 2, of the good candidate alone
    assert model.weights[1].tolist() == [1.0] * 3


def test_halves_in_which_every_candidate_fails_are_counted_apart():
    def judge(model, x):
        raise torch.OutOfMemoryError

    search = make_oneshot(Switch(), loss_fn=lambda model, x: model(x), judge=judge)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            search.train_step(torch.ones(3))
            search.judge_step(torch.ones(3))
        search.train_step(torch.ones(3))
        with pytest.raises(RuntimeError, match="every candidate of 5 steps in a row ran out of memory"):
            search.judge_step(torch.ones(3))


def test_a_half_that_fails_draws_the_same_candidates_again():
    drawn: list[dict] = []

    def judge(model, batch):
        drawn.append(selected(model))
        if len(drawn) == 1:
            raise ZeroDivisionError
        return 0.0

    search = make_oneshot(judge=judge)
    search.train_step(batches(1)[0])
    with pytest.raises(ZeroDivisionError):
        search.judge_step(batches(1)[0])
    search.load_state_dict(search.state_dict())
    search.judge_step(batches(1)[0])
    assert drawn[0] == drawn[1]


@pytest.mark.slow
@pytest.mark.usefixtures("graphless")
def test_halves_run_as_usual_between_captured_steps_after_one_warning():
    torch.manual_seed(0)
    plain = oneshot(Choosy())
    torch.manual_seed(0)
    captured = oneshot(Choosy(), capture=True)
    first, second, third, fourth = pairs(4)
    assert captured.step(*first) == plain.step(*first)
    message = "runs as usual: train_step and judge_step are not captured, only step is"
    with pytest.warns(UserWarning, match=message) as caught:
        assert captured.train_step(*second) == plain.train_step(*second)
    assert caught[0].filename == __file__
    assert captured.judge_step(third[1]) == plain.judge_step(third[1])
    assert captured.step(*fourth) == plain.step(*fourth)
    assert captured.capture_cost
    torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)
