"""Pictures of cells: everything is there, nothing overlaps, the same architecture gives the same files."""

from collections import Counter
from itertools import combinations
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import Bbox

from asng import ASNG
from asng.experiments.cifar10 import drawing, picture
from asng.experiments.cifar10.space import CELL_KINDS, NODES, SPACE, cell_paths, random_values, values_of

CHAIN = [1, 1, 4, 4, 2, 2, 4, 4, 3, 3, 4, 4, 4, 4, 4, 4, 5, 5, 4, 4]
ARCHITECTURES = [values_of([0] * 40), values_of(CHAIN * 2), *map(random_values, range(18))]


def some_probabilities(seed=0):
    random = np.random.default_rng(seed)
    return {name: random.dirichlet(np.full(len(variable.choices), 0.5)) for name, variable in SPACE.items()}


def parts_of(figure, kind_of_patch):
    return {patch.get_gid(): patch for patch in figure.findobj(kind_of_patch) if patch.get_gid()}


def boxes_of(figure):
    """Nodes, operations, inputs and outputs by name, in inches."""
    return {name: box.get_bbox() for name, box in parts_of(figure, FancyBboxPatch).items()}


def texts_of(figure):
    """Texts and the room they take, in inches."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()  # legends find their places only now
    (axes,) = figure.axes
    texts = [*axes.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    inches = axes.transData.inverted()
    return [(text.get_text(), text.get_window_extent(renderer).transformed(inches)) for text in texts]


def lines_of(figure):
    """Arrows by name, with their heads, as open outlines in inches."""
    outlines = {name: arrow.get_path() for name, arrow in parts_of(figure, FancyArrowPatch).items()}
    return {name: Path(o.vertices[:-1], o.codes[:-1]) for name, o in outlines.items()}  # the last one says: close


def apart(first, second):
    return first.x1 <= second.x0 or second.x1 <= first.x0 or first.y1 <= second.y0 or second.y1 <= first.y0


def within(inner, outer):
    return outer.x0 <= inner.x0 and inner.x1 <= outer.x1 and outer.y0 <= inner.y0 and inner.y1 <= outer.y1


@pytest.fixture(scope="module")
def figures():
    probabilities = [some_probabilities(number) if number % 2 else None for number in range(len(ARCHITECTURES))]
    pairs = zip(ARCHITECTURES, probabilities, strict=True)
    return [(values, drawing.cells_figure(drawing.cells_of(values, some))) for values, some in pairs]


@pytest.mark.long
def test_labels_and_nodes_do_not_overlap(figures):
    for _, figure in figures:
        boxes, texts = boxes_of(figure), texts_of(figure)
        page = Bbox([[0, -figure.get_figheight()], [figure.get_figwidth(), 0]])
        for name, box in [*boxes.items(), *texts]:
            assert within(box, page), name
        for (name, box), (other, other_box) in combinations(boxes.items(), 2):
            assert apart(box, other_box), (name, other)
        for (text, room), (other, other_room) in combinations(texts, 2):
            assert apart(room, other_room), (text, other)
        for text, room in texts:
            for name, box in boxes.items():
                assert apart(room, box) or within(room, box), (text, name)


@pytest.mark.long
def test_every_line_leads_from_its_source_to_its_operation(figures):
    for values, figure in figures:
        boxes, lines = boxes_of(figure), lines_of(figure)
        for kind in CELL_KINDS:
            for node, pair in enumerate(cell_paths(values, kind)):
                for slot, (source, _) in enumerate(pair, start=1):
                    points = lines.pop(f"{kind}{node}.in{slot}").vertices
                    begin = boxes[f"{kind}.state{source}" if source < 2 else f"{kind}{source - 2}"]
                    end = boxes[f"{kind}{node}.op{slot}"]
                    assert points[0] == pytest.approx([(begin.x0 + begin.x1) / 2, begin.y0], abs=1e-6)
                    assert points[:, 1].min() == pytest.approx(end.y1, abs=0.05)  # the head has a mitre
                    assert points[points[:, 1].argmin(), 0] == pytest.approx((end.x0 + end.x1) / 2, abs=0.05)
            used = {source for pair in cell_paths(values, kind) for source, _ in pair}
            for node in {0, 1, 2, 3, 4} - {source - 2 for source in used}:
                points = lines.pop(f"{kind}{node}.out").vertices
                begin, end = boxes[f"{kind}{node}"], boxes[f"{kind}.concatenation"]
                assert points[0] == pytest.approx([(begin.x0 + begin.x1) / 2, begin.y0], abs=1e-6)
                assert points[:, 1].min() == pytest.approx(end.y1, abs=0.05)
                assert end.x0 < points[points[:, 1].argmin(), 0] < end.x1
        assert lines == {}


@pytest.mark.long
def test_no_line_runs_through_a_node_or_a_label(figures):
    for _, figure in figures:
        shrunk = {name: box.padded(-0.03) for name, box in boxes_of(figure).items()}  # where lines may begin and end
        rooms = texts_of(figure)
        for line, path in lines_of(figure).items():
            for name, box in shrunk.items():
                assert not path.intersects_bbox(box, filled=False), (line, name)
            for text, room in rooms:
                assert not path.intersects_bbox(room, filled=False), (line, text)


def svg_texts(path):
    return Counter(element.text for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.long
def test_files_hold_all_that_an_architecture_is_as_text(tmp_path):
    values, probabilities = ARCHITECTURES[3], some_probabilities()
    written = drawing.draw_cells(values, tmp_path / "new", probabilities)
    names = ["cells.svg", "cells.png", "probabilities.svg", "probabilities.png"]
    assert written == [tmp_path / "new" / name for name in names]
    texts = svg_texts(written[0])
    chosen = Counter(picture.LABELS[value] for name, value in values.items() if ".op" in name)
    assert chosen.total() == 20
    assert {name: texts[name] for name in chosen} == chosen
    for text in ("Normal cell", "Reduction cell", "cell k − 2", "cell k − 1", "cell k", "concatenate"):
        assert texts[text] == (1 if " cell" in text else 2)
    for node in range(NODES):
        assert texts[str(node)] == 2
    likely = Counter(f"{probabilities[name][SPACE[name].choices.index(value)]:.2f}" for name, value in values.items())
    assert {text: texts[text] for text in likely} == likely
    everything = Counter(f"{probability:.2f}" for array in probabilities.values() for probability in array)
    assert everything.total() == 180  # 140 that are free, and one more for each of the 40 decisions
    shown = svg_texts(written[2])
    assert {text: shown[text] for text in everything} == everything
    parts = {element.get("id") for element in ElementTree.parse(written[0]).iter()}
    assert parts >= set(SPACE)  # an edge or a box for every decision


@pytest.mark.long
def test_the_same_architecture_gives_the_same_files(tmp_path):
    before = dict(mpl.rcParams)
    probabilities = ASNG(SPACE, seed=0).distribution()
    first = drawing.draw_cells(ARCHITECTURES[2], tmp_path / "first", probabilities)
    as_lists = {name: array.tolist() for name, array in probabilities.items()}
    second = drawing.draw_cells(dict(reversed(ARCHITECTURES[2].items())), tmp_path / "second", as_lists)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert [path.name for path in drawing.draw_cells(ARCHITECTURES[2], tmp_path)] == ["cells.svg", "cells.png"]
    assert (tmp_path / "cells.svg").read_bytes() != first[0].read_bytes()
    assert dict(mpl.rcParams) == before


def test_likely_choices_have_thicker_and_darker_lines():
    values, probabilities = ARCHITECTURES[4], some_probabilities()
    figure = drawing.cells_figure(drawing.cells_of(values, probabilities))
    arrows, boxes = parts_of(figure, FancyArrowPatch), parts_of(figure, FancyBboxPatch)
    looks = []
    for name, variable in SPACE.items():
        likely = probabilities[name][variable.choices.index(values[name])]
        if ".in" in name:
            looks.append((likely, arrows[name].get_linewidth(), 1 - arrows[name].get_edgecolor()[0]))
        else:
            assert boxes[name].get_linewidth() == pytest.approx(0.25 + likely)
    _, width, darkness = np.array(sorted(looks)).T
    assert (np.diff(width) >= 0).all()
    assert (np.diff(darkness) >= -1e-9).all()
    assert width[-1] > 2 * width[0]
    assert darkness[-1] > 2 * darkness[0] > 0


@pytest.mark.long
def test_bars_are_as_long_as_choices_are_likely_and_nothing_overlaps():
    values, probabilities = ARCHITECTURES[5], some_probabilities()
    figure = drawing.probabilities_figure(values, probabilities)
    bars = parts_of(figure, Rectangle)
    for name, variable in SPACE.items():
        for choice, probability in zip(variable.choices, probabilities[name], strict=True):
            bar = bars.pop(f"{name}.{choice}")
            assert bar.get_width() == pytest.approx(drawing.BAR * probability)
            assert (bar.get_linewidth() > 0) == (choice == values[name])
    assert bars == {}
    texts = texts_of(figure)
    for (text, room), (other, other_room) in combinations(texts, 2):
        assert apart(room, other_room), (text, other)


def test_an_input_that_no_node_takes_is_marked():
    figure = drawing.cells_figure(drawing.cells_of(values_of(CHAIN + [0, 1, 4, 4] * 5)))
    assert Counter(text for text, _ in texts_of(figure))["not used"] == 1
    styles = {name: box.get_linestyle() for name, box in parts_of(figure, FancyBboxPatch).items()}
    assert styles["normal.state0"] != styles["normal.state1"] == styles["reduction.state0"]
