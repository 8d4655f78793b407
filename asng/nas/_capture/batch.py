"""Batches in fixed memory, where a CUDA graph reads them."""

from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from asng.nas._capture.cases import Refused


class StaticBatch:
    """A batch in fixed memory."""

    def __init__(self, batch: Any, device: torch.device) -> None:
        self._leaves, self._spec = pytree.tree_flatten(batch)
        for leaf in self._leaves:
            if not isinstance(leaf, (Tensor, Number, str, bytes, type(None))):
                kind = type(leaf).__name__
                raise Refused(f"a batch holds {kind}, and only tensors, numbers and strings can be captured")
        self._leaves = [leaf.to(device, copy=True) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        self.batch = pytree.tree_unflatten(self._leaves, self._spec)

    def fits(self, batch: Any) -> bool:
        leaves, spec = pytree.tree_flatten(batch)
        return bool(spec == self._spec) and all(map(_alike, leaves, self._leaves))

    def find_change(self, batch: Any) -> str | None:
        leaves, spec = pytree.tree_flatten(batch)
        different = [pair for pair in zip(leaves, self._leaves, strict=False) if not _alike(*pair)]
        if spec != self._spec or not different or any(isinstance(leaf, Tensor) for pair in different for leaf in pair):
            return None
        return f"a batch holds {different[0][0]!r} instead of {different[0][1]!r}, and only tensors may change"

    def copy_(self, batch: Any) -> None:
        for target, source in zip(self._leaves, pytree.tree_flatten(batch)[0], strict=True):
            if isinstance(target, Tensor):
                target.copy_(source, non_blocking=True)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype
    return type(one) is type(other) and bool(one == other)
