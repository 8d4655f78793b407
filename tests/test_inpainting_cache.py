"""Folders of images: found, cropped, resized, kept in one file, and built anew when something changes."""

import fcntl
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asng.experiments.inpainting import cache
from asng.experiments.inpainting.cache import crop, faces, read_boxes

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def save(path, size=(64, 64), color=RED, box=None, fill=GREEN, **options):
    """An image of one colour, with a box (left, top, right, bottom) of another if one is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, color)
    if box is not None:
        image.paste(fill, box)
    image.save(path, **options)


def texture(path, size, seed=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def write_boxes(path, boxes):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [str(len(boxes)), "image_id x_1 y_1 width height"]
    lines += [f"{name}    {box[0]}  {box[1]} {box[2]} {box[3]}" for name, box in boxes.items()]
    path.write_text("\n".join(lines) + "\n")


def is_all(image, color, tolerance=0):
    return bool((abs(image.astype(int) - np.array(color)[:, None, None]) <= tolerance).all())


def test_images_of_all_kinds_are_found_in_all_folders_in_the_order_of_their_names(tmp_path):
    for name in ("b/two.PNG", "a.jpeg", "b/c/three.webp", "one.bmp", "z.jpg"):
        save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.jpg").write_text("left by some system")
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "._z.jpg").write_text("left by another")
    kept = faces(tmp_path)
    assert kept.names == ("a.jpeg", "b/c/three.webp", "b/two.PNG", "one.bmp", "z.jpg")
    assert kept.images.shape == (5, 3, 64, 64)
    assert kept.images.dtype == np.uint8
    assert kept.damaged == {}
    assert all(is_all(image, RED, tolerance=2) for image in kept.images)


def test_an_image_of_the_right_size_is_kept_as_it_is(tmp_path):
    pixels = texture(tmp_path / "a.png", (64, 64))
    assert np.array_equal(faces(tmp_path).images[0], pixels.transpose(2, 0, 1))


def test_of_any_image_the_largest_central_square_is_resized(tmp_path):
    save(tmp_path / "high.png", (32, 80), RED, (0, 24, 32, 56))
    save(tmp_path / "wide.png", (401, 100), RED, (150, 0, 250, 100))
    pixels = texture(tmp_path / "texture.png", (130, 128))
    small = Image.fromarray(pixels[:, 1:129]).resize((64, 64), Image.Resampling.LANCZOS)
    high, fine, wide = faces(tmp_path).images
    assert high.shape == wide.shape == (3, 64, 64)
    assert is_all(high, GREEN)
    assert is_all(wide, GREEN)
    assert np.array_equal(fine, np.asarray(small).transpose(2, 0, 1))


def test_grey_transparent_and_sideways_images_become_upright_colour_images(tmp_path):
    Image.new("L", (9, 9), 77).save(tmp_path / "grey.png")
    Image.new("RGBA", (9, 9), (*BLUE, 255)).save(tmp_path / "transparent.png")
    sideways = Image.new("RGB", (20, 20), RED)
    sideways.paste(GREEN, (0, 0, 10, 20))
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned clockwise: what is left comes to the top
    sideways.save(tmp_path / "upright.png", exif=turned)
    grey, transparent, upright = faces(tmp_path, size=16).images
    assert is_all(grey, (77, 77, 77))
    assert is_all(transparent, BLUE)
    assert is_all(upright[:, :5], GREEN)
    assert is_all(upright[:, -5:], RED)


def test_grey_of_16_bits_and_palettes_with_transparency_become_colour_images(tmp_path):
    Image.fromarray(np.full((9, 9), 300 * 77, np.uint16)).save(tmp_path / "grey.png")
    palette = Image.new("P", (9, 9), 1)
    palette.putpalette([*RED, *BLUE])
    palette.save(tmp_path / "palette.png", transparency=b"\x00\xff")
    kept = faces(tmp_path, size=16)
    assert kept.damaged == {}
    assert is_all(kept.images[0], (300 * 77 // 256,) * 3)
    assert is_all(kept.images[1], BLUE)


def test_other_sizes_are_kept_beside_each_other(tmp_path):
    save(tmp_path / "a.png")
    assert faces(tmp_path, size=8).images.shape == (1, 3, 8, 8)
    assert faces(tmp_path).images.shape == (1, 3, 64, 64)
    assert len(list((tmp_path / ".asng").iterdir())) == 4


@pytest.mark.parametrize("place", ["Anno/list_bbox_celeba.txt", "list_bbox_celeba.txt"])
@pytest.mark.parametrize("folder", ["Img/img_celeba", "img_celeba", "images"])
def test_celeba_in_the_wild_is_cropped_by_its_boxes(tmp_path, place, folder):
    save(tmp_path / folder / "000001.jpg", (200, 150), RED, (48, 24, 136, 112), quality=95)
    save(tmp_path / folder / "000002.jpg", (100, 300), RED, (32, 216, 104, 288), BLUE, quality=95)
    write_boxes(tmp_path / place, {"000001.jpg": (60, 30, 60, 80), "000002.jpg": (40, 220, 60, 60)})
    first, second = faces(tmp_path).images
    # The squares (50, 30) to (130, 110) and (40, 220) to (100, 280); JPEG smears the border of the colours.
    assert is_all(first, GREEN, tolerance=6)
    assert is_all(second, BLUE, tolerance=6)


def test_boxes_count_the_pixels_as_they_are_stored(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    save(tmp_path / "img_celeba/1.png", (100, 60), RED, (60, 10, 100, 50), exif=turned)
    write_boxes(tmp_path / "list_bbox_celeba.txt", {"1.png": (60, 10, 40, 40)})
    assert is_all(faces(tmp_path).images[0], GREEN)


def test_aligned_images_have_no_boxes_and_of_several_releases_the_first_is_used(tmp_path):
    save(tmp_path / "Img/img_align_celeba/000001.jpg", (178, 218), RED, (0, 24, 178, 194))
    write_boxes(tmp_path / "Anno/list_bbox_celeba.txt", {"000001.jpg": (600, 274, 343, 475)})
    aligned = faces(tmp_path)
    assert aligned.names == ("Img/img_align_celeba/000001.jpg",)
    assert is_all(aligned.images[0][:, 3:-3], GREEN, tolerance=6)
    assert not is_all(aligned.images[0], GREEN, tolerance=6)
    save(tmp_path / "Img/img_align_celeba_png/000001.png", (178, 218), BLUE)
    assert faces(tmp_path).names == aligned.names
    save(tmp_path / "Img/img_celeba/000001.jpg", (1000, 800), BLUE)
    wild = faces(tmp_path)
    assert wild.names == ("Img/img_celeba/000001.jpg",)
    assert is_all(wild.images[0], BLUE, tolerance=3)


def test_images_in_the_wild_without_boxes_are_refused(tmp_path, monkeypatch):
    save(tmp_path / "img_celeba/000001.jpg")
    monkeypatch.chdir(tmp_path / "img_celeba")
    for folder in (tmp_path, tmp_path / "img_celeba", Path(".")):
        with pytest.raises(ValueError, match=r"cropped by the boxes of list_bbox_celeba\.txt, which is not in"):
            faces(folder)


def test_an_image_without_a_usable_box_is_left_out(tmp_path):
    for name in ("1.jpg", "2.jpg", "3.jpg", "4.jpg"):
        save(tmp_path / "img_celeba" / name)
    boxes = {"1.jpg": (0, 0, 0, 5), "2.jpg": (64, 0, 10, 10), "4.jpg": (1, 1, 9, 9)}
    write_boxes(tmp_path / "list_bbox_celeba.txt", boxes)
    kept = faces(tmp_path)
    assert kept.names == ("img_celeba/4.jpg",)
    assert list(kept.damaged) == ["img_celeba/1.jpg", "img_celeba/2.jpg", "img_celeba/3.jpg"]
    assert "(0, 0, 0, 5)" in kept.damaged["img_celeba/1.jpg"]
    assert "not in the 64x64 image" in kept.damaged["img_celeba/2.jpg"]
    assert "no box" in kept.damaged["img_celeba/3.jpg"]


@pytest.mark.parametrize(
    ("width", "height", "box", "expected"),
    [
        (64, 64, None, (0, 0, 64, 64)),
        (5, 8, None, (0, 1, 5, 6)),
        (100, 100, (10, 20, 30, 40), (5, 20, 45, 60)),
        (100, 100, (0, 20, 30, 40), (0, 20, 40, 60)),  # moved to the right, into the image
        (100, 100, (80, 70, 30, 40), (60, 60, 100, 100)),
        (100, 50, (10, 0, 30, 80), (0, 0, 50, 50)),  # no larger than the image
        (100, 50, (-20, -5, 30, 30), (0, 0, 30, 30)),
    ],
)
def test_the_crop_is_a_square_in_the_image_around_the_box(width, height, box, expected):
    left, top, right, bottom = crop(width, height, box)
    assert right - left == bottom - top
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert (left, top, right, bottom) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("2\nimage_id x_1 y_1 width height\n000001.jpg 1 2 3 4\n", "speaks of 2 boxes and has 1"),
        ("1\nimage_id x_1 y_1 width height\n000001.jpg 1 2 3\n", "000001.jpg 1 2 3"),
        ("", "its first line"),
        ("image_id,x_1\n", "its first line"),
    ],
)
def test_a_damaged_file_of_boxes_is_refused(tmp_path, content, message):
    path = tmp_path / "list_bbox_celeba.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{message}.*download it again"):
        read_boxes(path)


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
    kept = faces(tmp_path)
    assert kept.names == ("whole.jpg",)
    assert len(kept.images) == 1
    assert list(kept.damaged) == ["changed.png", "cut.jpg", "cut.png", "empty.webp", "text.bmp"]
    assert "truncated" in kept.damaged["cut.jpg"]
    assert all(str(tmp_path) not in reason for reason in kept.damaged.values())
    assert faces(tmp_path).damaged == kept.damaged  # from the cache too
    assert json.loads((tmp_path / ".asng/faces-64.json").read_text())["damaged"] == kept.damaged


def test_an_image_that_goes_while_others_are_read_is_left_out(tmp_path):
    assert cache._one(tmp_path, None, 8, "gone.png") == "[Errno 2] No such file or directory"


def test_a_folder_without_good_images_is_an_error_with_the_cure(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere; name the one.*--data or ASNG_DATA"):
        faces(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"holds no images \(\.jpg.*--data or ASNG_DATA"):
        faces(tmp_path)
    (tmp_path / "a.png").write_text("no image either")
    with pytest.raises(ValueError, match=rf"all 1 images in {tmp_path} are damaged, such as a\.png \(cannot identify"):
        faces(tmp_path)
    assert list((tmp_path / ".asng").iterdir()) == []


def built(folder, **options):
    """Whether faces() had to build the cache."""
    heard: list[float] = []
    faces(folder, progress=heard.append, **options)
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
    assert faces(tmp_path).images.shape[0] == 4
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
    faces(tmp_path)
    (images,) = (tmp_path / ".asng").glob("*.npy")
    about = tmp_path / ".asng/faces-64.json"
    if harm == "cut":
        os.truncate(images, 1000)
    elif harm == "gone":
        images.unlink()
    else:
        about.write_text("{" if harm == "no json" else "[1]")
    assert built(tmp_path)
    assert np.array_equal(faces(tmp_path).images[0], pixels.transpose(2, 0, 1))


def test_an_interruption_leaves_the_old_cache_and_nothing_else(tmp_path):
    for number in range(cache.CHUNK + 1):
        save(tmp_path / f"{number:03}.png", (4, 4))
    faces(tmp_path, size=4)
    before = {path: path.read_bytes() for path in (tmp_path / ".asng").iterdir()}
    save(tmp_path / "more.png", (4, 4))

    def interrupt(done):
        if done > 0:
            raise KeyboardInterrupt

    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        faces(tmp_path, 4, interrupt)
    assert threading.active_count() == threads
    assert {path: path.read_bytes() for path in (tmp_path / ".asng").iterdir()} == before
    assert len(faces(tmp_path, size=4).names) == cache.CHUNK + 2


def test_a_folder_that_cannot_be_written_is_cached_for_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "user" / name)
    folder = tmp_path / "images"
    save(folder / "a.png")
    (folder / ".asng").write_text("in the way, as a missing permission would be")
    assert built(folder)
    assert not built(folder)
    assert len(list((tmp_path / "user/asng/faces").glob("*/faces-64*"))) == 2


def test_links_are_followed_but_not_in_circles(tmp_path):
    save(tmp_path / "elsewhere/a.png")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "images/back").symlink_to(tmp_path / "images", target_is_directory=True)
    (tmp_path / "images/broken.png").symlink_to(tmp_path / "nowhere.png")
    assert faces(tmp_path / "images").names == ("linked/a.png",)


def test_what_only_looks_like_an_image_file_is_passed_by(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "circle.png").symlink_to("circle.png")
    os.mkfifo(tmp_path / "pipe.png")  # opened, it would wait for somebody to write
    assert faces(tmp_path).names == ("a.png",)


def test_what_killed_builders_left_goes_as_soon_as_nobody_is_at_work(tmp_path):
    save(tmp_path / "a.png")
    left = tmp_path / ".asng/building-long-ago"
    left.mkdir(parents=True)
    (left / "images").write_bytes(bytes(99))
    other = os.open(tmp_path / ".asng", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)  # as somebody has it who builds
    assert built(tmp_path)
    assert left.exists()
    os.close(other)
    save(tmp_path / "b.png")
    assert built(tmp_path)
    assert len(list((tmp_path / ".asng").iterdir())) == 2


def test_what_is_left_while_building_goes_at_the_end(tmp_path):
    save(tmp_path / "a.png")
    left = tmp_path / ".asng/building-killed-meanwhile"
    faces(tmp_path, progress=lambda done: left.mkdir(exist_ok=True))
    assert len(list((tmp_path / ".asng").iterdir())) == 2


def test_a_cache_that_others_replace_at_once_is_an_error_with_the_cure(tmp_path, monkeypatch):
    save(tmp_path / "a.png")
    monkeypatch.setattr(cache, "_build", lambda *arguments: None)
    with pytest.raises(ValueError, match="changed while they were read; run the same command again"):
        faces(tmp_path)


def test_what_is_not_a_size_is_refused(tmp_path):
    with pytest.raises(ValueError, match="got size 0"):
        faces(tmp_path, size=0)
