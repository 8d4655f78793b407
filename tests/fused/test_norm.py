"""Batch norm by kernels of our own against torch's in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("triton")

from asng import fused
from asng.fused import _norm
from tests.helpers.fused_layers import assert_close, channels_last, dtypes, error, run

SHAPES = [(2, 16, 8, 8), (1, 57, 7, 5), (3, 1, 5, 7), (1, 40, 1, 3), (5, 70, 9, 7)]


class Reference(nn.BatchNorm2d):
    """What the kernels compute, by torch's functions."""

    def forward(self, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
        y = super().forward(x)
        y = y if add is None else y + add
        return F.relu(y) if relu else y


class NormAddReLU(nn.Module):
    """A fused layer with an addition and a ReLU."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
        return fused.batch_norm(x, self.norm, add=add, relu=relu)


def pair(channels, **options):
    """A fused layer with random weights and statistics, and its reference."""
    torch.manual_seed(0)
    layer = fused.BatchNorm2d(channels, **options)
    for tensor in [*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())]:
        nn.init.uniform_(tensor, 0.5, 1.5)
    reference = Reference(channels, **options)
    reference.load_state_dict(layer.state_dict())
    return layer, reference.double()


@dtypes
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("inputs", "relu", "affine"), [(1, False, True), (1, True, False), (2, False, False), (2, True, True)]
)
def test_outputs_and_gradients_equal_torchs(inputs, relu, affine, shape, dtype):
    layer, reference = pair(shape[1], affine=affine)
    tensors = [channels_last(shape, dtype), channels_last(shape, dtype, seed=2)][:inputs]
    got = run(NormAddReLU(layer), *tensors, relu=relu)
    assert got.used == "_BatchNormBackward"
    assert_close(got, run(reference, *(x.double() for x in tensors), relu=relu), dtype)
    assert error(layer.running_mean, reference.running_mean) < 1e-6
    assert error(layer.running_var, reference.running_var) < 1e-6
    assert layer.num_batches_tracked == reference.num_batches_tracked == 1


def test_chunks_of_several_tiles_equal_torchs(monkeypatch):
    monkeypatch.setattr(_norm, "MAX_TILE", 256)
    monkeypatch.setattr(_norm, "MAX_SUMS", 96)
    x, y = (channels_last((3, 40, 9, 7), torch.float32, seed) for seed in (2, 3))
    layer, reference = pair(40)
    assert_close(run(NormAddReLU(layer), x, y), run(reference, x.double(), y.double()), torch.float32)
    assert error(layer.running_var, reference.running_var) < 1e-6


def test_values_far_from_zero_do_not_cancel():
    x = channels_last((4, 16, 9, 8), torch.float32) + 1000
    layer, reference = pair(16)
    got, expected = run(layer, x), run(reference, x.double())
    assert error(got.output, expected.output) < 1e-3  # 1e-3 / 16 is the rounding of the input itself
    assert error(layer.running_var, reference.running_var) < 1e-5


@pytest.mark.parametrize("options", [{"momentum": 0.3, "eps": 0.1}, {"track_running_stats": False}])
def test_options_are_torchs(options):
    x = channels_last((2, 16, 5, 5), torch.float32)
    layer, reference = pair(16, **options)
    for mode in (True, False):
        got = run(layer.train(mode), x)
        assert_close(got, run(reference.train(mode), x.double()), torch.float32)
    if layer.track_running_stats:
        assert error(layer.running_var, reference.running_var) < 1e-6


def test_the_count_of_batches_may_be_missing():
    layer, reference = pair(16)
    layer.num_batches_tracked = reference.num_batches_tracked = None
    x = channels_last((2, 16, 5, 5), torch.float32)
    assert_close(run(layer, x), run(reference, x.double()), torch.float32)


def test_scales_that_are_buffers_have_no_gradient():
    layer, reference = pair(16, affine=False)
    for module in (layer, reference):
        del module.weight, module.bias
        module.register_buffer("weight", torch.full((16,), 2.0), persistent=False)
        module.register_buffer("bias", torch.full((16,), 3.0), persistent=False)
    x = channels_last((2, 16, 5, 5), torch.float32)
    got = run(layer, x)
    assert got.used == "_BatchNormBackward"
    assert_close(got, run(reference.double(), x.double()), torch.float32)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 16, 6, 6),
        channels_last((2, 16, 6, 6), torch.float64),
        channels_last((4, 16, 6, 6), torch.float32)[::2],
    ],
    ids=["contiguous", "float64", "strided"],
)
def test_what_the_kernels_do_not_take_goes_to_torch(x):
    layer, reference = pair(16)
    layer, reference = layer.to(x.dtype), reference.to(x.dtype)
    got, expected = run(NormAddReLU(layer), x, x, relu=True), run(reference, x, x, relu=True)
    assert got.used == expected.used
    assert torch.equal(got.output, expected.output)


def test_evaluation_uses_the_running_statistics():
    x = channels_last((2, 16, 6, 6), torch.float32)
    layer, reference = pair(16)
    got = run(NormAddReLU(layer.eval()), x, x, relu=True)
    assert_close(got, run(reference.eval(), x.double(), x.double(), relu=True), torch.float32)


def test_the_forward_of_a_subclass_is_called():
    class Halved(fused.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 2

    x = channels_last((2, 16, 6, 6), torch.float32)
    norm = Halved(16)
    assert torch.equal(fused.batch_norm(x, norm, add=x), norm(x) + x)


def test_hooks_of_a_layer_see_what_it_returns_before_the_addition():
    layer, _ = pair(16)
    x, outputs = channels_last((2, 16, 6, 6), torch.float32), []
    layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    got = fused.batch_norm(x, layer, add=x, relu=True)
    assert torch.equal(got, F.relu(outputs[0] + x))


def test_a_single_value_per_channel_is_refused_as_in_torch():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        fused.BatchNorm2d(4)(torch.ones(1, 4, 1, 1))


def test_results_are_the_same_from_run_to_run():
    layer, _ = pair(57)
    x = channels_last((3, 57, 16, 9), torch.bfloat16)
    first, second = run(copy.deepcopy(layer), x), run(layer, x)
    assert torch.equal(first.output, second.output)
    assert all(map(torch.equal, first.gradients, second.gradients))


def test_the_state_dict_is_torchs():
    layer, reference = pair(16)
    assert isinstance(layer, nn.BatchNorm2d)
    assert layer.state_dict().keys() == reference.state_dict().keys()
