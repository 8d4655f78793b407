"""The tables of robustness and of retraining, and the commands behind them."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import cifar10_tables as bench
import pytest

from asng.experiments.cifar10.task import Cifar10, Cifar10RetrainSettings
from asng.runs import ARCHITECTURE, CONFIG, METRICS, SUMMARY, make_config, read_config, write_json


def write_search(folder, probability, delta=0.05):
    folder.mkdir(parents=True)
    shared = {"valid_accuracy": 0.5, "delta": delta, "seconds": 600.4}
    records = [
        {"epoch": epoch, "largest_probability": p, "architecture": [0, min(epoch, 12)], **shared}
        for epoch, p in enumerate(probability, 1)
    ]
    (folder / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    write_json(folder / SUMMARY, {})
    write_json(folder / "evaluation.json", {"test_accuracy": 0.75})


def write_training(folder, accuracy):
    folder.mkdir(parents=True)
    sizes = {"channels": 42, "parameters": 4_000_000, "effective_parameters": 3_000_000}
    write_json(folder / SUMMARY, {**sizes, "last": {"test_accuracy": accuracy}})
    records = [{"epoch": n, "train_loss": 1 / n, "seconds": seconds} for n, seconds in enumerate([61.5, 7.0, 8.04], 1)]
    (folder / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))


def test_robustness_has_three_step_sizes_three_populations_and_three_constant_steps(tmp_path):
    rows = bench.robustness(tmp_path)
    flags = [" ".join(commands[0]) for commands in rows.values()]
    assert all("--epochs 25 --no-test" in line for line in flags)
    assert sum("--method sng" in line for line in flags) == 3
    assert sum("--population-size" in line for line in flags) == 2  # and the default of 2
    assert sum("--delta" in line and "sng" not in line for line in flags) == 2  # and the default of 1


def test_retraining_has_found_random_and_uniformly_sampled_architectures(tmp_path):
    rows = bench.list_retrainings(tmp_path)
    assert [name.rstrip("0123456789") for name in rows] == ["found"] * 3 + ["random"] * 5 + ["uniform"] * 2
    search, train = rows["uniform1"]
    assert search[search.index("--out") + 1] == train[1]  # trains what its own search chose


def test_the_paper_s_training_begins_with_what_the_first_search_found(tmp_path):
    rows = bench.table1(tmp_path)
    assert list(rows) == ["found0", "found1", "found2"]
    assert rows["found0"][0][-5:] == ("--epochs", "600", "--no-test", "--out", str(tmp_path / "found0"))


def test_the_paper_s_training_is_shown_with_the_cost_of_the_search_and_the_paper_s_numbers(tmp_path):
    write_training(tmp_path / "found0", 0.972)
    *_, row, cost, paper = bench.show_table1(tmp_path).splitlines()
    assert row.endswith("| 2.80 % | 0.33 | 3 | 8.0 | 77 |")
    assert cost == "- search of seed 0, which had the GPU for itself: 0.0101 GPU days"
    assert paper == "- the paper: 2.83 ± 0.14 %, 0.11 GPU days"


def test_a_search_is_shown_with_the_epoch_in_which_it_settled(tmp_path):
    write_search(tmp_path / "asng", [0.5, 0.91, 0.95])
    write_search(tmp_path / "delta10", [0.95] * 13)  # its second choice changes until epoch 12
    write_search(tmp_path / "sng0.01", [0.3])
    (tmp_path / "lambda4").mkdir()  # not finished
    asng, delta10, sng = bench.show_robustness(tmp_path).splitlines()[2:]
    assert asng == "| asng | 50.0 % | 25.0 % | 0.950 | 2 | 0 | 0.050 | 1,801 |"
    assert delta10 == "| delta10 | 50.0 % | 25.0 % | 0.950 | 1 | 1 | 0.050 | 7,805 |"
    assert sng == "| sng0.01 | 50.0 % | 25.0 % | 0.300 | - | 0 | 0.050 | 600 |"


@pytest.mark.parametrize("part", ["robustness", "retraining", "kernels", "eight-epochs", "small"])
def test_the_page_has_the_table_of_the_files(part):
    table = bench.SHOW.get(part, bench.show_retraining)(bench.FOUND / part)
    assert table in (bench.ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_trainings_are_shown_with_mean_and_spread_of_their_group(tmp_path):
    write_training(tmp_path / "random0", 0.95)
    write_training(tmp_path / "random1", 0.97)
    write_training(tmp_path / "found0", 0.972)
    table = bench.show_retraining(tmp_path)
    assert "| found by the searches | 0 | 42 | 4,000,000 | 3,000,000 | 2.80 % | 0.33 | 3 | 8.0 | 77 |" in table
    assert table.endswith("- random: 4.00 ± 1.41 % (2 networks)")


def test_what_searches_found_is_compared_with_random_architectures_of_the_same_size(tmp_path):
    rows = bench.small_networks(tmp_path)
    random = {f"random{seed}": ("--architecture", "random", "--seed", str(seed)) for seed in range(20)}
    assert list(rows) == ["seed0", "seed1", "seed2", *bench.SEARCHES, *random]
    size = {"epochs": 10, "channels": 16, "cells": 8}
    assert read_config(bench.ALONE.parent) == {"benchmark": "shared weights", **size, "max_images": None}
    for name, ((verb, *flags),) in rows.items():
        assert verb == "retrain"
        if name in random:
            assert tuple(flags[:4]) == random[name]
        else:
            assert (Path(flags.pop(0)) / ARCHITECTURE).exists()
        given = dict(pairwise(flags))
        assert {flag: int(given[f"--{flag}"]) for flag in size} == size
        assert given["--drop-path"] == given["--auxiliary"] == "0"


def test_small_networks_are_shown_beside_random_ones_and_these_beside_their_first_training(tmp_path):
    write_training(tmp_path / "seed1", 0.8301)  # of the random ones, five have more
    write_training(tmp_path / "random3", 0.83)
    assert bench.show_small_networks(tmp_path).splitlines() == [
        "| search | parameters | test error | random architectures with a lower one |",
        "|---|---|---|---|",
        "| seed1 | 4,000,000 | 16.99 % | 5 of 20 |",
        "",
        "| random architecture | parameters | test error | of shared_weights.py |",
        "|---|---|---|---|",
        "| random3 | 4,000,000 | 17.00 % | 16.72 % |",
        "",
        "- random, of shared_weights.py: 18.42 ± 2.24 %, 15.95 to 26.24 % (20 networks)",
    ]


def test_rows_are_selected_by_their_names(tmp_path):
    rows = bench.list_retrainings(tmp_path)
    assert list(bench.select_rows(rows, ["random1", "found2"])) == ["found2", "random1"]
    assert bench.select_rows(rows, None) == rows
    with pytest.raises(SystemExit, match=r"there is no row random9; give some of found0, found1, "):
        bench.select_rows(rows, ["random1", "random9"])


def test_a_finished_run_of_other_settings_is_not_taken_for_a_row(tmp_path, monkeypatch):
    write_training(tmp_path / "table1" / "found0", 0.9)
    settings = Cifar10RetrainSettings(epochs=2, test=False)
    write_json(tmp_path / "table1" / "found0" / CONFIG, make_config("cifar10", "retrain", settings))
    command = ["cifar10_tables.py", "table1", "--rows", "found0", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match=r"found0 holds a run of other settings \(epochs: 2 there, 600 here\)"):
        bench.main()
    monkeypatch.setattr(sys, "argv", [*command, "--", "--epochs", "2"])
    bench.main()
    with pytest.raises(SystemExit, match="has no flag --epochz"):
        bench.check_rows(Cifar10, bench.table1(tmp_path / "table1"), ["--epochz", "2"])


@pytest.mark.parametrize("part", ["robustness", "retraining", "kernels", "eight-epochs"])
def test_kept_runs_have_the_settings_of_their_commands(part):
    bench.check_rows(Cifar10, bench.PARTS[part](bench.FOUND / part), ["--amp-dtype", "bfloat16"])
    with pytest.raises(SystemExit, match="amp_dtype: bfloat16 there, off here"):
        bench.check_rows(Cifar10, bench.PARTS[part](bench.FOUND / part), [])


def test_there_is_at_least_one_worker(capsys):
    with pytest.raises(SystemExit):
        bench.parse_flags(bench.make_parser("", "part", bench.PARTS, "runs"), "part", ["table1", "--workers", "0"])
    assert capsys.readouterr().err.endswith("error: --workers must be at least 1, got 0\n")


def test_kernels_are_shown_with_mean_and_spread_of_epochs_that_all_seeds_have(tmp_path):
    for name, epochs, offset in (("torch0", 5, 0.0), ("torch1", 4, 0.2), ("fused0", 2, 0.1)):
        (tmp_path / name).mkdir()
        records = [
            {
                "train_loss": 2 - epoch / 10 - offset * (name == "fused0"),
                "test_accuracy": 0.5 + offset,
                "seconds": epoch,
            }
            for epoch in range(1, epochs + 1)
        ]
        (tmp_path / name / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    assert bench.show_kernels(tmp_path).splitlines()[2:] == [  # of fused kernels there is one seed
        "| torch's kernels | 1 | 2 | 1.900 ± 0.000 | 60.0 ± 14.1 % |",
        "| torch's kernels | 2 | 2 | 1.800 ± 0.000 | 60.0 ± 14.1 % |",
        "",
        "- torch's kernels: 3.0 s per epoch (median)",
        "- fused kernels: 1.5 s per epoch (median)",
        "- mean train loss, fused less torch's kernels: -0.100 to -0.100 in 2 epochs",
    ]


def test_short_searches_have_six_seeds_of_both_kinds_of_kernels_and_are_shown_by_kind(tmp_path):
    flags = [" ".join(commands[0][:-1]) for commands in bench.eight_epochs(tmp_path).values()]
    kinds = [f"--kernels {kind} --seed {seed}" for seed in range(6) for kind in ("torch", "fused")]
    assert flags == [f"search --epochs 8 --no-test {kind} --out" for kind in kinds]
    for seed in range(2):
        write_search(tmp_path / f"fused{seed}", [0.3 + 0.1 * seed] * 8)
    assert bench.show_eight_epochs(tmp_path).splitlines()[2:] == [
        f"| fused kernels | {epoch} | 2 | 50.0 ± 0.0 % | 0.350 ± 0.071 |" for epoch in (1, 4, 8)
    ]


def test_the_preset_is_shown_with_an_epoch_in_each_column(tmp_path):
    (tmp_path / "seed0").mkdir()
    write_json(tmp_path / "seed0" / CONFIG, {"experiment": "cifar10", "num_test_images": 2000})
    records = [{"epoch": epoch, "valid_accuracy": epoch / 10, "test_accuracy": 0.5} for epoch in (1, 2, 3)]
    (tmp_path / "seed0" / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    assert bench.show_small(tmp_path).splitlines() == [
        "| epoch | 1 | 2 |",
        "|---|---|---|",
        "| valid accuracy | 10.0 % | 20.0 % |",
        "| test accuracy of the most likely one (2,000 images) | 50.0 % | 50.0 % |",
    ]


def test_processes_that_are_stopped_end_and_no_other_one_starts(tmp_path):
    processes, sleep = bench.Processes(), [sys.executable, "-c", "import time; time.sleep(60)"]
    with ThreadPoolExecutor(2) as executor:
        codes = [executor.submit(processes.run, sleep) for _ in range(2)]
        while len(processes._running) < 2:
            time.sleep(0.01)
        processes.stop()
        assert [code.result(timeout=30) for code in codes] == [-signal.SIGTERM] * 2
    assert processes.run([sys.executable, "-c", f"open({str(tmp_path / 'file')!r}, 'w')"]) == bench.INTERRUPTED
    assert list(tmp_path.iterdir()) == []


def test_a_search_that_was_not_tested_is_no_row(tmp_path):
    write_search(tmp_path / "asng", [0.5])
    (tmp_path / "asng" / "evaluation.json").unlink()
    assert len(bench.show_robustness(tmp_path).splitlines()) == 2


TINY = ["--small", "--cells", "3", "--channels", "2", "--num-train-images", "32", "--batch-size", "8"]


@pytest.mark.long
@pytest.mark.skipif("ASNG_DATA" not in os.environ, reason="ASNG_DATA names no folder of data")
def test_a_training_that_only_begins_is_stopped_and_not_begun_again(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(bench, "FIRST_EPOCHS", 2)
    ((verb, found, *flags),) = bench.kernels(tmp_path)["fused1"]
    assert flags[:4] == ["--epochs", "600", "--kernels", "fused"]
    command = (verb, found, *flags)
    assert bench.run_row([command], TINY)
    assert 2 <= len(bench.read_epochs(tmp_path / "fused1")) < 600
    assert capfd.readouterr().out.count("asng cifar10 retrain") == 1
    assert bench.run_row([command], TINY)
    assert capfd.readouterr().out == ""


@pytest.mark.long
@pytest.mark.skipif("ASNG_DATA" not in os.environ, reason="ASNG_DATA names no folder of data")
def test_sigterm_lets_rows_save_and_the_same_command_continues(tmp_path):
    script = [sys.executable, bench.__file__, "table1", "--out", str(tmp_path), "--workers", "2", "--", *TINY]
    folders, epochs = [tmp_path / "table1" / f"found{seed}" for seed in range(2)], [0, 0]
    for _ in range(2):
        process = subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while any(len(bench.read_epochs(folder)) <= n for folder, n in zip(folders, epochs, strict=True)):
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == bench.INTERRUPTED
        assert err.splitlines()[-1] == (f"Interrupted. Finished parts are in {tmp_path}; the same command continues.")
        assert "failed" not in out
        assert "in use" not in err  # by a process that outlived the first script
        epochs = [len(bench.read_epochs(folder)) for folder in folders]


@pytest.mark.long
@pytest.mark.skipif("ASNG_DATA" not in os.environ, reason="ASNG_DATA names no folder of data")
def test_rows_run_once_and_are_drawn(tmp_path, capfd):
    more = [*TINY, "--epochs", "1"]
    rows = {name: bench.robustness(tmp_path / "robustness")[name] for name in ("asng", "sng0.1")}
    assert all(bench.run_row(commands, more) for commands in rows.values())
    assert capfd.readouterr().out.count("asng cifar10 search") == 2
    assert len(bench.show_tables(tmp_path).splitlines()) == 6
    assert all(bench.run_row(commands, more) for commands in rows.values())
    assert capfd.readouterr().out == ""  # nothing runs twice
