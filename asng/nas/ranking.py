"""After a search: scores of architectures with the shared weights, the best of the likely ones, and a Pareto front."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from asng._checks import check_bool, check_int
from asng._progress import Progress, delayed_progress_bar
from asng._ragged import Array
from asng._untrusted import shorten
from asng.baselines import RandomSearch
from asng.nas import _distributed
from asng.nas._candidates import Judge, to_score
from asng.nas._checks import check_batches, check_judge, check_module, unwrap
from asng.nas._notes import add_notes
from asng.nas._preserve import hold_in_training, preserve_state, set_training, without_fast_path
from asng.nas.limits import Limit, Measure, measure_all
from asng.nas.oneshot import Batch, OneShot
from asng.nas.recalibration import recalibrate
from asng.nas.result import Architecture, Front, SearchResult, architecture_of, oneshot_of, top
from asng.nas.supernet import Supernet, Values

ATTEMPTS = 20  # per architecture of a front, to find one that is new and feasible
MAX_IDLE = 2000  # attempts in a row that find none


def score(
    model: nn.Module | OneShot | SearchResult,
    values: Values,
    batches: Iterable[Batch],
    judge: Judge,
    *,
    recalibrate_on: Iterable[Batch] | None = None,
) -> float:
    """Score one architecture with the shared weights of a model.

    It runs without gradients and in evaluation mode, so without dropout. Batch norms use the statistics of each batch,
    as in the search, or those of this architecture over `recalibrate_on`. Selection, train/eval modes, buffers and RNG
    state are restored on exit.

    Args:
        model: Any module with decisions, also wrapped by torch.compile or DataParallel; or a search, or its result,
            whose precision is then used. With several processes, pass a search.
        values: One value for each decision, by name.
        batches: The batches for the judge.
        judge: (model, batch) -> a number or (number, metrics), such as that of the search, or its loss function.
        recalibrate_on: Batches, in the format of the judge, to re-estimate the statistics of batch norms; `batches` may
            then be small.

    Returns:
        The mean of the judge's numbers over the batches.

    Raises:
        ValueError: The values do not fit, there are no batches, or the judge returns no number.

    >>> from asng import nas
    >>> model = nn.Sequential(nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}))
    >>> nas.score(model, {"act": "relu"}, [torch.ones(2), -torch.ones(2)], lambda model, x: model(x).mean())
    0.5
    """
    check_judge(judge)
    check_batches(batches, "batches")
    if isinstance(model, (OneShot, SearchResult)):
        return _shared_score(oneshot_of(model), values, batches, judge, recalibrate_on)
    check_module(model)
    return _score(Supernet(unwrap(model)), model, values, batches, judge, recalibrate_on)


def _score(
    supernet: Supernet, model: nn.Module, values: Values, batches: Iterable[Batch], judge: Judge, recalibrate_on: Any
) -> float:
    with preserve_state(supernet), torch.no_grad(), without_fast_path():  # which knows no elastic layers
        supernet.select(values)
        try:
            if recalibrate_on is not None:
                recalibrate(supernet.model, recalibrate_on, lambda _, batch: judge(model, batch))
            _evaluate_mode(supernet, batch_statistics=recalibrate_on is None)
            numbers = [float(to_score(judge(model, batch)).loss) for batch in batches]
        except Exception as error:
            add_notes(error, supernet, values, "judge", model)
            raise
    if not numbers:
        raise ValueError("there are no batches to score on; an iterator may be used up")
    return sum(numbers) / len(numbers)


def _evaluate_mode(supernet: Supernet, *, batch_statistics: bool) -> None:
    """Put a model into evaluation mode, except for the batch norms that would train, if they use batch statistics."""
    set_training(supernet.model)
    norms = [m for m in supernet.paths if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    supernet.model.eval()
    if batch_statistics:
        hold_in_training(norms)


def rerank(
    oneshot: OneShot | SearchResult,
    batches: Iterable[Batch],
    judge: Judge,
    *,
    k: int = 20,
    recalibrate_on: Iterable[Batch] | None = None,
    progress: bool = True,
) -> list[Architecture]:
    """Score the k most likely feasible architectures of a search with the shared weights, and sort them by score.

    This is the second stage of a search: it chooses between the remaining likely architectures by more batches than one
    step has. Call it in all processes.

    Args:
        oneshot: A search, usually at its end, or its result.
        batches: The batches on which each architecture is scored: a list, a DataLoader, or any iterable that starts
            again.
        judge, recalibrate_on: As in `score`.
        k: The number of architectures, at least 1.
        progress: On rank 0, show a progress bar on stderr after a second, or a line for every tenth if it is no
            terminal.

    Returns:
        At most k architectures, each with its `score`, the best first.

    Raises:
        ValueError: An argument does not fit.

    >>> from asng import ASNG, nas
    >>> model = nn.Sequential(nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}), nn.Linear(2, 1))
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss_fn = lambda net, x: (net[0](x) - x).abs().mean()
    >>> oneshot = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), sgd, loss_fn)
    >>> best, second = nas.rerank(oneshot, [torch.ones(4, 2)], loss_fn)
    >>> best.values, best.score
    ({'act': 'relu'}, 0.0)
    """
    oneshot = oneshot_of(oneshot)
    check_judge(judge)
    _check_repeatable(batches, recalibrate_on)
    with _progress_on_rank0("rerank", progress) as report:
        likely, scores = top(oneshot, k), list[float]()
        for architecture in likely:
            scores.append(_shared_score(oneshot, architecture.values, batches, judge, recalibrate_on))
            report(len(scores) / len(likely))
    order = sorted(range(len(likely)), key=lambda index: (math.isnan(scores[index]), scores[index]))
    return [likely[index]._replace(score=scores[index]) for index in order]


def _progress_on_rank0(title: str, progress: bool) -> AbstractContextManager[Progress]:
    return delayed_progress_bar(title, wanted=check_bool(progress, "progress") and _distributed.is_rank0())


def _shared_score(oneshot: OneShot, values: Values, batches: Any, judge: Judge, recalibrate_on: Any) -> float:
    """A score that is the same in all processes."""
    number: float | None = None
    if _distributed.is_rank0():
        with oneshot._autocast():
            number = _score(oneshot.supernet, oneshot.model, values, batches, judge, recalibrate_on)
    return float(_distributed.broadcast_object(number))


def _check_repeatable(batches: Any, recalibrate_on: Any) -> None:
    for given in (batches,) if recalibrate_on is None else (batches, recalibrate_on):
        check_batches(given, "batches")
        if isinstance(given, Iterator):
            kind = type(given).__name__
            raise ValueError(f"the batches are an iterator ({kind}), which ends after one architecture; pass a list")


def front(
    oneshot: OneShot | SearchResult,
    measures: Sequence[Measure],
    batches: Iterable[Batch],
    judge: Judge,
    *,
    k: int = 50,
    recalibrate_on: Iterable[Batch] | None = None,
    progress: bool = True,
) -> Front:
    """Find the Pareto front of score and costs among architectures with the shared weights of a search.

    Of the k architectures, a tenth are the most likely ones, and three tenths are random. Most of the others differ in
    one decision from a member of the front so far, preferably where it is sparse. All meet the limits. Architectures
    that became unlikely during the search are trained less, so their scores are worse than they could be. Call it in
    all processes.

    Args:
        oneshot: A search, usually at its end, or its result.
        measures: `parameters`, `Flops`, `Latency`, or functions (model, values) -> number, lower is better.
        batches: The batches on which each architecture is scored: a list, a DataLoader, or any iterable that starts
            again.
        judge, recalibrate_on: As in `score`.
        k: The maximum number of architectures to score, at least 1.
        progress: As in `rerank`.

    Returns:
        The front.

    Raises:
        ValueError: An argument does not fit, or no architecture was found that meets the limits.

    >>> from asng import ASNG, nas
    >>> model = nas.Linear(2, nas.Width("width", [1, 2, 4]))
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss_fn = lambda net, x: net(x).mean() * 0 + 1 / net(x).shape[1]
    >>> oneshot = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), sgd, loss_fn)
    >>> nas.front(oneshot, [nas.parameters], [torch.ones(1, 2)], loss_fn)
    score  parameters  probability  values
    1      3           0.33         {'width': 1}
    0.5    6           0.33         {'width': 2}
    0.25   12          0.33         {'width': 4}
    """
    oneshot = oneshot_of(oneshot)
    k = min(check_int(k, "k", min=1), sys.maxsize)  # more than there are anyway
    check_judge(judge)
    _check_repeatable(batches, recalibrate_on)
    if not isinstance(measures, (list, tuple)) or not measures:
        raise ValueError(f"a front needs a list of measures, such as [nas.parameters], got {shorten(measures)}")
    limits = [Limit(measure, 1.0) for measure in measures]  # which check them and have their names
    supernet, found = oneshot.supernet, dict[str, Architecture]()
    with _progress_on_rank0("front", progress) as report:
        for values in _proposals(oneshot, k, found):
            key = supernet.network_key(values)
            if key in found or not oneshot.is_feasible(values):
                continue
            number = _shared_score(oneshot, values, batches, judge, recalibrate_on)
            costs = measure_all(supernet, limits, values)
            found[key] = architecture_of(oneshot, values)._replace(score=number, costs=costs)
            report(len(found) / k)
            if len(found) == k:
                break
    if not found:
        raise ValueError("no architecture was found that meets the limits; widen them")
    points = sorted(_find_nondominated(list(found.values())), key=lambda point: (point.costs, point.score))
    others = [a for a in found.values() if all(a is not point for point in points)]
    return Front(tuple(points), tuple(others), tuple(limit.name for limit in limits))


def _proposals(oneshot: OneShot, k: int, found: Mapping[str, Architecture]) -> Iterator[dict[str, Any]]:
    """Likely architectures, random ones, then variations of the front of those that were found."""
    yield from (architecture.values for architecture in top(oneshot, max(1, k // 10)))
    space, generator = oneshot.supernet.space, np.random.default_rng(0)
    random_search = RandomSearch(space, seed=0)  # for variables without a list of values
    last_size = last_growth = 0
    for attempt in range(ATTEMPTS * k):
        if len(found) > last_size:
            last_size, last_growth = len(found), attempt
        if attempt - last_growth > MAX_IDLE:
            return
        values = random_search.ask(1)[0].values
        for name, variable in space.items():
            if (choices := variable.values()) is not None:
                values[name] = choices[int(generator.integers(len(choices)))]
        points = _find_nondominated(list(found.values()))
        if points and len(found) >= 0.4 * k and attempt % 10:  # some more random ones: variations may lead nowhere
            parent = points[generator.choice(len(points), p=_gaps(points))]
            active = [name for name in space if name not in parent.inactive]
            name = active[generator.integers(len(active))]
            values = {**parent.values, name: values[name]}
        yield values


def _gaps(points: Sequence[Architecture]) -> Array:
    """For each point of a front the distance to its two nearest, relative to the sum: large where it is sparse."""
    numbers = np.array([(point.score, *point.costs) for point in points], dtype=float)
    span = np.ptp(numbers, axis=0)
    numbers /= np.where(span > 0, span, 1)
    distances = np.abs(numbers[:, None] - numbers).max(-1)
    gaps: Array = np.sort(distances, axis=1)[:, 1:3].sum(-1) + 1e-9
    gaps /= gaps.sum()
    return gaps


def _find_nondominated(architectures: Sequence[Architecture]) -> list[Architecture]:
    """The architectures of finite numbers that no other dominates (as good in everything, better in something)."""
    numbers = np.array([(a.score, *a.costs) for a in architectures], dtype=float)
    if not len(numbers):
        return []
    numbers[~np.isfinite(numbers)] = math.inf
    as_good = (numbers[:, None] <= numbers).all(-1)  # [i, j]: i is as good as j in everything
    better = (numbers[:, None] < numbers).any(-1)
    is_best = ~(as_good & better).any(0) & np.isfinite(numbers).all(-1)
    return [architecture for architecture, best in zip(architectures, is_best, strict=True) if best]
