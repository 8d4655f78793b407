"""A model run while its architecture is open: every choice becomes a switch over the cases that it can take.

The same code runs in three ways, which differ in their switch alone: a dry run runs all cases, a CUDA graph holds
all of them and runs one at each replay, and on the CPU Python runs one. A dry run comes first. It finds the cases of
each switch: it runs the choice with nothing decided, and each decision that the choice reads splits the current case
into one case per value. Choices inside a choice are read in the same way, so they need no switch of their own; only
where there are too many combinations they get one. A layer whose cases differ in shape cannot be a switch; then the
module around it becomes one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from asng.fused._dispatch import have_hooks
from asng.fused._placement import layout
from asng.nas._capture import cases as _cases
from asng.nas._capture.branch import Branch, Scope, SwitchInput, Weights, add_all, leaves, zeros_like
from asng.nas._capture.cases import Assignment, Case, Columns, Mode, NumbersFn, Refused, Site, Unswitchable
from asng.nas._capture.masked import forward_of as forward_masked
from asng.nas._size import Size
from asng.nas.decisions import Decision, Searchable, Value, Width
from asng.nas.layers import ElasticLayer
from asng.nas.supernet import Supernet

MAX_CASES = 64  # of one switch
CAST = "ToCopyBackward0"  # autograd's name
Switch = Callable[[Tensor, Sequence[Callable[[], None]]], None]

_current: "Trace | None" = None


class _Undecided(BaseException):  # past a user's `except Exception`
    """A decision was read that the current case leaves open."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision


def run_all(index: Tensor, bodies: Sequence[Callable[[], None]]) -> None:
    """The switch of a dry run."""
    for body in bodies:
        body()


def run_one(index: Tensor, bodies: Sequence[Callable[[], None]]) -> None:
    """The switch of Python."""
    if (number := int(index)) < len(bodies):
        bodies[number]()


def is_open() -> bool:
    """Whether a model runs with its architecture open, so that decisions have no values."""
    return _current is not None


