"""Does it help to leave variables without effect out of the gradient? A nested problem says.

    python benchmarks/inactive.py --out runs/inactive           about two minutes
    python benchmarks/inactive.py --out runs/inactive --quick   a smoke run; its numbers mean little
    python benchmarks/inactive.py --draw results/inactive       the table again, from inactive.json

The problem. A chain of D blocks, of which the first `depth` run, an integer from 1 to D. Each block has
two choices of five. The loss is noisy: the distance of depth from its best value, plus the mean, over
the blocks that run, of the share of the choices that are wrong, plus normal noise. What blocks do that
do not run has no effect. Three places for the best depth say how much is inactive at the end: almost
everything, half, nothing. Two kinds of depth: an integer (a normal distribution) and a choice.

What is measured. Runs of ASNG with the paper's gradient, in which all variables count in every draw,
and with `tell(active=)`, which leaves out those of blocks that did not run; the same seeds for both.
The regret is the loss, without its noise, of the most likely values: after each run, and on average
over it (the smaller, the faster). The table shows means over the seeds, and mean differences in pairs
with their standard errors; below zero it is better to leave out.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import asng
from asng._untrusted import read_json

CHOICES = 5


def space_of(blocks: int, kind: str) -> dict[str, Any]:
    depth = asng.Integer(1, blocks) if kind == "integer" else asng.Categorical(range(1, blocks + 1))
    return {"depth": depth, **{f"{part}{i}": asng.Categorical(range(CHOICES)) for i in range(blocks) for part in "ab"}}


def clean_loss(values: dict[str, Any], blocks: int, best: int) -> float:
    """Zero at the best depth with all choices of running blocks zero."""
    run = values["depth"]
    wrong = sum((values[f"a{i}"] + values[f"b{i}"]) / (2 * (CHOICES - 1)) for i in range(run)) / run
    return abs(run - best) / blocks + wrong


def active(values: dict[str, Any]) -> set[str]:
    return {"depth", *(f"{part}{i}" for i in range(values["depth"]) for part in "ab")}


def one_run(setting: dict[str, Any], mask_inactive: bool, seed: int, steps: int) -> tuple[float, float]:
    """Regret of the most likely values at the end, and on average over the run."""
    blocks, best = setting["blocks"], setting["best"]
    optimizer = asng.ASNG(space_of(blocks, setting["depth"]), population_size=setting["population_size"], seed=seed)
    noise = np.random.default_rng([seed, 1])
    regrets = []
    for step in range(steps):
        candidates = optimizer.ask()
        losses = [clean_loss(c.values, blocks, best) + setting["noise"] * noise.standard_normal() for c in candidates]
        optimizer.tell(candidates, losses, active=[active(c.values) for c in candidates] if mask_inactive else None)
        if step % 20 == 19:
            regrets.append(clean_loss(optimizer.mode(), blocks, best))
    return regrets[-1], statistics.fmean(regrets)


def mean_and_error(numbers: list[float]) -> tuple[float, float]:
    error = statistics.stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else math.nan
    return statistics.fmean(numbers), error


def compare(setting: dict[str, Any], seeds: int, steps: int) -> dict[str, Any]:
    runs = {leave: [one_run(setting, leave, seed, steps) for seed in range(seeds)] for leave in (False, True)}
    row: dict[str, Any] = dict(setting)
    for place, name in enumerate(("last", "average")):
        paper, left = ([run[place] for run in runs[leave]] for leave in (False, True))
        row[name] = {
            "paper": mean_and_error(paper),
            "mask_inactive": mean_and_error(left),
            "difference": mean_and_error([b - a for a, b in zip(paper, left, strict=True)]),
        }
    return row


def show(result: dict[str, Any]) -> str:
    """A Markdown table of all settings, and how many of them differ by more than two standard errors."""
    lines = [
        "| depth variable | best depth | lambda | the paper's way | left out | difference | difference over the run |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        means = [f"{row['last'][way][0]:.3f}" for way in ("paper", "mask_inactive")]
        differences = ["{:+.3f} ± {:.3f}".format(*row[name]["difference"]) for name in ("last", "average")]
        setting = [row["depth"], f"{row['best']} of {row['blocks']}", str(row["population_size"])]
        lines.append(f"| {' | '.join([*setting, *means, *differences])} |")
    signs = [mean / error if error else 0.0 for mean, error in (row["last"]["difference"] for row in result["rows"])]
    better, worse = sum(sign < -2 for sign in signs), sum(sign > 2 for sign in signs)
    counts = f"better in {better} of {len(signs)} settings and worse in {worse}"
    lengths = f"{result['seeds']} seeds of {result['steps']} steps each"
    return "\n".join([*lines, "", f"{lengths}. By more than two standard errors, leaving out is {counts}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/inactive"), help="folder for inactive.json")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="only draw the table of this folder")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--quick", action="store_true", help="a smoke run of seconds")
    settings = parser.parse_args()
    if settings.draw:
        print(show(read_json(settings.draw / "inactive.json", "run the benchmark again", dict[str, Any])))
        return
    seeds, steps = (3, 60) if settings.quick else (settings.seeds, settings.steps)
    rows = [
        compare(
            {"depth": kind, "blocks": 10, "best": best, "population_size": population_size, "noise": 0.1}, seeds, steps
        )
        for kind in ("integer", "choice")
        for best in (2, 5, 10)
        for population_size in (2, 8)
    ]
    settings.out.mkdir(parents=True, exist_ok=True)
    result = {"quick": settings.quick, "seeds": seeds, "steps": steps, "rows": rows}
    print(show(result))
    (settings.out / "inactive.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
