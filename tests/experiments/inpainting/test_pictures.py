"""The picture of restored images: which are shown, and that they are shown as they are."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from asng.experiments.inpainting import pictures
from asng.experiments.inpainting.data import fixed_masks
from asng.experiments.inpainting.measures import Scores, score_restoration
from asng.experiments.inpainting.pictures import choose_images, picture


def test_the_best_the_middle_and_the_worst_are_chosen():
    psnr = torch.tensor([25.0, math.inf, 22.0, 28.0, 21.0, 24.0, 22.0, 27.0])
    assert choose_images(psnr, 2) == {"best": [1, 3], "median": [0, 5], "worst": [4, 2]}


def test_no_image_is_shown_twice_where_there_are_few():
    psnr = torch.tensor([25.0, math.inf, 22.0, 28.0, 21.0, 24.0, 22.0, 27.0])
    assert choose_images(psnr, 4) == {"best": [1, 3], "median": [0, 5], "worst": [4, 2]}
    assert choose_images(psnr[:5], 3) == {"best": [1], "median": [0], "worst": [4]}
    assert choose_images(psnr[:2], 4) == {"best": [1], "worst": [0]}
    assert choose_images(psnr[:1], 4) == {"best": [0]}


class Brighter(nn.Module):
    def forward(self, corrupted):
        return corrupted + 0.2


@pytest.mark.parametrize(("size", "scale"), [(64, 2), (16, 8), (140, 1)])
def test_every_image_stands_in_its_place_pixel_by_pixel(tmp_path, size, scale):
    images = torch.randint(256, (9, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    masks = fixed_masks("center", 9, (size, size), seed=0)
    scores = score_restoration(Brighter(), images, masks)
    image, groups = picture(Brighter(), images, masks, scores, each=2)
    assert groups == choose_images(scores.psnr, 2)
    image.save(tmp_path / "grid.png")
    canvas = torch.from_numpy(np.array(Image.open(tmp_path / "grid.png"))).permute(2, 0, 1)
    side = size * scale
    rows = [
        images,
        images * masks,
        ((images * masks / 255 + 0.2).clamp(0, 1) * 255).round().byte(),
    ]
    numbers = [number for group in groups.values() for number in group]
    left = [pictures.LABEL_WIDTH + at * (side + pictures.GAP) + at // 2 * 16 for at in range(6)]
    for row, versions in enumerate(rows):
        top = pictures.CAPTION + row * (side + pictures.GAP)
        for x, number in zip(left, numbers, strict=True):
            tile = canvas[:, top : top + side, x : x + side]
            shown = versions[number].repeat_interleave(scale, 1).repeat_interleave(scale, 2)
            assert torch.equal(tile, shown)
    assert canvas.shape[2] == left[-1] + side + pictures.GAP
    assert canvas.shape[1] == 2 * pictures.CAPTION + 3 * side + 2 * pictures.GAP


def test_words_stand_beside_above_and_below():
    images = torch.full((3, 3, 32, 32), 9, dtype=torch.uint8)
    scores = Scores(torch.tensor([20.0, math.inf, 10.0]), torch.tensor([0.5, 1.0, 0.2]))
    image, _ = picture(Brighter(), images, fixed_masks("half", 3, (32, 32), seed=0), scores, each=1)
    dark = np.array(image.convert("L")) < 100
    tops = pictures.CAPTION, image.height - pictures.CAPTION
    assert dark[: tops[0], pictures.LABEL_WIDTH :].any()
    assert dark[tops[1] :, pictures.LABEL_WIDTH :].any()
    for row in range(3):
        top = pictures.CAPTION + row * (128 + pictures.GAP)
        beside = dark[top : top + 128, : pictures.LABEL_WIDTH]
        assert beside.any()
        assert not beside[:, :4].any()
        assert not beside[:, -4:].any()
