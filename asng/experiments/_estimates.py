"""Estimates of a run before it is made: its space, networks, steps, time, memory, disk. Nothing is written.

Times are those of a few real steps, on this machine, of a network that is thrown away.
"""

import io
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import torch

from asng import RandomSearch, nas
from asng.experiments import digits, digits_tuning, toy
from asng.experiments._jobs import SearchJob, TrainJob
from asng.experiments._settings import JobSettings, SearchSettings
from asng.experiments._task import Task, Values
from asng.nas.supernet import Supernet
from asng.space import Variable

NUM_SAMPLES = 100  # random architectures whose parameters are counted
MAX_SECONDS, MAX_STEPS = 5.0, 20  # of steps that are timed
TIMED_ITERATIONS = 200  # of the toy problem

Estimate = dict[str, Any]


def estimate_search(task: Task, settings: SearchSettings, *, capture: bool = False) -> Estimate:
    """Of a search on images."""
    job = SearchJob(task, settings, capture=capture)
    supernet, size = job.oneshot.supernet, task.size_of(settings)
    count = supernet.num_parameters if size is nas.parameters else partial(size, job.model)
    return {**describe_space(supernet.space), **count_parameters(supernet, count), **_estimate_job(job, settings)}


def estimate_training(task: Task, settings: JobSettings, values: Values) -> Estimate:
    """Of a training from scratch on images."""
    job = TrainJob(task, settings, values)
    trained = sum(p.numel() for p in job.model.parameters())
    counted = task.summarize(settings, values, job.model).get("parameters", trained)  # as the run's summary counts
    return {"parameters": counted, "training_only_parameters": trained - counted, **_estimate_job(job, settings)}


def _estimate_job(job: SearchJob | TrainJob, settings: JobSettings) -> Estimate:
    steps = settings.epochs * job.steps_per_epoch
    indices = cycle(range(steps))

    def step() -> None:
        for number in job.step(next(indices)).values():
            float(number)  # waits for the device

    seconds = time_calls(step)
    return {"steps": steps, **seconds.estimate(steps), **_sizes(job, job.device)}


def estimate_digits(settings: digits.DigitsSettings) -> Estimate:
    """Of `asng digits search`: the search, and the trainings from scratch beside it."""
    data = digits.load_split(settings.seed)
    with digits.one_thread():
        oneshot, job = digits.make_search(settings, data)
        generator = torch.Generator().manual_seed(settings.seed)
        batches = digits.ShuffledBatches(data.train, settings.batch_size, generator)
        batch = next(iter(batches))
        warmup = time_calls(lambda: oneshot.train_step(batch))
        step = time_calls(lambda: oneshot.step(batch, batch))
        once = replace(settings, training_epochs=1)
        random = digits.draw_random(replace(settings, epochs=3 * settings.training_epochs))
        half = statistics.fmean(digits.train(once, data, values, hold_out=True)["seconds"] for values in random)
    steps = settings.epochs * len(batches)
    judged = settings.epochs - settings.warmup_epochs
    searching = len(batches) * (settings.warmup_epochs * warmup.mean + judged * step.mean)
    # The random ones are trained on half of the images; the result, a handcrafted one and two random ones on all.
    training = settings.training_epochs * half * (settings.num_random + 4 * 2)
    supernet = oneshot.supernet
    estimate = {**describe_space(supernet.space), **count_parameters(supernet, supernet.num_parameters)}
    times = {"steps": steps, **step.estimate((searching + training) / step.mean)}
    return {**estimate, **times, **_sizes(job, job.device)}


def estimate_tuning(settings: digits_tuning.TuneSettings) -> Estimate:
    """Of `asng digits tune`, if no trial ends early."""
    shared = {name: getattr(settings, name) for name in ("batch_size", "seed", "epochs", "training_epochs")}
    one = estimate_digits(digits.DigitsSettings(**shared, warmup=0.0))
    steps = (settings.trials + 1) * one["steps"]
    times = Timing(one["seconds_per_step"], one["fastest_step"], one["slowest_step"]).estimate(steps)
    return {**one, "steps": steps, **times, "disk_bytes": None, "at_most": True}


