"""Black-box minimization: a loop around ask and tell, with the defaults of black boxes."""

import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from asng._asktell import Optimizer, Seed
from asng._blackbox import BlackBox, Evaluation, Limits, Trial, limit_name
from asng._checks import check_bool, check_float, check_int, unfit_signature
from asng._covariance import black_box_optimizer, default_population_size
from asng._evaluation import Evaluator, ExecutorLost, InExecutor
from asng._progress import Progress, delayed_progress_bar
from asng._signals import sigterm_as_interrupt
from asng.space import Variable, family_of

FORMAT = "asng minimize 6"
MAX_SHOWN, MAX_WIDTH = 6, 40  # values in a line of text, and characters of one
MAX_WARNED = 3  # kinds of errors
NUMBER = re.compile(r"0x[0-9a-f]+|-?[0-9][-+.0-9e]*")  # errors of one reason differ in sizes, losses, addresses


class Result(NamedTuple):
    """The result of `minimize`.

    Attributes:
        values: The values with the lowest loss, by name.
        loss: The lowest loss.
        mode: The most likely values at the end, which may be better if the losses are noisy, and may violate a limit.
        evaluations: The number of evaluations.
        stopped: The reason: "evaluations" (all were made), "target", "converged" (the distribution has been about as
            narrow as possible for a while), "nothing new" (all values are known, or those of ten consecutive
            populations), "infeasible" (a thousand populations without a new feasible candidate), "callback",
            "interrupted" (Ctrl-C, SIGTERM or SIGHUP), "failures" (five consecutive populations failed; `noisy` does not
            raise this number of evaluations) or "executor" (the executor broke).
        history: All evaluations, in the order in which they ended.
        optimizer: The optimizer; after restarts the one that found the lowest loss. It can continue.

    >>> import asng
    >>> result = asng.minimize(lambda values: values["n"], {"n": asng.Integer(1, 3)}, evaluations=20, seed=0)
    >>> result
    Result(values={'n': 1}, loss=1, evaluations=3, stopped='nothing new')
    >>> result.history[0]
    Evaluation(values={'n': 2}, loss=2.0, error='')
    """

    values: dict[str, Any]
    loss: float
    mode: dict[str, Any]
    evaluations: int
    stopped: str
    history: list[Evaluation]
    optimizer: Optimizer

    def __repr__(self) -> str:
        """Short, without mode, history and optimizer."""
        shown = f"values={_format_values(self.values)}, loss={self.loss:g}"
        return f"Result({shown}, evaluations={self.evaluations}, stopped={self.stopped!r})"

    def __str__(self) -> str:
        """A line for each value, below the loss, the number of evaluations and the reason to stop."""
        width = max(map(len, self.values))
        lines = [f"{name:<{width}}  {_format_value(value)}" for name, value in self.values.items()]
        return "\n".join([f"loss {self.loss:g}, {self.evaluations:,} evaluations, stopped: {self.stopped}", *lines])


class EvaluationError(RuntimeError):
    """No evaluation gave a finite loss; `__cause__` is the exception of the first one, if it was in this process.

    Attributes:
        history: The evaluations, with their errors.
        optimizer: The optimizer at that time.

    >>> import asng
    >>> import warnings
    >>> warnings.simplefilter("ignore")
    >>> try:
    ...     asng.minimize(lambda values: 1 / 0, {"n": asng.Integer(1, 9)}, evaluations=3, seed=0)
    ... except asng.EvaluationError as error:
    ...     print(error)
    none of 3 evaluations gave a finite loss; 3 failed, the first one: ZeroDivisionError: division by zero
    """

    history: list[Evaluation]
    optimizer: Optimizer


