"""SGD with clipped gradients on flat tensors, in two kernels."""

import torch
from torch import Tensor

from asng.fused._dispatch import can_launch, device_of

LINE = 64  # numbers of a flat tensor that belong to one parameter
LINES = 32  # of a program's tile


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
