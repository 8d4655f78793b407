"""What all figures share: drawings in inches, tints, and files that are the same for the same figure."""

import xml.etree.ElementTree as ElementTree

import pytest
from matplotlib import rc_context, rcParams
from matplotlib.colors import to_rgb
from PIL import Image

from asng.experiments._figures import BLUE, COLORS, canvas, save_figure, tint


def make_figure():
    """A figure with what might differ from one time to the next: clipped parts, markers and text."""
    figure, axes = canvas(2.0, 1.5)
    axes.plot([0.0, 3.0], [0.0, -3.0], color=BLUE, marker="o", clip_on=True)
    axes.text(0.5, -0.5, "a word")
    return figure


def test_a_canvas_is_measured_in_inches_from_its_upper_left_corner():
    figure, axes = canvas(4.0, 2.5)
    assert figure.get_size_inches().tolist() == [4.0, 2.5]
    to_pixels = axes.transData.transform
    for x, y in [(0.0, 0.0), (4.0, -2.5), (1.0, -0.5)]:
        assert to_pixels((x, y)).tolist() == pytest.approx([x * figure.dpi, (2.5 + y) * figure.dpi])
    assert not axes.axison


@pytest.mark.parametrize("color", [*COLORS, "black", "white"])
def test_a_tint_keeps_its_part_of_the_color_and_is_white_for_the_rest(color):
    assert to_rgb(tint(color, 1.0)) == to_rgb(color)
    assert tint(color, 0.0) == "#ffffff"
    half = [(1 + value) / 2 for value in to_rgb(color)]
    assert to_rgb(tint(color, 0.5)) == pytest.approx(half, abs=1 / 255)


def test_the_colors_are_all_different():
    assert len(set(COLORS)) == len(COLORS)


def test_a_figure_is_written_as_svg_and_png_to_a_new_folder(tmp_path):
    paths = save_figure(make_figure(), tmp_path / "new" / "folder", "figure", dpi=200)
    assert paths == [tmp_path / "new" / "folder" / name for name in ("figure.svg", "figure.png")]
    assert ElementTree.parse(paths[0]).getroot().attrib["width"] == "144pt"  # 2 inches
    with Image.open(paths[1]) as image:
        assert image.size == (400, 300)


def test_the_same_figure_gives_the_same_bytes_and_another_one_others(tmp_path):
    one, other = (save_figure(make_figure(), tmp_path / name, "figure", dpi=100) for name in ("one", "other"))
    changed = make_figure()
    changed.axes[0].plot([0.0, 1.0], [-1.0, 0.0])
    different = save_figure(changed, tmp_path / "different", "figure", dpi=100)
    for a, b, c in zip(one, other, different, strict=True):
        assert a.read_bytes() == b.read_bytes() != c.read_bytes()


def test_files_know_neither_the_day_nor_the_program(tmp_path):
    svg, png = save_figure(make_figure(), tmp_path, "figure", dpi=100)
    assert "<dc:date>" not in svg.read_text()
    with Image.open(png) as image:
        assert "Software" not in image.info


def test_words_stay_words_and_the_settings_of_others_stay_as_they_were(tmp_path):
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "theirs"}):
        before = dict(rcParams)
        svg, _ = save_figure(make_figure(), tmp_path, "figure", dpi=100)
        assert dict(rcParams) == before
    words = [element.text for element in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["a word"]
