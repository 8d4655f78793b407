"""The paper's table of inpainting, shortened: 5,000 iterations of search, 20,000 of training from scratch.

    python benchmarks/inpainting_tables.py center --out FOLDER          the central square is missing
    python benchmarks/inpainting_tables.py pixel --out FOLDER           80 % of the pixels; half: a half of the image
    python benchmarks/inpainting_tables.py small --out FOLDER           the preset for two cores, on the CPU: seed 0
    python benchmarks/inpainting_tables.py --draw results/inpainting    the table again, of what is finished there

For each mask: what searches in both encodings find, three seeds each; the baseline BASE of 7 layers (the depth of what
Suganuma et al. found for the central square), with as many seeds; BASE widened until it has about the parameters of
each network found; two random architectures of the encoding cat. All are trained alike and tested on all test faces.

Each run has a folder of its own, FOLDER/center/cat0-search, FOLDER/center/cat0 and the like; its command is printed.
Finished ones are skipped and interrupted ones continue, so the same command goes on after Ctrl-C or SIGTERM; with other
lengths, which are refused there, it needs another FOLDER. What follows `--` is added to all searches and trainings, as
in `-- --amp-dtype bfloat16`; the faces are where ASNG_DATA says. The table needs summary.json and evaluation.json of
each training.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cifar10_tables
from cifar10_tables import (
    CURE,
    EVALUATION,
    Command,
    check_rows,
    is_finished,
    make_parser,
    parse_flags,
    run_and_show,
    select_rows,
    split_flags,
)

from asng._untrusted import read_json
from asng.experiments.inpainting.encoding import WIDTHS, base_values, search_space
from asng.experiments.inpainting.task import Inpainting
from asng.nas.architecture import to_dict
from asng.runs import SUMMARY, write_json

MASKS = ("center", "pixel", "half")
SMALL = "small"
BASE_LAYERS = 7
SEEDS = range(3)
GROUPS = {
    "cat": "found, cat",
    "int": "found, int",
    "base": "BASE",
    "cat-wide": "BASE, as many parameters as found by cat",
    "int-wide": "BASE, as many parameters as found by int",
    "random": "random",
}
PAPER = {  # PSNR and SSIM; E-CAE was found by evolution (Suganuma et al., 2018)
    "center": "BASE 27.1 dB, 0.883; E-CAE 29.9 dB, 0.934; cat 29.2 dB, 0.903; int 29.3 dB, 0.911",
    "pixel": "BASE 27.5 dB, 0.836; E-CAE 27.8 dB, 0.887; cat 28.4 dB, 0.905; int 28.6 dB, 0.909",
    "half": "BASE 11.8 dB, 0.604; E-CAE 21.1 dB, 0.771; cat 20.5 dB, 0.779; int 20.6 dB, 0.779",
}


def list_rows(folder: Path, search_iterations: int = 5000, iterations: int = 20_000) -> dict[str, list[Command]]:
    """The commands of each row of a mask, whose name is that of the folder."""
    mask = folder.name

    def train(name: str, seed: int, *flags: str) -> list[Command]:
        out, steps = str(folder / name), ("--iterations", str(iterations), "--seed", str(seed))
        return [("retrain", *flags, "--mask", mask, *steps, "--out", out), ("evaluate", out)]

    rows: dict[str, list[Command]] = {}
    for seed in SEEDS:
        for encoding in WIDTHS:
            name, out = f"{encoding}{seed}", str(folder / f"{encoding}{seed}-search")
            what = ("--encoding", encoding, "--mask", mask, "--seed", str(seed), "--no-test")
            search = ("search", *what, "--iterations", str(search_iterations), "--out", out)
            wide = f"{encoding}-wide{seed}"
            file = str(folder / f"{wide}.json")
            widen = ("widen", str(folder / name), file)
            rows[name] = [search, *train(name, seed, out), widen, *train(wide, seed, "--architecture", file)]
        file = str(folder / "base.json")
        rows[f"base{seed}"] = [("base", file), *train(f"base{seed}", seed, "--architecture", file)]
    for seed in SEEDS[:2]:
        rows[f"random{seed}"] = train(f"random{seed}", seed, "--architecture", "random")
    return rows


def list_small(folder: Path) -> dict[str, list[Command]]:
    """The preset for two cores: what the search finds, BASE as deep as that, three random architectures."""
    search, where = str(folder / "cat0-search"), ("--small", "--device", "cpu")

    def train(name: str, *flags: str) -> list[Command]:
        out = str(folder / name)
        return [("retrain", search, *where, *flags, "--out", out), ("evaluate", out, "--device", "cpu")]

    # One row, in turn: all trainings need the settings of the search.
    commands = [("search", *where, "--out", search), *train("cat0"), *train("base0", "--architecture", "base")]
    for seed in map(str, SEEDS):
        commands += train(f"random{seed}", "--architecture", "random", "--seed", seed)
    return {SMALL: commands}


def base_of(channels: int = 64) -> dict[str, Any]:
    """The baseline BASE."""
    return base_values(search_space(widths=(channels,)), BASE_LAYERS, channels)


def widen(parameters: int) -> int:
    """The channels with which BASE comes nearest to a number of parameters.

    It has 3x3 convolutions from and to three colors, and 2 BASE_LAYERS - 1 others, with the decoder.

    >>> widen(482_688)
    64
    """
    others = 2 * BASE_LAYERS - 1
    return max(1, round((math.sqrt(9 + others * parameters / 9) - 3) / others))


def run_row(commands: Sequence[Command], more: Sequence[str]) -> bool:
    """Run the commands of a row, one after another, but for finished runs; whether all succeeded."""
    for command in commands:
        verb, *flags = command
        if verb == "base":
            Path(flags[0]).parent.mkdir(parents=True, exist_ok=True)
            write_json(Path(flags[0]), to_dict(base_of()))
        elif verb == "widen":
            found = read_json(Path(flags[0]) / SUMMARY, CURE, dict[str, Any])
            write_json(Path(flags[1]), to_dict(base_of(widen(found["parameters"]))))
        elif not cifar10_tables.run_row([command], more, "inpainting"):
            return False
    return True


def show_mask(folder: Path) -> str:
    """A Markdown table of the trainings that are finished and tested, and mean and standard deviation of each group."""
    lines = ["| architecture | seed | layers | parameters | iterations | PSNR | SSIM |", "|---" * 7 + "|"]
    means = []
    for group, text in GROUPS.items():
        tested = []
        for path in filter(is_finished, sorted(folder.glob(f"{group}[0-9]"))):
            if not (path / EVALUATION).exists():
                continue
            summary = read_json(path / SUMMARY, CURE, dict[str, Any])
            report = read_json(path / EVALUATION, CURE, dict[str, Any])
            tested.append((report["psnr"], report["ssim"]))
            layers = sum("left out" not in line for line in summary["chain"])
            sizes = f"{layers} | {summary['parameters']:,} | {summary['last']['step']:,}"
            numbers = f"{sizes} | {report['psnr']:.2f} dB | {report['ssim']:.3f}"
            lines.append(f"| {text} | {path.name[-1]} | {numbers} |")
        if len(tested) > 1:
            psnr, ssim = ((statistics.mean(values), statistics.stdev(values)) for values in zip(*tested, strict=True))
            means.append(f"- {text}: {psnr[0]:.2f} ± {psnr[1]:.2f} dB, SSIM {ssim[0]:.3f} ± {ssim[1]:.3f}")
    if folder.name in PAPER:
        means.append(f"- the paper, 50,000 and 500,000 iterations: {PAPER[folder.name]}")
    return "\n".join([*lines, "", *means])


def show_tables(folder: Path) -> str:
    """The tables of all masks, and of the preset for two cores, with rows in the folder."""
    found = [f"{mask}:\n\n{show_mask(folder / mask)}" for mask in (*MASKS, SMALL) if (folder / mask).is_dir()]
    return "\n\n".join(found) or f"there are no runs in {folder}"


def main() -> None:
    arguments, more = split_flags(sys.argv[1:])
    parser = make_parser(__doc__, "mask", (*MASKS, SMALL), "runs/inpainting-tables")
    parser.add_argument("--search-iterations", type=int, default=5000, help="of each search (default: 5000)")
    parser.add_argument("--iterations", type=int, default=20_000, help="of each training (default: 20000)")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these, as cat0 (default: all)")
    given = parse_flags(parser, "mask", arguments)
    rows: dict[str, list[Command]] = {}
    if given.draw is None:
        folder, lengths = given.out / given.mask, (given.search_iterations, given.iterations)
        rows = select_rows(list_small(folder) if given.mask == SMALL else list_rows(folder, *lengths), given.rows)
        check_rows(Inpainting, rows, more)
    run_and_show(given, rows, partial(run_row, more=more), show_tables)


if __name__ == "__main__":
    main()
