"""Black-box minimization: a loop around ASNG's ask and tell."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple

from asng._asktell import Seed
from asng._checks import check_int
from asng.families import CategoricalFamily
from asng.optimizer import ASNG
from asng.space import Variable, family_of


class Result(NamedTuple):
    """What `minimize` found.

    Attributes:
        values: Those with the lowest loss, by name.
        loss: Their loss.
        mode: The most likely values at the end, which may be better where the losses are noisy.
        evaluations: How many were made; fewer than asked for only after Ctrl-C.
        optimizer: Can be inspected or continued.

    >>> import asng
    >>> result = asng.minimize(lambda values: values["n"], {"n": asng.Integer(1, 3)}, evaluations=20, seed=0)
    >>> result.values, result.loss, result.evaluations
    ({'n': 1}, 1.0, 20)
    """

    values: dict[str, Any]
    loss: float
    mode: dict[str, Any]
    evaluations: int
    optimizer: ASNG


def minimize(
    f: Callable[[dict[str, Any]], Any],
    space: Mapping[str, Variable],
    *,
    evaluations: int,
    population_size: int | None = None,
    executor: Executor | None = None,
    seed: Seed = None,
    initial: Mapping[str, Any] | None = None,
) -> Result:
    """Minimize a black box over a space. Ctrl-C ends it early with the result so far.

    Args:
        f: Called with a dict of values; returns a number, lower is better.
        space: Names and variables.
        evaluations: How many calls of f, at least 2.
        population_size: Candidates compared at a time: by default 2 among choices alone, and 8 where there are
            numbers, whose spread two mirrored draws could only shrink.
        executor: A concurrent.futures executor that evaluates the candidates of a population side by side.
        seed: An integer or a SeedSequence; None for a random one.
        initial: Prior knowledge by name, as in `ASNG`.

    Returns:
        The best values, their loss, the mode, the number of evaluations, and the optimizer.

    Raises:
        ValueError: An argument does not fit, or every loss was NaN or infinite.

    >>> import asng
    >>> space = {"op": asng.Categorical(["add", "mul"]), "n": asng.Integer(1, 9)}
    >>> asng.minimize(lambda v: abs(v["n"] - 7) + (v["op"] == "add"), space, evaluations=400, seed=0).mode
    {'op': 'mul', 'n': 7}
    """
    left = check_int(evaluations, "evaluations", min=2)
    if not callable(f):
        raise ValueError(f"minimize takes a function of the values first, then the space; got {str(f)[:80]} first")
    if population_size is None:
        population_size = 2 if isinstance(family_of(space), CategoricalFamily) else 8
    optimizer = ASNG(space, population_size=population_size, initial=initial, seed=seed)
    evaluate = map if executor is None else executor.map
    try:
        while left:
            n = left if left <= population_size + 1 else population_size  # a ranking needs two candidates
            candidates = optimizer.ask(n)
            optimizer.tell(candidates, list(evaluate(f, [c.values for c in candidates])))
            left -= n
    except KeyboardInterrupt:
        if optimizer.best is None:
            raise
    if optimizer.best is None:
        raise ValueError("every loss was NaN or infinite; f has to return a finite number somewhere in the space")
    return Result(optimizer.best.values, optimizer.best.loss, optimizer.mode(), evaluations - left, optimizer)
