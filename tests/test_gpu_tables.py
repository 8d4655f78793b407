"""The tables of the benchmarks on a GPU are those that the kept files give."""

from importlib import metadata
from pathlib import Path

import gpu_tables as bench
import pytest
import torch
from gpu_agreement import PRECISIONS, first_losses, row_names
from gpu_measure import Kernel, choose_names, find_versions, show_kernels, sum_kernels

ROOT = Path(__file__).parents[1]
RESULTS = bench.read_results(ROOT / "results" / "gpu")
PAGE = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RESULTS)
def test_the_page_has_the_rows_and_the_versions_of_the_file(name):
    missing = [row for row in bench.draw_rows(RESULTS[name]["rows"]).splitlines()[2:] if row not in PAGE]
    assert not missing, missing
    assert bench.machine_of(RESULTS[name]) in " ".join(PAGE.split())


def test_kernels_of_a_name_count_together_and_the_longest_come_first():
    kernels = [Kernel("pool", 0, 2), Kernel("conv", 1, 4), Kernel("pool", 5, 6), Kernel("conv", 7, 9)]
    rows = sum_kernels(kernels, steps=2)
    assert rows == [{"name": "conv", "kernels": 1.0, "us": 2.5}, {"name": "pool", "kernels": 1.0, "us": 1.5}]
    assert [line.split()[-1] for line in show_kernels(rows).splitlines()[1:]] == ["conv", "pool"]


def test_a_table_has_the_columns_that_were_measured():
    old = {"name": "old", "kernels": 1234.4, "busy_ms": 1.23}
    new = old | {"name": "new", "busy_share": 0.456, "peak_gb": 2.34}
    assert bench.table_of([old]).splitlines() == [
        "| row | kernels | busy, ms |",
        "|---|---|---|",
        "| old | 1,234 | 1.2 |",
    ]
    assert bench.table_of([old, new], "search").splitlines() == [
        "| search | kernels | busy, ms | busy share | peak memory |",
        "|---|---|---|---|---|",
        "| old | 1,234 | 1.2 |  |  |",
        "| new | 1,234 | 1.2 | 46% | 2.3 GB |",
    ]


def test_layers_stand_beside_their_sizes():
    pool = {"layer": "pool", "shape": "1x2", "dtype": "float32", "fused_us": 1.26, "torch_us": 10, "floor_us": 0.5}
    lines = bench.table_of_layers([pool, pool | {"layer": "norm"}, pool | {"shape": "3x4"}]).splitlines()
    assert lines == [
        "| fused / torch / floor, µs | 1x2 | 3x4 |",
        "|---|---|---|",
        "| pool, float32 | 1.3 / 10.0 / 0.5 | 1.3 / 10.0 / 0.5 |",
        "| norm, float32 | 1.3 / 10.0 / 0.5 |  |",
    ]


def test_layers_of_a_kind_are_compared_by_their_extremes_and_slower_ones_counted():
    row = {"layer": "sum", "dtype": "float32", "fused_us": 3, "torch_us": 2, "floor_us": 1}
    rows = [row | {"fused_error": 1e-3, "torch_error": 2e-8}, row | {"fused_us": 1, "fused_error": 5, "torch_error": 0}]
    assert "| sums |  |  | 0.50 to 1.50 | 1.00 to 3.00 | 1 of 2 |" in bench.table_of_ratios(rows)
    assert "| sums |  |  | 5.0e+00 | 2.0e-8 |" in bench.table_of_errors(rows)


def test_every_layer_is_of_one_kind():
    for row in RESULTS["gpu_kernels"]["rows"]:
        assert sum(row["layer"].startswith(begins) for begins in bench.KINDS.values()) == 1, row["layer"]


def test_the_versions_that_a_run_depends_on_are_named():
    old = {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "cuda": "13.0"}
    assert bench.machine_of(old) == "NVIDIA H200, PyTorch 2.11.0+cu130, CUDA 13.0"
    new = old | {"triton": "3.6.0", "cuda-bindings": "13.0.3", "driver": "13.0"}
    assert bench.machine_of(new).endswith("CUDA 13.0, Triton 3.6.0, cuda-bindings 13.0.3, driver for CUDA 13.0")


def test_versions_are_those_that_are_installed():
    found = find_versions()
    assert found["torch"] == torch.__version__
    for package in ("triton", "cuda-bindings"):
        installed = {d.version for d in metadata.distributions(name=package)}
        assert {found[package]} == installed if package in found else not installed


def test_rows_are_chosen_by_a_part_of_their_names():
    names = [name for precision in PRECISIONS for name in row_names(precision)]
    assert len(names) == 8  # float64 has no fused kernels
    assert choose_names(names, [""]) == names
    assert choose_names(names, ["6, captured"]) == ["bfloat16, captured", "bfloat16, captured, fused kernels"]
    assert choose_names(names, ["fused", "bfloat16, captured"]) == [names[4], *names[-2:]]
    assert choose_names(names, ["bfloat16, captured"]) == ["bfloat16, captured"]
    with pytest.raises(SystemExit, match="no row contains 'float8'; there are:\nfloat64, plain"):
        choose_names(names, ["float8"])


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_agreement_compares_steps_that_differ_by_rounding_alone(precision):
    plain, again, moved = (first_losses((4, 3, 4), 2, precision, moved=m, device="cpu") for m in (False, False, True))
    assert plain.shape == (2, 4)
    assert torch.equal(plain, again)
    assert not torch.equal(plain, moved)
    torch.testing.assert_close(plain, moved, atol=1e-9 if precision == "float64" else 0.3, rtol=0)


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(SystemExit, match="there are no results of benchmarks"):
        bench.read_results(tmp_path)
