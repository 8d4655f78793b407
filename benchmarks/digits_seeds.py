"""The tables of `asng digits search` over several seeds, and why its search finds what it finds.

    python benchmarks/digits_seeds.py RUN             tables from results.jsonl of all seeds and, if there, RUN/why
    python benchmarks/digits_seeds.py RUN --seeds 5   first the searches of RUN/why, of these many seeds

RUN is the folder of `asng digits search --seeds 10 --out RUN`. Each search of RUN/why has the data, the seed and the
settings of RUN, without a warm-up and with that of RUN (`--warmup 0` for one of them). Four times the random
architectures of RUN are scored with the shared weights, as the second stage scores: loss on all validation images,
statistics re-estimated on the training half. The most likely architecture and that of the second stage are trained
twice, with two seeds of training. After Ctrl-C the same command continues.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from asng import nas
from asng._untrusted import read_json_lines
from asng.experiments import digits
from asng.nas._loop import run_job
from asng.runs import RESULTS, Run, read_config, settings_from_config

WHY = "why"
NAMES = {
    "found": "found by the search",
    "random_best": "best of {} random ones, by validation",
    "random_first": "the first random one",
    "handcrafted": "handcrafted",
}
LOOK = 15  # epochs between two looks at the distribution
SCORED = (15, 60, 120, 180)  # epochs after which random architectures are scored with the shared weights
TRAINING_SEEDS = (0, 100)  # added to the seed
Rows = Sequence[dict[str, Any]]


def search_all(folder: Path, seeds: int, warmups: Sequence[float] | None) -> None:
    """Add the searches that RUN/why does not hold yet."""
    torch.set_num_threads(1)
    settings = read_settings(folder)
    with Run(folder / WHY, {"benchmark": "digits seeds", "run": read_config(runs_in(folder)[0])}) as kept:
        done = {(row["seed"], row["warmup"]) for row in kept.results()}
        for seed in range(settings.seed, settings.seed + seeds):
            for warmup in warmups or (0.0, settings.warmup):
                if (seed, warmup) not in done:
                    kept.append(search_one(replace(settings, warmup=warmup, seed=seed)))
                    print(f"seed {seed}, warm-up {warmup:.2f}: done", file=sys.stderr, flush=True)


def search_one(settings: digits.DigitsSettings) -> dict[str, Any]:
    """The row of one search."""
    seed, data, random = settings.seed, digits.load_split(settings.seed), digits.draw_random(settings)
    looks: list[dict[str, Any]] = []

    def look(record: Any) -> None:
        if isinstance(record, dict) and record["epoch"] % LOOK == 0:
            (likely,) = nas.top(oneshot)
            scores = [score(values) for values in random] if record["epoch"] in SCORED else None
            width = likely.values["width"]
            looks.append({"epoch": record["epoch"], "certainty": likely.certainty, "width": width, "scores": scores})

    def score(values: dict[str, Any]) -> float:
        return nas.score(oneshot.model, values, [data.valid], digits.classification_loss, recalibrate_on=[data.train])

    oneshot, job = digits.make_search(settings, data, look)
    with closing(job):
        run_job(job, epochs=settings.epochs)
    likely, found = nas.top(oneshot)[0].values, digits.second_stage(oneshot, data).values
    row = {"seed": seed, "warmup": settings.warmup, "looks": looks, "most_likely": train(settings, data, likely)}
    return {**row, "found": row["most_likely"] if found == likely else train(settings, data, found)}


def train(settings: digits.DigitsSettings, data: digits.Data, values: dict[str, Any]) -> dict[str, Any]:
    """An architecture, and its test accuracies after several trainings."""
    trained = [digits.train(replace(settings, seed=settings.seed + more), data, values) for more in TRAINING_SEEDS]
    accuracies = [each["accuracy"] for each in trained]
    return {"values": values, "parameters": trained[0]["parameters"], "accuracies": accuracies}


def runs_in(folder: Path) -> list[Path]:
    """The runs of the seeds, each a folder of its own; or one run with the records of all seeds."""
    return sorted(path.parent for path in folder.glob(f"seed*/{RESULTS}")) or [folder]


def read_settings(folder: Path) -> digits.DigitsSettings:
    first = runs_in(folder)[0]
    return settings_from_config(digits.DigitsSettings, read_config(first, "digits", needs=RESULTS), first)


# Tables.


def show_comparison(settings: digits.DigitsSettings, rows: Rows) -> str:
    """Test accuracies of what was chosen, what choosing cost, and the differences."""
    summary = digits.summarize(settings, rows)
    seeds = summary["rows"]
    accuracy = {kind: np.array([100 * row[kind]["accuracy"] for row in seeds]) for kind in NAMES}
    table = []
    for kind, name in NAMES.items():
        a, parameters = accuracy[kind], np.mean([row[kind]["parameters"] for row in seeds])
        spread = [
            f"{a.mean():.2f} %",
            f"{error_of(a):.2f}",
            f"{error_of(a) * math.sqrt(len(a)):.2f}",
            f"{a.min():.2f} to {a.max():.2f}",
        ]
        cost = [f"{summary[unit].get(kind, 0):,.0f}" for unit in ("gradients", "seconds")]
        table.append([name.format(settings.num_random), *spread, f"{parameters:,.0f}", *cost])
    head = ["architecture", "test accuracy", "standard error", "standard deviation", "range", "parameters"]
    lines = [markdown([*head, "gradients to choose it", "seconds"], table), ""]
    for other in list(NAMES)[1:]:
        d = accuracy["found"] - accuracy[other]
        counts = f"{(d > 0).sum()} seeds higher, {(d == 0).sum()} equal, {(d < 0).sum()} lower"
        extremes = f"{d.min():+.2f} to {d.max():+.2f}"
        name = NAMES[other].format(settings.num_random)
        lines.append(f"- found less {name}: {d.mean():+.2f} ± {error_of(d):.2f} points ({extremes}); {counts}")
    return "\n".join(lines)


def show_best_of(rows: Rows) -> str:
    """Expected accuracies of the best of k random architectures, trained on half of the training images.

    Over all subsets of k, so that no draw decides.
    """
    seeds = sorted({row["seed"] for row in rows})
    pools = [of_kind(rows, seed, "random") for seed in seeds]
    number, table = len(pools[0]), []
    for k in sorted({k for k in (1, 2, 3, 6, 12, 24) if k < number} | {number}):
        cells = []
        for by, shown in (
            ("valid_accuracy", "valid_accuracy"),
            ("valid_accuracy", "accuracy"),
            ("accuracy", "accuracy"),
        ):
            means = np.array([100 * expected_best(pool, k, by, shown) for pool in pools])
            cells.append(f"{means.mean():.2f} % ± {error_of(means):.2f}")
        table.append([str(k), *cells])
    chosen = ["validation accuracy of the best by it", "its test accuracy", "test accuracy of the best by that"]
    return markdown(["k", *chosen], table)


def expected_best(pool: Rows, k: int, by: str, shown: str) -> float:
    """The mean of `shown`, over all subsets of k, of the row with the highest `by`.

    >>> expected_best([{"a": 1, "b": 5}, {"a": 2, "b": 6}, {"a": 3, "b": 4}], 2, by="a", shown="b")
    4.666666666666667
    """
    ordered = sorted(pool, key=lambda row: -row[by])
    shares = [math.comb(len(pool) - 1 - place, k - 1) / math.comb(len(pool), k) for place in range(len(pool))]
    return sum(share * row[shown] for share, row in zip(shares, ordered, strict=True))


def show_why(rows: Rows, searches: Rows) -> str:
    """Looks at searches without and with a warm-up, and what they find."""
    pools = {search["seed"]: of_kind(rows, search["seed"], "random") for search in searches}
    parts, table = [], []
    for warmup in sorted({search["warmup"] for search in searches}):
        of_this = [search for search in searches if search["warmup"] == warmup]
        parts.append(f"Warm-up {warmup:.0%}, {len(of_this)} seeds:\n\n{show_looks(of_this, pools)}")
        for name in ("most_likely", "found"):
            accuracies = 100 * np.array([search[name]["accuracies"] for search in of_this])
            spread = math.sqrt(accuracies.var(axis=1, ddof=1).mean())
            cells = [f"{accuracies.mean():.2f} %", f"{error_of(accuracies.mean(axis=1)):.2f}", f"{spread:.2f}"]
            parameters = np.mean([search[name]["parameters"] for search in of_this])
            table.append([f"{warmup:.0%}", name.replace("_", " "), *cells, f"{parameters:,.0f}"])
    head = ["warm-up", "architecture", "test accuracy", "standard error", "deviation over trainings", "parameters"]
    parts += [markdown(head, table), show_correlations(list(pools.values()))]
    return "\n\n".join(parts)


def show_looks(searches: Rows, pools: Mapping[int, Rows]) -> str:
    """The distribution and the ranking by shared weights as searches go on; means over them."""
    table = []
    for at in range(len(searches[0]["looks"])):
        looks = [(search["looks"][at], pools[search["seed"]]) for search in searches]
        cells = [f"{np.mean([look['certainty'] for look, _ in looks]):.2f}"]
        cells.append(", ".join(str(look["width"]) for look, _ in looks))
        if looks[0][0]["scores"] is not None:
            ranks = [rank_correlation([-s for s in look["scores"]], column(pool, "accuracy")) for look, pool in looks]
            first = [pool[int(np.argmin(look["scores"]))]["accuracy"] for look, pool in looks]
            cells += [f"{np.mean(ranks):.2f}", f"{100 * np.mean(first):.2f} %"]
        table.append([str(looks[0][0]["epoch"]), *cells, *[""] * (4 - len(cells))])
    return markdown(["epoch", "certainty", "widths", "rank correlation", "of the random one ranked first"], table)


def show_correlations(pools: Sequence[Rows]) -> str:
    """How well other numbers rank the random architectures by test accuracy, all trained on half of the images."""
    means = [
        np.mean([rank_correlation(column(pool, name), column(pool, "accuracy")) for pool in pools])
        for name in ("valid_accuracy", "parameters")
    ]
    best = np.mean([digits.best_random(pool)["accuracy"] for pool in pools])
    return (
        f"Rank correlation with test accuracy: of validation accuracy, trained alone, {means[0]:.2f}; of the number of "
        f"parameters {means[1]:.2f}. The best by validation accuracy has {100 * best:.2f} %."
    )


def of_kind(rows: Rows, seed: int, kind: str) -> Rows:
    return [row for row in rows if (row["seed"], row["kind"]) == (seed, kind)]


def column(rows: Rows, name: str) -> list[float]:
    return [row[name] for row in rows]


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    return float(spearmanr(x, y).statistic)


def error_of(numbers: Any) -> float:
    """The standard error of a mean; NaN of one number."""
    return float(np.std(numbers, ddof=1) / math.sqrt(len(numbers))) if len(numbers) > 1 else math.nan


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def show(folder: Path) -> None:
    """Print all tables of a folder of results."""
    settings, cure = read_settings(folder), "let the search continue"
    rows = [row for run in runs_in(folder) for row in read_json_lines(run / RESULTS, cure)]
    finished = {row["seed"] for row in rows if row["kind"] == "random_best"}  # the last record of a seed
    rows = [row for row in rows if row["seed"] in finished]
    if not rows:
        raise ValueError(f"{folder} holds no finished seed; {cure}")
    print(show_comparison(settings, rows), show_best_of(rows), sep="\n\n")
    if (folder / WHY / RESULTS).exists():
        print("", show_why(rows, read_json_lines(folder / WHY / RESULTS, "let it continue")), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of asng digits search")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds of the searches of RUN/why (default: 0)")
    parser.add_argument("--warmup", type=float, nargs="+", help="shares of these searches (default: 0 and that of RUN)")
    given = parser.parse_args()
    try:
        if given.seeds:
            search_all(given.run, given.seeds, given.warmup)
        show(given.run)
    except ValueError as error:
        sys.exit(f"digits_seeds: {error}")
    except KeyboardInterrupt:
        print(f"\nInterrupted. Finished parts are in {given.run / WHY}; the same command continues.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
