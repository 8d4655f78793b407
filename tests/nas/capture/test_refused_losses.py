"""Losses and judges that cannot be captured are refused with the reason."""

import itertools

import pytest
import torch
from torch import nn

from asng.nas import OneOf
from asng.nas._capture.cases import Refused
from tests.helpers.captures import Choosy, iteration, oneshot
from tests.helpers.searches import batches, cross_entropy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


def test_metrics_that_change_their_names_are_refused():
    calls = itertools.count()

    def loss(model, batch):
        return cross_entropy(model, batch), {f"metric {next(calls)}": 1.0}

    with pytest.raises(Refused, match=r"the metrics change from \['metric 0'\] to \['metric 2'\]"):
        iteration(oneshot(Choosy()), batches(1)[0], loss_fn=loss)


def adversarial(model, batch):
    x = batch[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(model, (x, batch[1])), x)
    return cross_entropy(model, (x.detach() + 0.1 * gradient.sign(), batch[1]))


def gradient_penalty(model, batch):
    x = batch[0].clone().requires_grad_()
    loss = cross_entropy(model, (x, batch[1]))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + gradient.square().sum()


@pytest.mark.parametrize("loss_fn", [adversarial, gradient_penalty])
def test_a_backward_pass_inside_the_loss_is_refused(loss_fn):
    model = nn.Sequential(nn.Linear(4, 4), OneOf("op", [nn.Linear(4, 3), nn.Sequential(nn.Tanh(), nn.Linear(4, 3))]))
    with pytest.raises(Refused, match=r"^the loss has a backward pass of its own through 'op' \(1\)$"):
        iteration(oneshot(model), batches(1)[0], loss_fn=loss_fn, judge=cross_entropy)


def test_a_loss_that_calls_backward_is_refused_and_leaves_no_gradients():
    model = nn.Sequential(nn.Linear(4, 3), OneOf("op", [nn.Identity(), nn.Linear(3, 3)]))
    model[0].bias.grad = torch.ones(3)

    def loss_fn(model, batch):
        cross_entropy(model[0], batch).backward()
        return cross_entropy(model, batch)

    with pytest.raises(Refused, match=r"^the loss calls backward\(\)"):
        iteration(oneshot(model), batches(1)[0], loss_fn=loss_fn, judge=cross_entropy)
    assert model[0].weight.grad is None
    assert model[0].bias.grad.tolist() == [1.0] * 3


def test_a_loss_that_leaves_the_model_in_evaluation_mode_is_refused():
    with pytest.raises(Refused, match=r"^loss_fn leaves the model in evaluation mode; leave out eval\(\)"):
        iteration(oneshot(Choosy()), batches(1)[0], loss_fn=lambda model, batch: cross_entropy(model.eval(), batch))


@pytest.mark.usefixtures("graphless")
def test_a_loss_without_a_gradient_is_an_error_as_usual():
    search = oneshot(Choosy(), loss_fn=lambda model, batch: cross_entropy(model, batch).detach(), capture=True)
    with (
        pytest.warns(UserWarning, match="the loss has no gradient"),
        pytest.raises(ValueError, match="does not depend on the weights"),
    ):
        search.step(*batches(2))


@torch.inference_mode()
def judge_in_inference_mode(model, batch):
    return cross_entropy(model, batch)


def test_inference_mode_is_refused_where_it_hides_writes():
    def prepare(option):
        model = nn.Sequential(nn.Linear(4, 4), OneOf("op", [option, nn.Tanh()]), nn.Linear(4, 3))
        iteration(oneshot(model), batches(1)[0], judge=judge_in_inference_mode)

    with pytest.raises(Refused, match=r"^'op' \(1\) may return its input, and torch.inference_mode\(\) hides whether"):
        prepare(nn.Identity())
    prepare(nn.Sigmoid())


def normalizing_loss(model, batch):
    x = batch[0].to(model.head.weight.device).mul_(0.5)  # a copy for each candidate, if the batch is elsewhere
    return cross_entropy(model, (x, batch[1]))


@pytest.mark.parametrize("settings", [{"loss_fn": normalizing_loss}, {"judge": normalizing_loss}])
def test_writes_into_a_batch_are_refused(settings):
    batch = batches(1)[0]
    before = batch[0].clone()
    with pytest.raises(
        Refused, match=r"^the model or the (loss|judge) writes into a batch, which all candidates share"
    ):
        iteration(oneshot(Choosy()), batch, **settings)
    assert torch.equal(batch[0], before)
