"""Captures of a search: what is told of them, when steps are captured anew, and what ends captures."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from asng import ASNG, Categorical, nas
from asng.nas import OneShot, Value
from asng.nas._capture import step as _capture
from tests.helpers.captures import Choosy, oneshot
from tests.helpers.searches import batches, cross_entropy, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


@pytest.mark.usefixtures("graphless")
def test_a_search_records_what_the_capture_took_and_resumes(tmp_path):
    def history(checkpoint, epochs=2, capture=True):
        torch.manual_seed(0)
        model = Choosy()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        options: Any = {"checkpoint": checkpoint, "progress": False, "capture": capture}
        options |= {"weight_optimizer": optimizer, "lr_scheduler": scheduler, "epochs": epochs}
        return nas.search(model, batches(3, 1), batches(3, 2), cross_entropy, **options).history

    captured, plain = history(None), history(None, capture=False)
    assert [sorted(set(record) - set(plain[0])) for record in captured] == [["capture_gb", "capture_seconds"], []]
    history(tmp_path / "search.pt", epochs=1)
    resumed = history(tmp_path / "search.pt")
    for one, other, third in zip(plain, captured, resumed, strict=True):
        assert one["valid_loss"] == other["valid_loss"] == third["valid_loss"]


class Ignores(nn.Module):
    def __init__(self, *names):
        super().__init__()
        self.inner = nn.ModuleList(Value(name, Categorical([1, 2])) for name in names)
        self.net = Choosy()

    def forward(self, x):
        return self.net(x)


@pytest.mark.usefixtures("graphless", "nothing_compiled")
def test_decisions_that_a_captured_step_does_not_read_are_named():
    search = oneshot(Ignores("a", "b"), capture=True)
    first, second = pairs(2)
    with pytest.warns(UserWarning, match="nothing has read the decisions 'a', 'b' in a captured step"):
        search.step(*first)
    search.step(*second)  # without a warning, which would be an error


@pytest.mark.usefixtures("graphless")
def test_batches_that_keep_another_shape_are_captured_anew(monkeypatch):
    monkeypatch.setattr(_capture, "MAX_MISFITS", 2)
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    first, *others = pairs(6)
    shorter = [tuple(tensor[:3] for tensor in batch) for batch in first]
    captures = []
    for train, valid in (first, shorter, others[0], shorter, shorter, shorter, shorter):
        assert captured.step(train, valid) == plain.step(train, valid)
        captures.append(captured._captured._captures)
    assert captures == [1, 1, 1, 1, 1, 2, 2]


@pytest.mark.long
@pytest.mark.usefixtures("graphless")
def test_captures_that_are_released_do_not_count():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    for train, valid in pairs(6):
        assert captured.step(train, valid) == plain.step(train, valid)  # without a warning, which would be an error
        captured.release_capture()


@pytest.mark.long
@pytest.mark.usefixtures("graphless")
def test_settings_that_change_all_the_time_end_captures():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)

    def assert_same_step(number, train, valid):
        for search in (plain, captured):
            search.weight_optimizer.param_groups[0]["momentum"] = 0.9 - 0.1 * number
        assert captured.step(train, valid) == plain.step(train, valid)

    *first, fifth, sixth = enumerate(pairs(6))
    for number, pair in first:
        assert_same_step(number, *pair)
    with pytest.warns(UserWarning, match="it was captured 4 times, and the optimizer's momentum changes again"):
        assert_same_step(fifth[0], *fifth[1])
    assert_same_step(sixth[0], *sixth[1])  # without a warning, which would be an error


@pytest.mark.usefixtures("graphless")
def test_a_number_that_changes_from_batch_to_batch_ends_captures():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    first, second, third = [[(*batch, number) for batch in pair] for number, pair in enumerate(pairs(3))]
    assert captured.step(*first) == plain.step(*first)
    with pytest.warns(UserWarning, match="a batch holds 1 instead of 0, and only tensors may change") as caught:
        assert captured.step(*second) == plain.step(*second)
    assert caught[0].filename == __file__
    assert captured.step(*third) == plain.step(*third)
    torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("graphless")
def test_a_population_that_grows_ends_captures():
    model = Choosy()
    twin = copy.deepcopy(model)
    plain, captured = (
        OneShot(
            net,
            ASNG(nas.space_of(net), adapt="population_size", delta_init=1.0, seed=3),
            torch.optim.SGD(net.parameters(), lr=0.1),
            cross_entropy,
            capture=capture,
        )
        for net, capture in ((model, False), (twin, True))
    )
    data = pairs(20)
    reason = "the candidates of a step change from 2 to 3, and a graph holds a pass for each"
    with pytest.warns(UserWarning, match=reason) as caught:
        got = [captured.step(*pair) for pair in data]
    assert len(caught) == 1
    assert got == [plain.step(*pair) for pair in data]
    torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)
