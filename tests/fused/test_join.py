"""1x1 convolutions of several rectified maps, and of pixels taken diagonally, against torch's in float64."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton")

from asng import fused
from asng.experiments.cifar10.layers import pointwise, separable
from asng.fused import _pointwise_function
from asng.fused._dispatch import SideStream
from asng.fused._maps import keep_unused
from asng.fused._pointwise import join_maps, reduce_diagonally
from tests.helpers.fused_layers import assert_close, channels_last, run


class Join(nn.Module):
    """Maps side by side, rectified, through a 1x1 convolution and a batch norm."""

    def __init__(self, inputs, outputs, function):
        super().__init__()
        self.conv, self.norm, self.function = (
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            function,
        )

    def forward(self, *maps):
        return self.function(maps, self.conv.weight, self.norm)


class Reduce(nn.Module):
    """Half of the channels from the pixels of even rows and columns, half from those of odd ones."""

    def __init__(self, inputs, outputs, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(2 * inputs, outputs, 1, groups=2, bias=False), function
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return self.function(x, self.conv, self.norm)


def torch_join(maps, weight, norm):
    return norm(F.conv2d(torch.relu(torch.cat(list(maps), 1)), weight))


def torch_reduce(x, conv, norm):
    return norm(conv(torch.cat([x[:, :, ::2, ::2], x[:, :, 1::2, 1::2]], 1)))


def torch_rectify_and_reduce(x, conv, norm):
    return torch_reduce(torch.relu(x), conv, norm)


def pair(kind, inputs, outputs, ours, torchs):
    """A layer of random weights by our function, and the same by torch's in float64."""
    torch.manual_seed(0)
    layer = kind(inputs, outputs, ours)
    for tensor in layer.norm.state_dict().values():
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    reference = copy.deepcopy(layer).double()
    reference.function = torchs
    return layer, reference


@pytest.mark.parametrize("number", [1, 2, 4, 5])
@pytest.mark.parametrize("one_pass", [64, 0])  # channels up to which all gradients are computed in one pass
@pytest.mark.parametrize(("shape", "outputs"), [((2, 16, 8, 8), 16), ((1, 42, 5, 7), 42), ((2, 70, 3, 4), 24)])
def test_joined_maps_and_gradients_equal_torchs(number, shape, outputs, one_pass, monkeypatch):
    monkeypatch.setattr(_pointwise_function, "ONE_PASS_CHANNELS", one_pass)
    layer, reference = pair(Join, number * shape[1], outputs, join_maps, torch_join)
    maps = [channels_last(shape, torch.float32, seed) for seed in range(number)]
    got = run(layer, *maps)
    assert got.used == "PointwiseFunctionBackward"
    assert_close(got, run(reference, *(x.double() for x in maps)), torch.float32)
    torch.testing.assert_close(layer.norm.running_var.double(), reference.norm.running_var, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("one_pass", [64, 0])
def test_what_a_side_stream_reads_stays_in_memory(one_pass, monkeypatch):
    read: list[torch.Tensor] = []
    kept: list[object] = []
    reduce, leave = _pointwise_function.reduce, SideStream.leave

    def note_read(partials, *arguments):
        read.extend(partials)
        reduce(partials, *arguments)

    def note_kept(side, written, *tensors):
        kept.extend(tensors)
        leave(side, written, *tensors)

    monkeypatch.setattr(_pointwise_function, "ONE_PASS_CHANNELS", one_pass)
    monkeypatch.setattr(_pointwise_function, "reduce", note_read)
    monkeypatch.setattr(SideStream, "leave", note_kept)
    layer, _ = pair(Join, 16, 8, join_maps, torch_join)
    run(layer, *(channels_last((2, 8, 3, 4), torch.float32, seed) for seed in range(2)))
    assert len(read) == 1
    assert any(tensor is read[0] for tensor in kept)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    "layer", [partial(separable, 8, 3, 1, affine=True), partial(pointwise, 8, 8, affine=True)], ids=["3x3", "1x1"]
)
def test_a_side_stream_computes_no_gradients_of_frozen_weights(layer, frozen, monkeypatch):
    kept: list[bool] = []
    begin = SideStream.__init__

    def note(side, x, *, are_kept):
        kept.append(are_kept)
        begin(side, x, are_kept=are_kept)

    monkeypatch.setattr(SideStream, "__init__", note)
    fused_layer = fused.fuse(nn.Sequential(layer()))
    next(iter(fused_layer.parameters())).requires_grad_(not frozen)
    fused_layer(channels_last((2, 8, 6, 6), torch.float32).requires_grad_()).sum().backward()
    assert kept == [not frozen]


def test_joined_maps_in_several_tiles(monkeypatch):
    monkeypatch.setattr(_pointwise_function, "WEIGHT_PROGRAMS", 5)
    layer, reference = pair(Join, 3 * 40, 20, join_maps, torch_join)
    maps = [channels_last((2, 40, 9, 8), torch.float32, seed) for seed in range(3)]
    assert_close(run(layer, *maps), run(reference, *(x.double() for x in maps)), torch.float32)


