"""What the tests of captured steps share: small models with all kinds of choices, and steps beside the plain path."""

import torch
from torch import nn

from asng import ASNG, Integer
from asng.nas import OneOf, OneShot, Pick, Repeat, Searchable, Value, space_of
from tests.helpers.searches import cross_entropy


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


def oneshot(model, *, loss_fn=cross_entropy, seed=3, weight_optimizer=None, **settings):
    weight_optimizer = weight_optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return OneShot(model, ASNG(space_of(model), seed=seed), weight_optimizer, loss_fn, **settings)


def with_gradient(model):
    return [name for name, parameter in model.named_parameters() if parameter.grad is not None]
