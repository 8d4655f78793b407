"""The cache of many faces: one file in the user's cache folder, built again when something changes."""
# mypy: disable-error-code="arg-type, index, union-attr"

import io
import json
import os
import struct
import threading
import zlib

import numpy as np
import pytest
from PIL import Image

from asng.experiments.inpainting import faces
from asng.experiments.inpainting.faces import read_faces
from tests.helpers.small_faces import BLUE, RED, save, texture, write_boxes


@pytest.fixture(autouse=True)
def cache_files(tmp_path_factory, monkeypatch):
    """Lists the files of an empty cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return lambda: [path for path in folder.rglob("*") if path.is_file()]


def test_all_good_images_are_kept_with_their_names_in_order(tmp_path):
    pixels = {name: texture(tmp_path / name, (64, 64), seed) for seed, name in enumerate(("b.png", "c/a.png", "a.png"))}
    kept = read_faces(tmp_path)
    assert kept.names == ("a.png", "b.png", "c/a.png")
    assert kept.images.shape == (3, 3, 64, 64)
    assert kept.images.dtype == np.uint8
    assert kept.images.flags.c_contiguous
    assert kept.damaged == {}
    for name, image in zip(kept.names, kept.images, strict=True):
        assert np.array_equal(image, pixels[name].transpose(2, 0, 1))


def test_other_sizes_are_kept_beside_each_other(tmp_path, cache_files):
    save(tmp_path / "a.png")
    assert read_faces(tmp_path, size=8).images.shape == (1, 3, 8, 8)
    assert read_faces(tmp_path).images.shape == (1, 3, 64, 64)
    assert len(cache_files()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]  # nothing is written beside the images


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


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path):
    save(tmp_path / "good.png")
    content = bytearray((tmp_path / "good.png").read_bytes())
    content[16:24] = struct.pack(">II", 8000, 7000)  # the header alone: there are no such pixels to decode
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    (tmp_path / "huge.png").write_bytes(content)
    kept = read_faces(tmp_path)
    assert kept.names == ("good.png",)
    assert kept.damaged == {"huge.png": "8000x7000 pixels are more than 50,000,000; make it smaller"}


def test_warnings_of_pillow_are_not_heard(tmp_path):
    Image.new("RGB", (64, 64)).save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01")
    with pytest.warns(UserWarning, match="orrupt EXIF"):
        faces.face(tmp_path / "a.jpg", 64, None)
    assert read_faces(tmp_path).names == ("a.jpg",)


def test_a_folder_without_good_images_is_an_error_with_the_cure(tmp_path, cache_files):
    with pytest.raises(ValueError, match=r"nowhere; name the one.*--data, ASNG_DATA or"):
        read_faces(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"holds no images \(\.jpg.*--data, ASNG_DATA or"):
        read_faces(tmp_path)
    (tmp_path / "a.png").write_text("no image either")
    with pytest.raises(ValueError, match=rf"all 1 images in {tmp_path} are damaged, such as a\.png \(cannot identify"):
        read_faces(tmp_path)
    assert cache_files() == []


def builds(folder, **options):
    """Whether faces() had to build the cache."""
    heard: list[float] = []
    read_faces(folder, progress=heard.append, **options)
    assert heard == sorted(heard)
    assert heard == [] or (heard[0] == 0 and heard[-1] == 1)
    return bool(heard)


def test_the_cache_is_replaced_when_files_or_boxes_change(tmp_path, cache_files):
    other = tmp_path.parent / f"{tmp_path.name}-other"
    save(other / "a.png")
    assert builds(other)
    folder = tmp_path / "img_celeba"
    for number in range(3):
        save(folder / f"{number}.jpg", color=RED)
    boxes = {f"{number}.jpg": (0, 0, 64, 64) for number in range(5)}
    write_boxes(tmp_path / "list_bbox_celeba.txt", boxes)
    assert builds(tmp_path)
    assert not builds(tmp_path)
    save(folder / "3.jpg", color=BLUE)  # one more
    assert builds(tmp_path)
    assert read_faces(tmp_path).images.shape[0] == 4
    os.rename(folder / "3.jpg", folder / "4.jpg")  # another name
    assert builds(tmp_path)
    os.utime(folder / "0.jpg", ns=(1, 1))  # written again
    assert builds(tmp_path)
    (folder / "4.jpg").unlink()
    assert builds(tmp_path)
    write_boxes(tmp_path / "list_bbox_celeba.txt", boxes | {"0.jpg": (0, 0, 20, 20)})
    assert builds(tmp_path)
    assert not builds(tmp_path)
    assert not builds(other)
    assert len(cache_files()) == 2


def test_the_cache_of_another_version_is_built_again(tmp_path, monkeypatch):
    save(tmp_path / "a.png")
    assert builds(tmp_path)
    monkeypatch.setattr(faces, "CACHE_VERSION", faces.CACHE_VERSION + 1)
    assert builds(tmp_path)


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def with_index(change, images=None):
    """An archive with a changed index of its images, and perhaps others."""

    def harm(content):
        with np.load(io.BytesIO(content)) as cached:
            index = json.dumps(change(json.loads(str(cached["index"]))))
            return npz(images=cached["images"] if images is None else images, index=index)

    return harm


HARM = {
    "cut off": lambda content: content[: len(content) // 2],
    "one bit": lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
    "empty": lambda content: b"",
    "no archive": lambda content: b"an image",
    "no names": lambda content: npz(images=np.zeros((1, 3, 64, 64), np.uint8)),
    "no JSON": lambda content: npz(images=np.zeros((1, 3, 64, 64), np.uint8), index="{"),
    "nested without end": lambda content: npz(images=np.zeros((1, 3, 64, 64), np.uint8), index="[" * 10**5),
    "no list": with_index(lambda index: 5),
    "names of another type": with_index(lambda index: [index[0], 5, {}]),
    "another name": with_index(lambda index: [index[0], ["b.png"], {}]),
    "images and no names": with_index(lambda index: [index[0], [], {"a.png": "damaged"}]),
    "another size": with_index(lambda index: index, np.zeros((1, 3, 8, 8), np.uint8)),
    "another type": with_index(lambda index: index, np.zeros((1, 3, 64, 64))),
    "a pickle": with_index(lambda index: index, np.array([os.getpid], dtype=object)),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_cache_is_built_again(tmp_path, cache_files, harm):
    pixels = texture(tmp_path / "a.png", (64, 64))
    read_faces(tmp_path)
    (file,) = cache_files()
    file.write_bytes(HARM[harm](file.read_bytes()))
    assert builds(tmp_path)
    assert np.array_equal(read_faces(tmp_path).images[0], pixels.transpose(2, 0, 1))


def test_a_pipe_in_place_of_the_cache_is_replaced(tmp_path, cache_files):
    save(tmp_path / "a.png")
    read_faces(tmp_path)
    (file,) = cache_files()
    file.unlink()
    os.mkfifo(file)
    assert builds(tmp_path)
    assert not builds(tmp_path)


def test_an_interruption_leaves_the_old_cache_and_nothing_else(tmp_path, cache_files):
    for number in range(faces.CHUNK + 1):
        save(tmp_path / f"{number:03}.png", (4, 4))
    read_faces(tmp_path, size=4)
    before = {path: path.read_bytes() for path in cache_files()}
    save(tmp_path / "more.png", (4, 4))

    def interrupt(done):
        if done > 0:
            raise KeyboardInterrupt

    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        read_faces(tmp_path, 4, interrupt)
    assert threading.active_count() == threads
    assert {path: path.read_bytes() for path in cache_files()} == before
    assert len(read_faces(tmp_path, size=4).names) == faces.CHUNK + 2


def test_a_cache_that_cannot_be_written_is_an_error_with_the_cure(tmp_path, monkeypatch):
    save(tmp_path / "faces/a.png")
    (tmp_path / "cache").write_text("in the way, as a missing permission would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        ValueError, match=r"cannot be written \(Not a directory\); name another folder by XDG_CACHE_HOME"
    ):
        read_faces(tmp_path / "faces")
