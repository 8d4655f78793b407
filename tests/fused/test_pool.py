"""Pooling by kernels of our own against torch's, in float64 where rounding matters."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton")

from asng import fused
from asng.fused import _pool
from asng.fused._dispatch import to_rows
from tests.helpers.fused_layers import assert_close, channels_last, dtypes, run

SHAPES = [(2, 16, 8, 8), (1, 57, 7, 5), (3, 1, 5, 7), (1, 40, 1, 3)]


@dtypes
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["AvgPool2d", "MaxPool2d"])
def test_outputs_and_gradients_equal_torchs(kind, shape, stride, dtype):
    x = channels_last(shape, dtype)
    expected = run(getattr(nn, kind)(3, stride, 1), x.double())
    got = run(getattr(fused, kind)(3, stride, 1), x)
    assert got.used == f"_{kind[:7]}Backward"
    assert_close(got, expected, dtype)


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 3, 1), (3, 1, 0), (3, (1, 2), 1)])
@pytest.mark.parametrize("kind", ["AvgPool2d", "MaxPool2d"])
def test_other_windows_go_to_torch(kind, window):
    x = channels_last((2, 12, 11, 9), torch.float32)
    got, expected = (run(getattr(module, kind)(*window), x) for module in (fused, nn))
    assert got.used == expected.used
    assert torch.equal(got.output, expected.output)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["AvgPool2d", "MaxPool2d"])
def test_programs_of_several_rows_equal_torchs(kind, stride, monkeypatch):
    monkeypatch.setattr(_pool, "MIN_PROGRAMS", 1)
    x = channels_last((2, 12, 11, 9), torch.float32)
    got, expected = run(getattr(fused, kind)(3, stride, 1), x), run(getattr(nn, kind)(3, stride, 1), x.double())
    assert_close(got, expected, torch.float32)


@pytest.mark.parametrize("kind", ["AvgPool2d", "MaxPool2d"])
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 8, 6, 6),  # not channels last
        channels_last((2, 8, 6, 6), torch.float64),
        channels_last((2, 8, 12, 12), torch.float32)[:, :, ::2, ::2],
        torch.randn(8, 6, 6),  # no batch
    ],
    ids=["contiguous", "float64", "strided", "unbatched"],
)
def test_what_the_kernels_do_not_take_goes_to_torch(kind, x):
    got, expected = (run(getattr(module, kind)(3, 2, 1), x) for module in (fused, nn))
    assert got.used == expected.used
    assert torch.equal(got.output, expected.output)
    assert torch.equal(got.gradients[0], expected.gradients[0])


@pytest.mark.parametrize("options", [{"ceil_mode": True}, {"count_include_pad": False}, {"divisor_override": 4}])
def test_means_with_other_options_equal_torchs(options):
    x = channels_last((2, 8, 6, 6), torch.float32)
    got, expected = (run(module.AvgPool2d(3, 2, 1, **options), x) for module in (fused, nn))
    assert torch.equal(got.output, expected.output)


@pytest.mark.parametrize("row", [5, 8])
def test_other_means_of_channels_last_are_computed_in_the_other_layout_on_a_gpu(row, monkeypatch):
    x, avg_pool, seen = to_rows(channels_last((2, 5, 6, 6), torch.float32), row), F.avg_pool2d, []
    expected = nn.AvgPool2d(5, 1, 2)(x)

    def watch(x, *options):
        seen.append(x)
        return avg_pool(x, *options)

    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(F, "avg_pool2d", watch)
    torch.testing.assert_close(fused.AvgPool2d(5, 1, 2)(x), expected)
    assert [x.is_contiguous() for x in seen] == [True]


def test_maxima_with_indices_equal_torchs():
    x = channels_last((2, 8, 6, 6), torch.float32)
    for got, expected in zip(
        fused.MaxPool2d(3, 2, 1, return_indices=True)(x), nn.MaxPool2d(3, 2, 1, return_indices=True)(x), strict=True
    ):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_of_equal_maxima_the_first_has_the_gradient(stride):
    x = channels_last((2, 16, 7, 8), torch.float32).round()  # few values, so many ties
    got, expected = (run(module.MaxPool2d(3, stride, 1), x) for module in (fused, nn))
    assert torch.equal(got.output, expected.output)
    assert_close(got, expected, torch.float32)


@pytest.mark.parametrize("special", [float("nan"), float("-inf"), float("inf")])
def test_maxima_of_special_values_are_torchs(special):
    x = channels_last((2, 16, 7, 8), torch.float32)
    x[torch.rand_like(x) < 0.3] = special
    x[0, :, :4] = special  # whole windows
    got, expected = (run(module.MaxPool2d(3, 1, 1), x) for module in (fused, nn))
    assert torch.equal(got.output.isnan(), expected.output.isnan())
    assert torch.equal(got.output.nan_to_num(), expected.output.nan_to_num())
    assert_close(got, expected, torch.float32)


def test_gradients_of_any_layout_are_taken():
    x = channels_last((2, 16, 6, 6), torch.float32).requires_grad_()
    fused.AvgPool2d(3, 1, 1)(x).sum().backward()  # a gradient of ones with strides of 0
    expected = x.detach().clone().requires_grad_()
    nn.AvgPool2d(3, 1, 1)(expected).sum().backward()
    torch.testing.assert_close(x.grad, expected.grad)


def test_pools_are_torchs_layers_with_an_empty_state():
    assert isinstance(fused.AvgPool2d(3), nn.AvgPool2d)
    assert isinstance(fused.MaxPool2d(3), nn.MaxPool2d)
    assert not fused.MaxPool2d(3).state_dict()
