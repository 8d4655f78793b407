"""The autoencoder of an inpainting architecture as SVG: the encoder on the left, its mirror image on the right."""

from collections.abc import Mapping
from typing import Any

from asng._html import Html, element
from asng.experiments.inpainting import encoding
from asng.report._cells import graph

MAX_DRAWN_LAYERS = 200
ROW, BOX, WIDTH, GAP = 46, 32, 172, 90  # pixels
LEFT, TOP = 10, 10


def can_draw_autoencoder(values: Mapping[str, Any]) -> bool:
    """Whether values are an architecture of the inpainting space that can be drawn."""
    return encoding.layers_in(values) <= MAX_DRAWN_LAYERS and encoding.is_autoencoder(values)


def draw_autoencoder(values: Mapping[str, Any], title: str) -> Html:
    """A figure: layers that run on images of 64 x 64, from the image down and up again, and their skips."""
    layers = [(layer, size) for layer, runs, size in encoding.sizes(encoding.chain(values), encoding.SIZE) if runs]
    height, width = TOP * 2 + ROW * len(layers) + BOX + 12, 2 * (LEFT + WIDTH) + GAP
    right = LEFT + WIDTH + GAP
    parts = [*_box(LEFT, TOP, "image", "3 × 64 × 64", "end"), *_box(right, TOP, "output", "3 × 64 × 64", "end")]
    for row, (layer, size) in enumerate(layers, start=1):
        parts += _row(layer, size, TOP + ROW * row, right, is_last=row == len(layers))
    words = "; ".join(" ".join(line.split()) for line in encoding.describe_chain(values).splitlines())
    words = f"{len(layers)} layers and as many in the decoder: {words}"
    note = f" — {len(layers)} layer{'s' * (len(layers) > 1)}; dashed: skips"
    return graph("Autoencoder", words, note, title, (width, height), parts)


def _row(layer: encoding.Layer, size: tuple[int, int], y: int, right: int, is_last: bool) -> list[Html]:
    """A layer and its mirror image, the way to both, and between them the skip."""
    kernel = f"{layer.kernel}×{layer.kernel}"
    shape = f"{layer.channels} × {size[0]} × {size[1]}"
    look = "op skip" if layer.skip else "op down"
    way_in = f"M{LEFT + WIDTH // 2} {y - ROW + BOX}V{y - 3}"
    way_out = f"M{right + WIDTH // 2} {y}V{y - ROW + BOX + 3}"
    parts = [element("path", d=way, class_="line arrow") for way in (way_in, way_out)]
    middle = y + BOX // 2
    if layer.skip:
        parts.append(element("path", d=f"M{LEFT + WIDTH} {middle}H{right - 3}", class_="line arrow loose"))
        parts.append(element("text", "skip", x=str(right - GAP // 2), y=str(middle - 8), class_="small"))
    if is_last:  # the innermost layer hands its output to its mirror image in any case
        turn = f"M{LEFT + WIDTH // 2} {y + BOX}v8H{right + WIDTH // 2}v-5"
        parts.append(element("path", d=turn, class_="line arrow"))
    name = f"layer {layer.number}: {kernel}" + ("" if layer.skip else ", halves")
    mirror = f"mirror {layer.number}: {kernel}" + ("" if layer.skip else ", doubles")
    return [*parts, *_box(LEFT, y, name, shape, look), *_box(right, y, mirror, "", look)]


def _box(x: int, y: int, name: str, shape: str, look: str) -> list[Html]:
    middle = x + WIDTH // 2
    box = element("rect", x=x, y=y, width=WIDTH, height=BOX, rx=5, class_=look)
    first = element("text", name, x=middle, y=y + BOX // 2 - (6 if shape else 0), class_="name")
    second = [element("text", shape, x=middle, y=y + BOX // 2 + 8, class_="small")] if shape else []
    return [box, first, *second]
