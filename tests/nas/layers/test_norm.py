"""Elastic norms: equal to torch's at every size, with the statistics of the selected part."""
# mypy: disable-error-code="index"
# (torch's layers are looked into)

import copy

import pytest
import torch
from torch import nn

from asng import nas
from asng.nas import extract, select
from tests.helpers.elastic_sizes import equal, width


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_torchs_of_the_small_size(affine, bias):
    layer = nas.LayerNorm((3, width()), eps=1e-3, elementwise_affine=affine, bias=bias)
    if affine:
        nn.init.normal_(layer.weight)
    for a in (2, 5, 8):
        select(layer, {"a": a})
        plain = nn.LayerNorm((3, a), eps=1e-3, elementwise_affine=affine, bias=bias)
        with torch.no_grad():
            for name, parameter in plain.named_parameters():
                parameter.copy_(getattr(layer, name)[:, :a])
        x = torch.randn(4, 3, a)
        assert equal(layer(x), plain(x))
        frozen = layer.build_static()
        assert type(frozen) is nn.LayerNorm
        assert repr(frozen) == repr(plain)
        assert equal(frozen(x), plain(x))


class Doubles(nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize("kind", [nas.LayerNorm, nas.RMSNorm])
def test_norms_use_a_weight_that_is_parametrized(kind):
    layer = kind(width())
    select(layer, {"a": 5})
    x = torch.randn(4, 5)
    expected = 2 * layer(x)
    nn.utils.parametrize.register_parametrization(layer, "weight", Doubles())
    assert equal(layer(x), expected)
    assert equal(layer.build_static()(x), expected)


@pytest.mark.parametrize(
    ("kind", "plain_kind", "shape"),
    [
        (nas.BatchNorm1d, nn.BatchNorm1d, ()),
        (nas.BatchNorm1d, nn.BatchNorm1d, (5,)),
        (nas.BatchNorm2d, nn.BatchNorm2d, (3, 4)),
    ],
)
@pytest.mark.parametrize("momentum", [0.1, 0.0, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracks", [True, False])
def test_batch_norm_is_torchs_of_the_small_size(kind, plain_kind, shape, momentum, affine, tracks):
    layer = kind(width(), eps=1e-3, momentum=momentum, affine=affine, track_running_stats=tracks)
    if affine:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    select(layer, {"a": 5})
    plain = plain_kind(5, eps=1e-3, momentum=momentum, affine=affine, track_running_stats=tracks)
    plain.load_state_dict({name: tensor[:5] if tensor.dim() else tensor for name, tensor in layer.state_dict().items()})
    for _ in range(3):
        x = torch.randn(6, 5, *shape) * 3 + 1
        assert equal(layer(x), plain(x))
    frozen = layer.build_static()
    assert type(frozen) is plain_kind
    assert repr(frozen) == repr(plain)
    assert frozen.state_dict().keys() == plain.state_dict().keys()
    for name, tensor in plain.state_dict().items():
        assert equal(frozen.state_dict()[name].float(), tensor.float())
    if tracks:
        assert torch.equal(layer.running_mean[5:], torch.zeros(3))
        assert torch.equal(layer.running_var[5:], torch.ones(3))
        assert (layer.running_mean[:5] != 0).all() == (momentum != 0.0)
        assert int(layer.num_batches_tracked) == 3
    before = copy.deepcopy(layer.state_dict())
    layer.eval(), plain.eval()
    x = torch.randn(6, 5, *shape)
    assert equal(layer(x), plain(x))
    assert equal(layer.build_static()(x), plain(x))
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


@pytest.mark.parametrize("tracks", [True, False])
def test_statistics_rest_where_they_are_switched_off_later(tracks):
    layer, plain = nas.BatchNorm1d(width()), nn.BatchNorm1d(8)
    select(layer, {"a": 8})
    x = torch.randn(4, 8)
    for norm in (layer, plain):
        norm(x)
        norm.track_running_stats = tracks
        norm(x)
    assert all(torch.equal(tensor, plain.state_dict()[name]) for name, tensor in layer.state_dict().items())
    assert equal(layer(x), plain(x))
    assert equal(layer.eval()(x), plain.eval()(x))
    assert equal(layer.build_static()(x), plain(x))


def test_a_batch_norm_may_do_without_a_bias():
    layer = nas.BatchNorm2d(width(), bias=False)
    select(layer, {"a": 3})
    assert list(layer.state_dict()) == ["weight", "running_mean", "running_var", "num_batches_tracked"]
    frozen = layer.build_static()
    assert list(frozen.state_dict()) == list(layer.state_dict())
    x = torch.randn(2, 3, 4, 4)
    assert equal(frozen(x), nn.functional.batch_norm(x, None, None, layer.weight[:3], None, training=True))


def test_a_parametrized_weight_is_frozen_as_it_is():
    layer = nn.utils.parametrizations.weight_norm(nas.Linear(width(), width("b")))
    nas.select(layer, {"a": 3, "b": 4})
    frozen = extract(layer, {"a": 3, "b": 4})
    assert type(frozen) is nn.Linear
    x = torch.randn(2, 3)
    assert equal(frozen(x), layer(x))


def test_batch_norms_still_check_their_input():
    norm = nas.BatchNorm2d(width())
    select(norm, {"a": 3})
    with pytest.raises(ValueError, match="expected 4D input"):
        norm(torch.zeros(2, 3))


def test_an_instance_norm_takes_one_instance_too():
    layer = nas.InstanceNorm2d(width())
    select(layer, {"a": 3})
    x = torch.randn(3, 4, 5)
    assert torch.equal(layer(x), nn.InstanceNorm2d(3)(x))
    with pytest.raises(RuntimeError, match="InstanceNorm2d takes 'a' = 3 channels, but got 4"):
        layer(torch.zeros(1, 4, 5, 5))