@pytest.mark.parametrize("maps", [6, 2])
def test_more_maps_or_maps_of_several_sizes_are_left_to_torch(maps):
    shapes = [(2, 4, 3, 3)] * 6 if maps == 6 else [(2, 4, 3, 3), (2, 8, 3, 3)]
    layer, reference = pair(Join, sum(shape[1] for shape in shapes), 5, join_maps, torch_join)
    tensors = [channels_last(shape, torch.float32, seed) for seed, shape in enumerate(shapes)]
    got = run(layer, *tensors)
    assert got.used == "NativeBatchNormBackward0"
    assert_close(got, run(reference, *(x.double() for x in tensors)), torch.float32)


def test_nan_passes_the_rectifier():
    layer, _ = pair(Join, 8, 4, join_maps, torch_join)
    x = channels_last((2, 8, 4, 4), torch.float32)
    x[0, 0, 0, 0] = float("nan")
    assert layer(x).isnan().any()


@pytest.mark.parametrize(("shape", "outputs"), [((2, 16, 8, 8), 16), ((1, 42, 6, 10), 84), ((3, 70, 4, 4), 24)])
def test_diagonal_pixels_and_gradients_equal_torchs(shape, outputs):
    layer, reference = pair(Reduce, shape[1], outputs, reduce_diagonally, torch_reduce)
    x = channels_last(shape, torch.float32)
    got = run(layer, x)
    assert got.used == "PointwiseFunctionBackward"
    assert_close(got, run(reference, x.double()), torch.float32)


@pytest.mark.parametrize("one_pass", [64, 0])
@pytest.mark.parametrize(("shape", "outputs"), [((2, 16, 8, 8), 16), ((1, 42, 6, 10), 84)])
def test_diagonal_pixels_are_rectified_on_demand(shape, outputs, one_pass, monkeypatch):
    monkeypatch.setattr(_pointwise_function, "ONE_PASS_CHANNELS", one_pass)
    ours = partial(reduce_diagonally, relu=True)
    layer, reference = pair(Reduce, shape[1], outputs, ours, torch_rectify_and_reduce)
    x = channels_last(shape, torch.float32)
    got = run(layer, x)
    assert got.used == "PointwiseFunctionBackward"
    assert_close(got, run(reference, x.double()), torch.float32)


def test_diagonal_pixels_in_several_tiles(monkeypatch):
    monkeypatch.setattr(_pointwise_function, "WEIGHT_PROGRAMS", 3)
    layer, reference = pair(Reduce, 24, 20, reduce_diagonally, torch_reduce)
    x = channels_last((3, 24, 12, 8), torch.float32)
    assert_close(run(layer, x), run(reference, x.double()), torch.float32)


def test_evaluation_mode_is_left_to_torch():
    layer, reference = pair(Reduce, 8, 6, reduce_diagonally, torch_reduce)
    x = channels_last((2, 8, 4, 4), torch.float32)
    assert_close(run(layer.eval(), x), run(reference.eval(), x.double()), torch.float32)
    layer.function, reference.function = partial(reduce_diagonally, relu=True), torch_rectify_and_reduce
    assert_close(run(layer, x), run(reference, x.double()), torch.float32)


@pytest.mark.parametrize("used", [(0,), (3, 3, 1), (6, 2, 4, 5, 3, 2, 4, 0, 1, 5)])
def test_weights_of_maps_that_are_used_elsewhere_are_zero(used):
    weight = torch.randn(7, 15, 1, 1).contiguous(memory_format=torch.channels_last).requires_grad_()
    kept = keep_unused(weight, [torch.tensor(number, dtype=torch.int32) for number in used], first=2, maps=5)
    mask = torch.tensor([2 + number not in used for number in range(5)]).repeat_interleave(3).view(1, 15, 1, 1)
    assert torch.equal(kept, weight * mask)
    gradient = torch.randn_like(kept)
    assert torch.equal(torch.autograd.grad(kept, weight, gradient)[0], gradient * mask)


class KeepGradient(torch.autograd.Function):
    """A tensor to whose gradient users may add."""

    @staticmethod
    def forward(ctx, x, gradient):
        ctx.added_gradient = gradient
        ctx.set_materialize_grads(False)
        return x.detach()

    @staticmethod
    def backward(ctx, returned):
        assert returned is None
        return ctx.added_gradient, None


@pytest.mark.parametrize("outputs", [6, 70])
def test_gradients_of_maps_are_added_where_their_functions_keep_them(outputs):
    layer, _ = pair(Join, 3 * 8, outputs, join_maps, torch_join)
    maps = [channels_last((2, 8, 5, 6), torch.float32, seed) for seed in range(3)]
    expected = run(layer, *maps).gradients
    kept = [torch.full_like(x, number) for number, x in enumerate(maps)]
    shared = [KeepGradient.apply(x.requires_grad_(), gradient) for x, gradient in zip(maps, kept, strict=True)]
    output = layer(*shared)
    gradient = channels_last(output.shape, torch.bfloat16, seed=1).float()
    torch.autograd.backward(output, gradient)
    for number, (x, alone) in enumerate(zip(maps, expected[:3], strict=True)):
        torch.testing.assert_close(x.grad, alone + number)
