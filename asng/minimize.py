"""Black-box minimization: a loop around ask and tell, with the defaults of black boxes."""

import math
import re
import sys
import time
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
from asng._evaluation import Evaluator, ExecutorLost, InExecutor
from asng._progress import Progress, no_progress, progress_bar
from asng._signals import sigterm_as_interrupt
from asng.space import Variable

FORMAT = "asng minimize 3"
MAX_FAILED_POPULATIONS = 5  # in a row
MAX_SHOWN = 6  # values in a text
MAX_WARNED = 3  # kinds of errors
NUMBER = re.compile(r"0x[0-9a-f]+|-?[0-9][-+.0-9e]*")  # errors of one reason differ in sizes, losses, addresses
FIRST_REPORT, REPORT_INTERVAL = 1.0, 0.2  # seconds: quick minimizations show no progress bar


class Result(NamedTuple):
    """The result of `minimize`.

    Attributes:
        values: Those with the lowest loss, by name.
        loss: Their loss.
        mode: The most likely values at the end, which may be better where the losses are noisy.
        evaluations: How many were made.
        stopped: Why it ended: "evaluations" (all were made), "target", "converged" (the distribution has been as narrow
            as it may become for a while), "nothing new" (all values are known, or those of ten populations),
            "infeasible" (a thousand populations without a feasible new candidate), "callback", "interrupted" (Ctrl-C,
            SIGTERM or SIGHUP), "failures" (five populations in a row failed) or "executor" (it broke).
        history: All evaluations, in the order in which they ended.
        optimizer: Can be inspected or continued. After restarts it is the one that found the lowest loss.

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


class EvaluationError(RuntimeError):
    """No evaluation gave a finite loss; `__cause__` is what the first one raised, if it was in this process.

    Attributes:
        history: The evaluations, with their errors.
        optimizer: The optimizer, as far as it came.

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

    An evaluation that raises, dies, takes longer than `timeout`, or returns None, NaN, -infinity or no number is one
    evaluation with the worst loss; a warning says why, once for reasons that differ in numbers alone, and of three
    reasons at most.

    Args:
        f: Called with a dict of values; returns a number, lower is better. Where not all values had an effect, it may
            return (number, names of those that had): what the others were is then not learned from.
        space: Names and variables.
        evaluations: The most calls of f, at least 2.
        population_size: Candidates compared at a time; by default 4 + floor(3 ln n) for n variables with more than one
            value, and of few evaluations 0.6 times their square root, in pairs, but 4 at least.
        executor: Any concurrent.futures executor, such as a ProcessPoolExecutor or that of a Dask client. All its
            workers are busy all the time, without waiting for the slowest of a population; so the result depends on
            who is faster, and the same seed may not repeat it. For executors other than those of the standard library,
            `population_size` evaluations are in flight.
        seed: An integer or a SeedSequence; None for a random one.
        initial: Prior knowledge by name, as in `ASNG`.
        noisy: Whether f may return another loss for the same values. If not, values that were evaluated before have
            their stored loss, which costs no evaluation.
        limits: Functions of the values; values are feasible where all return 0 or less. They are called in order up to
            the first violated one. Infeasible candidates are not evaluated, and rank behind all feasible ones by
            violation. What a limit or the callback raises ends the minimization.
        callback: Called with every `Evaluation`; ends the minimization by returning True.
        checkpoint: A file that the state is saved to, after every evaluation but at most once a second, and at the end.
            The same call continues from it, also with more evaluations, with the population that it began with. By
            default nothing is saved.
        target: Ends the minimization at a loss that is not above it.
        timeout: Seconds that an evaluation by an executor may take, without the start of its process; by default any.
        restarts: How often to start over, with twice the population (1,000 at most), once converged or without
            anything new; by default as often as evaluations allow, and never where losses are noisy. In a space of
            up to 10,000 values the last restart evaluates those that are left, in random order.
        progress: Show a progress bar after a second, if stderr is a terminal; and a line where it continues.

    Returns:
        The best values, their loss, the mode, why it stopped, all evaluations, and the optimizer.

    Raises:
        ValueError: An argument does not fit, a limit returns NaN or no number, or the checkpoint is of another
            minimization, in use or damaged.
        OSError: The checkpoint cannot be written; before the first evaluation, except for a disk that becomes full.
        EvaluationError: No evaluation gave a finite loss.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP came before the first finite loss.

    >>> import asng
    >>> space = {"op": asng.Categorical(["add", "mul"]), "n": asng.Integer(1, 9)}
    >>> asng.minimize(lambda v: abs(v["n"] - 7) + (v["op"] == "add"), space, evaluations=100, seed=0)
    Result(values={'op': 'mul', 'n': 7}, loss=0, evaluations=18, stopped='nothing new')
    """
    evaluations = check_int(evaluations, "evaluations", min=2)
    _check_callables(f, space, executor, limits, callback)
    run = BlackBox(space, evaluations, population_size, initial, seed, noisy, limits, restarts)
    target = -math.inf if target is None else check_float(target, "target", gt=-math.inf)
    with (
        sigterm_as_interrupt(),
        closing(_make_evaluator(f, executor, timeout)) as evaluator,
        _open_checkpoint(run, checkpoint) as save,
        _delayed_progress(progress) as report,
    ):
        if progress and 0 < len(run.history) < evaluations:
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
    return _result(run, stopped)


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
        if run.best is not None and run.best.loss <= target:
            return "target"
        slots = run.population_size  # where the executor does not tell its workers
        while not run.end_reason and len(run.history) + len(run.trials) < evaluations and evaluator.has_room(slots):
            trial = run.next_trial()
            if trial is not None:
                evaluator.submit(trial, dict(trial.candidate.values))
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
                shown = f"evaluation {number} of {_format_values(evaluation.values)}"
                rest = "; other errors are in the history alone" if len(warned) == MAX_WARNED else ""
                warnings.warn(f"{shown} failed and ranks last: {evaluation.error}{rest}", stacklevel=3)
            returned = None if callback is None else callback(evaluation)
            is_over |= isinstance(returned, (bool, np.bool_)) and bool(returned)
        best = "" if run.best is None else f", best {run.best.loss:g}"
        report(len(run.history) / evaluations, f"evaluation {len(run.history)} of {evaluations}{best}")
        save()
        if is_over:
            return "callback"
        if run.failures_in_row >= MAX_FAILED_POPULATIONS * run.population_size:
            return "failures"


def _result(run: BlackBox, stopped: str) -> Result:
    if run.best is None:
        n, errors = len(run.history), [each.error for each in run.history if each.error]
        why = "the executor broke" if stopped == "executor" else f"no candidate met the limits{_describe_nearest(run)}"
        if errors:
            why = f"{len(errors)} failed, the first one: {errors[0]}"
        elif n:
            why = "all losses were infinite"
        error = EvaluationError(f"none of {n} evaluations gave a finite loss; {why}")
        error.history, error.optimizer = run.history, run.optimizer
        raise error from run.first_cause
    if stopped == "failures":
        why = run.history[-1].error or "the loss is infinite"
        warnings.warn(f"minimize ends early: the last {run.failures_in_row} evaluations failed: {why}", stacklevel=3)
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


@contextmanager
def _delayed_progress(progress: bool) -> Iterator[Progress]:
    """A progress bar that appears after a while."""
    if not check_bool(progress, "progress"):
        yield no_progress
        return
    with progress_bar("minimize") as bar:
        next_report = time.monotonic() + FIRST_REPORT

        def report(fraction: float, text: str = "", *, line: bool = False) -> None:
            nonlocal next_report
            if time.monotonic() >= next_report:
                bar(fraction, text, line=line)
                next_report = time.monotonic() + REPORT_INTERVAL

        yield report


def _format_values(values: Mapping[str, Any]) -> str:
    """Values as text, cut to the first few."""
    texts = {name: f"{v:.6g}" if isinstance(v, float) else str(repr(v))[:40] for name, v in values.items()}
    shown = [f"{name!r}: {text}" for name, text in list(texts.items())[:MAX_SHOWN]]
    return f"{{{', '.join(shown + ['...'] * (len(values) > MAX_SHOWN))}}}"


def _check_callables(f: Any, space: Any, executor: Any, limits: Any, callback: Any) -> None:
    if not callable(f):
        raise ValueError(f"minimize takes a function of the values first, then the space; got {str(f)[:80]} first")
    _check_takes_values(f, "f", space, "def loss(values): return f")
    methods = ("submit", "shutdown")
    if executor is not None and (isinstance(executor, type) or not all(hasattr(executor, each) for each in methods)):
        raise ValueError(
            f"executor must be a concurrent.futures executor, such as a ThreadPoolExecutor, got {executor!r}"
        )
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
