"""PSNR and SSIM against scikit-image, and the evaluation of a model."""
# mypy: disable-error-code="arg-type, index, union-attr"

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.filters import gaussian
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import nn

from asng.experiments.inpainting.data import fixed_masks
from asng.experiments.inpainting.measures import Scores, psnr, quantize, restore, score_restoration, ssim


def smooth(n, seed, size=(64, 64)):
    """Images with large and small structures, flat and saturated places: bytes (n, 3, height, width)."""
    rng = np.random.default_rng(seed)
    images = sum(
        gaussian(rng.normal(size=(n, 3, *size)), (0, 0, sigma, sigma)) * sigma * strength
        for sigma, strength in ((12, 300), (3, 100), (0.8, 30))
    )
    return torch.from_numpy(np.clip(images + 128, 0, 255).astype(np.uint8))


def oracle(restored, original):
    return structural_similarity(
        restored.numpy(),
        original.numpy(),
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=255,
        channel_axis=0,
    )


@pytest.mark.parametrize("size", [(64, 64), (11, 11), (40, 25)])
def test_ssim_is_that_of_scikit_image(size):
    original = smooth(6, 0, size)
    noise = torch.from_numpy(np.random.default_rng(1).normal(size=original.shape))
    strength = torch.tensor([0, 0.5, 3, 10, 50, 500]).view(6, 1, 1, 1)
    restored = (original + noise * strength).round().clamp(0, 255).byte()
    expected = [oracle(*pair) for pair in zip(restored, original, strict=True)]
    np.testing.assert_allclose(ssim(restored, original), expected, rtol=0, atol=1e-9)
    assert expected[0] == 1
    assert expected[-1] < 0.3


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 255))
def test_ssim_of_nearly_flat_images_is_that_of_scikit_image(seed, first, second):
    rng = np.random.default_rng(seed)
    images = [
        torch.from_numpy(np.clip(value + rng.integers(-1, 2, (1, 3, 16, 16)), 0, 255).astype(np.uint8))
        for value in (first, second)
    ]
    np.testing.assert_allclose(float(ssim(*images)), oracle(images[0][0], images[1][0]), rtol=0, atol=1e-9)


def test_psnr_is_its_formula_and_that_of_scikit_image():
    original = smooth(3, 0)
    restored = (original.int() + torch.tensor([1, -7, 40]).view(3, 1, 1, 1)).clamp(0, 255).byte()
    found = psnr(restored, original)
    assert found.shape == (3,)
    for decibels, one, other in zip(found.tolist(), restored, original, strict=True):
        squares = [(int(a) - int(b)) ** 2 for a, b in zip(one.flatten(), other.flatten(), strict=True)]
        assert decibels == pytest.approx(20 * math.log10(255) - 10 * math.log10(sum(squares) / len(squares)))
        assert decibels == pytest.approx(peak_signal_noise_ratio(other.numpy(), one.numpy(), data_range=255))


def test_measures_see_images_as_a_file_would_hold_them():
    original = smooth(2, 0)
    exact = original / 255
    assert psnr(exact + 0.4 / 255, original).isinf().all()  # rounded away
    assert ssim(exact - 0.4 / 255, original).tolist() == [1, 1]
    white, beyond = torch.ones(1, 3, 16, 16), torch.full((1, 3, 16, 16), 7.5)
    assert psnr(beyond, white).isinf()
    assert torch.equal(psnr(beyond.half(), white / 2), psnr(white, torch.full((1, 3, 16, 16), 128).byte()))


def test_what_is_not_a_number_is_black():
    strange = torch.tensor([math.nan, math.inf, -math.inf, 0.5 / 255, 1.5 / 255, 254.5 / 255])
    assert quantize(strange).tolist() == [0, 255, 0, 0, 2, 254]


class Gray(nn.Module):
    """Fills holes with gray, and says in which mode it ran."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.seen = []

    def forward(self, corrupted):
        assert not torch.is_grad_enabled()
        self.seen.append(len(corrupted))
        return self.dropout(torch.where(corrupted == 0, 0.5, corrupted))


def test_evaluation_is_that_of_every_image_by_itself():
    images, masks, model = smooth(7, 0).clamp(min=1), fixed_masks("half", 7, (64, 64), seed=0), Gray()
    heard: list[float] = []
    scores = score_restoration(model, images, masks, batch_size=3, progress=heard.append)
    assert model.seen == [3, 3, 1]
    assert heard == [0, 3 / 7, 6 / 7, 1]
    assert model.training
    for number in range(7):
        by_hand = torch.where(masks[number], images[number], 128)[None]
        assert scores.psnr[number] == psnr(by_hand, images[number : number + 1])
        assert scores.ssim[number] == pytest.approx(float(ssim(by_hand, images[number : number + 1])), abs=1e-12)


def test_restoring_shows_what_was_left_and_what_came_of_it():
    images, masks = smooth(2, 0).clamp(min=1), fixed_masks("pixel", 2, (64, 64), seed=0)
    corrupted, restored = restore(Gray(), images, masks)
    assert corrupted.dtype == restored.dtype == torch.uint8
    assert torch.equal(corrupted, torch.where(masks, images, 0))
    assert torch.equal(restored, torch.where(masks, images, 128))


def test_the_report_is_json_and_its_mean_leaves_out_perfect_images():
    scores = Scores(torch.tensor([20.0, math.inf, 30.0]), torch.tensor([0.5, 1.0, 0.75]))
    report = json.loads(json.dumps(scores.report(["a", "b", "c"]), allow_nan=False))
    assert report == {
        "images": 3,
        "psnr": 25,
        "ssim": 0.75,
        "perfect": 1,
        "per_image": [
            {"image": "a", "psnr": 20, "ssim": 0.5},
            {"image": "b", "psnr": None, "ssim": 1},
            {"image": "c", "psnr": 30, "ssim": 0.75},
        ],
    }
    nothing = Scores(torch.tensor([math.inf]), torch.tensor([1.0])).report()
    assert (nothing["psnr"], nothing["perfect"], nothing["per_image"][0]["image"]) == (None, 1, 0)
