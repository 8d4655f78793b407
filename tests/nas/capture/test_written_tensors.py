"""Buffers and other tensors that passes write into or replace: kept, put back, or against a capture."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from asng.nas import OneOf
from asng.nas._capture.cases import Refused
from tests.helpers.captures import Averages, Choosy, assert_same_steps, iteration, oneshot
from tests.helpers.searches import batches, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


def test_a_buffer_that_is_replaced_is_put_back():
    model = OneOf("op", [Averages(), nn.Linear(4, 3)])
    averages: Any = model.options[0]
    mean = averages.mean
    with pytest.raises(Refused):
        iteration(oneshot(model), batches(1)[0])
    assert averages.mean is mean
    assert mean.tolist() == [0.0] * 4


class Moves(nn.Module):
    """Makes a new buffer by the first pass, or new memory for it in every one."""

    mean: torch.Tensor | None

    def __init__(self, mean):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", mean)

    def forward(self, x):
        if self.mean is None:
            self.mean = x.detach().mean(0)
        else:
            self.mean.data = self.mean.data + 1
        return self.linear(x - self.mean)


@pytest.mark.parametrize("mean", [None, torch.zeros(4)], ids=["new", "moved"])
def test_new_memory_of_a_buffer_is_refused(mean):
    with pytest.raises(Refused, match=r"^0 replaces its buffer 'mean'; write into it"):
        iteration(oneshot(nn.Sequential(Moves(mean), OneOf("op", [nn.Tanh(), nn.Linear(3, 3)]))), batches(1)[0])


class Centers(nn.Module):
    """A loss with a mean of its own, which every pass moves."""

    def __init__(self, move, *, registered):
        super().__init__()
        self.move, self.mean = move, torch.zeros(3)
        if registered:
            del self.mean
            self.register_buffer("mean", torch.zeros(3))

    def forward(self, model, batch):
        scores = model(batch[0])
        self.move(self, 0.9 * self.mean + 0.1 * scores.detach().mean(0))
        return nn.functional.cross_entropy(scores - self.mean, batch[1])


def replace_mean(loss, mean):
    loss.mean = mean


@pytest.mark.usefixtures("graphless")
@pytest.mark.parametrize(("registered", "name"), [(True, "buffer"), (False, "tensor")])
def test_a_state_that_the_loss_replaces_runs_as_usual(registered, name):
    model = Choosy()
    losses = [Centers(replace_mean, registered=registered) for _ in range(2)]
    plain, captured = oneshot(model, loss_fn=losses[0]), oneshot(copy.deepcopy(model), loss_fn=losses[1], capture=True)
    data = pairs(3)
    with pytest.warns(UserWarning, match=f"usual: Centers replaces its {name} 'mean'; write into it"):
        got = [captured.step(*pair) for pair in data]
    assert got == [plain.step(*pair) for pair in data]


@pytest.mark.usefixtures("graphless")
def test_a_dry_run_leaves_the_buffers_of_the_loss_alone():
    model = Choosy()
    losses = [Centers(lambda loss, mean: loss.mean.copy_(mean), registered=True) for _ in range(2)]
    plain, captured = oneshot(model, loss_fn=losses[0]), oneshot(copy.deepcopy(model), loss_fn=losses[1], capture=True)
    for train, valid in pairs(3):
        assert captured.step(train, valid) == plain.step(train, valid)
    assert captured.capture_cost


class Positions(nn.Module):
    """Keeps numbers for batches of one size, and what it gave last."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.numbers, self.last = torch.zeros(0, 1), torch.zeros(())

    def forward(self, x):
        if self.numbers.shape[0] != len(x):
            self.numbers = torch.linspace(0, 1, len(x))[:, None]
        self.last = self.linear(x + self.numbers)
        return self.last


@pytest.mark.usefixtures("graphless")
def test_what_a_graph_reads_is_kept_when_the_model_replaces_it():
    positions = Positions()
    model = nn.Sequential(positions, OneOf("op", [nn.Linear(4, 3), nn.Sequential(nn.Tanh(), nn.Linear(4, 3))]))
    search = oneshot(model, capture=True)
    train, valid = pairs(1)[0]
    search.step(train, valid)
    memory = StorageWeakRef(positions.numbers.untyped_storage())
    shorter = tuple(tensor[:5] for tensor in train)
    search.step(shorter, shorter)
    assert len(positions.numbers) == 5
    assert not memory.expired()
    search.release_capture()
    assert memory.expired()


@pytest.mark.usefixtures("graphless")
def test_what_is_kept_for_one_of_two_sizes_runs_as_usual():
    model = nn.Sequential(OneOf("op", [Positions(), nn.Linear(4, 4)]), nn.Linear(4, 3))
    train, valid = pairs(1)[0]
    with pytest.warns(UserWarning, match=r"usual: 0\.options\.0 replaces its tensor 'numbers'; write into it"):
        oneshot(model, capture=True).step(train, tuple(tensor[:5] for tensor in valid))


class Rectifies(nn.Module):
    def __init__(self, *, inplace):
        super().__init__()
        self.body = nn.Sequential(OneOf("op", [nn.Identity(), nn.Linear(4, 4)]), nn.ReLU(inplace=inplace))
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.body(x))


def test_writes_into_what_an_option_passes_on_are_refused():
    with pytest.raises(Refused, match=r"^'op' \(body.0\) may return its input, and one of the two is changed in place"):
        iteration(oneshot(Rectifies(inplace=True)), batches(1)[0])
    assert_same_steps(Rectifies(inplace=False))
