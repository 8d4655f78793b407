"""Hostile values, mutations of bytes and of JSON, and what counts as a refusal."""

import copy
import itertools
import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch

import asng

SPACE: dict[str, Any] = {
    "op": asng.Categorical(["a", "b", "c"]),
    "n": asng.Integer(1, 9),
    "x": asng.Real(-1.0, 1.0),
    "lr": asng.Real(1e-4, 1.0, log=True),
}

SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**63, -(2**63) - 1, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e200, -1e308),
    *(math.nan, math.inf, -math.inf, 1j, "", "x", "3.5", "1_0", "\x1b[2J", "\udcff", b"x"),
)
OBJECTS: tuple[Any, ...] = (
    *([], [1], [1.0, 2.0], [[1.0], [2.0]], ["a", "b"], (1, 2), {}, {"a": 1}, {1: 2}, set(), frozenset({1}), range(3)),
    *(
        object(),
        abs,
        int,
        np.float64(2),
        np.int8(3),
        np.bool_(True),
        np.complex64(1j),
        np.datetime64("2020"),
        np.str_("x"),
    ),
    *(np.array(1.0), np.array([1.0, 2.0]), np.array([np.nan]), np.array("x"), np.array([None, 1], dtype=object)),
    *(torch.tensor(1.0), torch.tensor([1.0, 2.0]), torch.tensor(1.0, requires_grad=True), torch.tensor(1j)),
    *(torch.tensor(1.0, dtype=torch.bfloat16), torch.zeros(2, 2), torch.tensor(3), torch.float16),
)


def is_refused(function: Callable[[], object]) -> bool:
    """Whether a call is refused by a ValueError; any other error is a failure."""
    try:
        function()
    except ValueError as error:
        if not str(error):
            raise AssertionError("a refusal without a word") from error
        return True
    return False


def odd_value(rng: Random) -> Any:
    """A value that belongs nowhere, or a list of some."""
    match rng.randrange(8):
        case 0:
            return [odd_value(rng) for _ in range(rng.randrange(4))]
        case 1:
            return itertools.repeat(rng.choice(SCALARS), rng.randrange(4))
        case 2 | 3:
            return rng.choice(OBJECTS)
        case _:
            return rng.choice(SCALARS)


def odd_json(rng: Random) -> Any:
    """A value of JSON that probably does not fit."""
    scalars = [
        None,
        True,
        0,
        -1,
        3,
        2**70,
        10**400,
        0.5,
        1e308,
        -1e-320,
        math.nan,
        math.inf,
        "",
        "x",
        "\x1b[2J",
        "\udcff",
    ]
    return rng.choice([*scalars, [], {}, [1, 2], {"a": 1}, [[]], ["x"] * 3])


def mutate_json(data: Any, rng: Random) -> Any:
    """A copy of JSON in which one to three values are replaced, removed, doubled or exchanged."""
    data = {"root": copy.deepcopy(data)}
    for _ in range(rng.randint(1, 3)):
        holder, key = _pick(data, rng)
        match rng.randrange(5):
            case 0 | 1:
                holder[key] = odd_json(rng)
            case 2 if holder is not data:
                del holder[key]
            case 3 if isinstance(holder, list):
                holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
            case _:
                other, another = _pick(data, rng)
                holder[key] = copy.deepcopy(other[another])
    return data["root"]


def _pick(data: dict[str, Any], rng: Random) -> tuple[Any, Any]:
    """A dict or list somewhere inside, and one of its keys."""
    holder: Any = data
    key: Any = "root"
    while True:
        value: Any = holder[key]
        if not isinstance(value, (dict, list)) or not value or rng.random() < 0.2:
            return holder, key
        holder, key = value, rng.choice(list(value) if isinstance(value, dict) else range(len(value)))


def mutate_bytes(content: bytes, rng: Random) -> bytes:
    """A copy in which one to three places are changed, cut out, filled, doubled or nested without end."""
    content = bytes(content)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice([0, 1, 1, 4, 64, 4096]))
        filled = rng.choice([
            rng.randbytes(max(1, end - start)),
            bytes(end - start),
            b"",
            content[start:end] * 2,
            b"[" * 50_000,
            b"9" * 5_000,
            b"\xff",
            b"NaN",
            b"\n",
        ])  # fmt: skip
        content = content[:start] + filled + content[end:]
    return content[: rng.randrange(len(content) + 1)] if rng.random() < 0.1 else content
