"""Random number generators on the host: a graph would repeat their numbers, since replays do not advance them."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

Generators = list[tuple[str, Any]]  # with what they are called


def host_generators(device: torch.device, held: Iterable[Any] = ()) -> Generators:
    """The generators that replays on a device do not advance: global ones, and those among what users hold."""
    functions: Any = random.getstate, np.random.get_state
    found = [("Python's random", functions[0].__self__), ("NumPy's random", functions[1].__self__)]
    if device.type != "cpu":
        found.append(("torch's generator of the CPU", torch.default_generator))
    kinds = (np.random.Generator, np.random.RandomState)
    own = [thing for thing in held if isinstance(thing, kinds) or type(thing) is random.Random]
    return found + [(f"a {type(generator).__name__} of its own", generator) for generator in own]


def snapshot(generators: Generators) -> list[Any]:
    """Their states, to be compared."""
    return [_freeze(_state_of(generator)) for _, generator in generators]


def _freeze(state: Any) -> Any:
    match state:
        case dict():
            return {name: _freeze(part) for name, part in state.items()}
        case np.ndarray():
            return state.tobytes()
    return state


@contextmanager
def restore(generators: Generators) -> Iterator[None]:
    """Restore their states on exit."""
    before = [(generator, _state_of(generator)) for _, generator in generators]
    try:
        yield
    finally:
        for generator, state in before:
            match generator:
                case np.random.Generator():
                    generator.bit_generator.state = state
                case np.random.RandomState():
                    generator.set_state(state)
                case torch.Generator():
                    generator.set_state(torch.from_numpy(state))
                case _:
                    generator.setstate(state)


def _state_of(generator: Any) -> Any:
    match generator:
        case np.random.Generator():
            return generator.bit_generator.state
        case np.random.RandomState():
            return generator.get_state(legacy=False)
        case torch.Generator():
            return generator.get_state().numpy()
    return generator.getstate()
