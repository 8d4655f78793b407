"""Several processes compute what one computes, and end together when one of them stops or dies."""

import itertools
import os
import signal
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from asng._files import lock_checkpoint
from asng.nas import _checkpoints as checkpoints
from asng.nas import parameters
from tests.helpers.processes import (
    LIMIT,
    crowd,
    die_in_step,
    exit_code_of,
    resume_apart,
    search_together,
    step_halves,
    step_oneshots,
    step_with_capture,
    torchrun,
)
from tests.helpers.searches import Net, cross_entropy, small_search
from tests.helpers.tasks import LONG

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]

# OneShot -------------------------------------------------------------------------------------------


KINDS = [(population_size, limited) for population_size in (2, 3, 4) for limited in (False, True)]


def test_halves_of_steps_in_two_processes_are_those_of_one(tmp_path):
    alone, both = tmp_path / "alone", tmp_path / "both"
    for folder in (alone, both):
        folder.mkdir()
    members = crowd(step_halves, both)
    step_halves(0, alone)
    assert [exit_code_of(member) for member in members] == [0, 0]
    mine, *theirs = (torch.load(path, weights_only=True) for path in (alone / "rank0.pt", *sorted(both.glob("*.pt"))))
    for result in theirs:
        assert (result["optimizer"]["state"], result["scores"]) == (mine["optimizer"]["state"], mine["scores"])
        assert result["metrics"] == mine["metrics"]
        assert (result["ranked"], result["front"]) == (mine["ranked"], mine["front"])
        torch.testing.assert_close(result["train"], mine["train"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(result["weights"], mine["weights"], rtol=1e-9, atol=1e-9)


def test_why_steps_are_not_captured_is_said_once_by_one_process(tmp_path):
    members = crowd(step_with_capture, tmp_path)
    assert [exit_code_of(member) for member in members] == [0, 0]
    said = [
        (tmp_path / f"stderr{rank}.txt").read_text().count("but runs as usual: the weights are on") for rank in (0, 1)
    ]
    assert said == [1, 0]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The same searches by one process and by two."""
    alone, both = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("both")
    members = crowd(step_oneshots, both, KINDS)
    step_oneshots(0, alone, KINDS)
    assert [exit_code_of(member) for member in members] == [0, 0]
    return [torch.load(path, weights_only=True) for path in (alone / "rank0.pt", both / "rank0.pt", both / "rank1.pt")]


@pytest.mark.parametrize(("population_size", "limited"), KINDS)
def test_two_processes_compute_what_one_computes(together, population_size, limited):
    alone, *both = (results[f"{population_size} {limited}"] for results in together)
    for result in both:
        assert result["optimizer"]["state"] == alone["optimizer"]["state"]  # theta and all else, exactly
        assert result["optimizer"]["generator"] == alone["optimizer"]["generator"]
        theirs, mine = (np.array(r["valid"], dtype=float) for r in (result, alone))  # NaN where not run
        np.testing.assert_allclose(theirs, mine, rtol=1e-9)
        assert [len(losses) for losses in result["train"]] == [len(losses) for losses in alone["train"]]
        for name, value in result["weights"].items():
            if "num_batches" not in name:  # each process counts the candidates that it ran
                torch.testing.assert_close(value, alone["weights"][name], rtol=1e-9, atol=1e-9)
    if limited:
        assert alone["measured"] == both[0]["measured"] != []  # by the first process, for both
        assert both[1]["measured"] == []
        assert len(set(alone["measured"])) == len(alone["measured"])
        assert any(None in losses for losses in alone["valid"])


def test_the_limit_of_these_tests_parts_the_architectures():
    sizes = [parameters(Net(norm=True), {"first": f, "depth": d}) for f in range(3) for d in (1, 2, 3)]
    assert 2 < sum(size <= LIMIT for size in sizes) < 7


def test_processes_on_several_hosts_go_on_with_the_costs_of_the_first(tmp_path):
    assert [exit_code_of(process) for process in crowd(resume_apart, tmp_path)] == [0, 0]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert first == second  # before, restored and after
    assert all(len(costs) == 2 for costs in first[1].values() if costs[0] <= LIMIT)


@pytest.mark.parametrize("moment", ["inside", "between"])
def test_a_process_that_dies_ends_the_others_with_an_error(moment, tmp_path):
    first, second = crowd(die_in_step, tmp_path, moment)
    assert exit_code_of(second) < 0
    assert exit_code_of(first) == 1
    assert "Error" in (tmp_path / "stderr0.txt").read_text()
    assert not list(tmp_path.glob("finished*"))


def hang(rank, folder):
    """A search whose second process hangs in the third epoch, in a group with a timeout of five seconds."""

    def loss(model, batch):
        if next(calls) == 25 and rank == 1:
            Path(folder, "hangs").touch()
            signal.pause()
        return cross_entropy(model, batch)

    calls = itertools.count(1)
    small_search(None, epochs=1, dropout=0.0)  # imports what the first step imports, which may take longer
    dist.destroy_process_group()
    group = {"rank": rank, "world_size": 2, "timeout": timedelta(seconds=5)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/another", **group)
    small_search(Path(folder, "checkpoint.pt"), loss_fn=loss, dropout=0.0)


@pytest.mark.long
def test_a_process_that_hangs_ends_the_others_after_the_timeout_of_the_group(tmp_path):
    first, second = crowd(hang, tmp_path)
    assert exit_code_of(first) == 1
    assert (tmp_path / "hangs").exists()
    said = (tmp_path / "stderr0.txt").read_text()
    assert "imed out" in said
    assert "the same call continues in epoch 3 of 6 after step 0" in said
    second.kill()
    assert exit_code_of(second) == -signal.SIGKILL
    again = small_search(tmp_path / "checkpoint.pt", dropout=0.0)
    assert len(again["history"]) == 6


# search --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_generator", [False, True])
def test_two_processes_search_what_one_searches(tmp_path, own_generator):
    """All their seeds differ, and the first one's count. No dropout: each process would have its own."""
    settings = {"epochs": 4, "own_generator": own_generator, "dropout": 0.0}
    members = crowd(search_together, tmp_path, settings)
    alone = small_search(None, **settings)
    assert [exit_code_of(member) for member in members] == [0, 0]
    for rank in range(2):
        result = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert result["optimizer"] == alone["optimizer"]
        assert result["history"] == alone["history"]
        for name, value in result["weights"].items():
            torch.testing.assert_close(value, alone["weights"][name])


@pytest.mark.parametrize(("stop_at", "epochs"), [(3, 0), (6, 1)], ids=["step", "epoch"])
def test_a_callback_in_one_process_ends_all_and_all_go_on(tmp_path, stop_at, epochs):
    settings = {"epochs": 3, "dropout": 0.0}
    for stop, expected in ((stop_at, epochs), (None, 3)):
        (tmp_path / "group").unlink(missing_ok=True)
        members = crowd(search_together, tmp_path, {**settings, "stop_at": stop})
        assert [exit_code_of(member) for member in members] == [0, 0]
        results = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
        assert [len(result["history"]) for result in results] == [expected] * 2
    alone = small_search(None, **settings)
    assert [result["optimizer"] == alone["optimizer"] for result in results] == [True, True]


@pytest.mark.long
def test_torchrun_equals_one_process_and_ends_when_one_dies(tmp_path):
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    whole, killed = torchrun(folders[0]), torchrun(folders[1], "25")  # in the third epoch of four
    assert killed.wait(LONG) != 0
    assert whole.wait(LONG) == 0, (folders[0] / "log.txt").read_text()
    alone = small_search(None, epochs=4, dropout=0.0)
    for rank in range(2):
        result = torch.load(folders[0] / f"rank{rank}.pt", weights_only=True)
        assert result["optimizer"] == alone["optimizer"]
        assert result["values"] == alone["values"]
        for name, value in result["weights"].items():
            torch.testing.assert_close(value, alone["weights"][name])
    assert "Signal 9 (SIGKILL)" in (folders[1] / "log.txt").read_text()
    assert not list(folders[1].glob("rank*.pt"))
    assert len(checkpoints.load(folders[1] / "checkpoint.pt")["history"]) == 2
    members = crowd(search_together, folders[1], {"epochs": 4, "dropout": 0.0})  # continue from there
    assert [exit_code_of(member) for member in members] == [0, 0]
    for rank in range(2):
        assert torch.load(folders[1] / f"rank{rank}.pt", weights_only=True)["optimizer"] == alone["optimizer"]


def test_ctrl_c_in_one_process_stops_all_and_all_go_on(tmp_path):
    settings = {"epochs": 3, "dropout": 0.0}
    members = crowd(search_together, tmp_path, {**settings, "interrupt_at": 17})
    assert [exit_code_of(member) for member in members] == [0, 0]
    for rank in range(2):
        assert "stopped in epoch 2 of 3 after step 4; saved in" in (tmp_path / f"stopped{rank}.txt").read_text()
    (tmp_path / "group").unlink(missing_ok=True)
    members = crowd(search_together, tmp_path, settings)
    assert [exit_code_of(member) for member in members] == [0, 0]
    alone = small_search(None, **settings)
    for rank in range(2):
        result = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert result["optimizer"] == alone["optimizer"]
        assert result["history"] == alone["history"]


def test_a_damaged_checkpoint_ends_all_processes_with_the_same_error(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    members = crowd(search_together, tmp_path, {"epochs": 3})
    assert [exit_code_of(member) for member in members] == [1, 1]
    for rank in range(2):
        assert "checkpoint.pt is damaged or no checkpoint" in (tmp_path / f"stderr{rank}.txt").read_text()


def test_a_checkpoint_in_use_ends_all_processes_with_the_same_error(tmp_path):
    held = lock_checkpoint(tmp_path / "checkpoint.pt")
    members = crowd(search_together, tmp_path, {"epochs": 3})
    assert [exit_code_of(member) for member in members] == [1, 1]
    held.release()
    for rank in range(2):
        assert f"checkpoint.pt is in use by process {os.getpid()} on" in (tmp_path / f"stderr{rank}.txt").read_text()


def test_another_checkpoint_ends_all_processes_with_one_error(tmp_path):
    small_search(tmp_path / "checkpoint.pt", epochs=3, max_grad_norm=1.0)
    members = crowd(search_together, tmp_path, {"epochs": 3})
    assert [exit_code_of(member) for member in members] == [1, 1]
    for rank in range(2):
        said = (tmp_path / f"stderr{rank}.txt").read_text()
        assert "checkpoint.pt is of another run (max_grad_norm: 1.0 there, 5.0 here)" in said
