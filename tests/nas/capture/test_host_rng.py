"""Random numbers of the host, which a graph would repeat, are refused, and their generators left alone."""

import pickle
import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asng.nas._capture.cases import Refused
from asng.nas._capture.held import find_held
from asng.nas._capture.host_rng import host_generators, snapshot
from tests.helpers.captures import Choosy, iteration, oneshot
from tests.helpers.searches import batches, cross_entropy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


def repeat_draw(draw):
    """What two calls will return."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    drawn = [draw(), draw()]
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    return drawn


@pytest.mark.parametrize(
    ("draw", "name"),
    [(random.random, "Python's random"), (np.random.rand, "NumPy's random"), (np.random.randn, "NumPy's random")],
    ids=["python", "numpy", "normal"],
)
def test_random_numbers_of_the_host_are_refused(draw, name):
    def loss_fn(model, batch):
        return cross_entropy(model, batch) * (1 + draw())

    expected = repeat_draw(draw)
    with pytest.raises(Refused, match=f"^the model, the loss or the judge draws from {name}, and a graph would repeat"):
        iteration(oneshot(Choosy()), batches(1)[0], loss_fn=loss_fn)
    assert [draw(), draw()] == expected  # plain steps draw what they would without a capture


NUMPYS = np.random.default_rng(0)


def mix(batch):
    return NUMPYS.uniform() * batch[0], batch[1]


def loss_of_mixture(model, batch):
    return cross_entropy(model, mix(batch))


def loss_of_own_mixture(model, batch, *, generator=np.random.default_rng(0)):  # noqa: B008
    return cross_entropy(model, batch) * generator.uniform()


def loss_of_some_mixtures(model, batch):
    return cross_entropy(model, batch) * max([NUMPYS.uniform() for _ in range(3)])


AUGMENTATION: Any = ModuleType("augmentation")  # of a user
exec("import random\ngenerator = random.Random(0)\ndef draw(): return generator.random()", vars(AUGMENTATION))


def loss_of_another_module(model, batch):
    return cross_entropy(model, batch) * AUGMENTATION.draw()


class Jitters(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = random.Random(0)

    def forward(self, x):
        return x * self.generator.random()


class Loss:
    def __init__(self):
        self.generator = np.random.RandomState(0)

    def __call__(self, model, batch):
        return cross_entropy(model, batch) * self.draw()

    def draw(self):
        return self.generator.rand()


class LossInTurn:
    def __init__(self):
        self.parts = {"factors": [Loss(), Loss()]}

    def __call__(self, model, batch):
        return self.parts["factors"][1](model, batch)


@pytest.mark.parametrize("judged", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("option", "function", "generator", "name"),
    [
        (nn.Tanh(), loss_of_mixture, lambda model, function: NUMPYS, "Generator"),
        (nn.Tanh(), loss_of_own_mixture, lambda model, function: function.__kwdefaults__["generator"], "Generator"),
        (nn.Tanh(), loss_of_some_mixtures, lambda model, function: NUMPYS, "Generator"),
        (nn.Tanh(), loss_of_another_module, lambda model, function: AUGMENTATION.generator, "Random"),
        (nn.Tanh(), Loss(), lambda model, function: function.generator, "RandomState"),
        (nn.Tanh(), LossInTurn(), lambda model, function: function.parts["factors"][1].generator, "RandomState"),
        (Jitters(), cross_entropy, lambda model, function: model.last.options[1].generator, "Random"),
    ],
    ids=["global", "default", "comprehension", "module", "object", "list", "option"],
)
@pytest.mark.usefixtures("graphless")
def test_generators_of_the_host_are_refused_and_left_alone(option, function, generator, name, judged):
    model = Choosy()
    model.last.options[1] = option
    search = oneshot(model, capture=True, **({"judge": function} if judged else {"loss_fn": function}))
    before = pickle.dumps(generator(model, function))
    reason = f"draws from a {name} of its own, and a graph would repeat"
    prepared = search._captured._make_iteration(2)
    with pytest.raises(Refused, match=reason):
        prepared.prepare(*batches(2))
    assert pickle.dumps(generator(model, function)) == before
    with pytest.warns(UserWarning, match=reason):
        search.step(*batches(2))


def test_long_lists_are_not_searched_for_generators():
    class Reads:
        numbers: list[Any] = [random.Random(0)] * 10_000

    assert len(host_generators(torch.device("cpu"), find_held([Reads()]))) == 2


def test_random_numbers_of_the_cpu_are_noticed_beside_a_gpu():
    gpu = torch.device("cuda")
    generators = host_generators(gpu)
    before = snapshot(generators)
    torch.rand(())
    pairs = zip(generators, before, snapshot(generators), strict=True)
    assert [name for (name, _), old, new in pairs if new != old] == ["torch's generator of the CPU"]
