"""Loading an optimizer's state: JSON values in, checked arrays out."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

FLOAT64 = np.dtype(np.float64)


def is_finite(part: Any, shape: tuple[int, ...]) -> bool:
    """True if a part of a state is a finite float, or an array of finite floats of this shape."""
    if type(part) is float:
        return not shape and math.isfinite(part)
    if not isinstance(part, np.ndarray) or part.dtype != FLOAT64 or part.shape != shape:
        return False
    return bool(np.vdot(part, part) < math.inf or np.isfinite(part).all())  # the first is quicker, but may overflow


def check_finite(state: Any, before: Any) -> None:
    """Raise ValueError if a user's family returned something that is not finite."""
    for name, part, old in zip(state._fields, state, before, strict=True):
        if not is_finite(part, getattr(old, "shape", ())):
            raise ValueError(
                f"nothing is learned: {name} would be {part}, and has to be {np.size(old)} finite numbers of float64; "
                "see what statistics, whiten and project of your own family return"
            )


def checksum(state: Mapping[str, Any]) -> str:
    """Of a saved dict; without the generator, which a search may replace by an earlier one."""
    parts = [state[name] for name in ("space", "settings", "state", "best")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_state(state: Any, expected: dict[str, Any], current: Any) -> tuple[Any, np.random.Generator, Any]:
    """State, generator and best of a saved dict, checked against `expected`, the dict saved from here."""
    if not isinstance(state, Mapping) or set(state) != set(expected):
        raise ValueError(f"a state holds {', '.join(expected)}; this is not one: {str(state)[:80]}")
    for what, other in (("space", "another space"), ("settings", "other settings")):
        if difference := _difference(state[what], expected[what]):
            raise ValueError(
                f"the saved optimizer has {other} ({difference}); make this one in the same way before loading"
            )
    try:
        intact = checksum(state) == state["checksum"]
        generator = np.random.Generator(np.random.PCG64())
        generator.bit_generator.state = state["generator"]
        # Its increment is odd, and NumPy cuts off what is too much.
        intact &= generator.bit_generator.state == state["generator"] and state["generator"]["state"]["inc"] % 2 == 1
        arrays = [np.array(state["state"][name]) for name in current._fields]
        loaded = type(current)(*(array if array.ndim else float(array) for array in arrays))
        best = state["best"]
        if best is not None:
            best = np.array(best["x"], dtype=float), float(best["loss"])
    except Exception as error:  # anything may stand where dicts and numbers belong
        raise ValueError(f"the state is damaged: {error!r}") from None
    if not intact:
        raise ValueError("the state is damaged: it is not as it was saved")
    finite = [is_finite(part, np.shape(old)) for part, old in zip(loaded, current, strict=True)]
    if not all(finite) or (best and not (is_finite(best[0], (len(expected["space"]),)) and math.isfinite(best[1]))):
        raise ValueError("the state is damaged: not all of its numbers are finite, or there are more or fewer")
    return loaded, generator, best


def _difference(saved: Any, expected: Any) -> str:
    """The first difference between two lists of pairs or two dicts; empty if they are equal."""
    try:
        if saved == expected:
            return ""
        saved, expected = dict(saved), dict(expected)
        name = next(name for name in {**expected, **saved} if saved.get(name) != expected.get(name))
        return f"{name}: {saved.get(name)} there, {expected.get(name)} here"
    except Exception:  # arrays and the like, or equal but for their order
        return "in another order or damaged"
