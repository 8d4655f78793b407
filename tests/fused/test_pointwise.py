"""1x1 convolutions with a batch norm by kernels of our own against torch's in float64."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from asng import fused
from asng.fused import _pointwise_function
from tests.helpers.fused_layers import assert_close, channels_last, error, merge_pairs, run, spoil


def pair(inputs, outputs, affine=True):
    """A fused layer with random weights and statistics, and torch's in float64."""
    torch.manual_seed(0)
    layer = fused.PointwiseConv2d(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs, affine=affine))
    for tensor in layer[1].state_dict().values():
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    return layer, nn.Sequential(*copy.deepcopy(layer)).double()


# Few channels: gradients of inputs and weights in one pass, or in two as on side streams; then tiles of more channels.
@pytest.mark.parametrize(("outputs", "one_pass"), [(3, 64), (16, 64), (16, 0), (33, 0), (70, 64), (130, 64)])
@pytest.mark.parametrize("shape", [(2, 16, 8, 8), (1, 42, 7, 5), (2, 130, 3, 4), (3, 2, 1, 3)])
def test_outputs_and_gradients_equal_torchs(shape, outputs, one_pass, monkeypatch):
    monkeypatch.setattr(_pointwise_function, "ONE_PASS_CHANNELS", one_pass)
    layer, reference = pair(shape[1], outputs, affine=outputs != 16)
    x = channels_last(shape, torch.float32)
    got = run(layer, x)
    assert got.used == "PointwiseFunctionBackward"
    assert_close(got, run(reference, x.double()), torch.float32)
    assert error(layer[1].running_mean, reference[1].running_mean) < 2e-6
    assert error(layer[1].running_var, reference[1].running_var) < 2e-6
    assert layer[1].num_batches_tracked == 1


@pytest.mark.parametrize("one_pass", [64, 0])
@pytest.mark.parametrize("shape", [(2, 16, 8, 8), (1, 42, 7, 5)])
def test_inputs_are_rectified_after_a_relu(shape, one_pass, monkeypatch):
    monkeypatch.setattr(_pointwise_function, "ONE_PASS_CHANNELS", one_pass)
    layer, reference = (nn.Sequential(nn.ReLU(), *layers) for layers in pair(shape[1], 24))
    x = channels_last(shape, torch.float32)
    got = run(fused.fuse(layer), x)
    assert got.used == "PointwiseFunctionBackward"
    assert_close(got, run(reference, x.double()), torch.float32)


def test_a_relu_in_place_writes_into_its_input_as_in_torch():
    layer, _ = pair(16, 8)
    layers = fused.fuse(nn.Sequential(nn.ReLU(inplace=True), *layer))
    assert type(layers) is nn.Sequential
    x = channels_last((2, 16, 6, 6), torch.float32)
    fused.PointwiseConv2d(*layers)(x)
    assert x.min() == 0


# Half precision is float16 here: of bfloat16, Triton's interpreter multiplies matrices of the bits, as integers.
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16])
def test_mixed_precision_is_as_near_as_torchs(x_dtype):
    layer, reference = pair(40, 24)
    plain = nn.Sequential(*copy.deepcopy(layer))
    x = channels_last((2, 40, 9, 8), x_dtype)
    expected = run(reference, x.double())
    with torch.autocast("cpu", torch.float16):
        got, torchs = run(layer, x), run(plain, x)
    assert got.used == "PointwiseFunctionBackward"
    triples = zip(
        [got.output, *got.gradients],
        [torchs.output, *torchs.gradients],
        [expected.output, *expected.gradients],
        strict=True,
    )
    for ours, theirs, exact in triples:
        assert ours.dtype == theirs.dtype
        assert error(ours, exact) < 2 * error(theirs, exact) + 1e-3


@pytest.mark.parametrize("group", [2, 32])
@pytest.mark.parametrize("one_pass", [64, 0])
def test_programs_with_several_tiles_and_many_chunks(one_pass, group, monkeypatch):
    monkeypatch.setattr(_pointwise_function, "GROUP", group)
    monkeypatch.setattr(_pointwise_function, "ONE_PASS_CHANNELS", one_pass)
    monkeypatch.setattr(_pointwise_function, "WEIGHT_PROGRAMS", 2)
    monkeypatch.setattr(_pointwise_function, "MAX_MOMENTS", 0)
    monkeypatch.setattr(_pointwise_function, "MAX_SUMS", 0)
    monkeypatch.setattr(_pointwise_function, "MAX_MERGES", 4)
    layer, reference = pair(70, 40)
    x = channels_last((3, 70, 6, 7), torch.float32)
    assert_close(run(layer, x), run(reference, x.double()), torch.float32)


@pytest.mark.parametrize("channels", [3, 13])
def test_memory_need_not_be_cleared_before(channels, monkeypatch):
    merge_pairs(monkeypatch)
    empty, empty_like = torch.empty, torch.empty_like
    layer, reference = pair(channels, 5)
    x = channels_last((2, channels, 6, 7), torch.float32)
    expected = run(reference, x.double())
    monkeypatch.setattr(torch, "empty", lambda *args, **options: spoil(empty(*args, **options)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **options: spoil(empty_like(*args, **options)))
    assert_close(run(layer, x), expected, torch.float32)


def test_without_gradients_the_same_comes_out():
    layer, _ = pair(16, 8)
    x = channels_last((2, 16, 6, 7), torch.float32)
    expected = copy.deepcopy(layer)(x)
    with torch.no_grad():
        assert torch.equal(layer(x), expected)


OTHERS = {
    "evaluation": lambda layer: layer.eval(),
    "a bias": lambda layer: layer[0].register_parameter("bias", nn.Parameter(torch.ones(8))),
    "a missing layer": lambda layer: layer.pop(1),
    "a stride": lambda layer: setattr(layer[0], "stride", (2, 2)),
    "cumulative statistics": lambda layer: setattr(layer[1], "momentum", None),
    "a hook": lambda layer: layer[0].register_forward_hook(lambda conv, inputs, output: 2 * output),
    "a hook on gradients": lambda layer: layer[1].register_full_backward_hook(lambda norm, dx, dy: None),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_other_layers_run_one_after_another(change):
    layer, _ = pair(8, 8)
    change(layer)
    x = channels_last((2, 8, 6, 6), torch.float32)
    expected = run(nn.Sequential(*copy.deepcopy(layer)), x)
    got = run(layer, x)
    assert got.used == expected.used
    assert torch.equal(got.output, expected.output)
    rectified = nn.ReLU(), *layer
    assert torch.equal(fused.PointwiseConv2d(*rectified)(x), nn.Sequential(*rectified)(x))


def test_a_hook_of_the_relu_is_called():
    layer = fused.PointwiseConv2d(nn.ReLU(), *pair(8, 8)[0])
    layer[0].register_forward_hook(lambda relu, inputs, output: torch.zeros_like(output))
    x = channels_last((2, 8, 6, 6), torch.float32)
    assert torch.equal(layer(x), nn.Sequential(*layer)(torch.zeros_like(x)))
