"""Results saved as folders of runs, and their reports."""

import json
import math

import pytest
import torch
from torch import nn

from asng import ASNG, Integer, nas, report
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
    return nas.search(Net(), BATCHES, BATCHES, loss_fn, epochs=3, progress=False)


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
    with pytest.raises(ValueError, match="holds a run already; save the result in another folder"):
        found.save(tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_losses_that_are_not_finite_are_saved_as_null(tmp_path):
    result_with([{"train_loss": math.nan}]).save(tmp_path)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"train_loss": None}


def test_settings_that_json_cannot_hold_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"settings cannot be saved as JSON .*; give numbers, texts and lists"):
        result_with([]).save(tmp_path / "mine", {"loss": loss_fn})
    assert not (tmp_path / "mine").exists()
