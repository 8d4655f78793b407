"""Results saved as folders of runs, and their reports."""

import json
import math

import pytest
import torch
from torch import nn

from asng import ASNG, Categorical, Integer, Real, nas, report
from asng.nas._saving import decision_tree
from tests.helpers.report_pages import Page

BATCHES = [torch.ones(4, 2)]


class Net(nn.Module):
    """Decisions of two kinds."""

    def __init__(self):
        super().__init__()
        self.act = nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.factor = nas.Value("factor", Integer(1, 9))
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        return self.act(self.linear(x)) * self.factor.value


def loss_fn(model, x):
    return model(x).square().mean()


@pytest.fixture
def found():
    torch.manual_seed(0)
    return nas.search(Net(), BATCHES, [*BATCHES], loss_fn, epochs=3, progress=False)


def result_with(history):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return nas.result(nas.OneShot(model, ASNG(nas.space_of(model)), optimizer, loss_fn), history)


def test_a_saved_result_is_reported_with_its_numbers(found, tmp_path):
    found.save(tmp_path / "mine", {"experiment": "my search", "seed": 5})
    page = Page(report.write([tmp_path / "mine"], tmp_path / "report.html"))
    losses = [record["valid_loss"] for record in found.history]
    assert page.curves("Loss")["valid"]["y"] == pytest.approx(losses, rel=1e-5)
    chosen = found.arch_optimizer.distribution()["act"].max()
    assert f"{found.values['act']} {chosen:.3f}" in page.text("Architecture")
    assert "my search" in page.text("Settings")
    assert "seed 5" in page.text("Settings")
    assert "3 of 3 epochs" in page.text("Overview")


def test_a_saved_architecture_is_read_back(found, tmp_path):
    found.save(tmp_path / "mine")
    text = (tmp_path / "mine" / "architecture.json").read_text()
    assert nas.from_json(text, found.arch_optimizer.space) == found.values


def test_a_folder_with_a_run_is_not_overwritten(found, tmp_path):
    found.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="already holds a run; save the result in another folder"):
        found.save(tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_losses_that_are_not_finite_are_saved_as_null(tmp_path):
    result_with([{"train_loss": math.nan}]).save(tmp_path)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"train_loss": None}


def test_settings_that_json_cannot_hold_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"settings cannot be saved as JSON .*; give numbers, texts and lists"):
        result_with([]).save(tmp_path / "mine", {"loss": loss_fn})
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["format", "version"])
def test_settings_do_not_say_how_the_folder_is_read(name, tmp_path):
    with pytest.raises(ValueError, match=f"settings must not contain '{name}', which asng writes itself"):
        result_with([]).save(tmp_path / "mine", {name: "png"})
    assert not (tmp_path / "mine").exists()


def test_a_tree_has_the_decisions_where_they_lie_in_the_model():
    width = nas.Width("width", 4, 8)
    deep = nn.Sequential(nas.Linear(width, width), nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}))
    block = nas.OneOf("block", {"skip": nn.Identity(), "deep": deep})
    blocks = nas.Repeat("depth", [block, nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})])
    model = nn.Sequential(nas.Linear(2, width), blocks, nas.Value("rate", Real(0.1, 1.0, log=True)))
    inside = {"1": [{"name": "block", "inside": {"deep": [{"name": "act"}]}}], "2": [{"name": "act"}]}
    assert decision_tree(model) == [
        {"name": "width", "range": [4, 8]},
        {"name": "depth", "range": [1, 2], "inside": inside},
        {"name": "rate", "range": [0.1, 1.0], "log": True},
    ]


class Skipped(nas.Decision):
    """Its module, or nothing: a kind of decision of the user's own."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, Categorical([False, True]))
        self.module = module

    def build_static(self) -> nn.Module:
        return self.module if self.value else nn.Identity()


def test_a_decision_of_ones_own_has_what_it_holds_inside():
    model = Skipped("skip", nn.Sequential(nas.Linear(2, nas.Width("width", 4, 8)), nn.Tanh()))
    assert decision_tree(model) == [{"name": "skip", "inside": {"": [{"name": "width", "range": [4, 8]}]}}]


def test_a_model_of_too_many_decisions_has_no_tree():
    values = [nas.Value(f"v{index}", Integer(0, 1)) for index in range(2001)]
    assert decision_tree(nn.ModuleList(values)) is None
    assert len(decision_tree(nn.ModuleList(values[1:])) or []) == 2000


def test_limits_with_their_costs_and_a_front_are_saved(tmp_path):
    torch.manual_seed(0)
    model = nas.Linear(2, nas.Width("width", [1, 2, 4]))
    limits = [nas.Limit(nas.parameters, 6)]
    found = nas.search(model, BATCHES, [*BATCHES], loss_fn, epochs=2, limits=limits, progress=False)
    front = nas.front(found, [nas.parameters], BATCHES, loss_fn)
    found.save(tmp_path / "mine", front=front)
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    cost = 3 * found.values["width"]
    assert summary["limits"] == [{"name": "parameters", "at_least": None, "at_most": 6, "cost": cost}]
    page = Page(report.write([tmp_path / "mine"], tmp_path / "report.html"))
    drawn = page.curves("Score over parameters")["front"]
    assert drawn["step"] == [point.costs[0] for point in front.points]
    assert drawn["y"] == pytest.approx([point.score for point in front.points], rel=1e-5)
    assert f"parameters ≤ 6 {cost} yes" in page.text("Limits")
