"""What searches compute for given seeds, under keys that outlive names: of the golden tests only this touches asng.

Each function returns plain values under the keys `portable` and `bits`. What rounding hardly reaches is portable: it is
nearly the same on every processor. A search compares losses, so that a last digit can decide over what is drawn next;
whatever comes late, and every digest, is only among the bits, which the same processor and libraries repeat.
"""

import hashlib
import itertools
import json
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from asng import ASNG, SNG, Adam, Categorical, Integer, RandomSearch, Real, Variable, nas
from asng.experiments import digits, toy
from asng.experiments._images import ImageSet
from asng.experiments._jobs import SearchJob
from asng.experiments.cifar10 import data as cifar10_data
from asng.experiments.cifar10 import network as cifar10_network
from asng.experiments.cifar10 import space as cifar10_space
from asng.experiments.cifar10 import task as cifar10
from asng.experiments.inpainting import data as faces
from asng.experiments.inpainting import network as inpainting_network
from asng.experiments.inpainting import task as inpainting
from asng.experiments.inpainting.encoding import search_space
from asng.nas._loop import Epoch, run_job
from tests.helpers.small_cifar10 import RECORD, random_files
from tests.helpers.small_faces import texture

Values = dict[str, Any]


class Missing(Exception):
    """The data of a case is not on this machine."""


