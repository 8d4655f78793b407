"""The autoencoder of an inpainting architecture as SVG: the encoder on the left, its mirror image on the right."""

from collections.abc import Mapping
from typing import Any

from asng._html import Html, element
from asng.experiments.inpainting import encoding

MAX_LAYERS = 200
ROW, BOX, WIDTH, GAP = 46, 32, 172, 90  # pixels
LEFT, TOP = 10, 10


def is_autoencoder(values: Mapping[str, Any]) -> bool:
    """Whether values are an architecture of the inpainting space, of either encoding.

    Connections lead back to earlier layers, so that the chain has an end.
    """
    last = encoding.layers_in(values)
    if not 1 <= last <= MAX_LAYERS:
        return False
    names = {"output": last + 1, **{f"layer{node}": node for node in range(1, last + 1)}}
    return all(_is_node(values, name, node, node > last) for name, node in names.items())


def _is_node(values: Mapping[str, Any], name: str, node: int, is_output: bool) -> bool:
    connection = values.get(f"{name}.connection", 0 if node == 1 else None)
    if type(connection) is not int or not is_output <= connection < node:
        return False
    if is_output:
        return True
    channels, kind, kernel = (values.get(f"{name}.{part}") for part in ("channels", "type", "kernel"))
    if type(channels) is not int or not 1 <= channels < 10**9:
        return False
    if kind is not None:
        return isinstance(kind, str) and kind in encoding.LAYER_KINDS
    return type(kernel) is int and 1 <= kernel <= len(encoding.KERNELS) and type(values.get(f"{name}.skip")) is bool


def draw_autoencoder(values: Mapping[str, Any], title: str) -> Html:
    """A figure: layers that run on images of 64 x 64, from the image down and up again, and their skips."""
    layers = [(layer, size) for layer, runs, size in encoding.sizes(encoding.chain(values), encoding.SIZE) if runs]
    height, width = TOP * 2 + ROW * len(layers) + BOX + 12, 2 * (LEFT + WIDTH) + GAP
    right = LEFT + WIDTH + GAP
    parts = [*_box(LEFT, TOP, "image", "3 × 64 × 64", "end"), *_box(right, TOP, "output", "3 × 64 × 64", "end")]
    for row, (layer, size) in enumerate(layers, start=1):
        y = TOP + ROW * row
        parts += _row(layer, size, y, right, is_last=row == len(layers))
    svg = element(
        "svg",
        element("title", f"Autoencoder of {len(layers)} layers and as many in the decoder: {_words(values)}"),
        *parts,
        width=str(width),
        height=str(height),
        viewBox=f"0 0 {width} {height}",
        role="img",
    )
    caption = element(
        "figcaption",
        element("strong", "Autoencoder"),
        f" — {len(layers)} layer{'s' * (len(layers) > 1)}; dashed: skips",
    )
    region = element("div", svg, class_="scroll", tabindex="0", role="region", aria_label=f"autoencoder of {title}")
    return element("figure", caption, region, class_="graph", style=f"--w:{width}px")


def _words(values: Mapping[str, Any]) -> str:
    return "; ".join(" ".join(line.split()) for line in encoding.describe_chain(values).splitlines())


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
    middle = str(x + WIDTH // 2)
    place = {"x": str(x), "y": str(y), "width": str(WIDTH), "height": str(BOX), "rx": "5"}
    first = element("text", name, x=middle, y=str(y + BOX // 2 - (6 if shape else 0)), class_="name")
    second = [element("text", shape, x=middle, y=str(y + BOX // 2 + 8), class_="small")] if shape else []
    return [element("rect", **place, class_=look), first, *second]
