"""ASNG beside other methods on NAS-Bench-201 (Dong & Yang, ICLR 2020), CIFAR-10: regret against evaluations.

    python benchmarks/nasbench201.py --data DIR                     all methods, 100 seeds, into runs/nasbench201
    python benchmarks/nasbench201.py --draw results/nasbench201     tables and figure again, without the data
    python benchmarks/nasbench201.py --data DIR --out runs/some --methods "ASNG 8" "evolution 20/5" --seeds 10

Protocol. A cell has six edges with one of five operations each: 15,625 architectures, each trained two or three times
by the authors of the benchmark. One evaluation of an architecture is one of its trainings, drawn at random: the method
sees its validation accuracy. Evaluating an architecture again counts again and draws again. After n evaluations a
method chooses the architecture with the highest accuracy it has seen; ASNG also has another choice, the mode of its
distribution. Test regret is the highest mean test accuracy of all architectures less that of the chosen one, in
percentage points; validation regret likewise, of mean validation accuracies. Neither is shown to the methods.

--methods takes any of searchers.py, which says what they are. Of regularized evolution, 10/3 is what the scripts of the
benchmark's authors use and 100/25 what Real et al. do; 10/10 is the best of 20 settings (populations 10, 20, 50, 100,
tournaments of 2, 3, 5, 10, 25) by validation regret on average over 100 to 1,000 evaluations with seeds 1000 to 1099.

Finished (method, seed) rows are appended to OUT/results.jsonl; after Ctrl-C the same command continues.
"""

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from nasbench201_report import COMPARED, draw, show_tables
from searchers import Code, method_of

import asng
from asng._files import RUN_FORMAT
from asng.experiments._workers import run_parallel
from asng.runs import RESULTS, Run, read_config

FORMAT = """\
It holds, with one row per architecture (15,625, each combination once):
  code (n, 6)  operations of the edges 1<-0, 2<-0, 2<-1, 3<-0, 3<-1, 3<-2, as numbers in the list
               none, skip_connect, nor_conv_1x1, nor_conv_3x3, avg_pool_3x3
  val (n, 3)   validation accuracy in percent of each training, NaN where there are fewer
  test (n,)    mean test accuracy in percent
From the official release, with its package nas_201_api, architecture i has these (trainings of 200 epochs):
  code  the operations in the string api[i], in their order
  val   [r.get_eval("x-valid")["accuracy"] for r in api.query_by_index(i, "cifar10-valid", hp="200").values()]
  test  mean of r.get_eval("ori-test")["accuracy"] over api.query_by_index(i, "cifar10", hp="200").values()
Then numpy.savez_compressed("cifar10.npz", code=code, val=val, test=test)."""

METHODS = (
    *COMPARED,
    "ASNG 4",
    "ASNG 8",
    "ASNG 30",
    "CatCMAwM 15",
    "CatCMAwM 30",
)  # others test what population sizes do

Array = np.ndarray[Any, Any]
Task = tuple[str, int]  # method and seed


# The benchmark as a table -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Accuracies of all architectures; the first axes, one per edge, are indexed by operations."""

    valid: Array  # (ops, ..., ops, trainings), NaN last
    trainings: Array  # (ops, ..., ops), how many there are
    test: Array  # (ops, ..., ops)

    @property
    def valid_mean(self) -> Array:
        return np.asarray(np.nanmean(self.valid, -1))

    def digest(self) -> str:
        """What a run compares to continue with the same data only."""
        content = b"".join(array.tobytes() for array in (self.valid, self.trainings, self.test))
        return hashlib.sha256(content).hexdigest()[:16]


@lru_cache(maxsize=1)
def load_table(path: Path) -> Table:
    try:
        with np.load(path, allow_pickle=False) as file:
            code, valid, test = file["code"].astype(int), file["val"].astype(float), file["test"].astype(float)
        order = np.lexsort(code.T[::-1])
        shape = (int(code.max()) + 1,) * code.shape[1]
        complete = np.array_equal(code[order], np.stack([i.ravel() for i in np.indices(shape)], -1))
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}).\n{FORMAT}") from None
    if not (complete and np.isfinite(test).all() and test.shape == valid.shape[:1] == code.shape[:1]):
        raise ValueError(f"{path} does not hold every architecture once, with its accuracies.\n{FORMAT}")
    trainings = np.isfinite(valid).sum(-1)
    if trainings.min() < 1:
        raise ValueError(f"{path} has {(trainings < 1).sum()} architectures without a validation accuracy.\n{FORMAT}")
    valid = np.sort(valid[order], -1)  # NaN go to the end
    return Table(valid.reshape(*shape, -1), trainings[order].reshape(shape), test[order].reshape(shape))


def find_data(given: Path | None) -> Path:
    """The file behind --data or ASNG_DATA, which may name the file or a folder."""
    place = given or Path(os.environ.get("ASNG_DATA") or ".")
    path = place if place.suffix == ".npz" else place / "nasbench201" / "cifar10.npz"
    if not path.is_file():
        raise ValueError(f"there is no {path}; --data or ASNG_DATA says where the file or its folder lies.\n{FORMAT}")
    return path


