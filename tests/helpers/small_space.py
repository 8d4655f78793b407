"""What the tests of ask and tell share: a small space of every kind with a loss, and optimizers run on it."""

import json
from typing import Any

from asng import ASNG, SNG, Adam, Categorical, Integer, NormalFamily, Real

METHODS: list[Any] = [ASNG, SNG, Adam]
SPACE: dict[str, Any] = {
    "lr": Real(1e-4, 1e-1, log=True),
    "op": Categorical(["conv", "pool", "skip"]),
    "n": Integer(1, 9),
    "flag": Categorical([False, True]),
    "x": Real(-1, 1),
}


def loss(values):
    return abs(values["n"] - 7) / 4 + (values["op"] != "pool") + values["flag"] + abs(values["x"]) + values["lr"]


def run(optimizer, steps):
    for _ in range(steps):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [loss(c.values) for c in candidates])
    return optimizer


def through_json(state):
    return json.loads(json.dumps(state, allow_nan=False))


class Bounded(NormalFamily):
    """A family of one's own that differs in a number."""

    def __init__(self, high):
        super().__init__([0], [high], [0.1], mirrored=False)
        self.high = high


class Stubborn:
    """Like a tensor that requires a gradient: RuntimeError where it is converted to numbers or compared."""

    def _refuse(self, *args, **settings):
        raise RuntimeError("this is no NumPy")

    def __repr__(self):
        return "Stubborn()"  # without an address: names of tests are the same in every process

    __array__ = __float__ = __bool__ = __len__ = __getitem__ = _refuse

    def __eq__(self, other):
        return self  # whose truth nobody knows

    __hash__ = object.__hash__
