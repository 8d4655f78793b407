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
    """What `minimize` found."""

    values: dict[str, Any]  # with the lowest loss
    loss: float
    mode: dict[str, Any]  # the most likely values at the end
    evaluations: int  # fewer than asked for only after Ctrl-C
    optimizer: ASNG  # can be inspected or continued


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
    """Minimize f over a space in a given number of evaluations; an executor evaluates side by side.

    `population_size` candidates are compared at a time: by default 2 among choices alone, and 8 where there
    are numbers, whose spread two mirrored draws could only shrink. Ctrl-C ends it early with the
    result so far.

    >>> import asng
    >>> space = {"op": asng.Categorical(["add", "mul"]), "n": asng.Integer(1, 9)}
    >>> asng.minimize(lambda v: abs(v["n"] - 7) + (v["op"] == "add"), space, evaluations=400, seed=0).mode
    {'op': 'mul', 'n': 7}
    """
    left = check_int(evaluations, "evaluations", min=2)
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
