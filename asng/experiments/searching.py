"""Shared by the image searches: settings, the one-shot search and its result."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from asng import SNG, RandomSearch, __version__, nas
from asng._asktell import Optimizer
from asng.experiments import training
from asng.nas._outcome import LossFn, to_outcome
from asng.nas.architecture import from_json
from asng.nas.oneshot import finite_mean
from asng.nas.result import certainty
from asng.optimizer import ASNG
from asng.runs import read_config

TRAIN, VALID = 0, 1  # streams of random numbers for mini-batches
TOP_K = 10  # of random search, judged on all mini-batches

Method = Literal["asng", "sng", "uniform"]
METHODS: dict[Method, Callable[..., Optimizer]] = {"asng": ASNG, "sng": SNG, "uniform": RandomSearch}
Batch = tuple[Tensor, ...]
BatchFn = Callable[[int], Batch]  # by their number
Values = Mapping[str, Any]
Settings = TypeVar("Settings")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of all searches."""

    population_size: int = 2
    """Architectures per half of an iteration (lambda)."""
    lr: float = 0.025
    """Learning rate of the weights at the start of its cosine."""
    method: Method = "asng"
    """How the distribution moves: asng; sng, with a constant step; uniform, not at all (random search)."""
    num_random: int = 1000
    """With the method uniform: architectures drawn at the end, of which the best one is taken."""
    max_params: int | None = None
    """A hard limit on the parameters of an architecture, at the size of the search."""
    test: bool = True
    """The most likely architecture is tested now and then, in time that is not counted; --no-test leaves that out."""
    amp_dtype: training.AmpDtype = "off"
    """Mixed precision."""
    seed: int = 0
    """All random numbers follow from it."""


class SearchJob:
    """A one-shot search as the paper does it.

    Args:
        settings: Of the search.
        model: With decisions, on its device.
        loss_fn: (model, batch) -> scalar, or (scalar, metrics).
        size: (model, values) -> number of parameters, for `max_params`.
        weight_decay: Of the weights.
        capture: Run each step as one CUDA graph.
    """

    def __init__(
        self,
        settings: SearchSettings,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        size: Callable[[nn.Module, Values], int],
        weight_decay: float,
        capture: bool = False,
    ) -> None:
        self._settings, self._loss_fn = settings, loss_fn
        streams = np.random.SeedSequence(settings.seed).spawn(2)
        self.arch_optimizer = METHODS[settings.method](
            nas.space_of(model), population_size=settings.population_size, seed=streams[0]
        )
        self._eval_seed = streams[1]
        # Not fused: there torch refuses weights that are touched for the first time beside others that were before.
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=weight_decay)
        max_params = settings.max_params
        self.oneshot = nas.OneShot(
            model,
            self.arch_optimizer,
            weight_optimizer,
            loss_fn,
            max_grad_norm=5.0,
            limits=[] if max_params is None else [nas.Limit(size, max_params, "parameters")],
            amp_dtype=training.parse_amp_dtype(settings.amp_dtype),
            capture=capture,
        )
        if settings.method == "uniform" and max_params is not None:
            self._draw_feasible()  # raises now rather than at the end

    def step(self, train: Batch, valid: Batch, done: float) -> dict[str, training.Number]:
        """One iteration, at the learning rate that a cosine has when a share `done` of all is behind it.

        One mini-batch moves the weights, the other one the distribution. Returns the mean losses of the architectures
        that ran, the mean metrics of those that were judged and, under a limit, the share of feasible ones.
        """
        training.set_lr(self.oneshot.weight_optimizer, training.cosine_lr(self._settings.lr, done))
        step = self.oneshot.step(train, valid)
        feasible = sum(loss is not None for loss in step.valid_losses)
        record: dict[str, training.Number] = {"train_loss": step.train_loss} if step.train_losses else {}
        if feasible:
            record["valid_loss"] = step.valid_loss
        if self._settings.max_params is not None:
            record["feasible"] = feasible / len(step.valid_losses)
        for name in dict.fromkeys(name for metrics in step.valid_metrics for name in metrics):
            record[f"valid_{name}"] = finite_mean(metrics.get(name) for metrics in step.valid_metrics)
        return record

    def certainty(self) -> dict[str, float]:
        """How certain the search is."""
        return certainty(self.arch_optimizer)

    def top_values(self) -> dict[str, Any] | None:
        """The most likely architecture so far; none where all are equally likely."""
        return None if self._settings.method == "uniform" else nas.top(self.oneshot)[0].values

    def result(self, valid: BatchFn, steps: int, show: training.Show = training.show_nothing) -> dict[str, Any]:
        """The final architecture, and the distribution behind it.

        Random search chooses only now, on `steps` mini-batches by their numbers.
        """
        if self._settings.method == "uniform":
            values, probability, feasible = self._best_of_random(valid, steps, show), None, True
        else:
            values, probability, feasible = nas.top(self.oneshot)[0]
        distribution = {name: np.asarray(p).tolist() for name, p in self.arch_optimizer.distribution().items()}
        return {"values": values, "feasible": feasible, "probability": probability, "distribution": distribution}

    def load_result(self, folder: Path) -> dict[str, Any]:
        """The architecture of a run so far; random search chooses one at its end, and only once."""
        likely = self.top_values()
        if likely is not None:
            return likely
        path = folder / "architecture.json"
        if not path.exists():
            raise ValueError(f"{folder} is a random search, which chooses an architecture at its end; let it finish")
        return from_json(path.read_text(encoding="utf-8"), self.arch_optimizer.space)

    def _draw_feasible(self) -> list[dict[str, Any]]:
        """The feasible candidates of random search."""
        drawn = RandomSearch(self.arch_optimizer.space, seed=self._eval_seed).ask(self._settings.num_random)
        feasible = [candidate.values for candidate in drawn if self.oneshot.is_feasible(candidate.values)]
        if not feasible:
            raise ValueError(f"none of {len(drawn)} architectures meets the limit; raise max_params")
        return feasible

    def _best_of_random(self, valid: BatchFn, steps: int, show: training.Show) -> dict[str, Any]:
        """Random search with shared weights: many on the same mini-batch, then the best few of them on all."""
        drawn, done = self._draw_feasible(), 0
        text = f"choosing among {len(drawn):,} architectures"
        total = len(drawn) + min(TOP_K, len(drawn)) * steps
        show(0.0, text, line=True)

        def evaluate(values: Values, batches: int) -> float:
            nonlocal done
            loss = self._evaluate(values, map(valid, range(batches)))
            done += batches
            show(done / total, text)
            return loss

        best = sorted(drawn, key=lambda values: evaluate(values, 1))[:TOP_K]
        return min(best, key=lambda values: evaluate(values, steps))

    def _evaluate(self, values: Values, batches: Iterable[Batch]) -> float:
        """The mean loss on some mini-batches; what is not finite is worst."""
        self.oneshot.supernet.select(values)
        with torch.no_grad():
            losses = [to_outcome(self._loss_fn(self.oneshot.model, batch)).loss for batch in batches]
        loss = torch.stack(losses).mean().item()
        return loss if math.isfinite(loss) else math.inf

    def state_dict(self) -> dict[str, Any]:
        return self.oneshot.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.oneshot.load_state_dict(state)


