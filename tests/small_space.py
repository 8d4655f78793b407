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
