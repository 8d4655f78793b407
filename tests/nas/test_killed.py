"""Searches in several processes: one writer per checkpoint, and killed ones are continued with the same bits."""

import itertools
import os
import random
import shutil
import signal
from typing import Any

import pytest
import torch

from asng._files import lock_checkpoint
from asng.nas import _checkpoints as checkpoints
from tests.helpers.processes import POINTS, exit_code_of, ready, search_and_fork, search_and_wait, search_in, start
from tests.helpers.searches import batches, cross_entropy, run_search, same, small_search

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]

# One process at a time -----------------------------------------------------------------------------


def test_a_second_search_with_the_same_checkpoint_is_refused(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    first = start(search_and_wait, str(tmp_path))
    ready(first, tmp_path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(
            ValueError, match=rf"^{path} is in use by process {first.pid} on .* since .*; wait until it"
        ):
            small_search(path)
    assert path.read_bytes() == before
    assert len(checkpoints.load(path)["history"]) == 2  # to look at it is fine
    (tmp_path / "go").touch()
    assert exit_code_of(first) == 0
    assert same(result_of(tmp_path), whole[False])
    assert same(small_search(path), whole[False])
    assert {"checkpoint.pt", "checkpoint.asng-previous.pt", "go", "result.pt"} == set(os.listdir(tmp_path))


def test_no_file_of_the_users_is_taken_for_the_previous_checkpoint(tmp_path):
    mine = tmp_path / "s.previous.pt"
    mine.write_text("mine")
    run_search(checkpoint=tmp_path / "s.pt")
    assert mine.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["s.asng-previous.pt", "s.previous.pt", "s.pt"]
    with pytest.raises(ValueError, match=r"s\.asng-previous\.pt is kept by another search; rename it to s\.pt$"):
        run_search(checkpoint=tmp_path / "s.asng-previous.pt")


def test_a_search_within_a_search_needs_another_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.pt"

    def loss(model, batch):
        with pytest.raises(ValueError, match=f"is in use by process {os.getpid()} on"):
            run_search(checkpoint=path)
        return cross_entropy(model, batch)

    assert len(run_search(checkpoint=path, loss_fn=loss, train_loader=batches(1), epochs=1).history) == 1


def test_a_worker_that_outlives_its_killed_search_does_not_lock_it(tmp_path, whole):
    first = start(search_and_fork, str(tmp_path))
    ready(first, tmp_path)
    first.kill()
    assert exit_code_of(first) == -signal.SIGKILL
    child = int((tmp_path / "child").read_text())
    os.kill(child, 0)  # it lives
    assert same(small_search(tmp_path / "checkpoint.pt"), whole[False])
    os.kill(child, signal.SIGKILL)


def test_a_search_whose_checkpoint_another_one_took_over_ends(tmp_path):
    path = tmp_path / "run" / "checkpoint.pt"
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == 25:
            shutil.rmtree(path.parent)
            locks.append(lock_checkpoint(path))
        return cross_entropy(model, batch)

    locks: list[Any] = []
    with pytest.raises(ValueError, match="is in use by process"):
        run_search(checkpoint=path, loss_fn=loss)
    assert not path.exists()
    locks[0].release()


def test_a_search_whose_folder_was_removed_saves_it_anew(tmp_path):
    path = tmp_path / "run" / "checkpoint.pt"
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == 25:
            shutil.rmtree(path.parent)
        return cross_entropy(model, batch)

    run_search(checkpoint=path, loss_fn=loss)
    assert os.listdir(path.parent) == ["checkpoint.pt"]
    assert len(run_search(checkpoint=path).history) == 2


def test_a_link_to_a_checkpoint_stays_and_both_names_are_one_checkpoint(tmp_path):
    (tmp_path / "far").mkdir()
    link, path = tmp_path / "link.pt", tmp_path / "far" / "checkpoint.pt"
    link.symlink_to(path)
    run_search(checkpoint=link)
    assert link.is_symlink()
    assert sorted(os.listdir(path.parent)) == ["checkpoint.asng-previous.pt", "checkpoint.pt"]
    held = lock_checkpoint(path)
    with pytest.raises(ValueError, match="is in use by process"):
        run_search(checkpoint=link)
    held.release()


# Processes that are killed -------------------------------------------------------------------------


def result_of(folder):
    return torch.load(folder / "result.pt", weights_only=True)


@pytest.mark.parametrize("own_generator", [False, True])
def test_killed_at_any_moment_and_resumed_ends_with_the_same_bits(tmp_path, whole, own_generator):
    moments = random.Random(11 + own_generator)
    kills, longest = 0, 0.1
    while not (tmp_path / "result.pt").exists():
        process = start(search_in, str(tmp_path), {"own_generator": own_generator})
        ready(process, tmp_path)
        process.join(moments.uniform(0, longest))
        longest *= 1.1  # whatever the machine, it ends
        if process.exitcode is None:
            process.kill()
            kills += 1
        assert exit_code_of(process) in (0, -signal.SIGKILL)
    assert kills >= 2
    assert same(result_of(tmp_path), whole[own_generator])
    assert set(os.listdir(tmp_path)) <= {"checkpoint.pt", "checkpoint.asng-previous.pt", "result.pt", "started"}


@pytest.mark.parametrize("save", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_saving_and_resumed_ends_with_the_same_bits(tmp_path, whole, point, save):
    killed = start(search_in, str(tmp_path), {}, (point, save))
    code = exit_code_of(killed)
    if code == 0:
        assert save == 1  # there is no previous one yet
        assert point in ("second name", "before the last rename", "renamed")
    else:
        assert code == -signal.SIGKILL
        newest = tmp_path / "checkpoint.pt"
        known = len(checkpoints.load(newest)["history"]) if newest.exists() else 0
        assert known == (save if point == "renamed" or (save == 1 and point == "previous in place") else save - 1)
        assert exit_code_of(start(search_in, str(tmp_path), {})) == 0
    assert same(result_of(tmp_path), whole[False])
    assert set(os.listdir(tmp_path)) == {"checkpoint.pt", "checkpoint.asng-previous.pt", "result.pt", "started"}


def test_a_process_stopped_by_ctrl_c_goes_on_with_the_same_bits(tmp_path, whole):
    moments = random.Random(3)
    longest, messages = 0.1, []
    while not (tmp_path / "result.pt").exists():
        process = start(search_in, str(tmp_path), {})
        ready(process, tmp_path)
        process.join(moments.uniform(0, longest))
        longest *= 1.1
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT)
        assert exit_code_of(process) in (0, 1, 3)  # 3: stopped; 1: before there was anything to stop, or after it
        if (tmp_path / "stopped.txt").exists():
            messages.append((tmp_path / "stopped.txt").read_text())
    assert any("the same call continues from there" in message for message in messages)
    assert same(result_of(tmp_path), whole[False])
