"""What the searches on images share: their settings, the parts of a one-shot search, and what it has found."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from asng import SNG, Uniform, __version__, nas
from asng.asktell import AskTell
from asng.experiments import training
from asng.nas._outcome import LossFn, to_outcome
from asng.nas.architecture import from_json
from asng.nas.oneshot import finite_mean
from asng.nas.result import certainty
from asng.optimizer import ASNG
from asng.runs import config_of

TRAIN, VALID = 0, 1  # streams of random numbers for mini-batches
FINALISTS = 10  # of random search, judged on all mini-batches

Method = Literal["asng", "sng", "uniform"]
METHODS: dict[Method, Callable[..., AskTell]] = {"asng": ASNG, "sng": SNG, "uniform": Uniform}
Batch = tuple[Tensor, ...]
Batches = Callable[[int], Batch]  # by their number
Values = Mapping[str, Any]
Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """What every search is told."""

    samples: int = 2
    """Architectures per half of an iteration (lambda)."""
    rate: float = 0.025
    """Learning rate of the weights at the start of its cosine."""
    method: Method = "asng"
    """How the distribution moves: asng; sng, with a constant step; uniform, not at all (random search)."""
    candidates: int = 1000
    """With the method uniform: architectures drawn at the end, of which the best one is taken."""
    most_parameters: int | None = None
    """A hard limit on the parameters of an architecture, at the size of the search."""
    test: bool = True
    """The most likely architecture is tested now and then, in time that is not counted; --no-test leaves that out."""
    amp: training.Amp = "off"
    """Mixed precision."""
    seed: int = 0
    """All random numbers follow from it."""


class Searching:
    """A one-shot search as the paper does it.

    loss        (model, batch) -> scalar, or (scalar, metrics)
    size        (model, values) -> parameters, where they are limited
    capture     run each step as one CUDA graph
    """

    def __init__(
        self,
        settings: SearchSettings,
        model: nn.Module,
        loss: LossFn,
        *,
        size: Callable[[nn.Module, Values], int],
        weight_decay: float,
        capture: bool = False,
    ) -> None:
        self._settings, self._loss = settings, loss
        streams = np.random.SeedSequence(settings.seed).spawn(2)
        self.optimizer = METHODS[settings.method](nas.space_of(model), samples=settings.samples, seed=streams[0])
        self._judges = streams[1]
        # Not fused: there torch refuses weights that are touched for the first time beside others that were before.
        weights = torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=0.9, weight_decay=weight_decay)
        most = settings.most_parameters
        self.oneshot = nas.OneShot(
            model,
            self.optimizer,
            weights,
            loss,
            clip_norm=5.0,
            limits=[] if most is None else [nas.Limit(size, most, "parameters")],
            amp=training.dtype_of(settings.amp),
            capture=capture,
        )
        if settings.method == "uniform" and most is not None:
            self._drawn()  # raises now rather than at the end

    def step(self, train: Batch, valid: Batch, done: float) -> dict[str, training.Number]:
        """One iteration, at the learning rate that a cosine has when a share `done` of all is behind it.

        One mini-batch moves the weights, the other one the distribution. Returns the mean losses of the architectures
        that ran, the mean metrics of those that were judged and, under a limit, the share inside of it.
        """
        training.set_rate(self.oneshot.weights, training.cosine(self._settings.rate, done))
        step = self.oneshot.step(train, valid)
        inside = sum(loss is not None for loss in step.valid_losses)
        record: dict[str, training.Number] = {"train_loss": step.train_loss} if step.train_losses else {}
        if inside:
            record["valid_loss"] = step.valid_loss
        if self._settings.most_parameters is not None:
            record["inside"] = inside / len(step.valid_losses)
        for name in dict.fromkeys(name for metrics in step.valid_metrics for name in metrics):
            record[f"valid_{name}"] = finite_mean(metrics.get(name) for metrics in step.valid_metrics)
        return record

    def certainty(self) -> dict[str, float]:
        """How far it has come."""
        return certainty(self.optimizer)

    def most_likely(self) -> dict[str, Any] | None:
        """The most likely architecture so far; none where all are equally likely."""
        return None if self._settings.method == "uniform" else nas.most_likely(self.oneshot).values

    def found(self, valid: Batches, steps: int, show: training.Show = training.silent) -> dict[str, Any]:
        """The architecture that the search ends with, and the distribution behind it.

        Random search chooses only now, on `steps` mini-batches by their numbers.
        """
        if self._settings.method == "uniform":
            values, inside, probability = self._best_of_random(valid, steps, show), True, None
        else:
            values, inside, probability = nas.most_likely(self.oneshot)
        distribution = {name: np.asarray(p).tolist() for name, p in self.optimizer.distribution().items()}
        return {"values": values, "inside": inside, "probability": probability, "distribution": distribution}

    def found_in(self, folder: Path) -> dict[str, Any]:
        """The architecture that a run has found so far; random search chooses its own at the end, and only once."""
        likely = self.most_likely()
        if likely is not None:
            return likely
        path = folder / "architecture.json"
        if not path.exists():
            raise ValueError(f"{folder} is a random search, which chooses an architecture at its end; let it finish")
        return from_json(path.read_text(encoding="utf-8"), self.optimizer.space)

    def _drawn(self) -> list[dict[str, Any]]:
        """The candidates of random search that are inside of the limit."""
        drawn = Uniform(self.optimizer.space, seed=self._judges).ask(self._settings.candidates)
        inside = [candidate.values for candidate in drawn if not self.oneshot.excess(candidate.values)]
        if not inside:
            raise ValueError(f"none of {len(drawn)} architectures meets the limit; raise most_parameters")
        return inside

    def _best_of_random(self, valid: Batches, steps: int, show: training.Show) -> dict[str, Any]:
        """Random search with shared weights: many on the same mini-batch, then the best few of them on all."""
        drawn, done = self._drawn(), 0
        text = f"choosing among {len(drawn):,} architectures"
        every = len(drawn) + min(FINALISTS, len(drawn)) * steps
        show(0.0, text, line=True)

        def judged(values: Values, batches: int) -> float:
            nonlocal done
            loss = self._judged(values, map(valid, range(batches)))
            done += batches
            show(done / every, text)
            return loss

        best = sorted(drawn, key=lambda values: judged(values, 1))[:FINALISTS]
        return min(best, key=lambda values: judged(values, steps))

    def _judged(self, values: Values, batches: Iterable[Batch]) -> float:
        """The mean loss on some mini-batches; what is not finite is worst."""
        nas.select(self.oneshot.model, values)
        with torch.no_grad():
            losses = [to_outcome(self._loss(self.oneshot.model, batch)).loss for batch in batches]
        loss = torch.stack(losses).mean().item()
        return loss if math.isfinite(loss) else math.inf

    def state_dict(self) -> dict[str, Any]:
        return self.oneshot.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.oneshot.load_state_dict(state)


def check(settings: Any, **least: int) -> None:
    """Raise ValueError for numbers below what they must be at least, and for learning rates that are none."""
    for name, minimum in least.items():
        if getattr(settings, name) < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {getattr(settings, name)}")
    if not settings.rate > 0 or not math.isfinite(settings.rate):
        raise ValueError(f"rate must be above 0, got {settings.rate}")


def check_limit(most: int | None, least: int) -> None:
    """Raise ValueError where the smallest architecture, of so many parameters, is too large; none would ever run."""
    if most is not None and most < least:
        raise ValueError(f"the smallest architecture has {least:,} parameters, more than most_parameters={most:,}")


def config(experiment: str, kind: str, settings: Any) -> dict[str, Any]:
    """What the folder of a run says of it."""
    return {"experiment": experiment, "kind": kind, "version": __version__, **vars(settings)}


def config_in(folder: Path, experiment: str) -> dict[str, Any]:
    """What the folder of a run with a checkpoint says of it; raises ValueError for another one."""
    there = config_of(folder)
    if there.get("experiment") != experiment or there.get("kind") not in ("search", "retrain"):
        raise ValueError(f"{folder} is no run of {experiment}: its config.json says {there.get('experiment')!r}")
    if not (folder / training.CHECKPOINT).exists():
        raise ValueError(f"{folder} has no {training.CHECKPOINT} yet; let it run for an epoch, or a stretch, at least")
    return there


def settings_in(kind: type[Kind], there: Mapping[str, Any]) -> Kind:
    """Settings of a kind, as a run's folder has them; JSON knows no tuples, and settings no lists."""
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in there.items()}
    try:
        given = {field.name: tuples[field.name] for field in fields(kind)}  # type: ignore[arg-type]
    except KeyError as error:
        made = f"asng {there.get('version', 'of another version')}"
        raise ValueError(
            f"the run was made by {made}, without the setting {error}, and this is asng {__version__}; "
            f"do this with {made}, or run it anew"
        ) from None
    return kind(**given)
