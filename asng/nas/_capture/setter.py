"""The kernel that sets the switches of CUDA graphs, and why a machine cannot run it.

The kernel needs CUDA's device runtime, so NVRTC compiles it and nvJitLink links it, both from torch's own wheels: no
compiler is needed. `cuda.bindings` is imported by the first use.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

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
    """What graphs that branch depend on, as this machine has it."""

    torch: str
    hip: str | None  # of ROCm; None: torch is made for CUDA
    bindings: str | None  # of cuda-bindings; None: not installed
    driver: int  # the newest CUDA that it supports: 13000 is 13.0


def installed_versions() -> Versions:
    try:
        bindings = str(import_module("cuda.bindings").__version__)
        driver = int(check(import_module("cuda.bindings.runtime").cudaDriverGetVersion()))
    except ImportError:
        bindings, driver = None, 0
    return Versions(str(torch.__version__), torch.version.hip, bindings, driver)


def outdated_reason(versions: Versions) -> str | None:
    """Return what is missing or too old, or None if nothing is."""
    if versions.hip is not None:
        return f"ROCm {versions.hip} has no conditional graph nodes"
    if tuple(map(int, versions.torch.split(".")[:2])) < MIN_TORCH:
        return f"torch {versions.torch} is older than {'.'.join(map(str, MIN_TORCH))}"
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


def check(result: tuple[Any, ...]) -> Any:
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
    program = check(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"set_switches.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{major}{minor}".encode(), b"--relocatable-device-code=true"]
    if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0:
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode(errors="replace").strip())
    cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    check(nvrtc.nvrtcGetCUBIN(program, cubin))
    link = nvjitlink.create(1, [f"-arch=sm_{major}{minor}"])
    nvjitlink.add_data(link, nvjitlink.InputType.CUBIN, cubin, len(cubin), "set_switches")
    nvjitlink.add_file(link, nvjitlink.InputType.LIBRARY, str(_device_runtime()))
    nvjitlink.complete(link)
    linked = bytearray(nvjitlink.get_linked_cubin_size(link))
    nvjitlink.get_linked_cubin(link, linked)
    nvjitlink.destroy(link)
    with torch.cuda.device(device):
        torch.zeros((), device="cuda")  # makes its context the current one
        module = check(driver.cuModuleLoadData(bytes(linked)))
    return check(driver.cuModuleGetFunction(module, b"set_switches"))


def _device_runtime() -> Path:
    """Where libcudadevrt.a is: beside torch's own CUDA libraries, or in a CUDA toolkit."""
    beside = Path(torch.__file__).parents[1] / "nvidia"
    found = sorted(beside.glob("**/libcudadevrt.a")) or sorted(Path("/usr/local").glob("cuda*/**/libcudadevrt.a"))
    if not found:
        raise RuntimeError(
            f"libcudadevrt.a is neither in {beside} nor in /usr/local/cuda; it is in nvidia-cuda-runtime"
        )
    return found[0]
