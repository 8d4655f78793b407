"""The layers of the CIFAR-10 network (supplement D.2): operations of cells, entries, sums and the auxiliary head."""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import fused
from asng.experiments.cifar10 import space
from asng.fused._dispatch import align, have_hooks, is_supported
from asng.fused._maps import first_channels
from asng.fused._pointwise import reduce_diagonally


def norm(channels: int, affine: bool) -> nn.BatchNorm2d:
    """Batch norm in as few kernels as torch has it; small networks spend their time on launching them."""
    result = nn.BatchNorm2d(channels, affine=affine)
    result.num_batches_tracked = None  # only needed for cumulative averages
    if not affine:  # without a scale and a shift torch cannot use cuDNN's single kernel, and takes three
        del result.weight, result.bias
        result.register_buffer("weight", torch.ones(channels), persistent=False)
        result.register_buffer("bias", torch.zeros(channels), persistent=False)
    return result


def pointwise(inputs: int, outputs: int, affine: bool) -> nn.Sequential:
    """A 1x1 convolution, normalized."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), norm(outputs, affine))


def run_stem(stem: nn.Sequential, images: Tensor) -> Tensor:
    """The convolution and the batch norm before all cells.

    For fused kernels the convolution has channels of zeros up to an aligned row: cuDNN would copy the maps to have as
    many, and kernels read rows that are not aligned slowly.
    """
    conv, norm = cast(nn.Conv2d, stem[0]), stem[1]
    channels, row = conv.out_channels, align(conv.out_channels)
    uses_rows = isinstance(norm, fused.BatchNorm2d) and norm.training and is_supported(images)
    if row == channels or not uses_rows or images.requires_grad or have_hooks(stem, conv):
        return stem(images)  # type: ignore[no-any-return]
    weight = F.pad(conv.weight, (*[0] * 7, row - channels))
    return norm(first_channels(F.conv2d(images, weight, padding=conv.padding), channels))  # type: ignore[no-any-return]


def separable(channels: int, kernel: int, stride: int, affine: bool) -> nn.Sequential:
    """Twice ReLU, depthwise and 1x1 convolution, batch norm; the stride is that of the first."""
    layers: list[nn.Module] = []
    for step in (stride, 1):
        layers += [
            nn.ReLU(inplace=bool(layers)),  # the first is on what others may need
            nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=False),
            *pointwise(channels, channels, affine),
        ]
    return nn.Sequential(*layers)


class AveragePool(nn.AvgPool2d):
    """3x3 means with zeros around.

    For channels last on CUDA, torch 2.11 computes a wrong gradient of padded means
    (https://github.com/pytorch/pytorch/issues/188344).
    """

    def __init__(self, stride: int) -> None:
        super().__init__(3, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and x.is_contiguous(memory_format=torch.channels_last):
            return _AveragePool.apply(x, self.stride)  # type: ignore[no-any-return, no-untyped-call]
        return super().forward(x)


class _AveragePool(torch.autograd.Function):
    """3x3 means whose gradient is made of 3x3 means: of the given gradients, each at the middle of its window."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int) -> Tensor:
        ctx.shape, ctx.stride = x.shape, stride
        return F.avg_pool2d(x, 3, stride, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0]
        if ctx.stride > 1:
            like: Any = {"dtype": gradient.dtype, "device": gradient.device, "memory_format": torch.channels_last}
            spread = torch.empty(ctx.shape, **like).zero_()
            spread[:, :, :: ctx.stride, :: ctx.stride] = gradient
            gradient = spread
        return F.avg_pool2d(gradient, 3, 1, 1), None


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Along the second axis; a single one as it is."""
    return torch.cat(list(tensors), 1) if len(tensors) > 1 else tensors[0]


class PathSum(nn.Module):
    """The sum of two paths, each image of both times a factor, where there is one."""

    def forward(self, a: Tensor, b: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None) -> Tensor:
        return (a if scale_a is None else a * scale_a) + (b if scale_b is None else b * scale_b)


class FactorizedReduce(nn.Module):
    """Halves even heights and widths of rectified maps: (n, in, h, w) to (n, out, h/2, w/2), out even.

    Half of the channels see the pixels of even rows and columns, the others those one row and one
    column further. Called with `relu=True`, it rectifies the maps.
    """

    conv: nn.Conv2d
    norm: nn.BatchNorm2d

    def __init__(self, inputs: int, outputs: int, affine: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2 * inputs, outputs, 1, groups=2, bias=False)
        self.norm = norm(outputs, affine)

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        if isinstance(self.norm, fused.BatchNorm2d):
            return reduce_diagonally(x, self.conv, self.norm, relu=relu)
        x = F.relu(x) if relu else x
        if x.is_cuda:  # keeps the memory format
            even, odd = x[:, :, ::2, ::2], x[:, :, 1::2, 1::2]
            return self.norm(self.conv(torch.cat([even, odd], 1)))  # type: ignore[no-any-return]
        n, channels, height, width = x.shape
        blocks = x.reshape(n, channels, height // 2, 2, width // 2, 2)
        pixels = blocks.diagonal(0, 3, 5).movedim(-1, 1)  # both pixels of each 2x2 block: (n, 2, in, h/2, w/2)
        return self.norm(self.conv(pixels.flatten(1, 2)))  # type: ignore[no-any-return]


def auxiliary_head(inputs: int, affine: bool) -> nn.Sequential:
    """A second classifier, of maps (n, in, 8, 8), that helps to train the cells before it."""
    return nn.Sequential(
        nn.ReLU(),
        nn.AvgPool2d(5, stride=3),
        *pointwise(inputs, 128, affine),
        nn.ReLU(inplace=True),
        nn.Conv2d(128, 768, 2, bias=False),
        norm(768, affine),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(768, space.CLASSES),
    )