# One run, and all of them -----------------------------------------------------------------------------


def checkpoints(budget: int) -> list[int]:
    """Numbers of evaluations from 10 to the budget, about evenly spaced on a logarithmic axis."""
    grid = (step * 10**k for k in range(7) for step in (10, 15, 20, 30, 50, 70))
    return sorted({n for n in grid if n < budget} | {budget})


def search(path: Path, budget: int, noiseless: bool, task: Task) -> dict[str, Any]:
    """One method with one seed: regrets of its choices and the number of different architectures, at checkpoints."""
    table = load_table(path)
    name, seed = task
    streams = np.random.SeedSequence([seed, *name.encode()]).generate_state(2)  # no two methods share numbers
    method, rng = method_of(name)(table.test.shape, int(streams[0])), np.random.default_rng(streams[1])
    at, mean = set(checkpoints(budget)), table.valid_mean
    best, highest, seen, choices = None, -math.inf, set(), []
    code, _ = next(method)
    for n in range(1, budget + 1):
        accuracy = float(mean[code] if noiseless else table.valid[code][rng.integers(table.trainings[code])])
        seen.add(code)
        if accuracy > highest:
            best, highest = code, accuracy
        code, mode = method.send(accuracy)
        if n in at:
            choices.append((best, mode, len(seen)))
    bests, modes, distinct = zip(*choices, strict=True)
    row = {"method": name, "seed": seed, "best": regrets(table, bests), "distinct": distinct}
    return row if modes[0] is None else row | {"mode": regrets(table, modes)}


def regrets(table: Table, codes: Sequence[Code]) -> dict[str, list[float]]:
    kinds = {"test": table.test, "valid": table.valid_mean}
    return {kind: [round(float(t.max() - t[code]), 4) for code in codes] for kind, t in kinds.items()}


def run(
    path: Path,
    out: Path,
    methods: Sequence[str],
    seeds: range,
    *,
    budget: int = 1000,
    noiseless: bool = False,
    workers: int = 2,
    progress: Callable[[float, int], None] = lambda fraction, left: None,
) -> list[dict[str, Any]]:
    """Do what the folder does not hold yet; returns all its rows."""
    config = {
        "benchmark": "nasbench201",
        "version": asng.__version__,
        "format": RUN_FORMAT,
        "table": load_table(path).digest(),
        "noiseless": noiseless,
        "evaluations": checkpoints(budget),
    }
    total = len(methods) * len(seeds)
    with Run(out, config) as kept:
        done = {(row["method"], row["seed"]) for row in kept.results()}
        missing = [(name, seed) for name in methods for seed in seeds if (name, seed) not in done]
        with closing(run_parallel(partial(search, path, budget, noiseless), missing, workers)) as rows:
            for left, (_, row) in zip(reversed(range(len(missing))), rows, strict=True):
                kept.append(row)
                progress(1 - left / total, left)
        return kept.results()


def read_results(folder: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows in a folder and their numbers of evaluations, without its lock."""
    at = read_config(folder).get("evaluations")
    lines = folder / RESULTS
    if not isinstance(at, list) or not lines.is_file():
        raise ValueError(f"{folder} holds no results of this benchmark")
    text = lines.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()], at  # without a torn line


def show_progress(fraction: float, left: int) -> None:
    """A line that renews itself on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{fraction:6.1%} done, {left:,} searches left ", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"The data, DIR/nasbench201/cifar10.npz. {FORMAT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="the .npz file, or the folder of nasbench201/; default: ASNG_DATA")
    parser.add_argument("--out", type=Path, default=Path("runs/nasbench201"), help="folder of the results")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=1000, help="evaluations of each search (default: 1000)")
    parser.add_argument("--noiseless", action="store_true", help="an evaluation gives the mean validation accuracy")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side (default: 2)")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="show the results in a folder; runs nothing")
    parser.add_argument(
        "--figure", type=Path, help="where to draw (default: nasbench201.png beside the results; with --draw nowhere)"
    )
    given = parser.parse_args()
    if hasattr(os, "nice"):
        os.nice(10)  # the workers inherit it
    out = given.draw or given.out
    try:
        for name in given.methods:
            method_of(name)
        if not given.draw:
            seeds = range(given.first_seed, given.first_seed + given.seeds)
            options = {"budget": given.budget, "noiseless": given.noiseless, "workers": given.workers}
            run(find_data(given.data), out, given.methods, seeds, progress=show_progress, **options)
        rows, at = read_results(out)
    except ValueError as error:
        sys.exit(f"nasbench201: {error}")
    except ImportError as error:
        sys.exit(f"nasbench201: {error}; pip install '.[bench]' has it, or leave the method out of --methods")
    except KeyboardInterrupt:
        print(f"\nInterrupted. Finished parts are in {out}; the same command continues.", file=sys.stderr)
        sys.exit(130)
    print(show_tables(rows, at))
    if figure := given.figure or (None if given.draw else out / "nasbench201.png"):
        draw(rows, at, figure)


if __name__ == "__main__":
    main()
