"""Images of CIFAR-10: augmentation is what its slow, obvious version says, mini-batches follow from their number."""
# mypy: disable-error-code="arg-type, index, union-attr"

import numpy as np
import pytest
import torch

from asng.experiments._images import Batches, ImageSet, halves
from asng.experiments.cifar10 import data
from asng.experiments.cifar10.data import augment, augment_batches, draw_augmentations, normalize


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Augmentation


def slowly(image: torch.Tensor, drawn: np.ndarray, cutout: int) -> np.ndarray:
    """One augmented image (3, 32, 32), pixel by pixel."""
    top, left, flip, row, column = drawn.tolist()
    pixels = image.tolist()
    half = cutout // 2
    result = np.zeros((3, 32, 32))
    for channel in range(3):
        for y in range(32):
            for x in range(32):
                source_y, source_x = y + top - 4, (31 - x if flip else x) + left - 4
                inside = 0 <= source_y < 32 and 0 <= source_x < 32
                pixel = pixels[channel][source_y][source_x] if inside else 0
                normal = (pixel - data.MEAN[channel]) / data.STD[channel]
                hidden = row - half <= y <= row + half - 1 and column - half <= x <= column + half - 1
                result[channel, y, x] = 0 if hidden else normal
    return result


@pytest.mark.parametrize(("n", "cutout"), [(32, 16), (4, 2), (1, 64), (4, 0)])
def test_augmentation_equals_its_slow_version_pixel_by_pixel(n, cutout):
    images = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator(n))
    before = images.clone()
    result = augment(images, generator(5), cutout=cutout)
    drawn = np.stack(draw_augmentations(n, generator(5)), 1)
    expected = np.stack([slowly(image, numbers, cutout) for image, numbers in zip(images, drawn, strict=True)])
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-6)
    assert np.array_equal(result.numpy() == 0, expected == 0)
    assert torch.equal(images, before)
    if n == 32:  # every side is padded in some image, some are flipped, some squares are clipped
        top, left, flip, row, column = drawn.T
        assert {numbers.min() < 4 < numbers.max() for numbers in (top, left)} == {True}
        assert 0 < flip.sum() < n
        assert {numbers.min() < 8 and numbers.max() > 24 for numbers in (row, column)} == {True}


def test_a_square_of_odd_side_keeps_its_side_too():
    black = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
    for side in (1, 5, 16):
        whole = (augment(black, generator(0), cutout=side) == 0).sum((1, 2, 3)).max()
        assert whole == 3 * side * side


def code_positions(n: int) -> torch.Tensor:
    """Images whose pixels tell where they are: the row in red, the column in green, 100 in blue."""
    line = torch.arange(32, dtype=torch.uint8)
    row, column = line[:, None].expand(32, 32), line[None, :].expand(32, 32)
    return torch.stack([row, column, torch.full_like(row, 100)]).expand(n, 3, 32, 32)


def decode(result: torch.Tensor) -> torch.Tensor:
    mean, deviation = (torch.tensor(numbers)[:, None, None] for numbers in (data.MEAN, data.STD))
    return (result * deviation + mean).round().long()


def test_all_crops_and_flips_are_equally_likely():
    n = 16_200
    middle = decode(augment(code_positions(n), generator(0), cutout=0)[:, :, 15:17, 15:17])  # reached by no padding
    top, left = middle[:, 0, 0, 0] - 11, middle[:, 1, 0].min(1).values - 11
    flip = (middle[:, 1, 0, 0] > middle[:, 1, 0, 1]).long()
    counts = torch.bincount((top * 9 + left) * 2 + flip, minlength=162)
    assert len(counts) == 162
    chi2 = ((counts - 100.0) ** 2 / 100).sum().item()
    assert abs(chi2 - 161) < 5 * (2 * 161) ** 0.5


def test_the_square_lies_around_every_pixel_equally_often_and_is_clipped():
    n = 10_000
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8).expand(n, 3, 32, 32)
    hidden = (augment(white, generator(1))[:, 0] == 0).double().mean(0)
    # A row is met by squares around the rows from 7 above it to 8 below it, as far as there are any.
    met = torch.tensor([sum(0 <= center < 32 for center in range(y - 7, y + 9)) for y in range(32)]) / 32
    expected = met[:, None] * met[None, :]
    assert (hidden - expected).abs().max() < 5 * (expected * (1 - expected) / n).sqrt().max()
    row, column = (torch.from_numpy(numbers) for numbers in draw_augmentations(n, generator(1))[3:])
    chi2 = ((torch.bincount(row * 32 + column, minlength=1024) - n / 1024) ** 2 / (n / 1024)).sum().item()
    assert abs(chi2 - 1023) < 5 * (2 * 1023) ** 0.5


