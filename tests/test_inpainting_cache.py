"""The cache of many faces: kept in one file, built anew when something changes, by one after the other."""

import fcntl
import json
import os
import threading

import numpy as np
import pytest
from small_faces import BLUE, RED, is_all, save, texture, write_boxes

from asng.experiments.inpainting import cache
from asng.experiments.inpainting.cache import read_faces


def test_all_good_images_are_kept_with_their_names_in_order(tmp_path):
    pixels = {name: texture(tmp_path / name, (64, 64), seed) for seed, name in enumerate(("b.png", "c/a.png", "a.png"))}
    kept = read_faces(tmp_path)
    assert kept.names == ("a.png", "b.png", "c/a.png")
    assert kept.images.shape == (3, 3, 64, 64)
    assert kept.images.dtype == np.uint8
    assert kept.damaged == {}
    for name, image in zip(kept.names, kept.images, strict=True):
        assert np.array_equal(image, pixels[name].transpose(2, 0, 1))


def test_faces_are_cropped_by_boxes_where_there_are_some(tmp_path):
    save(tmp_path / "img_celeba/1.png", (100, 60), RED, (60, 10, 100, 50), BLUE)
    write_boxes(tmp_path / "list_bbox_celeba.txt", {"1.png": (60, 10, 40, 40)})
    assert is_all(read_faces(tmp_path).images[0], BLUE)
    assert json.loads((tmp_path / ".asng/faces-64.json").read_text())["crop"] == "list_bbox_celeba.txt"


def test_other_sizes_are_kept_beside_each_other(tmp_path):
    save(tmp_path / "a.png")
    assert read_faces(tmp_path, size=8).images.shape == (1, 3, 8, 8)
    assert read_faces(tmp_path).images.shape == (1, 3, 64, 64)
    assert len(list((tmp_path / ".asng").iterdir())) == 4


