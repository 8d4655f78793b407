"""A model is restored after user code has run on it."""

import gc

import pytest
import torch
from torch import nn

from asng.nas._preserve import snapshot


class Marked(torch.Tensor):
    """A tensor of a class of its own."""


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2))
    wide = torch.arange(12.0).view(3, 4)
    buffers = {
        "precise": torch.rand(2, 3, dtype=torch.float64),
        "transposed": wide.t(),
        "part": wide[1],
        "empty": torch.zeros(0),
        "flags": torch.tensor([True, False]),
        "complex": torch.tensor(1 + 2j),
        "marked": torch.rand(2).as_subclass(Marked),
        "expanded": torch.ones(1).expand(3),
        "sparse": torch.eye(2).to_sparse(),
    }
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer)
    return model


def test_contents_of_buffers_of_all_kinds_are_restored(model):
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with snapshot(model.modules()):
        model[:](torch.randn(4, 3))  # moves running statistics
        model.precise.zero_()
        model.transposed.fill_(7)  # and so the part, which shares its memory
        model.flags.logical_not_()
        model.complex.zero_()
        model.marked.zero_()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer.to_dense(), before[name].to_dense()), name
        assert type(buffer) is type(before[name]), name
    assert model.part.data_ptr() == model.transposed.data_ptr() + 4 * model.part.element_size()


def test_buffers_replaced_through_data_are_restored(model):
    statistics, precise = model[0].running_mean, model.precise
    before = statistics.data_ptr(), precise.clone()
    with snapshot(model.modules()) as changes:
        statistics.data = torch.ones(3)
        precise.data = torch.zeros(5)
    assert statistics.data_ptr() == before[0]
    assert torch.equal(statistics, torch.zeros(3))
    assert torch.equal(precise, before[1])
    assert changes == [(model, "the numbers"), (model[0], "the numbers")]


def test_new_hooks_attributes_and_submodules_are_removed_and_named(model):
    linear = model[1]
    with snapshot(model.modules()) as changes:
        linear.register_forward_hook(lambda *_: None)
        linear.note = "new"
        linear.add_module("more", nn.ReLU())
        linear.eval()
    assert not linear._forward_hooks
    assert not hasattr(linear, "note")
    assert [*linear.children()] == []
    assert linear.training
    assert changes == [(linear, "note"), (linear, "forward_hooks"), (linear, "modules")]


@pytest.mark.parametrize("empty", [dict, list, set])
def test_containers_are_the_same_with_what_they_held(model, empty):
    held, full = empty(), empty(zip("ab", "cd", strict=True))
    model[1].held, model[1].full, before = held, full, full.copy()
    with snapshot(model.modules()) as changes:
        (held.extend if empty is list else held.update)(full)
        full.clear()
    assert (model[1].held, model[1].full) == (empty(), before)
    assert model[1].held is held
    assert model[1].full is full
    assert changes == [(model[1], "held"), (model[1], "full")]


def test_containers_that_count_as_false_are_restored(model):
    class Falsy(list):
        def __bool__(self):
            return False

    model[1].held = Falsy([1, 2])
    with snapshot(model.modules()):
        model[1].held[0] = 3
    assert list(model[1].held) == [1, 2]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_it_was_inside_and_afterward(model, enabled, monkeypatch):
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)
    calls = []
    monkeypatch.setattr(gc, "disable", lambda: calls.append("disable"))
    monkeypatch.setattr(gc, "enable", lambda: calls.append("enable"))
    with snapshot(model.modules()):
        calls.append("inside")
    pause = ["disable", "enable"] if enabled else ["disable"]
    assert calls == [*pause, "inside", *pause]
