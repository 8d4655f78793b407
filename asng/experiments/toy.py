"""The selective squared error function (paper, section 3.1 and supplement D.1): weights and choices together.

    f(x, c) = sum_i (x_{i, c_i} - z_i)^2 + (c_i - 1) / K,    z ~ N(0, K^-2 I)

Each iteration moves the weights x by a gradient step and the distribution of the choices c by one
update of ASNG, SNG or Adam. All runs of a setting are rows of the same arrays.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from asng._checks import check_settings
from asng._progress import Progress, no_progress
from asng._ragged import Array
from asng._untrusted import mismatch, read_json_lines
from asng.baselines import SNGState, adam_init, adam_update, sng_update
from asng.experiments._workers import run_parallel
from asng.families import CategoricalFamily
from asng.optimizer import asng_init, asng_update
from asng.runs import RESULTS, SUMMARY, Run, make_config, write_json

METHODS = ("ASNG", "SNG", "Adam")
POPULATION_SIZE = 2  # lambda, for the weights and for the distribution
MOMENTUM = 0.9
DEFAULT_ALPHA = 1.5


@dataclass(frozen=True)
class ToySettings:
    """The sweep; the defaults are the paper's, and the grid of step sizes shows where each method breaks."""

    variables: int = 30
    """Number of categorical variables (D)."""
    choices: int = 5
    """Number of choices of each variable (K)."""
    runs: int = 100
    """Number of independent runs of each setting."""
    iterations: int = 100_000
    """Maximum number of iterations of a run; also the length of the cosine schedule."""
    lrs: tuple[float, ...] = (0.05, 0.0005)
    """Learning rates of the weights (eps_x)."""
    powers: tuple[float, ...] = tuple(k / 4 for k in range(11))
    """Exponents k: the initial step sizes of the distribution are n_theta^-k."""
    alphas: tuple[float, ...] = (1.1, 1.25, 1.5, 2.0, 3.0)
    """Values of alpha of ASNG; 1.5, its default, is always included."""
    seed: int = 1
    """Seed of all random numbers."""
    workers: int = 2
    """Number of parallel processes; the results do not depend on it."""

    def __post_init__(self) -> None:
        check_settings(self, variables=2, choices=2)
        for name in ("lrs", "powers", "alphas"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values) or not all(map(math.isfinite, values)):
                raise ValueError(f"{name} must be one or more different finite numbers, got {values}")
        if min(self.lrs) <= 0:
            raise ValueError(f"lrs must be above 0, got {self.lrs}")
        if max(map(abs, self.powers)) > 50:
            raise ValueError(f"powers must lie between -50 and 50, got {self.powers}")
        if min(self.alphas) <= 1:
            raise ValueError(f"alphas must be above 1, got {self.alphas}")


# Coarser, for a look in less than a minute: the same problem and methods, fewer runs, a shorter schedule.
QUICK = ToySettings(runs=8, iterations=40_000, lrs=(0.05,), powers=(0.0, 0.5, 1.0, 1.5, 2.0), alphas=(1.5,))


class Setting(NamedTuple):
    """One point of the sweep, and the unit of work."""

    method: str
    lr: float
    power: float
    alpha: float | None  # ASNG only


class Record(TypedDict):
    """A finished setting in results.jsonl."""

    setting: tuple[str, float, float, float | None]
    iterations: list[int | None]


def settings_of(sweep: ToySettings) -> list[Setting]:
    """All points of a sweep, in the order of the report."""
    alphas = [DEFAULT_ALPHA, *(a for a in sweep.alphas if a != DEFAULT_ALPHA)]
    kinds = [("ASNG", alpha) for alpha in alphas] + [("SNG", None), ("Adam", None)]
    return [Setting(m, lr, power, alpha) for lr in sweep.lrs for m, alpha in kinds for power in sweep.powers]


