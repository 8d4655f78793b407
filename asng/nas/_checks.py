"""Checks of a model and its optimizers: what torch does not see, wrappers, and what a search needs."""

import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from asng._asktell import Optimizer
from asng._checks import is_endless, unfit_signature
from asng._files import differences
from asng._untrusted import shorten
from asng.nas import _distributed
from asng.nas.decisions import Decision
from asng.space import Variable

if TYPE_CHECKING:
    from asng.nas.supernet import Supernet

MAX_DEPTH = 3  # how many containers inside each other are looked into
MAX_VISITED = 1000  # and how many items of each: data may be kept in lists, too
MODULE_ATTRIBUTES = frozenset(nn.Module().__dict__)  # what every module has
SCALAR_TYPES = frozenset({bool, int, float, str, bytes, type(None), type})


def unregistered_modules(module: nn.Module) -> Iterator[tuple[str, Any, nn.Module]]:
    """The unregistered modules in the attributes of a module: attribute, its value, module inside."""
    attributes = module.__dict__
    if len(attributes) == len(MODULE_ATTRIBUTES) or (
        not module._modules and type(module).__module__.startswith("torch.nn.")
    ):
        return  # nothing of its own, or one of torch's layers
    for name, value in attributes.items():
        if name not in MODULE_ATTRIBUTES and type(value) not in SCALAR_TYPES:
            for inner in objects_in(value, nn.Module):
                yield name, value, inner


def objects_in(value: Any, kind: Any, depth: int = MAX_DEPTH) -> Iterator[Any]:
    """The objects of a class, or of several, that a value holds in containers and attributes; not those in modules."""
    if isinstance(value, kind):
        yield value
    elif depth and not isinstance(value, nn.Module):
        for item in islice(_items(value), MAX_VISITED):
            if type(item) not in SCALAR_TYPES:
                yield from objects_in(item, kind, depth - 1)


def _items(value: Any) -> Iterable[Any]:
    """The items of a container, or the attributes of an object."""
    match value:
        case list() | tuple() | set() | frozenset():
            return value
        case Mapping():
            return value.values()
        case partial():
            return (value.func, *value.args, *value.keywords.values())
        case ModuleType():
            return ()
    attributes = getattr(value, "__dict__", None)
    return attributes.values() if isinstance(attributes, dict) else ()


def captured_modules(value: Any, depth: int = MAX_DEPTH) -> Iterator[nn.Module]:
    """The modules that a function has in its closure or defaults, also through others, or that a weak reference has."""
    items: list[Any] = []
    match value:
        case nn.Module():
            yield value
        case FunctionType():
            items = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # it is empty
                    items.append(cell.cell_contents)
        case ref():
            items = [value()]
        case MethodType():
            items = [value.__self__, value.__func__]
        case list() | tuple() | dict():
            items = list(islice(_items(value), MAX_VISITED))
    for item in items if depth else ():
        yield from captured_modules(item, depth - 1)


def unregistered_error(where: str, value: Any, lost: nn.Module) -> ValueError:
    """The error for a module in the attribute `where`, which is `value`."""
    what = type(lost).__name__ + (f" {lost.name!r}" if isinstance(lost, Decision) else "")
    return ValueError(
        f"{where}, a plain {type(value).__name__}, holds {what}, where torch does not see it; "
        "use nn.ModuleList, nn.ModuleDict or an attribute, or keep it outside the model"
    )


def check_module(model: Any) -> None:
    """Raise ValueError for a model that is no module."""
    if not isinstance(model, nn.Module):
        is_result = isinstance(getattr(model, "model", None), nn.Module)
        got = f"a {type(model).__name__}; pass its .model" if is_result else shorten(model)
        raise ValueError(f"the model must be an instance of torch.nn.Module, got {got}")


def check_batches(batches: Any, name: str, *, may_be_endless: bool = False) -> None:
    """Raise ValueError for what cannot be iterated or gives rows or names, and for iterators that never end."""
    has_no_batches = isinstance(batches, (str, bytes, Mapping))  # a path; columns by their names
    if has_no_batches or not isinstance(batches, Iterable) or getattr(batches, "ndim", 1) == 0:
        raise ValueError(f"{name} must give batches when it is iterated, such as a DataLoader, got {shorten(batches)}")
    if hasattr(batches, "ndim"):  # also an array or a table
        raise ValueError(
            f"{name} must give batches when it is iterated, but a {type(batches).__name__} gives rows; pass a list of "
            "batches, such as x.split(32), or a DataLoader"
        )
    if is_endless(batches) and not may_be_endless:
        kind = type(batches).__name__
        raise ValueError(f"{name} must end, got an itertools.{kind}; give a list, a DataLoader, or an islice of it")


