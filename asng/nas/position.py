"""The loop of a search: epochs, position in the data, RNG states, and all of that as a state."""

import math
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from asng.nas import _distributed
from asng.nas._identity import length_of
from asng.nas.oneshot import Batch, OneShot, Step, finite_mean
from asng.nas.result import certainty

OnStep = Callable[[int, int, Step], None]

EXPLOSION_FACTOR = 1000  # times the loss at the beginning

_END = object()


class NoFiniteLoss(RuntimeError):
    """All losses of an epoch were NaN or infinite."""


class SearchLoop:
    """Epochs of a search, resumable after any step.

    To resume within an epoch, its batches are loaded again from the RNG states at its start. While batches are
    loaded, torch's generator is one of their own, since the model's depends on the architectures drawn. A pass
    over `valid_loader` may begin in one epoch and end in another; it is resumed in the same way.
    """

    def __init__(
        self,
        oneshot: OneShot,
        lr_scheduler: LRScheduler,
        train_loader: Iterable[Batch],
        valid_loader: Iterable[Batch],
        seed: int,
    ) -> None:
        self._oneshot, self._lr_scheduler, self._train_loader = oneshot, lr_scheduler, train_loader
        self._valid = _RepeatedPasses(valid_loader, self._rng_states_in_loading)
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self._records: list[
            list[float]
        ] = []  # of the running epoch: train loss, valid loss, share of feasible candidates
        self._seconds = 0.0  # of the running epoch
        self._data_rng_state = torch.Generator().manual_seed(seed).get_state()
        self._rng_at_epoch_start = self._rng_states()
        self._rng_before_step: dict[str, Any] | None = None  # to repeat a step that fails
        self._valid_at_epoch_start = self._valid.end_epoch()
        if _distributed.is_distributed():
            own = self._rng_at_epoch_start["torch"]  # layers draw from it, in other architectures than elsewhere
            self._set_rng_states({**_distributed.broadcast_object(self._rng_at_epoch_start), "torch": own})

    @property
    def steps(self) -> int:
        """Done in the running epoch."""
        return len(self._records)

    @property
    def progress(self) -> tuple[int, int]:
        """Epochs done, and steps of the running one."""
        return self.epoch, self.steps

    def run_epoch(self, show: OnStep, stop: Callable[[], bool]) -> bool:
        """Run the rest of an epoch, then step the lr_scheduler; returns False if stopped before its end."""
        started = time.monotonic() - self._seconds
        for train_batch, valid_batch in self._batches():
            step = self._oneshot.step(train_batch, valid_batch)
            feasible = sum(not violated for violated in step.violations) / len(step.violations)
            self._records.append([step.train_loss, step.valid_loss, feasible])
            self._rng_before_step = None
            self._seconds = time.monotonic() - started
            show(self.epoch, self.steps, step)
            # A Ctrl-C does not reach all processes in the same step.
            if _distributed.any_rank(stop(), self._oneshot.device):
                return False
        if not self._records:
            raise ValueError(f"train_loader gave no batches in epoch {self.epoch + 1}; is it empty, or used up?")
        self._finish()
        return True

    def _batches(self) -> Iterator[tuple[Batch, Batch]]:
        """What is left of the epoch."""
        now = self._rng_states()
        used, rng_at_pass_start = self._valid_at_epoch_start
        if used != self._valid.used:  # loaded from a checkpoint
            self._set_rng_states(rng_at_pass_start)
            with self._data_rng():
                self._valid.resume(used, rng_at_pass_start)
            self._set_rng_states(now)
        if self.steps:
            self._set_rng_states(self._rng_at_epoch_start)
        else:
            self._rng_at_epoch_start = now
        with self._data_rng():
            pairs = zip(self._train_loader, self._valid, strict=False)
        for step in range(self.steps):
            with self._data_rng():
                if next(pairs, None) is None:
                    raise ValueError(
                        f"train_loader gives only {step} batches, but was at step {self.steps} when it stopped"
                    )
        if self.steps:
            self._set_rng_states(now)
        while True:
            self._rng_before_step = {
                "rng": self._torch_rng_states(),
                "arch_optimizer": self._oneshot.arch_optimizer.generator_state,
            }
            with self._data_rng():
                pair = next(pairs, None)
            if pair is None:
                return
            yield pair

    def _finish(self) -> None:
        """The end of an epoch."""
        train, valid, feasible = (finite_mean(column) for column in zip(*self._records, strict=True))
        if math.isnan(train) and math.isnan(valid) and feasible and not self._oneshot.out_of_memory:
            raise NoFiniteLoss(
                f"all losses of epoch {self.epoch + 1} were NaN or infinite; "
                "lower the learning rate, clip the gradient, or look for a division by zero"
            )
        if _distributed.is_rank0():
            self._warn_of_explosion(train)
        with warnings.catch_warnings():  # there may have been no step of the weights yet
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            if isinstance(self._lr_scheduler, ReduceLROnPlateau):
                self._lr_scheduler.step(valid)
            else:
                self._lr_scheduler.step()
        record = {"epoch": self.epoch + 1, "train_loss": train, "valid_loss": valid, "seconds": self._seconds}
        if self._oneshot.costs.limits:
            record["feasible"] = feasible
        self.history.append({**record, **certainty(self._oneshot.arch_optimizer)})
        self.epoch, self._records, self._seconds = self.epoch + 1, [], 0.0
        self._valid_at_epoch_start, self._rng_before_step = self._valid.end_epoch(), None

    def _warn_of_explosion(self, train: float) -> None:
        """Warn, once, of a mean loss that is finite, but far above that of the first step, or of the first epoch."""
        losses = [record["train_loss"] for record in self.history]
        before = losses[0] if losses else self._records[0][0]
        if train > EXPLOSION_FACTOR * (1 + abs(before)) >= max(losses, default=0.0):
            since = "epoch" if losses else "step"
            warnings.warn(
                f"the mean training loss of epoch {self.epoch + 1} is {train:.3g}, after {before:.3g} in the first "
                f"{since}; the weights diverge: lower the learning rate, or clip the gradient",
                stacklevel=2,
            )

    def close(self) -> None:
        """Release the batches, and with them the worker processes of an unfinished pass."""
        self._valid.close()

    def state_dict(self) -> dict[str, Any]:
        """The state after the last complete step, except for what a later failed step did to the model.

        If it failed in loading or training, the weights are as before. If in judging, they have moved, and move once
        more when the step is repeated.
        """
        state: dict[str, Any] = {
            "search": self._oneshot.state_dict(),
            "lr_scheduler": self._lr_scheduler.state_dict(),
            "epoch": self.epoch,
            "history": self.history,
            "records": self._records,
            "seconds": self._seconds,
            "rng": self._rng_states(),
            "rng_at_epoch_start": self._rng_at_epoch_start,
            "valid_at_epoch_start": self._valid_at_epoch_start,
        }
        if self._rng_before_step is not None:
            state["rng"] |= self._rng_before_step["rng"]
            state["search"]["arch_optimizer"]["generator"] = self._rng_before_step["arch_optimizer"]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._set_rng_states(state["rng"])
        self._oneshot.load_state_dict(state["search"])
        self._lr_scheduler.load_state_dict(state["lr_scheduler"])
        self.epoch, self.history, self._records = state["epoch"], state["history"], state["records"]
        self._seconds, self._rng_at_epoch_start = state["seconds"], state["rng_at_epoch_start"]
        self._valid_at_epoch_start = state["valid_at_epoch_start"]

    # Random numbers.

    @contextmanager
    def _data_rng(self) -> Iterator[None]:
        """Use the data's RNG state as torch's."""
        model = torch.get_rng_state()
        torch.set_rng_state(self._data_rng_state)
        try:
            yield
        finally:
            self._data_rng_state = torch.get_rng_state()
            torch.set_rng_state(model)

    def _rng_states_in_loading(self) -> dict[str, Any]:
        return {**self._rng_states(), "data": torch.get_rng_state()}

    def _rng_states(self) -> dict[str, Any]:
        """The states of all generators that batches and layers draw from."""
        numpys: Any = np.random.get_state()  # noqa: NPY002 - data sets draw from it
        return {
            **self._torch_rng_states(),
            "python": random.getstate(),
            "numpy": [numpys[0], numpys[1].tolist(), *numpys[2:]],
        }

    def _torch_rng_states(self) -> dict[str, Any]:
        """The states of torch's generators, which are quick to save."""
        state = {
            "torch": torch.get_rng_state(),
            "data": self._data_rng_state,
            "loaders": [generator.get_state() for generator in self._generators()],
        }
        if self._oneshot.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._oneshot.device)
        return state

    def _set_rng_states(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        self._data_rng_state = state["data"]
        for generator, saved in zip(self._generators(), state["loaders"], strict=True):
            generator.set_state(saved)
        random.setstate(state["python"])
        np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
        if "cuda" in state and self._oneshot.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self._oneshot.device)

    def _generators(self) -> list[torch.Generator]:
        """Those of data loaders and of their samplers, each once."""
        generators = {}
        for batches in (self._train_loader, self._valid.batches):
            batch_sampler = getattr(batches, "batch_sampler", None)
            for holder in (batches, getattr(batches, "sampler", None), getattr(batch_sampler, "sampler", None)):
                generator = getattr(holder, "generator", None)
                if isinstance(generator, torch.Generator):
                    generators[id(generator)] = generator
        return list(generators.values())


