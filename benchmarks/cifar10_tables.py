"""Tables of CIFAR-10 beside those of the searches: how robust they are, and whether they matter.

    python benchmarks/cifar10_tables.py robustness --out FOLDER     searches of 25 epochs: step sizes, populations, SNG
    python benchmarks/cifar10_tables.py retraining --out FOLDER     100 epochs: found, random, found by uniform sampling
    python benchmarks/cifar10_tables.py table1 --out FOLDER         600 epochs of what seeds 0, 1 and 2 found, in turn
    python benchmarks/cifar10_tables.py small-networks --out FOLDER 10 epochs at the size of a search: what was found
    python benchmarks/cifar10_tables.py kernels --out FOLDER        the first 20 of table1, torch's and fused kernels
    python benchmarks/cifar10_tables.py eight-epochs --out FOLDER   searches of 8 epochs, torch's and fused kernels
    python benchmarks/cifar10_tables.py small --out FOLDER          the preset for two cores, on the CPU
    python benchmarks/cifar10_tables.py --draw results/cifar10      the tables again, of what is finished there

Each row is a run of the commands that are printed, in a folder of its own: FOLDER/robustness/lambda4 and the like.
Finished ones are skipped and interrupted ones continue, so the same command goes on after Ctrl-C or SIGTERM, which let
the runs save; a run of other settings in one of these folders is refused. --rows takes some rows alone. What follows
`--` is added to all searches and trainings, as in `-- --amp-dtype bfloat16`; the images are where ASNG_DATA says. Test
errors are those after the last epoch: nothing is chosen by test images. The tables need config.json, metrics.jsonl,
summary.json and evaluation.json of each run; environment.jsonl says with which kernels and versions it ran.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from asng._files import differences
from asng._signals import sigterm_as_interrupt
from asng._untrusted import read_json, read_json_lines
from asng.cli.images import parse_verb
from asng.experiments._task import Task
from asng.experiments.cifar10.task import Cifar10
from asng.runs import CHECKPOINT, CONFIG, METRICS, SUMMARY, read_config

CURE = "run the row again"
ROOT = Path(__file__).parents[1]
FOUND = ROOT / "results" / "cifar10"
ALONE = ROOT / "results" / "shared-weights" / "alone" / "results.jsonl"
EVALUATION = "evaluation.json"
SURE = 0.9  # the mean largest probability that the paper reports for epoch 50
EARLY = 10  # the epoch of which choices are compared with those at the end
FIRST_EPOCHS = 20  # of trainings that only begin
SHOWN_EPOCHS = (1, 2, 5, 10, 15, FIRST_EPOCHS)
SHORT_EPOCHS, SHORT_SEEDS = 8, 6  # of short searches
SMALL_EPOCHS = (1, 2, 4, 6, 8, 10)  # of the preset for two cores
INTERRUPTED = 130  # the exit code of a run that was interrupted and has saved
Command = tuple[str, ...]

SEARCHES: dict[str, Command] = {
    "asng": (),
    **{f"delta{delta}": ("--delta", delta) for delta in ("0.1", "10")},
    **{f"lambda{n}": ("--population-size", n) for n in ("4", "8")},
    **{f"sng{delta}": ("--method", "sng", "--delta", delta) for delta in ("0.01", "0.1", "1")},
}
GROUPS = {
    "found": "found by the searches",
    "random": "random",
    "uniform": "found by uniform sampling with shared weights",
}
KERNELS = {"torch": "torch's kernels", "fused": "fused kernels"}


def robustness(folder: Path) -> dict[str, list[Command]]:
    """The commands of each row, without the flags that the caller adds to all."""
    search = ("search", "--epochs", "25", "--no-test")
    return {
        name: [(*search, *flags, "--out", str(folder / name)), ("evaluate", str(folder / name))]
        for name, flags in SEARCHES.items()
    }


def list_retrainings(folder: Path, epochs: int = 100) -> dict[str, list[Command]]:
    """What three searches found, five random architectures, what uniform sampling finds."""

    def train(name: str, *flags: str) -> Command:
        return ("retrain", *flags, "--epochs", str(epochs), "--no-test", "--out", str(folder / name))

    rows: dict[str, list[Command]] = {}
    for seed in map(str, range(3)):
        rows[f"found{seed}"] = [train(f"found{seed}", str(FOUND / f"seed{seed}"))]
    for seed in map(str, range(5)):
        rows[f"random{seed}"] = [train(f"random{seed}", "--architecture", "random", "--seed", seed)]
    for seed in map(str, range(2)):
        search = str(folder / f"uniform{seed}-search")
        draw = ("search", "--method", "uniform", "--no-test", "--seed", seed, "--out", search)
        rows[f"uniform{seed}"] = [draw, train(f"uniform{seed}", search)]
    return rows


def table1(folder: Path) -> dict[str, list[Command]]:
    """The paper's training of what the searches found, the first one first."""
    rows = list_retrainings(folder, epochs=600)
    return {name: commands for name, commands in rows.items() if name.startswith("found")}


