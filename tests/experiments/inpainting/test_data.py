"""Which faces train and which test, and mini-batches that follow from their number."""
# mypy: disable-error-code="arg-type, index, union-attr"

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from asng.experiments._images import Batches, ImageSet, halves
from asng.experiments.inpainting.data import (
    describe_faces,
    faces_folder,
    fixed_masks,
    load_faces,
    mask_batches,
    pick,
    random_split,
)


def save(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(path)


def some(n=20, size=8):
    """Faces whose pixels all differ and are above 0, so that a zero is a hole."""
    pixels = torch.randint(1, 256, (n, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return ImageSet(pixels, names=tuple(f"{number}.png" for number in range(n)))


def test_subfolders_train_and_test_are_the_split(tmp_path):
    for number in range(6):
        save(tmp_path / ("train" if number % 3 else "test") / "img" / f"{number}.png", shade=number)
    save(tmp_path / "val" / "9.png")
    data = load_faces(tmp_path, size=8)
    assert data.split == "folders train and test"
    assert data.train.names == tuple(f"train/img/{number}.png" for number in (1, 2, 4, 5))
    assert data.test.names == tuple(f"test/img/{number}.png" for number in (0, 3))
    assert data.train.images.shape == (4, 3, 8, 8)
    assert data.train.images[:, 0, 0, 0].tolist() == [1, 2, 4, 5]
    assert data.test.images[:, 0, 0, 0].tolist() == [0, 3]


def test_other_folders_are_split_by_a_seed(tmp_path):
    for number in range(60):
        save(tmp_path / f"{number:02}.png", shade=number)
    data, again, other = (
        load_faces(tmp_path, size=8, seed=5),
        load_faces(tmp_path, size=8, seed=5),
        load_faces(tmp_path, size=8),
    )
    assert (len(data.train), len(data.test), data.split) == (57, 3, "drawn with seed 5")
    assert set(data.train.names) | set(data.test.names) == {f"{number:02}.png" for number in range(60)}
    assert data.test.names == again.test.names != other.test.names
    for faces in (data.train, data.test):
        assert [f"{shade:02}.png" for shade in faces.images[:, 0, 0, 0].tolist()] == list(faces.names)


@pytest.mark.parametrize(
    ("n", "train", "test"),
    [(2, 1, 1), (19, 18, 1), (100, 95, 5), (39_999, 38_000, 1_999), (50_000, 48_000, 2_000), (202_599, 101_000, 2_000)],
)
def test_a_random_split_has_the_papers_sizes_or_a_twentieth(n, train, test):
    parts = random_split(n, seed=0)
    assert [len(part) for part in parts] == [train, test]
    assert len(np.unique(np.concatenate(parts))) == train + test
    assert max(int(part.max()) for part in parts) < n


def test_every_image_is_as_likely_to_be_drawn():
    times = np.zeros(40)
    for seed in range(2000):
        times[random_split(40, seed)[1]] += 1
    assert abs(times / 2000 - 0.05).max() < 5 * np.sqrt(0.05 * 0.95 / 2000)


def lists(folder, train, test):
    paths = folder / "train.txt", folder / "test.txt"
    for path, names in zip(paths, (train, test), strict=True):
        path.write_text("\n".join(names))
    return paths


def test_lists_are_the_split_and_their_order_is_kept(tmp_path):
    folder = tmp_path / "images"
    for number in range(5):
        save(folder / f"deep/{number}.png", shade=number)
    (folder / "deep/broken.png").write_text("no image")
    named = lists(tmp_path, ["3.png", "", "broken.png", "deep/1.png "], ["deep/4.png"])
    data = load_faces(folder, size=8, lists=named)
    assert data.train.names == ("deep/3.png", "deep/1.png")
    assert data.train.images[:, 0, 0, 0].tolist() == [3, 1]
    assert data.test.names == ("deep/4.png",)
    assert list(data.damaged) == ["deep/broken.png"]
    assert "train.txt" in data.split


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            ["a.png"],
            ["b.png", "x.png", "y.png"],
            r"test\.txt names images that are not in the folder.*: x\.png, y\.png$",
        ),
        (["a.png"] + [f"{n}.jpg" for n in range(12)], ["b.png"], r"9\.jpg and 2 more"),
        (["a.png", "b.png"], ["b.png"], r"name images twice: b\.png"),
        (["a.png", "a.png"], ["b.png"], r"name images twice: a\.png"),
        (["1/same.png", "same.png"], ["b.png"], r"not only once: same\.png"),
        (["a.png"], [], r"test\.txt names no image"),
    ],
)
def test_wrong_lists_are_refused_with_the_names(tmp_path, train, test, message):
    for name in ("a.png", "b.png", "1/same.png", "2/same.png"):
        save(tmp_path / "images" / name)
    with pytest.raises(ValueError, match=message):
        load_faces(tmp_path / "images", size=8, lists=lists(tmp_path, train, test))


def test_a_list_that_is_not_there_is_refused(tmp_path):
    save(tmp_path / "images" / "a.png")
    with pytest.raises(
        ValueError, match=r"there is no file .*train\.txt; give one with the name of an image in each line"
    ):
        load_faces(tmp_path / "images", size=8, lists=(tmp_path / "train.txt", tmp_path / "test.txt"))


