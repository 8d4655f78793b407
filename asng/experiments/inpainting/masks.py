"""What is missing of an image: its center, four fifths of its pixels, or one half.

A mask is True where the image is known; `images * mask` sets the rest to zero, in all channels alike.
"""

from typing import Literal

import torch
from torch import Tensor

Mask = Literal["center", "pixel", "half"]

KNOWN = 13_107  # of 65,536 pixels: the chance to be known is 1/5 to within 4e-6


def draw_masks(mask: Mask, n: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Masks (n, 1, height, width) on the CPU, drawn per image; the first of many are those of few.

    The generator is one of the CPU, so that every device gets the same masks. Of the three, only `pixel` needs many
    numbers, and 16 bits each are enough: for 16 images of 64x64 that takes a tenth of a millisecond.

    >>> draw_masks("center", 1, (4, 4), torch.Generator())[0, 0].int()
    tensor([[1, 1, 1, 1],
            [1, 0, 0, 1],
            [1, 0, 0, 1],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    height, width = size
    if mask == "center":
        return _center(height, width).expand(n, 1, height, width)
    if mask == "pixel":
        words = torch.empty((n * height * width + 3) // 4, dtype=torch.int64)
        words.random_(-(2**63), None, generator=generator)  # all 64 bits
        return words.view(torch.int16)[: n * height * width].view(n, 1, height, width) < KNOWN - 2**15
    return _halves(height, width)[torch.randint(4, (n,), generator=generator)]


def fixed_masks(mask: Mask, n: int, size: tuple[int, int], seed: int) -> Tensor:
    """The masks (n, 1, height, width) of a test set: the same for the same seed."""
    return draw_masks(mask, n, size, torch.Generator().manual_seed(seed))


def _center(height: int, width: int) -> Tensor:
    """Unknown: the rows and columns from one quarter to three quarters, 16 to 47 of 64."""
    known = torch.ones(height, width, dtype=torch.bool)
    known[height // 4 : height - height // 4, width // 4 : width - width // 4] = False
    return known


def _halves(height: int, width: int) -> Tensor:
    """Masks (4, 1, height, width) that lack the left, right, upper or lower half; of an odd size the larger one."""
    row, column = torch.arange(height)[:, None], torch.arange(width)[None, :]
    left, top = column < (width + 1) // 2, row < (height + 1) // 2
    right, bottom = column >= width // 2, row >= height // 2
    everywhere = torch.ones(height, width, dtype=torch.bool)
    return torch.stack([everywhere & ~half for half in (left, right, top, bottom)])[:, None]