class _RepeatedPasses(Iterator[Batch]):
    """The batches of an iterable, one pass after another; `get_rng_states` is called before each pass."""

    def __init__(self, batches: Iterable[Batch], get_rng_states: Callable[[], dict[str, Any]]) -> None:
        self.batches, self._get_rng_states = batches, get_rng_states
        self._iterator: Iterator[Batch] = iter(())
        self.used = 0  # in the running pass
        self._rng_at_pass_start: dict[str, Any] = {}

    def __next__(self) -> Batch:
        batch = next(self._iterator, _END)
        if batch is _END:
            self._rng_at_pass_start = self._get_rng_states()
            self._iterator, self.used = iter(self.batches), 0
            batch = next(self._iterator, _END)
            if batch is _END:
                raise ValueError("valid_loader gave no batches; is it empty, or used up?")
        self.used += 1
        return batch

    def close(self) -> None:
        self._iterator = iter(())

    def end_epoch(self) -> tuple[int, dict[str, Any]]:
        """The position between two epochs: batches used of the running pass, and the RNG states at its start."""
        # A complete pass is not asked for one more batch: at its end a RandomSampler draws from its generator.
        if self.used == length_of(self.batches):
            self._iterator, self.used = iter(()), 0
        return self.used, self._rng_at_pass_start if self.used else {}

    def resume(self, used: int, rng_at_pass_start: dict[str, Any]) -> None:
        """Begin the pass again, under the RNG states at its start, and drop the batches that were used."""
        self._iterator, self._rng_at_pass_start = iter(self.batches), rng_at_pass_start
        for self.used in range(1, used + 1):
            if next(self._iterator, _END) is _END:
                raise ValueError(
                    f"valid_loader gives only {self.used - 1} batches, but {used} of them were used when it stopped"
                )
