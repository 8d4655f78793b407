"""Whether two networks compute the same, on examples and on inputs of other sizes."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from asng.nas._devices import map_leaves

TOLERANCE = 1e-4  # of outputs, relative to the largest one

CallInputs = tuple[tuple[Any, ...], dict[str, Any]]


def run_network(network: Any, inputs: CallInputs) -> Any:
    with torch.no_grad():
        return network(*inputs[0], **inputs[1])


def flatten(value: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in flatten(item)]


def double_batch(inputs: CallInputs) -> CallInputs:
    """A batch of twice the size."""
    repeated: CallInputs = map_leaves(
        lambda leaf: torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.ndim else leaf, inputs
    )
    return repeated


def to_small_batch(network: nn.Module, inputs: CallInputs) -> CallInputs:
    """A batch of two, which runs faster; or the inputs, if the network does not take it."""
    smallest = min(len(tensor) for tensor in flatten(inputs) if tensor.ndim) or 1
    small: CallInputs = map_leaves(
        lambda leaf: leaf[: 2 * len(leaf) // smallest] if isinstance(leaf, Tensor) and leaf.ndim else leaf, inputs
    )
    try:
        run_network(network, small)
    except Exception:
        return inputs
    return small


def other_cases(
    network: nn.Module, inputs: CallInputs, first_axis: int
) -> Iterator[tuple[set[tuple[int, int]], CallInputs, list[Tensor]]]:
    """Axes with their sizes, examples of other sizes there that the network takes, and its outputs."""
    by_size: dict[int, list[tuple[int, int]]] = {}  # the ids of tensors, and axes
    for tensor in flatten(inputs):
        for axis, size in enumerate(tensor.shape[first_axis:], first_axis):
            if size:
                by_size.setdefault(size, []).append((id(tensor), axis))
    for size, equal in by_size.items():
        # Those of equal size together, as both of an image; each alone where the network takes no other size for all.
        for some in [equal, *([each] for each in equal if len(equal) > 1)]:
            cases = list(_resized_cases(network, inputs, size, some))
            for resized, outputs in cases:
                yield {(axis, size) for _, axis in some}, resized, outputs
            if cases and some is equal:
                break


def _resized_cases(
    network: nn.Module, inputs: CallInputs, size: int, axes: list[tuple[int, int]]
) -> Iterator[tuple[CallInputs, list[Tensor]]]:
    for other in sorted({size // 2, size - 1, size + 1, 2 * size} - {0, size}):
        resized = map_leaves(partial(_resize, size=other, axes=axes), inputs)
        with suppress(Exception):  # whatever a network says of a size that it does not take
            yield resized, flatten(run_network(network, resized))


def _resize(value: Any, size: int, axes: list[tuple[int, int]]) -> Any:
    """A tensor with some axes cut or repeated to a size; another value as it is."""
    for axis in [axis for tensor, axis in axes if isinstance(value, Tensor) and tensor == id(value)]:
        value = value.index_select(axis, torch.arange(size, device=value.device) % value.shape[axis])
    return value


def agrees(network: nn.Module, inputs: CallInputs, expected: list[Tensor]) -> bool:
    """Whether a network computes these outputs."""
    try:
        return are_close(flatten(run_network(network, inputs)), expected)
    except Exception:  # as an index that is out of bounds
        return False


def are_close(outputs: list[Tensor], expected: list[Tensor]) -> bool:
    return len(outputs) == len(expected) and all(map(_is_close, outputs, expected))


def _is_close(output: Tensor, expected: Tensor) -> bool:
    if output.shape != expected.shape or output.is_complex() != expected.is_complex() or output.numel() == 0:
        return output.shape == expected.shape and output.numel() == 0
    if output.is_complex():
        output, expected = (torch.view_as_real(each.resolve_conj()) for each in (output, expected))
    output, expected = output.double(), expected.double()
    largest = expected.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-6)
    return torch.allclose(output, expected, rtol=0, atol=TOLERANCE * largest.item(), equal_nan=True)
