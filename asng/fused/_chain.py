"""A symmetric chain of convolutions and transposed ones, computed by kernels that read its sizes from device memory.

So one CUDA graph runs chains of any depth, widths, kernels and strides. The chain is that of an autoencoder: encoder
layers, each rectified; their mirror images in reverse order, each with its own skip connection or none, rectified; a
last transposed convolution. Activations lie channels last in slots of one tensor: slot 0 is the image, slots 1 to depth
the encoder's, the next ones the decoder's in the same order, the last one is the output.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

FIELDS = 16  # of a row of the geometry
LAST_KERNEL = 3
PIXELS, CHANNELS = 128, 64  # of the block of outputs that a program computes
SUMS = 64  # rows and columns of the block of a weight's gradient that a program computes
WARPS, STAGES = 4, 3
PARTS = 8  # of a sum over pixels
NUMBERS = 1024  # of the block of a gradient that a program adds up


class ChainLayer(NamedTuple):
    """One layer of the encoder, and its mirror image."""

    weight: int  # rows in the table of addresses
    mirror_weight: int
    channels: int
    kernel: int
    stride: int


class Chains:
    """The bounds of all chains of a model.

    Args:
        depth: Most layers of the encoder.
        in_channels: Columns of the weights of convolutions, and most channels of all.
        out_channels: Columns of the weights of transposed convolutions.
        image_channels: Of the image and of the output.
        kernel: The largest kernel.
    """

    def __init__(self, depth: int, in_channels: int, out_channels: int, image_channels: int, kernel: int) -> None:
        self.depth, self.in_channels, self.out_channels = depth, in_channels, out_channels
        self.image_channels, self.kernel = image_channels, kernel
        self.rows = 2 * depth + 1

    def geometry(self, layers: Sequence[ChainLayer], last_weight: int, size: tuple[int, int]) -> list[int]:
        """The numbers that the kernels read, rows of `FIELDS`: encoder, decoder in the same order, last.

        Args:
            layers: Of the chain, from the image on.
            last_weight: The row of the last layer's weight in the table of addresses; its kernel is 3x3.
            size: Height and width of the image.
        """
        depth, sizes, channels = len(layers), [size], [self.image_channels]
        for layer in layers:
            height, width = sizes[-1]
            sizes.append((-(-height // layer.stride), -(-width // layer.stride)))
            channels.append(layer.channels)
        rows = [[0] * FIELDS for _ in range(self.rows)]
        for number, layer in enumerate(layers, start=1):
            mirror, is_last = self.depth + number, number == depth
            has_skip, had_skip = layer.stride == 1, number > 1 and layers[number - 2].stride == 1
            outside, inside = sizes[number - 1], sizes[number]
            rows[number - 1] = [
                *(1, *inside, channels[number], *outside, channels[number - 1], layer.kernel, layer.stride),
                *(layer.weight, self.in_channels, number, number - 1),
                *(-1, mirror - 1 if had_skip else -1, int(number > 1)),
            ]
            source, source_channels = (number, channels[number]) if is_last else (mirror + 1, channels[number + 1])
            rows[mirror - 1] = [
                *(1, *inside, source_channels, *outside, channels[number], layer.kernel, layer.stride),
                *(layer.mirror_weight, self.out_channels, source, mirror),
                *(number if has_skip else -1, mirror if is_last and has_skip else -1, 1),
            ]
        source, colors = self.depth + 1 if depth else 0, self.image_channels
        rows[-1] = [
            *(1, *size, channels[min(1, depth)], *size, colors, LAST_KERNEL, 1),
            *(last_weight, colors, source, self.rows),
            *(-1, -1, int(depth > 0)),
        ]
        return [number for row in rows for number in row]

    def run(self, images: Tensor, geometry: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        """Images (n, c, h, w) to images of the same shape, in autocast's type.

        Args:
            images: The input; it gets no gradient.
            geometry: int32, what `geometry` gives.
            weights: int64 (weights, 2): the addresses of the weights, channels last and of the type that is computed
                in, and of their gradients, which the backward pass adds to.
            anchor: A scalar with a gradient, so that there is a backward pass.
        """
        device = images.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else images.dtype
        return _ChainFunction.apply(anchor, images.to(dtype), geometry, weights, self)  # type: ignore[no-any-return, no-untyped-call]


class _ChainFunction(torch.autograd.Function):
    """The chain that the geometry describes; adds the gradients of weights where the table of addresses says."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, images: Tensor, geometry: Tensor, weights: Tensor, chain: Chains) -> Tensor:
        launch = _Launch(chain, images, geometry, weights)
        slots = launch.empty_slots()
        launch.write(slots, 0, images)
        for row in range(chain.depth):
            launch.to_small(row, slots, relu=True)
        for row in reversed(range(chain.depth, chain.rows - 1)):
            launch.to_large(row, slots, relu=True)
        launch.to_large(chain.rows - 1, slots, relu=False)
        ctx.launch = launch
        ctx.save_for_backward(slots)
        return launch.read(slots, chain.rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        (slots,), launch = ctx.saved_tensors, ctx.launch
        chain = launch.chain
        changes = launch.empty_slots()
        launch.write(changes, chain.rows, gradients[0])
        for row in (chain.rows - 1, *range(chain.depth, chain.rows - 1)):
            launch.to_small(row, changes, activation=slots)
            launch.add_gradient(row, small=slots, large=changes)
        for row in reversed(range(chain.depth)):
            launch.to_large(row, changes, activation=slots)
            launch.add_gradient(row, small=changes, large=slots)
        return None, None, None, None, None


class _Launch:
    """Launches kernels for images of one shape."""

    def __init__(self, chain: Chains, images: Tensor, geometry: Tensor, weights: Tensor) -> None:
        self.chain, self._weights, self._shape = chain, weights, images.shape
        self._geometry = geometry.view(chain.rows, FIELDS)
        is_float = images.dtype is torch.float32
        self._precision = self._other_precision = "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
        if is_float and images.is_cuda and torch.backends.cudnn.allow_tf32:
            # Where a matrix lies the other way round in memory, three products in bfloat16 are faster than one in TF32.
            self._other_precision = "bf16x3"
        self._block = 32 if is_float else 64  # channels, or pixels, that are summed over at once
        n, _, height, width = images.shape
        self._images, self._slot_size = n, n * height * width * self._pad(max(chain.in_channels, chain.out_channels))
        self._like, self._pixels = images, n * height * width
        self._is_aligned = chain.in_channels % 16 == chain.out_channels % 16 == 0

    def empty_slots(self) -> Tensor:
        return self._like.new_empty(self.chain.rows + 1, self._slot_size)

    def _pad(self, channels: int) -> int:
        """The channels of a pixel in memory."""
        return -(-channels // self._block) * self._block

    def _view(self, slots: Tensor, slot: int) -> Tensor:
        """A slot as images (n, c, h, w), with their channels of zeros."""
        n, channels, height, width = self._shape
        padded = self._pad(channels)
        return slots[slot, : n * padded * height * width].view(n, height, width, padded).permute(0, 3, 1, 2)

    def write(self, slots: Tensor, slot: int, images: Tensor) -> None:
        view = self._view(slots, slot)
        view.zero_()
        view[:, : images.shape[1]].copy_(images)

    def read(self, slots: Tensor, slot: int) -> Tensor:
        return self._view(slots, slot)[:, : self._shape[1]].contiguous(memory_format=torch.channels_last)

    def to_small(self, row: int, slots: Tensor, activation: Tensor | None = None, *, relu: bool = False) -> None:
        grid = (-(-self._pixels // PIXELS), -(-self.chain.in_channels // CHANNELS))
        self._launch(kernels().to_small, grid, row, slots, activation, relu, self._precision)

    def to_large(self, row: int, slots: Tensor, activation: Tensor | None = None, *, relu: bool = False) -> None:
        n, _, height, width = self._shape
        of_phase = n * -(-height // 2) * -(-width // 2)
        programs = max(-(-self._pixels // PIXELS), 4 * -(-of_phase // PIXELS))
        grid = programs, -(-self.chain.in_channels // CHANNELS)
        self._launch(kernels().to_large, grid, row, slots, activation, relu, self._other_precision)

    def _launch(
        self, kernel: Any, grid: Any, row: int, slots: Tensor, activation: Tensor | None, relu: bool, precision: str
    ) -> None:
        kernel[grid](
            self._geometry[row], self._weights, slots, slots if activation is None else activation,
            self._images, self._slot_size, BACKWARD=activation is not None, RELU=relu, PRECISION=precision,
            ALIGNED=self._is_aligned and row < self.chain.rows - 1, PIXELS=PIXELS, OUTPUTS=CHANNELS,
            INPUTS=self._block, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip

    def add_gradient(self, row: int, small: Tensor, large: Tensor) -> None:
        """Add the gradient of the weight of a row."""
        chain, geometry = self.chain, self._geometry[row]
        columns = max(chain.in_channels, chain.out_channels)
        size = chain.in_channels * chain.kernel**2 * columns
        partial = small.new_empty(PARTS, size, dtype=torch.float32)
        blocks = -(-chain.in_channels // SUMS) * -(-columns // SUMS)
        kernels().sum_products[(blocks, chain.kernel**2, PARTS)](
            geometry, small, large, partial, self._images, self._slot_size, size, PARTS=PARTS,
            PRECISION=self._other_precision, ROWS=SUMS, COLUMNS=SUMS, PIXELS=self._block, BLOCK=self._block,
            num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
        kernels().add_parts[(-(-size // NUMBERS),)](
            geometry,
            self._weights,
            partial,
            small,
            self._images,
            size,
            PARTS=PARTS,
            PIXELS=self._block,
            NUMBERS=NUMBERS,
        )


@cache
def kernels() -> Any:
    """The kernels; raises ImportError where Triton is not installed."""
    try:
        return import_module("asng.fused._chain_kernels")
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; install asng[kernels]") from None