def minimize(
    f: Callable[[dict[str, Any]], Any],
    space: Mapping[str, Variable],
    *,
    evaluations: int,
    population_size: int | None = None,
    executor: Executor | None = None,
    seed: Seed = None,
    initial: Mapping[str, Any] | None = None,
    noisy: bool = False,
    limits: Limits = (),
    callback: Callable[[Evaluation], Any] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    target: float | None = None,
    timeout: float | None = None,
    restarts: int | None = None,
    progress: bool = True,
) -> Result:
    """Minimize a black box over a space. Ctrl-C, SIGTERM and SIGHUP end it early with the result so far.

    An evaluation fails if it raises an exception, dies, exceeds `timeout`, or returns None, NaN, -infinity or something
    other than a number. It counts as one evaluation with the worst loss. At most three warnings show the errors; errors
    that differ only in numbers count as the same.

    Args:
        f: Called with a dict of values, whose lists, dicts, sets and arrays are copies; returns a number, lower is
            better. If some values had no effect, it may return (number, names of those that had): the update then
            ignores the other choices, and takes the other numbers as drawn at their mean.
        space: Names and variables.
        evaluations: The maximum number of calls of f, at least 2.
        population_size: Candidates per update; by default 4 + floor(3 ln n) for n variables with more than one value,
            or, if that is smaller, 0.6 times the square root of `evaluations`, rounded down to an even number, at least
            4. If `noisy`, at least a fortieth of `evaluations`, up to 1,000; if the callback ends the minimization, let
            `evaluations` be the number to expect.
        executor: Any concurrent.futures executor, such as a ProcessPoolExecutor or that of a Dask client. An idle
            worker gets the next candidate at once, without a barrier. The result therefore depends on the order in
            which evaluations end, and the same seed may not repeat it. Executors other than those of the standard
            library get `population_size` evaluations at a time.
        seed: An integer or a SeedSequence; None for a random one.
        initial: Priors by name, as in `ASNG`.
        noisy: Whether f may return different losses for the same values. If not, repeated values reuse their stored
            loss, which costs no evaluation.
        limits: Functions of the values; values are feasible if all return 0 or less. They are called in order, up to
            the first violated one. Infeasible candidates are not evaluated, and rank behind all feasible ones by
            violation. An exception in a limit or in the callback ends the minimization.
        callback: Called with every `Evaluation`; ends the minimization by returning True.
        checkpoint: Path of a file for the state, saved after every evaluation (at most once a second, less often if
            saving would take more than 5% of the time) and at the end. The same call continues from it, also with more
            evaluations, with its original population size. By default nothing is saved.
        target: Stop at a loss of at most this number.
        timeout: Maximum seconds of one evaluation by an executor, without the start of its process; by default no
            limit.
        restarts: Maximum number of restarts, each with twice the population (at most 1,000), after convergence or when
            nothing new is found; by default no limit, or 0 if `noisy`. In a space of up to 10,000 values the last
            restart evaluates all remaining ones, in random order.
        progress: Show a progress bar on stderr after a second, or a line every minute if stderr is no terminal; and
            print where a checkpoint continues.

    Returns:
        The best values, their loss, the mode, the reason to stop, all evaluations, and the optimizer.

    Raises:
        ValueError: An argument does not fit, a limit returns NaN or no number, or the checkpoint is of another
            minimization, in use or damaged.
        OSError: The checkpoint cannot be written. Raised before the first evaluation, unless the disk becomes full.
        EvaluationError: No evaluation gave a finite loss.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP came before the first finite loss.

    >>> import asng
    >>> space = {"op": asng.Categorical(["add", "mul"]), "n": asng.Integer(1, 9)}
    >>> asng.minimize(lambda v: abs(v["n"] - 7) + (v["op"] == "add"), space, evaluations=100, seed=0)
    Result(values={'op': 'mul', 'n': 7}, loss=0, evaluations=18, stopped='nothing new')
    """
    evaluations, progress = check_int(evaluations, "evaluations", min=2), check_bool(progress, "progress")
    _check_callables(f, space, executor, limits, callback)
    run = BlackBox(space, evaluations, population_size, initial, seed, noisy, limits, restarts)
    target = -math.inf if target is None else check_float(target, "target", gt=-math.inf)
    with (
        sigterm_as_interrupt(),
        closing(_make_evaluator(f, executor, timeout)) as evaluator,
        _open_checkpoint(run, checkpoint) as save,
        delayed_progress_bar("minimize", wanted=progress) as report,
    ):
        is_over = _reason_to_end(run, target) or run.end_reason
        if progress and 0 < len(run.history) < evaluations and not is_over:
            sys.stderr.write(f"minimize: continues after evaluation {len(run.history)} of {evaluations}\n")
        try:
            stopped = _evaluate(run, evaluator, evaluations, target, callback, save, report)
        except KeyboardInterrupt:
            if run.best is None:
                raise
            stopped = "interrupted"
        except ExecutorLost as error:
            warnings.warn(f"minimize ends early, since the executor broke: {error}", stacklevel=2)
            stopped = "executor"
    run.finish()
    return _result(run, stopped, is_saved=checkpoint is not None)


