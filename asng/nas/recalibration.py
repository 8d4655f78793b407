"""Re-estimation of a network's batch-norm statistics."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from asng.nas._checks import unwrap
from asng.nas._devices import device_of, to_device
from asng.nas._preserve import set_training


def recalibrate(
    model: nn.Module, batches: Iterable[Any], forward: Callable[[nn.Module, Any], Any] | None = None
) -> None:
    """Re-estimate the batch-norm statistics of a network, as averages over the batches.

    An extracted network has the running statistics of the supernet, which average over many architectures.
    During the passes everything but the batch norms is in evaluation mode. Batch norms that stay in evaluation mode
    while the model trains, such as those of a pretrained part, are frozen and keep their statistics.

    torch's own `update_bn` puts the whole model into training mode, dropout included, and restores nothing after an
    error.

    Args:
        model: Any network with batch norms; wrappers of torch.compile and DataParallel are looked through. Train/eval
            modes are restored on exit.
        batches: Inputs, or tuples or lists that start with them; they are moved to the device of the model.
        forward: (model, batch) -> anything; replaces `model(inputs)` for batches of another structure, and moves them
            itself.

    Raises:
        ValueError: There are no batches, or no batch norm to recalibrate; after this and any other error the
            statistics are restored.

    >>> net = nn.BatchNorm1d(1)
    >>> recalibrate(net, [torch.tensor([[1.0], [3.0]])])
    >>> net.running_mean
    tensor([2.])
    """
    model = unwrap(model)
    kinds = nn.modules.batchnorm._BatchNorm
    norms = [module for module in model.modules() if isinstance(module, kinds) and module.running_mean is not None]
    if not norms:
        raise ValueError("the model has no batch norm with running statistics, so there is nothing to recalibrate")
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]  # a train() may set them
    modes = [(module, module.training) for module in model.modules()]
    backups: list[_StatsBackup] = []
    try:
        set_training(model)
        backups = [_StatsBackup(norm) for norm in norms if norm.training]
        if not backups:
            raise ValueError(
                "all batch norms stay in evaluation mode while the model trains: there is none to recalibrate"
            )
        model.eval()
        for norm in backups:
            norm.start()
        if not _run_batches(model, batches, forward or _forward):
            raise ValueError("there are no batches to estimate statistics from; an iterator may be used up")
        for norm in backups:
            norm.commit()
    except BaseException:
        for norm in backups:
            norm.rollback()
        raise
    finally:
        for module, training in modes:
            module.training = training
        for parameter, requires_grad in flags:
            parameter.requires_grad = requires_grad


class _StatsBackup:
    """A batch norm and a backup of its statistics and settings."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        self._norm, self._momentum, self._counts = norm, norm.momentum, norm.num_batches_tracked is not None
        self._statistics = [buffer.clone() for buffer in norm.buffers(recurse=False)]

    def start(self) -> None:
        """Reset the statistics and start to average."""
        norm = self._norm
        if not self._counts:  # as some do to save a kernel; but an average has to count
            assert isinstance(norm.running_mean, Tensor)
            norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=norm.running_mean.device)
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative average
        norm.train()

    def commit(self) -> None:
        """Keep the new statistics, or the old ones if the layer did not run."""
        if self._norm.num_batches_tracked == 0:  # it does not run
            self.rollback()
        self._restore_settings()

    def rollback(self) -> None:
        """Restore statistics and settings."""
        self._restore_settings()
        for buffer, old in zip(self._norm.buffers(recurse=False), self._statistics, strict=True):
            buffer.copy_(old)

    def _restore_settings(self) -> None:
        self._norm.momentum = self._momentum
        if not self._counts:
            self._norm.num_batches_tracked = None


def _run_batches(model: nn.Module, batches: Iterable[Any], forward: Callable[[nn.Module, Any], Any]) -> int:
    """Run forward on all batches; returns their number."""
    count = 0
    with torch.no_grad():
        for batch in batches:
            forward(model, batch)
            count += 1
    return count


def _forward(model: nn.Module, batch: Any) -> Any:
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    return model(to_device(inputs, device_of(model)))
