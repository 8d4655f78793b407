"""An iteration of one-shot search as one CUDA graph, which reads the architectures from device memory.

The graph holds both training passes with their gradients, clipping, the weight update and both judging passes. A step
sends the positions of the candidates' values and the learning rates, copies the batches, launches the graph, and
reads the losses and the metrics.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from asng.nas import _distributed, _switch
from asng.nas._batch import StaticBatch
from asng.nas._branch import SplitGroups
from asng.nas._candidates import Judge, LossFn, Numbers, Outcome, split_metrics, to_outcome
from asng.nas._cases import Case, Columns, Refused, Unswitchable, running_modules
from asng.nas._checks import unwrap
from asng.nas._trace import CAST, MAX_CASES, Switch, Trace, run_all, run_one
from asng.nas._update import WeightUpdate, unsupported_reason
from asng.nas.supernet import Supernet, Values

MAX_CAPTURES = 4  # of one search; each takes as long as many steps
Fork = Callable[[Sequence[Callable[[], None]]], None]


def in_turn(branches: Sequence[Callable[[], None]]) -> None:
    """Run branches without a graph: one after another."""
    for branch in branches:
        branch()


class Iteration:
    """One iteration with open architectures: prepared once, then run as often as wanted.

    On the CPU it runs eagerly and equals the plain path bit for bit; on CUDA `capture` makes a graph of it.

    Args:
        supernet: The model, in training mode.
        optimizer: Of the weights, one that `unsupported_reason` has nothing against.
        loss_fn: As that of `OneShot`.
        n: Candidates in each half.
        judge: As that of `OneShot`.
        max_grad_norm: Of the gradient of the weights.
        amp_dtype: Type of mixed precision.
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
    ) -> None:
        self._supernet, self._n, self._amp_dtype = supernet, n, amp_dtype
        self._functions = {"train": loss_fn, "valid": judge or loss_fn}
        self.update = WeightUpdate(optimizer, max_grad_norm, n)
        self._device = self.update.groups[0].gradient.device
        self._metrics: dict[str, list[str]] = {"train": [], "valid": []}  # their names
        self._surroundings: list[nn.Module] = []  # that are switches in place of modules inside them
        self._discovers = False
        self._graph: _switch.BranchingGraph | None = None

    # Before the first step.

    def prepare(self, train_batch: Any, valid_batch: Any) -> None:
        """Find all switches by a dry run on batches of the shapes to come; leaves weights, statistics, RNG alone."""
        self._batches = {
            "train": StaticBatch(train_batch, self._device),
            "valid": StaticBatch(valid_batch, self._device),
        }
        self._buffers = [
            (module, name, buffer)
            for module in self._supernet.paths
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        synchronizes = _switch.refuse_synchronization() if self._device.type == "cuda" else nullcontext()
        with self._preserve(), synchronizes:
            while not self._discover():
                pass  # with one more module that is a switch
            if self._amp_dtype is not None:
                self.update.keep_low(self._amp_dtype, self._only_cast())
            self._allocate(len(self._columns))
            if self._device.type == "cuda":  # with these copies: libraries load kernels at their first use
                self._run(run_all, in_turn)
        if self._device.type == "cuda":
            graph = _switch.BranchingGraph(self._device)
            with self._preserve(), graph.dry_run():
                self._run(graph.switch, graph.fork)

    def _discover(self) -> bool:
        """Find the switches of both passes; returns False where a module has to be a switch that was none."""
        self._columns = Columns(self._supernet)
        self._passes = {"train": Case(), "valid": Case()}
        self._allocate(0)
        self._discovers = True
        try:
            self._run(run_all, in_turn)
            self._check_buffers()
        except Unswitchable as error:
            around = _module_around(error, self._supernet)
            if around is None:
                raise
            if around in self._surroundings:
                label = self._supernet.paths[around] or "the model"
                raise Refused(f"{label} has more than {MAX_CASES} cases, and {error}") from None
            self._surroundings.append(around)
            return False
        finally:
            self._discovers = False
        return True

    @property
    def unread(self) -> list[str]:
        """The decisions that no pass reads."""
        return sorted(self._columns.unread)

    def _check_buffers(self) -> None:
        """Refuse a pass that makes new buffers: a graph would write into the same ones, and read the first ones."""
        for module, name, buffer in self._buffers:
            if module._buffers[name] is not buffer:
                path = self._supernet.paths[module] or "the model"
                raise Refused(f"{path} replaces its buffer {name!r}; write into it, such as by {name}.copy_(...)")

    def _only_cast(self) -> set[int]:
        """The weights of which mixed precision uses nothing but copies in lower precision."""
        layers = [m for m in self._supernet.paths if isinstance(m, (nn.modules.conv._ConvNd, nn.Linear))]
        held = {id(parameter) for layer in layers for parameter in layer._parameters.values()}
        return {key for key, names in self._consumers.items() if key in held and names == {CAST}}

    def _allocate(self, columns: int) -> None:
        """The numbers that come in, with what they are sent from, and the losses and metrics that go out."""
        rows = 2 * self._n
        lrs = 2 * len(self.update.groups)  # float64, each in the place of two int32
        self._inputs = torch.zeros(lrs + rows * columns, dtype=torch.int32, device=self._device)
        self._sent = torch.zeros_like(self._inputs, device="cpu")
        if self._device.type == "cuda":
            self._sent = self._sent.pin_memory()
        self._lrs = self._inputs[:lrs].view(torch.float64)
        self._rows = self._inputs[lrs:].view(rows, columns)
        metrics = max(map(len, self._metrics.values()))
        self._outputs = torch.zeros(rows, 1 + metrics, dtype=torch.float64, device=self._device)

    @contextmanager
    def _preserve(self) -> Iterator[None]:
        """Restore parameters, buffers, momentum and RNG state on exit."""
        model = self._supernet.model
        kept = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers(), *self.update.tensors())}
        before = [tensor.detach().clone() for tensor in kept.values()]
        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, old in zip(kept.values(), before, strict=True):
                        tensor.copy_(old)
                for module, name, buffer in self._buffers:
                    module._buffers[name] = buffer

    def capture(self) -> None:
        """Make a graph of the iteration."""
        graph = _switch.BranchingGraph(self._device)
        with graph.capture():
            self._run(graph.switch, graph.fork)
        self._graph = graph

    # A step.

    def fits(self, train_batch: Any, valid_batch: Any) -> bool:
        return self._batches["train"].fits(train_batch) and self._batches["valid"].fits(valid_batch)

    def find_change(self, train_batch: Any, valid_batch: Any) -> str | None:
        """Return what else than the numbers of tensors changed in batches of the same shapes."""
        return self._batches["train"].find_change(train_batch) or self._batches["valid"].find_change(valid_batch)

    def step(
        self, train: Sequence[Values], train_batch: Any, valid: Sequence[Values], valid_batch: Any
    ) -> tuple[list[Numbers], list[Numbers]]:
        """The numbers of the training and of the judging passes."""
        lrs = torch.tensor(self.update.lrs, dtype=torch.float64)
        rows = torch.tensor([self._columns.encode(values) for values in (*train, *valid)], dtype=torch.int32)
        torch.cat([lrs.view(torch.int32), rows.flatten()], out=self._sent)
        self._inputs.copy_(self._sent, non_blocking=True)
        self._batches["train"].copy_(train_batch)
        self._batches["valid"].copy_(valid_batch)
        self.update.refresh()
        if self._graph is None:
            self._run(run_one, in_turn)
        else:
            self._graph.replay()
        outputs = self._outputs.tolist()  # the only wait
        return self._numbers("train", outputs[: self._n]), self._numbers("valid", outputs[self._n :])

    def _numbers(self, kind: str, rows: list[list[float]]) -> list[Numbers]:
        return [Numbers(row[0], dict(zip(self._metrics[kind], row[1:], strict=False))) for row in rows]

    def _run(self, switch: Switch, fork: Fork) -> None:
        passes = range(1 if switch is run_all else self._n)  # they are alike
        self.update.begin()
        fork([partial(self._train_pass, number, switch) for number in passes])
        self.update.step(self.update.lrs if self._device.type == "cpu" else self._lrs.unbind())
        fork([partial(self._judging_pass, number, switch) for number in passes])

    def _train_pass(self, number: int, switch: Switch) -> None:
        trace, loss = self._run_pass("train", number, number, switch)
        if not loss.requires_grad:
            raise Refused("the loss has no gradient")  # the plain path says more
        trace.backward(loss / self._n)

    @torch.no_grad()
    def _judging_pass(self, number: int, switch: Switch) -> None:
        self._run_pass("valid", self._n + number, number, switch)

    def _run_pass(self, kind: str, row: int, number: int, switch: Switch) -> tuple[Trace, Tensor]:
        """Run a pass and write its numbers; returns its loss, with an autograd graph."""
        root, weights, discovers = self._passes[kind], self.update.weights[number], self._discovers
        inputs = self._columns, switch, root, self._rows[row], weights
        trace = Trace(self._supernet, *inputs, self._surroundings, discovers)
        if discovers and kind == "train":
            self._consumers = trace.consumers
        # Casts of weights must not be shared: the one that made them may be in a case that does not run.
        precision = torch.autocast(
            self._device.type, dtype=self._amp_dtype, enabled=self._amp_dtype is not None, cache_enabled=False
        )
        groups = SplitGroups() if self._device.type == "cuda" else nullcontext()
        with trace.run(), precision, groups:
            returned = self._functions[kind](self._supernet.model, self._batches[kind].batch)
        if not isinstance(split_metrics(returned)[0], Tensor):
            name = "the loss" if kind == "train" else "the judge"
            raise Refused(f"{name} returns a number of Python, which a graph would not compute again; return a tensor")
        outcome = to_outcome(returned)
        self._write(kind, row, outcome.detach())
        return trace, outcome.loss

    def _write(self, kind: str, row: int, outcome: Outcome) -> None:
        if self._discovers:  # there is no room for metrics yet
            self._metrics[kind] = list(outcome.metrics)
            return
        if list(outcome.metrics) != self._metrics[kind]:
            raise Refused(f"the metrics change from {self._metrics[kind]} to {list(outcome.metrics)}")
        for target, value in zip(self._outputs[row], (outcome.loss, *outcome.metrics.values()), strict=False):
            target.copy_(value) if isinstance(value, Tensor) else target.fill_(value)