def pack(value: Any) -> Any:
    """Plain values with floats as the hexadecimal text that holds all of their bits."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return value.hex()
        case Mapping():
            return {str(key): pack(one) for key, one in value.items()}
        case np.ndarray() | torch.Tensor() | np.generic():
            return pack(value.tolist())
        case _:
            return [pack(one) for one in value]


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(pack(value)).encode()).hexdigest()


# Ask and tell --------------------------------------------------------------------------------------

ROUNDS, SHOWN = 200, (1, 2, 10, 50, 200)
CATEGORICAL: Values = {"a": Categorical(list("abc")), "b": Categorical(range(2)), "c": Categorical(range(6))}
MIXED: Values = {
    "rate": Real(1e-5, 1e-1, log=True),
    **CATEGORICAL,
    "few": Integer(1, 3),
    "many": Integer(64, 256),
    "share": Real(0, 1),
}
LOG: Values = {"rate": Real(1e-5, 1e-1, log=True), "decay": Real(1e-8, 1.0, log=True)}


def ask_tell() -> Values:
    """400 asks and 200 tells in each of several spaces, of populations of two and more, by each method."""
    spaces = {"categorical": CATEGORICAL, "mixed": MIXED, "log": LOG}
    optimizers: dict[str, Any] = {
        f"ASNG {name} {size}": ASNG(space, population_size=size, seed=1)
        for name, space in spaces.items()
        for size in (2, 8)
    }
    initial = {"a": [0.2, 0.5, 0.3], "many": (100, 30), "rate": (1e-3, 10)}
    other = {"alpha": 2.0, "delta_init": 0.5, "delta_max": 100.0, "mirrored": False, "initial": initial}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"initial\['rate'\]", UserWarning)  # a deviation beyond what is allowed
        optimizers["ASNG mixed 7 otherwise"] = ASNG(MIXED, population_size=7, seed=2, **other)  # type: ignore[arg-type]
    optimizers["SNG mixed 8"] = SNG(MIXED, population_size=8, seed=3)
    optimizers["Adam mixed 8"] = Adam(MIXED, population_size=8, seed=4)
    optimizers["random mixed 8"] = RandomSearch(MIXED, population_size=8, seed=5)
    runs = {name: trajectory(optimizer, partly="otherwise" in name) for name, optimizer in optimizers.items()}
    return {kind: {name: run[kind] for name, run in runs.items()} for kind in ("portable", "bits")}


def trajectory(optimizer: Any, partly: bool) -> Values:
    """Two asks and a tell in each round; `partly` with variables that are inactive, and losses that are not finite."""
    shown, digests, all_so_far = [], {}, hashlib.sha256()
    for number in range(1, ROUNDS + 1):
        unused, candidates = optimizer.ask(), optimizer.ask()
        losses = [moving_loss(candidate.x, number) for candidate in candidates]
        options: Values = {}
        if partly:
            losses[number % len(losses)] = (losses[0], float("nan"), float("inf"))[number % 3]
            active = [
                [n for at, n in enumerate(optimizer.space) if (at + row + number) % 4] for row in range(len(losses))
            ]
            options = {"active": active}
        optimizer.tell(candidates, losses, **options)
        record = {
            "draws": [candidate.x for candidate in (*unused, *candidates)],
            "values": [list(candidate.values.values()) for candidate in (*unused, *candidates)],
            "theta": optimizer.theta,
        }
        if isinstance(optimizer, ASNG):
            record |= {"path": optimizer.path, "delta": optimizer.delta, "gamma": optimizer.gamma}
        all_so_far.update(digest(record).encode())
        if number % 10 == 0:
            digests[f"rounds 1 to {number}"] = all_so_far.hexdigest()
        if number in SHOWN:
            shown.append({"round": number, **record, "draws": record["draws"][:2], "values": record["values"][:2]})
    best = optimizer.best
    end = {"mode": optimizer.mode(), "best": {"values": best.values, "loss": best.loss}}
    return {"portable": {"rounds": shown, **end}, "bits": digests}


def moving_loss(x: Any, number: int) -> float:
    """Rough, of a point that moves, with ties now and then; without functions that libraries compute differently."""
    target = abs(number % 100 - 50) / 50
    return round(sum(abs(value / (1 + abs(value)) - target) * (1 + at) for at, value in enumerate(x.tolist())), 1)


# The toy problem -----------------------------------------------------------------------------------


def toy_quick() -> Values:
    """`asng toy sweep --quick`."""
    with tempfile.TemporaryDirectory() as folder:
        summary = toy.run(toy.QUICK, Path(folder))
        records = [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]
    return toy_numbers(summary, {tuple(record["setting"]): record["iterations"] for record in records})


def toy_short() -> Values:
    """A smaller sweep, without processes and figures."""
    sweep = replace(toy.QUICK, variables=6, runs=4, iterations=600, powers=(0.0, 0.5, 1.0))
    reached = {setting: toy.simulate(sweep, setting) for setting in toy.settings_of(sweep)}
    return toy_numbers(toy.summarize(sweep, reached), reached)


def toy_numbers(summary: Values, reached: Mapping[Any, list[int | None]]) -> Values:
    """What the table of a sweep shows, and what lies behind it."""
    points = {
        f"{point['method']} {point['step']:.3g}": [point["step"], point["successes"], point["median"], point["measure"]]
        for point in summary["points"]
    }
    ranges = {row["method"]: [row["all"], row["any"], row["best"] and row["best"]["step"]] for row in summary["ranges"]}
    iterations = {" ".join(map(str, setting)): reached[setting] for setting in sorted(reached, key=str)}
    return {"portable": {"points": points, "ranges": ranges, "iterations": iterations}, "bits": {}}


# Searches on images --------------------------------------------------------------------------------


def first_steps(job: Any, portable: int) -> Values:
    """The losses of the first 20 iterations of a job, `portable` of them portable, and where they lead."""
    records = [job.step(number) for number in range(20)]
    losses = {name: [float(record[f"{name}_loss"]) for record in records] for name in ("train", "valid")}
    optimizer = job.arch_optimizer
    others = ("step", "images_per_second", "distribution")  # theta is among the numbers
    tested = {name: value for name, value in job.finish_epoch(Epoch()).items() if name not in others}
    bits = {
        "losses": losses,
        "theta": digest(optimizer.theta),
        "delta": optimizer.delta,
        "weights": weights_digest(job.model),
        "tested": {name.removeprefix("test_"): value for name, value in tested.items()},
    }
    return {"portable": {"losses": {name: each[:portable] for name, each in losses.items()}}, "bits": bits}


def weights_digest(model: nn.Module) -> str:
    """Of all bits of parameters and buffers, tied ones once; their names do not count, their order does."""
    every = hashlib.sha256()
    for tensor in {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}.values():
        every.update(tensor.contiguous().numpy().tobytes())
    return every.hexdigest()


CIFAR10_PORTABLE = 2  # from step to step, batch norms over few images multiply what rounding makes of a loss by about 4


def cifar10_small() -> Values:
    """`asng cifar10 search --small` on random images, as many as it trains with."""
    return cifar10_on_noise(cifar10.SMALL)


def cifar10_short() -> Values:
    """The same with smaller mini-batches."""
    return cifar10_on_noise(replace(cifar10.SMALL, batch_size=16))


def cifar10_on_noise(settings: cifar10.Cifar10SearchSettings) -> Values:
    *train, test = random_files(2000).values()
    return first_steps(
        SearchJob(cifar10.Cifar10(_images(b"".join(train)), _images(test[: 200 * RECORD])), settings), CIFAR10_PORTABLE
    )


def _images(records: bytes) -> ImageSet:
    rows = torch.frombuffer(bytearray(records), dtype=torch.uint8).reshape(-1, RECORD)
    return ImageSet(rows[:, 1:].reshape(-1, 3, 32, 32).contiguous(), rows[:, 0].long())


def cifar10_small_real() -> Values:
    if not (real_data() / "cifar-10-batches-bin").is_dir():
        raise Missing("CIFAR-10 is not in the folder ASNG_DATA")
    return first_steps(
        SearchJob(cifar10.Cifar10(*cifar10_data.load_cifar10(real_data(), "cpu")), cifar10.SMALL), CIFAR10_PORTABLE
    )


def inpainting_small() -> Values:
    """`asng inpainting search --small` in both encodings, on faces of noise."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(128):
            texture(Path(folder) / ("train" if number < 120 else "test") / f"{number:03}.png", (64, 64), number)
        return inpainting_both(faces.load_faces(Path(folder)))