def small_networks(folder: Path) -> dict[str, list[Command]]:
    """What all searches found, and random architectures, trained as shared_weights.py trains those alone."""
    searches = {f"seed{seed}": FOUND / f"seed{seed}" for seed in range(3)}
    searches |= {name: FOUND / "robustness" / name for name in SEARCHES}
    flags: dict[str, Command] = {name: (str(run),) for name, run in searches.items()}
    flags |= {f"random{seed}": ("--architecture", "random", "--seed", str(seed)) for seed in range(20)}
    size = ("--epochs", "10", "--cells", "8", "--channels", "16", "--drop-path", "0", "--auxiliary", "0", "--no-test")
    return {name: [("retrain", *given, *size, "--out", str(folder / name))] for name, given in flags.items()}


def kernels(folder: Path) -> dict[str, list[Command]]:
    """The beginning of that training, with three seeds, by each kind of kernels."""
    begin = ("begin", str(FOUND / "seed0"), "--epochs", "600")
    return {
        f"{kind}{seed}": [(*begin, "--kernels", kind, "--seed", str(seed), "--out", str(folder / f"{kind}{seed}"))]
        for kind in KERNELS
        for seed in range(3)
    }


def eight_epochs(folder: Path) -> dict[str, list[Command]]:
    """Short searches, with six seeds, by each kind of kernels."""
    search = ("search", "--epochs", str(SHORT_EPOCHS), "--no-test")
    return {
        f"{kind}{seed}": [(*search, "--kernels", kind, "--seed", str(seed), "--out", str(folder / f"{kind}{seed}"))]
        for seed in range(SHORT_SEEDS)
        for kind in KERNELS
    }


def small(folder: Path) -> dict[str, list[Command]]:
    """The search of the preset for two cores."""
    return {"seed0": [("search", "--small", "--device", "cpu", "--out", str(folder / "seed0"))]}


PARTS: dict[str, Callable[[Path], dict[str, list[Command]]]] = {
    "robustness": robustness,
    "retraining": list_retrainings,
    "table1": table1,
    "small-networks": small_networks,
    "kernels": kernels,
    "eight-epochs": eight_epochs,
    "small": small,
}


def is_finished(folder: Path) -> bool:
    return (folder / SUMMARY).exists()


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    path = folder / METRICS
    return read_json_lines(path, CURE) if path.exists() else []


