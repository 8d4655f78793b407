"""One iteration of one-shot search (Algorithm 1 of the paper): weights first, then the distribution.

Started by torchrun, the candidates are dealt out over the processes. All of them draw the same
candidates and are told the same losses, so theta is equal everywhere without being sent.
"""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from asng import checkpoints
from asng.asktell import AskTell, Candidate
from asng.nas import processes
from asng.nas._outcome import FAILED, LossFn, Numbers, Outcome, read_numbers, to_outcome
from asng.nas.cost import FEASIBLE, Costs, Limit, Violation
from asng.nas.failures import Failures
from asng.nas.modes import set_training
from asng.nas.requirements import check, check_one_optimizer
from asng.nas.selection import paths_of
from asng.nas.unread import Unread
from asng.nas.wrappers import check_not_ddp, is_compiled, unwrap

Batch = Any
Loss = LossFn

TRIES = 16  # draws per candidate in search of one inside the limits
BEHIND = 1e300  # told for candidates behind all with a finite loss; above any loss, and never mistaken for one


@dataclass(frozen=True)
class Step:
    """What one iteration did."""

    train_losses: tuple[float, ...]  # of the candidates for the weights; inf: out of memory; none if all were outside
    valid_losses: tuple[float | None, ...]  # of the candidates that moved the distribution; None: outside, not run
    train_metrics: tuple[dict[str, float], ...]  # one mapping per candidate; empty without metrics and for those that
    valid_metrics: tuple[dict[str, float], ...]  # ran out of memory or are infeasible
    candidates: tuple[dict[str, Any], ...]  # the values of these candidates
    excess: tuple[float, ...]  # how far outside of the limits each of them is; 0 inside

    @property
    def train_loss(self) -> float:
        """The mean of the finite losses that moved the weights; NaN if there are none."""
        return finite_mean(self.train_losses)

    @property
    def valid_loss(self) -> float:
        """The mean of the finite losses that moved the distribution; NaN if there are none."""
        return finite_mean(self.valid_losses)


def finite_mean(numbers: Iterable[float | None]) -> float:
    """The mean of those that are there and finite; NaN if there are none.

    >>> finite_mean([1.0, None, math.inf, 3.0])
    2.0
    """
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    return sum(finite) / len(finite) if finite else math.nan


