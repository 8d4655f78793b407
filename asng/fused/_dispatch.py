"""Checks of the tensors that the kernels take."""

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_NUMEL = 2**31 - 2**20  # kernels count in 32 bits, blocks that reach beyond the end included


@cache
def _triton_is_installed() -> bool:
    return find_spec("triton") is not None


def can_launch(x: Tensor) -> bool:
    """Whether kernels run where a tensor is: on CUDA, or in Triton's interpreter."""
    return (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and _triton_is_installed()


def is_supported(x: Tensor) -> bool:
    """Whether kernels can run on a tensor: (n, c, h, w), channels last, on CUDA (or in Triton's interpreter).

    They do not where torch's functions are to be seen: by torch.compile, torch.export and counters of FLOPs.
    """
    return (
        can_launch(x)
        and type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and _get_current_dispatch_mode() is None
        and x.dim() == 4
        and x.dtype in DTYPES
        and x.is_contiguous(memory_format=torch.channels_last)
        and 0 < x.numel() < MAX_NUMEL
    )


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type that a convolution of a tensor computes in."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


def empty_channels_last(shape: tuple[int, int, int, int], like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def device_of(x: Tensor) -> AbstractContextManager[None]:
    """The device that kernels on a tensor are launched on, for a with statement."""
    device: AbstractContextManager[None] = torch.cuda.device(x.device) if x.is_cuda else nullcontext()
    return device


@cache
def pipeline_stages(device: torch.device) -> int:
    """Stages of loops whose tiles suit the shared memory of a Hopper GPU; one, without loads ahead, for others."""
    is_large = device.type == "cuda" and (
        getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0) >= 227 * 1024
    )
    return 3 if is_large else 1


def to_channels_last(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


def power_of_two(number: int) -> int:
    """The smallest one that is not below a number."""
    return 1 << (number - 1).bit_length()
