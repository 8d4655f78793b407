"""A step of OneShot: the alternation of the paper against a slow, obvious version, and losses of all kinds."""
# mypy: disable-error-code="func-returns-value, misc"

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asng import ASNG, SNG, Adam, Categorical
from asng.nas import OneOf, OneShot, Repeat, Step, Value, select, space_of
from tests.helpers.searches import Net, Scripted, Switch, batches, cross_entropy, make_oneshot, pairs

pytestmark = pytest.mark.usefixtures("same_numbers")

# The alternation -----------------------------------------------------------------------------------


class Slow:
    """The same iterations, one candidate and one parameter after another."""

    def __init__(self, model, population_size, seed, weight_optimizer, max_grad_norm):
        self.model, self.weight_optimizer, self.max_grad_norm = model, weight_optimizer, max_grad_norm
        self.arch_optimizer = ASNG(space_of(model), population_size=population_size, seed=seed)
        self.touched = set()

    def step(self, train, valid):
        named = dict(self.model.named_parameters())
        total = {name: torch.zeros_like(p) for name, p in named.items()}
        draws = self.arch_optimizer.ask()  # never told
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
        factor = 1.0 if self.max_grad_norm is None else min(1.0, self.max_grad_norm / (norm + 1e-6))
        for name, parameter in named.items():
            parameter.grad = total[name] * factor if name in self.touched else None
        self.weight_optimizer.step()
        candidates = self.arch_optimizer.ask()
        losses = []
        for candidate in candidates:
            select(self.model, candidate.values)
            losses.append(cross_entropy(self.model, valid).item())
        self.arch_optimizer.tell(candidates, losses)
        return losses


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