class Processes:
    """The runs that are under way, as processes of their own."""

    def __init__(self) -> None:
        self._lock, self._running, self._is_stopped = threading.Lock(), set[subprocess.Popen[bytes]](), False

    def run(self, command: Sequence[str], is_over: Callable[[], bool] | None = None) -> int:
        """Run a command to its end, or until it is over, and return its exit code."""
        with self._lock:
            if self._is_stopped:
                return INTERRUPTED
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            self._running.add(process)
        while is_over is not None and process.poll() is None:
            if is_over():
                process.terminate()  # not SIGINT, which processes in the background of a shell ignore
                break
            time.sleep(1)
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code

    def stop(self) -> None:
        """Let all of them save and end; no other one starts."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                process.terminate()


PROCESSES = Processes()


def begin(command: Sequence[str], folder: Path) -> int:
    """Run a training until its first epochs are over, then stop it, which saves it; returns 0 if they are."""

    def is_over() -> bool:
        return len(read_epochs(folder)) >= FIRST_EPOCHS

    code = PROCESSES.run(command, is_over)
    return 0 if is_over() else code or 1


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """ValueError if the run in a folder has other settings; those that its config.json does not name are not compared.

    A run that is not finished would be refused by itself, a finished one is skipped.
    """
    config, given = read_config(folder), json.loads(json.dumps(settings))
    names = config.keys() & given.keys()
    if shown := differences({n: config[n] for n in config if n in names}, {n: given[n] for n in names}):
        cure = "use another folder (--out), or delete this one"
        raise ValueError(f"{folder} holds a run of other settings ({shown}); {cure}")


def check_rows(task: type[Task], rows: Mapping[str, Sequence[Command]], more: Sequence[str]) -> None:
    """Exit if a folder of the rows holds a run of other settings, which would be taken for the row."""
    presets = {"search": task.small_search, "retrain": task.small_train}
    try:
        for verb, *flags in (command for commands in rows.values() for command in commands):
            kind = "retrain" if verb == "begin" else verb
            if kind in presets and ((folder := Path(flags[flags.index("--out") + 1])) / CONFIG).exists():
                settings = vars(parse_verb(task, kind, [*flags, *more], small=presets[kind]).settings)
                inherited = {name for name in task.inherited if settings.get(name) is None}
                given = {name: value for name, value in settings.items() if name not in inherited}
                check_settings(folder, {"experiment": task.name, "kind": kind, **given})
    except ValueError as error:
        sys.exit(str(error))


def run_row(commands: Sequence[Command], more: Sequence[str], experiment: str = "cifar10") -> bool:
    """Run the commands of a row, one after another, but for finished runs; whether all succeeded."""
    for verb, *flags in commands:
        if verb == "evaluate":
            folder, added = Path(flags[0]), []
            done = (folder / EVALUATION).exists() or not (folder / CHECKPOINT).exists()
        else:
            folder, added = Path(flags[flags.index("--out") + 1]), list(more)
            done = is_finished(folder) or (verb == "begin" and len(read_epochs(folder)) >= FIRST_EPOCHS)
        if done:
            continue
        command = ["asng", experiment, "retrain" if verb == "begin" else verb, *flags, *added]
        print(shlex.join(command), flush=True)
        started = [sys.executable, "-m", *command]
        code = begin(started, folder) if verb == "begin" else PROCESSES.run(started)
        if code:
            print(f"{'interrupted' if code == INTERRUPTED else 'failed'}: {shlex.join(command)}", flush=True)
            return False
    return True


def run_rows(rows: Mapping[str, Sequence[Command]], workers: int, run: Callable[[Sequence[Command]], bool]) -> bool:
    """Run all rows, some side by side; whether all succeeded. Ctrl-C and SIGTERM end their processes first."""
    with ThreadPoolExecutor(workers) as executor, sigterm_as_interrupt():
        try:
            done, _ = wait([executor.submit(run, row) for row in rows.values()])
            return all(future.result() for future in done)
        except KeyboardInterrupt:
            PROCESSES.stop()
            executor.shutdown(cancel_futures=True)
            raise


def run_and_show(
    given: argparse.Namespace,
    rows: Mapping[str, Sequence[Command]],
    run: Callable[[Sequence[Command]], bool],
    show: Callable[[Path], str],
) -> None:
    """Run all rows, but for --draw, and print the tables."""
    try:
        succeeded = given.draw is not None or run_rows(rows, given.workers, run)
    except KeyboardInterrupt:
        print(f"Interrupted. Finished parts are in {given.out}; the same command continues.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    print(show(given.draw or given.out))
    if not succeeded:
        sys.exit(1)


def _seconds(records: Sequence[Mapping[str, Any]]) -> str:
    return f"{sum(record['seconds'] for record in records):,.0f}"


def show_robustness(folder: Path) -> str:
    """A Markdown table of the searches that are finished and tested."""
    lines = [
        "| search | valid accuracy | test error, shared weights | mean largest probability | "
        f"above {SURE} after epoch | choices after epoch {EARLY} that differ from those at the end (of 40) | "
        "delta at the end | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in (name for name in SEARCHES if is_finished(folder / name) and (folder / name / EVALUATION).exists()):
        records = read_json_lines(folder / name / METRICS, CURE)
        test = read_json(folder / name / EVALUATION, CURE, dict[str, Any])["test_accuracy"]
        last, sure = records[-1], [r["epoch"] for r in records if r["largest_probability"] > SURE]
        early = records[min(EARLY, len(records)) - 1]["architecture"]
        cells = [
            name,
            f"{100 * last['valid_accuracy']:.1f} %",
            f"{100 - 100 * test:.1f} %",
            f"{last['largest_probability']:.3f}",
            sure[0] if sure else "-",
            sum(now != then for now, then in zip(early, last["architecture"], strict=True)),
            f"{last['delta']:.3f}" if "delta" in last else "-",
            _seconds(records),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def show_retraining(folder: Path) -> str:
    """A Markdown table of the trainings that are finished, and mean and standard deviation of each group.

    Seconds are those of the steps, without tests and checkpoints: of an epoch the median, and of all epochs.
    """
    heads = ["architecture", "seed", "channels", "parameters", "with an influence", "test error"]
    heads += ["train loss", "epochs", "s per epoch", "s in all"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    means = []
    for group, text in GROUPS.items():
        errors = []
        for path in filter(is_finished, sorted(folder.glob(f"{group}[0-9]"))):
            summary = read_json(path / SUMMARY, CURE, dict[str, Any])
            errors.append(100 - 100 * summary["last"]["test_accuracy"])
            sizes = f"{summary['channels']} | {summary['parameters']:,} | {summary['effective_parameters']:,}"
            records = read_epochs(path)
            seconds = f"{statistics.median(record['seconds'] for record in records):.1f} | {_seconds(records)}"
            losses = f"{errors[-1]:.2f} % | {records[-1]['train_loss']:.2f} | {len(records)}"
            lines.append(f"| {text} | {path.name[-1]} | {sizes} | {losses} | {seconds} |")
        if len(errors) > 1:
            means.append(f"- {text}: {_mean_error(errors)} ({len(errors)} networks)")
    return "\n".join([*lines, "", *means]).strip()


def _mean_error(errors: Sequence[float]) -> str:
    return f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f} %"


def show_small_networks(folder: Path) -> str:
    """Markdown tables of the finished trainings: of searches beside random ones, and of random ones, run twice."""
    errors = {row["seed"]: 100 - 100 * row["alone"] for row in read_json_lines(ALONE, CURE)}
    found = ["| search | parameters | test error | random architectures with a lower one |", "|---|---|---|---|"]
    again = ["| random architecture | parameters | test error | of shared_weights.py |", "|---|---|---|---|"]
    for name in filter(lambda name: is_finished(folder / name), small_networks(folder)):
        summary = read_json(folder / name / SUMMARY, CURE, dict[str, Any])
        error = 100 - 100 * summary["last"]["test_accuracy"]
        row = f"| {name} | {summary['parameters']:,} | {error:.2f} % |"
        if name.startswith("random"):
            again.append(f"{row} {errors[int(name.removeprefix('random'))]:.2f} % |")
        else:
            found.append(f"{row} {sum(other < error for other in errors.values())} of {len(errors)} |")
    spread = f"{min(errors.values()):.2f} to {max(errors.values()):.2f} %"
    random = f"- random, of shared_weights.py: {_mean_error(list(errors.values()))}, {spread} ({len(errors)} networks)"
    return "\n".join([*found, "", *again, "", random])


def show_table1(folder: Path) -> str:
    """The same of the paper's training, with what a search cost."""
    days = sum(record["seconds"] for record in read_epochs(FOUND / "seed0")) / (24 * 60 * 60)
    cost = f"- search of seed 0, which had the GPU for itself: {days:.4f} GPU days"
    return "\n".join([show_retraining(folder), cost, "- the paper: 2.83 ± 0.14 %, 0.11 GPU days"])


