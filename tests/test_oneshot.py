"""OneShot: the alternation of the paper against a slow, obvious version; limits; mixed precision; several processes."""
# mypy: disable-error-code="func-returns-value, misc, method-assign"

import copy
import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from searches import LIMIT, Net, batches, cross_entropy, crowd, dying, ended, pairs, stepping
from torch import nn

from asng import ASNG, SNG, Adam, Categorical
from asng.nas import Limit, OneOf, OneShot, Repeat, Step, Value, parameters, select, space_of
from asng.space import Integer


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


def made(model=None, *, samples=2, seed=3, weights=None, loss=cross_entropy, **settings):
    model = Net() if model is None else model
    optimizer = ASNG(space_of(model), samples=samples, seed=seed)
    weights = weights or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return OneShot(model, optimizer, weights, loss, **settings)


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


def test_a_step_is_a_frozen_record():
    step = made().step(*batches(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.train_losses = ()


@pytest.mark.parametrize(
    ("losses", "mean"),
    [((1.0, 3.0), 2.0), ((1.0, math.nan, 3.0, math.inf), 2.0), ((None, 5.0), 5.0), ((None, None), None), ((), None)],
)
def test_the_losses_of_a_step_are_those_that_ran_and_are_finite(losses, mean):
    step = Step(train_losses=losses, valid_losses=losses, candidates=(), excess=())
    for number in (step.train_loss, step.valid_loss):
        assert math.isnan(number) if mean is None else number == mean


class Switch(nn.Module):
    """One weight of two is used."""

    def __init__(self, choices=2):
        super().__init__()
        self.which = Value("which", Categorical(range(choices)))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(choices)])

    def forward(self, x):
        return (self.weights[self.which.value] * x).sum()


class Scripted(ASNG):
    """Draws what it is told to."""

    script: list[int]

    def ask(self, n=None):
        drawn = super().ask(n)
        for candidate in drawn:
            candidate.values["which"] = self.script.pop(0)
        return drawn


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


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, x: 1.0, "must return a scalar tensor, got 1.0"),
        (lambda model, x: model(x) * torch.ones(2), r"got a tensor of shape \(2,\)"),
        (lambda model, x: model(x).detach(), "does not depend on the weights"),
    ],
)
def test_a_wrong_loss_is_named(loss, message):
    with pytest.raises(ValueError, match=message):
        made(Switch(), loss=loss).step(torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_loss_is_one_number_of_any_shape(shape):
    step = made(Switch(), loss=lambda model, x: model(x).reshape(shape)).step(torch.ones(3), torch.ones(3))
    assert step.train_losses == (3.0, 3.0)


def test_an_error_in_the_loss_says_in_which_architecture():
    def loss(model, x):
        return model(x)[:, 2 * model.which.value]

    with pytest.raises(IndexError) as error:
        made(Switch(), loss=loss).step(torch.ones(3), torch.ones(3))
    assert error.value.__notes__ in (["in the architecture {'which': 0}"], ["in the architecture {'which': 1}"])


def test_a_loss_of_double_precision_is_told_as_it_is():
    def loss(model, x):
        return model(x).sum().double() * 0 + 1 + 1e-12 * model.which.value

    oneshot = made(Switch(), samples=4, loss=loss)
    for _ in range(30):
        oneshot.step(torch.ones(3), torch.ones(3))
    assert oneshot.optimizer.mode() == {"which": 0}
    assert oneshot.optimizer.theta[0] == pytest.approx(0.75)


# Wrong arguments -----------------------------------------------------------------------------------


def test_a_model_without_decisions_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"no decisions to search; put some in, such as asng\.nas\.OneOf"):
        OneShot(model, ASNG({"a": Categorical(["x", "y"])}), torch.optim.SGD(model.parameters(), 0.1), cross_entropy)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"a": Categorical(["x", "y"])}, "differ in 'a', 'depth', 'first'"),
        ({"first": Categorical([0, 1, 2]), "depth": Integer(1, 4)}, "differ in 'depth'"),
        ({"depth": Integer(1, 3), "first": Categorical([0, 1, 2])}, "by its order"),
    ],
)
def test_an_optimizer_of_another_space_is_refused(space, message):
    model = Net()
    with pytest.raises(ValueError, match=f"another space than the model's .*{message}.*space_of"):
        OneShot(model, ASNG(space), torch.optim.SGD(model.parameters(), 0.1), cross_entropy)


def test_parameters_that_weights_does_not_hold_are_named():
    model = Net()
    some = [p for name, p in model.named_parameters() if not name.startswith("head")]
    with pytest.raises(ValueError, match=r"head\.weight, head\.bias; make it with model\.parameters\(\)"):
        made(model, weights=torch.optim.SGD(some, 0.1))
    with pytest.raises(ValueError, match="and 10 more"):
        made(model, weights=torch.optim.SGD(Net().parameters(), 0.1))
    model.head.requires_grad_(False)
    made(model, weights=torch.optim.SGD(some, 0.1)).step(*batches(2))


