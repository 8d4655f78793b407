"""The methods compared by nasbench201.py, by name, for categorical variables.

    random           independent uniform draws
    evolution P/S    regularized evolution (Real et al., AAAI 2019): the parent is the best of S draws, with
                     replacement, from the last P architectures; one variable of it changes; the oldest leaves
    TPE              Optuna's TPESampler, all defaults
    CatCMAwM [L]     of cmaes, all defaults, or with population size L
    ASNG L           of this library, L candidates per update, all else defaults

A method is a generator: it yields the next point to evaluate and the mode of its distribution, if it has one, and gets
the accuracy, the higher the better. A method of your own is such a generator and its case in `method_of`.
"""

import math
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
from libraries import WithAsng, WithCmaes, WithOptuna

import asng

Code = tuple[int, ...]  # one choice per variable; as a shape, how many choices each has
Searcher = Generator[tuple[Code, Code | None], float, None]


def search_randomly(shape: Code, seed: int) -> Searcher:
    rng = np.random.default_rng(seed)
    while True:
        yield tuple(rng.integers(shape).tolist()), None


def evolve(shape: Code, seed: int, *, population: int, sample: int) -> Searcher:
    """Regularized evolution, Algorithm 1 of Real et al."""
    rng = np.random.default_rng(seed)
    alive: deque[tuple[Code, float]] = deque(maxlen=population)  # a new one pushes the oldest out
    while True:
        if len(alive) < population:
            child = tuple(rng.integers(shape).tolist())
        else:
            tournament = [alive[i] for i in rng.integers(population, size=sample)]
            child = mutate(max(tournament, key=lambda member: member[1])[0], shape, rng)
        accuracy = yield child, None
        alive.append((child, accuracy))


def mutate(parent: Code, shape: Code, rng: np.random.Generator) -> Code:
    """Another operation at one edge, both uniform."""
    edge = rng.integers(len(shape))
    operation = (parent[edge] + rng.integers(1, shape[edge])) % shape[edge]
    return (*parent[:edge], int(operation), *parent[edge + 1 :])


def ask_and_tell(library: Any, shape: Code, seed: int, *, population_size: int) -> Searcher:
    """A library of libraries.py; it minimizes minus the accuracy."""
    space = {f"edge{edge}": asng.Categorical(range(ops)) for edge, ops in enumerate(shape)}
    optimizer = library(space, population_size, seed)
    while True:
        mode = tuple(optimizer.optimizer.mode().values()) if library is WithAsng else None
        candidates = optimizer.ask()
        losses = []
        for values in optimizer.values(candidates):
            accuracy = yield tuple(values[name] for name in space), mode
            losses.append(-accuracy)
        optimizer.tell(candidates, losses)


def default_size(shape: Code) -> int:
    """The population size of CatCMAwM where none is given."""
    return 4 + math.floor(3 * math.log(len(shape)))


def method_of(name: str) -> Callable[[Code, int], Searcher]:
    """The method of a name, such as "ASNG 2"."""
    try:
        match name.split():
            case ["random"]:
                return search_randomly
            case ["evolution", sizes]:
                population, sample = map(int, sizes.split("/"))
                if min(population, sample) > 0:
                    return partial(evolve, population=population, sample=sample)
            case ["TPE"]:
                return partial(ask_and_tell, WithOptuna, population_size=1)
            case ["CatCMAwM"]:
                return lambda shape, seed: ask_and_tell(WithCmaes, shape, seed, population_size=default_size(shape))
            case ["CatCMAwM", size]:
                return partial(ask_and_tell, WithCmaes, population_size=int(size))
            case ["ASNG", size]:
                return partial(ask_and_tell, WithAsng, population_size=int(size))
    except ValueError:
        pass
    raise ValueError(f"there is no method {name!r}; there are random, evolution P/S, TPE, CatCMAwM [L], ASNG L")
