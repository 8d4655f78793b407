"""CUDA graphs that branch on numbers in device memory: SWITCH conditional nodes.

Torch captures the graph; the nodes come from `cuda.bindings`. A switch holds one body graph per case, captured on a
side stream. One kernel at the start of the graph hands every switch the integer that it reads.

The kernel needs CUDA's device runtime, so NVRTC compiles it and nvJitLink links it, both from torch's own wheels: no
compiler is needed. `cuda.bindings` is imported by the first use.
"""

import ctypes
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

MIN_TORCH, MIN_CUDA = (2, 11), 13  # with which it was tried, on Linux

# Entry 0 of the table is the number of switches; then come pairs of a handle and the address of its integer.
SOURCE = r"""
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
extern "C" __global__ void set_switches(const unsigned long long *table) {
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < table[0]; i += gridDim.x * blockDim.x)
        cudaGraphSetConditional(table[1 + 2 * i], *(const unsigned int *)table[2 + 2 * i]);
}
"""


class Versions(NamedTuple):
    """Versions on this machine of the libraries that branching graphs need."""

    torch: str
    cuda: str | None  # that torch is made for; None: another one
    hip: str | None  # of ROCm; None: torch is made for CUDA
    bindings: str | None  # of cuda-bindings; None: not installed
    driver: int  # the newest CUDA that it supports: 13000 is 13.0


def installed_versions() -> Versions:
    try:
        bindings = str(import_module("cuda.bindings").__version__)
        driver = int(check_cuda(import_module("cuda.bindings.runtime").cudaDriverGetVersion()))
    except ImportError:
        bindings, driver = None, 0
    return Versions(str(torch.__version__), torch.version.cuda, torch.version.hip, bindings, driver)


def outdated_reason(versions: Versions) -> str | None:
    """Return what is missing or too old, or None if nothing is."""
    if versions.hip is not None:
        return f"ROCm {versions.hip} has no conditional graph nodes"
    if tuple(map(int, versions.torch.split(".")[:2])) < MIN_TORCH:
        return f"torch {versions.torch} is older than {'.'.join(map(str, MIN_TORCH))}"
    if versions.cuda is None or int(versions.cuda.split(".")[0]) < MIN_CUDA:
        return f"torch {versions.torch} is made for CUDA {versions.cuda}, and {MIN_CUDA}.0 is needed"
    if versions.bindings is None:
        return "cuda-bindings is missing; pip install 'asng[gpu]'"
    if int(versions.bindings.split(".")[0]) < MIN_CUDA:
        return f"cuda-bindings {versions.bindings} is older than {MIN_CUDA}.0; pip install 'asng[gpu]'"
    if versions.driver < 1000 * MIN_CUDA:
        supported = f"{versions.driver // 1000}.{versions.driver % 1000 // 10}"
        return f"the driver supports CUDA {supported}, and {MIN_CUDA}.0 is needed; install a newer one"
    return None


def unavailable_reason(device: torch.device | None = None) -> str | None:
    """Return why graphs on a device, by default the current one, cannot branch, or None if they can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        reason = outdated_reason(installed_versions())
        if reason is None:
            index = None if device is None else device.index
            setter_kernel(torch.cuda.current_device() if index is None else index)
    except Exception as error:  # whatever the libraries of this machine lack
        return f"the setter kernel cannot be built ({error})"
    return reason


def check_cuda(result: tuple[Any, ...]) -> Any:
    """Return what a function of cuda.bindings gave; raise RuntimeError if it failed."""
    error, *values = result
    if int(error) != 0:
        raise RuntimeError(f"CUDA error {error.name if hasattr(error, 'name') else error}")
    return values[0] if len(values) == 1 else tuple(values)


@cache
def setter_kernel(device: int) -> Any:
    """The kernel `set_switches`, compiled and linked for a device."""
    nvrtc, nvjitlink, driver = (import_module(f"cuda.bindings.{name}") for name in ("nvrtc", "nvjitlink", "driver"))
    major, minor = torch.cuda.get_device_capability(device)
    program = check_cuda(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"set_switches.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{major}{minor}".encode(), b"--relocatable-device-code=true"]
    if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0:
        log = b" " * check_cuda(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode(errors="replace").strip())
    cubin = b" " * check_cuda(nvrtc.nvrtcGetCUBINSize(program))
    check_cuda(nvrtc.nvrtcGetCUBIN(program, cubin))
    link = nvjitlink.create(1, [f"-arch=sm_{major}{minor}"])
    nvjitlink.add_data(link, nvjitlink.InputType.CUBIN, cubin, len(cubin), "set_switches")
    nvjitlink.add_file(link, nvjitlink.InputType.LIBRARY, str(_device_runtime()))
    nvjitlink.complete(link)
    linked = bytearray(nvjitlink.get_linked_cubin_size(link))
    nvjitlink.get_linked_cubin(link, linked)
    nvjitlink.destroy(link)
    with torch.cuda.device(device):
        torch.zeros((), device="cuda")  # makes its context the current one
        module = check_cuda(driver.cuModuleLoadData(bytes(linked)))
    return check_cuda(driver.cuModuleGetFunction(module, b"set_switches"))


def _device_runtime() -> Path:
    """The path of libcudadevrt.a: beside torch's own CUDA libraries, or in a CUDA toolkit."""
    beside = Path(torch.__file__).parents[1] / "nvidia"
    found = sorted(beside.glob("**/libcudadevrt.a")) or sorted(Path("/usr/local").glob("cuda*/**/libcudadevrt.a"))
    if not found:
        raise RuntimeError(
            f"libcudadevrt.a is neither in {beside} nor in /usr/local/cuda; it is in nvidia-cuda-runtime"
        )
    return found[0]


