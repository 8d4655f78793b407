"""Evaluations of a black box, in this process or by an executor. A failure is an outcome, not an exception."""

import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Hashable, Set
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import clear_frames
from typing import Any, Generic, NamedTuple, TypeVar

from asng._checks import as_float

Values = dict[str, Any]
TrialT = TypeVar("TrialT", bound=Hashable)
MAX_TEXT = 200  # characters of an error
MIN_POLL, MAX_POLL = 0.01, 3600.0  # seconds between two looks at running evaluations
KILLED = "KilledWorker"  # Dask's error for an evaluation whose workers died several times, by whatever cause
UNKNOWN_FUNCTION = "its processes end before they call the function, which must be in a file that they can import"
MAX_START = 120.0  # seconds that a process may take to start and import the function, besides the timeout


class CallResult(NamedTuple):
    """The loss of an evaluation, infinity where it failed; why it failed, or an empty text; what it raised.

    `active` are the names of the variables that had an effect, or None for all.
    """

    loss: float
    error: str = ""
    cause: BaseException | None = None
    active: frozenset[str] | None = None


def to_call_result(returned: Any) -> CallResult:
    """Check what a black box returned, a loss or (loss, active); infinity is a loss, the worst.

    >>> to_call_result(2).loss, to_call_result(math.nan).error, to_call_result(None).error
    (2.0, 'it returned nan', 'it must return a number, got None')
    """
    active = None
    try:
        if isinstance(returned, tuple) and len(returned) == 2:
            returned, active = returned[0], _to_names(returned[1])
        loss = as_float(returned, "it must return a number")
    except ValueError as error:
        return CallResult(math.inf, str(error)[:MAX_TEXT])
    return CallResult(loss, active=active) if loss > -math.inf else CallResult(math.inf, f"it returned {loss}")


def _to_names(active: Any) -> frozenset[str]:
    if not isinstance(active, (Set, list, tuple)) or not all(isinstance(name, str) for name in active):
        raise ValueError(f"it must return a number, or a number and a set of names, got {active!r} after the number")
    return frozenset(active)


