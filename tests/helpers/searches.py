"""What the tests of OneShot and search share: small models and data, small searches, and what is compared of them."""

import itertools
import random
import signal

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from asng import ASNG, Categorical
from asng.nas import OneOf, OneShot, Repeat, Value, search, space_of

# Models --------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Nine architectures, one of them of integers; a weight in every part that a choice can leave out."""

    def __init__(self, width=8, depth=3, dropout=0.2, norm=False):
        super().__init__()
        self.first = OneOf("first", [nn.Linear(4, width), nn.Sequential(nn.Linear(4, width), nn.Tanh()), Flat(width)])
        blocks = [
            nn.Sequential(
                nn.Linear(width, width),
                nn.BatchNorm1d(width) if norm else nn.Identity(),
                nn.ReLU(),
                nn.Dropout(dropout),
            )
            for _ in range(depth)
        ]
        self.blocks = Repeat("depth", blocks)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.blocks(self.first(x)))


class Flat(nn.Module):
    """Knows nothing of its input: the choice to be avoided."""

    def __init__(self, width):
        super().__init__()
        self.constant = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return self.constant.expand(len(x), -1)


class Switch(nn.Module):
    """One weight of two is used."""

    def __init__(self, choices=2):
        super().__init__()
        self.which = Value("which", Categorical(range(choices)))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(choices)])

    def forward(self, x):
        return (self.weights[self.which.value] * x).sum()


class FailingBackward(torch.autograd.Function):
    """The identity, whose gradient raises an error of some kind."""

    @staticmethod
    def forward(context, x, kind):
        context.kind = kind
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise context.kind("too large")


class Scripted(ASNG):
    """Draws what it is told to."""

    script: list[int]

    def ask(self, n=None):
        drawn = super().ask(n)
        for candidate in drawn:
            candidate.values["which"] = self.script.pop(0)
        return drawn


# Data ----------------------------------------------------------------------------------------------


def data(n, seed=0, dtype=torch.float):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def batches(n, seed=0, size=8, dtype=torch.float):
    x, y = data(n * size, seed, dtype)
    return list(zip(x.split(size), y.split(size), strict=True))


def pairs(n, dtype=torch.float):
    """A batch to train on and one to validate, n times."""
    return list(zip(batches(n, 1, dtype=dtype), batches(n, 2, dtype=dtype), strict=True))


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


# Searches ------------------------------------------------------------------------------------------


def make_oneshot(model=None, *, population_size=2, seed=3, weight_optimizer=None, loss_fn=cross_entropy, **settings):
    """OneShot on a small model, its weights trained by SGD."""
    model = Net() if model is None else model
    arch_optimizer = ASNG(space_of(model), population_size=population_size, seed=seed)
    weight_optimizer = weight_optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return OneShot(model, arch_optimizer, weight_optimizer, loss_fn, **settings)


def run_search(
    model=None, train_loader=None, valid_loader=None, loss_fn=cross_entropy, *, epochs=2, progress=False, **settings
):
    """Two epochs of search on a small model, unless told otherwise."""
    model = Net() if model is None else model
    train_loader = batches(5, 1) if train_loader is None else train_loader
    valid_loader = batches(5, 2) if valid_loader is None else valid_loader
    return search(model, train_loader, valid_loader, loss_fn, epochs=epochs, progress=progress, **settings)


def small_search(
    checkpoint, *, epochs=6, own_generator=False, loss_fn=cross_entropy, seed=3, dropout=0.2, norm=False, **settings
):
    """A search with all that has a state: dropout, momentum, shuffling, an integer, a shorter valid."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(7) if own_generator else None
    train, valid = (
        DataLoader(TensorDataset(*data(n, seed)), batch_size=8, shuffle=True, generator=generator)
        for n, seed in ((40, 1), (18, 2))
    )
    model = Net(dropout=dropout, norm=norm)
    settings = {"checkpoint": checkpoint, "progress": False, "seed": seed, **settings}
    found = search(model, train, valid, loss_fn, epochs=epochs, **settings)
    return outcome(model, found)


def outcome(model, found):
    """All that has to be equal to the bit, and loads with `weights_only`."""
    return {
        "weights": dict(model.state_dict()),
        "optimizer": found.arch_optimizer.state_dict(),
        "history": [{k: v for k, v in record.items() if k != "seconds"} for record in found.history],
        "values": found.values,
        "torch": torch.get_rng_state(),
    }


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def interrupt_at(call, number=signal.SIGINT):
    """A loss that raises a signal in one of its calls."""
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == call:
            signal.raise_signal(number)
        return cross_entropy(model, batch)

    return loss


class Augmented(torch.utils.data.Dataset):
    """Every reading is another: by NumPy's and Python's global random numbers, and torch's."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        x, y = data(40)
        noise = random.random() + np.random.random() + torch.rand(()).item()  # noqa: NPY002
        return x[index] + noise, y[index]