REAL_FACES = "36459 to train with, 2000 to test with, named fa901cbd99cc"


def inpainting_small_real() -> Values:
    if not (real_data() / "celeba64").is_dir():
        raise Missing("no faces in the folder celeba64 of ASNG_DATA")
    data = faces.load_faces(real_data())
    if (described := faces.describe_faces(data.train, data.test)) != REAL_FACES:
        raise Missing(f"the faces in ASNG_DATA are others than the fixture's: {described}")
    return inpainting_both(data)


def inpainting_both(data: faces.FaceData) -> Values:
    jobs = {
        encoding: SearchJob(inpainting.Inpainting(data.train, data.test), replace(inpainting.SMALL, encoding=encoding))
        for encoding in ("cat", "int")
    }
    both = {encoding: first_steps(job, portable=10) for encoding, job in jobs.items()}
    return {kind: {encoding: both[encoding][kind] for encoding in both} for kind in ("portable", "bits")}


def real_data() -> Path:
    if not os.environ.get("ASNG_DATA"):
        raise Missing("ASNG_DATA names no folder of data")
    return Path(os.environ["ASNG_DATA"])


# Digits --------------------------------------------------------------------------------------------


def digits_short() -> Values:
    """A search of two epochs, and trainings."""
    settings, data = digits.DigitsSettings(epochs=2, warmup=0.0, training_epochs=2), digits.load_split(0)
    found, losses = _digits_most_likely(settings, data)
    values = {"random": digits.draw_random(settings)[0], "hand": digits.HANDCRAFTED, "found": found.values}
    bits: Values = {"losses": losses}
    for kind, each in values.items():
        trained = digits.train(settings, data, each)
        bits[kind] = {name: trained.get(name) for name in ("values", "probability", "accuracy", "parameters")}
    untrained = {"accuracy": None, "parameters": None}
    bits["search"] = {"values": found.values, "probability": found.probability, **untrained}
    return {"portable": {"losses": losses[:36]}, "bits": bits}