def minimizer(
    space: Mapping[str, Variable],
    *,
    evaluations: int | None = None,
    population_size: int | None = None,
    noisy: bool = False,
    initial: Mapping[str, Any] | None = None,
    seed: Seed = None,
) -> Optimizer:
    """The optimizer of `minimize`, for a loop of your own around its `ask` and `tell`.

    For black boxes it is better than `ASNG`, whose defaults are those of one-shot search. `minimize` also restarts it,
    evaluates equal values once, and, of choices alone, tells the best of the last populations again.

    Args:
        space: Names and variables.
        evaluations: How many there will be, from which the population follows as in `minimize`; by default it is that
            of many evaluations without noise.
        population_size: Candidates per ask, instead of that.
        noisy: Whether the same values may have different losses.
        initial: Priors by name, as in `ASNG`.
        seed: An integer or a SeedSequence; None for a random one.

    Returns:
        An optimizer with `ask`, `tell`, `mode`, `best` and `state_dict`, as `ASNG` has them.

    Raises:
        ValueError: An argument does not fit; the message names it.

    >>> import asng
    >>> optimizer = asng.minimizer({"op": asng.Categorical(["add", "mul"]), "x": asng.Real(-5, 5)}, seed=0)
    >>> for _ in range(60):
    ...     candidates = optimizer.ask()
    ...     optimizer.tell(candidates, [abs(c.values["x"] - 2) + (c.values["op"] == "add") for c in candidates])
    >>> optimizer.mode()["op"], round(optimizer.mode()["x"], 3)
    ('mul', 2.0)
    """
    noisy = check_bool(noisy, "noisy")
    if evaluations is not None:
        evaluations = check_int(evaluations, "evaluations", min=2)
    family_of(space)  # checks the space before its variables are counted
    if population_size is None:
        population_size = default_population_size(space, evaluations, noisy=noisy)
    return black_box_optimizer(space, noisy=noisy, population_size=population_size, initial=initial, seed=seed)


def _make_evaluator(f: Callable[..., Any], executor: Executor | None, timeout: float | None) -> Evaluator[Trial]:
    if executor is not None:
        return InExecutor(f, executor, timeout=math.inf if timeout is None else check_float(timeout, "timeout"))
    if timeout is not None:
        raise ValueError(f"timeout={timeout!r} needs an executor, such as ProcessPoolExecutor(1): f cannot be stopped")
    return Evaluator(f)


def _evaluate(
    run: BlackBox,
    evaluator: Evaluator[Trial],
    evaluations: int,
    target: float,
    callback: Callable[[Evaluation], Any] | None,
    save: Callable[[], None],
    report: Progress,
) -> str:
    """Evaluate until there is a reason to stop, and return it."""
    warned: set[str] = set()
    while True:
        if reason := _reason_to_end(run, target):
            return reason
        slots = run.population_size  # where the executor does not tell its workers
        while not run.end_reason and len(run.history) + len(run.trials) < evaluations and evaluator.has_room(slots):
            trial = run.next_trial()
            if trial is not None:
                evaluator.submit(trial, run.copy(trial.candidate.values))
            elif run.is_waiting:  # what is drawn would be the same until an evaluation ends
                break
        if not run.trials:
            return run.end_reason or "evaluations"
        is_over = False
        done = [run.record(trial, outcome) for trial, outcome in evaluator.wait()]  # all, as callbacks may raise
        for number, evaluation in enumerate(done, len(run.history) - len(done) + 1):
            reason = NUMBER.sub("", evaluation.error)
            if reason and reason not in warned and len(warned) < MAX_WARNED:
                warned.add(reason)
                shown = f"evaluation {number}, {_format_values(evaluation.values)},"
                rest = "; the history has all other errors" if len(warned) == MAX_WARNED else ""
                warnings.warn(f"{shown} failed and ranks last: {evaluation.error}{rest}", stacklevel=3)
            returned = None if callback is None else callback(evaluation)
            is_over |= isinstance(returned, (bool, np.bool_)) and bool(returned)
        best = "" if run.best is None else f", best {run.best.loss:g}"
        report(len(run.history) / evaluations, f"evaluation {len(run.history)} of {evaluations}{best}")
        save()
        if is_over:
            return "callback"


def _reason_to_end(run: BlackBox, target: float) -> str:
    """Why nothing more is to be evaluated although something is left, or an empty text."""
    if run.best is not None and run.best.loss <= target:
        return "target"
    return "failures" if run.failures else ""


