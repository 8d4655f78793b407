"""What all commands share: flags and help, --quiet, --json, --dry-run, --seeds, and wrong words."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import torch

from asng import cli
from asng.cli.estimate import describe_estimate
from asng.cli.flags import flags_of, parse_command
from asng.cli.terminal import seeds_of
from asng.experiments._estimates import fill_momentum, time_calls
from tests.helpers.commands import refusal, run, summary_of
from tests.helpers.stripes import LINE, TINY

pytestmark = pytest.mark.slow

SOME = ["stripes search", "toy sweep", "digits search", "digits tune"]
LITTLE = {
    "stripes search": TINY,
    "toy sweep": ["--variables", "3", "--choices", "2", "--runs", "2", "--iterations", "50", "--powers", "0"],
    "digits search": ["--epochs", "1", "--training-epochs", "1"],
    "digits tune": ["--trials", "2", "--epochs", "1", "--training-epochs", "1"],
}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """An empty folder, and a table with one more experiment, which takes no time."""
    monkeypatch.setitem(cli.EXPERIMENTS, "stripes", LINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Flags from dataclasses


@dataclass(frozen=True)
class Settings:
    """Settings."""

    epochs: int = 3
    """Passes over the data."""
    lr: float = 0.5
    """Learning rate."""
    method: Literal["fast", "slow"] = "fast"
    """How."""
    sizes: tuple[int, ...] = (1, 2)
    """In pixels."""
    limit: int | None = None
    """None by default."""
    test: bool = True
    """Test it; --no-test does not."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Does something.

    Examples:
      asng do it
    """

    run: Path | None = field(default=None, metadata={"metavar": "RUN"})
    """A folder."""
    settings: Settings
    small: bool = False
    """Other defaults."""


def parse(*words):
    return parse_command(Command, "do it", words, presets={"small": Settings(epochs=1, lr=0.1)})


def test_what_is_not_given_has_its_default_and_what_is_given_its_type():
    assert parse() == Command(settings=Settings())
    words = shlex.split("here --epochs 5 --lr 1e-3 --method slow --sizes 4 5 6 --limit 7 --no-test")
    settings = Settings(epochs=5, lr=1e-3, method="slow", sizes=(4, 5, 6), limit=7, test=False)
    assert parse(*words) == Command(run=Path("here"), settings=settings)


@pytest.mark.parametrize("words", [["--small", "--lr", "2"], ["--lr", "2", "--small"]])
def test_a_preset_changes_defaults_and_flags_count_wherever_they_stand(words):
    assert parse(*words) == Command(settings=Settings(epochs=1, lr=2.0), small=True)
    assert parse("--small", "--no-small").settings == Settings()


def test_a_flag_that_looks_like_a_preset_but_is_a_value_is_none():
    with pytest.raises(ValueError, match="--method: expected one argument"):
        parse("--method", "--small")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epoch", "3"], "asng do it has no flag --epoch; did you mean --epochs?"),
        (["--xyz"], "asng do it has no flag --xyz; asng do it --help lists all"),
        (["--help-me"], "asng do it has no flag --help-me; did you mean --help?"),
        (["--no-tset"], "asng do it has no flag --no-tset; did you mean --no-test?"),
        (["--method", "fats"], "--method: 'fats' is none of fast, slow; did you mean fast?"),
        (["--epochs", "3.5"], "--epochs: takes an integer, got '3.5'; asng do it --help explains all flags"),
        (["--lr", "x"], "--lr: takes a number, got 'x'; asng do it --help explains all flags"),
        (["a", "b"], "asng do it has no argument 'b'; asng do it --help lists all"),
        (["--lr", ""], "an argument is empty, behind '--lr'; give its value"),
    ],
)
def test_a_wrong_word_is_one_line_with_the_nearest_right_one(words, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse(*words)


def test_every_flag_has_its_text_also_those_of_base_classes():
    for command in cli.commands():
        flags = flags_of(*cli.parts_of_command(command))
        assert [flag.name for flag in flags if not flag.text] == []
        assert len({flag.name for flag in flags}) == len(flags)
    assert [flag.option for flag in flags_of(Command) if flag.metavar is None][:2] == ["--epochs", "--lr"]


def test_the_same_verb_takes_the_same_flags_everywhere():
    for verb in ("search", "retrain", "evaluate"):
        commands = [command for command in cli.commands() if command.endswith(f" {verb}")]
        flags = [
            {flag.name for flag in flags_of(*cli.parts_of_command(name)) if flag.group == "options"}
            for name in commands
        ]
        shared = {"quiet", "json"} | ({"out", "seeds", "dry_run", "tensorboard"} if verb != "evaluate" else set())
        assert all(shared <= each for each in flags)


# Help


@pytest.mark.parametrize("command", list(cli.commands()))
def test_help_fits_into_80_columns_and_ends_with_the_exit_codes(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = run(*command.split(), "--help")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert f"Examples:\n  asng {command}" in done.out
    assert "Exit codes: 0 done, 1 failed, 2 wrong input, 130" in done.out


def test_the_overview_fits_into_80_columns_too():
    assert max(map(len, run().out.splitlines())) <= 80


def examples_of(command):
    """The examples that the help of a command shows, as words."""
    lines = run(*command.split(), "--help").out.split("Examples:\n")[1].split("\n\n")[0].splitlines()
    return [shlex.split(re.split(r"   *", line.strip())[0]) for line in lines]


@pytest.mark.parametrize("command", list(cli.commands()))
def test_the_examples_of_help_are_commands_that_are_understood(command, monkeypatch):
    def parse_only(*arguments, **options):
        parsed.append(parse_command(*arguments, **options))
        raise KeyboardInterrupt

    parsed: list[object] = []
    examples = examples_of(command)
    for module in ("digits", "export", "images", "report", "resume", "runs", "toy"):
        monkeypatch.setattr(f"asng.cli.{module}.parse_command", parse_only)
    for words in examples:
        assert words[: 1 + len(command.split())] == ["asng", *command.split()]
        assert run(*words[1:]).code == 130
    assert len(parsed) == len(examples) >= 1


def test_with_a_preset_help_shows_its_defaults():
    assert (
        "--runs INT              Number of independent runs of each setting. [100]" in run("toy", "sweep", "--help").out
    )
    assert (
        "--runs INT              Number of independent runs of each setting. [8]"
        in run("toy", "sweep", "--quick", "-h").out
    )


# --quiet and --json


def test_quiet_prints_the_last_line_alone():
    done = run("stripes", "search", *TINY, "--quiet")
    assert (done.code, done.err) == (0, "")
    assert done.out == "Train it from scratch: asng stripes retrain runs/stripes-asng-seed0 --device cpu\n"
    trained = run("stripes", "retrain", "runs/stripes-asng-seed0", *TINY, "--quiet")
    assert trained.out.startswith("Test it: asng stripes evaluate ")
    tested = run("stripes", "evaluate", "runs/stripes-asng-seed0", "--device", "cpu", "--quiet")
    assert re.fullmatch(r"Test accuracy [\d.]+\n", tested.out)
    assert run("report", "runs/stripes-asng-seed0", "--quiet").out == "Report: runs/stripes-asng-seed0/report.html\n"


def test_json_is_one_object_on_stdout_and_all_else_is_on_stderr():
    done = run("stripes", "search", *TINY, "--json")
    outcome = json.loads(done.out)
    assert done.out.count("\n") == 1
    assert "epoch 2" in done.err
    assert outcome["folder"] == "runs/stripes-asng-seed0"
    assert outcome["values"] == summary_of(Path(outcome["folder"]))["values"]
    trained = json.loads(run("stripes", "retrain", outcome["folder"], *TINY, "--json").out)
    assert trained["figures"]["test_accuracy"] == trained["last"]["test_accuracy"]
    tested = json.loads(run("stripes", "evaluate", trained["folder"], "--device", "cpu", "--json").out)
    assert tested["test_accuracy"] == trained["last"]["test_accuracy"]
    page = json.loads(run("report", outcome["folder"], "--json").out)
    assert Path(page["report"]).is_file()


def test_quiet_json_is_the_object_alone():
    done = run("stripes", "search", *TINY, "--json", "--quiet")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    assert json.loads(done.out)["folder"] == "runs/stripes-asng-seed0"


def test_a_finished_run_that_is_repeated_says_so():
    said = "runs/stripes-asng-seed0 was finished before: nothing is run again"
    first, second = (run("stripes", "search", *TINY) for _ in range(2))
    assert (first.code, said in first.out) == (0, False)
    assert (second.code, said in second.out) == (0, True)


def test_an_error_leaves_stdout_empty_also_under_json():
    done = run("stripes", "search", *TINY, "--max-params", "1", "--method", "uniform", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("asng: ")


# --dry-run


@pytest.mark.parametrize("command", SOME)
def test_a_dry_run_estimates_and_writes_nothing(command, folder):
    words = [*command.split(), *LITTLE[command], "--dry-run"]
    done = run(*words)
    assert (done.code, done.err) == (0, "")
    for word in ("Search space: ", "Steps: ", "Time: ", "Memory: "):
        assert word in done.out
    assert list(folder.iterdir()) == []
    estimate = json.loads(run(*words, "--json").out)
    assert estimate["steps"] * estimate["seconds_per_step"] > 0
    assert list(folder.iterdir()) == []


def test_a_dry_run_says_how_far_its_steps_differ_and_that_the_machine_is_busy(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (6.0, 1.0, 1.0), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    numbers = iter([0.0, 1.0, 0.0, 2.0, 0.0, 6.0])  # before and after three steps
    monkeypatch.setattr("asng.experiments._estimates.time.perf_counter", lambda: next(numbers))
    timing = time_calls(lambda: None)
    assert timing == (3.0, 1.0, 6.0)
    estimate = {"steps": 10, **timing.estimate(10), "memory_bytes": None, "disk_bytes": None}
    assert describe_estimate(estimate)[1:3] == [
        "Time: 30 s; 10 s to 1 min by the fastest and the slowest of these steps",
        "Load: 3.0 processes per core; an idle machine is faster; OMP_NUM_THREADS=1 keeps torch's 2 threads from "
        "waiting for each other",
    ]
    alone = describe_estimate({**estimate, "load": 0.5, "slowest_step": 1.0, "fastest_step": 1.0})
    assert alone[1:] == ["Time: 30 s, by a single step", "Nothing was run or written; leave out --dry-run to start."]


def test_a_run_says_first_and_once_that_the_machine_is_busy(folder, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (6.0, 1.0, 1.0), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    words = ["stripes", "search", *TINY, "--seeds", "2"]
    busy = run(*words).out.partition("Load: 3.0 processes per core; an idle machine is faster; OMP_NUM_THREADS=1 ")
    assert "Seed 0:" in busy[2]
    assert "Load: " not in busy[0] + busy[2]
    assert "Load: " not in run(*words, "--quiet").out
    assert run(*words, "--dry-run").out.count("Load: ") == 1


def test_a_dry_run_counts_the_momentum_of_weights_that_its_few_steps_do_not_reach():
    used, unused = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = torch.optim.SGD([used, unused], lr=0.1, momentum=0.9)
    fill_momentum(optimizer)
    assert len(optimizer.state) == 0  # without a step it is not known whether there is any
    used.sum().backward()
    optimizer.step()
    fill_momentum(optimizer)
    assert optimizer.state[used]["momentum_buffer"].tolist() == [1, 1, 1]
    assert optimizer.state[unused]["momentum_buffer"].tolist() == [0, 0, 0]


def test_a_dry_run_knows_the_size_of_the_space_and_of_the_networks():
    estimate = json.loads(run("stripes", "search", *TINY, "--dry-run", "--json").out)
    assert (estimate["variables"], estimate["architectures"], estimate["steps"]) == (2, 10, 4)
    assert estimate["parameters"] == 6 * 3 * 9 + 6 + 6 * 2 + 2  # of the widest
    assert estimate["networks"] == {"smallest": 62, "median": estimate["networks"]["median"], "largest": 182}
    assert 0 < estimate["disk_bytes"] < 100_000
    words = ["stripes", "retrain", "--architecture", "random", *TINY, "--dry-run", "--json"]
    assert 62 <= json.loads(run(*words).out)["parameters"] <= 182


# --seeds


def test_seeds_are_counted_or_named():
    assert seeds_of((), 5) == [5]
    assert seeds_of((3,), 5) == [5, 6, 7]
    assert seeds_of((9, 2), 5) == [9, 2]
    for wrong in ((0,), (-1,), (3, 3), (1, -2)):
        with pytest.raises(ValueError, match="--seeds takes a number of runs, at least 1, or different seeds, got"):
            seeds_of(wrong, 0)


def test_every_seed_has_a_run_of_its_own_and_mean_and_spread_come_last(folder):
    done = run("stripes", "search", *TINY, "--seeds", "3")
    assert (done.code, done.err) == (0, "")
    folders = [folder / "runs" / f"stripes-asng-seed{seed}" for seed in range(3)]
    tested = [summary_of(each)["last"]["test_accuracy"] for each in folders]
    mean, std = sum(tested) / 3, (sum((each - sum(tested) / 3) ** 2 for each in tested) / 2) ** 0.5
    last = done.out.splitlines()[-1]
    assert last.startswith("Mean and standard deviation of 3 seeds: ")
    assert f"test accuracy {mean:.4g} ± {std:.2g}" in last
    assert summary_of(folders[2])["values"] == values_of_one_run(folder, 2)


def values_of_one_run(folder, seed):
    assert run("stripes", "search", *TINY, "--seed", seed, "--out", folder / "alone").code == 0
    return summary_of(folder / "alone")["values"]


def test_more_seeds_continue_where_it_was(folder):
    words = ["stripes", "search", *TINY, "--out", folder / "some", "--json"]
    first = json.loads(run(*words, "--seeds", "4", "7").out)
    assert [each["folder"] for each in first["runs"]] == [str(folder / "some" / f"seed{seed}") for seed in (4, 7)]
    before = {seed: (folder / "some" / f"seed{seed}" / "metrics.jsonl").read_bytes() for seed in (4, 7)}
    again = json.loads(run(*words, "--seeds", "4", "7", "1").out)
    assert before == {seed: (folder / "some" / f"seed{seed}" / "metrics.jsonl").read_bytes() for seed in (4, 7)}
    assert len(again["runs"]) == 3
    assert again["figures"]["test_accuracy"]["min"] <= again["figures"]["test_accuracy"]["mean"]
    trained = run("stripes", "retrain", folder / "some" / "seed4", *TINY, "--seeds", "2")
    assert (folder / "some" / "seed4" / "retrain-seed1" / "summary.json").exists()
    assert trained.out.splitlines()[-1].startswith("Mean and standard deviation of 2 seeds: ")


def test_folders_of_several_seeds_do_not_nest_into_a_run(folder):
    assert run("stripes", "search", *TINY, "--out", "one").code == 0
    error = refusal("stripes", "search", *TINY, "--seeds", "2", "--out", "one")
    assert error == "one holds a single run; choose another folder (--out) for several seeds"
    assert not list((folder / "one").glob("seed*"))


def test_a_folder_of_seeds_is_reported_and_continued_as_a_whole(folder):
    words = ["stripes", "search", *TINY, "--seeds", "2", "--out", "some"]
    assert run(*words).code == 0
    assert run("report", "some").code == 0
    page = (folder / "some" / "report.html").read_text()
    assert all(name in page for name in ("seed0", "seed1", "mean ± standard deviation"))
    assert refusal("resume", "some") == "all 2 runs in some are finished; asng report some shows them"
    whole = summary_of(folder / "some" / "seed1")["values"]
    (folder / "some" / "seed1" / "summary.json").unlink()  # as if it was interrupted at the end
    done = run("resume", "some")
    assert (done.code, done.err) == (0, "")
    assert "Continuing stripes search in some/seed1" in done.out
    assert "seed0" not in done.out
    assert done.out.splitlines()[-1] == "Continued 1 of 2 runs; asng report some shows all"
    assert summary_of(folder / "some" / "seed1")["values"] == whole


# Wrong paths


def test_a_wrong_path_is_one_line_with_the_nearest_right_one(folder):
    (folder / "runs" / "digits").mkdir(parents=True)
    for words in (["resume", "runs/digit"], ["report", "runs/digit"], ["stripes", "evaluate", "runs/digit"]):
        assert refusal(*words) == "there is no folder runs/digit; did you mean runs/digits?"
    for wrong in ("rums/digits", "rums/digit"):
        assert refusal("resume", wrong) == f"there is no folder {wrong}; did you mean runs/digits?"
    (folder / "runs" / "digits" / "config.json").write_text("{}")
    assert (
        refusal("report", "runs/digits/config.json") == "runs/digits/config.json is a file; did you mean runs/digits?"
    )
    assert refusal("report", "digits") == "there is no folder digits; did you mean runs/digits?"
    (folder / "network.json").write_text("{}")
    error = refusal("stripes", "retrain", "--architecture", "netwrok.json")
    assert error.endswith("; did you mean network.json?")
    assert refusal("resume", "runs") == "runs is not a run: it has no config.json; in it is the run runs/digits"


@pytest.mark.long
@pytest.mark.parametrize("command", ["cifar10 search", "cifar10 retrain", "digits search", "digits tune", "toy sweep"])
def test_the_examples_of_help_work_as_dry_runs(command, folder, monkeypatch):
    monkeypatch.setenv("ASNG_DATA", str(folder / "no data"))  # steps are timed on noise
    needs = ("runs/cifar10", "cell.json")  # a run or a file that is not there
    examples = [words for words in examples_of(command) if not any(word.startswith(needs) for word in words)]
    assert examples
    for words in examples:
        done = run(*words[1:], *(["--dry-run"] if "--dry-run" not in words else []))
        assert (done.code, done.err) == (0, "")
        assert "Time: " in done.out
    assert list(folder.iterdir()) == []
