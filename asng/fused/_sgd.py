"""SGD with clipped gradients in two kernels: on flat tensors, or on tensors anywhere in memory."""

import torch
from torch import Tensor

from asng.fused._dispatch import can_launch, device_of

LINE = 64  # numbers of a flat tensor that belong to one parameter
LINES = 32  # of a program's tile
TILE, WARPS = 2048, 8  # numbers and warps of a program, for tensors anywhere
PARTS = 1024  # of the sum of their squares


def has_kernels_for(values: Tensor) -> bool:
    return values.dtype is torch.float32 and can_launch(values)


class FlatSGD:
    """The step of torch's SGD on the flat tensors of a parameter group.

    Args:
        rows: (n, size), the gradients of n backward passes, which the kernels leave zero.
        gradient: (size,), for their clipped sum; it may be the first of the rows, which then becomes the sum.
        values: float32 (size,), the parameters; each begins at a multiple of `LINE`.
        low: (size,), the values in the type of the rows, where that is not float32.
        momentum_buffer: float32 (size,), where there is a momentum.
        owners: int32 (size / LINE,), of each line the index of its parameter.
        touched: bool, of each parameter whether it ever had a gradient; others do not move.
    """

    def __init__(
        self,
        rows: Tensor,
        gradient: Tensor,
        values: Tensor,
        low: Tensor | None,
        momentum_buffer: Tensor | None,
        owners: Tensor,
        touched: Tensor,
    ) -> None:
        self._rows, self._owners, self._touched = rows, owners, touched.view(torch.uint8)
        self._targets = gradient, values, momentum_buffer, low
        self._tiles = -(-len(owners) // LINES)
        self._flags = values.new_zeros(self._tiles, dtype=torch.int32)
        self._norms = values.new_zeros(self._tiles)

    def add_up(self) -> Tensor:
        """Return norms of parts of the summed gradient; parameters with a gradient that is not zero become touched."""
        from asng.fused import _sgd_kernels as kernels

        if self._tiles:
            with device_of(self._rows):
                kernels.norms[(self._tiles,)](
                    *(self._rows, self._owners, self._touched, self._flags, self._norms),
                    *(self._rows.shape[1], len(self._owners)),
                    N=len(self._rows),
                    LINES=LINES,
                    LINE=LINE,
                )
        return self._norms

    def step(
        self, norm: Tensor, scale: Tensor, lr: float | Tensor, *, weight_decay: float, momentum: float, nesterov: bool
    ) -> None:
        """Move the values along the gradient times `scale`, unless its norm is not finite; after `add_up`.

        Norm and scale are scalars on the device, and so is the learning rate, of float64, in a captured step.
        """
        from asng.fused import _sgd_kernels as kernels

        if self._tiles:
            lr = torch.as_tensor(lr, dtype=torch.float64, device=norm.device)
            with device_of(self._rows):
                kernels.move[(self._tiles,)](
                    *(self._rows, *self._targets, self._owners, self._touched, self._flags),
                    *(norm.float(), scale.float(), lr, float(weight_decay), float(momentum)),
                    *(self._rows.shape[1], len(self._owners)),
                    N=len(self._rows),
                    LOW=self._targets[-1] is not None,
                    DECAY=weight_decay != 0,
                    MOMENTUM=momentum != 0,
                    NESTEROV=nesterov,
                    LINES=LINES,
                    LINE=LINE,
                    enable_fp_fusion=False,  # torch rounds the product with the momentum
                )


class TiledSGD:
    """The step of torch's SGD, its gradients clipped by the norm of all, on an optimizer's own tensors.

    The kernels find them by a table of addresses. Those of gradients are known only after the capture of a CUDA graph,
    which cannot send them: `fill_table` does.

    Args:
        optimizer: An SGD without dampening and maximize, of float32 parameters on one device, without gaps in memory.
        max_norm: Largest norm of the gradient. One that is not finite moves nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, max_norm: float) -> None:
        self._optimizer, self._max_norm = optimizer, max_norm
        groups = [[-(-p.numel() // TILE) for p in group["params"]] for group in optimizer.param_groups]
        self._tiles = [sum(tiles) for tiles in groups]  # of each group
        tiles = torch.tensor([number for group in groups for number in group])  # of each parameter
        self._owners = torch.repeat_interleave(torch.arange(len(tiles)), tiles)
        numbers = torch.arange(sum(self._tiles)) - (tiles.cumsum(0) - tiles)[self._owners]
        self._offsets = numbers[:, None] * torch.tensor([4 * TILE, 4 * TILE, 4 * TILE, -TILE])
        self._device = next(p.device for group in optimizer.param_groups for p in group["params"])
        self._squares = torch.zeros(PARTS, device=self._device)
        self._rows = self._offsets  # of the captured step
        self._table = torch.zeros_like(self._rows, device=self._device)  # not in memory of the graph, which reuses it

    def step(self) -> None:
        """Clip and move; gradients are left as they are, and parameters without one do not move."""
        from asng.fused import _sgd_kernels as kernels

        groups = self._optimizer.param_groups
        tensors = [self._tensors_of(p, group["momentum"] != 0) for group in groups for p in group["params"]]
        table = self._table_of(tensors)
        with device_of(table):
            kernels.square_tiles[(min(len(table), PARTS),)](
                table, self._squares, len(table), PARTS=PARTS, TILE=TILE, num_warps=WARPS
            )
            for group, part in zip(groups, torch.split(table, self._tiles), strict=True):
                if len(part):
                    lr = torch.as_tensor(group["lr"], device=self._device)
                    kernels.move_tiles[(len(part),)](
                        *(part, self._squares, float(self._max_norm)),
                        *(lr, float(group["weight_decay"]), float(group["momentum"])),
                        DECAY=group["weight_decay"] != 0,
                        MOMENTUM=group["momentum"] != 0,
                        NESTEROV=group["nesterov"],
                        PARTS=PARTS,
                        TILE=TILE,
                        num_warps=WARPS,
                        enable_fp_fusion=False,  # torch rounds the product with the momentum
                    )
        torch.autograd.graph.increment_version([each[1] for each in tensors if each])

    def fill_table(self) -> None:
        """Tell a graph, after its capture, where the tensors of its step are."""
        self._table.copy_(self._rows)

    def _tensors_of(self, parameter: Tensor, has_momentum: bool) -> list[Tensor]:
        """The gradient, values and momentum of a parameter, alike in memory; none without a gradient."""
        if parameter.grad is None:
            return []
        gradient = match_layout(parameter.grad, parameter)
        if not has_momentum:
            return [gradient, parameter, parameter]
        state = self._optimizer.state[parameter]
        buffer = state.get("momentum_buffer")
        buffer = torch.zeros_like(parameter) if buffer is None else match_layout(buffer, parameter)
        state["momentum_buffer"] = buffer
        return [gradient, parameter, buffer]

    def _table_of(self, tensors: list[list[Tensor]]) -> Tensor:
        """The table on the device; while a graph is captured, the one to be filled later."""
        addresses = [[*(t.data_ptr() for t in each), each[0].numel()] if each else [0] * 4 for each in tensors]
        rows = torch.tensor(addresses)[self._owners] + self._offsets
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._rows = rows
            return self._table
        return rows.to(self._device, non_blocking=True)


def match_layout(x: Tensor, like: Tensor) -> Tensor:
    """The tensor with its numbers in memory as another's; a copy where they are not."""
    sizes = zip(like.shape, x.stride(), like.stride(), strict=True)
    is_same = x.dtype is like.dtype and all(size == 1 or own == other for size, own, other in sizes)
    return x if is_same else torch.empty_like(like).copy_(x)