def estimate_sweep(sweep: toy.ToySettings) -> Estimate:
    """Of `asng toy sweep`, if no run reaches the target before the last iteration."""
    settings = toy.settings_of(sweep)
    one_of_each = {setting.method: setting for setting in settings}.values()
    iterations = min(TIMED_ITERATIONS, sweep.iterations)
    start = time.perf_counter()
    for setting in one_of_each:
        toy.simulate(replace(sweep, iterations=iterations), setting)
    seconds = (time.perf_counter() - start) / len(one_of_each) / iterations
    steps = len(settings) * sweep.iterations
    space = {"variables": sweep.variables, "architectures": sweep.choices**sweep.variables}
    times = {"steps": steps, "seconds_per_step": seconds, "seconds": steps * seconds / sweep.workers, "at_most": True}
    return {**space, **times, "memory_bytes": _peak_memory(torch.device("cpu")), "disk_bytes": None}


def describe_space(space: Mapping[str, Variable]) -> Estimate:
    """The numbers of variables and architectures; None where a variable has infinitely many values.

    >>> from asng import Categorical, Integer, Real
    >>> describe_space({"act": Categorical(["relu", "tanh"]), "depth": Integer(1, 3)})
    {'variables': 2, 'architectures': 6}
    >>> describe_space({"rate": Real(0.0, 1.0)})
    {'variables': 1, 'architectures': None}
    """
    values = [variable.values() for variable in space.values()]
    counts = [len(each) for each in values if each is not None]
    return {"variables": len(space), "architectures": math.prod(counts) if len(counts) == len(values) else None}


def count_parameters(supernet: Supernet, count: Callable[[Values], int]) -> Estimate:
    """Parameters of all weights, and of the networks of random architectures: smallest, median, largest."""
    sizes = sorted(count(candidate.values) for candidate in RandomSearch(supernet.space, seed=0).ask(NUM_SAMPLES))
    networks = {"smallest": sizes[0], "median": sizes[len(sizes) // 2], "largest": sizes[-1]}
    return {"parameters": sum(p.numel() for p in supernet.model.parameters()), "networks": networks}


class Timing(NamedTuple):
    """Seconds of a step."""

    mean: float
    fastest: float
    slowest: float

    def estimate(self, steps: float) -> Estimate:
        """The times that a number of steps takes, for an estimate."""
        per_step = {"seconds_per_step": self.mean, "fastest_step": self.fastest, "slowest_step": self.slowest}
        return {**per_step, "seconds": steps * self.mean, "load": load_per_core(), "threads": torch.get_num_threads()}


def load_per_core() -> float | None:
    """Processes that want to run, per core, in the mean of the last minute; None where the system does not tell."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None


def time_calls(call: Callable[[], object]) -> Timing:
    """The seconds of a call, after a first one that makes ready."""
    call()
    taken: list[float] = []
    while len(taken) < MAX_STEPS and sum(taken) < MAX_SECONDS:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return Timing(statistics.fmean(taken), min(taken), max(taken))


def _sizes(job: Any, device: torch.device) -> Estimate:
    """The memory at its peak so far, and the disk that a checkpoint and the one before it take."""
    if hasattr(job, "oneshot"):
        fill_momentum(job.oneshot.weight_optimizer)
    file = io.BytesIO()
    torch.save(job.state_dict(), file)
    return {"memory_bytes": _peak_memory(device), "disk_bytes": 2 * file.tell()}


def fill_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give all weights a momentum, as many steps do; after a few, those that no candidate has used have none."""
    if any("momentum_buffer" in state for state in optimizer.state.values()):
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            optimizer.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