@pytest.mark.parametrize("population_size", [2, 3, 8])
@pytest.mark.parametrize("max_grad_norm", [None, 0.3])
@pytest.mark.parametrize("torch_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_equal_the_obvious_version(torch_optimizer, max_grad_norm, population_size):
    fast, slow = Net(dropout=0).double(), Net(dropout=0).double()
    slow.load_state_dict(fast.state_dict())
    oneshot = make_oneshot(
        fast,
        population_size=population_size,
        weight_optimizer=torch_optimizer(fast.parameters()),
        max_grad_norm=max_grad_norm,
    )
    reference = Slow(slow, population_size, 3, torch_optimizer(slow.parameters()), max_grad_norm)
    for train, valid in pairs(12, torch.double):
        step = oneshot.step(train, valid)
        np.testing.assert_allclose(step.valid_losses, reference.step(train, valid), rtol=1e-9)
    np.testing.assert_array_equal(oneshot.arch_optimizer.theta, reference.arch_optimizer.theta)
    for (name, one), other in zip(fast.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("method", [ASNG, SNG, Adam])
def test_draws_for_the_weights_are_dropped_and_the_others_told(method, monkeypatch):
    model = Net()
    asked, told = [], []
    arch_optimizer = method(space_of(model), seed=0)
    ask, tell = arch_optimizer.ask, arch_optimizer.tell
    monkeypatch.setattr(arch_optimizer, "ask", lambda n=None: asked.append(ask(n)) or asked[-1])
    monkeypatch.setattr(
        arch_optimizer, "tell", lambda c, losses, active=None: told.append((c, losses)) or tell(c, losses)
    )
    seen = []

    def loss(model, batch):
        values = {m.name: m.value for m in model.modules() if hasattr(m, "variable")}
        seen.append((batch, values, model.training, torch.is_grad_enabled()))
        return cross_entropy(model, batch)

    oneshot = OneShot(model, arch_optimizer, torch.optim.SGD(model.parameters(), 0.1), loss)
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
    assert step.violations == (0.0, 0.0)
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
    make_oneshot(model).step(*batches(2))
    assert [module.training for module in model[0]] == [False, True]


def test_a_step_is_a_frozen_record():
    step = make_oneshot().step(*batches(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.train_losses = ()


@pytest.mark.parametrize(
    ("losses", "mean"),
    [((1.0, 3.0), 2.0), ((1.0, math.nan, 3.0, math.inf), 2.0), ((None, 5.0), 5.0), ((None, None), None), ((), None)],
)
def test_the_losses_of_a_step_are_those_that_ran_and_are_finite(losses, mean):
    step = Step(losses, losses, train_metrics=(), valid_metrics=(), candidates=(), violations=())
    for number in (step.train_loss, step.valid_loss):
        assert math.isnan(number) if mean is None else number == mean


def test_only_weights_with_gradients_move_and_decay():
    model = Switch(3)
    arch_optimizer = Scripted(space_of(model), seed=0)
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, weight_decay=0.2)
    oneshot = OneShot(model, arch_optimizer, weight_optimizer, lambda model, x: model(x))
    x = torch.tensor([1.0, 2.0, 4.0])
    expected, buffer = torch.ones(3), torch.zeros(3)
    for place, which in enumerate([0, 1, 1, 1]):  # the first is touched in the first step alone
        arch_optimizer.script = [which] * 4
        oneshot.step(x, x)
        buffer = 0.5 * buffer + ((x if place == 0 else 0) + 0.2 * expected)
        expected = expected - 0.1 * buffer
        torch.testing.assert_close(model.weights[0].data, expected)
    assert model.weights[1].data.ne(1).all()
    assert torch.equal(model.weights[2].data, torch.ones(3))
    assert model.weights[2].grad is None
    assert model.weights[2] not in weight_optimizer.state


def test_the_gradient_is_the_mean_over_candidates():
    model = Switch()
    arch_optimizer = Scripted(space_of(model), population_size=4, seed=0)
    arch_optimizer.script = [0, 0, 0, 1] + [0] * 4
    OneShot(model, arch_optimizer, torch.optim.SGD(model.parameters(), lr=1.0), lambda model, x: model(x)).step(
        torch.full((3,), 0.4), torch.ones(3)
    )
    torch.testing.assert_close(model.weights[0].data, torch.full((3,), 0.7))
    torch.testing.assert_close(model.weights[1].data, torch.full((3,), 0.9))


def test_clip_norm_bounds_the_mean_gradient():
    model = Switch()
    oneshot = make_oneshot(
        model,
        weight_optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        loss_fn=lambda model, x: model(x),
        max_grad_norm=0.5,
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
        oneshot = make_oneshot(Biased(), seed=seed, loss_fn=lambda model, batch: model())
        for _ in range(400):
            oneshot.step(None, None)
        assert oneshot.arch_optimizer.mode() == {f"v{i}": 0 for i in range(5)}


@pytest.mark.parametrize(
    "kind", [getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Rprop")]
)
def test_other_torch_optimizers_step(kind):
    model = Net()
    before = copy.deepcopy(model.head.weight)
    make_oneshot(model, weight_optimizer=kind(model.parameters(), lr=0.01)).step(*batches(2))
    assert not torch.equal(model.head.weight, before)


# Losses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_worst_and_poison_nothing(bad):
    def loss(model, x):
        return model(x) * (bad if model.which.value == 1 else 1.0)

    model = Switch()
    oneshot = make_oneshot(model, population_size=4, loss_fn=loss, max_grad_norm=1.0)
    x = torch.tensor([1e-3, 2e-3, 4e-3])
    for _ in range(60):
        oneshot.step(x, x)
    assert np.isfinite(oneshot.arch_optimizer.theta).all()
    assert oneshot.arch_optimizer.mode() == {"which": 0}
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone():
    model = Switch()
    oneshot = make_oneshot(model, loss_fn=lambda model, x: model(x))
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
    oneshot = make_oneshot(model, loss_fn=lambda model, x: model(x).square().mean())
    for _ in range(20):
        step = oneshot.step(torch.ones(2, 3), torch.ones(2, 3))
        identity = [loss for loss, c in zip(step.valid_losses, step.candidates, strict=True) if c["op"] == 0]
        assert identity == [1.0] * len(identity)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_loss_is_one_number_of_any_shape(shape):
    step = make_oneshot(Switch(), loss_fn=lambda model, x: model(x).reshape(shape)).step(torch.ones(3), torch.ones(3))
    assert step.train_losses == (3.0, 3.0)


def test_a_loss_of_double_precision_is_told_as_it_is():
    def loss(model, x):
        return model(x).sum().double() * 0 + 1 + 1e-12 * model.which.value

    oneshot = make_oneshot(Switch(), population_size=4, loss_fn=loss)
    for _ in range(30):
        oneshot.step(torch.ones(3), torch.ones(3))
    assert oneshot.arch_optimizer.mode() == {"which": 0}
    assert oneshot.arch_optimizer.theta[0] == pytest.approx(0.75)


# Inactive variables --------------------------------------------------------------------------------


@pytest.mark.parametrize("mask_inactive", [False, True])
def test_mask_inactive_tells_what_runs(mask_inactive):
    model = nn.Sequential(Repeat("depth", [OneOf(f"op{i}", [nn.Linear(3, 3), nn.Tanh()]) for i in range(3)]))
    told = []

    class Told(ASNG):
        def tell(self, candidates, losses, *, active=None):
            told.append(active)
            super().tell(candidates, losses, active=active)

    weight_optimizer = torch.optim.SGD(model.parameters(), 0.1)
    oneshot = OneShot(
        model, Told(space_of(model), seed=1), weight_optimizer, lambda m, x: m(x).mean(), mask_inactive=mask_inactive
    )
    step = oneshot.step(torch.ones(2, 3), torch.ones(2, 3))
    expected = [{"depth", *(f"op{i}" for i in range(values["depth"]))} for values in step.candidates]
    assert told == [expected if mask_inactive else None]