def check_judge(judge: Any) -> None:
    """Raise ValueError for a judge that is no function of a model and a batch."""
    if not callable(judge):
        swapped = "; batches come before it" if isinstance(judge, Iterable) and not isinstance(judge, str) else ""
        raise ValueError(
            f"judge must be a function (model, batch) -> number, the lower the better, got {shorten(judge)}{swapped}"
        )
    check_arguments(judge, "judge", "model", "batch")


def check_arguments(function: Any, name: str, *arguments: str) -> None:
    """Raise ValueError for a function that cannot be called with arguments of these names."""
    is_loss = type(function).__module__ == "torch.nn.modules.loss"
    if is_loss or getattr(function, "__module__", None) == "torch.nn.functional":
        call = f"{type(function).__name__}()" if is_loss else function.__name__
        raise ValueError(
            f"{name} is torch's {call}, which takes outputs and targets; give a function of the model and a batch, "
            f"such as lambda model, batch: {call}(model(batch[0]), batch[1])"
        )
    signature = unfit_signature(function.forward if isinstance(function, nn.Module) else function, arguments)
    if signature is not None:
        cure = "; a batch is what the loader gives, such as in x, y = batch" if "batch" in arguments else ""
        raise ValueError(f"{name} is called as {name}({', '.join(arguments)}), but takes {signature}{cure}")


