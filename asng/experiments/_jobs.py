"""Searches and trainings of the image experiments, as resumable jobs.

An experiment is a `Task`; all else is the same for all of them.
"""

import math
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asng import RandomSearch, nas
from asng._asktell import describe_distribution
from asng._progress import Progress, no_progress
from asng._untrusted import read_text
from asng.experiments._images import Batches, halves
from asng.experiments._settings import AMP_DTYPES, JobSettings, SearchSettings, set_lr
from asng.experiments._task import Task, Values
from asng.experiments._train_step import TrainStep
from asng.nas._candidates import finite_mean, to_outcome
from asng.nas._loop import Epoch, Job, Number
from asng.nas.architecture import from_json
from asng.nas.result import concentration
from asng.runs import ARCHITECTURE

TRAIN, VALID = 0, 1  # streams of random numbers for mini-batches
TOP_K = 10  # of random search, judged on all mini-batches
MIN_SECONDS = 1e-9  # clocks may stand still for a while

Callback = Callable[[Mapping[str, Any]], object]  # told the record of each epoch


class ImageJob(Job):
    """Base class of searches and trainings."""

    images_per_step: int

    def __init__(self, task: Task, settings: JobSettings, callback: Callback | None) -> None:
        self._task, self._settings, self.device, self._callback = task, settings, task.device, callback
        torch.manual_seed(settings.seed)

    def _batches(self, indices: Tensor, stream: int) -> Batches:
        transform = self._task.transform(self._settings)
        return Batches(self._task.train, indices, self._settings.batch_size, transform, self._settings.seed, stream)

    @property
    def steps_per_epoch(self) -> int:
        return self._settings.steps_per_epoch(self.train_batches.steps)

    @cached_property
    def train_batches(self) -> Batches:
        return self._batches(self._task.train_indices(self._settings), TRAIN)

    def _fraction_done(self, index: int) -> float:
        return self._settings.fraction_done(index, self.steps_per_epoch)

    def status(self, epoch: Epoch) -> dict[str, float]:
        seconds = max(epoch.seconds, MIN_SECONDS)
        return {"images_per_second": self._settings.batch_size * self.images_per_step * epoch.steps / seconds}

    def finish_epoch(self, epoch: Epoch) -> dict[str, Any]:
        losses = [values for name, values in epoch.to_floats().items() if name.endswith("loss")]
        not_finite = max((sum(not math.isfinite(value) for value in values) for values in losses), default=0)
        record = {"step": epoch.number * self.steps_per_epoch, **self.status(epoch)}
        return {**record, "not_finite": not_finite} if not_finite else record

    def wants_stop(self, record: Mapping[str, Any] | None = None) -> bool:
        if record is not None and self._callback is not None:
            self._callback(record)
        return False


class BilevelJob(ImageJob):
    """Base class of searches: one half of the images trains the weights, the other chooses the architecture."""

    images_per_step = 2

    @cached_property
    def _halves(self) -> tuple[Tensor, Tensor]:
        used = self._task.train_indices(self._settings)
        first, second = halves(len(used), self._settings.seed)
        return used[first], used[second]

    @cached_property
    def train_batches(self) -> Batches:
        return self._batches(self._halves[0], TRAIN)

    @cached_property
    def valid_batches(self) -> Batches:
        return self._batches(self._halves[1], VALID)

    @property
    def _calibration(self) -> int:
        return min(self._task.calibration_batches, self.train_batches.steps)

    def _recalibrate(self, network: nn.Module) -> None:
        """Re-estimate the batch statistics of a network, if its task asks for that."""
        if self._task.calibration_batches:
            nas.recalibrate(network, (self.train_batches(number)[0] for number in range(self._calibration)))


