"""Modules that use `asng.fused`, searched, then extracted, unfused and exported; on the CPU, by torch's functions."""

import inspect

import pytest
import torch
from torch import nn

import asng
from asng import fused, nas
from asng.fused import _swap


class NormAddReLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = fused.BatchNorm2d(4)

    def forward(self, x):
        return fused.batch_norm(x, self.norm, add=2 * x, relu=True)


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.sum = fused.ScaledSum()

    def forward(self, x):
        return self.sum(x, x.square(), x.new_full((x.shape[0], 1, 1, 1), 0.5))


class FanOut(nn.Module):
    def forward(self, x):
        first, second = fused.fan_out(x, 2)
        return first * second


def half():
    return [
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False),
        nn.Conv2d(4, 4, 1, bias=False),
        nn.BatchNorm2d(4),
    ]


BLOCKS = {
    "batch_norm": NormAddReLU,
    "ScaledSum": Sum,
    "fan_out": FanOut,
    "BatchNorm2d": lambda: fused.BatchNorm2d(4),
    "AvgPool2d": lambda: fused.AvgPool2d(3, 1, 1),
    "MaxPool2d": lambda: fused.MaxPool2d(3, 1, 1),
    "PointwiseConv2d": lambda: fused.PointwiseConv2d(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)),
    "PointwiseConv2d of a ReLU": lambda: fused.PointwiseConv2d(
        nn.ReLU(), nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
    ),
    "SeparableConv2d": lambda: fused.SeparableConv2d(*half(), *half()),
}
X = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.stem = nas.OneOf("stem", {"1x1": nn.Conv2d(1, 4, 1), "3x3": nn.Conv2d(1, 4, 3, padding=1)})
        self.block = block

    def forward(self, x):
        return self.block(self.stem(x)).mean((2, 3))


def test_all_public_names_are_tried():
    assert {name.split()[0] for name in BLOCKS} | {"fuse", "unfuse"} == set(fused.__all__)


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_what_is_searched_runs_extracted_unfused_and_exported(make, tmp_path):
    torch.manual_seed(0)
    model = Net(make())
    optimizers = asng.ASNG(nas.space_of(model), seed=0), torch.optim.SGD(model.parameters(), lr=0.1)
    oneshot = nas.OneShot(model, *optimizers, lambda model, batch: model(batch).square().mean())
    oneshot.step(X[:3], X[3:])
    result = nas.result(oneshot)
    network = result.model.eval()
    assert not [module for module in network.modules() if type(module) in _swap.PLAIN]
    files = nas.export(network, tmp_path, X, formats=["torch"])
    exported = torch.export.load(files["torch"]).module()(X)
    assert torch.allclose(exported, network(X), atol=1e-6)
    nas.select(model.eval(), result.values)
    expected = model(X)
    assert torch.equal(network(X), expected)
    assert torch.equal(fused.unfuse(model)(X), expected)


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_source_without_asng_can_be_written(make, tmp_path):
    pytest.importorskip("safetensors")
    network = nas.extract(Net(make()), {"stem": "3x3"})
    files = nas.export(network, tmp_path, X, formats=["python"])
    assert "asng" not in files["python"].read_text().split('"""')[2]


@pytest.mark.parametrize(("ours", "torchs"), _swap.PLAIN.items(), ids=lambda kind: kind.__name__)
def test_fused_layers_are_called_as_torchs_which_extract_puts_in_their_place(ours, torchs):
    numbers = [len(inspect.signature(kind.forward).parameters) for kind in (ours, torchs)]
    assert numbers == [2, 2]  # self and the input
