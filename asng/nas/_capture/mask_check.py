"""Whether masks change what a model computes: a few passes in float64, compared with those of the plain path."""

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from asng.nas._capture.cases import Refused, StaticBatch, first_line
from asng.nas._preserve import preserve_rng
from asng.nas.supernet import Supernet, Values

TOLERANCE = 1e-4  # relative; parts of a model that are in float32 all the same make about 1e-6
RunFn = Callable[[Values], tuple[Mapping[int, Tensor], Tensor]]  # gradients by ids of parameters; losses and metrics


def check_masks(supernet: Supernet, batches: Collection[StaticBatch], run_masked: RunFn, run_plain: RunFn) -> None:
    """Refuse masks where the model then computes something else, as by a mean over all channels."""
    for values in _some_architectures(supernet):
        found, expected = (_measure(supernet, batches, run, values) for run in (run_masked, run_plain))
        if difference := _find_difference(found, expected):
            raise Refused(
                f"the model has too many widths for switches, and with masks {difference}; something other "
                "than elastic layers depends on all channels, such as a mean over them, or on their number"
            )


def _measure(supernet: Supernet, batches: Collection[StaticBatch], run: RunFn, values: Values) -> "_Results":
    """Run passes in float64, each from the same weights, buffers and RNG state."""
    model = supernet.model
    with preserve_rng(supernet), _compute_in_double(model, *batches), _CheckMode():
        try:
            gradients, numbers = run(values)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = f"in float64, in which masks are checked, the model raises: {first_line(error)}"
            raise Refused(reason) from None
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return _Results(gradients, numbers.clone(), buffers)


def _some_architectures(supernet: Supernet) -> Iterator[dict[str, Any]]:
    """The first values of all decisions, the last ones, and some of each, on which masks are tried."""
    draw = random.Random(0)
    chosen: list[Callable[[Any], Any]] = [lambda values: values[0], lambda values: values[-1], draw.choice]
    for choose in chosen:
        yield {name: choose(variable.values()) for name, variable in supernet.space.items()}


class _Results(NamedTuple):
    """Results of passes of one architecture."""

    gradients: Mapping[int, Tensor]  # by the ids of parameters
    numbers: Tensor  # losses and metrics
    buffers: Mapping[str, Tensor]


def _find_difference(found: _Results, expected: _Results) -> str | None:
    """Return what of masked passes differs from plain ones by more than rounding."""
    if not (difference := relative_difference(found.gradients, expected.gradients)) <= TOLERANCE:
        return f"its gradient differs by {difference:.2%} from the plain one"
    numbers = torch.stack([found.numbers, expected.numbers], -1)[~_are_close(found.numbers, expected.numbers)]
    for number, plain in numbers.tolist():
        return f"its loss, its score or a metric is {number:g} instead of {plain:g}"
    for name, buffer in expected.buffers.items():
        if not _are_close(found.buffers[name], buffer).all():
            return f"its buffer {name} differs from the plain one"
    return None


def _are_close(one: Tensor, other: Tensor) -> Tensor:
    return torch.isclose(one.double(), other.double(), TOLERANCE, 1e-9, equal_nan=True)


def relative_difference(found: Mapping[int, Tensor], expected: Mapping[int, Tensor]) -> float:
    """The norm of the difference of two gradients, relative to that of the second."""
    squares = [torch.stack([(found[key] - g).square().sum(), g.square().sum()]) for key, g in expected.items()]
    error, norm = torch.stack(squares).sum(0).sqrt().tolist()
    return float(error / norm if norm else error)


@contextmanager
def _compute_in_double(model: nn.Module, *batches: StaticBatch) -> Iterator[None]:
    """Let a model and its batches be in float64, which autocast leaves alone; buffers are restored on exit."""
    tensors = [*model.parameters(), *model.buffers()]
    before, given, dtype = (
        [tensor.data for tensor in tensors],
        [batch.batch for batch in batches],
        torch.get_default_dtype(),
    )
    try:
        torch.set_default_dtype(torch.double)
        for tensor in tensors:
            tensor.data = _to_double(tensor.data).clone()
        for batch in batches:
            batch.batch = pytree.tree_map_only(Tensor, _to_double, batch.batch)
        yield
    finally:
        torch.set_default_dtype(dtype)
        for tensor, old in zip(tensors, before, strict=True):
            tensor.data = old
        for batch, old_batch in zip(batches, given, strict=True):
            batch.batch = old_batch


def _to_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


class _CheckMode(TorchFunctionMode):
    """Lets dropout pass its input on, as masked layers would draw other numbers, and lets nothing leave float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.dtype, _widen, (tuple(args), dict(kwargs or {})))
        name, given = getattr(func, "__name__", ""), args[0] if args else kwargs.get("input")
        if "dropout" in name:
            return given
        if name == "scaled_dot_product_attention":
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            return func(**{**dict(zip(names, args, strict=False)), **kwargs, "dropout_p": 0.0})
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            func = Tensor.double
        if func is torch.empty_like:  # as for the results of a switch, of which a dry run found the type
            kwargs.setdefault("dtype", _widen(given.dtype))
        return func(*args, **kwargs)


def _widen(dtype: torch.dtype) -> torch.dtype:
    return torch.double if dtype.is_floating_point else dtype
