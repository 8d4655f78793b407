"""Runs of a layer forward and backward, and how near two of them are."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from asng.fused._dispatch import align, row_of

# Rounding of results, and of what is rounded between a layer's parts.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])


class Run(NamedTuple):
    output: Tensor
    gradients: list[Tensor]  # of the inputs, then of the parameters
    used: str  # the function of torch's graph


def channels_last(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).contiguous(memory_format=torch.channels_last)


def run(layer: nn.Module, *inputs: Tensor, **options: bool) -> Run:
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    output = layer(*inputs, **options)
    # The same gradient whatever the type, in the layout of the output.
    gradient = channels_last(output.shape, torch.bfloat16, seed=1) if output.dim() == 4 else torch.ones_like(output)
    leaves = [*inputs, *layer.parameters()]
    gradients = torch.autograd.grad(output, leaves, gradient.to(output.dtype))
    assert output.grad_fn is not None
    return Run(output.detach(), list(gradients), type(output.grad_fn).__name__)


def error(got: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm; NaN where only one of them has it."""
    difference = (got.double() - expected.double()).nan_to_num(0.0 if torch.equal(got.isnan(), expected.isnan()) else 1)
    return float(difference.norm() / expected.double().nan_to_num().norm().clamp_min(1e-6))


def assert_close(got: Run, expected: Run, dtype: torch.dtype) -> None:
    assert got.output.dtype == dtype
    assert got.output.shape == expected.output.shape
    assert row_of(got.output) in (got.output.shape[1], align(got.output.shape[1]))  # channels last
    assert error(got.output, expected.output) < TOLERANCE[dtype]
    for index, (left, right) in enumerate(zip(got.gradients, expected.gradients, strict=True)):
        assert left.shape == right.shape
        assert error(left, right) < TOLERANCE[dtype], f"gradient {index}"


class Calls(TorchFunctionMode):
    """Counts the calls of torch's functions that kernels take the place of."""

    WATCHED = ("conv2d", "conv_transpose2d", "batch_norm", "avg_pool2d", "max_pool2d", "mul")

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        self.found.update([name] if name in self.WATCHED else [])
        return function(*args, **(kwargs or {}))


def spoil(memory: Tensor) -> Tensor:
    """Memory with nothing useful in it."""
    return memory.fill_(float("nan") if memory.is_floating_point() else 7)


def merge_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels merge the sums of each two programs, however few there are."""
    from asng.fused import _pointwise_function  # needs Triton

    for name, number in {"MAX_MOMENTS": 0, "MAX_SUMS": 0, "GROUP": 2}.items():
        monkeypatch.setattr(_pointwise_function, name, number)