def test_damaged_images_are_listed_and_left_out(tmp_path):
    texture(tmp_path / "whole.jpg", (200, 200))
    texture(tmp_path / "cut.jpg", (200, 200))
    texture(tmp_path / "cut.png", (200, 200))
    texture(tmp_path / "changed.png", (200, 200))
    for name in ("cut.jpg", "cut.png"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    content = bytearray((tmp_path / "changed.png").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "changed.png").write_bytes(content)
    (tmp_path / "empty.webp").touch()
    (tmp_path / "text.bmp").write_text("this is not an image")
    kept = read_faces(tmp_path)
    assert kept.names == ("whole.jpg",)
    assert len(kept.images) == 1
    assert list(kept.damaged) == ["changed.png", "cut.jpg", "cut.png", "empty.webp", "text.bmp"]
    assert "truncated" in kept.damaged["cut.jpg"]
    assert all(str(tmp_path) not in reason for reason in kept.damaged.values())
    assert read_faces(tmp_path).damaged == kept.damaged  # from the cache too
    assert json.loads((tmp_path / ".asng/faces-64.json").read_text())["damaged"] == kept.damaged


def test_a_folder_without_good_images_is_an_error_with_the_cure(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere; name the one.*--data, ASNG_DATA or"):
        read_faces(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"holds no images \(\.jpg.*--data, ASNG_DATA or"):
        read_faces(tmp_path)
    (tmp_path / "a.png").write_text("no image either")
    with pytest.raises(ValueError, match=rf"all 1 images in {tmp_path} are damaged, such as a\.png \(cannot identify"):
        read_faces(tmp_path)
    assert list((tmp_path / ".asng").iterdir()) == []


def built(folder, **options):
    """Whether faces() had to build the cache."""
    heard: list[float] = []
    read_faces(folder, progress=heard.append, **options)
    assert heard == sorted(heard)
    assert heard == [] or (heard[0] == 0 and heard[-1] == 1)
    return bool(heard)


def test_the_cache_is_built_again_when_files_or_boxes_change_and_the_old_one_goes(tmp_path):
    folder = tmp_path / "img_celeba"
    for number in range(3):
        save(folder / f"{number}.jpg", color=RED)
    boxes = {f"{number}.jpg": (0, 0, 64, 64) for number in range(5)}
    write_boxes(tmp_path / "list_bbox_celeba.txt", boxes)
    assert built(tmp_path)
    assert not built(tmp_path)
    save(folder / "3.jpg", color=BLUE)  # one more
    assert built(tmp_path)
    assert read_faces(tmp_path).images.shape[0] == 4
    os.rename(folder / "3.jpg", folder / "4.jpg")  # another name
    assert built(tmp_path)
    os.utime(folder / "0.jpg", ns=(1, 1))  # written again
    assert built(tmp_path)
    (folder / "4.jpg").unlink()
    assert built(tmp_path)
    write_boxes(tmp_path / "list_bbox_celeba.txt", boxes | {"0.jpg": (0, 0, 20, 20)})
    assert built(tmp_path)
    assert not built(tmp_path)
    assert len(list((tmp_path / ".asng").iterdir())) == 2


def test_the_cache_of_another_version_is_built_again(tmp_path, monkeypatch):
    save(tmp_path / "a.png")
    assert built(tmp_path)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    assert built(tmp_path)


@pytest.mark.parametrize("harm", ["cut", "gone", "no json", "other json"])
def test_a_damaged_cache_is_built_again(tmp_path, harm):
    pixels = texture(tmp_path / "a.png", (64, 64))
    read_faces(tmp_path)
    (images,) = (tmp_path / ".asng").glob("*.npy")
    about = tmp_path / ".asng/faces-64.json"
    if harm == "cut":
        os.truncate(images, 1000)
    elif harm == "gone":
        images.unlink()
    else:
        about.write_text("{" if harm == "no json" else "[1]")
    assert built(tmp_path)
    assert np.array_equal(read_faces(tmp_path).images[0], pixels.transpose(2, 0, 1))


def test_an_interruption_leaves_the_old_cache_and_nothing_else(tmp_path):
    for number in range(cache.CHUNK + 1):
        save(tmp_path / f"{number:03}.png", (4, 4))
    read_faces(tmp_path, size=4)
    before = {path: path.read_bytes() for path in (tmp_path / ".asng").iterdir()}
    save(tmp_path / "more.png", (4, 4))

    def interrupt(done):
        if done > 0:
            raise KeyboardInterrupt

    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        read_faces(tmp_path, 4, interrupt)
    assert threading.active_count() == threads
    assert {path: path.read_bytes() for path in (tmp_path / ".asng").iterdir()} == before
    assert len(read_faces(tmp_path, size=4).names) == cache.CHUNK + 2


def test_a_folder_that_cannot_be_written_is_cached_for_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "user" / name)
    folder = tmp_path / "images"
    save(folder / "a.png")
    (folder / ".asng").write_text("in the way, as a missing permission would be")
    assert built(folder)
    assert not built(folder)
    assert len(list((tmp_path / "user/asng/faces").glob("*/faces-64*"))) == 2


def test_what_killed_builders_left_goes_and_what_others_build_stays(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / ".asng").mkdir()
    left = tmp_path / ".asng/.faces-64-0.npy.asng-12-0123abcd"
    with open(left, "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as somebody has it who builds
        assert built(tmp_path)
        assert left.exists()
    save(tmp_path / "b.png")
    assert built(tmp_path)
    assert len(list((tmp_path / ".asng").iterdir())) == 2


def test_what_is_left_while_building_goes_at_the_end(tmp_path):
    save(tmp_path / "a.png")
    left = tmp_path / ".asng/.faces-64-0.npy.asng-12-0123abcd"
    read_faces(tmp_path, progress=lambda done: None if done else left.touch())
    assert len(list((tmp_path / ".asng").iterdir())) == 2


# Caches from elsewhere


@pytest.fixture
def precious(tmp_path):
    """A file of the user's beside a folder of images from elsewhere."""
    save(tmp_path / "faces/a.png")
    (tmp_path / "faces/.asng").mkdir()
    path = tmp_path / "precious.npy"
    np.save(path, np.zeros((1, 3, 64, 64), np.uint8))
    return path


def claim(about, images, fingerprint="x"):
    """A description of a cache that calls another file its own."""
    made = {"fingerprint": fingerprint, "images": str(images), "names": ["a.png"], "damaged": {}}
    about.write_text(json.dumps(made))


@pytest.mark.parametrize("absolute", [False, True])
def test_no_file_is_removed_because_a_cache_names_it(precious, tmp_path, absolute):
    about = tmp_path / "faces/.asng/faces-64.json"
    claim(about, precious if absolute else "../../precious.npy", fingerprint="../../precious")
    assert built(tmp_path / "faces")
    assert precious.exists()


def test_no_file_is_read_because_a_cache_names_it(precious, tmp_path):
    read_faces(tmp_path / "faces")
    about = tmp_path / "faces/.asng/faces-64.json"
    claim(about, precious, fingerprint=json.loads(about.read_text())["fingerprint"])
    assert read_faces(tmp_path / "faces").images.any()  # red, not black as the other file


def test_files_that_only_begin_like_a_cache_stay(precious, tmp_path):
    names = ("faces-64-mine.npy", "faces-64-0.npy", "faces-64.npy", "b.npy")
    mine = [tmp_path / "faces/.asng" / name for name in names]
    for path in mine:
        path.touch()
    assert built(tmp_path / "faces")
    assert all(path.exists() for path in mine)


def test_a_link_in_place_of_the_cache_is_not_written_through(tmp_path, monkeypatch):
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "user" / name)
    save(tmp_path / "faces/a.png")
    mine = tmp_path / "mine" / ("faces-64-" + "0" * 32 + ".npy")
    mine.parent.mkdir()
    mine.touch()
    (tmp_path / "faces/.asng").symlink_to(mine.parent)
    assert built(tmp_path / "faces")
    assert not built(tmp_path / "faces")
    assert list(mine.parent.iterdir()) == [mine]


def test_a_linked_description_is_replaced_and_its_target_stays(precious, tmp_path):
    (tmp_path / "precious.json").write_text("{}")
    (tmp_path / "faces/.asng/faces-64.json").symlink_to("../../precious.json")
    assert built(tmp_path / "faces")
    assert not built(tmp_path / "faces")
    assert (tmp_path / "precious.json").read_text() == "{}"


def test_a_cache_that_others_replace_at_once_is_an_error_with_the_cure(tmp_path, monkeypatch):
    save(tmp_path / "a.png")
    monkeypatch.setattr(cache, "_build", lambda *arguments: None)
    with pytest.raises(ValueError, match="changed while they were read; run the same command again"):
        read_faces(tmp_path)


def test_what_is_not_a_size_is_refused(tmp_path):
    with pytest.raises(ValueError, match="got size 0"):
        read_faces(tmp_path, size=0)
