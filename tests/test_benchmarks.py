"""The benchmark runs in its quick form, with whatever libraries are there, and writes what it measured."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "ask_tell.py"


def result_of(folder, *arguments, blocked=()):
    """Run the script; `blocked` libraries look as if they were not installed."""
    program = (
        "import runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({list(blocked)!r}))\n"
        f"sys.argv = {['ask_tell.py', '--quick', '--out', str(folder), *arguments]!r}\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    command, paths = [sys.executable, "-c", program], [str(SCRIPT.parent), *filter(None, sys.path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, env=env)
    assert not done.returncode, done.stderr
    return json.loads((folder / "ask_tell.json").read_text()), done.stdout, done.stderr


@pytest.fixture(scope="module")
def quick_result(tmp_path_factory):
    return result_of(tmp_path_factory.mktemp("quick"), "--only", "asng")


def test_every_space_is_measured_for_both_sizes(quick_result):
    result, _, _ = quick_result
    settings = {(row["space"], row["population_size"], row["library"]) for row in result["comparison"]}
    spaces = ["40 categorical of 5", "classification", "mixed"]
    assert settings == {(space, population_size, "asng") for space in spaces for population_size in (2, 16)}
    for row in result["comparison"]:
        assert 0 < row["min_us"] <= row["median_us"] < math.inf


def test_growth_and_long_run_are_measured(quick_result):
    result, _, _ = quick_result
    assert [row["variables"] for row in result["growth"]["rows"]] == [10, 30, 100, 300, 1000, 3000, 10_000]
    assert math.isfinite(result["growth"]["exponent"])
    assert len(result["tells"]["rows"]) == 10
    assert all(row["us"] > 0 and row["rss_kib"] > 0 for row in result["tells"]["rows"])


def test_targets_stand_beside_what_was_measured(quick_result):
    result, printed, _ = quick_result
    limits = [target["limit"] for target in result["targets"]]
    assert limits[:3] == [16.0, pytest.approx(1 / 3), 35.0]
    for target in result["targets"]:
        expected = None if target["measured"] is None else target["measured"] <= target["limit"]
        assert target["met"] is expected
        assert target["name"][:20] in printed
    assert result["targets"][1]["met"] is None  # nobody to compare with


def test_machine_and_versions_are_kept(quick_result):
    result, printed, _ = quick_result
    assert {"cpu", "cores", "python", "numpy"} <= set(result["machine"])
    assert result["machine"]["cpu"] in printed
    assert "asng" in result["versions"]
    assert result["quick"] is True


def test_missing_libraries_and_a_missing_rich_are_left_out(tmp_path):
    result, printed, complaints = result_of(tmp_path, blocked=["cmaes", "nevergrad", "optuna", "rich", "rich.console"])
    assert result["missing"] == ["cmaes", "nevergrad", "optuna"]
    assert {row["library"] for row in result["comparison"]} == {"asng"}
    for name in result["missing"]:
        assert f"{name} is not installed" in complaints
    assert "pip install '.[bench]'" in complaints
    assert "40 categorical of 5" in printed


SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "inactive": lambda row: f"{row['last']['difference'][0]:+.3f}",
    "inpainting": lambda row: f"{row['new_ms']:,.1f}",
    "noisy_population": lambda row: f"| {row['problem']} | 40 | 40 | {row['small'][0]:.2g} ± ",
    "short_searches": lambda row: f"| {row['problem']} | {row['draws']} | {row['delta_init 0.1'][0]:.3f} ± ",
    "step": lambda row: f"a limit takes {row['parameters_us']:,.0f} µs for each new architecture",
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_others_run_in_their_quick_form_and_write_what_they_print(name, tmp_path):
    script = SCRIPT.with_name(f"{name}.py")
    more = ["--modules", "300"] if name == "step" else []
    command = [sys.executable, str(script), "--quick", "--out", str(tmp_path), *more]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert not done.returncode, done.stderr
    result = json.loads((tmp_path / f"{name}.json").read_text())
    assert result["quick"] is True
    for row in result["rows"]:
        assert SHOWN[name](row) in done.stdout
    if name == "inpainting":
        assert [row["way"] for row in result["rows"]] == ["slices", "padded"] * 2
        slices, padded = ([row["gflop"] for row in result["rows"][place::2]] for place in (0, 1))
        assert all(less < more for less, more in zip(slices, padded, strict=True))


def test_the_cost_of_limits_is_measured_beside_a_search_without(tmp_path):
    command = [sys.executable, str(SCRIPT.parent / "limits.py"), "--steps", "2", "--batch-size", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: over the target
    first, free, limited, ratio = done.stdout.splitlines()
    assert first.startswith("36 decisions; limits: parameters ")
    assert free.endswith("100% feasible")
    assert limited.startswith("with limits")
    assert (float(ratio.split()[1].rstrip(",")) > 1.5) == done.returncode


def black_box(folder, *arguments):
    command = [sys.executable, str(SCRIPT.parent / "black_box.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert not done.returncode, done.stderr
    return done.stdout, [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_black_boxes_are_compared_by_medians_and_quartiles(tmp_path):
    chosen = ["--problems", "onemax", "mixed sphere noisy", "--methods", "asng", "random", "--out", str(tmp_path)]
    _, first = black_box(tmp_path, *chosen, "--seeds", "1")
    printed, rows = black_box(tmp_path, *chosen, "--seeds", "3", "--figure", str(tmp_path / "figure.png"))
    assert first == [row for row in rows if row["seed"] == 0]  # it continues
    runs = {(row["problem"], row["method"], row["seed"]): row for row in rows}
    assert len(runs) == len(rows) == 2 * 2 * 3
    regrets = {m: [runs["onemax", m, seed]["regret"] for seed in range(3)] for m in ("asng", "random")}
    assert max(regrets["asng"]) < min(regrets["random"])
    for row in rows:
        if row["problem"] == "onemax":
            assert row["steps"][-1][1] == row["regret"] == min(regret for _, regret in row["steps"])
    assert (tmp_path / "black_box.md").read_text() in printed
    assert f"| onemax | 300 | **{sorted(regrets['asng'])[1]:.3g}** [" in printed
    assert "| 20 choices or more | 1 of 1 | 0 of 1 |" in printed
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    drawn, _ = black_box(tmp_path, "--draw", str(tmp_path))
    assert drawn.strip() == (tmp_path / "black_box.md").read_text().strip()


def test_shorter_runs_are_compared_with_each_other(tmp_path):
    chosen = ["--problems", "onemax", "--seeds", "3", "--out", str(tmp_path)]
    black_box(tmp_path, *chosen, "--methods", "asng")
    printed, rows = black_box(tmp_path, *chosen, "--methods", "asng", "random", "--evaluations", "50")
    regrets = defaultdict(list)
    for row in rows:
        regrets[row["method"], row["evaluations"]].append(row["regret"])
    medians = {key: f"{sorted(of)[1]:.3g}" for key, of in regrets.items()}
    assert set(medians) == {("asng", 300), ("asng", 50), ("random", 50)}
    whole, short = printed.split("| problems |")[1:]
    assert f"| onemax | 300 | **{medians['asng', 300]}** [" in whole
    assert "random" not in whole
    assert f"| onemax | 50 | **{medians['asng', 50]}** [" in short
    assert f" | {medians['random', 50]} [" in short


def test_whole_runs_are_compared_at_the_evaluations_that_all_had():
    from black_box_report import show

    row = {"problem": "mixint f1", "seed": 0, "regret": 1.0, "steps": [[1, 5.0], [1500, 1.0]]}
    longer = row | {"method": "asng", "evaluations": 2000}
    shorter = row | {"method": "TPE", "evaluations": 1000, "regret": 3.0}
    assert "| mixint f1 | 1000 | 5 [5, 5] | **3** [3, 3] |" in "\n".join(show([longer, shorter]))


@pytest.mark.parametrize(("reached", "ratio"), [(2, "not reached"), (3, "0.40")], ids=["half", "more than half"])
def test_a_median_is_reached_by_more_than_half_of_the_runs(reached, ratio):
    from black_box_report import show_ratios

    row = {"problem": "mixint f1", "evaluations": 1000}
    start = [[1, 5.0]]
    others = [{**row, "method": "CatCMAwM", "seed": seed, "regret": 1.0, "steps": start} for seed in range(4)]
    runs = [[*start, [400, 0.5]] if seed < reached else start for seed in range(4)]
    own = [{**row, "method": "asng", "seed": seed, "regret": 0.5, "steps": steps} for seed, steps in enumerate(runs)]
    (table,) = show_ratios([*others, *own])
    assert f"| mixint f1 | 0.00 | 0.00 | {ratio} |" in table


def test_of_methods_with_the_lowest_median_only_those_that_the_test_puts_behind_none_are_first():
    from black_box_report import show_summary

    row = {"problem": "onemax", "evaluations": 300, "steps": []}
    regrets = {"asng": [0] * 17 + [2, 2, 4], "TPE": [0] * 20, "NGOpt": [0] * 19 + [4]}
    rows = [
        {**row, "method": method, "seed": seed, "regret": regret}
        for method, of in regrets.items()
        for seed, regret in enumerate(of)
    ]
    (table,) = show_summary(rows)
    assert table.splitlines()[-1] == "| 20 choices or more | 0 of 1 | 1 of 1 | 1 of 1 |"


def test_others_are_named_where_they_are_better_than_a_method():
    from black_box_report import show_against

    row = {"evaluations": 300, "steps": []}
    regrets = {("onemax", "asng"): 1, ("onemax", "TPE"): 0, ("leadingones", "asng"): 0, ("leadingones", "TPE"): 2}
    rows = [
        {**row, "problem": problem, "method": method, "seed": seed, "regret": regret}
        for (problem, method), regret in regrets.items()
        for seed in range(9)
    ]
    assert show_against(rows, "asng").splitlines() == [
        "whole runs, asng and others:",
        "- TPE on 2, 20 choices or more: worse on 1, better on 1: onemax",
        "whole runs, ahead of all others:",
        "- TPE on 1: onemax",
        "- asng on 1: leadingones",
    ]


def test_what_the_page_says_of_gp_and_asng_follows_from_the_kept_rows():
    from black_box_report import show_against

    kept = SCRIPT.parents[1] / "results" / "black_box" / "rows.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    lines = show_against(rows, "asng").split("100 evaluations, asng")[1].splitlines()
    counts = [re.match(r"- GP on (\d+), .*: worse on (\d+), better on (\d+)", line) for line in lines]
    total, worse, better = (
        sum(map(int, of)) for of in zip(*(found.groups() for found in counts if found), strict=True)
    )
    assert (total, worse, better) == (62, 15, 29)
    for name in ("results.md", "black_boxes.md"):
        page = " ".join((SCRIPT.parents[1] / "docs" / name).read_text(encoding="utf-8").split())
        assert "on 29 of 62 problems" in page
        assert "behind on 15" in page


@pytest.mark.parametrize("folder", ["black_box", "black_box/n_trials", "black_box/ask_tell"])
def test_the_tables_of_black_boxes_are_what_the_kept_rows_give(folder):
    from black_box_report import show, show_seconds

    root = SCRIPT.parents[1]
    rows = [json.loads(line) for line in (root / "results" / folder / "rows.jsonl").read_text().splitlines()]
    page = (root / "docs" / "results.md").read_text(encoding="utf-8")
    tables = [*show(rows), *(show_seconds(rows) if folder == "black_box" else [])]
    assert [table for table in tables if table not in page] == []
    seeds = Counter((row["problem"], row["method"], row["evaluations"]) for row in rows)
    assert set(seeds.values()) == {20}
    assert len({(row["seed"], row["problem"], row["method"], row["evaluations"]) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("kernels", "microseconds"),
    [([], 0), ([(0, 2), (3, 5)], 4), ([(3, 5), (0, 2), (1, 2.5), (4, 4.5)], 4.5), ([(0, 9), (1, 2), (8, 10)], 10)],
    ids=["none", "one after another", "side by side", "inside each other"],
)
def test_kernels_side_by_side_count_once_for_the_busy_share(kernels, microseconds):
    from gpu_measure import union_length

    assert union_length(kernels) == microseconds


def test_the_layers_of_the_kernel_benchmark_compute_the_same_with_both_kinds_of_kernels():
    import torch
    from gpu_kernels import layers

    names = []
    for name, ours, torchs, number in layers(4):
        torchs.load_state_dict(ours.state_dict())
        inputs = [torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last) for _ in range(number)]
        torch.testing.assert_close(ours(*inputs), torchs(*inputs))
        names.append(name)
    assert len(set(names)) == len(names) == 15
