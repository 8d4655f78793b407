"""Who runs what in several processes: whole candidates, or where processes are left over, a share of one's batch."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor

from asng.nas import _distributed
from asng.nas._sync_batchnorm import SyncBatchNorm


class Groups:
    """Deals the candidates of a step out to processes: rank 0 runs the first, rank 1 the second, and so on.

    Where there are at least twice as many processes as candidates, it goes on from the first, so that several run the
    same one, each on its share of the batch. All candidates have as many, so that equal networks have equal losses, to
    the bit; processes that are left over run nothing. Which candidates are infeasible changes nothing in that.

    Args:
        population_size: The number of candidates in each half of a step, if all of them are feasible.
        sync_batchnorm: Synchronize the statistics of batch norms within a group.
    """

    def __init__(self, population_size: int, *, sync_batchnorm: bool) -> None:
        self.rank, self.world_size = _distributed.rank_and_world_size()
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
                f"{idle} of {self.world_size} processes idle, since all candidates are run by as many; let "
                f"their number be a multiple of population_size={population_size}",
                stacklevel=3,
            )

    def own(self, candidates: int) -> range:
        """Which of the candidates this process runs."""
        return range(self._index, candidates if self._part < self._parts else 0, self._count)

    def take(self, batch: Any) -> tuple[Any, float]:
        """Its rows of a batch, and what fraction of all they are.

        Raises:
            ValueError: The batch has no rows to split, or too few.
        """
        if not self.are_shared:
            return batch, 1.0
        counts = {len(tensor) for tensor in _tensors_in(batch)}
        if len(counts) != 1 or min(counts) < self._parts:
            found = f"tensors of {', '.join(map(str, sorted(counts)))} rows" if counts else "no tensors"
            raise ValueError(
                f"{self._parts} processes split the batch of each candidate, but a {type(batch).__name__} with {found} "
                "cannot be split; give tensors of as many rows each, or as many processes as candidates"
            )
        (rows,) = counts
        start, end = (rows * part // self._parts for part in (self._part, self._part + 1))
        return _slice(batch, rows, slice(start, end)), (end - start) / rows


def _tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors with axes in lists, tuples and dicts."""
    match batch:
        case Tensor() if batch.dim():
            yield batch
        case list() | tuple():
            for item in batch:
                yield from _tensors_in(item)
        case Mapping():
            yield from _tensors_in(list(batch.values()))


def _slice(batch: Any, rows: int, part: slice) -> Any:
    """The same with some rows of each tensor, and of each list of as many texts."""
    match batch:
        case Tensor() if batch.dim():
            return batch[part]
        case list() | tuple():
            if len(batch) == rows and all(isinstance(item, str) for item in batch):
                return batch[part]
            items = [_slice(item, rows, part) for item in batch]
            return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
        case Mapping():
            return {name: _slice(item, rows, part) for name, item in batch.items()}
    return batch