@np.errstate(over="ignore", invalid="ignore")  # weights that diverge fail, quietly
def simulate(sweep: ToySettings, setting: Setting) -> list[int | None]:
    """Per run, the iteration that first drew the target, or None."""
    variables, choices, runs = sweep.variables, sweep.choices, sweep.runs
    family = CategoricalFamily([choices] * variables)
    generator = _setting_generator(sweep, setting)
    start, update = _method(setting, family.dimension**-setting.power)
    state = start(family, np.tile(family.initial(), (runs, 1)))
    x = generator.standard_normal((runs, family.size))
    velocity = np.zeros_like(x)
    first_entry = np.arange(runs * variables).reshape(runs, 1, variables) * choices  # of each variable, in flat x
    running, reached = np.arange(runs), np.zeros(runs, dtype=int)
    for iteration in range(sweep.iterations):
        lr = setting.lr * (1 + math.cos(math.pi * iteration / sweep.iterations)) / 2
        # The samples of both steps come from the same theta.
        c = family.sample(state.theta, 2 * POPULATION_SIZE, generator)
        z = generator.standard_normal((len(x), 2, variables)) * (1 / choices)
        entries = c.astype(np.intp) + first_entry[: len(x)]
        penalties = np.einsum("rsv->rs", c) * (1 / choices)

        chosen = x.take(entries[:, :POPULATION_SIZE])
        values_before = np.vecdot(chosen, chosen) + penalties[:, :POPULATION_SIZE]
        _descend(x, velocity, entries[:, :POPULATION_SIZE], chosen - z[:, :1], lr)

        chosen = x.take(entries[:, POPULATION_SIZE:])
        values = np.vecdot(chosen, chosen) + penalties[:, POPULATION_SIZE:]
        # f less |z|^2, which the samples share: the ranking is the same.
        losses = values - 2 * np.vecdot(chosen, z[:, 1:])
        state = update(family, state, c[:, POPULATION_SIZE:], losses)

        # NaN compares false, so it is never a success, and fmin passes over it.
        found = (np.fmin(values_before, values) < 1 / choices).any(-1)
        if found.any():
            reached[running[found]] = iteration + 1
            left = ~found
            running, x, velocity = running[left], x[left], velocity[left]
            state = type(state)(*(part[left] for part in state))
            if not len(running):
                break
    return [int(i) or None for i in reached]


def _descend(x: Array, velocity: Array, entries: Any, errors: Array, lr: float) -> None:
    """Momentum on all of x; the mean over the samples of the gradient 2 (x - z) reaches the chosen entries."""
    velocity *= MOMENTUM
    gradient = errors * (2 / POPULATION_SIZE)
    np.add.at(velocity.reshape(-1), entries.reshape(-1), gradient.reshape(-1))  # both samples may choose an entry
    x -= lr * velocity


def _setting_generator(sweep: ToySettings, setting: Setting) -> np.random.Generator:
    """Depends on what a setting is, not on its position in the sweep or on the worker."""
    seed = np.random.SeedSequence([sweep.seed, *repr(tuple(setting)).encode()])
    return np.random.Generator(np.random.SFC64(seed))  # the fastest of NumPy's


def _method(setting: Setting, step: float) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The start and the update of a method whose initial step size is given."""
    match setting.method:
        case "ASNG":
            options: dict[str, Any] = {"alpha": setting.alpha, "delta_init": step, "delta_max": math.inf}
            return partial(asng_init, delta_init=step), partial(asng_update, **options)
        case "SNG":
            return lambda family, theta: SNGState(theta), partial(sng_update, delta=step)
        case "Adam":
            return lambda family, theta: adam_init(theta), partial(adam_update, lr=step)
    raise ValueError(f"no method {setting.method!r}; there are {', '.join(METHODS)}")


# The sweep: settings side by side, finished ones kept in the folder of the run.


def run(sweep: ToySettings, folder: Path, progress: Progress = no_progress) -> dict[str, Any]:
    """Run the settings that the folder lacks, then write `summary.json` and the figures; returns the summary.

    `progress` is called with the fraction done, after each setting. Ctrl-C (KeyboardInterrupt)
    ends it at once; called again, it continues, and ends with the same results.
    """
    config = make_config("toy", "sweep", sweep)
    del config["workers"]  # does not change the results
    with Run(folder, config, flags={"workers": sweep.workers}) as run:
        settings, reached = settings_of(sweep), read_records(run.folder, sweep)
        missing = [setting for setting in settings if setting not in reached]
        # Long and short settings mixed, so that the first ones tell how long the rest will take.
        np.random.default_rng(0).shuffle(missing)
        progress(len(reached) / len(settings))
        with closing(run_parallel(partial(simulate, sweep), missing, sweep.workers)) as finished:
            for setting, iterations in finished:
                run.append({"setting": setting, "iterations": iterations})
                reached[setting] = iterations
                progress(len(reached) / len(settings))
        summary = summarize(sweep, reached)
        write_json(run.folder / SUMMARY, summary)
        draw_sweep(summary, run.folder)
    return summary


def read_records(folder: Path, sweep: ToySettings) -> dict[Setting, list[int | None]]:
    """The finished settings; ValueError for any that no run of this sweep writes."""
    path, settings, reached = folder / RESULTS, settings_of(sweep), {}
    for record in read_json_lines(path, "delete the folder") if path.exists() else []:
        if fault := _fault(record, sweep, settings):
            raise ValueError(f"{path} is damaged ({fault}); delete the folder")
        reached[Setting(*record["setting"])] = record["iterations"]
    return reached


def _fault(record: dict[str, Any], sweep: ToySettings, settings: list[Setting]) -> str:
    """The fault of a record of the sweep; empty for a sound one."""
    if fault := mismatch(record, Record):
        return fault
    if tuple(record["setting"]) not in settings:
        return f"{record['setting']} is not a setting of this sweep"
    if len(record["iterations"]) != sweep.runs:
        return f"{len(record['iterations'])} runs of {record['setting']}, not {sweep.runs}"
    if not all(number is None or 1 <= number <= sweep.iterations for number in record["iterations"]):
        return f"iterations of {record['setting']} that are not among 1 to {sweep.iterations}"
    return ""


# The report.


def summarize(sweep: ToySettings, reached: dict[Setting, list[int | None]]) -> dict[str, Any]:
    """All settings with the paper's measure, and for each method and learning rate how far its step sizes reach."""
    dimension = sweep.variables * (sweep.choices - 1)
    points = [_point(setting, dimension**-setting.power, reached[setting]) for setting in settings_of(sweep)]
    lines: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for point in points:
        lines.setdefault((point["lr"], point["method"], point["alpha"]), []).append(point)
    ranges = [
        {
            "lr": lr,
            "method": method,
            "alpha": alpha,
            "all": _spans(line, sweep.runs),
            "any": _spans(line, 1),
            "best": min((p for p in line if p["measure"]), key=lambda point: point["measure"], default=None),
        }
        for (lr, method, alpha), line in lines.items()
    ]
    return {"runs": sweep.runs, "iterations": sweep.iterations, "ranges": ranges, "points": points}