def digits_run() -> Values:
    """All records of a run: a search with a warm-up and a second stage, and its baselines."""
    with tempfile.TemporaryDirectory() as folder:
        digits.run(digits.DigitsSettings(epochs=3, training_epochs=2), Path(folder))
        records = [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"]
    return {"portable": {"random": [record["values"] for record in records[3:-2]]}, "bits": {"records": records}}


def digits_search() -> Values:
    """The search with seed 0 without a warm-up, and the training of the most likely architecture."""
    settings, data = digits.DigitsSettings(warmup=0.0), digits.load_split(0)
    found, losses = _digits_most_likely(settings, data)
    trained = digits.train(settings, data, found.values)
    epochs = [losses[at : at + 36] for at in range(0, len(losses), 36)]  # nine mini-batches, two and two architectures
    bits = {
        "losses": {"epochs": [sum(epoch) / 36 for epoch in epochs], "all": digest(losses)},
        "values": found.values,
        "probability": found.probability,
        "accuracy": trained["accuracy"],
        "parameters": trained["parameters"],
    }
    return {"portable": {"losses": losses[:36]}, "bits": bits}


def _digits_most_likely(settings: digits.DigitsSettings, data: digits.Data) -> tuple[nas.Architecture, list[float]]:
    """The most likely architecture of a search with seed 0, and all losses of the search."""
    with recorded_losses(digits, "classification_loss") as losses:
        oneshot, job = digits.make_search(settings, data)
        with closing(job):
            run_job(job, epochs=settings.epochs)
    return nas.top(oneshot)[0], losses


@contextmanager
def recorded_losses(module: Any, name: str) -> Iterator[list[float]]:
    """All losses that a function of a module returns while this context lasts."""
    function, losses = getattr(module, name), []

    def record(*arguments: Any) -> Any:
        loss = function(*arguments)
        losses.append(loss.item())
        return loss

    with mock.patch.object(module, name, record):
        yield losses


# nas.search ----------------------------------------------------------------------------------------


def nas_search() -> Values:
    """The example of the README."""
    return sine_search(None)


def nas_search_in_parts(folder: Path, calls: tuple[int, ...]) -> Values:
    """The same, stopped by Ctrl-C in these calls of the loss, each counted from the last stop, and continued."""
    for stop in calls:
        with suppress(KeyboardInterrupt):
            sine_search(folder / "checkpoint.pt", stop)
            raise AssertionError(f"it was not stopped in call {stop}")
        torch.rand(3)  # whatever happens in between
    return sine_search(folder / "checkpoint.pt")


def sine_search(checkpoint: Path | None, stop: int | None = None) -> Values:
    torch.manual_seed(0)
    width = nas.Width("width", [4, 8, 16, 32])
    activations = {"relu": nn.ReLU(), "gelu": nn.GELU(), "tanh": nn.Tanh()}
    blocks = [nn.Sequential(nas.Linear(width, width), nas.OneOf("activation", activations)) for _ in range(3)]
    model = nn.Sequential(nas.Linear(1, width), nas.Repeat("depth", blocks), nas.Linear(width, 1))
    calls = itertools.count(1)

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if next(calls) == stop:
            signal.raise_signal(signal.SIGINT)
        return nn.functional.mse_loss(model(x), torch.sin(3 * x))

    train, valid = ([torch.rand(64, 1) * 2 - 1 for _ in range(20)] for _ in range(2))
    weight_optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    limits = [nas.Limit(nas.parameters, 1000)]
    found = nas.search(
        model,
        train,
        valid,
        loss,
        epochs=80,
        weight_optimizer=weight_optimizer,
        limits=limits,
        checkpoint=checkpoint,
        progress=False,
    )
    losses = {name: [record[f"{name}_loss"] for record in found.history] for name in ("train", "valid")}
    bits = {
        "losses": losses,
        "delta": [record["delta"] for record in found.history],
        "largest probability": [record["largest_probability"] for record in found.history],
        "within the limit": [record["feasible"] for record in found.history],
        "values": found.values,
        "probability": found.probability,
        "theta": found.arch_optimizer.theta,
        "weights": weights_digest(model),
        "extracted weights": weights_digest(found.model),
    }
    return {"portable": {"losses": {name: every[:5] for name, every in losses.items()}}, "bits": bits}


# Parameters ----------------------------------------------------------------------------------------


def parameter_counts() -> Values:
    """Of 200 random architectures of each supernet."""
    small = inpainting.SMALL
    models: dict[str, nn.Module] = {
        "cifar10": cifar10_network.Net(cifar10.SMALL.channels, cifar10.SMALL.cells),
        "inpainting cat": inpainting_network.Net(search_space("cat", small.layers, widths=small.widths)),
        "inpainting int": inpainting_network.Net(search_space("int", small.layers, widths=small.widths)),
        "digits": digits.Net(),
    }
    spaces = {name: nas.space_of(model) for name, model in models.items()} | {"cifar10": cifar10_space.SPACE}
    counts = {name: [nas.parameters(model, values) for values in draw(spaces[name])] for name, model in models.items()}
    return {"portable": counts, "bits": {}}


def draw(space: Mapping[str, Variable]) -> list[dict[str, Any]]:
    return [candidate.values for candidate in RandomSearch(space, seed=0).ask(200)]


QUICK: dict[str, Callable[[], Values]] = {function.__name__: function for function in (ask_tell, toy_short)}
SLOW: dict[str, Callable[[], Values]] = {
    function.__name__: function
    for function in (
        cifar10_short,
        inpainting_small,
        digits_short,
        digits_run,
        nas_search,
        parameter_counts,
        toy_quick,
        digits_search,
        cifar10_small,
        cifar10_small_real,
        inpainting_small_real,
    )
}
