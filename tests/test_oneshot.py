"""A step of OneShot: the alternation of the paper against a slow, obvious version, and losses of all kinds."""
# mypy: disable-error-code="func-returns-value, misc"

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from searches import Net, Scripted, Switch, batches, cross_entropy, made, pairs
from torch import nn

from asng import ASNG, SNG, Adam, Categorical
from asng.nas import OneOf, OneShot, Repeat, Step, Value, select, space_of

pytestmark = pytest.mark.usefixtures("same_numbers")

# The alternation -----------------------------------------------------------------------------------


class Slow:
    """The same iterations, one candidate and one parameter after another."""

    def __init__(self, model, samples, seed, weights, clip_norm):
        self.model, self.weights, self.clip_norm = model, weights, clip_norm
        self.optimizer = ASNG(space_of(model), samples=samples, seed=seed)
        self.touched = set()

    def step(self, train, valid):
        named = dict(self.model.named_parameters())
        total = {name: torch.zeros_like(p) for name, p in named.items()}
        draws = self.optimizer.ask()  # never told
        for candidate in draws:
            select(self.model, candidate.values)
            loss = cross_entropy(self.model, train)
            for name, gradient in zip(
                named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True
            ):
                if gradient is not None:
                    self.touched.add(name)
                    total[name] += gradient / len(draws)
        norm = math.sqrt(sum(float((g**2).sum()) for g in total.values()))
        factor = 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / (norm + 1e-6))
        for name, parameter in named.items():
            parameter.grad = total[name] * factor if name in self.touched else None
        self.weights.step()
        candidates = self.optimizer.ask()
        losses = []
        for candidate in candidates:
            select(self.model, candidate.values)
            losses.append(cross_entropy(self.model, valid).item())
        self.optimizer.tell(candidates, losses)
        return losses


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