def check_settings(settings: Any, **minima: int) -> None:
    """Raise ValueError for settings below their minima, and for an impossible learning rate."""
    for name, minimum in minima.items():
        if getattr(settings, name) < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {getattr(settings, name)}")
    if not settings.lr > 0 or not math.isfinite(settings.lr):
        raise ValueError(f"lr must be above 0, got {settings.lr}")


def check_max_params(max_params: int | None, num_params: int) -> None:
    """Raise ValueError if the smallest architecture, with `num_params`, is too large: none would ever run."""
    if max_params is not None and max_params < num_params:
        raise ValueError(
            f"the smallest architecture has {num_params:,} parameters, more than max_params={max_params:,}"
        )


def run_config(experiment: str, kind: str, settings: Any) -> dict[str, Any]:
    """The configuration of a run, for its folder."""
    return {"experiment": experiment, "kind": kind, "version": __version__, **vars(settings)}


def read_checkpointed_config(folder: Path, experiment: str) -> dict[str, Any]:
    """The configuration of a run with a checkpoint; raises ValueError if there is none."""
    config = read_config(folder)
    if config.get("experiment") != experiment or config.get("kind") not in ("search", "retrain"):
        raise ValueError(f"{folder} is no run of {experiment}: its config.json says {config.get('experiment')!r}")
    if not (folder / training.CHECKPOINT).exists():
        raise ValueError(f"{folder} has no {training.CHECKPOINT} yet; let it run until its first checkpoint")
    return config


def settings_from_config(kind: type[Settings], config: Mapping[str, Any]) -> Settings:
    """Settings from a run's configuration; lists become tuples."""
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
    try:
        given = {field.name: tuples[field.name] for field in fields(kind)}  # type: ignore[arg-type]
    except KeyError as error:
        made = f"asng {config.get('version', 'of another version')}"
        raise ValueError(
            f"the run was made by {made}, without the setting {error}, and this is asng {__version__}; "
            f"do this with {made}, or run it again"
        ) from None
    return kind(**given)