class CapturedStep:
    """The iterations of a `OneShot` as a graph, captured at the first one; says once why it cannot be.

    Args:
        supernet: The model.
        make_iteration: (candidates in each half) -> an iteration that is not prepared yet.
        find_obstacle: () -> what is against it before anything is tried, or None.
    """

    def __init__(
        self,
        supernet: Supernet,
        make_iteration: Callable[[int], Iteration],
        find_obstacle: Callable[[], str | None],
    ) -> None:
        self._supernet, self._make_iteration, self._find_obstacle = supernet, make_iteration, find_obstacle
        self._iteration: Iteration | None = None
        self._captures = 0
        self._refused = self._warned_of_plain = False
        self.cost: dict[str, float] = {}  # of the last capture
        self._is_current = False  # the iteration knows which weights are touched, and their momentum

    def step(
        self, train: Sequence[Values], train_batch: Any, valid: Sequence[Values], n: int, valid_batch: Any
    ) -> tuple[list[Numbers], list[Numbers]] | None:
        """The numbers of the candidates; None where the plain path has to run them.

        `n` candidates were drawn for each half; those that are left of the second ones are judged.
        """
        iteration = None if len(train) != n else self._ready(n, train_batch, valid_batch)
        if iteration is None:
            self.leave()
            return None
        if not self._is_current:
            iteration.update.load()
            self._is_current = True
        padded = [*valid, *train[: n - len(valid)]]  # in place of those that are not judged
        trained, judged = iteration.step(train, train_batch, padded, valid_batch)
        return trained, judged[: len(valid)]

    def _ready(self, n: int, train_batch: Any, valid_batch: Any) -> Iteration | None:
        """The iteration for such batches, captured if need be."""
        if self._refused:
            return None
        if self._iteration is None or not self._iteration.update.is_as_captured():
            self.store()
            self._iteration = None  # which frees its memory
            self._iteration = self._capture_iteration(n, train_batch, valid_batch)
        if self._iteration is None or self._iteration.fits(train_batch, valid_batch):
            return self._iteration
        if reason := self._iteration.find_change(train_batch, valid_batch):
            self.store()
            self._iteration, self._is_current = None, False
            self._refuse(reason, stacklevel=6)
        return None

    @property
    def unread(self) -> list[str]:
        """The decisions that the captured step does not read."""
        return [] if self._iteration is None else self._iteration.unread

    def store(self) -> None:
        """Leave gradients and momentum where the plain path and checkpoints look for them."""
        if self._iteration is not None and self._is_current:
            self._iteration.update.store()

    def leave(self) -> None:
        """Let the plain path run a step."""
        self.store()
        self._is_current = False

    def run_plain(self, reason: str) -> None:
        """Let the plain path run a step that is never captured; warns once."""
        self.leave()
        if not self._refused and not self._warned_of_plain:
            self._warned_of_plain = True
            warnings.warn(f"the step is not captured as a CUDA graph, but runs as usual: {reason}", stacklevel=5)

    def forget(self) -> None:
        """Take over gradients and momentum before the next step: they were loaded."""
        self._is_current = False

    def _capture_iteration(self, n: int, train_batch: Any, valid_batch: Any) -> Iteration | None:
        if self._captures == MAX_CAPTURES:
            reason = f"it was captured {MAX_CAPTURES} times, as the optimizer's settings or the weights' memory change"
        else:
            reason = self._find_obstacle() or ""
        if not reason:
            self._captures += 1
            start, reserved = time.perf_counter(), torch.cuda.memory_reserved()
            try:
                iteration = self._make_iteration(n)
                iteration.prepare(train_batch, valid_batch)
                iteration.capture()
                self._is_current = False
                gigabytes = (torch.cuda.memory_reserved() - reserved) / 1e9
                self.cost = {"capture_seconds": time.perf_counter() - start, "capture_gb": gigabytes}
                return iteration
            except _switch.BrokenCapture:
                raise
            except Exception as error:  # what is wrong with the model itself, the plain path raises again
                reason = _explain(error, self._supernet)
        self._refuse(reason, stacklevel=7)
        return None

    def _refuse(self, reason: str, *, stacklevel: int) -> None:
        self._refused = True
        warnings.warn(f"the step is not captured as a CUDA graph, but runs as usual: {reason}", stacklevel=stacklevel)


