"""Tasks in worker processes: outcomes as they finish; Ctrl-C ends all workers at once."""

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

from asng._signals import hold_signals

Argument = TypeVar("Argument")
Returned = TypeVar("Returned")

# One thread for linear algebra, since the workers are the parallelism; and freed memory is kept, because
# giving it back and getting it again costs a tenth of the time.
WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
    "MALLOC_TRIM_THRESHOLD_": "100000000",
    "MALLOC_MMAP_THRESHOLD_": "100000000",
}


def run_parallel(
    function: Callable[[Argument], Returned], tasks: Sequence[Argument], workers: int
) -> Generator[tuple[Argument, Returned], None, None]:
    """Yield each task with its outcome, as they finish; close the generator to stop the workers.

    Function and tasks must be picklable. ChildProcessError: a worker was killed.
    """
    others = set(active_children())
    workers = max(1, min(workers, len(tasks)))
    with _starting_workers():  # its semaphores start the process of Python's that tracks them
        executor = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_end_with_parent)
    try:
        with _starting_workers():
            futures = {executor.submit(function, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise ChildProcessError(
            "a worker process died, perhaps for lack of memory; the same command continues, with fewer --workers if "
            "that is why"
        ) from None
    finally:
        for worker in set(active_children()) - others:
            worker.kill()  # in the middle of a task, perhaps, which an executor would wait for
        executor.shutdown()


@contextmanager
def _starting_workers() -> Iterator[None]:
    """Processes started inside the context get the environment of workers, and leave signals to the parent."""
    environment = dict(os.environ)
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        with hold_signals():  # blocked ones are inherited
            yield
    finally:
        for name in WORKER_ENVIRONMENT.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


def _end_with_parent() -> None:
    """In a worker: end when the parent has died, by whatever signal."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
