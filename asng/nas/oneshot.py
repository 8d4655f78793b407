"""One iteration of one-shot search (Algorithm 1 of the paper): weights first, then the distribution.

Under torchrun the candidates are sharded over the processes, and where there are half as many candidates or fewer, the
batch of each over a group of processes. All processes draw the same candidates and are told the same losses, so theta
is equal everywhere without communication.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from asng._asktell import Candidate, Optimizer
from asng._checks import check_bool
from asng._violations import FEASIBLE, Violation, rank_losses
from asng.nas import _candidates, _checkpoints, _checks, _distributed
from asng.nas._candidates import FAILED, FAILURES, Judge, LossFn, Numbers, Outcome, Step
from asng.nas._distributed import Groups
from asng.nas._model_state import prepare_tensors, save_tensors
from asng.nas._notes import add_notes
from asng.nas._preserve import restore_modes, set_training, without_fast_path
from asng.nas._training import Training, WeightOptimizers
from asng.nas.limits import Costs, Limit
from asng.nas.supernet import Supernet, Values

Batch = Any

MAX_DRAWS = 16  # per candidate, in search of a feasible one


class OneShot:
    """Alternates between the weights of a model with decisions and the distribution of its architecture.

    Both halves run the model in training mode, so batch norm uses the statistics of the batch. Parts that were put into
    evaluation mode explicitly, or by the model's own `train()`, stay in it. Running statistics average over all
    candidates and have no effect on the search: an extracted network needs `recalibrate`. A gradient that is not finite
    is skipped; losses that are not finite are worst. A candidate that runs out of memory is also worst, its gradient
    does not enter the mean, and a warning names it; after five consecutive steps in which every candidate failed, an
    error is raised. A warning names decisions that nothing reads.

    Several processes (initialize torch.distributed first) must all pass the same batches. They start from the weights,
    the buffers and the state of rank 0. Each has the running statistics of the candidates that it ran. If there are
    at least twice as many processes as candidates, groups of processes split the batch of one candidate each by rows;
    losses, scores and metrics must then be means over rows.

    Args:
        model: Any module with decisions, on its training device, also wrapped by torch.compile or DataParallel;
            `loss_fn` then gets the wrapped model. DDP and FSDP are refused.
        arch_optimizer: ASNG, or a baseline, over `space_of(model)`.
        weight_optimizer: Any torch optimizer of the model's parameters, or a list of several with disjoint parameters.
        loss_fn: (model, batch) -> scalar tensor, or (loss, metrics) with a mapping of names to numbers or scalar
            tensors, which steps return. It runs the model with the selected architecture.
        judge: (model, batch) -> the number that ranks candidates, lower is better: anything that converts to float, or
            (number, metrics). It runs as `loss_fn` does, without gradients; `selected(model)` returns the values of the
            candidate. Its changes of train/eval modes are undone. By default the loss.
        max_grad_norm: Maximum norm of the gradient of the weights; None for no clipping.
        limits: Hard limits on costs: infeasible candidates are never run, and rank behind all feasible ones.
        amp_dtype: torch.bfloat16 or torch.float16 for mixed precision; float16 with scaled gradients.
        mask_inactive: Exclude variables without effect on a candidate from its update (an addition to the paper).
        sync_batchnorm: If several processes run one candidate, each on a part of its batch, compute its batch-norm
            statistics over the whole batch. No candidate may then fail, not even by running out of memory.
        failures: Exceptions of a candidate that do not end the search; they are handled like running out of memory.
        capture: Run each step as one CUDA graph. If a step cannot be captured, it runs as usual, after a warning with
            the reason.

    Attributes:
        supernet: The index of the model: its space, selection, extraction.
        costs: The costs of architectures under the limits.
        model, arch_optimizer, weight_optimizer, judge, device: As passed; the model without its wrapper.

    Raises:
        ValueError: The model or the optimizers cannot be searched; the message says what to change.

    >>> from asng import ASNG, nas
    >>> model = nn.Sequential(nas.OneOf("act", [nn.ReLU(), nn.Tanh()]), nn.Linear(2, 1))
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> oneshot = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), sgd, lambda net, x: net(x).square().mean())
    >>> step = oneshot.step(torch.ones(4, 2), torch.ones(4, 2))
    >>> len(step.train_losses), len(step.valid_losses)
    (2, 2)
    """

    def __init__(
        self,
        model: nn.Module,
        arch_optimizer: Optimizer,
        weight_optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        loss_fn: LossFn,
        *,
        judge: Judge | None = None,
        max_grad_norm: float | None = None,
        limits: Sequence[Limit] = (),
        amp_dtype: torch.dtype | None = None,
        mask_inactive: bool = False,
        sync_batchnorm: bool = False,
        failures: tuple[type[Exception], ...] = FAILURES,
        capture: bool = False,
    ) -> None:
        _checks.check_module(model)
        paths = {module: path for path, module in model.named_modules()}
        _checks.check_parallel(paths, sync_batchnorm=check_bool(sync_batchnorm, "sync_batchnorm"))
        self.model: nn.Module = _checks.unwrap(model)
        self.arch_optimizer: Optimizer = arch_optimizer
        self.judge: Judge | None = judge
        self.weight_optimizer: Any = weight_optimizer
        self._loss_fn, self._mask_inactive = loss_fn, check_bool(mask_inactive, "mask_inactive")
        self._amp_dtype = amp_dtype
        self._wrapped_model = model  # in a wrapper of torch.compile or DataParallel, perhaps
        self.supernet: Supernet = Supernet(self.model)
        self.costs: Costs = Costs(self.supernet, limits)
        _checks.check_search(self.supernet, arch_optimizer, weight_optimizer)
        _checks.check_step_options(loss_fn, max_grad_norm, amp_dtype, judge, failures)
        self._restoring_judge = None if judge is None else restore_modes(judge, self.supernet.paths)
        self._weight_optimizers = WeightOptimizers(weight_optimizer, max_grad_norm, amp_dtype)
        self._parameters = self._weight_optimizers.parameters
        in_model = set(map(id, self.model.parameters()))
        self._other_weights = [p for p in self._parameters if id(p) not in in_model]  # such as those of a loss
        self.device: torch.device = self._weight_optimizers.device
        _checks.check_device(self.device)
        self._groups = Groups(arch_optimizer._population_size, sync_batchnorm=sync_batchnorm)
        if sync_batchnorm and self._groups.are_shared:
            failures = ()  # other processes would wait for the statistics of a candidate that failed
        self._failures = _candidates.Failures(self.device, failures)
        self._training = Training(self.supernet, self._weight_optimizers, self._failures, self._groups)
        self._sync_from_rank0()
        watched = self._groups.rank == 0 and not any(map(_checks.is_compiled, paths))
        self._unread = _candidates.UnreadDecisions(self.supernet) if watched else None
        if self.model.training:
            set_training(self.model)
        self._is_training = True  # in a step, unless the model's own train() does otherwise
        self._generator_state: dict[str, Any] | None = None  # before a step, to repeat it if it fails
        self._captured = None
        if check_bool(capture, "capture"):
            from asng.nas._capture.iteration import Iteration
            from asng.nas._capture.step import CapturedStep, find_obstacle

            options: Any = {
                "judge": self._restoring_judge,
                "max_grad_norm": self._weight_optimizers.max_grad_norm,
                "amp_dtype": amp_dtype,
            }
            optimizers = self._weight_optimizers.optimizers
            make_iteration = partial(Iteration, self.supernet, optimizers[0], loss_fn, limited=bool(limits), **options)
            obstacle = partial(find_obstacle, model, optimizers, amp_dtype)
            self._captured = CapturedStep(self.supernet, make_iteration, obstacle)

    @property
    def capture_cost(self) -> dict[str, float]:
        """Time and memory of the capture of a step.

        Returns:
            `capture_seconds` and `capture_gb`, the device memory of the graph; empty unless steps are captured.
        """
        return {} if self._captured is None else dict(self._captured.cost)

    def release_capture(self) -> None:
        """Free the device memory of a captured step; the next step captures again."""
        if self._captured is not None:
            self._captured.release()

    def step(self, train_batch: Batch, valid_batch: Batch) -> Step:
        """Run one iteration; the selection of the model is restored on exit.

        Args:
            train_batch: The batch for all candidates that train the weights, in the format of `loss_fn`.
            valid_batch: The batch on which the other candidates are scored.

        Returns:
            The losses, metrics, candidates and violations.

        Raises:
            ValueError: The loss is not a scalar tensor, or does not depend on the weights; or `loss_fn` changes
                gradients or leaves the model in evaluation mode.
            RuntimeError: Every candidate of five consecutive steps failed, by running out of memory or by `failures`.
        """
        return self._iterate((train_batch,), (valid_batch,))

    def train_step(self, *micro_batches: Batch) -> Step:
        """Run the first half of an iteration: update the weights once; the distribution does not change.

        With several batches the gradient is accumulated: all candidates run on all batches, and the mean gradient
        updates the weights. Halves of a step are not captured.

        Args:
            micro_batches: One or several batches for all candidates, in the format of `loss_fn`.

        Returns:
            The losses and metrics, means over the batches.

        Raises:
            ValueError: There is no batch, or as in `step`.
            RuntimeError: As in `step`.

        >>> from asng import ASNG, nas
        >>> model = nn.Sequential(nas.OneOf("act", [nn.ReLU(), nn.Tanh()]), nn.Linear(2, 1))
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> oneshot = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), sgd, lambda net, x: net(x).square().mean())
        >>> step = oneshot.train_step(torch.ones(4, 2), torch.zeros(4, 2))
        >>> len(step.train_losses), len(step.scores)
        (2, 0)
        """
        if not micro_batches:
            raise ValueError("train_step needs at least one batch, got none")
        return self._iterate(micro_batches, ())

    def judge_step(self, batch: Batch) -> Step:
        """Run the second half of an iteration: update the distribution once; the weights do not change.

        Args:
            batch: The batch on which all candidates are scored.

        Returns:
            The scores, metrics, candidates and violations.

        Raises:
            ValueError: The judge returns no number.
            RuntimeError: As in `step`.

        >>> from asng import ASNG, nas
        >>> model = nn.Sequential(nas.OneOf("act", [nn.ReLU(), nn.Tanh()]), nn.Linear(2, 1))
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> oneshot = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), sgd, lambda net, x: net(x).square().mean())
        >>> step = oneshot.judge_step(torch.ones(4, 2))
        >>> len(step.train_losses), len(step.scores)
        (0, 2)
        """
        return self._iterate((), (batch,))

    def _iterate(self, train_batches: Sequence[Batch], valid_batches: Sequence[Batch]) -> Step:
        """Both halves of an iteration, or the one that there are batches for."""
        self._generator_state = self.arch_optimizer.generator_state
        if not self.model.training:
            self.model.train()
        self._is_training = self.model.training
        drawn = self._draw_feasible() if train_batches else []
        candidates = self.arch_optimizer.ask() if valid_batches else []
        violations = [self.costs.violation(candidate.values) for candidate in candidates]
        feasible = [c.values for c, violation in zip(candidates, violations, strict=True) if violation == FEASIBLE]
        with without_fast_path():  # frozen parts and judges may be in eval()
            trained, judged = self._run_candidates(drawn, train_batches, feasible, valid_batches, len(candidates))
        of_feasible = iter(judged)
        valid = [next(of_feasible) if violation == FEASIBLE else None for violation in violations]
        scores = [None if numbers is None else numbers.loss for numbers in valid]
        if candidates:
            self._tell(candidates, scores, violations)
        self._generator_state = None
        return Step(
            train_losses=tuple(numbers.loss for numbers in trained),
            valid_losses=tuple(scores if self.judge is None else ()),
            train_metrics=tuple(numbers.metrics for numbers in trained),
            valid_metrics=tuple({} if numbers is None else numbers.metrics for numbers in valid),
            candidates=tuple(c.values for c in candidates),
            violations=tuple(violation.amount for violation in violations),
            scores=tuple(scores),
        )

    @property
    def _is_half_failed(self) -> bool:
        """Whether every candidate of a half failed in the last step that ran this half."""
        return self._failures.steps > 0

    def _run_candidates(
        self,
        drawn: Sequence[Values],
        train_batches: Sequence[Batch],
        feasible: Sequence[Values],
        valid_batches: Sequence[Batch],
        n: int,
    ) -> tuple[list[Numbers], list[Numbers]]:
        """The numbers of the candidates drawn for the weights, and of the feasible ones of n that are judged."""
        if self._captured is not None:
            done = None
            if len(train_batches) == len(valid_batches) == 1:
                done = self._captured.step(drawn, train_batches[0], feasible, n, valid_batches[0])
            else:
                self._captured.run_plain("train_step and judge_step are not captured, only step is")
            if done is not None:
                self._failures.end_step({"train": False, "valid": False})
                if self._unread is not None:
                    _candidates.warn_of_unread(self._captured.unread_decisions, "a captured step")
                    self._unread = None
                return done
        outcomes: list[Outcome | None] = []
        with self.supernet.preserve_selection():
            if train_batches:
                outcomes += self._training.step(self._run, drawn, train_batches)
            for batch in valid_batches:
                outcomes += self._judge(feasible, batch)
        numbers = _candidates.gather_numbers(outcomes, self.device)
        halves = {"train": numbers[: len(drawn)], "valid": numbers[len(drawn) :]}
        ran = [name for name, batches in (("train", train_batches), ("valid", valid_batches)) if batches]
        self._failures.end_step({name: bool(halves[name]) and all(n.failed for n in halves[name]) for name in ran})
        if self._unread is not None and self._unread.end_step():
            self._unread = None
        return halves["train"], halves["valid"]

    def _judge(self, candidates: Sequence[Values], batch: Batch) -> list[Outcome | None]:
        """The outcomes of the candidates of this process."""
        outcomes: list[Outcome | None] = [None] * len(candidates)
        part, fraction = self._groups.take(batch)
        with torch.no_grad(), self._groups.sync:
            for index in self._groups.shard(len(candidates)):
                outcome = self._failures.attempt(self._run_judge, candidates[index], part)
                outcomes[index] = FAILED if outcome is None else outcome._replace(weight=fraction)
        return outcomes

    def _draw_feasible(self) -> Sequence[Values]:
        """Draw candidates for the weights; fewer where too few are feasible."""
        candidates = self.arch_optimizer.ask()
        feasible = [c.values for c in candidates if self.is_feasible(c.values)]
        for _ in range(MAX_DRAWS * len(candidates)):
            if len(feasible) == len(candidates):
                break
            feasible += [c.values for c in self.arch_optimizer.ask(1) if self.is_feasible(c.values)]
        return feasible

    def _run(self, values: Values, batch: Batch) -> Outcome:
        """The loss and the metrics of a candidate."""
        outcome = _candidates.to_outcome(self._call(self._loss_fn, values, batch))
        if self._is_training and not self.model.training:
            raise ValueError(
                "loss_fn leaves the model in evaluation mode, also for other candidates; leave out eval() in it"
            )
        return outcome

    def _run_judge(self, values: Values, batch: Batch) -> Outcome:
        """The score and the metrics of a candidate."""
        if self._restoring_judge is None:
            return self._run(values, batch)
        return _candidates.to_score(self._call(self._restoring_judge, values, batch))

    def _call(self, function: Callable[[nn.Module, Batch], Any], values: Values, batch: Batch) -> Any:
        """Select a candidate and call a loss function or a judge."""
        self.supernet.choose(values)
        try:
            with self._autocast(), nullcontext() if self._unread is None else self._unread.watch(values):
                return function(self._wrapped_model, batch)
        except Exception as error:
            name = "loss_fn" if function is self._loss_fn else "judge"
            add_notes(error, self.supernet, values, name, self._wrapped_model)
            raise

    def _autocast(self) -> torch.autocast:
        """The context of mixed precision that candidates run in."""
        return torch.autocast(self.device.type, dtype=self._amp_dtype, enabled=self._amp_dtype is not None)

    def is_feasible(self, values: Mapping[str, Any]) -> bool:
        """Tell whether an architecture meets all limits.

        Args:
            values: One value for each decision, by name.

        Returns:
            True if it does; without limits, for all architectures.

        Raises:
            ValueError: There are limits, and the values do not fit.
        """
        return self.costs.violation(values) == FEASIBLE

    def _tell(self, candidates: list[Candidate], losses: list[float | None], violations: list[Violation]) -> None:
        told = rank_losses([math.inf if loss is None else loss for loss in losses], violations)
        active = [self.supernet.active(c.values) for c in candidates] if self._mask_inactive else None
        self.arch_optimizer.tell(candidates, told, active=active)

    # Several processes.

    def _sync_from_rank0(self) -> None:
        """Broadcast weights, buffers and both optimizers' states from rank 0."""
        if self._groups.world_size > 1:
            _distributed.broadcast_tensors([*self._parameters, *self.model.parameters(), *self.model.buffers()])
            arch_optimizer, weight_optimizer = _distributed.broadcast_object(
                (self.arch_optimizer.state_dict(), self._weight_optimizers.state_dict())
            )
            self.arch_optimizer.load_state_dict(arch_optimizer)
            self._weight_optimizers.load_state_dict(weight_optimizer)

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Save the state.

        Returns:
            Everything that later steps depend on, except torch's RNG state; `torch.load` reads it with
            `weights_only=True`. Call it between steps: a step that failed, also by KeyboardInterrupt, may have changed
            weights and running statistics. After loading, the same candidates are drawn again.
        """
        if self._captured is not None:
            self._captured.store()
        arch_optimizer = self.arch_optimizer.state_dict()
        if self._generator_state is not None:
            arch_optimizer["generator"] = self._generator_state
        return {
            **save_tensors(self.model, self._other_weights),
            "weight_optimizer": self._weight_optimizers.state_dict(),
            "arch_optimizer": arch_optimizer,
            "scaler": self._weight_optimizers.scaler.state_dict(),
            "touched": [parameter.grad is not None for parameter in self._parameters],
            "limits": [limit.name for limit in self.costs.limits],
            "costs": self.costs.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state.

        Args:
            state: The state from `state_dict()` of a OneShot with the same arguments.

        Raises:
            ValueError: The state does not fit or is damaged; nothing is changed.
        """
        before = copy.deepcopy(self._weight_optimizers.state_dict()), self.arch_optimizer.state_dict()
        try:
            self.arch_optimizer.load_state_dict(state["arch_optimizer"])  # names the decision, if one differs
            load_tensors = prepare_tensors(self.model, self._other_weights, state)
            if len(state["touched"]) != len(self._parameters):
                raise ValueError(f"it has {len(state['touched'])} parameters, this one {len(self._parameters)}")
            limits = [limit.name for limit in self.costs.limits]
            if state["limits"] != limits:  # their numbers may differ
                raise ValueError(f"its limits are on {state['limits']}, these on {limits}")
            self._weight_optimizers.load_state_dict(state["weight_optimizer"])
            self._weight_optimizers.scaler.load_state_dict(state["scaler"])
            self.costs.load_state_dict(state["costs"])
            load_tensors()
        except Exception as error:  # a foreign state may raise anything
            self._weight_optimizers.load_state_dict(before[0])
            self.arch_optimizer.load_state_dict(before[1])
            raise ValueError(f"the state does not fit: {_checkpoints.short_reason(error)}") from None
        # A weight that was touched has a gradient, zero between steps, so that it goes on decaying.
        for parameter, touched in zip(self._parameters, state["touched"], strict=True):
            parameter.grad = torch.zeros_like(parameter) if touched else None
        if self._captured is not None:
            self._captured.forget()
