"""Helpers for torch.distributed, which the caller sets up; without it they do nothing."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

if dist.is_available():
    # Its functions keep the process group that there is when they are defined, by their default arguments. Torch
    # loads it with the first optimizer; if that is made after the group, gloo's threads may not end before the process.
    import torch.distributed.nn


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
    """Which flags are set in any process."""
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
