"""Pictures of architectures in reports: cells, autoencoders, tables of decisions."""

import json
from typing import Any

import pytest

from asng import report
from asng.experiments.cifar10.space import CELL_KINDS, SPACE, cell_paths, random_values
from asng.experiments.inpainting import encoding
from asng.report._read import read_runs
from asng.report._tree import tree_of
from tests.helpers.report_pages import SEEDS, Page, values_of, write_run


def write(tmp_path, *folders):
    return Page(report.write(folders, tmp_path / "report.html"))


def test_both_cells_are_drawn_with_all_of_their_operations(tmp_path):
    page = write(tmp_path, SEEDS[0])
    summary = json.loads((SEEDS[0] / "summary.json").read_text())
    values = summary["values"]
    for operation in {"identity", "avg_pool", "max_pool", "sep_conv3", "sep_conv5"}:
        count = sum(value == operation for value in values.values())
        assert len(page.tags("rect", class_=f"op {operation}")) == count
    text = page.text("Architecture")
    for kind in CELL_KINDS:
        assert f"{kind.capitalize()} cell: node 0 adds" in text
    chosen = summary["distribution"]["normal0.op1"][SPACE["normal0.op1"].index(values["normal0.op1"])]
    assert f"node 0: {values['normal0.op1']} of cell k − 2, probability {chosen:.3f}" in text


@pytest.mark.parametrize("seed", range(20))
def test_any_cells_are_drawn_within_their_pictures(seed, tmp_path):
    values = random_values(seed)
    page = write(tmp_path, write_run(tmp_path / "run", architecture=values_of(**values)))
    pictures = page.tags("svg", role="img")
    assert len(pictures) == 2
    width = max(float(picture["width"] or 0) for picture in pictures)
    height = max(float(picture["height"] or 0) for picture in pictures)
    for box in page.tags("rect"):
        assert 0 <= float(box["x"] or -1) <= float(box["x"] or -1) + float(box["width"] or 0) <= width
        assert 0 <= float(box["y"] or -1) <= float(box["y"] or -1) + float(box["height"] or 0) <= height
    used = {source for kind in CELL_KINDS for pair in cell_paths(values, kind) for source, _ in pair}
    assert used >= {0} or "not used" in page.text("Architecture")


@pytest.mark.parametrize("kind", ["cat", "int"])
def test_an_autoencoder_is_drawn_as_the_chain_that_runs(kind, tmp_path):
    for seed in range(5):
        values = encoding.random_values(encoding.search_space(kind), seed)
        page = write(tmp_path, write_run(tmp_path / f"run{seed}", architecture=values_of(**values)))
        layers = encoding.runnable_layers(encoding.chain(values))
        skips, downs = (len(page.tags("rect", class_=f"op {look}")) for look in ("skip", "down"))
        assert skips == 2 * sum(layer.skip for layer in layers)
        assert downs == 2 * sum(not layer.skip for layer in layers)
        text = page.text("Architecture")
        for layer in layers:
            assert f"layer {layer.number}: {layer.kernel}×{layer.kernel}" in text


@pytest.mark.parametrize(
    "change",
    [
        {"layer3.connection": 3},  # a cycle
        {"layer2.connection": 5},
        {"output.connection": 0},
        {"layer3.connection": True},
        {"layer1.channels": -1},
        {"layer1.channels": 10**30},
        {"layer1.type": "9x9 skip"},
        {"layer1.type": ["1x1 skip"]},
    ],
)
def test_an_impossible_autoencoder_is_a_table(change, tmp_path):
    values = encoding.base_values(encoding.search_space(layers=5), 3) | change
    page = write(tmp_path, write_run(tmp_path / "run", architecture=values_of(**values)))
    assert page.tags("svg", role="img") == []
    assert "output.connection" in page.text("Architecture")


@pytest.mark.parametrize("change", [{"normal0.in1": 9}, {"normal0.in1": True}, {"normal0.op1": []}, {"extra": 1}])
def test_impossible_cells_are_a_table(change, tmp_path):
    page = write(tmp_path, write_run(tmp_path / "run", architecture=values_of(**{**random_values(0), **change})))
    assert page.tags("svg", role="img") == []
    assert "normal0.in1" in page.text("Architecture")


# Any other model


def test_decisions_of_any_other_model_are_boxes_and_a_table(tmp_path):
    values = values_of(depth=2, act="tanh", kernel=[3, 5])
    run = write_run(tmp_path / "run", architecture=values, summary={"inactive": ["act"]})
    text = write(tmp_path, run).text("Architecture")
    assert "depth 2 act tanh no effect kernel 3, 5 All 3 decisions as a table" in text
    assert "depth 2 act tanh (no effect) kernel 3, 5" in text


def boxes(nodes):
    """Names of a tree's nodes with those in their options and blocks."""
    return [(node.name, {label: boxes(part) for label, part in node.inside.items()}) for node in nodes]


def test_boxes_are_nested_as_the_decisions_in_the_model(tmp_path):
    inner = {"conv": [{"name": "kernel"}], "pool": [{"name": "size", "range": [1, 3]}]}
    tree = [{"name": "depth", "range": [1, 2], "inside": {"1": [{"name": "op", "inside": inner}]}}]
    values = values_of(depth=1, op="conv", kernel=3, size=2, free=1)
    run = write_run(tmp_path / "run", architecture=values, summary={"tree": tree})
    nodes = tree_of(read_runs(run)[0])
    op: tuple[str, Any] = ("op", {"conv": [("kernel", {})], "pool": [("size", {})]})
    assert boxes(nodes) == [("depth", {"1": [op]}), ("free", {})]
    text = write(tmp_path, run).text("Architecture")
    assert "depth 1 block 1 op conv conv kernel 3 pool, not used size 2 free 1" in text


def test_without_a_tree_names_with_dots_are_groups(tmp_path):
    values = {"a.x": 1, "a.y.first": 2, "a.y.second": 3, "b.x": 4, "c": 5}
    run = write_run(tmp_path / "run", architecture=values_of(**values))
    groups: list[Any] = [("a.x", {}), ("y", {"": [("a.y.first", {}), ("a.y.second", {})]})]
    assert boxes(tree_of(read_runs(run)[0])) == [("a", {"": groups}), ("b.x", {}), ("c", {})]


@pytest.mark.parametrize(
    "tree",
    [
        5,
        [5, None, {"name": 3}],
        [{"name": "op", "inside": [1], "range": "x"}],
        [{"name": "op", "range": [2, 1]}, {"name": "op", "range": [0, 1], "log": True}],
        [{"name": "unknown", "inside": {"a": [{"name": "op"}]}}],
    ],
)
def test_damaged_trees_do_no_harm(tree, tmp_path):
    distribution = {"op": {"mean": 1.0, "std": 0.5}}
    run = write_run(
        tmp_path / "run", architecture=values_of(op=1), summary={"tree": tree, "distribution": distribution}
    )
    assert "op 1" in write(tmp_path, run).text("Architecture")
