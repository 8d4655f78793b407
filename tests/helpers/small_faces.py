"""Small images of one color or of noise, and boxes of the faces in them."""

import numpy as np
from PIL import Image

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def save(path, size=(64, 64), color=RED, box=None, fill=GREEN, **options):
    """An image of one color, with a box (left, top, right, bottom) of another if one is given."""
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