def unwrap(model: nn.Module) -> nn.Module:
    """Remove the wrappers of torch.compile, DataParallel and DistributedDataParallel."""
    while (optimized := is_optimized(model)) or isinstance(model, (DataParallel, DistributedDataParallel)):
        model = model.get_submodule("_orig_mod" if optimized else "module")
    return model


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile was given a module, the reads of which then are no longer seen."""
    return is_optimized(module) or module._compiled_call_impl is not None


def is_optimized(module: nn.Module) -> bool:
    """Whether torch.compile returned a module; its class is loaded only then."""
    return isinstance(module, getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ()))


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


def check_parallel(paths: Mapping[nn.Module, str], *, sync_batchnorm: bool) -> None:
    """Raise ValueError for modules, given with their paths, in DistributedDataParallel, and for its batch norms.

    Also for those in which batch norms cannot be synchronized, if they are to be.

    Removing the wrapper would not do: after a forward pass its hooks wait for gradients that the candidates of a
    process may not have, and a program that uses it gives every process other batches.
    """
    for module, path in paths.items():
        if isinstance(module, DistributedDataParallel):
            raise ValueError(
                f"{path or 'the model'} is in DistributedDataParallel; pass the model itself, and the same batches in "
                "all processes: asng shards the candidates over them, and needs no DDP"
            )
        if isinstance(module, nn.SyncBatchNorm) and _distributed.is_distributed():
            raise ValueError(
                f"{path or 'the model'} is a SyncBatchNorm, which would mix different candidates; use BatchNorm, and "
                "sync_batchnorm=True for the statistics of one candidate that several processes run"
            )
        cure = ""
        if is_compiled(module):
            cure = "search the model itself, and compile what was found"
        elif type(module).__module__.startswith("asng.fused"):
            cure = "use torch's own: asng.fused.unfuse(model)"
        if sync_batchnorm and cure:
            kind = type(module).__name__
            raise ValueError(f"sync_batchnorm does not reach {path or 'the model'}, a {kind}; {cure}, or leave it out")


def check_device(device: torch.device) -> None:
    """Raise ValueError for a model on another device than that on which NCCL communicates."""
    if not _distributed.is_distributed() or torch.distributed.get_backend() != "nccl":
        return
    if device.type != "cuda":
        raise ValueError(
            f"the processes communicate by NCCL, from GPU to GPU, but the model is on {device}; move it to a GPU before"
            " its optimizer is made, or use init_process_group('gloo')"
        )
    if device.index != torch.cuda.current_device():
        raise ValueError(
            f"the model is on {device}, but the current GPU of its process, on which NCCL communicates, is "
            f"{torch.cuda.current_device()}; call torch.cuda.set_device({device.index}) before init_process_group"
        )


def check_decisions(space: dict[str, Variable]) -> dict[str, Variable]:
    """Return the space of a model; raises ValueError if it is empty."""
    if not space:
        raise ValueError("the model has no decisions to search; put some in, such as asng.nas.OneOf")
    return space


def check_search(supernet: "Supernet", arch_optimizer: Optimizer, weight_optimizer: Any) -> None:
    """Raise ValueError for a model or optimizers that cannot be searched."""
    weight_optimizers = as_list(weight_optimizer)
    for one in weight_optimizers:
        if isinstance(one, type):
            raise ValueError(
                f"weight_optimizer is the class {one.__name__}; make one: {one.__name__}(model.parameters(), lr=...)"
            )
    if not weight_optimizers or not all(hasattr(one, "param_groups") for one in weight_optimizers):
        raise ValueError(
            "weight_optimizer must be a torch optimizer, such as torch.optim.SGD(model.parameters(), lr=0.1), or a "
            f"list of several, got {weight_optimizer!r}"
        )
    if isinstance(arch_optimizer, type):
        raise ValueError(
            f"arch_optimizer is the class {arch_optimizer.__name__}; make one, such as ASNG(space_of(model))"
        )
    if not isinstance(arch_optimizer, Optimizer):
        raise ValueError(
            "arch_optimizer must be an optimizer of asng, such as ASNG(space_of(model)), got "
            f"{type(arch_optimizer).__name__}; pass the torch optimizer of the weights as weight_optimizer"
        )
    check_decisions(supernet.space)
    _check_same_space(supernet, arch_optimizer)
    _check_parameters(supernet.model, weight_optimizers)
    for module, path in supernet.paths.items():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ValueError(
                f"{path or 'the model'} has sparse gradients, which are neither clipped nor set to zero in steps that "
                "do not use it; use sparse=False"
            )


def check_step_options(
    loss_fn: Any, max_grad_norm: float | None, amp_dtype: torch.dtype | None, judge: Any, failures: Any
) -> None:
    """Raise ValueError for options that a step cannot have."""
    if not callable(loss_fn):
        raise ValueError(f"loss_fn must be a function (model, batch) -> loss, got {shorten(loss_fn)}")
    check_arguments(loss_fn, "loss_fn", "model", "batch")
    if not isinstance(failures, tuple) or not all(isinstance(f, type) and issubclass(f, Exception) for f in failures):
        raise ValueError(f"failures must be a tuple of exception classes, such as (MemoryError,), got {failures!r}")
    if judge is not None:
        check_judge(judge)
    try:
        is_norm = max_grad_norm is None or (not isinstance(max_grad_norm, str) and float(max_grad_norm) > 0)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of several numbers
        is_norm = False
    if not is_norm:
        raise ValueError(f"max_grad_norm must be above 0, or None for no clipping, got {shorten(max_grad_norm)}")
    if not any(amp_dtype is each for each in (None, torch.bfloat16, torch.float16)):
        raise ValueError(f"amp_dtype must be torch.bfloat16, torch.float16 or None, got {amp_dtype}")


def _check_same_space(supernet: "Supernet", arch_optimizer: Optimizer) -> None:
    model_space, optimizer_space = supernet.space, arch_optimizer.space
    equal = {name for name in model_space if name in optimizer_space and model_space[name] == optimizer_space[name]}
    differing = sorted({*model_space, *optimizer_space} - equal)
    if differing:
        raise ValueError(
            "arch_optimizer searches another space than the model's (they differ in "
            f"{', '.join(map(repr, differing[:5]))}); make it with space_of(model)"
        )


def _check_parameters(model: nn.Module, weight_optimizers: list[torch.optim.Optimizer]) -> None:
    held = [id(parameter) for one in weight_optimizers for group in one.param_groups for parameter in group["params"]]
    counts = Counter(held)
    missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in counts]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            f"weight_optimizer does not hold the model's parameters {', '.join(missing[:3])}{more}; make it with "
            "model.parameters(), or call requires_grad_(False) on those that are not trained"
        )
    for name, parameter in model.named_parameters():
        if counts[id(parameter)] > 1:
            raise ValueError(f"two of the weight optimizers hold the parameter {name}; give it to one of them")
    for one in weight_optimizers:
        try:
            # Of the class: schedulers wrap that of the object.
            inspect.signature(type(one).step).bind(one)
        except TypeError:
            raise ValueError(
                f"{type(one).__name__} needs a closure that evaluates the loss again, but every step has other "
                "candidates; use a torch optimizer without a closure, such as SGD or Adam"
            ) from None


def check_shapes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise ValueError unless two state dicts have tensors of the same names and shapes."""
    there, here = ({name: tuple(getattr(s[name], "shape", ())) for name in s} for s in (saved, current))
    if shown := differences(there, here):
        raise ValueError(shown)


def as_list(given: Any) -> list[Any]:
    """One object, or those of a list or tuple.

    >>> as_list("sgd"), as_list(("muon", "adamw"))
    (['sgd'], ['muon', 'adamw'])
    """
    return list(given) if isinstance(given, (list, tuple)) else [given]