@pytest.mark.parametrize("samples", [2, 3, 8])
@pytest.mark.parametrize("clip_norm", [None, 0.3])
@pytest.mark.parametrize("torch_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_equal_the_obvious_version(torch_optimizer, clip_norm, samples):
    fast, slow = Net(dropout=0).double(), Net(dropout=0).double()
    slow.load_state_dict(fast.state_dict())
    oneshot = made(fast, samples=samples, weights=torch_optimizer(fast.parameters()), clip_norm=clip_norm)
    reference = Slow(slow, samples, 3, torch_optimizer(slow.parameters()), clip_norm)
    for train, valid in pairs(12, torch.double):
        step = oneshot.step(train, valid)
        np.testing.assert_allclose(step.valid_losses, reference.step(train, valid), rtol=1e-9)
    np.testing.assert_array_equal(oneshot.optimizer.theta, reference.optimizer.theta)
    for (name, one), other in zip(fast.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("method", [ASNG, SNG, Adam])
def test_draws_for_the_weights_are_dropped_and_the_others_told(method, monkeypatch):
    model = Net()
    asked, told = [], []
    optimizer = method(space_of(model), seed=0)
    ask, tell = optimizer.ask, optimizer.tell
    monkeypatch.setattr(optimizer, "ask", lambda n=None: asked.append(ask(n)) or asked[-1])
    monkeypatch.setattr(optimizer, "tell", lambda c, losses, active=None: told.append((c, losses)) or tell(c, losses))
    seen = []

    def loss(model, batch):
        values = {m.name: m.value for m in model.modules() if hasattr(m, "variable")}
        seen.append((batch, values, model.training, torch.is_grad_enabled()))
        return cross_entropy(model, batch)

    oneshot = OneShot(model, optimizer, torch.optim.SGD(model.parameters(), 0.1), loss)
    model.eval()
    first, second = batches(2)
    step = oneshot.step(first, second)
    assert len(asked) == 2
    assert len(told) == 1
    assert told[0][0] is asked[1]
    assert tuple(told[0][1]) == step.valid_losses
    ran, selected, training, with_gradient = zip(*seen, strict=True)
    assert ran == (first, first, second, second)
    assert list(selected) == [c.values for part in asked for c in part]
    assert all(training)  # batch norms use the batch in both halves
    assert with_gradient == (True, True, False, False)
    assert step.candidates == tuple(c.values for c in asked[1])
    assert step.excess == (0.0, 0.0)
    assert len(step.train_losses) == 2


class Backbone(nn.Sequential):
    """Keeps its first layer in evaluation mode, as is usual for a part that is not trained."""

    def train(self, mode=True):
        super().train(mode)
        self[0].eval()
        return self


@pytest.mark.parametrize("mode", ["new", "eval", "train", "by hand"])
def test_parts_that_a_model_keeps_in_evaluation_mode_stay_in_it(mode):
    layers = [nn.Linear(4, 3), OneOf("op", [nn.Tanh(), nn.Linear(3, 3)])]
    model: Any = nn.Sequential((nn.Sequential if mode == "by hand" else Backbone)(*layers))
    if mode in ("eval", "train"):
        getattr(model, mode)()
    if mode == "by hand":
        model[0][0].eval()
    made(model).step(*batches(2))
    assert [module.training for module in model[0]] == [False, True]


def test_a_step_is_a_frozen_record():
    step = made().step(*batches(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.train_losses = ()


@pytest.mark.parametrize(
    ("losses", "mean"),
    [((1.0, 3.0), 2.0), ((1.0, math.nan, 3.0, math.inf), 2.0), ((None, 5.0), 5.0), ((None, None), None), ((), None)],
)
def test_the_losses_of_a_step_are_those_that_ran_and_are_finite(losses, mean):
    step = Step(losses, losses, train_metrics=(), valid_metrics=(), candidates=(), excess=())
    for number in (step.train_loss, step.valid_loss):
        assert math.isnan(number) if mean is None else number == mean


def test_touched_weights_keep_momentum_and_decay_and_untouched_ones_their_bits():
    model = Switch(3)
    optimizer = Scripted(space_of(model), seed=0)
    weights = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, weight_decay=0.2)
    oneshot = OneShot(model, optimizer, weights, lambda model, x: model(x))
    x = torch.tensor([1.0, 2.0, 4.0])
    expected, buffer = torch.ones(3), torch.zeros(3)
    for place, which in enumerate([0, 1, 1, 1]):  # the first is touched in the first step alone
        optimizer.script = [which] * 4
        oneshot.step(x, x)
        buffer = 0.5 * buffer + ((x if place == 0 else 0) + 0.2 * expected)
        expected = expected - 0.1 * buffer
        torch.testing.assert_close(model.weights[0].data, expected)
    assert model.weights[1].data.ne(1).all()
    assert torch.equal(model.weights[2].data, torch.ones(3))
    assert model.weights[2].grad is None
    assert model.weights[2] not in weights.state


def test_the_gradient_is_the_mean_over_candidates():
    model = Switch()
    optimizer = Scripted(space_of(model), samples=4, seed=0)
    optimizer.script = [0, 0, 0, 1] + [0] * 4
    OneShot(model, optimizer, torch.optim.SGD(model.parameters(), lr=1.0), lambda model, x: model(x)).step(
        torch.full((3,), 0.4), torch.ones(3)
    )
    torch.testing.assert_close(model.weights[0].data, torch.full((3,), 0.7))
    torch.testing.assert_close(model.weights[1].data, torch.full((3,), 0.9))


def test_clip_norm_bounds_the_mean_gradient():
    model = Switch()
    oneshot = made(
        model, weights=torch.optim.SGD(model.parameters(), lr=1.0), loss=lambda model, x: model(x), clip_norm=0.5
    )
    before = copy.deepcopy(list(model.parameters()))
    oneshot.step(torch.full((3,), 100.0), torch.ones(3))
    moved = sum(((p - q) ** 2).sum().item() for p, q in zip(before, model.parameters(), strict=True))
    assert math.sqrt(moved) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.long
def test_the_obvious_better_choice_is_found():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.choices = nn.ModuleList([Value(f"v{i}", Categorical(range(4))) for i in range(5)])
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self):
            return self.scale**2 + sum(choice.value for choice in self.choices)

    for seed in range(3):
        oneshot = made(Biased(), seed=seed, loss=lambda model, batch: model())
        for _ in range(400):
            oneshot.step(None, None)
        assert oneshot.optimizer.mode() == {f"v{i}": 0 for i in range(5)}


@pytest.mark.parametrize(
    "kind", [getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Rprop")]
)
def test_other_torch_optimizers_step(kind):
    model = Net()
    before = copy.deepcopy(model.head.weight)
    made(model, weights=kind(model.parameters(), lr=0.01)).step(*batches(2))
    assert not torch.equal(model.head.weight, before)


# Losses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_worst_and_poison_nothing(bad):
    def loss(model, x):
        return model(x) * (bad if model.which.value == 1 else 1.0)

    model = Switch()
    oneshot = made(model, samples=4, loss=loss, clip_norm=1.0)
    x = torch.tensor([1e-3, 2e-3, 4e-3])
    for _ in range(60):
        oneshot.step(x, x)
    assert np.isfinite(oneshot.optimizer.theta).all()
    assert oneshot.optimizer.mode() == {"which": 0}
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone():
    model = Switch()
    oneshot = made(model, loss=lambda model, x: model(x))
    x = torch.ones(3)
    oneshot.step(x, x)
    before = copy.deepcopy(model.state_dict())
    step = oneshot.step(x * math.nan, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(map(math.isnan, step.train_losses))
    assert all(map(math.isfinite, step.valid_losses))
    oneshot.step(x, x)
    assert all(p.isfinite().all() for p in model.parameters())


def test_an_architecture_without_weights_is_fine():
    model = nn.Sequential(OneOf("op", [nn.Identity(), nn.Linear(3, 3)]))
    oneshot = made(model, loss=lambda model, x: model(x).square().mean())
    for _ in range(20):
        step = oneshot.step(torch.ones(2, 3), torch.ones(2, 3))
        identity = [loss for loss, c in zip(step.valid_losses, step.candidates, strict=True) if c["op"] == 0]
        assert identity == [1.0] * len(identity)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_loss_is_one_number_of_any_shape(shape):
    step = made(Switch(), loss=lambda model, x: model(x).reshape(shape)).step(torch.ones(3), torch.ones(3))
    assert step.train_losses == (3.0, 3.0)


def test_a_loss_of_double_precision_is_told_as_it_is():
    def loss(model, x):
        return model(x).sum().double() * 0 + 1 + 1e-12 * model.which.value

    oneshot = made(Switch(), samples=4, loss=loss)
    for _ in range(30):
        oneshot.step(torch.ones(3), torch.ones(3))
    assert oneshot.optimizer.mode() == {"which": 0}
    assert oneshot.optimizer.theta[0] == pytest.approx(0.75)


# Inactive variables --------------------------------------------------------------------------------


@pytest.mark.parametrize("leave_out", [False, True])
def test_leave_out_tells_what_runs(leave_out):
    model = nn.Sequential(Repeat("depth", [OneOf(f"op{i}", [nn.Linear(3, 3), nn.Tanh()]) for i in range(3)]))
    told = []

    class Told(ASNG):
        def tell(self, candidates, losses, *, active=None):
            told.append(active)
            super().tell(candidates, losses, active=active)

    weights = torch.optim.SGD(model.parameters(), 0.1)
    oneshot = OneShot(model, Told(space_of(model), seed=1), weights, lambda m, x: m(x).mean(), leave_out=leave_out)
    step = oneshot.step(torch.ones(2, 3), torch.ones(2, 3))
    expected = [{"depth", *(f"op{i}" for i in range(values["depth"]))} for values in step.candidates]
    assert told == [expected if leave_out else None]
