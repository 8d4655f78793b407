"""One iteration of one-shot search (Algorithm 1 of the paper): weights first, then the distribution.

Started by torchrun, the candidates are dealt out over the processes. All of them draw the same
candidates and are told the same losses, so theta is equal everywhere without being sent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from asng.asktell import AskTell, Candidate
from asng.nas.choices import Decisions
from asng.nas.cost import Costs, Limit

Batch = Any
Loss = Callable[[nn.Module, Batch], Tensor]

TRIES = 16  # draws per candidate in search of one inside the limits


@dataclass(frozen=True)
class Step:
    """What one iteration did."""

    train_losses: tuple[float, ...]  # of the candidates that moved the weights; none if all were outside
    valid_losses: tuple[float | None, ...]  # of the candidates that moved the distribution; None: outside, not run
    candidates: tuple[dict[str, Any], ...]  # the values of these candidates
    excess: tuple[float, ...]  # how far outside of the limits each of them is; 0 inside


class OneShot:
    """Alternates between the weights of a model with decisions and the distribution of its architecture.

    model       any module with decisions, on the device where it is trained
    optimizer   ASNG, or a baseline, over `space_of(model)`
    weights     any torch optimizer of the model's parameters
    loss        (model, batch) -> scalar; runs the model as it is selected
    clip_norm   the largest norm of the gradient of the weights
    limits      hard limits on costs: candidates outside are never run, and ranked behind all inside
    amp         torch.bfloat16 or torch.float16 for mixed precision
    leave_out   leave variables without effect on a candidate out of its gradient (not the paper's way)
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
    ) -> None:
        self.model, self.optimizer, self.weights = model, optimizer, weights
        self._loss, self._clip_norm, self._leave_out = loss, clip_norm, leave_out
        self._decisions = Decisions(model)
        if list(self._decisions.space.items()) != list(optimizer.space.items()):
            raise ValueError("the optimizer searches another space than the model's; make it with space_of(model)")
        self._parameters = [p for group in weights.param_groups for p in group["params"]]
        self._device = next(iter(self._parameters)).device
        if amp not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"amp must be torch.bfloat16, torch.float16 or None, got {amp}")
        self._amp = amp
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=amp is torch.float16)
        self._costs = Costs(model, limits)
        self._limited = bool(limits)
        self._known: dict[str, float] = {}
        self._ranks, self._rank = (dist.get_world_size(), dist.get_rank()) if _distributed() else (1, 0)
        if self._ranks > 1:
            self._begin_alike()

    def step(self, train_batch: Batch, valid_batch: Batch) -> Step:
        """One iteration: all candidates of a half see the same batch."""
        self.model.train()
        train = self._train(train_batch)
        candidates = self.optimizer.ask()
        excess = [self.excess(candidate.values) for candidate in candidates]
        inside = [candidate for candidate, far in zip(candidates, excess, strict=True) if not far]
        losses, told = self._gathered(self._losses(inside, valid_batch), train)
        after = iter(told)
        every = [None if far else next(after) for far in excess]
        self._tell(candidates, every, excess)
        return Step(tuple(losses), tuple(every), tuple(c.values for c in candidates), tuple(excess))

    def _train(self, batch: Batch) -> list[Tensor | None]:
        """Move the weights by the mean gradient of candidates drawn for this alone."""
        candidates = self._draw_inside()
        # Weights once touched keep momentum and decay when they are not sampled (paper, section 3.2):
        # their gradient is then zero, not missing.
        self.weights.zero_grad(set_to_none=False)
        losses: list[Tensor | None] = []
        for position, candidate in enumerate(candidates):
            if position % self._ranks != self._rank:
                losses.append(None)
                continue
            self._decisions.choose(candidate.values)
            with self._autocast():
                loss = self._loss(self.model, batch)
            self._scaler.scale(loss / len(candidates)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        if self._ranks > 1:
            self._reduce_gradients()
        if candidates:
            self._scaler.unscale_(self.weights)
            if self._clip_norm is not None:
                nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
            self._scaler.step(self.weights)
            self._scaler.update()
        return losses

    def _draw_inside(self) -> list[Candidate]:
        candidates = self.optimizer.ask()
        if not self._limited:
            return candidates
        wanted = len(candidates)
        inside = [c for c in candidates if not self.excess(c.values)]
        for _ in range(TRIES * wanted):
            if len(inside) == wanted:
                break
            inside += [c for c in self.optimizer.ask(1) if not self.excess(c.values)]
        return inside

    @torch.no_grad()
    def _losses(self, candidates: Sequence[Candidate], batch: Batch) -> list[Tensor | None]:
        losses: list[Tensor | None] = []
        for position, candidate in enumerate(candidates):
            if position % self._ranks != self._rank:
                losses.append(None)
                continue
            self._decisions.choose(candidate.values)
            with self._autocast():
                losses.append(self._loss(self.model, batch))
        return losses

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=self._amp, enabled=self._amp is not None)

    def excess(self, values: Mapping[str, Any]) -> float:
        """How far an architecture is outside of the limits; 0 inside. The first process measures for all."""
        if not self._limited:
            return 0.0
        key = repr(values)
        if key not in self._known:
            far = self._costs.excess(values) if self._rank == 0 else 0.0
            if self._ranks > 1:
                shared = torch.tensor([far], dtype=torch.float64, device=self._device)
                dist.broadcast(shared, 0)
                far = shared.item()
            self._known[key] = far
        return self._known[key]

    def _tell(self, candidates: list[Candidate], losses: list[float | None], excess: list[float]) -> None:
        if self._limited:  # only the order counts: inside by loss, then outside by excess
            keys = [
                (far, math.inf) if loss is None else (0.0, loss if math.isfinite(loss) else math.inf)
                for loss, far in zip(losses, excess, strict=True)
            ]
            order = sorted(set(keys))
            told: list[Any] = [order.index(key) for key in keys]
        else:
            told = list(losses)
        active = [self._decisions.active(c.values) for c in candidates] if self._leave_out else None
        self.optimizer.tell(candidates, told, active=active)

    # Several processes.

    def _begin_alike(self) -> None:
        """Weights, buffers and the optimizer's state of the first process for all."""
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        state = [self.optimizer.state_dict()]
        dist.broadcast_object_list(state, 0)
        self.optimizer.load_state_dict(state[0])

    def _reduce_gradients(self) -> None:
        """Sum the gradients over the processes; one touched anywhere is touched everywhere."""
        touched = torch.tensor([p.grad is not None for p in self._parameters], dtype=torch.int32, device=self._device)
        dist.all_reduce(touched, dist.ReduceOp.MAX)
        gradients = []
        for parameter, used in zip(self._parameters, touched.tolist(), strict=True):
            if used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            alike = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = torch.cat([gradient.reshape(-1) for gradient in alike])
            dist.all_reduce(flat)
            for gradient, part in zip(alike, torch.split(flat, [g.numel() for g in alike]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def _gathered(self, valid: list[Tensor | None], train: list[Tensor | None]) -> tuple[list[float], list[float]]:
        """All losses as numbers, with one wait for the device."""
        zero = torch.zeros((), device=self._device)
        losses = [zero if loss is None else loss.float().reshape(()) for loss in [*train, *valid]]
        stacked = torch.stack(losses) if losses else torch.zeros(0, device=self._device)
        if self._ranks > 1:
            dist.all_reduce(stacked)
        numbers = stacked.tolist()
        return numbers[: len(train)], numbers[len(train) :]

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Model, weights' optimizer, distribution and scaler: all that later steps depend on but random draws."""
        return {
            "model": self.model.state_dict(),
            "weights": self.weights.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "touched": [parameter.grad is not None for parameter in self._parameters],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of a OneShot made in the same way."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.model.load_state_dict(state["model"])
        self.weights.load_state_dict(state["weights"])
        self._scaler.load_state_dict(state["scaler"])
        # A weight that was touched has a gradient, zero between steps, so that it goes on decaying.
        for parameter, touched in zip(self._parameters, state["touched"], strict=True):
            parameter.grad = torch.zeros_like(parameter) if touched else None


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