class SearchJob(BilevelJob):
    """A one-shot search as the paper does it: one half of the images moves the weights, the other the distribution."""

    def __init__(
        self, task: Task, settings: SearchSettings, *, capture: bool = False, callback: Callback | None = None
    ) -> None:
        super().__init__(task, settings, callback)
        self._search_settings = settings
        self.model = task.build_supernet(settings)
        size, max_params, smallest = task.size_of(settings), settings.max_params, task.smallest_values(self.model)
        if max_params and smallest and max_params < (least := size(self.model, smallest)):
            raise ValueError(f"the smallest architecture has {least:,} parameters, more than max_params={max_params:,}")
        streams = np.random.SeedSequence(settings.seed).spawn(2)
        self.arch_optimizer = settings.build_optimizer(task.search_space(vars(settings)), streams[0])
        self._eval_seed = streams[1]
        # Not fused: there torch refuses weights that are touched for the first time beside others that were before.
        weight_optimizer = torch.optim.SGD(
            self.model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=task.weight_decay
        )
        capture = capture and task.is_capturable and self.device.type == "cuda"
        # Plain steps are faster as the images lie, captured ones with channels last.
        self._format = torch.channels_last if capture else torch.preserve_format
        self.oneshot = nas.OneShot(
            self.model,
            self.arch_optimizer,
            weight_optimizer,
            task.search_loss,
            max_grad_norm=5.0,
            limits=[] if max_params is None else [nas.Limit(size, max_params, name="parameters")],
            amp_dtype=AMP_DTYPES[settings.amp_dtype],
            capture=capture,
        )
        self._capture_cost: dict[str, float] = {}
        if settings.method == "uniform" and max_params is not None:
            self._draw_feasible()  # raises now rather than at the end

    def step(self, index: int) -> dict[str, Number]:
        """One iteration; returns mean losses and metrics, and under a limit the share of feasible architectures."""
        set_lr(self.oneshot.weight_optimizer, self._settings.lr_at(self._fraction_done(index)))
        step = self.oneshot.step(self._to_format(self.train_batches(index)), self._to_format(self.valid_batches(index)))
        feasible = sum(loss is not None for loss in step.valid_losses)
        record: dict[str, Number] = {"train_loss": step.train_loss} if step.train_losses else {}
        if feasible:
            record["valid_loss"] = step.valid_loss
        if self._search_settings.max_params is not None:
            record["feasible"] = feasible / len(step.valid_losses)
        for name in dict.fromkeys(name for metrics in step.valid_metrics for name in metrics):
            record[f"valid_{name}"] = finite_mean(metrics.get(name) for metrics in step.valid_metrics)
        return record

    def status(self, epoch: Epoch) -> dict[str, float]:
        return {**concentration(self.arch_optimizer), **super().status(epoch)}

    def finish_epoch(self, epoch: Epoch) -> dict[str, Any]:
        record, likely = super().finish_epoch(epoch), self.top_values()
        if self._capture_cost != self.oneshot.capture_cost:  # a step was captured in this epoch
            self._capture_cost = self.oneshot.capture_cost
            record |= self._capture_cost
        if likely is not None:
            record |= {"distribution": describe_distribution(self.arch_optimizer), **self._task.record_of(likely)}
        if likely is not None and self._settings.test:
            record |= self._task.measure(self.network(likely), self._settings)
            if self._task.calibration_batches:
                record["calibration_batches"] = self._calibration
        return record

    def network(self, values: Values) -> nn.Module:
        """The static network of an architecture with the weights of the search and its own batch statistics."""
        network = self.oneshot.supernet.extract(values)
        self._recalibrate(network)
        return network

    def top_values(self) -> dict[str, Any] | None:
        """The most likely architecture so far; none where all are equally likely."""
        return None if self._search_settings.method == "uniform" else nas.top(self.oneshot)[0].values

    def result(self, progress: Progress = no_progress) -> dict[str, Any]:
        """The final architecture, and the distribution behind it; random search chooses only now."""
        if self._search_settings.method == "uniform":
            values, probability, feasible = self._best_of_random(progress), None, True
        else:
            values, probability, feasible = nas.top(self.oneshot)[0][:3]
        distribution = {name: np.asarray(p).tolist() for name, p in self.arch_optimizer.distribution().items()}
        return {"values": values, "feasible": feasible, "probability": probability, "distribution": distribution}

    def load_result(self, folder: Path) -> dict[str, Any]:
        """The architecture of a run so far; random search chooses one at its end, and only once."""
        likely = self.top_values()
        if likely is not None:
            return likely
        path = folder / ARCHITECTURE
        if not path.exists():
            raise ValueError(f"{folder} is a random search, which chooses an architecture at its end; let it finish")
        return from_json(read_text(path, "let the search finish again"), self.arch_optimizer.space)

    def _to_format(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        images, *others = batch
        return images.to(memory_format=self._format), *others

    def _draw_feasible(self) -> list[dict[str, Any]]:
        """The feasible candidates of random search."""
        drawn = RandomSearch(self.arch_optimizer.space, seed=self._eval_seed).ask(self._search_settings.num_random)
        feasible = [candidate.values for candidate in drawn if self.oneshot.is_feasible(candidate.values)]
        if not feasible:
            raise ValueError(f"none of {len(drawn)} architectures meets the limit; raise max_params")
        return feasible

    def _best_of_random(self, progress: Progress) -> dict[str, Any]:
        """Random search with shared weights: many on the same mini-batch, then the best few of them on all."""
        drawn, done, steps = self._draw_feasible(), 0, self.valid_batches.steps
        text = f"choosing among {len(drawn):,} architectures"
        total = len(drawn) + min(TOP_K, len(drawn)) * steps
        progress(0.0, text, line=True)

        def evaluate(batches: int, values: Values) -> float:
            nonlocal done
            self.oneshot.supernet.choose(values)
            pairs = (self._to_format(self.valid_batches(number)) for number in range(batches))
            losses = [to_outcome(self._task.search_loss(self.model, pair)).loss for pair in pairs]
            done += batches
            progress(done / total, text)
            loss = torch.stack(losses).mean().item()
            return loss if math.isfinite(loss) else math.inf

        amp_dtype = AMP_DTYPES[self._settings.amp_dtype]  # the precision, and so the kernels, of the search
        autocast = torch.autocast(self.device.type, dtype=amp_dtype, enabled=amp_dtype is not None)
        with torch.no_grad(), autocast:
            best = sorted(drawn, key=partial(evaluate, 1))[:TOP_K]
            return min(best, key=partial(evaluate, steps))

    def state_dict(self) -> dict[str, Any]:
        return self.oneshot.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.oneshot.load_state_dict(state)


class TrainJob(ImageJob):
    """Training of an architecture from scratch."""

    images_per_step = 1

    def __init__(self, task: Task, settings: JobSettings, values: Values, *, callback: Callback | None = None) -> None:
        super().__init__(task, settings, callback)
        self.model = task.build_network(settings, values)
        self._train_step = TrainStep(
            self.model,
            task.build_optimizer(settings, self.model),
            partial(task.train_loss, settings),
            max_grad_norm=5.0,
            amp_dtype=AMP_DTYPES[settings.amp_dtype],
        )
        self._phase: float | None = None

    def step(self, index: int) -> dict[str, Number]:
        fraction = self._fraction_done(index)
        if fraction != self._phase:
            self._task.set_phase(self._settings, self.model, fraction)
        self._phase = fraction
        set_lr(self._train_step.optimizer, self._settings.lr_at(fraction))
        return {"train_loss": self._train_step(self.train_batches(index))}

    def finish_epoch(self, epoch: Epoch) -> dict[str, Any]:
        record, is_last = super().finish_epoch(epoch), epoch.number == self._settings.epochs
        return record | self._task.measure(self.model, self._settings) if self._settings.test or is_last else record

    def state_dict(self) -> dict[str, Any]:
        return self._train_step.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._train_step.load_state_dict(state)
