"""One switch of one pass, forward and backward.

Autograd does not see into the cases. Each case has a small graph of its own, from its inputs to its outputs, and
the backward pass is a switch, too: the case that ran adds to the gradients of its parameters and of its inputs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from asng.fused._placement import Placement, PlacingFunction
from asng.nas._capture.cases import Case, Mode, Refused, Site

if TYPE_CHECKING:
    from asng.nas._capture.trace import Trace

ALIGNMENT = 512  # bytes, that of torch's allocator: kernels are chosen by it
LARGE = 1 << 15  # numbers, of which torch's kernel for many tensors gives each a few blocks of threads only


@dataclass(frozen=True)
class Weights:
    """The parameters of a pass, each by its `id`."""

    gradients: Mapping[int, Tensor]  # what is added to
    leaves: Mapping[int, Tensor]  # what runs in their place, such as a copy in lower precision
    _addresses: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def addresses_of(self, parameters: Sequence[Tensor], device: torch.device) -> Tensor:
        """The addresses of parameters, or leaves, and of their gradients on the device, sent once: a graph cannot."""
        key = tuple(map(id, parameters))
        if key not in self._addresses:
            gradients = {**self.gradients, **{id(leaf): self.gradients[of] for of, leaf in self.leaves.items()}}
            rows = [[parameter.data_ptr(), gradients[id(parameter)].data_ptr()] for parameter in parameters]
            self._addresses[key] = torch.tensor(rows, device="cpu").to(device, non_blocking=True)
        return self._addresses[key]

    def substitute_into(self, model: nn.Module) -> AbstractContextManager[None]:
        """Let a model run with the leaves."""
        named = model.named_parameters(remove_duplicate=False)
        leaves = {name: self.leaves[id(parameter)] for name, parameter in named if id(parameter) in self.leaves}
        # The last one first at the end: a module of two names gets its leaf twice.
        return _reparametrize_module(model, leaves, stack_weights=True)


@dataclass
class Scope:
    """A stretch of a pass with an autograd graph of its own: the pass itself, or a case."""

    case: Case
    mode: Mode = Mode.SWITCHED
    depth: int = 0
    next: int = 0
    anchor: Tensor | None = None  # ties switches to the graph even where no input has a gradient
    sources: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)  # by id and version
    zeros: Iterator[Tensor] | None = None  # gradients of the sources to come
    masks: dict[Any, Tensor] = field(default_factory=dict)  # of sizes

    def forget(self) -> None:
        """Break the cycle of tensors, their autograd graph and this, which Python's collector does not see."""
        self.sources.clear()
        self.anchor = None


