"""Batch norms whose statistics are those of the batches of several processes, on any device and backend."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class SyncBatchNorm(TorchFunctionMode):
    """A context in which every `F.batch_norm` in training mode has the statistics of all processes of a group.

    So it holds for torch's layers and for elastic ones, and changes no model. All processes have to run the same layers
    in the same order.

    Args:
        group: The process group.
    """

    def __init__(self, group: Any) -> None:
        super().__init__()
        self._group = group

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        mean, variance, total = self._statistics(x)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                unbiased = variance * total / (total - 1)
                running_mean.mul_(1 - momentum).add_(mean.to(running_mean.dtype), alpha=momentum)
                running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
        shape = (1, -1, *(1 for _ in range(x.dim() - 2)))
        scale = (variance + eps).rsqrt() if weight is None else (variance + eps).rsqrt() * weight
        output = (x - mean.view(shape)) * scale.view(shape)
        return (output if bias is None else output + bias.view(shape)).to(input.dtype)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, biased variance and number of the values of each channel, over all processes."""
        variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        own = torch.stack([mean, variance, torch.full_like(mean, x.numel() / x.shape[1])])
        # A row for each process, and one all_reduce for all.
        rows = torch.zeros(dist.get_world_size(self._group), *own.shape, dtype=own.dtype, device=own.device)
        rows = rows.index_put((torch.tensor(dist.get_rank(self._group), device=own.device),), own)
        means, variances, counts = _AllReduce.apply(rows, self._group).unbind(1)  # type: ignore[no-untyped-call]
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total
        variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
        return mean, variance, total


class _AllReduce(torch.autograd.Function):
    """The sum over the processes of a group; of its gradient, too, since every process uses the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
