"""The job of `nas.search`: one-shot search on any iterables of batches, and the schedules of its learning rates."""

import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau

from asng._asktell import describe_distribution
from asng._checks import check_int
from asng.nas import _distributed
from asng.nas._candidates import Step, finite_mean
from asng.nas._checks import as_list
from asng.nas._extract import StaticBuild
from asng.nas._loop import Epoch, Job, rng_states, set_rng_states
from asng.nas._training import check_alike
from asng.nas.oneshot import Batch, OneShot
from asng.nas.result import concentration, describe_nearest

EXPLOSION_FACTOR = 1000  # times the loss at the beginning


class Schedules:
    """The schedulers of a search, stepped after every epoch or after every step.

    Args:
        weight_optimizer: The optimizer, or a list of several.
        epochs: Of the search.
        given: A scheduler or a list of them; None for a cosine to 0 for each optimizer.
        interval: "epoch" or "step".
        train_loader: Whose length is that of an epoch in steps.

    Raises:
        ValueError: A scheduler is of another optimizer or ends too early, the interval is another word, or a length
            is unknown.
    """

    def __init__(
        self, weight_optimizer: Any, epochs: int, given: Any = None, interval: str = "epoch", train_loader: Any = ()
    ) -> None:
        if interval not in ("epoch", "step"):
            raise ValueError(f'scheduler_interval must be "epoch" or "step", got {interval!r}')
        self._optimizers, self._epochs = as_list(weight_optimizer), epochs
        self._interval, self._is_default = interval, given is None
        steps = length_of(train_loader)
        self._per_epoch: Any = 1 if interval == "epoch" else steps  # how often schedulers are stepped
        if given is None and self._per_epoch is None:
            raise ValueError(
                "train_loader has no length, which the default schedule needs for scheduler_interval='step'; pass "
                "an lr_scheduler"
            )
        self._schedulers: list[Any] = self._cosines(epochs) if given is None else as_list(given)
        for scheduler in self._schedulers:
            if isinstance(scheduler, type):
                kind = scheduler.__name__
                raise ValueError(f"lr_scheduler is the class {kind}; make one: {kind}(weight_optimizer, ...)")
            if not any(getattr(scheduler, "optimizer", None) is one for one in self._optimizers):
                raise ValueError(
                    "lr_scheduler belongs to another optimizer; pass the one it was made with as weight_optimizer"
                )
            _check_cycle(scheduler, epochs * (self._per_epoch or 0))
            if interval == "epoch" and steps is not None and steps > 1:
                _warn_of_steps(scheduler, epochs, epochs * steps)

    def _cosines(self, epochs: int) -> list[CosineAnnealingLR]:
        return [CosineAnnealingLR(optimizer, epochs * self._per_epoch) for optimizer in self._optimizers]

    def warn_of_zero_lr(self) -> None:
        """Warn of a default schedule that begins at 0, where an earlier one has ended: it never leaves it."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        trained = [group for group in groups if any(parameter.requires_grad for parameter in group["params"])]
        if self._is_default and trained and not any(float(group["lr"]) for group in trained):
            warnings.warn(
                "the learning rate of weight_optimizer is 0, so the weights do not change; the schedule of an earlier "
                "search ends there: make a new optimizer for each search, or set its learning rate",
                stacklevel=2,
            )

    def start_over(self, done: int) -> None:
        """Restart the default schedule for epochs that were added after it had ended."""
        if self._is_default and done < self._epochs and self._schedulers[0].last_epoch >= self._schedulers[0].T_max:
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"]
            self._schedulers = self._cosines(self._epochs - done)

    def step(self, interval: str, score: float) -> None:
        """Step at the end of an "epoch" or a "step" what is stepped then; `score`: its mean, NaN if none was judged."""
        if interval != self._interval:
            return
        with warnings.catch_warnings():  # there may have been no step of the weights yet
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for scheduler in self._schedulers:
                _check_cycle(scheduler, getattr(scheduler, "last_epoch", -1) + 1)  # ChainedScheduler counts nothing
                if not isinstance(scheduler, ReduceLROnPlateau):
                    scheduler.step()
                elif interval == "epoch" or not math.isnan(score):
                    scheduler.step(score)

    def state_dict(self) -> Any:
        """The state of the scheduler, or a list of those of several."""
        states = [scheduler.state_dict() for scheduler in self._schedulers]
        return states[0] if len(states) == 1 else states

    def load_state_dict(self, state: Any) -> None:
        """Restore such a state; the optimizers have theirs already."""
        for scheduler, saved in zip(self._schedulers, as_list(state), strict=True):
            check_alike(saved, scheduler.state_dict(), "lr_scheduler")
            scheduler.load_state_dict(saved)


def _check_cycle(scheduler: Any, steps: int) -> None:
    """Raise ValueError for a OneCycleLR that is shorter than a number of steps."""
    if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < steps:
        raise ValueError(
            f"OneCycleLR ends after total_steps={scheduler.total_steps} and cannot go on, but this search steps it "
            f"{steps} times; search for fewer epochs, or begin again with more total_steps and another checkpoint"
        )


def _warn_of_steps(scheduler: Any, epochs: int, steps: int) -> None:
    """Warn of a schedule that has the length of all steps, but is stepped after every epoch."""
    length = getattr(scheduler, "total_steps", getattr(scheduler, "T_max", None))
    if length == steps:
        warnings.warn(
            f"{type(scheduler).__name__} is made for {steps} steps, as many as this search has, but is stepped after "
            f"each of {epochs} epochs; pass scheduler_interval='step'",
            stacklevel=4,
        )


class LoaderJob(Job):
    """Epochs of a search, resumable after any step.

    To resume within an epoch, its batches are loaded again from the RNG states at its start. While batches are
    loaded, torch's generator is one of their own, since the model's depends on the architectures drawn. A pass
    over `valid_loader` may begin in one epoch and end in another; it is resumed in the same way.

    Args:
        oneshot: The search.
        schedules: Of the learning rates.
        train_loader, valid_loader: Batches, as those of `nas.search`.
        seed: Of the order of the batches.
        callback: As that of `nas.search`.
        warmup_epochs: The first epochs, in which the weights are trained and nothing is judged.
    """

    def __init__(
        self,
        oneshot: OneShot,
        schedules: Schedules,
        train_loader: Iterable[Batch],
        valid_loader: Iterable[Batch],
        seed: int,
        callback: Callable[[Any], Any] | None = None,
        warmup_epochs: int = 0,
    ) -> None:
        self.device = oneshot.device
        self._oneshot, self._schedules = oneshot, schedules
        self._callback, self._newest = callback, Step()
        self._warmup_epochs = warmup_epochs
        self._score_name = "valid_loss" if oneshot.judge is None else "score"  # in records
        self._train_loader, self._valid_loader = train_loader, valid_loader
        self._valid_batches = self._repeat_valid_loader()
        self._used = 0  # batches of the running pass over valid_loader
        self._rng_at_pass_start: dict[str, Any] = {}
        self._pairs: Iterator[tuple[Batch, Batch]] | None = None  # of the running epoch
        self._steps = 0  # in the running epoch
        self._cost: dict[str, float] = {}  # of the capture of a step, once it is in a record
        self._losses: list[float] = []  # for the weights: of the first step, then the means of the epochs
        self._skipped = 0  # updates of the weights, up to the last epoch
        self._warned: set[str] = set()  # loaders whose steps were not finite
        self._data_generator = torch.Generator().manual_seed(seed)
        self._rng_at_epoch_start = rng_states(self)
        self._valid_at_epoch_start = self._finish_valid_pass()
        if _distributed.is_distributed():
            own = self._rng_at_epoch_start["torch"]  # layers draw from it, in other architectures than elsewhere
            set_rng_states(self, {**_distributed.broadcast_object(self._rng_at_epoch_start), "torch": own})

    def step(self, index: int) -> dict[str, float] | None:
        if self._pairs is None:
            self._pairs = self._start_epoch()
        with self._data_rng():
            pair = next(self._pairs, None)
        if pair is None:
            if not self._steps:
                epoch = max(len(self._losses), 1)
                raise ValueError(f"train_loader gave no batches in epoch {epoch}; is it empty, or used up?")
            return None
        if not self._losses and _distributed.is_rank0():
            self._schedules.warn_of_zero_lr()
        is_warmup = max(len(self._losses) - 1, 0) < self._warmup_epochs
        step = self._oneshot.train_step(pair[0]) if is_warmup else self._oneshot.step(*pair)
        if not self._losses:  # what cannot be extracted is refused now, and not when the search ends
            StaticBuild(self._oneshot.supernet, self._oneshot.arch_optimizer.mode()).copy(share_weights=True)
        self._steps += 1
        feasible = sum(not violated for violated in step.violations) / max(len(step.violations), 1)
        losses = {"train_loss": step.train_loss} if step.train_losses else {}
        losses |= {self._score_name: step.score} if feasible else {}
        if self._oneshot._is_half_failed:  # which is another error, after some steps of it
            losses = {name: loss for name, loss in losses.items() if not math.isnan(loss)}
        if not self._losses:
            self._losses.append(step.train_loss)
        self._schedules.step("step", step.score)
        self._newest = step
        shares = {"feasible": feasible} if self._oneshot.costs.limits and step.violations else {}
        metrics = {**_means("train", step.train_metrics), **_means("valid", step.valid_metrics)}
        return {**metrics, **losses, **shares}  # a metric called loss does not hide the loss

    def wants_stop(self, record: Mapping[str, Any] | None = None) -> bool:
        """Call the callback with the newest step, or with the record of an epoch."""
        returned = None if self._callback is None else self._callback(self._newest if record is None else dict(record))
        if isinstance(returned, torch.Tensor) and returned.numel() == 1:
            returned = returned.item()
        return isinstance(returned, (bool, np.bool_)) and bool(returned)

    def _start_epoch(self) -> Iterator[tuple[Batch, Batch]]:
        """The batches of the epoch that are left."""
        used, rng_at_pass_start = self._valid_at_epoch_start
        if used != self._used:  # loaded from a checkpoint
            with self._rewind(rng_at_pass_start), self._data_rng():
                for _ in range(used):
                    next(self._valid_batches)
            if self._used != used:
                raise ValueError(f"valid_loader gives fewer than the {used} batches that were used when it stopped")
        if not self._steps:
            self._rng_at_epoch_start = rng_states(self)
        with self._rewind(self._rng_at_epoch_start) if self._steps else nullcontext(), self._data_rng():
            pairs = zip(self._train_loader, self._valid_batches, strict=False)
            for step in range(self._steps):
                if next(pairs, None) is None:
                    raise ValueError(
                        f"train_loader gives only {step} batches, but was at step {self._steps} when it stopped"
                    )
        return pairs

    def _repeat_valid_loader(self) -> Generator[Batch, None, None]:
        """The batches of `valid_loader`, one pass after another."""
        while True:
            self._data_generator.set_state(torch.get_rng_state())
            self._used, self._rng_at_pass_start = 0, rng_states(self)
            for batch in self._valid_loader:
                self._used += 1
                yield batch
            if not self._used:
                raise ValueError("valid_loader gave no batches; is it empty, or used up?")

    def _finish_valid_pass(self) -> tuple[int, dict[str, Any]]:
        """The position between two epochs: batches used of the running pass, and the RNG states at its start."""
        # A complete pass is not asked for one more batch: at its end a RandomSampler draws from its generator.
        if self._used == length_of(self._valid_loader):
            self._valid_batches, self._used = self._repeat_valid_loader(), 0
        return self._used, self._rng_at_pass_start if self._used else {}

    def finish_epoch(self, epoch: Epoch) -> dict[str, Any]:
        means = {"train_loss": math.nan, self._score_name: math.nan}
        means |= {name: math.nan if mean is None else mean for name, mean in sorted(epoch.means().items())}
        if _distributed.is_rank0():
            self._warn_of_explosion(means["train_loss"], epoch.number)
            self._warn_of_lost_steps(epoch)
        if epoch.number == 1:
            self._warn_of_limits()
        self._schedules.step("epoch", means[self._score_name])
        self._schedules.start_over(epoch.number)
        self._losses.append(means["train_loss"])
        self._pairs, self._steps = None, 0
        self._valid_at_epoch_start = self._finish_valid_pass()
        judged = 0 if epoch.number <= self._warmup_epochs else epoch.steps
        cost = {} if self._cost == self._oneshot.capture_cost else self._oneshot.capture_cost
        self._cost = self._oneshot.capture_cost
        arch_optimizer = self._oneshot.arch_optimizer
        distribution = describe_distribution(arch_optimizer)
        return {**means, **concentration(arch_optimizer), "distribution": distribution, "steps": judged, **cost}

    def _warn_of_explosion(self, train: float, epoch: int) -> None:
        """Warn, once, of a mean loss that is finite, but far above that of the first step, or of the first epoch."""
        first, *means = self._losses
        before = means[0] if means else first
        if train > EXPLOSION_FACTOR * (1 + abs(before)) >= max(means, default=0.0):
            warnings.warn(
                f"the mean training loss of epoch {epoch} is {train:.3g}, after {before:.3g} in the first "
                f"{'epoch' if means else 'step'}; the weights diverge: lower the learning rate, or clip the gradient",
                stacklevel=2,
            )

    def _warn_of_lost_steps(self, epoch: Epoch) -> None:
        """Warn, once for each half, of steps in which NaN or infinity left nothing to learn from."""

        def count(loss: str) -> int:
            return sum(map(math.isnan, epoch.measured.get(loss, ())))

        total = self._oneshot._weight_optimizers.skipped
        skipped, self._skipped = total - self._skipped, total
        for loader, what, steps in (
            ("train_loader", "the gradient was", max(skipped, count("train_loss"))),  # captured steps skip silently
            ("valid_loader", "all scores were", count(self._score_name)),
        ):
            if steps and loader not in self._warned:
                self._warned.add(loader)
                warnings.warn(
                    f"in {steps} of {epoch.steps} steps of epoch {epoch.number} {what} NaN or infinite, so "
                    f"nothing was learned; look for NaN in the batches of {loader} and for divisions by 0, or lower "
                    "the learning rate",
                    stacklevel=2,
                )

    def _warn_of_limits(self) -> None:
        """Warn if no candidate so far was feasible; of several processes all have to call it."""
        nearest = self._oneshot.costs.nearest()
        if nearest is None or self._oneshot.is_feasible(nearest):
            return
        limits = self._oneshot.costs.describe(nearest)
        if _distributed.is_rank0():
            warnings.warn(
                "no candidate of the first epoch met all limits, and the search continues toward them; "
                f"{describe_nearest(limits)}",
                stacklevel=3,
            )

    def close(self) -> None:
        """Release the batches, and with them the worker processes of an unfinished pass."""
        self._pairs = None
        self._valid_batches.close()

    def state_dict(self) -> dict[str, Any]:
        return {
            "search": self._oneshot.state_dict(),
            "lr_scheduler": self._schedules.state_dict(),
            "steps": self._steps,
            "losses": self._losses,
            "rng_at_epoch_start": self._rng_at_epoch_start,
            "valid_at_epoch_start": self._valid_at_epoch_start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        used, rng_at_pass_start = state["valid_at_epoch_start"]
        self._valid_at_epoch_start = check_int(used, "batches of valid_loader", min=0), rng_at_pass_start
        self._rng_at_epoch_start = state["rng_at_epoch_start"]
        for rng in (self._rng_at_epoch_start, rng_at_pass_start)[: 2 if used else 1]:
            set_rng_states(self, rng)  # to raise here where they are damaged
        self._oneshot.load_state_dict(state["search"])
        self._steps, self._losses = check_int(state["steps"], "steps", min=0), list(map(float, state["losses"]))
        self._schedules.load_state_dict(state["lr_scheduler"])
        if not self._steps:  # else at the end of the epoch
            done = max(0, len(self._losses) - 1)  # before the means of the epochs there is the loss of the first step
            self._schedules.start_over(done)

    # Random numbers.

    @contextmanager
    def _data_rng(self) -> Iterator[None]:
        """Let torch draw what the data's generator would."""
        with torch.random.fork_rng([]):
            torch.set_rng_state(self._data_generator.get_state())
            try:
                yield
            finally:
                self._data_generator.set_state(torch.get_rng_state())

    @contextmanager
    def _rewind(self, states: Mapping[str, Any]) -> Iterator[None]:
        """Set all generators back to these states; restore them on exit."""
        now = rng_states(self)
        set_rng_states(self, states)
        yield
        set_rng_states(self, now)

    def generators(self) -> list[torch.Generator]:
        """The data's, and those of data loaders and of their samplers, each once."""
        generators = {id(self._data_generator): self._data_generator}
        for batches in (self._train_loader, self._valid_loader):
            batch_sampler = getattr(batches, "batch_sampler", None)
            for holder in (batches, getattr(batches, "sampler", None), getattr(batch_sampler, "sampler", None)):
                generator = getattr(holder, "generator", None)
                if isinstance(generator, torch.Generator):
                    generators[id(generator)] = generator
        return list(generators.values())


def _means(half: str, metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the candidates of a half of a step."""
    names = {name for of_one in metrics for name in of_one}
    return {f"{half}_{name}": finite_mean(of_one.get(name) for of_one in metrics) for name in names}


def length_of(data: Any) -> int | None:
    """The number of batches or examples, or None if unknown."""
    # Of a loader the sampler's: a loader that was asked for its own may complain later that a stream is longer.
    samplers = (getattr(data, name, None) for name in ("batch_sampler", "sampler"))
    try:
        return len(next((sampler for sampler in samplers if sampler is not None), data))
    except Exception:  # streams have none, and each says so in its own way
        return None