def failure(error: BaseException) -> CallResult:
    """The outcome of an evaluation that raised, without its local variables; Ctrl-C is raised again."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    clear_frames(error.__traceback__)  # which may hold much memory
    name = type(error).__name__
    try:
        text = (str(error).splitlines() or [""])[0]
    except Exception:  # of the user's own
        text = ""
    return CallResult(math.inf, f"{name}: {text}"[:MAX_TEXT] if text else name, error)


class Evaluator(Generic[TrialT]):
    """One evaluation after the other, in this process.

    It takes trials while `has_room`; `wait` returns those that are done, at least one. Both may raise ExecutorLost.
    """

    def __init__(self, f: Callable[[Values], Any]) -> None:
        self._f = f
        self._done: list[tuple[TrialT, CallResult]] = []

    def has_room(self, slots: int) -> bool:
        return not self._done

    def submit(self, trial: TrialT, values: Values) -> None:
        try:
            outcome = to_call_result(self._f(values))
        except (Exception, SystemExit) as error:
            outcome = failure(error)
        self._done.append((trial, outcome))

    def wait(self) -> list[tuple[TrialT, CallResult]]:
        done, self._done = self._done, []
        return done

    def close(self) -> None: ...


class ExecutorLost(Exception):
    """An executor takes no more work and cannot be made again."""


@dataclass(eq=False)
class Flight(Generic[TrialT]):
    """An evaluation that an executor was given."""

    trial: TrialT
    values: Values
    submitted: float = 0.0
    started: float | None = None  # when it was first seen running; some executors never say
    sign: Path | None = None  # a file that a process leaves when it begins


class InExecutor(Evaluator[TrialT]):
    """Evaluations in an executor, one per worker at a time, or `slots` where the executor does not tell its workers.

    A dead worker breaks a pool of processes and everything in flight with it. The pool is made again, and the
    evaluations in flight are repeated one at a time, so that only the one that breaks the new pool, too, fails. So are
    those that a Dask cluster gives up, since one that only waited on a worker that died may be among them, and those
    that were canceled.

    The time of an evaluation counts from when it is seen running. Where an executor does not say what runs, it counts
    from the last end of any evaluation, and only the oldest one is given up. A pool of processes calls running what
    waits for a process to start, so its processes leave a file when they begin an evaluation. Without any such file
    they cannot load the function.
    """

    def __init__(self, f: Callable[[Values], Any], executor: Executor, *, timeout: float) -> None:
        workers = getattr(executor, "_max_workers", None)  # of both executors of the standard library
        super().__init__(f)
        self._executor, self._timeout = executor, timeout
        self._workers = workers if isinstance(workers, int) and workers > 0 else None
        self._flights: dict[Future[Any], Flight[TrialT]] = {}
        self._suspects: deque[Flight[TrialT]] = deque()  # one of them broke the executor
        self._hung: list[Future[Any]] = []  # given up, but each still occupies a worker
        self._isolating = False
        self._last_sign = time.monotonic()  # of life: when an evaluation ended
        self._has_taken = self._replaced = False
        self._lost: ExecutorLost | None = None
        self._signs = None
        if _is_process_pool(executor):
            _check_picklable(f)
            self._signs = TemporaryDirectory(prefix="asng-")
        self._sign_names = map(str, count())

    def has_room(self, slots: int) -> bool:
        if self._suspects or self._isolating:
            return False
        slots = self._workers or slots
        self._hung = [future for future in self._hung if not future.done()]
        if len(self._hung) >= slots:
            self._lost = ExecutorLost("all of its workers hang")
        if self._lost is not None and not self._flights:
            raise self._lost
        return self._lost is None and len(self._flights) + len(self._hung) < slots

    def submit(self, trial: TrialT, values: Values) -> None:
        self._start(Flight(trial, values))

    def wait(self) -> list[tuple[TrialT, CallResult]]:
        while True:
            if self._suspects and not self._flights and self._lost is None:
                self._isolating = True
                self._start(self._suspects.popleft())
            done = [*super().wait(), *self._collect()] or self._time_out()
            if done:
                self._last_sign = time.monotonic()
                self._isolating = self._isolating and bool(self._flights)
                return done
            if self._lost is not None and not self._flights:
                raise self._lost
            if self._flights:
                wait(self._flights, self._next_look(), FIRST_COMPLETED)

    def close(self) -> None:
        for future in self._flights:
            future.cancel()
        if self._replaced:
            self._executor.shutdown(wait=False, cancel_futures=True)
        if self._signs is not None:
            self._signs.cleanup()

    def _start(self, flight: Flight[TrialT]) -> None:
        call: tuple[Any, ...] = (self._f, flight.values)
        if self._signs is not None:
            flight.sign = Path(self._signs.name, next(self._sign_names))
            call = (_leave_sign_and_call, flight.sign, *call)
        try:
            future = self._executor.submit(*call)
        except BrokenExecutor as error:  # a worker died between two evaluations
            self._replace_executor(error)
            if self._lost is not None:
                return
            future = self._executor.submit(*call)
        except RuntimeError as error:  # it was shut down
            self._lost = ExecutorLost(str(error))
            return
        except Exception as error:  # some executors serialize at once
            if not self._has_taken:
                raise ValueError(f"the executor does not take this function: {failure(error).error}") from error
            if self._takes_nothing():
                self._lost = ExecutorLost(failure(error).error)
            else:
                self._done.append((flight.trial, failure(error)))
            return
        self._has_taken = True
        flight.submitted, flight.started = time.monotonic(), None
        self._flights[future] = flight

    def _takes_nothing(self) -> bool:
        """Whether the executor refuses any work, as a client of Dask that was closed, not one evaluation alone."""
        try:
            self._executor.submit(int).cancel()
        except Exception:
            return True
        return False

    def _collect(self) -> list[tuple[TrialT, CallResult]]:
        """The outcomes of evaluations that ended; those that went down with a broken executor become suspects."""
        done: list[tuple[TrialT, CallResult]] = []
        broken: Exception | None = None
        for future in [future for future in self._flights if future.done()]:
            try:
                error = future.exception()
            except CancelledError as cancelled:
                error = cancelled
            if isinstance(error, BrokenExecutor):
                broken = error
                continue
            flight = self._flights.pop(future)
            if not self._isolating and (isinstance(error, CancelledError) or type(error).__name__ == KILLED):
                self._suspects.append(flight)
            else:
                done.append((flight.trial, to_call_result(future.result()) if error is None else failure(error)))
        if broken is not None:
            lost = list(self._flights.values())
            self._flights.clear()
            self._replace_executor(broken)
            if self._isolating:
                if self._signs is not None and not any(Path(self._signs.name).iterdir()):
                    broken = self._lost = ExecutorLost(UNKNOWN_FUNCTION)
                done += [(flight.trial, failure(broken)) for flight in lost]
            else:
                self._suspects.extend(lost)
        return done

    def _time_out(self) -> list[tuple[TrialT, CallResult]]:
        """The outcomes of evaluations that have run for too long."""
        now = time.monotonic()
        for future, flight in self._flights.items():
            if flight.started is None and (future.running() if flight.sign is None else flight.sign.exists()):
                flight.started = now
        past = [future for future, flight in self._flights.items() if now > self._deadline(flight)]
        late = [future for future in past if self._flights[future].started is not None] or past[:1]  # or the oldest
        outcome = CallResult(math.inf, f"no result within {self._timeout:g} seconds")
        self._hung += [future for future in late if not future.cancel()]
        done = [(self._flights.pop(future).trial, outcome) for future in late]
        if done and _kill_workers(self._executor):  # or the hanging worker would stay occupied
            rest = list(self._flights.values())
            self._flights.clear()
            self._hung.clear()
            self._replace_executor(TimeoutError(outcome.error))
            for flight in rest:
                self._start(flight)
        return done

    def _deadline(self, flight: Flight[TrialT]) -> float:
        if flight.started is not None:
            return flight.started + self._timeout
        return max(flight.submitted, self._last_sign) + self._timeout + (0.0 if flight.sign is None else MAX_START)

    def _next_look(self) -> float:
        earliest = min(map(self._deadline, self._flights.values())) - time.monotonic()
        return max(MIN_POLL, min(earliest, self._timeout / 10, MAX_POLL))

    def _replace_executor(self, error: BaseException) -> None:
        """Make a pool of processes again, as it was; any other executor is lost."""
        from concurrent.futures import ProcessPoolExecutor

        if not _is_process_pool(self._executor):
            self._lost = ExecutorLost(str(error) or type(error).__name__)
            return
        old: Any = self._executor
        if self._replaced:
            old.shutdown(wait=False)
        self._executor = ProcessPoolExecutor(
            old._max_workers,
            mp_context=old._mp_context,
            initializer=old._initializer,
            initargs=old._initargs,
            max_tasks_per_child=old._max_tasks_per_child,
        )
        self._replaced = True


def _check_picklable(f: Callable[[Values], Any]) -> None:
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.dumps(f)
    except Exception as error:  # of several kinds
        raise ValueError(
            f"processes cannot be sent this function ({error}): define it at the top level of a file, not as a lambda "
            "or inside another function, or use a ThreadPoolExecutor"
        ) from error


def _leave_sign_and_call(sign: Path, f: Callable[[Values], Any], values: Values) -> Any:
    sign.touch()
    try:
        return f(values)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the pool would break where it is read, as by those with several required arguments
            raise RuntimeError(failure(error).error) from None
        raise


def _is_process_pool(executor: Executor) -> bool:
    from concurrent.futures import ProcessPoolExecutor  # loads multiprocessing

    return isinstance(executor, ProcessPoolExecutor)


def _kill_workers(executor: Any) -> bool:
    """Kill the processes of a pool; other executors keep their workers."""
    if not _is_process_pool(executor):
        return False
    for process in list((executor._processes or {}).values()):
        process.kill()
    return True
