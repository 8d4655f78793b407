"""The table of inpainting, and the commands behind it."""

import os
import sys
from itertools import pairwise
from pathlib import Path

import inpainting_tables as bench
import pytest
from PIL import Image

from asng.experiments.inpainting.encoding import chain, read_values
from asng.experiments.inpainting.network import new_autoencoder
from asng.experiments.inpainting.task import Inpainting, InpaintingRetrainSettings
from asng.runs import CONFIG, SUMMARY, make_config, write_json

ROOT = Path(__file__).parents[1]
TINY = ["--small", "--checkpoint-every", "1", "--num-train-images", "8", "--batch-size", "2"]


def write_training(folder, psnr, ssim=0.9):
    folder.mkdir(parents=True)
    chain = ["1  3x3 skip", "2  3x3 down  left out at 1x1"]
    write_json(folder / SUMMARY, {"chain": chain, "parameters": 482_688, "last": {"step": 20_000}})
    write_json(folder / "evaluation.json", {"psnr": psnr, "ssim": ssim})


def flags_of(command):
    return dict(pairwise(command))


def test_a_mask_has_both_encodings_bases_and_two_random_architectures(tmp_path):
    rows = bench.list_rows(tmp_path / "half")
    names = [name.rstrip("0123456789") for name in rows]
    assert {name: names.count(name) for name in names} == {"cat": 3, "int": 3, "base": 3, "random": 2}
    trained = [command for row in rows.values() for command in row if command[0] == "retrain"]
    assert len(trained) == 17  # BASE is widened for each of six networks found
    for command in trained:
        flags = flags_of(command)
        assert (flags["--mask"], flags["--iterations"]) == ("half", "20000")
    searches = [flags_of(row[0]) for row in rows.values() if row[0][0] == "search"]
    assert all((flags["--mask"], flags["--iterations"]) == ("half", "5000") for flags in searches)
    assert len({(flags["--encoding"], flags["--seed"]) for flags in searches}) == 6


def test_what_is_trained_is_what_the_search_of_its_row_found(tmp_path):
    search, train, *_ = bench.list_rows(tmp_path / "center")["int1"]
    assert flags_of(search)["--out"] == train[1]


@pytest.mark.parametrize("parameters", [1000, 482_688, 5_548_616, 14_988_800])
def test_base_is_widened_to_the_nearest_number_of_parameters(parameters):
    nearest, distances = bench.widen(parameters), {}
    for channels in (nearest - 1, nearest, nearest + 1):
        network = new_autoencoder(bench.base_of(channels))
        distances[channels] = abs(sum(p.numel() for p in network.parameters()) - parameters)
    assert min(distances, key=distances.__getitem__) == nearest


def test_trainings_are_shown_with_mean_and_spread_of_their_group(tmp_path):
    write_training(tmp_path / "center" / "cat0", 26.0)
    write_training(tmp_path / "center" / "cat1", 27.0, 0.8)
    write_training(tmp_path / "center" / "cat-wide0", 25.0)
    (tmp_path / "center" / "base0").mkdir()  # not finished
    table = bench.show_tables(tmp_path)
    assert "| found, cat | 0 | 1 | 482,688 | 20,000 | 26.00 dB | 0.900 |" in table
    assert "| BASE, as many parameters as found by cat | 0 | 1 | 482,688 | 20,000 | 25.00 dB | 0.900 |" in table
    assert "- found, cat: 26.50 ± 0.71 dB, SSIM 0.850 ± 0.071" in table
    assert "| BASE |" not in table
    assert table.endswith("int 29.3 dB, 0.911")


def test_a_finished_run_of_another_length_is_not_taken_for_a_row(tmp_path, monkeypatch):
    write_training(tmp_path / "half" / "random1", 20.0)
    settings = InpaintingRetrainSettings(mask="half", iterations=20_000, seed=1)
    write_json(tmp_path / "half" / "random1" / CONFIG, make_config("inpainting", "retrain", settings))
    command = ["inpainting_tables.py", "half", "--rows", "random1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    bench.main()
    monkeypatch.setattr(sys, "argv", [*command, "--iterations", "500000"])
    with pytest.raises(SystemExit, match=r"random1 holds a run of other settings \(iterations: 20000 there, 500000"):
        bench.main()


def test_kept_runs_of_the_preset_have_the_settings_of_their_commands():
    bench.check_rows(Inpainting, bench.list_small(ROOT / "results" / "inpainting" / "small"), [])


def test_the_preset_trains_what_its_search_found_and_four_others(tmp_path):
    ((search, *others),) = bench.list_small(tmp_path / "small").values()  # one row: none can run before the search
    trainings, tests = others[::2], others[1::2]
    names = ["cat0", "base0", "random0", "random1", "random2"]
    assert [flags_of(train)["--out"] for train in trainings] == [str(tmp_path / "small" / name) for name in names]
    assert {train[1] for train in trainings} == {flags_of(search)["--out"]}
    assert [test[1] for test in tests] == [flags_of(train)["--out"] for train in trainings]
    assert all("--small" in command for command in [search, *trainings])


def test_the_page_has_the_table_of_the_preset():
    table = bench.show_mask(ROOT / "results" / "inpainting" / "small")
    assert len(table.splitlines()) == 2 + 5 + 1 + 1
    assert table in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_rows_run_once_and_are_drawn(tmp_path, capfd, monkeypatch):
    for part, images in (("train", 8), ("test", 2)):
        (tmp_path / "faces" / part).mkdir(parents=True)
        for number in range(images):
            Image.new("RGB", (64, 64), (20 * number, 99, 200)).save(tmp_path / "faces" / part / f"{number}.png")
    monkeypatch.setitem(os.environ, "ASNG_DATA", str(tmp_path / "faces"))
    rows = bench.list_rows(tmp_path / "pixel", search_iterations=2, iterations=1)
    chosen = [rows[name] for name in ("base1", "int0", "random0")]  # BASE's file is the first in the folder
    assert all(bench.run_row(commands, TINY) for commands in chosen)
    printed = capfd.readouterr().out
    assert [printed.count(f"asng inpainting {verb}") for verb in ("search", "retrain", "evaluate")] == [1, 4, 4]
    wide = chain(read_values((tmp_path / "pixel" / "int-wide0" / "architecture.json").read_text()))
    assert len(wide) == 7
    assert len(bench.show_tables(tmp_path).splitlines()) == 2 + 2 + 4 + 2
    assert all(bench.run_row(commands, TINY) for commands in chosen)
    assert capfd.readouterr().out == ""  # nothing runs twice
