"""Restored images beside their originals: the best, the middle and the worst, in one picture."""

import math

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from asng.experiments.inpainting.measures import Scores, restore

TILE = 128  # pixels: smaller images are shown larger, each of their pixels as a square
GAP, GROUP_GAP = 4, 20
LABEL_WIDTH, CAPTION = 92, 28  # width of the words on the left, height of those above and below
ROWS = ("original", "corrupted", "restored")


def choose_images(psnr: Tensor, each: int) -> dict[str, list[int]]:
    """The numbers of the images with the highest, the middle and the lowest PSNR: `each` of them, or a third of all.

    The best come best first, the worst worst first; images of the same PSNR in the order of their numbers. Of two
    images there is no middle one, and a single one is the best.

    >>> import torch
    >>> choose_images(torch.tensor([20.0, 24.0, 21.0, 23.0, 22.0]), 4)
    {'best': [1], 'median': [4], 'worst': [0]}
    """
    each = max(1, min(each, len(psnr) // 3))
    descending: list[int] = psnr.argsort(descending=True, stable=True).tolist()
    ascending: list[int] = psnr.argsort(stable=True).tolist()
    middle = (len(psnr) - each) // 2
    groups = {"best": descending[:each], "median": descending[middle : middle + each], "worst": ascending[:each]}
    if len(psnr) < 3:
        del groups["median"]
    if len(psnr) < 2:
        del groups["worst"]
    return groups


def picture(
    model: nn.Module, images: Tensor, masks: Tensor, scores: Scores, each: int = 4
) -> tuple[Image.Image, dict[str, list[int]]]:
    """A grid of originals, what was left of them and what the model made of that; and which images it shows.

    `images` (n, 3, height, width), `masks` (n, 1, height, width) and `scores` are those of an evaluation. Columns are
    images: the best, then those around the median, then the worst by PSNR, with both measures underneath.
    """
    groups = choose_images(scores.psnr, each)
    numbers = [number for group in groups.values() for number in group]
    originals = images[numbers]
    rows = (originals, *restore(model, originals, masks[numbers]))
    measures = [_measures(float(scores.psnr[number]), float(scores.ssim[number])) for number in numbers]
    return _grid(rows, measures, list(groups)), groups


def _grid(rows: tuple[Tensor, ...], measures: list[str], titles: list[str]) -> Image.Image:
    """Rows of images, uint8 (n, 3, height, width), with captions; the n columns fall into as many groups as titles."""
    count, _, height, width = rows[0].shape
    scale = max(1, TILE // max(height, width))
    height, width = height * scale, width * scale
    of_group = count // len(titles)
    left = [LABEL_WIDTH + column * (width + GAP) + column // of_group * (GROUP_GAP - GAP) for column in range(count)]
    top = [CAPTION + row * (height + GAP) for row in range(len(rows))]
    canvas = Image.new("RGB", (left[-1] + width + GAP, top[-1] + height + CAPTION), "white")
    words = ImageDraw.Draw(canvas)
    for label, y, images in zip(ROWS, top, rows, strict=True):
        words.text((LABEL_WIDTH - 2 * GAP, y + height // 2), label, "black", ImageFont.load_default(15), anchor="rm")
        for x, image in zip(left, images, strict=True):
            tile = Image.fromarray(image.permute(1, 2, 0).cpu().contiguous().numpy())
            words.rectangle((x - 1, y - 1, x + width, y + height), outline="lightgray")  # where does white end?
            canvas.paste(tile.resize((width, height), Image.Resampling.NEAREST), (x, y))
    for group, title in enumerate(titles):
        first, last = left[group * of_group], left[(group + 1) * of_group - 1] + width
        words.text(((first + last) // 2, CAPTION // 2), title, "black", ImageFont.load_default(15), anchor="mm")
    for x, measure in zip(left, measures, strict=True):
        words.text(
            (x + width // 2, canvas.height - CAPTION // 2), measure, "black", ImageFont.load_default(13), anchor="mm"
        )
    return canvas


def _measures(psnr: float, ssim: float) -> str:
    return f"{psnr:.1f} dB, {ssim:.3f}" if math.isfinite(psnr) else "perfect"
