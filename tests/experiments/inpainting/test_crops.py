"""Faces in folders of images: found, cropped, resized, whatever kind of image they are in."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asng.experiments.inpainting.faces import crop, face_or_fault, read_boxes, sources
from tests.helpers.small_faces import BLUE, GREEN, RED, is_all, save, texture, write_boxes


def faces_in(folder, size=64):
    """All faces of a folder by name; where there is none, what is wrong."""
    files, file_of_boxes = sources(folder)
    boxes = file_of_boxes and read_boxes(folder / file_of_boxes.name)
    return {file.name: face_or_fault(folder, boxes, size, file.name) for file in files}


def test_images_of_all_kinds_are_found_in_order_of_names(tmp_path):
    for name in ("b/two.PNG", "a.jpeg", "b/c/three.webp", "one.bmp", "z.jpg"):
        save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.jpg").write_text("left by some system")
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "._z.jpg").write_text("left by another")
    found = faces_in(tmp_path)
    assert list(found) == ["a.jpeg", "b/c/three.webp", "b/two.PNG", "one.bmp", "z.jpg"]
    for image in found.values():
        assert image.shape == (3, 64, 64)
        assert image.dtype == np.uint8
        assert is_all(image, RED, tolerance=2)


def test_an_image_of_the_right_size_is_kept_as_it_is(tmp_path):
    pixels = texture(tmp_path / "a.png", (64, 64))
    assert np.array_equal(faces_in(tmp_path)["a.png"], pixels.transpose(2, 0, 1))


def test_of_any_image_the_largest_central_square_is_resized(tmp_path):
    save(tmp_path / "high.png", (32, 80), RED, (0, 24, 32, 56))
    save(tmp_path / "wide.png", (401, 100), RED, (150, 0, 250, 100))
    pixels = texture(tmp_path / "texture.png", (130, 128))
    small = Image.fromarray(pixels[:, 1:129]).resize((64, 64), Image.Resampling.LANCZOS)
    high, fine, wide = faces_in(tmp_path).values()
    assert high.shape == wide.shape == (3, 64, 64)
    assert is_all(high, GREEN)
    assert is_all(wide, GREEN)
    assert np.array_equal(fine, np.asarray(small).transpose(2, 0, 1))


def test_gray_transparent_and_sideways_images_become_upright_color_images(tmp_path):
    Image.new("L", (9, 9), 77).save(tmp_path / "gray.png")
    Image.new("RGBA", (9, 9), (*BLUE, 255)).save(tmp_path / "transparent.png")
    sideways = Image.new("RGB", (20, 20), RED)
    sideways.paste(GREEN, (0, 0, 10, 20))
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned clockwise: what is left comes to the top
    sideways.save(tmp_path / "upright.png", exif=turned)
    gray, transparent, upright = faces_in(tmp_path, size=16).values()
    assert is_all(gray, (77, 77, 77))
    assert is_all(transparent, BLUE)
    assert is_all(upright[:, :5], GREEN)
    assert is_all(upright[:, -5:], RED)


def test_16_bit_gray_and_transparent_palettes_become_rgb(tmp_path):
    Image.fromarray(np.full((9, 9), 300 * 77, np.uint16)).save(tmp_path / "gray.png")
    palette = Image.new("P", (9, 9), 1)
    palette.putpalette([*RED, *BLUE])
    palette.save(tmp_path / "palette.png", transparency=b"\x00\xff")
    found = faces_in(tmp_path, size=16)
    assert is_all(found["gray.png"], (300 * 77 // 256,) * 3)
    assert is_all(found["palette.png"], BLUE)


@pytest.mark.parametrize("place", ["Anno/list_bbox_celeba.txt", "list_bbox_celeba.txt"])
@pytest.mark.parametrize("folder", ["Img/img_celeba", "img_celeba", "images"])
def test_celeba_in_the_wild_is_cropped_by_its_boxes(tmp_path, place, folder):
    save(tmp_path / folder / "000001.jpg", (200, 150), RED, (48, 24, 136, 112), quality=95)
    save(tmp_path / folder / "000002.jpg", (100, 300), RED, (32, 216, 104, 288), BLUE, quality=95)
    write_boxes(tmp_path / place, {"000001.jpg": (60, 30, 60, 80), "000002.jpg": (40, 220, 60, 60)})
    first, second = faces_in(tmp_path).values()
    # The squares (50, 30) to (130, 110) and (40, 220) to (100, 280); JPEG smears the border of the colors.
    assert is_all(first, GREEN, tolerance=6)
    assert is_all(second, BLUE, tolerance=6)


def test_boxes_count_the_pixels_as_they_are_stored(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    save(tmp_path / "img_celeba/1.png", (100, 60), RED, (60, 10, 100, 50), exif=turned)
    write_boxes(tmp_path / "list_bbox_celeba.txt", {"1.png": (60, 10, 40, 40)})
    assert is_all(faces_in(tmp_path)["img_celeba/1.png"], GREEN)


def test_aligned_images_have_no_boxes_and_one_release_is_used(tmp_path):
    save(tmp_path / "Img/img_align_celeba/000001.jpg", (178, 218), RED, (0, 24, 178, 194))
    write_boxes(tmp_path / "Anno/list_bbox_celeba.txt", {"000001.jpg": (600, 274, 343, 475)})
    ((name, aligned),) = faces_in(tmp_path).items()
    assert name == "Img/img_align_celeba/000001.jpg"
    assert is_all(aligned[:, 3:-3], GREEN, tolerance=6)
    assert not is_all(aligned, GREEN, tolerance=6)
    save(tmp_path / "Img/img_align_celeba_png/000001.png", (178, 218), BLUE)
    assert list(faces_in(tmp_path)) == [name]
    save(tmp_path / "Img/img_celeba/000001.jpg", (1000, 800), BLUE)
    ((name, wild),) = faces_in(tmp_path).items()
    assert name == "Img/img_celeba/000001.jpg"
    assert is_all(wild, BLUE, tolerance=3)


def test_images_in_the_wild_without_boxes_are_refused(tmp_path, monkeypatch):
    save(tmp_path / "img_celeba/000001.jpg")
    monkeypatch.chdir(tmp_path / "img_celeba")
    for folder in (tmp_path, tmp_path / "img_celeba", Path(".")):
        with pytest.raises(ValueError, match=r"cropped by the boxes of list_bbox_celeba\.txt, which is not in"):
            sources(folder)


def test_an_image_without_a_usable_box_has_a_fault_instead_of_a_face(tmp_path):
    for name in ("1.jpg", "2.jpg", "3.jpg", "4.jpg"):
        save(tmp_path / "img_celeba" / name)
    boxes = {"1.jpg": (0, 0, 0, 5), "2.jpg": (64, 0, 10, 10), "4.jpg": (1, 1, 9, 9)}
    write_boxes(tmp_path / "list_bbox_celeba.txt", boxes)
    empty, outside, none, good = faces_in(tmp_path).values()
    assert "(0, 0, 0, 5)" in empty
    assert "not in the 64x64 image" in outside
    assert none == "list_bbox_celeba.txt has no box for it"
    assert good.shape == (3, 64, 64)


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
        ("2\nimage_id x_1 y_1 width height\n000001.jpg 1 2 3 4\n", "announces 2 boxes and has 1"),
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


def test_an_image_that_goes_while_others_are_read_has_a_fault_too(tmp_path):
    assert face_or_fault(tmp_path, None, 8, "gone.png") == "[Errno 2] No such file or directory"


def test_links_are_followed_but_not_in_circles(tmp_path):
    save(tmp_path / "elsewhere/a.png")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "images/back").symlink_to(tmp_path / "images", target_is_directory=True)
    (tmp_path / "images/broken.png").symlink_to(tmp_path / "nowhere.png")
    assert list(faces_in(tmp_path / "images")) == ["linked/a.png"]


def test_what_only_looks_like_an_image_file_is_passed_by(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "circle.png").symlink_to("circle.png")
    os.mkfifo(tmp_path / "pipe.png")  # opened, it would wait for somebody to write
    assert list(faces_in(tmp_path)) == ["a.png"]