def _point(setting: Setting, step: float, reached: list[int | None]) -> dict[str, Any]:
    successful = [iteration for iteration in reached if iteration is not None]
    median = float(np.median(successful)) if successful else None
    measure = None if median is None else median * len(reached) / len(successful)
    return setting._asdict() | {"step": step, "successes": len(successful), "median": median, "measure": measure}


def _spans(line: list[dict[str, Any]], successes: int) -> list[tuple[float, float]]:
    """The step sizes with at least `successes` successes, as ranges of neighbors on the grid: (largest, smallest)."""
    ordered = sorted(line, key=lambda point: -point["step"])
    spans = [(held, list(near)) for held, near in groupby(ordered, lambda point: point["successes"] >= successes)]
    return [(near[0]["step"], near[-1]["step"]) for held, near in spans if held]


def draw_sweep(summary: dict[str, Any], folder: Path) -> None:
    """`toy.png` and `toy.svg`: the methods above, ASNG's alphas below, one column per learning rate."""
    from matplotlib.figure import Figure  # here, so that workers need not load it

    from asng.experiments._figures import BLUE, GREEN, PURPLE, SKY, VERMILION, save_figure

    looks = [(BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (PURPLE, "D"), (SKY, "v")]  # markers say the same again
    lrs = list(dict.fromkeys(point["lr"] for point in summary["points"]))
    alphas = sorted({point["alpha"] for point in summary["points"] if point["alpha"]})
    methods = [(method, DEFAULT_ALPHA if method == "ASNG" else None, method) for method in METHODS]
    rows = [methods, [("ASNG", alpha, f"ASNG, alpha = {alpha:g}") for alpha in alphas]][: 2 if len(alphas) > 1 else 1]
    figure = Figure(figsize=(4.6 * len(lrs) + 0.4, 3.6 * len(rows) + 0.3), layout="constrained")
    grid = figure.subplots(len(rows), len(lrs), sharex=True, sharey="row", squeeze=False)
    for axes_row, lines in zip(grid, rows, strict=True):
        for axes, lr in zip(axes_row, lrs, strict=True):
            for (method, alpha, label), (color, marker) in zip(lines, looks * len(lines), strict=False):
                line = [p for p in summary["points"] if (p["lr"], p["method"], p["alpha"]) == (lr, method, alpha)]
                measures = [math.nan if p["measure"] is None else p["measure"] for p in line]  # a gap: never reached
                axes.loglog([p["step"] for p in line], measures, color=color, marker=marker, markersize=4, label=label)
            axes.set_title(f"learning rate of the weights {lr:g}", fontsize="medium")
            axes.grid(alpha=0.3)
        axes_row[0].set_ylabel("median iterations / success rate")
        axes_row[0].legend(fontsize="small")
    for axes in grid[-1]:
        axes.set_xlabel("initial step size of the distribution")
    save_figure(figure, folder, "toy", dpi=150)
