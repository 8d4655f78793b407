"""torch's wrappers: unwrap torch.compile and DataParallel, refuse DDP and FSDP."""

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def unwrap(model: nn.Module) -> nn.Module:
    """Remove the wrappers of torch.compile, DataParallel and DistributedDataParallel."""
    while True:
        compiled = model._modules.get("_orig_mod")  # torch loads the class of such modules only when it is used
        if compiled is not None:
            model = compiled
        elif isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        else:
            return model


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile was given a module, the reads of which then are no longer seen."""
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def check_not_sharded(paths: Mapping[nn.Module, str]) -> None:
    """Raise ValueError for modules, given with their paths, whose weights FSDP has sharded."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # loaded if anything is sharded
    if fsdp is not None:
        for module, path in paths.items():
            if isinstance(module, (fsdp.FullyShardedDataParallel, fsdp.FSDPModule)):
                raise ValueError(
                    f"{path or 'the model'} is sharded by FSDP, but candidates share whole weights; pass the model "
                    "itself, not sharded: asng shards the candidates over the processes"
                )


def check_not_ddp(paths: Mapping[nn.Module, str]) -> None:
    """Raise ValueError for modules, given with their paths, in DistributedDataParallel.

    Looking through it would not do: after a forward pass of its own its hooks wait for gradients that the candidates of
    a process may not have, and the batches of those who use it differ between the processes.
    """
    for module, path in paths.items():
        if isinstance(module, DistributedDataParallel):
            raise ValueError(
                f"{path or 'the model'} is in DistributedDataParallel; pass the model itself, and the same batches in "
                "all processes: asng shards the candidates over them, and needs no DDP"
            )
