"""Rows of channels that are not a multiple of 16 bytes are longer in memory, from one fused layer to the next."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from asng import fused
from asng.fused._dispatch import row_of, to_rows, widen
from asng.fused._maps import first_channels
from asng.fused._pointwise import join_maps
from tests.helpers.fused_layers import assert_close, channels_last, run


def separable(channels):
    half = [nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)]
    half += [nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)]
    return nn.Sequential(*half, *copy.deepcopy(half))


@pytest.mark.parametrize("channels", [8, 10])
@pytest.mark.parametrize(
    "layers",
    [
        lambda c: [nn.BatchNorm2d(c)],
        lambda c: [nn.MaxPool2d(3, 1, 1)],
        lambda c: [nn.AvgPool2d(3, 2, 1)],
        lambda c: [nn.Sequential(nn.Conv2d(c, c, 1, bias=False), nn.BatchNorm2d(c))],
        lambda c: [separable(c)],
    ],
    ids=["norm", "max pool", "average pool", "1x1", "separable"],
)
def test_layers_may_be_followed_by_ones_that_write_in_place(layers, channels):
    torch.manual_seed(0)
    network = nn.Sequential(*layers(channels), nn.ReLU(inplace=True))
    x = channels_last((2, channels, 4, 4), torch.float32)
    expected = run(copy.deepcopy(network).double(), x.double())
    assert_close(run(fused.fuse(network), x), expected, torch.float32)


class Cell(nn.Module):
    """Every kind of layer behind every other, and gradients of several users."""

    def __init__(self, channels):
        super().__init__()
        self.entry = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.max, self.avg, self.norm = nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.BatchNorm2d(channels)
        self.separable, self.join = separable(channels), nn.Conv2d(3 * channels, channels, 1, bias=False)
        self.end = nn.BatchNorm2d(channels)
        self.sum = fused.ScaledSum()

    def forward(self, x):
        first, second, third = fused.fan_out(self.entry(x), 3)
        scale = torch.linspace(0.5, 1, len(x), dtype=x.dtype).view(-1, 1, 1, 1)
        maps = [self.sum(self.max(first), self.separable(second), scale), self.norm(third), self.avg(third)]
        return join_maps(maps, self.join.weight, self.end)


@pytest.mark.parametrize("channels", [3, 8, 13])
def test_layers_pass_longer_rows_on(channels):
    torch.manual_seed(0)
    reference = Cell(channels)
    layer = fused.fuse(copy.deepcopy(reference))
    x = channels_last((2, channels, 6, 5), torch.float32)
    got, expected = run(layer, x), run(reference.double(), x.double())
    assert got.used == "PointwiseFunctionBackward"
    assert row_of(layer.entry(x)) == row_of(layer.separable(x)) == -(-channels // 8) * 8
    assert row_of(layer.norm(layer.entry(x))) == -(-channels // 8) * 8
    assert_close(got, expected, torch.float32)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Sequential(nn.Conv2d(5, 6, 1, bias=False), nn.BatchNorm2d(6)),
        separable(5),
        nn.MaxPool2d(3, 1, 1),
        nn.AvgPool2d(3, 2, 1),
        nn.BatchNorm2d(5),
    ],
    ids=["pointwise", "separable", "max", "avg", "norm"],
)
@pytest.mark.parametrize("beyond", [float("nan"), 1e30])
def test_what_a_row_has_beyond_its_channels_means_nothing(layer, beyond):
    whole = torch.full((2, 8, 6, 4), beyond).contiguous(memory_format=torch.channels_last)
    x = channels_last((2, 5, 6, 4), torch.float32)
    whole[:, :5] = x
    assert row_of(whole[:, :5]) == 8
    plain, ours = run(copy.deepcopy(layer), x), run(fused.fuse(copy.deepcopy(nn.Sequential(layer)))[0], whole[:, :5])
    assert ours.used != plain.used
    assert_close(ours, plain, torch.float32)


def test_the_first_channels_are_rows_in_the_memory_of_all():
    whole = channels_last((2, 8, 3, 4), torch.float32).requires_grad_()
    x = first_channels(whole, 5)
    assert row_of(x) == 8
    assert torch.equal(x, whole[:, :5])
    (gradient,) = torch.autograd.grad(x, whole, channels_last((2, 5, 3, 4), torch.float32, 1))
    assert torch.equal(gradient[:, :5], channels_last((2, 5, 3, 4), torch.float32, 1))


def test_other_layouts_have_no_rows():
    x = torch.randn(2, 5, 6, 4)
    assert row_of(x) == 0
    assert row_of(x.contiguous(memory_format=torch.channels_last)) == 5
    wide = torch.randn(2, 16, 6, 4).contiguous(memory_format=torch.channels_last)
    assert row_of(wide[:, 4:9]) == 0  # begins in the middle of a row
    assert row_of(wide[:, :5]) == 0  # with rows of another length
    assert row_of(torch.randn(2, 6, 4, 8).permute(0, 3, 1, 2)[:, 3:]) == 0


def test_rows_of_another_length_are_copies():
    x = channels_last((2, 5, 3, 3), torch.float32)
    rows = to_rows(x, 8)
    assert row_of(rows) == 8
    assert widen(rows).shape == (2, 8, 3, 3)
    assert torch.equal(rows, x)
    assert to_rows(rows) is rows
    assert row_of(to_rows(rows, 5)) == 5
