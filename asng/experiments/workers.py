"""Tasks side by side in worker processes, with progress from within the tasks; Ctrl-C ends all of them at once."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from asng.experiments import Progress

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

# One thread for linear algebra, since the workers are the parallelism; and freed memory is kept, because
# giving it back and getting it again costs a tenth of the time.
ENVIRONMENT = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
    "MALLOC_TRIM_THRESHOLD_": "100000000",
    "MALLOC_MMAP_THRESHOLD_": "100000000",
}


def run_parallel(
    function: Callable[[Task, Progress], Outcome],
    tasks: Sequence[Task],
    workers: int,
    progress: Callable[[float], None],
) -> Generator[tuple[Task, Outcome], None, None]:
    """Yield each task with its outcome, as they finish; close the generator to stop the workers.

    Those that finish together come in their order, and with one worker all do.
    The function reports the fraction done of its task to its second argument, now and then;
    `progress` is called with the number of tasks done, with fractions of running ones. Function and tasks
    must be picklable.
    """
    context = get_context("spawn")
    parts = context.RawArray("d", len(tasks))  # how far each task is
    stop = context.RawValue("b", 0)
    workers = max(1, min(workers, len(tasks)))
    executor = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(parts, stop))
    try:
        with _starting_workers():
            futures = {executor.submit(_work, function, task, index): task for index, task in enumerate(tasks)}
        progress(0)
        while futures:
            finished, _ = wait(futures, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in [future for future in futures if future in finished]:
                yield futures.pop(future), future.result()
            progress(sum(parts))
    finally:
        stop.value = 1
        executor.shutdown(cancel_futures=True)


@contextmanager
def _starting_workers() -> Iterator[None]:
    """Processes started inside the context get the environment of workers, and leave Ctrl-C to the parent."""
    before = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    os.environ.update(ENVIRONMENT)
    # Inherited from the first moment on; only the main thread may set it.
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        for name in ENVIRONMENT:
            del os.environ[name]
        os.environ.update(before)
        if main:
            signal.signal(signal.SIGINT, handler)


# In a worker.


_shared: tuple[Any, Any]  # the parts done and the flag to stop


def _start_worker(parts: Any, stop: Any) -> None:
    global _shared  # noqa: PLW0603 (the one way into a worker for what cannot be sent with its tasks)
    _shared = parts, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Stopped(Exception):
    """Raised in a worker whose parent has stopped."""


def _work(function: Callable[[Task, Progress], Outcome], task: Task, index: int) -> Outcome:
    parts, stop = _shared

    def tick(fraction: float) -> None:
        if stop.value:
            raise Stopped
        parts[index] = fraction

    outcome = function(task, tick)
    parts[index] = 1.0
    return outcome
