"""Hyperparameters as decisions that the loss alone reads, judged after a step of the candidate's own."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from asng import ASNG, Categorical, nas
from tests.helpers.searches import pairs

pytestmark = pytest.mark.usefixtures("same_numbers", "nothing_compiled")


class Smoothed(nn.Module):
    """A choice of layers, and a label smoothing that forward() does not read."""

    def __init__(self):
        super().__init__()
        self.smoothing = nas.Value("smoothing", Categorical([0.0, 0.3, 1.0]))
        self.body = nas.OneOf("body", [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3), nn.Tanh())])

    def forward(self, x):
        return self.body(x)


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1], label_smoothing=model.smoothing.value)


def plain_loss(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def judge_after_a_step(model, batch):
    train_batch, valid_batch = batch
    weights = list(model.parameters())
    before = [weight.clone() for weight in weights]
    with torch.enable_grad():
        loss = loss_fn(model, train_batch)
        gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.sub_(gradient, alpha=1.0)
    score = plain_loss(model, valid_batch)
    for weight, value in zip(weights, before, strict=True):
        weight.copy_(value)
    return score


def make(judge, seed=0, limits=()):
    torch.manual_seed(seed)
    model = Smoothed()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    arch_optimizer = ASNG(nas.space_of(model), population_size=4, seed=seed)
    return nas.OneShot(model, arch_optimizer, sgd, loss_fn, judge=judge, limits=limits)


def test_a_value_of_the_loss_alone_is_extracted_as_a_constant():
    model, batch = Smoothed(), pairs(1)[0][0]
    network = nas.extract(model, {"smoothing": 0.3, "body": 0})
    assert isinstance(network.smoothing, nas.Constant)
    expected = cross_entropy(network(batch[0]), batch[1], label_smoothing=0.3)
    assert torch.equal(loss_fn(network, batch), expected)
    assert sum(parameter.numel() for parameter in network.parameters()) == 15


def test_it_has_no_parameters_and_is_not_called_unread():
    oneshot = make(plain_loss, limits=[nas.Limit(nas.parameters, 15)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for train_batch, valid_batch in pairs(12):
            assert oneshot.step(train_batch, valid_batch).violations == (0.0,) * 4
    assert nas.result(oneshot).inactive == ()


def test_a_judge_that_undoes_its_step_leaves_weights_as_they_are():
    oneshot = make(judge_after_a_step)
    before = [weight.clone() for weight in oneshot.model.parameters()]
    step = oneshot.judge_step(pairs(1)[0])
    assert all(map(torch.equal, oneshot.model.parameters(), before))
    assert len(set(step.scores)) > 1


def test_without_a_step_of_its_own_a_candidate_scores_alike():
    model, (train_batch, valid_batch) = Smoothed(), pairs(1)[0]
    scores: dict[str, set[float]] = {"plain": set(), "after": set()}
    for smoothing in (0.0, 0.3, 1.0):
        nas.select(model, {"smoothing": smoothing, "body": 0})
        with torch.no_grad():
            scores["plain"].add(plain_loss(model, valid_batch).item())
            scores["after"].add(judge_after_a_step(model, (train_batch, valid_batch)).item())
    assert {name: len(different) for name, different in scores.items()} == {"plain": 1, "after": 3}


@pytest.mark.parametrize("seed", range(3))
def test_judged_after_a_step_the_harmful_smoothing_is_left(seed):
    oneshot = make(judge_after_a_step, seed)
    for train_batch, valid_batch in pairs(300):
        oneshot.step(train_batch, (train_batch, valid_batch))
    assert oneshot.arch_optimizer.mode()["smoothing"] != 1.0  # which makes all classes equal
    assert oneshot.arch_optimizer.distribution()["smoothing"][2] < 0.27  # of 0.25 at least
