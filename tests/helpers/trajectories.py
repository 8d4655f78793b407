"""What the tests of ASNG's updates share: spaces of each kind, a loss that moves, and runs on it."""

import math
from typing import Any

from asng import Categorical, Integer, Real

CATEGORICAL: dict[str, Any] = {
    "a": Categorical(list("abc")),
    "one": Categorical(list("x")),
    "b": Categorical(range(2)),
    "c": Categorical(range(6)),
}
INTEGER: dict[str, Any] = {"a": Integer(-5, 40), "b": Integer(64, 256), "c": Integer(0, 1)}
REAL: dict[str, Any] = {"a": Real(-1, 3), "b": Real(1e-5, 1e-1, log=True)}
MIXED: dict[str, Any] = {"r": REAL["b"], **CATEGORICAL, "n": Integer(1, 3), "m": Integer(64, 256), "s": Real(0, 1)}
SPACES: dict[str, Any] = {"categorical": CATEGORICAL, "integer": INTEGER, "real": REAL, "mixed": MIXED}
LETTERS: dict[str, Any] = {str(i): Categorical(list("abcd")) for i in range(10)}
BLEND: dict[str, Any] = {
    "op": Categorical(list("abc")),
    "n": Integer(1, 64),
    "x": Real(0, 1),
    "lr": Real(1e-5, 1, log=True),
}


def moving_loss(x, step):
    """A rough loss of a raw draw whose best point moves, with ties now and then."""
    return round(float(sum(abs(value / (1 + abs(value)) - math.sin(step / 50 + i)) for i, value in enumerate(x))), 1)


def run(optimizer, steps, loss=moving_loss):
    for step in range(steps):
        candidates = optimizer.ask()
        optimizer.tell(candidates, [loss(c.x, step) for c in candidates])
    return optimizer


def inner(optimizer):
    """theta, path, gamma and divisor of a run."""
    return optimizer.state_dict()["state"]