def _result(run: BlackBox, stopped: str, *, is_saved: bool) -> Result:
    cure = "; to continue, call it again with more evaluations" if stopped == "failures" and is_saved else ""
    if run.best is None:
        n, errors = len(run.history), [each.error for each in run.history if each.error]
        why = "the executor broke" if stopped == "executor" else f"no candidate met the limits{_describe_nearest(run)}"
        if errors:
            why = f"{len(errors)} failed, the first one: {errors[0]}"
        elif n:
            why = "all losses were infinite"
        error = EvaluationError(f"none of {n} evaluations gave a finite loss; {why}{cure}")
        error.history, error.optimizer = run.history, run.optimizer
        raise error from run.first_cause
    if stopped == "failures":
        text = f"the last {run.failures} evaluations failed: {run.history[-1].error}{cure}"
        warnings.warn(f"minimize ends early: {text}", stacklevel=3)
    optimizer = run.best_optimizer
    best = run.best
    return Result(best.values, best.loss, optimizer.mode(), len(run.history), stopped, run.history, optimizer)


def _describe_nearest(run: BlackBox) -> str:
    """Which limit the nearest infeasible candidate missed; nothing where none was drawn since the run was loaded."""
    if run.nearest is None:
        return ""
    limit, amount, values = run.nearest
    return f"; the nearest, {_format_values(values)}, missed limit {limit} by {amount:g}"


@contextmanager
def _open_checkpoint(run: BlackBox, path: str | PathLike[str] | None) -> Iterator[Callable[[], None]]:
    """Restore a run from its checkpoint, yield a function that saves it from time to time, and save it at the end."""
    if path is None:
        yield lambda: None
        return
    from asng._json_checkpoint import JsonCheckpoint  # loads files and compressors

    with closing(JsonCheckpoint(path, FORMAT, run.identity())) as file:
        file.load(run.load_state_dict)
        try:
            yield lambda: file.save_if_due(run.state_dict)
        except Exception as error:  # of a limit or the callback
            if run.history:
                error.add_note(
                    f"the {len(run.history)} evaluations so far are in {path}: the same call continues there"
                )
            raise
        finally:
            if run.is_whole:
                file.save(run.state_dict())


def _format_values(values: Mapping[str, Any]) -> str:
    """Values as text, cut to the first few."""
    shown = [f"{name!r}: {_format_value(value)}" for name, value in list(values.items())[:MAX_SHOWN]]
    return f"{{{', '.join(shown + ['...'] * (len(values) > MAX_SHOWN))}}}"


def _format_value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(repr(value))[:MAX_WIDTH]


def _check_callables(f: Any, space: Any, executor: Any, limits: Any, callback: Any) -> None:
    if not callable(f):
        raise ValueError(f"minimize takes a function of the values first, then the space; got {str(f)[:80]} first")
    _check_takes_values(f, "f", space, "def loss(values): return f")
    methods = ("submit", "shutdown")
    if executor is not None and (isinstance(executor, type) or not all(hasattr(executor, each) for each in methods)):
        raise ValueError(
            f"executor must be a concurrent.futures executor, such as a ThreadPoolExecutor, got {executor!r}"
        )
    if hasattr(executor, "get_executor"):  # its futures are not those of concurrent.futures
        raise ValueError(f"executor is a client of Dask; pass client.get_executor(pure=False), got {executor!r}")
    if not isinstance(limits, (list, tuple)) or not all(map(callable, limits)):
        raise ValueError(f"limits must be a list of functions of the values, got {limits!r}")
    for limit in limits:
        name = limit_name(limit)
        _check_takes_values(limit, f"limit {name}", space, f"def limit(values): return {name}")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be a function of an evaluation, got {callback!r}")
    if callback is not None and (signature := unfit_signature(callback, [None])) is not None:
        raise ValueError(
            f"callback is called with one evaluation, but takes {signature}; give it that one argument, "
            "such as lambda evaluation: evaluation.loss < 0.1"
        )


def _check_takes_values(function: Any, name: str, space: Any, wrapper: str) -> None:
    if (signature := unfit_signature(function, [{}])) is not None:
        unpacks = isinstance(space, Mapping) and unfit_signature(function, [], space) is None
        call = "(**values)" if unpacks else "(values, ...)"
        raise ValueError(f"{name} is called with one dict of values, but takes {signature}; wrap it: {wrapper}{call}")
