"""Sums with a factor for each image against torch's."""

import itertools

import pytest
import torch

pytest.importorskip("triton")

from asng import fused
from tests.helpers.fused_layers import channels_last, dtypes, error, run


@dtypes
@pytest.mark.parametrize("has", list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (2, 24, 16, 16)])
def test_sums_and_gradients_equal_torchs(shape, has, dtype):
    a, b = (channels_last(shape, dtype, seed) for seed in (0, 1))
    scales = [torch.rand(shape[0], 1, 1, 1, dtype=dtype) if given else None for given in has]
    layer = fused.ScaledSum()
    got = run(with_scales(layer, scales), a, b)
    expected = run(with_scales(layer, [s if s is None else s.double() for s in scales]), a.double(), b.double())
    assert got.used == "_ScaledSumBackward"
    assert expected.used == "AddBackward0"
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}[dtype]
    for ours, exact in zip([got.output, *got.gradients], [expected.output, *expected.gradients], strict=True):
        assert ours.dtype == dtype
        assert error(ours, exact) < tolerance


def test_maps_of_different_types_are_summed_by_torch():
    a, b = channels_last((2, 4, 3, 3), torch.float32), channels_last((2, 4, 3, 3), torch.float16)
    assert torch.equal(fused.ScaledSum()(a, b), a + b)


OTHERS = {
    "another shape": torch.rand(1, 4, 1, 1),
    "another type": torch.rand(2, 1, 1, 1, dtype=torch.float64),
    "gaps": torch.rand(4, 1, 1, 1)[::2],
    "a gradient": torch.rand(2, 1, 1, 1).requires_grad_(),
}


@pytest.mark.parametrize("scale", OTHERS.values(), ids=OTHERS)
def test_maps_are_scaled_by_torch_where_scales_have(scale):
    a, b = (channels_last((2, 4, 3, 3), torch.float32, seed).requires_grad_() for seed in (0, 1))
    for scales in ([scale, None], [None, scale]):
        got = fused.ScaledSum()(a, b, *scales)
        expected = a * scale + b if scales[1] is None else a + b * scale
        assert torch.equal(got, expected)
        assert got.dtype == expected.dtype
        assert type(got.grad_fn).__name__ == "AddBackward0"


def with_scales(layer, scales):
    class Layer(torch.nn.Module):
        def forward(self, a, b):
            return layer(a, b, *scales)

    return Layer()