def _explain(error: Exception, supernet: Supernet) -> str:
    """An error in one line, and the module in which it was raised."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, Refused):
        return reason
    modules = running_modules(error, supernet)
    where = f"{supernet.paths[modules[-1]] or 'the model'} ({type(modules[-1]).__name__})" if modules else "the loss"
    return f"{reason} (in {where})"


def find_obstacle(model: nn.Module, optimizer: torch.optim.Optimizer, amp_dtype: torch.dtype | None) -> str | None:
    """Return why the steps of a model, perhaps in a wrapper, cannot be captured; None if nothing is known."""
    devices = {parameter.device for group in optimizer.param_groups for parameter in group["params"]}
    if {device.type for device in devices} != {"cuda"} or len(devices) > 1:
        return f"the weights are on {', '.join(sorted(map(str, devices)))}, and not on one CUDA device"
    if unwrap(model) is not model:
        return f"the model is wrapped in {type(model).__name__}"
    if _distributed.is_distributed():
        return "there are several processes"
    if amp_dtype is torch.float16:
        return "gradients are scaled, as float16 needs it"
    return unsupported_reason(optimizer) or _switch.unavailable_reason()


def _module_around(error: Unswitchable, supernet: Supernet) -> nn.Module | None:
    """The module that called the one that cannot be a switch, or that read a decision; None where the loss did."""
    around = None
    for module in running_modules(error, supernet):
        if module is error.module:
            break
        around = module
    return around