class Branch:
    """One switch of one pass: its cases forward and backward. With a `total` its result is added to that."""

    def __init__(
        self,
        trace: "Trace",
        site: Site,
        function: Callable[..., Any],
        flat: list[Any],
        spec: Any,
        total: Tensor | None = None,
    ) -> None:
        self._trace, self._site, self._function, self._flat, self._spec = trace, site, function, flat, spec
        self._total = total
        self._graphs: dict[int, tuple[list[Tensor], list[Tensor], Scope]] = {}  # inputs, outputs, scope of a case
        self._with_gradient = torch.is_grad_enabled()
        self.passes_on = False  # whether a case, in a dry run, returned memory of an input

    def run(self) -> Any:
        tensors = [leaf for leaf in self._flat if isinstance(leaf, Tensor)]
        if self._with_gradient:
            sources = [self._trace.source(tensor) if tensor.requires_grad else (tensor, None) for tensor in tensors]
            self._gradients = [gradient for _, gradient in sources]
            tensors = [self._trace.anchor(), *(tensor for tensor, _ in sources)]
            outputs = _Switch.apply(self, self._total, *tensors)  # type: ignore[no-untyped-call]
        else:
            outputs = self.forward(tensors)
        return pytree.tree_unflatten(list(outputs), self._site.cases[0].spec)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self._total is None:
            device = self._trace.row.device
            buffers = tuple(torch.empty_like(output, device=device) for output in self._site.outputs)
        else:
            buffers = (self._total.data,)  # a tensor of its own: autograd sees no write into the other
        self._switch([partial(self._run_case, n, case, tensors, buffers) for n, case in enumerate(self._site.cases)])
        return buffers

    def backward(self, gradients: Sequence[Tensor | None]) -> None:
        if not self._trace.goes_back:  # it would add to the gradients of weights, and only the last pass may
            raise Refused(f"the loss has a backward pass of its own through {self._site.label}")
        self._switch([partial(self._go_back, n, case, gradients) for n, case in enumerate(self._site.cases)])
        self._graphs.clear()

    def _switch(self, bodies: Sequence[Callable[[], None]]) -> None:
        if self._site.column is None:
            bodies[0]()
        else:
            self._trace.switch(self._trace.index(self._site.column), bodies)

    def _run_case(self, number: int, case: Case, tensors: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        inputs = [tensor.detach() for tensor in tensors]
        if self._with_gradient:
            for tensor, gradient in zip(inputs, self._gradients, strict=True):
                tensor.requires_grad_(gradient is not None)
        remaining = iter(inputs)
        flat = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in self._flat]
        args, named = pytree.tree_unflatten(flat, self._spec)
        trace = self._trace
        scope = Scope(case, self._site.mode, trace.scope.depth + 1)
        since = torch.autograd._get_sequence_nr()  # of the next node
        placed = {} if case.output_number is None else {case.output_number: buffers[0]}
        placement = Placement(None if trace.discovers else placed, adds=self._total is not None)
        with trace.fix(case.assignment), trace.enter(scope), torch.set_grad_enabled(self._with_gradient), placement:
            outputs = pytree.tree_flatten(self._function(*args, **named))[0]
        if trace.discovers:
            storages = {tensor.untyped_storage().data_ptr() for tensor in inputs}
            self.passes_on |= any(output.untyped_storage().data_ptr() in storages for output in outputs)
            case.output_number = find_output(outputs, placement)
        with torch.no_grad():
            # Few operations can be told to write there, and one may keep its result for the gradient, which a write in
            # place into that of the switch would change.
            for buffer, output in zip(buffers, outputs, strict=True):
                if output.data_ptr() != buffer.data_ptr():
                    buffer.copy_(output) if self._total is None else buffer.add_(output)
        if self._with_gradient:
            with_gradient = [tensor for tensor in inputs if tensor.requires_grad]
            if trace.discovers:
                with trace.enter(scope):
                    case.parameters = trace.parameters_of(outputs, self._site.label, since)
            self._graphs[number] = with_gradient, outputs, scope

    def _go_back(self, number: int, case: Case, gradients: Sequence[Tensor | None]) -> None:
        if number not in self._graphs:  # it was not captured in full, in a dry run
            return
        inputs, outputs, scope = self._graphs.pop(number)
        pairs = [
            (output, gradient.to(output.dtype))
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if not pairs:
            return
        trace = self._trace
        with trace.fix(case.assignment), trace.enter(scope):
            ends, wanted = [output for output, _ in pairs], [*inputs, *trace.leaves_of(case)]
            targets = [gradient for gradient in self._gradients if gradient is not None] + trace.gradients_of(case)
            direct = find_direct(ends, wanted) if trace.discovers else set()
            placed = {number: targets[at] for at, number in case.gradient_numbers.items()}
            placement = Placement(None if trace.discovers else placed, adds=True)
            with placement:
                found = trace.grad(ends, [gradient for _, gradient in pairs], wanted, scope)
            if trace.discovers:
                numbers = {at: placement.find(g) for at, g in enumerate(found) if g is not None and at in direct}
                case.gradient_numbers = {at: number for at, number in numbers.items() if number is not None}
            add_all(targets, placement.leave_out_placed(found))
        scope.forget()


class _Switch(torch.autograd.Function):
    """A switch in the autograd graph; its inputs get their gradients through `SwitchInput`."""

    @staticmethod
    def forward(ctx: Any, call: Branch, total: Tensor | None, anchor: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.inputs, ctx.adds = call, 1 + len(tensors), total is not None
        ctx.set_materialize_grads(False)
        outputs = call.forward(tensors)
        ctx.mark_non_differentiable(*(o for o in outputs if not (o.is_floating_point() or o.is_complex())))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.call.backward(gradients)
        return None, gradients[0] if ctx.adds else None, *[None] * ctx.inputs


class SwitchInput(torch.autograd.Function):
    """A tensor that switches read: they have added to its gradient by the time that autograd comes to it.

    Fused functions add to it, too.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, tensor: Tensor) -> Tensor:
        ctx.added_gradient = gradient
        ctx.set_materialize_grads(False)
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, Tensor]:
        if gradients[0] is not None:
            ctx.added_gradient.add_(gradients[0])
        return None, ctx.added_gradient


def find_output(outputs: Sequence[Tensor], placement: Placement) -> int | None:
    """The number of the result that is the only output of a case, and that no other function keeps for the gradient."""
    is_result = len(outputs) == 1 and (outputs[0].grad_fn is None or PlacingFunction.is_behind(outputs[0].grad_fn))
    return placement.find(outputs[0]) if is_result else None


def find_direct(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> set[int]:
    """The positions of the inputs whose gradient is what a single function returns that places it, and no hook sees."""
    users = {key: nodes for key, (_, nodes) in leaves(outputs).items()}
    kinds = [[PlacingFunction.is_behind(node) for node in users.get(id(x), [])] for x in inputs]
    return {
        at for at, (x, kind) in enumerate(zip(inputs, kinds, strict=True)) if kind == [True] and not x._backward_hooks
    }


def add_all(targets: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add gradients, small ones in as few kernels as torch has; those that are missing are zero."""
    alike: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for target, gradient in zip(targets, gradients, strict=True):
        if gradient is not None and gradient.numel() >= LARGE:
            target.add_(gradient)
        elif gradient is not None:
            pairs = alike.setdefault((target.dtype, gradient.dtype), ([], []))
            pairs[0].append(target)
            pairs[1].append(gradient)
    for some, added in alike.values():
        torch._foreach_add_(some, added)


def zeros_like(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Zeros of the shapes, strides and types of some tensors, in one piece of memory for each type."""
    flat: dict[torch.dtype, Iterator[Tensor]] = {}
    sizes = [-(-tensor.untyped_storage().nbytes() // ALIGNMENT) * ALIGNMENT // tensor.itemsize for tensor in tensors]
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        parts = [size for size, tensor in zip(sizes, tensors, strict=True) if tensor.dtype is dtype]
        flat[dtype] = iter(torch.split(torch.zeros(sum(parts), dtype=dtype, device=device), parts))
    parts_and_tensors = ((next(flat[tensor.dtype]), tensor) for tensor in tensors)
    return [part.as_strided(like.shape, like.stride(), part.storage_offset()) for part, like in parts_and_tensors]


def leaves(outputs: Sequence[Tensor], since: int = -1) -> dict[int, tuple[Tensor, list[Any]]]:
    """The leaves of the autograd graph behind some tensors, by id, and the nodes that use each; None for an output.

    Raises ValueError where the graph goes back to nodes from before the number `since`.
    """
    found: dict[int, tuple[Tensor, list[Any]]] = {
        id(tensor): (tensor, [None]) for tensor in outputs if tensor.requires_grad and tensor.grad_fn is None
    }
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if node._sequence_nr() < since:
            raise ValueError(f"a tensor from elsewhere, by {node.name()}")
        for following, _ in node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                found.setdefault(id(leaf), (leaf, []))[1].append(node)
            elif following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


class SplitGroups(TorchFunctionMode):
    """Runs grouped convolutions as one per group.

    cuDNN's own take side streams. A side stream belongs to one capture until that ends: used outside of a switch
    and inside, it would join two captures, which CUDA refuses.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        names, axis = _CONVOLUTIONS.get(function, ((), 0))
        named = dict(zip(names, args, strict=False)) | dict(kwargs or {}) if names else {}
        groups = named.get("groups", 1)
        # Depthwise ones have kernels of their own.
        if groups == 1 or ("output_padding" not in names and groups == named["input"].shape[axis]):
            return function(*args, **(kwargs or {}))
        bias = named.pop("bias", None)
        biases = [None] * groups if bias is None else bias.chunk(groups)
        parts = zip(named["input"].chunk(groups, axis), named["weight"].chunk(groups), biases, strict=True)
        named["groups"] = 1
        return torch.cat([function(**{**named, "input": i, "weight": w, "bias": b}) for i, w, b in parts], axis)


class RefuseEffects(TorchFunctionMode):
    """Raises RuntimeError for what replays would not repeat.

    They would not advance a generator that is given. Passes that run side by side may not write into weights, nor may
    weights be moved; in mixed precision it would be copies that are written.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self._storages = {weight.untyped_storage().data_ptr() for weight in weights}

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if kwargs and kwargs.get("generator") is not None:
            raise RuntimeError(f"{function.__name__} draws from a generator of its own; leave out generator=")
        weights = [given for given in (*args, *(kwargs or {}).values()) if self._is_weight(given)]
        before = [(weight._version, weight.data_ptr()) for weight in weights]
        result = function(*args, **(kwargs or {}))
        if [(weight._version, weight.data_ptr()) for weight in weights] != before:
            raise RuntimeError("a pass writes into a weight; compute with a copy, as torch.nn.utils.parametrize does")
        return result

    def _is_weight(self, tensor: Any) -> bool:
        is_dense = isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_inference()
        return is_dense and tensor.untyped_storage().data_ptr() in self._storages


_FORWARD = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_CONVOLUTIONS: dict[Any, tuple[tuple[str, ...], int]] = {  # names of arguments, axis of channels
    torch.conv1d: (_FORWARD, -2),
    torch.conv2d: (_FORWARD, -3),
    torch.conv3d: (_FORWARD, -4),
    torch.conv_transpose1d: (_TRANSPOSED, -2),
    torch.conv_transpose2d: (_TRANSPOSED, -3),
    torch.conv_transpose3d: (_TRANSPOSED, -4),
}
