"""Elastic layers: equal to torch's at every size, frozen into torch's, with gradients in the selected part alone."""
# mypy: disable-error-code="index"
# (torch's layers are looked into)

import copy
import pickle

import pytest
import torch
from torch import nn

from asng import nas
from asng.nas import select
from tests.helpers.elastic_sizes import equal, odd, width


@pytest.mark.parametrize("size", [nas.Width("w", 2, 4), nas.Width("w", 2, 4) * 2])
def test_a_convolution_of_torch_refuses_a_decision_with_the_cure(size):
    with pytest.raises(ValueError, match=r"'w' is not a number, .*; use an elastic layer, such as nas\.Conv2d"):
        nn.Conv2d(3, size, 1)


def test_the_largest_size_is_initialized_as_torch_does():
    torch.manual_seed(0)
    layer = nas.Conv2d(width("a"), width("b"), odd(), padding=2)
    torch.manual_seed(0)
    assert torch.equal(layer.weight, nn.Conv2d(8, 8, 5, padding=2).weight)


# Slices, gradients, copies.


EVERY = [
    (lambda: nas.Conv2d(width(), width("b"), odd(), padding=2), {"a": 3, "b": 4, "k": 2}, (2, 3, 6, 6)),
    (lambda: nas.Conv2d(width(), width() * 2, 3, groups=width()), {"a": 3}, (2, 3, 6, 6)),
    (lambda: nas.Conv2d(width() * 2, 6, 3, groups=2), {"a": 3}, (2, 6, 6, 6)),
    (lambda: nas.ConvTranspose2d(width(), width("b"), odd(), padding=2), {"a": 3, "b": 4, "k": 2}, (2, 3, 6, 6)),
    (lambda: nas.Linear(width(), width("b")), {"a": 3, "b": 4}, (2, 3)),
    (lambda: nas.BatchNorm1d(width()), {"a": 3}, (2, 3)),
    (lambda: nas.BatchNorm2d(width()), {"a": 3}, (2, 3, 4, 4)),
    (lambda: nas.LayerNorm(width()), {"a": 3}, (2, 3)),
]


@pytest.mark.parametrize(("make", "values", "shape"), EVERY)
def test_gradients_reach_only_the_slice_and_equal_the_static_ones(make, values, shape):
    layer = make()
    select(layer, values)
    frozen = layer.build_static()
    x = torch.randn(shape)
    layer(x).square().sum().backward()
    frozen(x).square().sum().backward()
    grads = copy.deepcopy(layer)
    for name, parameter in layer.named_parameters():
        grads.get_parameter(name).data = parameter.grad
    for name, part in grads.build_static().named_parameters():
        torch.testing.assert_close(part.data, frozen.get_parameter(name).grad, rtol=1e-4, atol=1e-4)
        whole = layer.get_parameter(name).grad
        assert torch.count_nonzero(whole) == torch.count_nonzero(part)  # so there is none outside


@pytest.mark.parametrize(("make", "values", "shape"), EVERY)
def test_copies_and_pickles_keep_their_decisions_together(make, values, shape):
    layer = make()
    select(layer, values)
    x = torch.randn(shape)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        twin.eval(), layer.eval()
        assert equal(twin(x), layer(x))
        lowest = {name: variable.low for name, variable in nas.space_of(twin).items()}  # type: ignore[attr-defined]
        select(twin, lowest)
        assert twin.build_static().state_dict().keys() == layer.state_dict().keys()
        assert sum(p.numel() for p in twin.build_static().parameters()) < sum(
            p.numel() for p in layer.build_static().parameters()
        )
        assert equal(layer(x), layer.build_static()(x))  # the original has its own values


@pytest.mark.parametrize(("make", "values", "shape"), EVERY)
def test_a_frozen_layer_keeps_dtype_mode_and_what_trains(make, values, shape):
    layer = make().double().eval()
    layer.weight.requires_grad_(False)
    select(layer, values)
    state = torch.get_rng_state()
    frozen = layer.build_static()
    assert torch.equal(torch.get_rng_state(), state)  # no number is drawn for it
    assert frozen.weight.dtype == torch.float64
    assert frozen.weight.device == layer.weight.device
    assert not frozen.weight.requires_grad
    assert frozen.bias.requires_grad
    assert not frozen.training
    frozen.weight.zero_()
    assert (layer.weight != 0).all()  # copies, not views
    assert frozen.weight.is_contiguous()
    assert all(buffer.device.type != "meta" for buffer in frozen.buffers())


def test_layers_on_another_device_freeze_there():
    layer = nas.Conv2d(3, width(), 3, device="meta", dtype=torch.bfloat16)
    select(layer, {"a": 3})
    assert layer.build_static().weight.device.type == "meta"
    assert layer.build_static().weight.dtype == torch.bfloat16


def test_decisions_add_nothing_to_the_state():
    shared = width()
    model = nn.Sequential(nas.Conv2d(3, shared, 3), nas.BatchNorm2d(shared), nas.Conv2d(shared, 4, 1))
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1))
    assert list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict())
    select(model, {"a": 8})
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(model(x), plain(x))