def show_seeds(
    head: str, groups: Mapping[str, Iterable[Path]], epochs: Iterable[int], columns: Mapping[str, str]
) -> str:
    """A Markdown table of mean and standard deviation over the seeds, of the epochs that all seeds of a group have.

    Groups are folders of runs by what stands in the first column, whose heading is `head`; columns are headings by the
    names of metrics. Accuracies are shown in percent.
    """
    lines = [f"| {head} | epoch | seeds | {' | '.join(columns.values())} |", "|---" * (3 + len(columns)) + "|"]
    for text, folders in groups.items():
        seeds = [records for path in folders if (records := read_epochs(path))]
        for epoch in (n for n in epochs if len(seeds) > 1 and all(len(records) >= n for records in seeds)):
            cells = [_mean_and_deviation(name, [records[epoch - 1][name] for records in seeds]) for name in columns]
            lines.append(f"| {text} | {epoch} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _group_kernels(folder: Path) -> dict[str, list[Path]]:
    return {text: sorted(folder.glob(f"{kind}[0-9]")) for kind, text in KERNELS.items()}


def _mean_and_deviation(name: str, numbers: Sequence[float]) -> str:
    mean, deviation = statistics.mean(numbers), statistics.stdev(numbers)
    if name.endswith("accuracy"):
        return f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
    return f"{mean:.3f} ± {deviation:.3f}"


def show_kernels(folder: Path) -> str:
    columns = {"train_loss": "train loss", "test_accuracy": "test accuracy"}
    groups = _group_kernels(folder)
    lines = [show_seeds("kernels", groups, SHOWN_EPOCHS, columns), ""]
    runs = {kind: [records for path in paths if (records := read_epochs(path))] for kind, paths in groups.items()}
    for kind, seeds in runs.items():
        if seeds:
            median = statistics.median(record["seconds"] for records in seeds for record in records)
            lines.append(f"- {kind}: {median:.1f} s per epoch (median)")
    if all(runs.values()):
        torch_losses, losses = (_mean_losses(runs[text]) for text in KERNELS.values())
        differences = [ours - theirs for ours, theirs in zip(losses, torch_losses, strict=False)]
        extremes = f"{min(differences):+.3f} to {max(differences):+.3f}"
        lines.append(f"- mean train loss, fused less torch's kernels: {extremes} in {len(differences)} epochs")
    return "\n".join(lines).strip()


def _mean_losses(seeds: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
    """Of the epochs that all seeds have."""
    return [statistics.mean(record["train_loss"] for record in epoch) for epoch in zip(*seeds, strict=False)]


def show_eight_epochs(folder: Path) -> str:
    """Beside the authors' procedure, of which cifar10_others.py leaves runs in a folder beside this one."""
    columns = {"valid_accuracy": "valid accuracy", "largest_probability": "mean largest probability"}
    groups = {**_group_kernels(folder), "authors' procedure": sorted((folder.parent / "others").glob("authors[0-9]"))}
    return show_seeds("search", groups, (1, SHORT_EPOCHS // 2, SHORT_EPOCHS), columns)


def show_small(folder: Path) -> str:
    """A Markdown table with an epoch in each column."""
    records = [record for record in read_epochs(folder / "seed0") if record["epoch"] in SMALL_EPOCHS]
    tested = read_config(folder / "seed0")["num_test_images"]
    rows = {
        "valid_accuracy": "valid accuracy",
        "test_accuracy": f"test accuracy of the most likely one ({tested:,} images)",
    }
    lines = [f"| epoch | {' | '.join(str(record['epoch']) for record in records)} |", "|---" * (1 + len(records)) + "|"]
    for name, text in rows.items():
        lines.append(f"| {text} | {' | '.join(f'{100 * record[name]:.1f} %' for record in records)} |")
    return "\n".join(lines)


SHOW = {
    "robustness": show_robustness,
    "table1": show_table1,
    "small-networks": show_small_networks,
    "kernels": show_kernels,
    "eight-epochs": show_eight_epochs,
    "small": show_small,
}


def show_tables(folder: Path) -> str:
    """All tables with rows in the folder."""
    shown = {part: SHOW.get(part, show_retraining) for part in PARTS}
    found = [f"{part}:\n\n{show(folder / part)}" for part, show in shown.items() if (folder / part).is_dir()]
    return "\n\n".join(found) or f"there are no runs in {folder}"


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and behind `--`.

    >>> split_flags(["table1", "--", "--amp-dtype", "bfloat16"])
    (['table1'], ['--amp-dtype', 'bfloat16'])
    """
    split = [*arguments, "--"].index("--")
    return list(arguments[:split]), list(arguments[split + 1 :])


def make_parser(description: str | None, name: str, choices: Iterable[str], out: str) -> argparse.ArgumentParser:
    """The flags of a script that runs one of several things, or draws what was run."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(name, nargs="?", choices=choices, help="what to run")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the runs")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="only draw the tables of this folder")
    parser.add_argument("--workers", type=int, default=1, help="runs side by side, on the same GPU")
    return parser


def select_rows(rows: Mapping[str, list[Command]], names: Sequence[str] | None) -> dict[str, list[Command]]:
    """The rows with these names, or all of them."""
    if unknown := set(names or ()) - rows.keys():
        sys.exit(f"there is no row {', '.join(sorted(unknown))}; give some of {', '.join(rows)}")
    return {name: commands for name, commands in rows.items() if names is None or name in names}


def parse_flags(parser: argparse.ArgumentParser, name: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    given = parser.parse_args(arguments)
    if (getattr(given, name) is None) == (given.draw is None):
        parser.error(f"give either a {name} or --draw FOLDER")
    if given.workers < 1:
        parser.error(f"--workers must be at least 1, got {given.workers}")
    return given


def main() -> None:
    arguments, more = split_flags(sys.argv[1:])
    parser = make_parser(__doc__, "part", PARTS, "runs/cifar10-tables")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these, as random1 (default: all)")
    given = parse_flags(parser, "part", arguments)
    rows = {} if given.part is None else select_rows(PARTS[given.part](given.out / given.part), given.rows)
    check_rows(Cifar10, rows, more)
    run_and_show(given, rows, partial(run_row, more=more), show_tables)


if __name__ == "__main__":
    main()
