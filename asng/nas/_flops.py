"""Count floating-point operations: torch's formulas, and those for kernels that have none in torch."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from asng.nas._preserve import WriteGuard

aten = torch.ops.aten
PRODUCT = re.compile(  # names of operations that multiply matrices; _thnn_fused_* are the rest of a recurrent cell
    r"(?!.*_thnn_).*(mm|mv|dot|gemm|matmul|linear|conv(\dd|olution)?|rnn|lstm|gru|attn|attention)(_|$)"
)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Those of scores and their product with the values, also where query heads share keys, and of masked entries.

    On CUDA in half precision torch pads heads to a multiple of 8 before the flash kernel, and that counts.
    """
    return 2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _recurrent(x: Tensor, weights: Sequence[Tensor]) -> int:
    """Each row of all sequences is multiplied with each matrix."""
    return 2 * x.shape[:-1].numel() * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _bilinear(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    """A product with the weight, and that of its result with the other input."""
    return 2 * len(x) * (weight.numel() + weight[:, 0].numel())


FORMULAS: dict[Any, Callable[..., int]] = {
    **dict.fromkeys(
        (
            aten._scaled_dot_product_flash_attention_for_cpu,
            aten._scaled_dot_product_flash_attention,
            aten._scaled_dot_product_efficient_attention,
            aten._scaled_dot_product_cudnn_attention,
            aten._scaled_dot_product_fused_attention_overrideable,
            aten._scaled_dot_product_attention_math_for_mps,
        ),
        _attention,
    ),
    aten.mkldnn_rnn_layer: lambda x, of_inputs, of_states, *_, **__: _recurrent(x, (of_inputs, of_states)),
    **dict.fromkeys((aten._cudnn_rnn, aten.miopen_rnn), lambda x, weights, *_, **__: _recurrent(x, weights)),
    aten._trilinear: _bilinear,
    **dict.fromkeys((aten.mv, aten.dot, aten.vdot), lambda matrix, *_, **__: 2 * matrix.numel()),
    **dict.fromkeys((aten.addmv, aten.addmv_), lambda _, matrix, *__, **___: 2 * matrix.numel()),
    aten.addmm_: flop_registry[aten.addmm],
    **dict.fromkeys((aten.baddbmm_, aten.addbmm, aten.addbmm_), flop_registry[aten.baddbmm]),
}


class FlopCounter(WriteGuard):  # type: ignore[no-untyped-call]
    """Sums formulas for the operations that run: FlopCounterMode without its hooks in every module.

    Attributes:
        total: The sum.
        uncounted: Operations that multiply matrices, but have no formula, each with the module that first ran it.
    """

    _atomic: ClassVar[set[Any]] = set()  # operations that do not consist of others

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.total = 0
        self.uncounted: dict[str, nn.Module] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = getattr(func, "_overloadpacket", None)
        formula = FORMULAS.get(packet) or flop_registry.get(packet)
        if formula is None and func is not torch.ops.prim.device.default and func not in self._atomic:
            with self:  # what consists of others is taken apart, as in inference mode
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            self._atomic.add(func)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=result))
        elif str(packet) not in self.uncounted and PRODUCT.match(str(packet)):
            self.uncounted[str(packet)] = _running_module()
        return result


def _running_module() -> nn.Module:
    """The innermost module whose forward runs."""
    frame: Any = sys._getframe()
    while not isinstance(frame.f_locals.get("self"), nn.Module):
        frame = frame.f_back
    module: nn.Module = frame.f_locals["self"]
    return module