CAPACITY = 1 << 16  # switches of a graph
MAX_BRANCHES = 6  # side by side, each with a stream for every switch inside another: torch has 32 streams in all
NO_GENERATOR = "generator not in capture mode"  # torch says
cuda: Any = torch.cuda  # much of it has no types


class BrokenCapture(Exception):
    """A capture that failed inside CUDA and cannot be ended."""


_BROKEN: "list[BranchingGraph]" = []


class BranchingGraph:
    """A CUDA graph whose switches read device memory at every replay.

    Call `switch` inside `capture`. Bodies hold kernels and copies on the device alone; other switches may be among
    them. Memory that is allocated while capturing belongs to the graph and stays until it is deleted.
    """

    def __init__(self, device: torch.device) -> None:
        self._runtime = import_module("cuda.bindings.runtime")
        self._device = device
        with cuda.device(device):  # to which it belongs
            self._pool = cuda.MemPool()
        self._graph = cuda.CUDAGraph(keep_graph=True)
        self._stream = cuda.Stream(device)
        self._side: dict[int, Any] = {}  # by the stream around a body: the one that the body is captured on
        self._branches: list[Any] = []  # streams of parallel branches
        self._switches: list[tuple[int, Tensor]] = []
        self._table = torch.zeros(1 + 2 * CAPACITY, dtype=torch.int64, device=device)

    @contextmanager
    def dry_run(self) -> Iterator[None]:
        """Run what is inside, but capture the bodies of its switches, to see whether they can be."""
        gc.collect()  # earlier autograd graphs tie parameters to other streams
        cuda.synchronize(self._device)
        cuda.empty_cache()
        with ExitStack() as stack:
            stack.enter_context(cuda.stream(self._stream))
            # The allocator does not see bodies as a part of the capture, hence a pool for the whole thread, and
            # backward in this thread.
            stack.enter_context(cuda.use_mem_pool(self._pool))
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            yield
        cuda.synchronize(self._device)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record what runs inside instead of running it; after an exception there is no graph."""
        with self.dry_run():
            self._graph.capture_begin(capture_error_mode="relaxed")
            try:
                self._launch_setter()
                yield
            except BaseException as error:
                self._abort(error)
                raise
            self._graph.capture_end()
        self._fill_table()
        self._graph.instantiate()

    def _abort(self, error: BaseException) -> None:
        """End the capture; raise BrokenCapture where CUDA cannot."""
        runtime = self._runtime
        status = check_cuda(runtime.cudaStreamIsCapturing(self._stream.cuda_stream))
        if status != runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive:
            _BROKEN.append(self)  # to end it, or to delete it, would end the process
            raise BrokenCapture(
                f"CUDA refused to capture a step ({error}), and this process cannot use the GPU any more; start it "
                "again with capture=False"
            ) from error
        self._graph.capture_end()

    def _launch_setter(self) -> None:
        driver = import_module("cuda.bindings.driver")
        arguments = ((self._table.data_ptr(),), (ctypes.c_void_p,))
        stream = torch.cuda.current_stream().cuda_stream
        check_cuda(
            driver.cuLaunchKernel(setter_kernel(self._table.get_device()), 4, 1, 1, 256, 1, 1, 0, stream, arguments, 0)
        )

    def _fill_table(self) -> None:
        if len(self._switches) > CAPACITY:
            raise RuntimeError(f"{len(self._switches)} switches are more than the {CAPACITY} that a graph can have")
        rows = [number for handle, index in self._switches for number in (handle, index.data_ptr())]
        table = torch.tensor([len(self._switches), *rows], dtype=torch.uint64).view(torch.int64)
        self._table[: len(table)].copy_(table)

    def switch(self, index: Tensor, bodies: Sequence[Callable[[], None]]) -> None:
        """Add a node that runs the body whose number is in `index`, an int32 on the device; none beyond the last.

        Outside of `capture` the bodies are captured and dropped, to see whether they can be: a failure inside a
        capture with switches may end the process.
        """
        runtime = self._runtime
        outer: Any = torch.cuda.current_stream()
        status, _, graph, dependencies, edges, count = check_cuda(runtime.cudaStreamGetCaptureInfo(outer.cuda_stream))
        is_active = status == runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive
        if not is_active:
            graph, dependencies, edges, count = check_cuda(runtime.cudaGraphCreate(0)), None, None, 0
        handle = check_cuda(runtime.cudaGraphConditionalHandleCreate(graph, 0, 0))
        parameters = runtime.cudaGraphNodeParams()
        parameters.type = runtime.cudaGraphNodeType.cudaGraphNodeTypeConditional
        parameters.conditional.handle = handle
        parameters.conditional.type = runtime.cudaGraphConditionalNodeType.cudaGraphCondTypeSwitch
        parameters.conditional.size = len(bodies)
        node = check_cuda(runtime.cudaGraphAddNode(graph, dependencies, edges or None, count, parameters))
        graphs = list(parameters.conditional.phGraph_out)
        if is_active:
            self._switches.append((int(handle), index))
            replace = runtime.cudaStreamUpdateCaptureDependenciesFlags.cudaStreamSetCaptureDependencies
            check_cuda(runtime.cudaStreamUpdateCaptureDependencies(outer.cuda_stream, [node], None, 1, int(replace)))
        for body, inner in zip(bodies, graphs, strict=True):
            try:
                self._capture_body(outer, body, inner)
            except RuntimeError as error:
                if is_active or NO_GENERATOR not in str(error):  # random numbers need a capture of torch's
                    raise
        if not is_active:  # after a failure it stays: what is left of it cannot be destroyed safely
            check_cuda(runtime.cudaGraphDestroy(graph))

    def _capture_body(self, outer: Any, body: Callable[[], None], graph: Any) -> None:
        runtime = self._runtime
        if outer.cuda_stream not in self._side:
            self._side[outer.cuda_stream] = cuda.Stream(self._device)
        side = self._side[outer.cuda_stream]
        relaxed = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        with cuda.stream(side):
            check_cuda(runtime.cudaStreamBeginCaptureToGraph(side.cuda_stream, graph, None, None, 0, relaxed))
            try:
                body()
            finally:
                ended = runtime.cudaStreamEndCapture(side.cuda_stream)
            check_cuda(ended)

    def fork(self, branches: Sequence[Callable[[], None]]) -> None:
        """Capture branches that run side by side, as far as there are streams."""
        outer = cuda.current_stream()
        while len(self._branches) < min(len(branches), MAX_BRANCHES):
            self._branches.append(cuda.Stream(self._device))
        streams = self._branches[: len(branches)]
        for stream in streams:
            stream.wait_stream(outer)
        try:
            for branch, stream in zip(branches, cycle(streams), strict=False):
                with cuda.stream(stream):
                    branch()
        except BaseException:
            with suppress(RuntimeError):
                self._join(outer, streams)  # a capture with loose branches cannot be ended
            raise
        self._join(outer, streams)

    def _join(self, stream: Any, others: Sequence[Any]) -> None:
        for other in others:
            stream.wait_stream(other)

    def replay(self) -> None:
        self._graph.replay()


@contextmanager
def refuse_synchronization() -> Iterator[None]:
    """Raise RuntimeError where the host waits for the device, which a graph cannot do."""
    before = cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        cuda.set_sync_debug_mode(before)


@contextmanager
def refuse_waits() -> Iterator[None]:
    """Raise RuntimeError where Python asks for a wait, as for a time, which torch's mode above lets pass.

    CUDA gives up a capture in which one is called, and with it the GPU for this process.
    """
    waits = [(cuda, "synchronize"), (torch.accelerator, "synchronize")]
    waits += [(cuda.Event, name) for name in ("synchronize", "elapsed_time", "query")]
    before = [(owner, name, getattr(owner, name)) for owner, name in waits]

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("called a synchronizing function of torch.cuda")

    try:
        for owner, name, _ in before:
            setattr(owner, name, refuse)
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)