def test_augmentation_stays_on_the_device_of_the_images():
    somewhere = torch.empty(4, 3, 32, 32, dtype=torch.uint8, device="meta")  # knows no values, so none can be asked
    result = augment(somewhere, generator(0))
    assert (result.device.type, result.shape) == ("meta", (4, 3, 32, 32))


def test_normalized_is_pixel_less_mean_by_deviation():
    images = torch.tensor([0, 128, 255], dtype=torch.uint8)[:, None, None, None].expand(3, 3, 32, 32)
    result = normalize(images)
    for number, pixel in enumerate((0, 128, 255)):
        for channel in range(3):
            expected = (pixel - data.MEAN[channel]) / data.STD[channel]
            assert result[number, channel].unique().tolist() == pytest.approx([expected], abs=1e-6)


# Mini-batches


def number_images(n: int) -> ImageSet:
    """Images of one color each, labeled by it."""
    color = torch.arange(1, n + 1)
    return ImageSet(color.to(torch.uint8)[:, None, None, None].repeat(1, 3, 32, 32), color)


def test_labels_match_images_and_an_epoch_permutes_the_half():
    images = number_images(100)
    for half in halves(100, seed=0):
        batches = Batches(images, half, 10, augment_batches, 0, 1)
        assert batches.steps == 5
        for epoch in range(2):
            made = [batches(5 * epoch + step) for step in range(5)]
            assert sorted(torch.cat([labels for _, labels in made]).tolist()) == sorted((half + 1).tolist())
            for pictures, labels in made:
                assert torch.equal(decode(pictures)[:, 0].flatten(1).mode().values, labels)  # most of it is seen


def test_a_mini_batch_follows_from_seed_stream_and_number_alone():
    images = number_images(60)
    first, second = (Batches(images, torch.arange(60), 8, augment_batches, 3, 1) for _ in range(2))
    forward = [first(number) for number in range(20)]
    for number in reversed(range(20)):
        assert all(torch.equal(a, b) for a, b in zip(second(number), forward[number], strict=True))
    for seed, stream in ((3, 2), (4, 1)):
        other = Batches(images, torch.arange(60), 8, augment_batches, seed, stream)
        assert not any(torch.equal(other(number)[0], forward[number][0]) for number in range(20))


def test_mini_batches_that_are_prepared_ahead_are_the_same():
    images = number_images(60)
    one_by_one, ahead = (Batches(images, torch.arange(60), 8, augment_batches, 3, 1) for _ in range(2))
    ahead._ahead = 5  # as on a GPU
    for number in (*range(12), 4, 5, 30, 30):
        assert all(torch.equal(a, b) for a, b in zip(ahead(number), one_by_one(number), strict=True))


def test_the_images_of_an_epoch_look_different_in_the_next():
    images = ImageSet(code_positions(8).contiguous(), torch.arange(8))
    batches = Batches(images, torch.arange(8), 8, augment_batches, 0, 0)
    seen = {
        (int(label), picture.numpy().tobytes())
        for epoch in range(10)
        for picture, label in zip(*batches(epoch), strict=True)
    }
    assert len(seen) == 80


def test_every_image_has_a_cutout_of_16_clipped_at_the_border():
    pictures, _ = Batches(number_images(60), torch.arange(60), 60, augment_batches, 0, 0)(0)
    sizes = (pictures == 0).all(1).sum((1, 2))
    assert sizes.max() == 16 * 16
    assert 8 * 8 <= sizes.min() < sizes.max()


def test_a_part_holds_the_named_images_in_their_order():
    part = number_images(20).subset(torch.tensor([5, 2, 2]))
    assert part.labels.tolist() == [6, 3, 3]
    assert part.images[:, 0, 0, 0].tolist() == [6, 3, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Batches(number_images(5), torch.arange(6), 2, augment_batches, 0, 0),
            "num_train_images must be at most 5, got 6",
        ),
        (
            lambda: Batches(number_images(5), torch.arange(5), 6, augment_batches, 0, 0),
            "batch_size must be at most 5, the number of images, got 6",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_cure(make, message):
    with pytest.raises(ValueError, match=message):
        make()
