"""An iteration of one-shot search with open architectures: what a CUDA graph holds.

It has both training passes with their gradients, clipping, the weight update and both judging passes. A step sends the
positions of the candidates' values and the learning rates, copies the batches, launches the graph, and reads the
losses and the metrics. Under limits there may be fewer candidates than passes: a switch around each pass leaves out
those that have none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from asng.fused._compile import compile_ahead
from asng.nas._candidates import Judge, LossFn, Numbers, Outcome, split_metrics, to_outcome
from asng.nas._capture import masked
from asng.nas._capture import switch as _switch
from asng.nas._capture.branch import RefuseEffects, SplitGroups, Weights
from asng.nas._capture.cases import (
    Case,
    Columns,
    Refused,
    StaticBatch,
    Unswitchable,
    close_frames,
    first_line,
    free_memory,
)
from asng.nas._capture.effects import Effects
from asng.nas._capture.mask_check import check_masks
from asng.nas._capture.static_numbers import StaticNumbers
from asng.nas._capture.trace import CAST, MAX_CASES, Switch, Trace, run_all, run_one
from asng.nas._capture.update import WeightUpdate
from asng.nas._notes import running_modules
from asng.nas._preserve import preserve_rng
from asng.nas.layers import ElasticLayer
from asng.nas.supernet import Supernet, Values

ForkFn = Callable[[Sequence[Callable[[], None]]], None]


def run_in_turn(branches: Sequence[Callable[[], None]]) -> None:
    """Run branches without a graph: one after another."""
    for branch in branches:
        branch()


class Iteration:
    """One iteration with open architectures: prepared once, then run any number of times.

    On the CPU it runs eagerly and equals the plain path bit for bit; on CUDA `capture` makes a graph of it.

    Args:
        supernet: The model, in training mode.
        optimizer: Of the weights, one that `unsupported_reason` has nothing against.
        loss_fn: As that of `OneShot`.
        n: Candidates in each half.
        judge: As that of `OneShot`.
        max_grad_norm: Of the gradient of the weights.
        amp_dtype: Type of mixed precision.
        limited: Whether there may be fewer candidates than `n`.
    """

    def __init__(
        self,
        supernet: Supernet,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFn,
        n: int,
        *,
        judge: Judge | None = None,
        max_grad_norm: float,
        amp_dtype: torch.dtype | None,
        limited: bool = False,
    ) -> None:
        self._supernet, self._n, self._amp_dtype = supernet, n, amp_dtype
        self._functions = {"train": loss_fn, "valid": judge or loss_fn}
        self._limited = limited
        self.update = WeightUpdate(optimizer, max_grad_norm, n)
        self._device = self.update.groups[0].gradient.device
        self._metrics: dict[str, list[str]] = {"train": [], "valid": []}  # their names
        self._surroundings: list[nn.Module] = []  # that are switches in place of modules inside them
        self._masked: list[ElasticLayer] = []  # that run with masks
        self._discovers = False
        self._graph: _switch.BranchingGraph | None = None

    # Before the first step.

    def prepare(self, train_batch: Any, valid_batch: Any) -> None:
        """Find all switches by a dry run on batches of the shapes to come; leaves weights, statistics, RNG alone."""
        self._batches = {
            "train": StaticBatch(train_batch, self._device),
            "valid": StaticBatch(valid_batch, self._device),
        }
        self._effects = Effects(self._supernet, self._functions.values(), self._device)
        is_on_cuda = self._device.type == "cuda"
        without_syncs = _switch.refuse_synchronization if is_on_cuda else nullcontext
        with self._preserve(), self._effects.put_back_if_refused():
            with without_syncs(), compile_ahead():
                self._find_switches()
            if self._masked:
                self._allocate(len(self._columns))
                check_masks(self._supernet, self._batches.values(), self._run_masked, self._run_selected)
            if self._amp_dtype is not None:
                self.update.build(self._amp_dtype, self._only_cast())
            self._allocate(len(self._columns))
            # Once with these copies: libraries load kernels at their first use, or choose them by times.
            with without_syncs(), _switch.refuse_waits(), self._effects.refuse_replacements():
                with compile_ahead() as skipped:
                    self._run(run_all, run_in_turn)
                if skipped:
                    self._run(run_all, run_in_turn)
        if is_on_cuda:
            self._try_capture(with_passes=False)  # which also sends what passes need and a graph cannot
            if self._limited:
                self._try_capture(with_passes=True)
        # A graph reads their memory also after others have taken their place, as by batches of another shape.
        self._held = self._effects.held_tensors()

    def _find_switches(self) -> None:
        """Find the switches; where there are too many cases, with masks for the sizes of elastic layers."""
        try:
            return self._discover_all()
        except Refused as error:
            self._masked, refusal = masked.find_layers(self._supernet), str(error)
            if not self._masked:
                raise
            close_frames(error)
        free_memory()
        self._surroundings.clear()
        try:
            self._discover_all()
        except torch.OutOfMemoryError:
            raise
        except Exception as other:  # also where a layer without masks gives less than those with masks take
            reason = first_line(other)
            raise Refused(f"{refusal}; with masks for widths, {reason}" if reason != refusal else reason) from None

    def _discover_all(self) -> None:
        while not self._discover():
            pass  # with one more module that is a switch

    def _run_masked(self, values: Values) -> tuple[Mapping[int, Tensor], Tensor]:
        """Run passes as a graph would; returns the gradients by the ids of parameters, and the losses and metrics."""
        rows = self._io.rows
        rows[0] = rows[self._n] = torch.tensor(self._columns.encode(values), dtype=torch.int32)
        parameters = [parameter for flat in self.update.groups for parameter in flat.parameters]
        weights, own = self.update.weights, Weights({id(p): torch.zeros_like(p) for p in parameters}, {})
        self.update.weights = [own, *weights[1:]]
        try:
            self._train_pass(0, run_one)
            self._judging_pass(0, run_one)
        finally:
            self.update.weights = weights
        return own.gradients, self._io.outputs

    def _run_selected(self, values: Values) -> tuple[Mapping[int, Tensor], Tensor]:
        """The same by the passes of the plain path."""
        parameters = [p for flat in self.update.groups for p in flat.parameters if p.requires_grad]
        model = self._supernet.model
        with self._supernet.select_temporarily(values), self._autocast():
            outcome = to_outcome(self._functions["train"](model, self._batches["train"].batch))
            found = torch.autograd.grad(outcome.loss / self._n, parameters, allow_unused=True)
            with torch.no_grad():
                judged = to_outcome(self._functions["valid"](model, self._batches["valid"].batch))
        self._write("train", 0, outcome.detach())
        self._write("valid", self._n, judged)
        pairs = zip(parameters, found, strict=True)
        gradients = {id(p): torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs}
        return gradients, self._io.outputs

    def _try_capture(self, *, with_passes: bool) -> None:
        """Capture the bodies of switches and drop them, of those around whole passes, too, or of those inside."""
        graph = _switch.BranchingGraph(self._device)
        with self._preserve(), graph.dry_run():
            self._run(graph.switch, graph.fork, graph.switch if with_passes else run_all)

    def _discover(self) -> bool:
        """Find the switches of both passes; returns False where a module has to be a switch that was none."""
        self._columns = Columns(self._supernet)
        self._passes = {"train": Case(), "valid": Case()}
        self._allocate(0)
        self._discovers = True
        try:
            self._run(run_all, run_in_turn)
            self._effects.check()
        except Unswitchable as error:
            around = _module_around(error, self._supernet)
            if around is None:
                raise
            if around in self._surroundings:
                label = self._supernet.paths[around] or "the model"
                raise Refused(f"{label} has more than {MAX_CASES} cases, and {error}") from None
            self._surroundings.append(around)
            close_frames(error)
            return False
        finally:
            self._discovers = False
        return True

    @property
    def unread_decisions(self) -> list[str]:
        """The decisions that no pass reads."""
        return sorted(self._columns.unread_decisions)

    def _only_cast(self) -> set[int]:
        """The weights of which mixed precision uses nothing but copies in lower precision."""
        layers = [m for m in self._supernet.paths if isinstance(m, (nn.modules.conv._ConvNd, nn.Linear))]
        parameters = [p for layer in layers for p in layer._parameters.values() if p is not None]
        held = {id(parameter) for parameter in parameters if not parameter._backward_hooks}
        return {key for key, names in self._consumers.items() if key in held and names == {CAST}}

    def _allocate(self, columns: int) -> None:
        metrics = max(map(len, self._metrics.values()))
        self._io = StaticNumbers(self._n, len(self.update.groups), columns, metrics, self._device)

    @contextmanager
    def _preserve(self) -> Iterator[None]:
        """Restore parameters, their gradients, buffers, momentum and RNG state on exit."""
        model = self._supernet.model
        tensors = (*model.parameters(), *self._effects.buffers(), *self.update.tensors())
        kept = {id(tensor): tensor for tensor in tensors}
        before = [tensor.detach().clone() for tensor in kept.values()]
        gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        for parameter, _ in gradients:
            parameter.grad = None
        with preserve_rng(self._supernet), self._effects.preserve():
            try:
                yield
            finally:
                for parameter, gradient in gradients:
                    parameter.grad = gradient
                with torch.no_grad():
                    for tensor, old in zip(kept.values(), before, strict=True):
                        tensor.copy_(old)

    def capture(self) -> None:
        """Make a graph of the iteration."""
        graph = _switch.BranchingGraph(self._device)
        with graph.capture():
            self._run(graph.switch, graph.fork, graph.switch if self._limited else run_all)
        self._graph = graph

    # A step.

    def fits(self, n: int, train_batch: Any, valid_batch: Any) -> bool:
        """Whether it can run n candidates in each half on batches."""
        return n == self._n and self._batches["train"].fits(train_batch) and self._batches["valid"].fits(valid_batch)

    def find_change(self, n: int, train_batch: Any, valid_batch: Any) -> str | None:
        """Return what changed but the numbers and the shapes of tensors in batches."""
        if n != self._n:
            return f"the candidates of a step change from {self._n} to {n}, and a graph holds a pass for each"
        return self._batches["train"].find_change(train_batch) or self._batches["valid"].find_change(valid_batch)

    def step(
        self, train: Sequence[Values], train_batch: Any, valid: Sequence[Values], valid_batch: Any
    ) -> tuple[list[Numbers], list[Numbers]]:
        """The numbers of the training and of the judging passes, of as many candidates as there are."""
        self._io.send(self.update.lrs, *([self._columns.encode(values) for values in half] for half in (train, valid)))
        self._batches["train"].copy_(train_batch)
        self._batches["valid"].copy_(valid_batch)
        self.update.refresh()
        if self._graph is None:
            self._run(run_one, run_in_turn, run_one)
        else:
            self._graph.replay()
        outputs = self._io.outputs.tolist()  # the only wait
        judged = outputs[self._n : self._n + len(valid)]
        return self._numbers("train", outputs[: len(train)]), self._numbers("valid", judged)

    def _numbers(self, kind: str, rows: list[list[float]]) -> list[Numbers]:
        return [Numbers(row[0], dict(zip(self._metrics[kind], row[1:], strict=False))) for row in rows]

    def _run(self, switch: Switch, fork: ForkFn, pass_switch: Switch = run_all) -> None:
        """Run an iteration; `switch` runs one case of several, `pass_switch` a pass or nothing."""
        passes = range(1 if switch is run_all else self._n)  # they are alike

        def unless_missing(row: int, run_pass: Callable[[], None]) -> Callable[[], None]:
            return partial(pass_switch, self._io.is_missing[row], [run_pass])

        self.update.begin()
        fork([unless_missing(number, partial(self._train_pass, number, switch)) for number in passes])
        self.update.step(self.update.lrs if self._device.type == "cpu" else self._io.lrs.unbind())
        fork([unless_missing(self._n + number, partial(self._judging_pass, number, switch)) for number in passes])

    def _train_pass(self, number: int, switch: Switch) -> None:
        trace = self._trace("train", number, number, switch)
        try:
            loss = self._run_pass("train", number, trace)
            if not loss.requires_grad:
                raise Refused("the loss has no gradient")  # the plain path says more
            trace.backward(loss / (self._io.trained if self._limited else self._n))
        finally:
            trace.scope.forget()  # also where it failed: nothing else would free it

    @torch.no_grad()
    def _judging_pass(self, number: int, switch: Switch) -> None:
        row = self._n + number
        self._run_pass("valid", row, self._trace("valid", row, number, switch))

    def _trace(self, kind: str, row: int, number: int, switch: Switch) -> Trace:
        root, weights = self._passes[kind], self.update.weights[number]
        inputs = self._columns, switch, root, self._io.rows[row], weights
        return Trace(self._supernet, *inputs, self._surroundings, self._masked, self._discovers)

    def _run_pass(self, kind: str, row: int, trace: Trace) -> Tensor:
        """Run a pass and write its numbers; returns its loss, with an autograd graph."""
        if trace.discovers and kind == "train":
            self._consumers = trace.consumers
        groups = SplitGroups() if self._device.type == "cuda" else nullcontext()
        effects = RefuseEffects(self._supernet.model.parameters()) if trace.discovers else nullcontext()
        batch, name = self._batches[kind], "the loss" if kind == "train" else "the judge"
        versions = batch.versions()
        with trace.run(), self._autocast(), groups, effects:
            returned = self._functions[kind](self._supernet.model, batch.batch)
        trace.check_watched()
        if batch.versions() != versions:
            raise Refused(
                f"the model or {name} writes into a batch, which all candidates share; write into a copy of it"
            )
        if not isinstance(split_metrics(returned)[0], Tensor):
            raise Refused(f"{name} returns a Python number, which a graph would not compute again; return a tensor")
        outcome = to_outcome(returned)
        self._write(kind, row, outcome.detach())
        return outcome.loss

    def _autocast(self) -> torch.autocast:
        # Casts of weights must not be shared: the one that made them may be in a case that does not run.
        is_enabled = self._amp_dtype is not None
        return torch.autocast(self._device.type, dtype=self._amp_dtype, enabled=is_enabled, cache_enabled=False)

    def _write(self, kind: str, row: int, outcome: Outcome) -> None:
        if self._discovers:  # there is no room for metrics yet
            self._metrics[kind] = list(outcome.metrics)
            return
        if list(outcome.metrics) != self._metrics[kind]:
            raise Refused(f"the metrics change from {self._metrics[kind]} to {list(outcome.metrics)}")
        for target, value in zip(self._io.outputs[row], (outcome.loss, *outcome.metrics.values()), strict=False):
            target.copy_(value) if isinstance(value, Tensor) else target.fill_(value)


def _module_around(error: Unswitchable, supernet: Supernet) -> nn.Module | None:
    """The module that called the one that cannot be a switch, or that read a decision; None where the loss did."""
    around = None
    for module in running_modules(error, supernet):
        if module is error.module:
            break
        around = module
    return around
