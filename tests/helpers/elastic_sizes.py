"""What the tests of elastic layers share: sizes that follow decisions, and when a layer equals torch's."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from asng.nas import Value, Width
from asng.space import Integer


def width(name: str = "a", low: int = 1, high: int = 8) -> Width:
    return Width(name, low, high)


def odd(name: str = "k", high: int = 3) -> Any:
    return Value(name, Integer(1, high)) * 2 - 1


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-5)


def randomize(layer: nn.Module) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()


def assert_like_its_static_layer(layer: Any, *inputs: Tensor, **named: Any) -> nn.Module:
    """Compare outputs, gradients of inputs and parameters, and buffers of a layer and of what it becomes."""
    static = layer.build_static()
    assert type(static) is layer.torch_layer
    results = []
    for module in (layer, static):
        own = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        module.zero_grad()
        outputs = [y for y in as_tuple(module(*own, **named)) if y is not None]
        sum((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs).backward()
        results.append([*outputs, *(x.grad for x in own)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)
    gradients = copy.deepcopy(layer)
    for name, parameter in layer.named_parameters():
        gradients.get_parameter(name).data = parameter.grad
    for name, part in gradients.build_static().named_parameters():
        torch.testing.assert_close(part.data, static.get_parameter(name).grad, rtol=1e-9, atol=1e-9)
        whole = layer.get_parameter(name).grad
        assert torch.count_nonzero(whole) == torch.count_nonzero(part)  # so there is none outside
    torch.testing.assert_close(dict(layer.build_static().named_buffers()), dict(static.named_buffers()))
    return static


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
