"""Helpers of tests of captured steps: small models with all kinds of choices, and steps beside the plain path."""

import copy
import math
import warnings

import torch
from torch import nn

from asng import ASNG, Integer
from asng.nas import Limit, OneOf, OneShot, Pick, Repeat, Searchable, Value, parameters, space_of
from asng.nas._capture.iteration import Iteration
from tests.helpers.searches import cross_entropy, pairs

LIMITS: list[list[Limit]] = [[], [Limit(parameters, 1e12)]]  # which all architectures meet


class Choosy(nn.Module):
    """Choices one after another and inside of each other: 3 x 2 x 3 x 3 x 3 architectures at most."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.first, self.second = choice(dropout), choice(dropout)
        self.pick = Pick("source", 3)
        self.last = OneOf("last", [nn.Identity(), nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        states = [self.stem(x)]
        states.append(self.first(states[0]))
        states.append(self.second(states[1]))
        return self.head(self.last(self.pick(states)) + states[2])


def choice(dropout):
    inner = OneOf("inner", [nn.Identity(), nn.Sequential(nn.ReLU(), nn.Linear(8, 8))])
    deep = nn.Sequential(nn.Linear(8, 8), Repeat("depth", [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)]))
    return OneOf("op", [nn.Sequential(nn.Linear(8, 8), nn.Dropout(dropout)), inner, deep])


class Body(Searchable):
    """Reads a decision in Python."""

    def __init__(self):
        super().__init__()
        self.depth = Value("depth", Integer(1, 3))
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for block in self.blocks[: self.depth.value]:
            x = block(x).relu()
        return x

    def build_static(self):
        return nn.Sequential(*self.blocks[: self.depth.value])


class Counted(nn.Module):
    """A model that counts its passes on the device: those that judge, and those that train."""

    passes: torch.Tensor

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.register_buffer("passes", torch.zeros(2, dtype=torch.int64))

    def forward(self, x):
        kind = torch.full((1,), int(torch.is_grad_enabled()), device=x.device)
        self.passes.scatter_add_(0, kind, torch.ones_like(kind))  # atomic, as passes may run side by side
        return self.model(x)


class Averages(nn.Module):
    """Makes a new buffer in every pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x - self.mean)


def cross_entropy_and_accuracy(model, batch):
    scores = model(batch[0])
    accuracy = (scores.argmax(1) == batch[1]).double().mean()
    return nn.functional.cross_entropy(scores, batch[1]), {"accuracy": accuracy}


def oneshot(model, *, loss_fn=cross_entropy, seed=3, population_size=2, weight_optimizer=None, **settings):
    weight_optimizer = weight_optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    arch_optimizer = ASNG(space_of(model), population_size=population_size, seed=seed)
    return OneShot(model, arch_optimizer, weight_optimizer, loss_fn, **settings)


def with_gradient(model):
    return [name for name, parameter in model.named_parameters() if parameter.grad is not None]


def iteration(search, batch, *, loss_fn=cross_entropy, max_grad_norm=math.inf, **settings):
    """The iteration of a OneShot, prepared."""
    settings = {"max_grad_norm": max_grad_norm, "amp_dtype": None, **settings}
    result = Iteration(search.supernet, search.weight_optimizer, loss_fn, 2, **settings)
    result.prepare(batch, batch)
    result.update.load()
    return result


def step(search, open_iteration, train, valid):
    """What OneShot.step does, by way of the iteration."""
    drawn, candidates = search.arch_optimizer.ask(), search.arch_optimizer.ask()
    trained, judged = open_iteration.step([c.values for c in drawn], train, [c.values for c in candidates], valid)
    losses, valid_losses = ([numbers.loss for numbers in half] for half in (trained, judged))
    search.arch_optimizer.tell(candidates, valid_losses)
    return losses, valid_losses


def assert_same_steps(model, n=20, dtype=torch.float, *, same=True, max_grad_norm=None, amp_dtype=None, data=None):
    """Run the plain path and the open iteration side by side, from the same weights."""
    model, twin = model.to(dtype), copy.deepcopy(model).to(dtype)
    plain, other = (oneshot(m, max_grad_norm=max_grad_norm, amp_dtype=amp_dtype) for m in (model, twin))
    data = data or pairs(n, dtype)
    opened = iteration(other, data[0][0], max_grad_norm=max_grad_norm or math.inf, amp_dtype=amp_dtype)
    for train, valid in data:
        expected = plain.step(train, valid)
        got = step(other, opened, train, valid)
        if same:
            assert (list(expected.train_losses), list(expected.valid_losses)) == got
        else:
            torch.testing.assert_close([*expected.train_losses, *expected.valid_losses], [*got[0], *got[1]])
    opened.update.store()
    assert with_gradient(model) == with_gradient(twin)
    if same:
        torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=0, atol=0)
    else:  # running statistics also of what the plain path leaves out
        torch.testing.assert_close([*twin.parameters()], [*model.parameters()])


def on_gpu(batch):
    return tuple(tensor.cuda() for tensor in batch)


def gpu_pairs(n, dtype=torch.float):
    return [(on_gpu(train), on_gpu(valid)) for train, valid in pairs(n, dtype)]


def assert_same_losses(model, twin, data, **settings):
    """The plain path and the captured one from the same weights, both told the same losses."""
    weight_optimizer = settings.pop("weight_optimizer")
    plain, captured = (
        oneshot(m, weight_optimizer=weight_optimizer(m.parameters()), capture=c, **settings)
        for m, c in ((model, False), (twin, True))
    )
    for train, valid in data:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = captured.step(train, valid)
        expected = plain.step(train, valid)
        torch.testing.assert_close(
            [*got.train_losses, *got.valid_losses], [*expected.train_losses, *expected.valid_losses], rtol=1e-4, atol=0
        )
    captured.state_dict()
    assert with_gradient(twin) == with_gradient(model)
    torch.testing.assert_close([*twin.parameters()], [*model.parameters()], rtol=1e-3, atol=1e-4)
