"""torch.distributed, which the caller sets up; without it all of this does nothing.

Functions that communicate; which process runs which candidates, or which rows of the batch of one; and batch norms
whose statistics are those of several processes.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from asng.nas._devices import map_leaves

if dist.is_available():
    # Its functions keep the process group that there is when they are defined, by their default arguments. Torch
    # loads it with the first optimizer; if that is made after the group, gloo's threads may not end before the process.
    import torch.distributed.nn


ResultT = TypeVar("ResultT")


def rank_and_world_size() -> tuple[int, int]:
    """The rank of this process and the number of processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def is_rank0() -> bool:
    return rank_and_world_size()[0] == 0


def is_distributed() -> bool:
    return rank_and_world_size()[1] > 1


def broadcast_object(value: Any) -> Any:
    """Broadcast a value from rank 0."""
    box = [value]
    if is_distributed():
        dist.broadcast_object_list(box, 0)
    return box[0]


def call_on_rank0(function: Callable[[], ResultT]) -> ResultT:
    """Call a function of files on rank 0; all processes return what it returned, or raise what it raised."""
    outcome: Any = None
    if is_rank0():
        try:
            outcome = function()
        except (OSError, ValueError) as error:
            outcome = error
    outcome = broadcast_object(outcome)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome  # type: ignore[no-any-return]


def gather_objects(value: Any) -> list[Any]:
    """The values of all processes, in all."""
    values = [value]
    if is_distributed():
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
    return values


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Broadcast tensors from rank 0, in place, each once."""
    if is_distributed():
        with torch.no_grad():
            for tensor in {id(tensor): tensor for tensor in tensors}.values():
                first = tensor.detach().contiguous()
                dist.broadcast(first, 0)
                tensor.copy_(first)


def any_rank(flags: Sequence[bool], device: torch.device) -> list[bool]:
    """The flags, each set where any process has set it."""
    if not is_distributed():
        return list(flags)
    votes = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(votes, dist.ReduceOp.MAX)
    return list(map(bool, votes.tolist()))


def all_reduce_gradients(parameters: Sequence[Tensor], flags: Sequence[bool] = ()) -> list[bool]:
    """Sum the gradients over the processes; a parameter that has one anywhere has one everywhere.

    Returns which of the flags are set in any process.
    """
    if not is_distributed():
        return list(flags)
    has = [parameter.grad is not None for parameter in parameters]
    voted = any_rank([*has, *flags], parameters[0].device)
    gradients = []
    for parameter, used in zip(parameters, voted[: len(has)], strict=True):
        if used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        alike = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = torch.cat([gradient.reshape(-1) for gradient in alike])
        dist.all_reduce(flat)
        for gradient, part in zip(alike, torch.split(flat, [g.numel() for g in alike]), strict=True):
            gradient.copy_(part.view_as(gradient))
    return voted[len(has) :]


class Groups:
    """Assigns the candidates of a step to processes: rank 0 runs the first, rank 1 the second, and so on.

    Where there are at least twice as many processes as candidates, several processes run each candidate, each on its
    share of the batch. Their number is the same for all candidates, so that equal networks have equal losses, to the
    bit; the remaining processes run nothing. Infeasible candidates do not change the assignment.

    Args:
        population_size: The number of candidates in each half of a step, if all of them are feasible.
        sync_batchnorm: Synchronize the statistics of batch norms within a group.
    """

    def __init__(self, population_size: int, *, sync_batchnorm: bool) -> None:
        self.rank, self.world_size = rank_and_world_size()
        self._parts = max(1, self.world_size // population_size)
        self._count = min(population_size, self.world_size)
        self._index, self._part = self.rank % self._count, self.rank // self._count
        self.are_shared = self._parts > 1  # candidates are run by several processes each
        self.sync: AbstractContextManager[Any] = nullcontext()  # that candidates run in
        if sync_batchnorm and self.are_shared:
            ranks = [list(range(self.world_size))[index :: self._count][: self._parts] for index in range(self._count)]
            process_groups = [dist.new_group(of_one) for of_one in ranks]  # by all processes together
            self.sync = SyncBatchNorm(process_groups[self._index])
        idle = max(0, self.world_size - self._count * self._parts)
        if idle and self.rank == 0:
            warnings.warn(
                f"{idle} of {self.world_size} processes are idle, since every candidate is run by the same number of "
                f"processes; start a multiple of {population_size}, or give ASNG another population_size",
                stacklevel=3,
            )

    def shard(self, candidates: int) -> range:
        """Indices of the candidates that this process runs."""
        return range(self._index, candidates if self._part < self._parts else 0, self._count)

    def take(self, batch: Any) -> tuple[Any, float]:
        """Its rows of a batch, and what fraction of all they are.

        Raises:
            ValueError: The batch has no rows to split, or too few.
        """
        if not self.are_shared:
            return batch, 1.0
        leaves: list[Any] = []
        map_leaves(leaves.append, batch)
        counts = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()}
        if len(counts) != 1 or min(counts) < self._parts:
            found = f"tensors of {', '.join(map(str, sorted(counts)))} rows" if counts else "no tensors"
            raise ValueError(
                f"{self._parts} processes split the batch of each candidate, but a {type(batch).__name__} with {found} "
                "cannot be split; give tensors with equal numbers of rows, or start fewer than twice as many processes "
                "as candidates"
            )
        (rows,) = counts
        start, end = (rows * part // self._parts for part in (self._part, self._part + 1))

        def take_rows(leaf: Any) -> Any:
            has_rows = leaf.dim() if isinstance(leaf, Tensor) else isinstance(leaf, (list, tuple)) and len(leaf) == rows
            return leaf[start:end] if has_rows else leaf

        return map_leaves(take_rows, batch), (end - start) / rows


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