def switch_on(label: str, function: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Call a function that reads decisions: as it is, or as a switch where the architecture is open.

    All that depends on the decisions has to come as an argument or go out as a result, and the results of all cases
    have the same shapes.
    """
    return function(*inputs, **named) if _current is None else _current.switch_on(label, function, inputs, named)


def add_up(modules: Sequence[nn.Module], *inputs: Any) -> Tensor:
    """The sum of what modules give; where the architecture is open, a switch adds to that of the modules before it."""
    if _current is not None:
        return _current.add_up(modules, inputs)
    total: Tensor = modules[0](*inputs)
    for module in modules[1:]:
        total = total + module(*inputs)
    return total


def share_gradient(tensor: Tensor) -> Tensor:
    """A tensor that switches read, for a fused function that adds to its gradient as they do."""
    return tensor if _current is None or not tensor.requires_grad else _current.source(tensor)[0]


def read_numbers(function: NumbersFn, *args: Any, length: int) -> Tensor:
    """The int32 numbers that a function makes of the values, on the device, where the architecture is open."""
    assert _current is not None, "numbers of values that are open"
    start = _current.columns.add_function(function, args, length)
    return _current.row.new_zeros(length) if _current.discovers else _current.row[start : start + length]


def address_weights(parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The addresses of weights and of their gradients, int64 (n, 2), for kernels that add to the gradients.

    Beside it stands a scalar that ties such a kernel to the autograd graph.
    """
    assert _current is not None, "weights of a pass"
    return _current.addresses_of(parameters), _current.anchor()


@dataclass
class _Term:
    """A module of a sum: what it may add to, and what its switch has done."""

    total: Tensor | None = None
    is_added: bool = False
    is_new: bool = False  # the result is the memory of the switch


class _Open:
    """Stands where a decision keeps its value."""

    def __init__(self, trace: "Trace", decision: Decision) -> None:
        self._trace, self._decision = trace, decision

    def __len__(self) -> int:
        return 1  # as of a value

    def __getitem__(self, _: int) -> Any:
        self._trace.columns.unread_decisions.discard(self._decision.name)
        if self._trace.scope.mode is Mode.FIXED:
            return (self._decision.variable.values() or (None,))[0]
        raise _Undecided(self._decision)

    def index_tensor(self) -> Tensor:
        self._trace.columns.unread_decisions.discard(self._decision.name)
        return self._trace.index(self._trace.columns.add_decision(self._decision.name))


class Trace:
    """One pass of a model with its architecture open.

    Args:
        supernet: the model.
        columns: shared by all passes; a discovery adds to them.
        switch: how one case of several runs.
        root: the pass, empty until it is discovered.
        row: int32 tensor (columns,) that the switches read; a discovery reads none.
        weights: the parameters of the pass.
        surroundings: modules that are switches in place of those inside them.
        masked: elastic layers that run at their largest size, with masks.
        discovers: whether this is the dry run that finds the switches.
    """

    def __init__(
        self,
        supernet: Supernet,
        columns: Columns,
        switch: Switch,
        root: Case,
        row: Tensor,
        weights: Weights,
        surroundings: Iterable[nn.Module],
        masked: Iterable[ElasticLayer],
        discovers: bool,
    ) -> None:
        self.columns, self.switch, self.row, self.discovers = columns, switch, row, discovers
        self._supernet, self._weights = supernet, weights
        kinds = [m for m in supernet.paths if isinstance(m, Searchable) and not isinstance(m, (Value, Width))]
        self._masked = set(masked)
        self._switches = dict.fromkeys([*kinds, *surroundings])
        self._hooked = {module for module in supernet.paths if have_hooks(module)}  # before `run` puts functions there
        self.scope = Scope(root)
        self.goes_back = False  # the backward pass runs
        self._term: _Term | None = None  # what the next switch is in a sum
        self._watched: list[tuple[str, Tensor, int]] = []  # in a dry run: inputs and results of switches, versions
        self._depths: dict[int, int] = {}  # of parameters, in a dry run
        self.consumers: dict[int, set[str]] = {}  # of parameters, in a dry run: the names of autograd's nodes

    @contextmanager
    def run(self) -> Iterator[None]:
        """Leave all decisions of the model open inside."""
        global _current  # noqa: PLW0603
        with self._supernet.preserve_selection(), self._weights.substitute_into(self._supernet.model):
            self._open(self._supernet.space)
            own = {module: module.__dict__["forward"] for module in self._switches if "forward" in module.__dict__}
            for module in self._switches:  # in front of the method of the class
                module.__dict__["forward"] = self._forward_of(module)
            _current = self
            try:
                yield
            except _Undecided as error:
                what = f"decision {self._label(error.decision)}"
                refused = Unswitchable(f"{what} is read in Python outside a choice")
                refused.module = error.decision
                try:
                    raise refused.with_traceback(error.__traceback__) from None  # which tells what reads it
                finally:
                    del refused  # else this frame would keep it, and it the frame
            finally:
                _current = None
                for module in self._switches:
                    del module.__dict__["forward"]
                    module.__dict__.update({"forward": own[module]} if module in own else {})

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those of the parameters."""
        if not loss.requires_grad:
            return
        root = self.scope.case
        if self.discovers:
            root.parameters = self.parameters_of([loss], "the loss")
        self.goes_back = True
        with self.run():  # torch.utils.checkpoint calls modules again
            found = self.grad([loss], [None], self.leaves_of(root), self.scope)
        add_all(self.gradients_of(root), found)

    def index(self, column: int) -> Tensor:
        return self.row.new_zeros(()) if self.discovers else self.row[column]

    # Switches.

    def _forward_of(self, module: nn.Module) -> Callable[..., Any]:
        if isinstance(module, ElasticLayer) and module in self._masked:
            return forward_masked(module, self._mask)
        return partial(self._forward, module, module.forward)

    def _mask(self, size: Size, centered: bool) -> Tensor:
        """The mask of the selected entries of the largest size: the first, or those in the middle."""
        masks, key = self.scope.masks, (repr(size), centered)
        if key not in masks:
            number: Any = size.max
            if size.decisions and not self.discovers:
                number = self.row[self.columns.add_size(size)]
            elif size.decisions:
                self.columns.add_size(size)
            entries = torch.arange(size.max, device=self.row.device)
            start = (size.max - number) // 2 if centered else 0
            masks[key] = (entries >= start) & (entries < start + number)
        return masks[key]

    def _forward(self, module: nn.Module, function: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        try:
            return self.switch_on(
                self._label(module), function, inputs, named, may_be_many=not isinstance(module, Decision)
            )
        except Unswitchable as error:
            error.module = error.module or module
            raise

    def _label(self, module: nn.Module) -> str:
        path = self._supernet.paths[module] or "the model"
        return f"{module.name!r} ({path})" if isinstance(module, Decision) else path

    def switch_on(
        self, label: str, function: Callable[..., Any], inputs: Any, named: Any, *, may_be_many: bool = False
    ) -> Any:
        """One switch; a module with too many cases for one is called, so that there may be switches inside."""
        term, self._term = self._term or _Term(), None
        if self.scope.mode is not Mode.SWITCHED:
            scope = Scope(Case(), Mode.FIXED) if self.scope.mode is Mode.SHAPED else self.scope
            with self.enter(scope):
                return function(*inputs, **named)
        if self.goes_back:
            raise Refused(f"{label} runs again in the backward pass; leave out torch.utils.checkpoint around it")
        flat, spec = pytree.tree_flatten((inputs, named))
        site = self._site(label, lambda: function(*inputs, **named), may_be_many)
        if not site.cases:
            return function(*inputs, **named)
        total = term.total
        term.is_added = total is not None and [layout(total)] == [layout(output) for output in site.outputs]
        term.is_new = True
        branch = Branch(self, site, function, flat, spec, total if term.is_added else None)
        returned = branch.run()
        if branch.passes_on:
            tensors = [leaf for leaf in (*flat, *pytree.tree_leaves(returned)) if isinstance(leaf, Tensor)]
            if any(tensor.is_inference() for tensor in tensors):
                raise Refused(
                    f"{label} may return its input, and torch.inference_mode() hides whether one of the two is "
                    "changed in place; leave it out: judges run without gradients"
                )
            self._watched += [(label, tensor.detach(), tensor._version) for tensor in tensors]
        return returned

    def add_up(self, modules: Sequence[nn.Module], inputs: Sequence[Any]) -> Tensor:
        total, term = self._run_term(modules[0], inputs, None)
        # Hooks, of options too, may read a result before it is the sum, or keep it for the gradient.
        is_own = term.is_new and self._hooked.isdisjoint(modules[0].modules())
        for module in modules[1:]:
            adds = is_own and self._hooked.isdisjoint(module.modules())
            result, term = self._run_term(module, inputs, total if adds else None)
            total = result if term.is_added else total + result
            is_own = True  # a new sum, or the same memory
        return total

    def _run_term(self, module: nn.Module, inputs: Sequence[Any], total: Tensor | None) -> tuple[Tensor, _Term]:
        term = _Term(total)
        self._term = term if module in self._switches else None
        result: Tensor = module(*inputs)
        self._term = None  # masked layers do not take it
        return result, term

    def check_watched(self) -> None:
        """Refuse writes into what some cases of a switch pass on: a switch gives a copy, as other cases do."""
        for label, tensor, version in self._watched:
            if tensor._version != version:
                raise Refused(
                    f"{label} may return its input, and one of the two is changed in place; leave out inplace=True"
                )
        self._watched.clear()

    def _site(self, label: str, call: Callable[[], Any], may_be_many: bool) -> Site:
        """The next switch of the pass; a dry run finds its cases."""
        scope = self.scope
        if not self.discovers:
            scope.next += 1
            return scope.case.sites[scope.next - 1]
        mode = Mode.CALLED
        if (cases := self._find_cases(label, call, mode)) is None:
            mode = Mode.SWITCHED
            cases = [] if may_be_many else self._find_cases(label, call, Mode.SHAPED)
            if cases is None:
                raise Refused(f"{label} has more than {MAX_CASES} cases")
        elif not any(case.assignment for case in cases):  # it reads no decision
            cases = []
        column = self.columns.add_cases([case.assignment for case in cases]) if len(cases) > 1 else None
        site = Site(label, mode, cases, _cases.common_outputs(label, cases) if cases else [], column)
        scope.case.sites.append(site)
        return site

    def _find_cases(self, label: str, call: Callable[[], Any], mode: Mode) -> list[Case] | None:
        """All cases, found by running each; None if they are too many."""
        cases: list[Case] = []
        waiting: list[Assignment] = [()]
        while waiting:
            assignment = waiting.pop(0)
            try:
                # With gradients, as the case itself will run: what a model keeps of this has to be found by it.
                with self.fix(assignment), self.enter(Scope(Case(), mode)):
                    cases.append(_cases.run_case(label, assignment, call))
            except _Undecided as error:
                variable = error.decision.variable
                values = variable.values()
                if values is None:
                    raise Refused(f"decision {self._label(error.decision)} is {variable}, without cases") from None
                if len(cases) + len(waiting) + len(values) > MAX_CASES:
                    return None
                waiting[:0] = [(*assignment, (error.decision.name, position)) for position in range(len(values))]
        return cases

    @contextmanager
    def fix(self, assignment: Assignment) -> Iterator[None]:
        """Decide what a case decides."""
        for name, position in assignment:
            values = self._supernet.space[name].values() or ()
            for decision in self._supernet._by_name[name]:
                decision.choose(values[position])
        try:
            yield
        finally:
            self._open(name for name, _ in assignment)

    def _open(self, names: Any) -> None:
        for name in names:
            for decision in self._supernet._by_name[name]:
                decision.__dict__["selected"] = _Open(self, decision)

    @contextmanager
    def enter(self, scope: Scope) -> Iterator[None]:
        before, self.scope = self.scope, scope
        torch.clear_autocast_cache()  # what one case casts, another has to cast again: only one of them runs
        try:
            yield
        finally:
            self.scope = before
            torch.clear_autocast_cache()

    # Gradients.

    def source(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """A tensor and the gradient that switches add to; made once for each tensor of a scope, until it is written."""
        sources, key = self.scope.sources, (id(tensor), tensor._version)
        if key not in sources:
            gradient = self._zeros_like(tensor)
            sources[key] = tensor, SwitchInput.apply(gradient, tensor), gradient  # type: ignore[no-untyped-call]
        return sources[key][1:]

    def _zeros_like(self, tensor: Tensor) -> Tensor:
        """The next of the gradients of a scope, which are made together at the first: one kernel clears them all."""
        scope = self.scope
        if self.discovers:
            scope.case.sources.append(torch.empty_like(tensor, device="meta"))
            return torch.zeros_like(tensor)
        scope.zeros = scope.zeros or iter(zeros_like(scope.case.sources, tensor.device))
        return next(scope.zeros)

    def addresses_of(self, parameters: Sequence[Tensor]) -> Tensor:
        if self.discovers:  # mixed precision casts them as it does for a convolution
            self.consumers |= {id(parameter): {CAST} for parameter in parameters}
        return self._weights.addresses_of(parameters, self.row.device)

    def anchor(self) -> Tensor:
        if self.scope.anchor is None:
            self.scope.anchor = torch.zeros((), device=self.row.device, requires_grad=True)
        return self.scope.anchor

    def parameters_of(self, outputs: Sequence[Tensor], label: str, since: int = -1) -> list[Tensor]:
        """The parameters that results of the current scope depend on; `since`: autograd's number of its first node."""
        try:
            nodes = leaves(outputs, since)
        except ValueError as error:
            raise Unswitchable(
                f"{label} uses a tensor with a gradient that is not among its arguments ({error})"
            ) from None
        found = [leaf for leaf, _ in nodes.values() if id(leaf) in self._weights.gradients]
        for parameter in found:
            self.consumers.setdefault(id(parameter), set()).update(
                "" if node is None else node.name() for node in nodes[id(parameter)][1]
            )
            if self._depths.setdefault(id(parameter), self.scope.depth) != self.scope.depth:
                raise Refused(f"parameter {self._name_of(parameter)} is used inside and outside a choice")
        return found

    def grad(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor], scope: Scope
    ) -> Sequence[Tensor | None]:
        if self.switch is run_all and not self.discovers:
            self._check_copies(outputs)
        anchors = [] if scope.anchor is None else [scope.anchor]
        if not inputs and not anchors:
            return []
        found = torch.autograd.grad(outputs, [*inputs, *anchors], gradients, allow_unused=True)
        return found[: len(inputs)]

    def _check_copies(self, outputs: Sequence[Tensor]) -> None:
        """Refuse weights that are not read where a copy in lower precision is in their place: they get no gradient."""
        for key in leaves(outputs).keys() & self._weights.leaves.keys() if self._weights.leaves else ():
            name = self._name_of(self._weights.leaves[key])
            raise Refused(
                f"a reference to parameter {name} was kept, and mixed precision runs with a copy of it; read it as "
                "an attribute of its layer in every pass"
            )

    def _name_of(self, parameter: Tensor) -> str:
        names = (name for name, other in self._supernet.model.named_parameters() if other is parameter)
        return next(names, f"of shape {tuple(parameter.shape)}, which is not the model's,")

    def leaves_of(self, case: Case) -> list[Tensor]:
        return [self._weights.leaves.get(id(p), p) for p in case.parameters]

    def gradients_of(self, case: Case) -> list[Tensor]:
        return [self._weights.gradients[id(p)] for p in case.parameters]
