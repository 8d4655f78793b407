"""Gradients of several users added up at once, against torch's sums."""

import pytest
import torch

pytest.importorskip("triton")

from asng import fused
from tests.helpers.fused_layers import channels_last, dtypes, error


def scale_users(x, number, fan_out):
    """A tensor whose users multiply it by 1, 2, 3, ..."""
    return sum((factor + 1) * user for factor, user in enumerate(fan_out(x, number)))


@dtypes
@pytest.mark.parametrize("number", [1, 2, 3, 5, 6, 7, 12, 17])
def test_gradients_of_users_are_added_up(number, dtype):
    x = channels_last((3, 5, 7, 9), dtype).requires_grad_()
    y = scale_users(x, number, fused.fan_out)
    weights = channels_last((3, 5, 7, 9), dtype, 1)
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    exact = weights.double() * sum(range(1, number + 1))
    assert error(gradient, exact) < {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert torch.equal(y, scale_users(x, number, lambda x, n: [x] * n))


def test_users_without_a_gradient_do_not_count():
    x = channels_last((2, 4, 3, 3), torch.float32).requires_grad_()
    first, _, third = fused.fan_out(x, 3)
    assert type(first.grad_fn).__name__ == "_FanOutBackward"
    (gradient,) = torch.autograd.grad(first.sum() + 2 * third.sum(), x)
    assert torch.equal(gradient, torch.full_like(x, 3.0))
    (gradient,) = torch.autograd.grad(fused.fan_out(x, 3)[1].sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))


def test_other_layouts_are_left_to_torch():
    x = torch.randn(2, 4, 3, 3, requires_grad=True)
    users = fused.fan_out(x, 3)
    assert all(user is x for user in users)
