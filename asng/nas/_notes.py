"""Notes on the errors of candidates: in which module of which architecture, and the cure of usual mistakes."""

import re
from collections.abc import Mapping
from traceback import walk_tb
from typing import Any

import torch
from torch import nn

from asng.nas._preserve import label_of
from asng.nas.supernet import Supernet

# As torch's layers say it, each in words of its own. Which dtypes differ legally depends on the layer, and on autocast.
OTHER_DTYPE = re.compile(r"same (dtype|datatype)|\) should be the same|scalar type ")


def add_notes(error: Exception, supernet: Supernet, values: Mapping[str, Any], function: str, model: nn.Module) -> None:
    """Add notes to an error that a `function`, "loss_fn" or "judge", raised when it was called with the model."""
    modules = running_modules(error, supernet)
    inner = modules[-1] if modules else supernet.model
    label = f"{label_of(inner, supernet.paths)} of " if supernet.paths[inner] else ""
    error.add_note(f"in {label}the architecture {dict(values)}")
    text, kind = str(error), type(model).__name__
    weight = next(inner.parameters(recurse=False), None) if modules else None
    if "Expected more than 1 value per channel when training" in text:
        error.add_note(
            "batch norm needs more than one row, also of batches to validate, as candidates are judged in training "
            "mode; leave out a last batch of one row, as DataLoader(..., drop_last=True) does"
        )
    elif "does not require grad and does not have a grad_fn" in text and not torch.is_grad_enabled():
        error.add_note(
            f"candidates are judged without gradients: where {function} differentiates, let it do so in "
            "`with torch.enable_grad():`"
        )
    elif weight is not None and OTHER_DTYPE.search(text):
        error.add_note(f"its weights are {weight.dtype}: convert its inputs, as by x.to({weight.dtype}), or the model")
    elif text.startswith("decision ") and "has no value yet" in text:
        error.add_note(f"{function} has to run the model that it is given: this decision is one of another model")
    elif not modules and isinstance(error, (TypeError, AttributeError)) and re.search(rf"\b{kind}\b", text):
        error.add_note(
            f"{function} is called as {function}(model, batch); call the model in it, as in loss(model(x), y) where "
            "x, y = batch"
        )


def running_modules(error: BaseException, supernet: Supernet) -> list[nn.Module]:
    """The modules that were running when an error was raised and later caught, the innermost last."""
    # Without the frame that caught it: Python keeps the locals that are read of a running frame, and so the error with
    # all tensors of its traceback.
    called = error.__traceback__.tb_next if error.__traceback__ is not None else None
    frames = [frame for frame, _ in walk_tb(called) if frame.f_code.co_name != "__getattr__"]  # looked up by others
    methods = [frame for frame in frames if frame.f_code.co_varnames[:1] == ("self",)]
    found = [method.f_locals.get("self") for method in methods]
    return [module for module in found if isinstance(module, nn.Module) and module in supernet.paths]