def test_choices_that_are_arrays_are_compared():
    model = nn.Sequential(Value("a", Categorical([np.arange(2), np.arange(3)])), nn.Linear(3, 3))
    weights = torch.optim.SGD(model.parameters(), 0.1)
    equal, other = (Categorical([np.arange(2), np.arange(n)]) for n in (3, 4))
    OneShot(model, ASNG({"a": equal}), weights, cross_entropy)
    with pytest.raises(ValueError, match="they differ in 'a'"):
        OneShot(model, ASNG({"a": other}), weights, cross_entropy)


def test_sparse_gradients_are_refused_by_name():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), OneOf("op", [nn.Identity(), nn.Tanh()]))
    with pytest.raises(ValueError, match=r"^0 has sparse gradients, .* make it with sparse=False"):
        made(model)


def test_an_optimizer_that_needs_a_closure_is_refused():
    model = Net()
    with pytest.raises(ValueError, match=r"^LBFGS asks for a closure .*use a torch optimizer that steps without one"):
        made(model, weights=torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize(
    "kind", [getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Rprop")]
)
def test_other_torch_optimizers_step(kind):
    model = Net()
    before = copy.deepcopy(model.head.weight)
    made(model, weights=kind(model.parameters(), lr=0.01)).step(*batches(2))
    assert not torch.equal(model.head.weight, before)


@pytest.mark.parametrize(("name", "value"), [("amp", torch.float32), ("clip_norm", 0.0), ("clip_norm", -1.0)])
def test_wrong_settings_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*{value}"):
        made(**{name: value})


# Limits --------------------------------------------------------------------------------------------


def test_candidates_outside_are_ranked_by_excess_behind_all_inside_and_never_run():
    ran, told = [], []

    def loss(model, batch):
        ran.append({m.name: m.value for m in model.modules() if hasattr(m, "variable")})
        return cross_entropy(model, batch)

    limits = [
        Limit(lambda model, values: values["depth"], 2, "depth"),
        Limit(lambda model, values: 1 + values["first"], 2, "first"),
    ]
    oneshot = made(samples=6, loss=loss, limits=limits)
    tell = oneshot.optimizer.tell
    oneshot.optimizer.tell = lambda c, losses, active=None: told.append(list(losses)) or tell(c, losses)
    outside = 0
    for train, valid in pairs(15):
        ran.clear()
        step = oneshot.step(train, valid)
        expected = [
            max(0.0, values["depth"] / 2 - 1) + max(0.0, (1 + values["first"]) / 2 - 1) for values in step.candidates
        ]
        assert list(step.excess) == expected
        assert all(values["depth"] <= 2 and values["first"] <= 1 for values in ran)
        inside = [values for values, far in zip(step.candidates, expected, strict=True) if not far]
        assert ran[len(step.train_losses) :] == inside
        assert [loss is None for loss in step.valid_losses] == [far > 0 for far in expected]
        key = [(far, 0.0 if loss is None else loss) for loss, far in zip(step.valid_losses, expected, strict=True)]
        order = sorted(range(6), key=lambda place: key[place])
        by_told = [told[-1][place] for place in order]
        assert by_told == sorted(by_told)
        distinct = [key[place] for place in order]
        assert [a < b for a, b in itertools.pairwise(by_told)] == [a < b for a, b in itertools.pairwise(distinct)]
        outside += len(expected) - len(inside)
    assert outside > 5


def test_inside_without_a_finite_loss_is_still_before_outside():
    told = []
    model = Switch(3)
    optimizer = Scripted(space_of(model), samples=4, seed=0)
    optimizer.script = [0] * 4 + [2, 1, 0, 0]
    tell = optimizer.tell
    optimizer.tell = lambda c, losses, active=None: told.extend(losses) or tell(c, losses)
    limit = Limit(lambda model, values: 1 + values["which"], 2)

    def loss(model, x):
        return model(x) * (math.nan if model.which.value == 1 else 1)

    OneShot(model, optimizer, torch.optim.SGD(model.parameters(), 0.1), loss, limits=[limit]).step(
        torch.ones(3), torch.full((3,), 1e37)
    )
    assert told[2] == told[3] < told[1] < told[0]  # however large a loss is


def test_the_weights_are_trained_by_as_many_candidates_as_without_limits():
    oneshot = made(Switch(5), samples=4, loss=lambda model, x: model(x), limits=[Limit(lambda m, v: 1 + v["which"], 1)])
    for _ in range(5):
        assert len(oneshot.step(torch.ones(3), torch.ones(3)).train_losses) == 4  # others are drawn for those outside


def test_touched_weights_rest_in_a_step_that_finds_none_inside():
    model = Switch()
    optimizer = Scripted(space_of(model), seed=0)
    weights = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    limit = Limit(lambda model, values: 1 + values["which"], 1)
    oneshot = OneShot(model, optimizer, weights, lambda model, x: model(x), limits=[limit])
    optimizer.script = [0] * 4
    oneshot.step(torch.ones(3), torch.ones(3))
    before = copy.deepcopy(model.state_dict())
    optimizer.script = [1] * 1000
    assert oneshot.step(torch.ones(3), torch.ones(3)).train_losses == ()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_best_stays_a_loss_under_limits():
    oneshot = made(samples=4, limits=[Limit(lambda model, values: values["depth"], 1)])
    for train, valid in pairs(10):
        oneshot.step(train, valid)
    assert oneshot.optimizer.best is not None
    assert oneshot.optimizer.best.values["depth"] == 1
    assert 0 < oneshot.optimizer.best.loss < 10


def test_where_none_is_inside_the_weights_stay_and_the_excess_leads_on():
    model = Net()
    oneshot = made(model, limits=[Limit(lambda model, values: 9 + values["depth"] + values["first"], 9)])
    before = copy.deepcopy(model.state_dict())
    for train, valid in pairs(150):
        step = oneshot.step(train, valid)
        assert step.train_losses == ()
        assert step.valid_losses == (None, None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert oneshot.optimizer.mode() == {"first": 0, "depth": 1}
    nearest = oneshot.costs.nearest()
    assert nearest == {"first": 0, "depth": 1}


def test_costs_are_measured_once_per_architecture():
    measured = []

    def cost(model, values):
        measured.append(json.dumps(values))
        return parameters(model, values)

    oneshot = made(limits=[Limit(cost, 200)])
    for train, valid in pairs(30):
        oneshot.step(train, valid)
    assert len(measured) == len(set(measured)) <= 9
    state = oneshot.state_dict()
    again = made(limits=[Limit(cost, 200)])
    again.load_state_dict(state)
    again.excess({"first": 0, "depth": 1})
    assert len(measured) == len(set(measured))  # nor after a pause: a latency would be another
    again.load_state_dict(made(limits=[Limit(cost, 200)]).state_dict())
    assert again.costs.known == {}  # exactly what was known there


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


# Mixed precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_mixed_precision_computes_in_it_and_keeps_weights_in_float(amp):
    kinds = []

    def loss(model, batch):
        output = model(batch[0])
        kinds.append(output.dtype)
        return nn.functional.cross_entropy(output.float(), batch[1])

    mixed, full = Net(dropout=0), Net(dropout=0)
    full.load_state_dict(mixed.state_dict())
    oneshot, reference = made(mixed, loss=loss, amp=amp, clip_norm=1.0), made(full, clip_norm=1.0)
    for train, valid in pairs(3):
        oneshot.step(train, valid)
        reference.step(train, valid)
    assert set(kinds) == {amp}
    for value, expected in zip(mixed.state_dict().values(), full.state_dict().values(), strict=True):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, expected, rtol=0.05, atol=0.02)
    assert oneshot.state_dict()["scaler"].get("scale", None) == (65536.0 if amp is torch.float16 else None)


def test_scaled_gradients_that_overflow_are_skipped_and_the_scale_halved():
    model = Switch()
    oneshot = made(model, loss=lambda model, x: model(x), amp=torch.float16)
    x = torch.full((3,), 1e37)  # the loss is finite, its scaled gradient is not
    before = copy.deepcopy(model.state_dict())
    oneshot.step(x, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert oneshot.state_dict()["scaler"]["scale"] == 32768.0
    oneshot.step(torch.ones(3), torch.ones(3))
    assert any(value.ne(1).any() for value in model.state_dict().values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("amp", [None, torch.bfloat16, torch.float16])
def test_mixed_precision_on_cuda_learns(amp):
    model = Net(dropout=0).cuda()
    oneshot = made(
        model, loss=lambda model, batch: cross_entropy(model, [part.cuda() for part in batch]), amp=amp, clip_norm=5.0
    )
    steps = [oneshot.step(train, valid) for train, valid in pairs(150)]
    early, late = (sum(sum(s.train_losses) for s in part) for part in (steps[:20], steps[-20:]))
    assert late < 0.8 * early
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters())
    again = made(
        Net(dropout=0).cuda(), loss=lambda model, batch: cross_entropy(model, [part.cuda() for part in batch]), amp=amp
    )
    again.load_state_dict(oneshot.state_dict())
    assert again.state_dict()["scaler"] == oneshot.state_dict()["scaler"]


# State ---------------------------------------------------------------------------------------------


def test_a_loaded_state_goes_on_with_the_same_bits():
    train, valid = batches(16, seed=1), batches(16, seed=2)
    whole = made(Net(dropout=0), samples=3)
    half = made(Net(dropout=0), samples=3)
    half.model.load_state_dict(whole.model.state_dict())
    for place in range(8):
        whole.step(train[place], valid[place])
        half.step(train[place], valid[place])
    resumed = made(Net(dropout=0), samples=3, seed=99)
    resumed.load_state_dict(copy.deepcopy(half.state_dict()))
    for place in range(8, 16):
        assert whole.step(train[place], valid[place]) == resumed.step(train[place], valid[place])
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "other",
    [
        lambda: made(Net(width=9)),
        lambda: made(Net(depth=4)),
        lambda: made(Switch()),
        lambda: made(amp=torch.float16),
        lambda: made(limits=[Limit(parameters, 200)]),
        lambda: (lambda net: made(net, weights=torch.optim.SGD([{"params": [p]} for p in net.parameters()], 0.1)))(
            Net()
        ),
    ],
)
def test_a_state_of_another_search_changes_nothing(other):
    oneshot = made()
    oneshot.step(*batches(2))
    mine = copy.deepcopy(oneshot.state_dict())
    foreign = other().state_dict()
    if "scale" in foreign["scaler"]:
        oneshot, foreign = other(), oneshot.state_dict()
        mine = copy.deepcopy(oneshot.state_dict())
    with pytest.raises(ValueError, match="the state does not fit: "):
        oneshot.load_state_dict(foreign)
    after = oneshot.state_dict()
    assert after["optimizer"] == mine["optimizer"]
    assert all(torch.equal(value, mine["model"][name]) for name, value in after["model"].items())
    assert after["touched"] == mine["touched"]
    assert str(after["weights"]) == str(mine["weights"])


def changes(state, path=()):
    """States in which one part is something else."""
    for key, value in state.items():
        if isinstance(value, dict):
            yield from changes(value, (*path, key))
        others: list[Any] = [None, "x", 3, []]
        for other in others:
            if type(other) is not type(value):
                yield (*path, key), other


def test_a_state_of_which_a_part_is_something_else_does_not_fit():
    oneshot = made()
    oneshot.step(*batches(2))
    whole = oneshot.state_dict()
    messages = []
    for path, other in changes({key: whole[key] for key in ("model", "optimizer", "touched", "limits", "costs")}):
        state = copy.deepcopy(whole)
        *way, last = path
        part = state
        for key in way:
            part = part[key]
        part[last] = other
        try:
            made().load_state_dict(state)  # numbers of other types may do
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 40
    assert all(message.startswith("the state does not fit: ") for message in messages)


# Several processes ---------------------------------------------------------------------------------

KINDS = [(samples, limited) for samples in (2, 3, 4) for limited in (False, True)]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The same searches by one process and by two."""
    alone, both = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("both")
    members = crowd(stepping, both, KINDS)
    stepping(0, alone, KINDS)
    assert [ended(member) for member in members] == [0, 0]
    return [torch.load(path, weights_only=True) for path in (alone / "rank0.pt", both / "rank0.pt", both / "rank1.pt")]


@pytest.mark.parametrize(("samples", "limited"), KINDS)
def test_two_processes_compute_what_one_computes(together, samples, limited):
    alone, *both = (results[f"{samples} {limited}"] for results in together)
    for result in both:
        assert result["optimizer"]["state"] == alone["optimizer"]["state"]  # theta and all else, exactly
        assert result["optimizer"]["generator"] == alone["optimizer"]["generator"]
        theirs, mine = (np.array(r["valid"], dtype=float) for r in (result, alone))  # NaN where not run
        np.testing.assert_allclose(theirs, mine, rtol=1e-9)
        assert [len(losses) for losses in result["train"]] == [len(losses) for losses in alone["train"]]
        for name, value in result["weights"].items():
            if "num_batches" not in name:  # each process counts the candidates that it ran
                torch.testing.assert_close(value, alone["weights"][name], rtol=1e-9, atol=1e-9)
    if limited:
        assert alone["measured"] == both[0]["measured"] != []  # by the first process, for both
        assert both[1]["measured"] == []
        assert len(set(alone["measured"])) == len(alone["measured"])
        assert any(None in losses for losses in alone["valid"])


def test_the_limit_of_these_tests_parts_the_architectures():
    sizes = [parameters(Net(norm=True), {"first": f, "depth": d}) for f in range(3) for d in (1, 2, 3)]
    assert 2 < sum(size <= LIMIT for size in sizes) < 7


@pytest.mark.parametrize("moment", ["inside", "between"])
def test_a_process_that_dies_ends_the_others_with_an_error(moment, tmp_path):
    first, second = crowd(dying, tmp_path, moment)
    assert ended(second, 30) < 0
    assert ended(first, 10) == 1
    assert "Error" in (tmp_path / "stderr0.txt").read_text()
    assert not list(tmp_path.glob("finished*"))