def test_the_folder_is_the_one_given_or_the_faces_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ASNG_DATA", str(tmp_path))
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "celeba.zip").touch()
    assert faces_folder() == tmp_path
    (tmp_path / "CelebA64").mkdir()
    assert faces_folder() == faces_folder(tmp_path / "CelebA64") == tmp_path / "CelebA64"
    (tmp_path / "faces").mkdir()
    with pytest.raises(ValueError, match=r"CelebA64.*faces\? Name one by --data"):
        faces_folder()
    with pytest.raises(ValueError, match=r"no folder .*nowhere.*--data, ASNG_DATA.*CelebA\.html"):
        load_faces(tmp_path / "nowhere")


def test_faces_are_told_apart_by_their_numbers_and_all_their_names():
    def describe(train, test):
        return describe_faces(
            *(ImageSet(torch.zeros(len(n), 3, 4, 4, dtype=torch.uint8), names=tuple(n)) for n in (train, test))
        )

    assert describe("abc", "d") == describe("abc", "d") == "3 to train with, 1 to test with, named 25b0e498c1ac"
    assert len({describe("abc", "d"), describe("abx", "d"), describe("abc", "x"), describe("ab", "cd")}) == 4


def test_a_part_of_the_faces_is_in_the_order_of_its_numbers():
    faces = some()
    part = faces.subset(torch.tensor([7, 2]))
    assert part.names == ("7.png", "2.png")
    assert torch.equal(part.images, torch.stack([faces.images[7], faces.images[2]]))


def test_picking_mirrors_what_is_to_be_mirrored():
    images = some().images
    chosen, mirrored = torch.tensor([3, 5, 3]), torch.tensor([False, True, True])
    expected = torch.stack([images[3], images[5].flip(2), images[3].flip(2)])
    assert torch.equal(pick(images, chosen, mirrored), expected)


@pytest.mark.parametrize("mask", ["center", "pixel", "half"])
def test_a_mini_batch_holds_originals_and_the_same_with_holes(mask):
    faces = some()
    batches = Batches(faces, torch.arange(20), 8, partial(mask_batches, mask), 0, 1)
    assert batches.steps == 2
    seen = []
    for number in range(3):
        original, corrupted = batches(number)
        assert original.dtype == corrupted.dtype == torch.float32
        assert original.shape == corrupted.shape == (8, 3, 8, 8)
        for image in (original * 255).round().byte():
            assert any(torch.equal(image, face) or torch.equal(image, face.flip(2)) for face in faces.images)
        known = corrupted != 0
        assert torch.equal(corrupted[known], original[known])
        assert torch.equal(known[:, :1].expand_as(known), known)
        if mask == "center":
            assert torch.equal(known[:, :1], fixed_masks("center", 8, (8, 8), 0))
        else:
            assert 0 < known.float().mean() < 0.6
            assert len({tuple(one.flatten().tolist()) for one in known}) > 2  # each image has its own
        seen.append(known)
    assert torch.equal(seen[0], seen[1]) == (mask == "center")  # and each mini-batch
    assert (original.min() > 0) & (original.max() <= 1)


def test_an_epoch_sees_every_face_once_and_half_of_them_mirrored():
    faces = some(64)
    batches = Batches(faces, torch.arange(64), 16, partial(mask_batches, "half"), 3, 0)
    flips, total = 0, 0
    for epoch in range(25):
        seen = set()
        for number in range(epoch * 4, epoch * 4 + 4):
            for image in (batches(number)[0] * 255).round().byte():
                same = (faces.images == image).flatten(1).all(1).nonzero().flatten().tolist()
                mirrored = (faces.images == image.flip(2)).flatten(1).all(1).nonzero().flatten().tolist()
                assert len(same) + len(mirrored) == 1
                seen.add((same + mirrored)[0])
                flips, total = flips + len(mirrored), total + 1
        assert seen == set(range(64))
    assert abs(flips / total - 0.5) < 4 * np.sqrt(0.25 / total)


@pytest.mark.parametrize("mask", ["pixel", "half"])
def test_a_mini_batch_follows_from_seeds_and_number_alone(mask):
    faces, indices = some(), halves(20, seed=0)[0]
    one, other = (
        Batches(faces, indices, 4, partial(mask_batches, mask), 7, 1),
        Batches(faces, indices, 4, partial(mask_batches, mask), 7, 1),
    )
    for number in range(5):
        one(number)
    for first, second in zip(one(9), other(9), strict=True):
        assert torch.equal(first, second)
    for seed, stream in ((8, 1), (7, 2)):
        assert not torch.equal(Batches(faces, indices, 4, partial(mask_batches, mask), seed, stream)(9)[1], one(9)[1])


def test_mini_batches_come_from_the_faces_named():
    faces = some()
    batches = Batches(faces, torch.tensor([4, 9]), 2, partial(mask_batches, "half"), 0, 0)
    means = {round(float(image.mean()), 4) for image in batches(0)[0]}
    assert means == {round(float((faces.images[index] / 255).mean()), 4) for index in (4, 9)}
    with pytest.raises(ValueError, match="num_train_images must be at most 20, got 21"):
        Batches(faces, torch.tensor([4, 20]), 2, partial(mask_batches, "half"), 0, 0)
