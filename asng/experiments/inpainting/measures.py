"""Quality of restored images: PSNR and SSIM per image, at the precision of a picture file.

Restored images are clipped to [0, 1] and rounded to 0..255 before they are compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from asng._progress import Progress, no_progress

WINDOW, SIGMA = 11, 1.5  # of the Gaussian that SSIM looks through
LUMINANCE, CONTRAST = (0.01 * 255) ** 2, (0.03 * 255) ** 2  # the paper's C1 = (K1 L)^2, C2 = (K2 L)^2


def quantize(images: Tensor) -> Tensor:
    """Images in [0, 1] as bytes 0..255; what lies outside is clipped, and what is not a number is black.

    >>> quantize(torch.tensor([-1.0, 0.5, 1.2, math.nan])).tolist()
    [0, 128, 255, 0]
    """
    return (images.float().nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8)


def psnr(restored: Tensor, original: Tensor) -> Tensor:
    """Peak signal-to-noise ratios (n,) in decibels of images (n, channels, height, width), float64.

    Images are floats in [0, 1], or bytes. Two that are equal have no noise: infinity.

    >>> psnr(torch.tensor([0, 10]).byte().view(2, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    tensor([    inf, 28.1308], dtype=torch.float64)
    """
    restored, original = _to_pixels(restored, original)
    error = (restored - original).square().mean((1, 2, 3))
    return 10 * (255**2 / error).log10()


def ssim(restored: Tensor, original: Tensor) -> Tensor:
    """Structural similarities (n,) of images (n, channels, height, width), float64; 1 for equal images.

    The mean over all places where the whole 11x11 Gaussian window fits in, then over channels (Wang et al., 2004).

    >>> ssim(torch.ones(1, 3, 16, 16), torch.ones(1, 3, 16, 16))
    tensor([1.], dtype=torch.float64)
    """
    restored, original = _to_pixels(restored, original)
    mean_r, mean_o, of_squares_r, of_squares_o, of_products = _blur(
        torch.stack([restored, original, restored.square(), original.square(), restored * original])
    )
    variances = of_squares_r - mean_r.square() + of_squares_o - mean_o.square()
    covariance = of_products - mean_r * mean_o
    luminance = (2 * mean_r * mean_o + LUMINANCE) / (mean_r.square() + mean_o.square() + LUMINANCE)
    structure = (2 * covariance + CONTRAST) / (variances + CONTRAST)
    similarity: Tensor = luminance * structure
    return similarity.mean((1, 2, 3))


def _to_pixels(restored: Tensor, original: Tensor) -> tuple[Tensor, Tensor]:
    """Both as float64 in 0..255: variances are small differences of large numbers, and GPUs round float32."""
    first, second = (
        (image if image.dtype == torch.uint8 else quantize(image)).double() for image in (restored, original)
    )
    return first, second


def _blur(images: Tensor) -> Tensor:
    """Weighted means under the window wherever it fits in: two products with a band matrix, one per direction."""
    height, width = images.shape[-2:]
    return _band(height, images.device) @ images @ _band(width, images.device).T


def _band(length: int, device: torch.device) -> Tensor:
    """(length - 10, length): the window in each row, one place further than in the row above."""
    offset = torch.arange(length, device=device) - torch.arange(length - WINDOW + 1, device=device)[:, None]
    weights = torch.exp(-0.5 * ((offset - WINDOW // 2).double() / SIGMA) ** 2)
    weights = weights * ((offset >= 0) & (offset < WINDOW))
    return weights / weights.sum(1, keepdim=True)


@dataclass(frozen=True)
class Scores:
    """PSNR (n,) and SSIM (n,) of restored images, float64 on the CPU."""

    psnr: Tensor
    ssim: Tensor

    def report(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """All numbers, ready for JSON: means over the images, and both measures per image.

        The mean of PSNR leaves out perfect images, whose number stands beside it, and whose PSNR is None.

        >>> Scores(torch.tensor([20.0, math.inf]), torch.tensor([0.5, 1.0])).report()["psnr"]
        20.0
        """
        finite = self.psnr[self.psnr.isfinite()]
        rows = zip(names or range(len(self.psnr)), self.psnr.tolist(), self.ssim.tolist(), strict=True)
        return {
            "images": len(self.psnr),
            "psnr": float(finite.mean()) if len(finite) else None,
            "ssim": float(self.ssim.mean()),
            "perfect": int(self.psnr.isinf().sum()),
            "per_image": [
                {"image": name, "psnr": decibels if math.isfinite(decibels) else None, "ssim": similarity}
                for name, decibels, similarity in rows
            ],
        }


@torch.no_grad()
def restore(model: nn.Module, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Mask images (n, 3, height, width) in 0..255 and restore them; returns masked and restored ones, as bytes."""
    corrupted = images * masks.to(images.device)
    training = model.training
    restored = quantize(model.eval()(corrupted / 255))
    model.train(training)
    return corrupted, restored


def score_restoration(
    model: nn.Module, images: Tensor, masks: Tensor, batch_size: int = 100, progress: Progress = no_progress
) -> Scores:
    """PSNR and SSIM of a model on images, uint8 (n, 3, height, width), on its device, behind masks (n, 1, ...)."""
    found: list[tuple[Tensor, Tensor]] = []
    for first in range(0, len(images), batch_size):
        progress(first / len(images))
        original = images[first : first + batch_size]
        restored = restore(model, original, masks[first : first + batch_size])[1]
        found.append((psnr(restored, original), ssim(restored, original)))
    progress(1.0)
    return Scores(*(torch.cat(values).cpu() for values in zip(*found, strict=True)))
