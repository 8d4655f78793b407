"""What is missing of an image, and how often."""

import numpy as np
import pytest
import torch

from asng.experiments.inpainting.data import draw_masks, fixed_masks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_center_lacks_rows_and_columns_16_to_47():
    expected = torch.ones(64, 64, dtype=torch.bool)
    for row in range(16, 48):
        for column in range(16, 48):
            expected[row, column] = False
    masks = draw_masks("center", 3, (64, 64), generator())
    assert masks.shape == (3, 1, 64, 64)
    assert all(torch.equal(mask[0], expected) for mask in masks)


def test_the_center_of_other_sizes_is_their_middle_half():
    known = draw_masks("center", 1, (8, 20), generator())[0, 0]
    assert known.all(1).nonzero().flatten().tolist() == [0, 1, 6, 7]
    assert known.all(0).nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 15, 16, 17, 18, 19]


def test_of_pixels_a_fifth_is_known_independently_of_each_other():
    masks = draw_masks("pixel", 500, (64, 64), generator())[:, 0].double()
    n = masks.numel()
    error = np.sqrt(0.2 * 0.8 / n)
    assert abs(masks.mean() - 0.2) < 4 * error
    # Each image, each place and each pair of neighbors, in an image and between images.
    assert (masks.mean((1, 2)) - 0.2).abs().max() < 5 * np.sqrt(0.16 / 64**2)
    assert (masks.mean(0) - 0.2).abs().max() < 5 * np.sqrt(0.16 / 500)
    centered = masks - 0.2
    for shift in ((0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 4)):
        correlation = (centered * centered.roll(shift, (0, 1, 2))).mean() / 0.16
        assert abs(correlation) < 4 / np.sqrt(n)


def test_halves_are_the_four_sides_equally_often():
    masks = draw_masks("half", 4000, (6, 10), generator())
    row, column = torch.arange(6)[:, None].expand(6, 10), torch.arange(10).expand(6, 10)
    sides = [column >= 5, column < 5, row >= 3, row < 3]  # known when left, right, top, bottom is missing
    counts = [sum(torch.equal(mask[0], side) for mask in masks) for side in sides]
    assert sum(counts) == 4000
    assert max(abs(count - 1000) for count in counts) < 4 * np.sqrt(4000 * 0.25 * 0.75)


def test_of_an_odd_size_the_larger_half_is_missing():
    masks = draw_masks("half", 50, (5, 5), generator())
    assert {int(mask.sum()) for mask in masks} == {10}


@pytest.mark.parametrize("mask", ["center", "pixel", "half"])
def test_a_mask_is_the_same_for_all_channels_and_leaves_zeros(mask):
    images = torch.rand(5, 3, 16, 16) + 0.1
    masks = draw_masks(mask, 5, (16, 16), generator())
    left = images * masks
    for channel in range(3):
        assert torch.equal(left[:, channel] != 0, masks[:, 0])
    assert torch.equal(left[left != 0], images[(left != 0)])


@pytest.mark.parametrize("mask", ["center", "pixel", "half"])
def test_masks_follow_from_the_seed_and_the_first_of_many_are_those_of_few(mask):
    many, few = fixed_masks(mask, 9, (5, 7), seed=3), fixed_masks(mask, 4, (5, 7), seed=3)
    assert torch.equal(many[:4], few)
    if mask != "center":
        assert not torch.equal(many, fixed_masks(mask, 9, (5, 7), seed=4))
