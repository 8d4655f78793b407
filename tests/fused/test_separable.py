"""Separable convolutions by kernels of our own against torch's in float64."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from asng import fused
from asng.fused import _pointwise_function, _separable_function
from tests.helpers.fused_layers import assert_close, channels_last, error, merge_pairs, run, spoil


def layers(channels, kernel, stride, affine=True, second=None):
    result: list[nn.Module] = []
    for size, step in ((kernel, stride), (second or kernel, 1)):
        result += [
            nn.ReLU(inplace=bool(result)),
            nn.Conv2d(channels, channels, size, step, size // 2, groups=channels, bias=False),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels, affine=affine),
        ]
    return result


def pair(*arguments, **options):
    """A fused layer with random weights and statistics, and torch's in float64."""
    torch.manual_seed(0)
    layer = fused.SeparableConv2d(*layers(*arguments, **options))
    for name, tensor in layer.state_dict().items():
        if name.startswith(("3.", "7.")) and tensor.is_floating_point():  # those of batch norms
            nn.init.uniform_(tensor, 0.5, 1.5)
    return layer, nn.Sequential(*copy.deepcopy(layer)).double()


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(2, 16, 8, 8), (1, 57, 7, 5), (2, 5, 6, 9)])
def test_outputs_and_gradients_equal_torchs(shape, stride, kernel):
    layer, reference = pair(shape[1], kernel, stride, affine=shape[1] != 16)
    x = channels_last(shape, torch.float32)
    got = run(layer, x)
    assert got.used == "SeparableFunctionBackward"
    assert_close(got, run(reference, x.double()), torch.float32)
    for index in (3, 7):
        assert error(layer[index].running_mean, reference[index].running_mean) < 2e-6
        assert error(layer[index].running_var, reference[index].running_var) < 2e-6
        assert layer[index].num_batches_tracked == 1


# Half precision is float16 here: of bfloat16, Triton's interpreter multiplies matrices of the bits, as integers.
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16])
def test_mixed_precision_is_as_near_as_torchs(x_dtype):
    layer, reference = pair(24, 3, 2)
    plain = nn.Sequential(*copy.deepcopy(layer))
    x = channels_last((2, 24, 9, 8), x_dtype)
    expected = run(reference, x.double())
    with torch.autocast("cpu", torch.float16):
        got, torchs = run(layer, x), run(plain, x)
    assert got.used == "SeparableFunctionBackward"
    assert got.output.dtype == torchs.output.dtype == torch.float16
    for ours, theirs, exact in zip(
        [got.output, *got.gradients],
        [torchs.output, *torchs.gradients],
        [expected.output, *expected.gradients],
        strict=True,
    ):
        assert ours.dtype == theirs.dtype
        assert error(ours, exact) < 2 * error(theirs, exact) + 1e-3


def test_weights_of_the_inputs_type_need_no_autocast():
    layer, reference = pair(24, 3, 1)
    x = channels_last((2, 24, 5, 8), torch.float16)
    got, expected = run(layer.half(), x), run(reference.half().double(), x.double())
    assert got.used == "SeparableFunctionBackward"
    assert error(got.output, expected.output) < 3e-3
    assert all(gradient.dtype == torch.float16 for gradient in got.gradients)


def test_halves_may_differ_in_the_size_of_their_kernels():
    layer, reference = pair(8, 3, 1, second=5)
    x = channels_last((2, 8, 6, 5), torch.float32)
    got = run(layer, x)
    assert got.used == "SeparableFunctionBackward"
    assert_close(got, run(reference, x.double()), torch.float32)


# The first half has three tiles, of which the last is not full: the second of two programs has it, and one beyond all.
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_depthwise_weights_are_summed_over_tiles(stride, kernel, monkeypatch):
    tiling = _separable_function.BACKWARD[kernel]
    monkeypatch.setitem(_separable_function.BACKWARD, kernel, tiling._replace(programs=2))
    layer, reference = pair(8, kernel, stride)
    x = channels_last((3, 8, 5, 6), torch.float32)
    assert_close(run(layer, x), run(reference, x.double()), torch.float32)