class OneShot:
    """Alternates between the weights of a model with decisions and the distribution of its architecture.

    model       any module with decisions, on the device where it is trained; also what torch.compile or
                DataParallel made of it, which the loss is then given. DDP and FSDP are refused
    optimizer   ASNG, or a baseline, over `space_of(model)`
    weights     any torch optimizer of the model's parameters
    loss        (model, batch) -> scalar tensor, or (loss, metrics) with a mapping of names to numbers or scalar
                tensors, which steps return; runs the model as it is selected
    clip_norm   the largest norm of the gradient of the weights
    limits      hard limits on costs: candidates outside are never run, and ranked behind all inside
    amp         torch.bfloat16 or torch.float16 for mixed precision; float16 with scaled gradients
    leave_out   leave variables without effect on a candidate out of its gradient (not the paper's way)
    capture     run each step as one CUDA graph; where that cannot be, a warning says why, and steps run as usual

    Both halves run the model in training mode, so batch norm uses the statistics of the batch; parts that
    were put into evaluation mode by hand, or by the model's own `train()`, stay in it. Running statistics
    mix those of all candidates and have no effect on the search: an extracted network needs
    `recalibrate`. A gradient that is not finite leaves the weights as they are; losses that are not
    finite are worst. A candidate that runs out of memory is worst, too, its gradient is dropped from the
    mean, and a warning names it; after five steps in a row in which every candidate failed, there is an
    error. A warning names decisions that nothing reads.

    Several processes (torch.distributed, set up before) all have to pass the same batches. They begin
    with the weights, the buffers and the state of the first. Each has the running statistics of the
    candidates that it ran itself.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: AskTell,
        weights: torch.optim.Optimizer,
        loss: Loss,
        *,
        clip_norm: float | None = None,
        limits: Sequence[Limit] = (),
        amp: torch.dtype | None = None,
        leave_out: bool = False,
        capture: bool = False,
    ) -> None:
        check_one_optimizer(weights)
        paths = paths_of(model)
        check_not_ddp(paths)
        self.model, self.optimizer, self.weights = unwrap(model), optimizer, weights
        self._loss, self._leave_out, self._amp = loss, leave_out, amp
        self._as_given = model  # in a wrapper of torch.compile or DataParallel, perhaps
        self.costs = Costs(self.model, limits)
        self.decisions = self.costs.decisions
        self._parameters = [p for group in weights.param_groups for p in group["params"]]
        check(self.decisions, optimizer, weights)
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm must be above 0, or None for no clipping, got {clip_norm!r}")
        if amp not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"amp must be torch.bfloat16, torch.float16 or None, got {amp}")
        self._clip_norm = math.inf if clip_norm is None else clip_norm
        self.device = self._parameters[0].device
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=amp is torch.float16)
        self._failures = Failures(self.device)
        self._rank, self._ranks = processes.rank_and_ranks()
        self._begin_alike()
        watched = self._rank == 0 and not any(map(is_compiled, paths))
        self._unread = Unread(self.decisions) if watched else None
        if self.model.training:
            set_training(self.model)
        self._captured = None
        if capture:
            from asng.nas._capture import CapturedStep

            wrapper = None if model is self.model else type(model).__name__
            max_norm = self._clip_norm
            self._captured = CapturedStep(self.decisions, weights, loss, max_norm=max_norm, amp=amp, wrapper=wrapper)

    def step(self, train_batch: Batch, valid_batch: Batch) -> Step:
        """One iteration: all candidates of a half see the same batch. The model stays selected as it was."""
        with self.decisions.kept():
            return self._step(train_batch, valid_batch)

    @property
    def out_of_memory(self) -> bool:
        """Whether every candidate of a half of the last step ran out of memory."""
        return self._failures.steps > 0

    def _step(self, train_batch: Batch, valid_batch: Batch) -> Step:
        if not self.model.training:
            self.model.train()
        drawn, candidates = self._draw_inside(), self.optimizer.ask()
        violations = [self.violation(candidate.values) for candidate in candidates]
        excess = [violation.relative for violation in violations]
        inside = [candidate for candidate, far in zip(candidates, excess, strict=True) if not far]
        done = None
        if self._captured is not None:
            train, valid = [c.values for c in drawn], [c.values for c in inside]
            done = self._captured.step(train, train_batch, valid, len(candidates), valid_batch)
        trained, judged = self._plain_step(drawn, train_batch, inside, valid_batch) if done is None else done
        losses, metrics = iter(judged.losses), iter(judged.metrics)
        every = [None if far else next(losses) for far in excess]
        self._tell(candidates, every, violations)
        if done is None and self._unread is not None and self._unread.end_step():
            self._unread = None
        return Step(
            train_losses=tuple(trained.losses),
            valid_losses=tuple(every),
            train_metrics=tuple(trained.metrics),
            valid_metrics=tuple({} if far else next(metrics) for far in excess),
            candidates=tuple(c.values for c in candidates),
            excess=tuple(excess),
        )

    def _plain_step(
        self, drawn: list[Candidate], train_batch: Batch, inside: list[Candidate], valid_batch: Batch
    ) -> tuple[Numbers, Numbers]:
        """The numbers of the candidates drawn for the weights, and of those that are judged."""
        outcomes, none_trained = self._train(drawn, train_batch)
        trained, judged, failed = read_numbers(outcomes, self._judge(inside, valid_batch), self.device)
        self._failures.end_step(none_trained or 0 < failed == len(inside))
        return trained, judged

    def _train(self, candidates: list[Candidate], batch: Batch) -> tuple[list[Outcome | None], bool]:
        """Move the weights by the mean gradient of candidates drawn for this alone; whether all of them failed."""
        # Weights once touched keep momentum and decay when they are not sampled (paper, section 3.2):
        # their gradient is then zero, not missing.
        before = [parameter.grad for parameter in self._parameters]
        _zero(before)
        try:
            outcomes = self._add_gradients(candidates, batch, before)
        except BaseException:
            self._reset_gradients(before)  # a step that fails touches no weights
            raise
        failed = processes.sum_gradients(self._parameters, [outcome is FAILED for outcome in outcomes])
        good = len(candidates) - sum(failed)
        if good and any(parameter.grad is not None for parameter in self._parameters):
            if good < len(candidates):  # the mean is over the others
                gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
                torch._foreach_mul_(gradients, len(candidates) / good)
            self._scaler.unscale_(self.weights)
            norm = nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
            if self._scaler.is_enabled():  # it leaves the weights alone by itself
                self._scaler.step(self.weights)
                self._scaler.update()
            elif norm.isfinite():
                self.weights.step()
        return outcomes, bool(candidates) and not good

    def _add_gradients(
        self, candidates: list[Candidate], batch: Batch, before: list[Tensor | None]
    ) -> list[Outcome | None]:
        """The outcomes of the candidates of this process, the gradients of which are added up."""
        outcomes: list[Outcome | None] = [None] * len(candidates)
        waiting = [place for place, (_, mine) in enumerate(self._dealt(candidates)) if mine]
        added: list[int] = []
        while waiting:
            place = waiting.pop(0)
            values = candidates[place].values
            outcome = self._failures.attempt(values, self._run, candidates[place], batch)
            outcomes[place] = FAILED if outcome is None else outcome.detach()
            if outcome is None:
                continue
            if self._failures.attempt(values, self._backward, outcome.loss, len(candidates)):
                added.append(place)
            else:  # a part of its gradient is in the sum: add up the others again
                outcomes[place], outcome = FAILED, None
                self._reset_gradients(before)
                waiting, added = added + waiting, []
        return outcomes

    def _backward(self, loss: Tensor, candidates: int) -> bool:
        """Add a candidate's share to the gradient."""
        if self._has_gradient(loss):
            self._scaler.scale(loss / candidates).backward()  # type: ignore[no-untyped-call]
        return True

    def _reset_gradients(self, before: list[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, before, strict=True):
            parameter.grad = gradient
        _zero(before)

    def _judge(self, candidates: list[Candidate], batch: Batch) -> list[Outcome | None]:
        """The outcomes of the candidates of this process."""
        outcomes: list[Outcome | None] = [None] * len(candidates)
        with torch.no_grad():
            for place, (candidate, mine) in enumerate(self._dealt(candidates)):
                if mine:
                    outcome = self._failures.attempt(candidate.values, self._run, candidate, batch)
                    outcomes[place] = FAILED if outcome is None else outcome
        return outcomes

    def _draw_inside(self) -> list[Candidate]:
        candidates = self.optimizer.ask()
        if not self.costs.limits:
            return candidates
        wanted = len(candidates)
        inside = [c for c in candidates if not self.excess(c.values)]
        for _ in range(TRIES * wanted):
            if len(inside) == wanted:
                break
            inside += [c for c in self.optimizer.ask(1) if not self.excess(c.values)]
        return inside

    def _dealt(self, candidates: Sequence[Candidate]) -> list[tuple[Candidate, bool]]:
        """Candidates, and whether this process runs them."""
        return [(candidate, place % self._ranks == self._rank) for place, candidate in enumerate(candidates)]

    def _run(self, candidate: Candidate, batch: Batch) -> Outcome:
        """The loss and the metrics of a candidate."""
        self.decisions.choose(candidate.values)
        try:
            with (
                torch.autocast(self.device.type, dtype=self._amp, enabled=self._amp is not None),
                nullcontext() if self._unread is None else self._unread.watching(candidate.values),
            ):
                returned = self._loss(self._as_given, batch)
        except Exception as error:
            error.add_note(f"in the architecture {candidate.values}")
            if "Expected more than 1 value per channel when training" in str(error):
                error.add_note(
                    "batch norm needs more than one row, also of batches to validate, as candidates are judged in "
                    "training mode; leave out a last batch of one row, as DataLoader(..., drop_last=True) does"
                )
            raise
        return to_outcome(returned)

    def _has_gradient(self, loss: Tensor) -> bool:
        """False for an architecture without weights, which is fine; an error for a loss that lost its gradient."""
        if not loss.requires_grad and any(
            parameter.requires_grad
            for module in self.decisions.running()
            for parameter in module.parameters(recurse=False)
        ):
            if not loss.is_floating_point():
                raise ValueError(
                    f"the loss to train on is a tensor of {loss.dtype}, which has no gradient; return floating point "
                    "numbers, and counts as metrics beside them: return loss, {'errors': count}"
                )
            raise ValueError("the loss does not depend on the weights; is there a detach(), item() or no_grad() in it?")
        return loss.requires_grad

    def excess(self, values: Mapping[str, Any]) -> float:
        """How far an architecture is outside of the first limit that it violates; 0 inside of all."""
        return self.violation(values).relative

    def violation(self, values: Mapping[str, Any]) -> Violation:
        """How an architecture misses the limits. The first process measures for all."""
        if not self.costs.limits:
            return FEASIBLE
        if self._ranks > 1:
            self._share_costs(values)
        return self.costs.violation(values)

    def _tell(self, candidates: list[Candidate], losses: list[float | None], violations: list[Violation]) -> None:
        """Inside by loss, then inside without a finite loss, then outside by violation."""
        told = [math.inf if loss is None else loss for loss in losses]
        if any(violation != FEASIBLE for violation in violations):
            steps = sorted({FEASIBLE, *violations})
            finite = [math.isfinite(number) for number in told]
            told = [
                number if good else BEHIND * (1 + steps.index(violation))
                for number, good, violation in zip(told, finite, violations, strict=True)
            ]
        active = [self.decisions.active(c.values) for c in candidates] if self._leave_out else None
        self.optimizer.tell(candidates, told, active=active)

    # Several processes.

    def _begin_alike(self) -> None:
        """Weights, buffers and both optimizers' states of the first process for all."""
        if self._ranks > 1:
            processes.take_first_ones([*self._parameters, *self.model.parameters(), *self.model.buffers()])
            optimizer, weights = processes.first_ones((self.optimizer.state_dict(), self.weights.state_dict()))
            self.optimizer.load_state_dict(optimizer)
            self.weights.load_state_dict(weights)

    def _share_costs(self, values: Mapping[str, Any]) -> None:
        """What the first process measured is known to all."""
        key = self.costs.key(values)
        if not self.costs.is_whole(self.costs.known.get(key, ())):
            costs = self.costs.of(values) if self._rank == 0 else None
            self.costs.remember(key, processes.first_ones(costs))

    # State.

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on but torch's random numbers; loads with `weights_only=True`."""
        if self._captured is not None:
            self._captured.store()
        return {
            "model": self.model.state_dict(),
            "weights": self.weights.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "touched": [parameter.grad is not None for parameter in self._parameters],
            "limits": [limit.name for limit in self.costs.limits],
            "costs": self.costs.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of a OneShot made in the same way; raises ValueError, changing nothing."""
        before = copy.deepcopy(self.weights.state_dict()), self.optimizer.state_dict()
        try:
            _same_shapes(state["model"], self.model.state_dict())
            if len(state["touched"]) != len(self._parameters):
                raise ValueError(f"it has {len(state['touched'])} parameters, this one {len(self._parameters)}")
            limits = [limit.name for limit in self.costs.limits]
            if state["limits"] != limits:  # their numbers may differ
                raise ValueError(f"its limits are on {state['limits']}, these on {limits}")
            self.costs.read(state["costs"])  # raises where it is damaged
            self.optimizer.load_state_dict(state["optimizer"])
            self.weights.load_state_dict(state["weights"])
            self._scaler.load_state_dict(state["scaler"])
            self.model.load_state_dict(state["model"])
        except Exception as error:  # whatever a foreign state makes of its readers
            self.weights.load_state_dict(before[0])
            self.optimizer.load_state_dict(before[1])
            raise ValueError(f"the state does not fit: {checkpoints.reason(error)}") from None
        self.costs.load_state_dict(state["costs"])
        # A weight that was touched has a gradient, zero between steps, so that it goes on decaying.
        for parameter, touched in zip(self._parameters, state["touched"], strict=True):
            parameter.grad = torch.zeros_like(parameter) if touched else None
        if self._captured is not None:
            self._captured.forget()


def _zero(gradients: list[Tensor | None]) -> None:
    there = [gradient for gradient in gradients if gradient is not None]
    if there:
        torch._foreach_zero_(there)


def _same_shapes(there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    for name in {**there, **here}:
        size, wanted = (getattr(s[name], "shape", None) if name in s else "absent" for s in (there, here))
        if size != wanted:
            raise ValueError(f"{name} is {_plain(size)} there, {_plain(wanted)} here")


def _plain(size: Any) -> Any:
    return tuple(size) if isinstance(size, torch.Size) else size
