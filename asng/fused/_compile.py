"""The kernels of a pass, compiled side by side before one of them is launched."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from asng.fused._dispatch import is_triton_installed


@contextmanager
def compile_ahead() -> Iterator[set[str]]:
    """Launch none of our kernels inside, and compile those that would have been on exit, as many at a time as cores.

    What is computed inside means nothing, and layers give zeros; the caller restores what it changes. Triton compiles a
    kernel where it is called first, one after another, about a second each, and a network has hundreds. Kernels of
    others run as usual: some of them are chosen by the time that they take.

    Yields:
        The names of the kernels that were not launched, as they are called.
    """
    skipped: set[str] = set()
    if not is_triton_installed():
        yield skipped
        return
    from triton.runtime import jit

    function: Any = jit.JITFunction
    run, compile_kernel = function.run, function._do_compile
    device = torch.cuda.current_device() if torch.cuda.is_available() else -1  # for threads, which begin with the first
    jobs: dict[tuple[Any, Any], Callable[[], Any]] = {}

    def skip(kernel: Any, *args: Any, warmup: bool, **named: Any) -> Any:
        if _is_ours(kernel):
            skipped.add(kernel.__name__)
        return run(kernel, *args, warmup=warmup or _is_ours(kernel), **named)

    def collect(kernel: Any, key: Any, *args: Any, **named: Any) -> Any:
        if not _is_ours(kernel):
            return compile_kernel(kernel, key, *args, **named)
        jobs[kernel, key] = partial(_load, partial(compile_kernel, kernel, key, *args, **named), device)
        return None  # which `run` takes for a kernel that a hook compiles

    function.run, function._do_compile = skip, collect
    try:
        with _ClearMemory():
            yield skipped
    finally:
        function.run, function._do_compile = run, compile_kernel
    _run_all(jobs.values())


class _ClearMemory(TorchFunctionMode):
    """Makes new memory zero, as nobody writes results there.

    What was in it before may be NaN, or become that, and functions of torch that check their input on the device, such
    as `binary_cross_entropy`, then leave the process without its GPU.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in (torch.empty, torch.empty_like, Tensor.new_empty):
            with torch.no_grad():
                result.zero_()
        return result


def _is_ours(kernel: Any) -> bool:
    return str(kernel.__module__).startswith("asng.fused.")


def _load(compile_kernel: Callable[[], Any], device: int) -> None:
    """Compile a kernel, and what launches it, which in Triton 3.6 a C compiler makes."""
    kernel = compile_kernel()
    with torch.cuda.device(device):
        _ = kernel.run  # a property, which loads it


def _run_all(jobs: Iterable[Callable[[], Any]]) -> None:
    """Run functions in threads: Triton holds Python's lock for a sixth of the time that it compiles."""
    executor = ThreadPoolExecutor(os.cpu_count())
    try:
        for future in [executor.submit(job) for job in jobs]:
            with suppress(Exception):  # raised where the kernel is launched
                future.result()
    finally:
        executor.shutdown(cancel_futures=True)
