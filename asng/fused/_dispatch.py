"""Checks of the tensors that the kernels take."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import _get_current_dispatch_mode

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ALIGN = 8  # elements: 16 bytes in half precision
MAX_NUMEL = 2**31 - 2**20  # kernels count in 32 bits, blocks that reach beyond the end included
GLOBAL_HOOKS = (  # of all modules; torch 2.6 has no function that asks for them
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)


@cache
def is_triton_installed() -> bool:
    return find_spec("triton") is not None


def can_launch(x: Tensor) -> bool:
    """Whether kernels run where a tensor is: on CUDA, or in Triton's interpreter."""
    return (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and is_triton_installed()


def is_supported(x: Tensor) -> bool:
    """Whether kernels can run on a tensor: (n, c, h, w), channels last as in `row_of`, on CUDA or in the interpreter.

    They do not where torch's functions are to be seen: by torch.compile, torch.export, torch.jit.trace, torch.func,
    derivatives in forward mode, counters of FLOPs.
    """
    return (
        can_launch(x)
        and type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[no-untyped-call]
        and forward_ad._current_level < 0
        and not torch._C._are_functorch_transforms_active()
        and _get_current_dispatch_mode() is None
        and x.dim() == 4
        and x.dtype in DTYPES
        and x.numel() > 0
        and row_of(x) > 0
        and is_countable(x, row_of(x))
    )


def is_countable(x: Tensor, row: int) -> bool:
    """Whether kernels can count the elements of a map with a tensor's pixels, each of them a row of this length."""
    return x.numel() // x.shape[1] * row < MAX_NUMEL


def have_hooks(*layers: nn.Module) -> bool:
    """Whether one of some layers has to be called by itself, as hooks are to see what goes in and comes out.

    Hooks are its own, those of all modules, or a function in the place of its `forward`.
    """
    return any(GLOBAL_HOOKS) or any(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or "forward" in vars(layer)
        for layer in layers
    )


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type that a convolution of a tensor computes in."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


def align(channels: int) -> int:
    """The elements of a pixel in memory, of what kernels write: rows begin at multiples of 16 bytes."""
    return -(-channels // ALIGN) * ALIGN


def row_of(x: Tensor) -> int:
    """The elements of a pixel in memory: its channels, or an aligned row that begins with them; 0 for other layouts.

    What a row has beyond the channels means nothing.
    """
    if x.is_contiguous(memory_format=torch.channels_last):
        return x.shape[1]
    n, channels, height, width = x.shape
    row = align(channels)
    elements = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    is_row = x.stride() == (height * width * row, 1, width * row, row) and x.storage_offset() % ALIGN == 0
    return row if is_row and elements >= n * height * width * row else 0


def empty_rows(shape: tuple[int, ...], like: Tensor, row: int | None = None) -> Tensor:
    """An empty (n, c, h, w), channels last, with rows of a length, or else aligned ones."""
    n, channels, height, width = shape
    row = align(channels) if row is None else row
    rows = torch.empty(n, height, width, row, dtype=like.dtype, device=like.device)
    return rows.permute(0, 3, 1, 2)[:, :channels].data  # no view: what a function returns may be written in place


def widen(x: Tensor) -> Tensor:
    """The whole rows, as channels."""
    n, _, height, width = x.shape
    row = row_of(x)
    return x.as_strided((n, row, height, width), (height * width * row, 1, width * row, row))


def to_rows(x: Tensor, row: int | None = None) -> Tensor:
    """The tensor channels last, with rows of a length if one is given; a copy if it is not so."""
    if row_of(x) and row in (None, row_of(x)):
        return x
    copied = empty_rows(tuple(x.shape), x, x.shape[1] if row is None else row)
    widen(copied)[:, x.shape[1] :].zero_()
    return copied.copy_(x)


def device_of(x: Tensor) -> AbstractContextManager[None]:
    """The device that kernels on a tensor are launched on, for a with statement."""
    device: AbstractContextManager[None] = torch.cuda.device(x.device) if x.is_cuda else nullcontext()
    return device


class SideStream:
    """Runs kernels beside those of the current stream on a GPU where `allow` says so, and elsewhere in order.

    Not in general, since it is left running until `join_all`; in the bodies of switches it measured slower.
    And only for gradients that autograd keeps: the memory of those of frozen weights is free at once, and used again.
    """

    is_allowed: ClassVar[bool] = False  # in all threads: autograd has its own
    _streams: ClassVar[dict[int, Any]] = {}
    _running: ClassVar[list[tuple[Any, list[int], Any]]] = []  # streams, addresses they write to, what they read

    def __init__(self, x: Tensor, *, are_kept: bool) -> None:
        cuda: Any = torch.cuda
        self._outer: Any = None
        if are_kept and self.is_allowed and x.is_cuda:
            self._outer = cuda.current_stream()
            key = self._outer.cuda_stream
            if key not in self._streams:
                self._streams[key] = cuda.Stream(x.device)
            self._side = self._streams[key]

    @classmethod
    @contextmanager
    def allow(cls) -> Iterator[None]:
        cls.is_allowed = True
        try:
            yield
        finally:
            cls.is_allowed = False
            cls._running.clear()

    @property
    def is_open(self) -> bool:
        """Whether kernels run beside others."""
        return self._outer is not None

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Launch on the side stream, after all that was launched on the other before."""
        if self._outer is not None:
            self._side.wait_stream(self._outer)
        with self.resume():
            yield

    def resume(self) -> AbstractContextManager[None]:
        """Launch on the side stream, after what was launched there before."""
        return nullcontext() if self._outer is None else torch.cuda.stream(self._side)

    def leave(self, written: Sequence[Tensor], *read: Any) -> None:
        """Let it run on until `join_all`; until then what it reads stays in memory, and nobody may read what it writes.

        Autograd does not: it takes the gradient of a weight as it is, unless somebody else refers to it.
        """
        if self._outer is not None:
            self._running.append((self._side, [tensor.data_ptr() for tensor in written], read))

    @classmethod
    def join_all(cls, gradients: Iterable[Tensor | None]) -> None:
        """Let the current stream wait for all side streams, which have written some of the gradients of weights.

        Raises RuntimeError if autograd has copied one of them before.
        """
        addresses = {gradient.data_ptr() for gradient in gradients if gradient is not None}
        for stream in {stream for stream, _, _ in cls._running}:
            torch.cuda.current_stream().wait_stream(stream)
        for _, written, _ in cls._running:
            if not addresses.issuperset(written):
                raise RuntimeError("a gradient was copied before it was computed; leave out hooks of parameters")
        cls._running.clear()


@cache
def pipeline_stages(device: torch.device) -> int:
    """Stages of loops whose tiles suit the shared memory of a Hopper GPU; one, without loads ahead, for others."""
    is_large = device.type == "cuda" and (
        getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0) >= 227 * 1024
    )
    return 3 if is_large else 1


def power_of_two(number: int) -> int:
    """The smallest one that is not below a number."""
    return 1 << (number - 1).bit_length()
