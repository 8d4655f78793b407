"""Where a search stands: its epoch, its place in the data, its random numbers, and all of that as a state."""

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

from asng.nas import processes
from asng.nas.oneshot import Batch, OneShot, Step, finite_mean
from asng.nas.result import certainty

Show = Callable[[int, int, Step], None]


class Position:
    """The position of a search in its data, and all that has to be saved to go on from there.

    The middle of an epoch is found again by loading its batches anew from where its random numbers
    began. Those of torch are kept apart from the model's, which depend on the architectures drawn.
    """

    def __init__(
        self, oneshot: OneShot, schedule: LRScheduler, train: Iterable[Batch], valid: Iterable[Batch], seed: int
    ) -> None:
        self._oneshot, self._schedule, self._train, self._valid = oneshot, schedule, train, valid
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self._done: list[list[float]] = []  # of the running epoch: train loss, valid loss, share inside the limits
        self._seconds = 0.0  # of the running epoch
        self._data = torch.Generator().manual_seed(seed).get_state()
        self._before = self._random()  # the epoch
        if processes.is_one_of_several():
            self._set_random({**processes.first_ones(self._before), "torch": self._before["torch"]})

    @property
    def steps(self) -> int:
        """Done in the running epoch."""
        return len(self._done)

    def one_epoch(self, show: Show, stop: Callable[[], bool]) -> bool:
        """All batches of `train` once, from where the epoch stands, then the schedule; False if stopped before."""
        started = time.monotonic() - self._seconds
        for train_batch, valid_batch in self._batches():
            step = self._oneshot.step(train_batch, valid_batch)
            share = sum(not far for far in step.excess) / len(step.excess)
            self._done.append([step.train_loss, step.valid_loss, share])
            self._seconds = time.monotonic() - started
            show(self.epoch, self.steps, step)
            # A Ctrl-C does not reach all processes in the same step.
            if processes.any_of_all(stop(), self._oneshot.device):
                return False
        if not self._done:
            raise ValueError(f"train gave no batches in epoch {self.epoch + 1}; is it empty, or used up?")
        self._finish()
        return True

    def _batches(self) -> Iterator[tuple[Batch, Batch]]:
        """What is left of the epoch."""
        now = self._random()
        if self.steps:
            self._set_random(self._before)
        else:
            self._before = now
        with self._loading():
            pairs = zip(self._train, _cycled(self._valid), strict=False)
        for place in range(self.steps):
            with self._loading():
                if next(pairs, None) is None:
                    raise ValueError(f"train gives only {place} batches, but was at step {self.steps} when it stopped")
        if self.steps:
            self._set_random(now)
        while True:
            with self._loading():
                pair = next(pairs, None)
            if pair is None:
                return
            yield pair

    def _finish(self) -> None:
        """The end of an epoch."""
        train, valid, inside = (finite_mean(column) for column in zip(*self._done, strict=True))
        if math.isnan(train) and math.isnan(valid) and inside:
            raise RuntimeError(
                f"all losses of epoch {self.epoch + 1} were NaN or infinite; "
                "lower the learning rate, clip the gradient, or look for a division by zero"
            )
        record = {"epoch": self.epoch + 1, "train_loss": train, "valid_loss": valid, "seconds": self._seconds}
        if self._oneshot.costs.limits:
            record["inside"] = inside
        self.history.append({**record, **certainty(self._oneshot.optimizer)})
        self.epoch, self._done, self._seconds = self.epoch + 1, [], 0.0
        with warnings.catch_warnings():  # there may have been no step of the weights yet
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            if isinstance(self._schedule, ReduceLROnPlateau):
                self._schedule.step(valid)
            else:
                self._schedule.step()

    def state_dict(self) -> dict[str, Any]:
        return {
            "search": self._oneshot.state_dict(),
            "schedule": self._schedule.state_dict(),
            "epoch": self.epoch,
            "history": self.history,
            "done": self._done,
            "seconds": self._seconds,
            "random": self._random(),
            "random_before_epoch": self._before,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._set_random(state["random"])
        self._oneshot.load_state_dict(state["search"])
        self._schedule.load_state_dict(state["schedule"])
        self.epoch, self.history, self._done = state["epoch"], state["history"], state["done"]
        self._seconds, self._before = state["seconds"], state["random_before_epoch"]

    # Random numbers.

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Torch's random numbers are those of the data."""
        model = torch.get_rng_state()
        torch.set_rng_state(self._data)
        try:
            yield
        finally:
            self._data = torch.get_rng_state()
            torch.set_rng_state(model)

    def _random(self) -> dict[str, Any]:
        """The generators that batches and layers draw from."""
        numpys: Any = np.random.get_state()  # noqa: NPY002 - data sets draw from it
        state = {
            "torch": torch.get_rng_state(),
            "data": self._data,
            "loaders": [generator.get_state() for generator in self._generators()],
            "python": random.getstate(),
            "numpy": [numpys[0], numpys[1].tolist(), *numpys[2:]],
        }
        if self._oneshot.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._oneshot.device)
        return state

    def _set_random(self, state: Mapping[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        self._data = state["data"]
        for generator, saved in zip(self._generators(), state["loaders"], strict=True):
            generator.set_state(saved)
        random.setstate(state["python"])
        np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
        if "cuda" in state and self._oneshot.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self._oneshot.device)

    def _generators(self) -> list[torch.Generator]:
        """Those of data loaders and of their samplers, each once."""
        generators = {}
        for batches in (self._train, self._valid):
            batch_sampler = getattr(batches, "batch_sampler", None)
            for holder in (batches, getattr(batches, "sampler", None), getattr(batch_sampler, "sampler", None)):
                generator = getattr(holder, "generator", None)
                if isinstance(generator, torch.Generator):
                    generators[id(generator)] = generator
        return list(generators.values())


def _cycled(batches: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("valid gave no batches; is it empty, or used up?")
