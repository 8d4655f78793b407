"""Re-estimation of a network's batch-norm statistics."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from asng.nas._checks import check_batches, check_module, unwrap
from asng.nas._devices import find_device, to_device
from asng.nas._preserve import hold_in_training, label_of, set_training, snapshot


def recalibrate(
    model: nn.Module, batches: Iterable[Any], forward: Callable[[nn.Module, Any], Any] | None = None
) -> None:
    """Re-estimate the batch-norm statistics of a network, as averages over the batches.

    An extracted network has the running statistics of the supernet, which average over many architectures. During the
    passes all modules except the batch norms are in evaluation mode. Batch norms that stay in evaluation mode while the
    model trains, such as those of a pretrained part, are frozen and keep their statistics.

    In contrast, torch's `update_bn` puts the whole model into training mode, dropout included, and restores nothing
    after an error. A batch with NaN or infinity makes the averages NaN, with a warning.

    Args:
        model: Any network with batch norms, also wrapped by torch.compile or DataParallel. Train/eval modes are
            restored on exit.
        batches: Inputs, or tuples or lists that start with them, or dicts of arguments of `model.forward`; other keys,
            such as labels, are ignored. They are moved to the device of the model.
        forward: (model, batch) -> anything; replaces `model(inputs)` for batches of another structure, and must move
            them to the device.

    Raises:
        ValueError: There are no batches, infinitely many, or no batch norm to recalibrate. After any error the
            statistics are restored.

    >>> net = nn.BatchNorm1d(1)
    >>> recalibrate(net, [torch.tensor([[1.0], [3.0]])])
    >>> net.running_mean
    tensor([2.])
    """
    check_module(model)
    check_batches(batches, "batches")
    if forward is not None and not callable(forward):
        raise ValueError(f"forward must be a function (model, batch) -> anything, got {forward!r}")
    model = unwrap(model)
    norms = norms_of(model)
    if not norms:
        raise ValueError(
            "the model has no batch norm with running statistics, so there is nothing to recalibrate; leave this out"
        )
    with snapshot(model.modules()), torch.no_grad():  # restored also after an error
        set_training(model)
        trained = [norm for norm in norms if norm.training]
        if not trained:
            raise ValueError(
                "all batch norms stay in evaluation mode while the model trains: there is none to recalibrate"
            )
        model.eval()
        for norm in trained:
            assert isinstance(norm.running_mean, Tensor)
            # Some have set it to None to save a kernel, but an average has to count.
            norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=norm.running_mean.device)
            norm.reset_running_stats()
            norm.momentum = None  # a cumulative average
        hold_in_training(trained)
        is_empty = True
        for batch in batches:
            (_forward if forward is None else forward)(model, batch)
            is_empty = False
        if is_empty:
            raise ValueError("there are no batches to estimate statistics from; an iterator may be used up")
        averages = [
            (norm, {name: buffer.clone() for name, buffer in norm.named_buffers()})
            for norm in trained
            if norm.num_batches_tracked  # it is 0 where the layer did not run
        ]
    for norm, buffers in averages:
        for name, buffer in norm.named_buffers():
            buffer.copy_(buffers[name])
    warn_of_statistics(model, [norm for norm, _ in averages], stacklevel=3)


def norms_of(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch norms that have running statistics."""
    kind = nn.modules.batchnorm._BatchNorm
    return [module for module in model.modules() if isinstance(module, kind) and module.running_mean is not None]


def warn_of_statistics(model: nn.Module, norms: Sequence[nn.Module], *, stacklevel: int) -> None:
    """Warn of running statistics that are NaN or infinite: a single batch with such numbers leaves them so for good."""
    broken = [norm for norm in norms if not all(bool(buffer.isfinite().all()) for buffer in norm.buffers())]
    if broken:
        label = label_of(broken[0], {module: path for path, module in model.named_modules()})
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        warnings.warn(
            f"the running statistics of {label}{more} are NaN or infinite, and of no use in evaluation mode; call "
            "nas.recalibrate(model, batches) with batches that hold neither",
            stacklevel=stacklevel,
        )


def _forward(model: nn.Module, batch: Any) -> Any:
    inputs = to_device(batch[0] if isinstance(batch, (tuple, list)) else batch, find_device(model))
    keywords = _keywords(model, inputs) if isinstance(inputs, Mapping) else {}
    try:
        return model(**keywords) if keywords else model(inputs)
    except TypeError as error:
        if isinstance(batch, (tuple, list)):
            error.add_note("recalibrate gives batch[0] to the model; for more pass forward=lambda model, batch: ...")
        raise


def _keywords(model: nn.Module, inputs: Mapping[Any, Any]) -> dict[str, Any]:
    """The items of a mapping that a model's forward takes by name; empty where a required one is missing."""
    expected = signature(model.forward)
    takes_all = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in expected.parameters.values())
    known = inputs if takes_all else expected.parameters
    given = {key: value for key, value in inputs.items() if isinstance(key, str) and key in known}
    try:
        expected.bind(**given)
    except TypeError:
        return {}
    return given
