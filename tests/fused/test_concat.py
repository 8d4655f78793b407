"""Rectified maps side by side against torch's."""

import pytest
import torch

pytest.importorskip("triton")

from asng import fused
from tests.helpers.fused_layers import channels_last, dtypes


def outputs_and_gradients(maps):
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in maps]
    y = fused.ConcatReLU()(leaves)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(y.dtype)
    return y, torch.autograd.grad((y * weights).sum(), leaves)


@dtypes
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (2, 16, 16, 16)])
def test_maps_and_gradients_equal_torchs(shape, count, dtype):
    maps = [channels_last(shape, dtype, seed) for seed in range(count)]
    y, gradients = outputs_and_gradients(maps)
    exact, expected = outputs_and_gradients([x.double() for x in maps])
    assert type(y.grad_fn).__name__ == "_ConcatReLUBackward"
    assert type(exact.grad_fn).__name__ == "ReluBackward0"
    assert torch.equal(y.double(), exact)
    for gradient, right in zip(gradients, expected, strict=True):
        assert gradient.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(gradient, right.to(dtype))


def test_nan_stays_nan_and_lets_its_gradient_pass():
    x = channels_last((1, 4, 2, 2), torch.float32)
    x[0, 1, 0, 0] = torch.nan
    y, (gradient,) = outputs_and_gradients([x])
    assert y[0, 1, 0, 0].isnan()
    assert gradient[0, 1, 0, 0] != 0


def test_more_maps_than_the_kernels_take_are_left_to_torch():
    maps = [channels_last((1, 2, 3, 3), torch.float32, seed) for seed in range(6)]
    assert torch.equal(fused.ConcatReLU()(maps), torch.relu(torch.cat(maps, 1)))


def test_maps_of_different_channels_are_left_to_torch():
    maps = [channels_last((1, channels, 3, 3), torch.float32) for channels in (2, 3)]
    assert torch.equal(fused.ConcatReLU()(maps), torch.relu(torch.cat(maps, 1)))