@pytest.mark.parametrize(("group", "counters"), [(2, 1024), (4, 1024), (32, 1)])
def test_many_chunks_are_merged(group, counters, monkeypatch):
    monkeypatch.setattr(_pointwise_function, "GROUP", group)  # programs, the last of which merges what all have written
    monkeypatch.setattr(_pointwise_function, "COUNTERS", counters)  # with too few it is up to kernels
    monkeypatch.setattr(_pointwise_function, "MAX_MOMENTS", 0)
    monkeypatch.setattr(_pointwise_function, "MAX_SUMS", 0)
    monkeypatch.setattr(_pointwise_function, "MAX_MERGES", 4)  # chunks of 8 by a kernel, so in two steps
    layer, reference = pair(40, 3, 1)
    x = channels_last((3, 40, 6, 7), torch.float32)
    assert_close(run(layer, x), run(reference, x.double()), torch.float32)
    assert error(layer[3].running_var, reference[3].running_var) < 2e-6


def test_more_than_64_channels_are_multiplied_in_blocks(monkeypatch):
    monkeypatch.setattr(_pointwise_function, "WEIGHT_PROGRAMS", 2)  # so that each has several tiles
    layer, reference = pair(130, 3, 1)
    x = channels_last((2, 130, 6, 7), torch.float32)
    assert_close(run(layer, x), run(reference, x.double()), torch.float32)


@pytest.mark.parametrize("channels", [3, 13])
def test_memory_need_not_be_cleared_before(channels, monkeypatch):
    merge_pairs(monkeypatch)
    empty, empty_like = torch.empty, torch.empty_like
    layer, reference = pair(channels, 3, 2)
    x = channels_last((2, channels, 6, 7), torch.float32)
    expected = run(reference, x.double())
    monkeypatch.setattr(torch, "empty", lambda *args, **options: spoil(empty(*args, **options)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **options: spoil(empty_like(*args, **options)))
    assert_close(run(layer, x), expected, torch.float32)


def test_without_gradients_the_same_comes_out():
    layer, _ = pair(16, 3, 1)
    x = channels_last((2, 16, 6, 7), torch.float32)
    expected = copy.deepcopy(layer)(x)
    with torch.no_grad():
        assert torch.equal(layer(x), expected)


def test_results_are_the_same_from_run_to_run():
    layer, _ = pair(24, 5, 1)
    x = channels_last((2, 24, 5, 6), torch.float32)
    first, second = run(copy.deepcopy(layer), x), run(layer, x)
    assert torch.equal(first.output, second.output)
    assert all(map(torch.equal, first.gradients, second.gradients))


OTHERS = {
    "evaluation": lambda layer: layer.eval(),
    "a bias": lambda layer: layer[2].register_parameter("bias", nn.Parameter(torch.ones(8))),
    "a stride of 3": lambda layer: setattr(layer[1], "stride", (3, 3)),
    "a missing layer": lambda layer: layer.pop(7),
    "cumulative statistics": lambda layer: setattr(layer[3], "momentum", None),
    "a hook": lambda layer: layer[2].register_forward_hook(lambda conv, inputs, output: 2 * output),
    "a hook on gradients": lambda layer: layer[5].register_full_backward_hook(lambda conv, dx, dy: None),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_other_layers_run_one_after_another(change):
    layer, _ = pair(8, 3, 1)
    change(layer)
    x = channels_last((2, 8, 6, 6), torch.float32)
    expected = run(nn.Sequential(*copy.deepcopy(layer)), x)
    got = run(layer, x)
    assert got.used == expected.used
    assert torch.equal(got.output, expected.output)


def test_an_input_that_the_first_layer_writes_into_is_written():
    layer = fused.SeparableConv2d(nn.ReLU(inplace=True), *layers(8, 3, 1)[1:])
    x = channels_last((2, 8, 6, 6), torch.float32)
    expected = x.relu()
    layer(x)
    assert torch.equal(x, expected)


def test_a_single_value_per_channel_is_refused_as_in_torch():
    layer, _ = pair(8, 3, 1)
    layer[5].stride = (2, 2)
    layer(channels_last((1, 8, 4, 2), torch.float32))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(channels_last((1, 8, 2, 2), torch.float32))


def test_the_state_dict_is_that_of_the_layers():
    plain = nn.Sequential(*layers(8, 3, 1))
    assert fused.SeparableConv2d(*plain).state_dict().keys() == plain.state_dict().keys()
