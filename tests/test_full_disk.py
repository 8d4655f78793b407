"""A disk that is full: the error names the file and the cure, and what was saved before is whole."""

import errno
import os
import resource
from contextlib import contextmanager

import pytest
import torch

from asng import Integer, minimize
from asng._files import atomic_write
from asng.nas import _checkpoints as checkpoints
from asng.runs import Run, write_json
from tests.helpers.searches import interrupt_at, same, small_search


@contextmanager
def full_disk(size):
    """No file can grow beyond this size; for the writer that is as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


SAID = (
    r"File too large: {} cannot be written to the disk of .* \([\d,]+ bytes are left\); make room there; the same com"
)


@pytest.mark.parametrize("size", [0, 10, 64, 100, 1000, 5000, 100_000])
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path, size):
    path = tmp_path / "checkpoint.pt"
    checkpoints.save(path, {"weights": torch.zeros(3)})
    with full_disk(size), pytest.raises(OSError, match=SAID.format(path)) as raised:
        checkpoints.save(path, {"weights": torch.zeros(100_000)})
    assert raised.value.errno == errno.EFBIG
    assert torch.equal(checkpoints.load(path)["weights"], torch.zeros(3))
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_a_summary_that_does_not_fit_leaves_nothing_behind(tmp_path):
    with full_disk(100), pytest.raises(OSError, match=SAID.format(tmp_path / "summary.json")):
        write_json(tmp_path / "summary.json", {"numbers": [*range(1000)]})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [0, 10])
def test_a_folder_on_a_full_disk_is_named_and_not_locked(tmp_path, size):
    with full_disk(size), pytest.raises(OSError, match=SAID.format(rf"{tmp_path}/(\.asng-lock|config\.json)")):
        Run(tmp_path, {"seed": 0})
    assert os.listdir(tmp_path) == []


def test_a_line_that_does_not_fit_is_dropped_when_the_run_continues(tmp_path):
    with Run(tmp_path, {}) as run:
        run.append({"n": 1})
        with full_disk(20), pytest.raises(OSError, match=SAID.format(tmp_path / "results.jsonl")):
            run.append({"n": "a line that is longer"})
    with Run(tmp_path, {}) as run:
        run.append({"n": 2})
        assert run.results() == [{"n": 1}, {"n": 2}]


def test_another_error_of_a_write_is_of_the_same_class(tmp_path):
    message = "nowhere/file cannot be written; choose another path"
    with pytest.raises(FileNotFoundError, match=message), atomic_write(tmp_path / "nowhere" / "file"):
        pass


@pytest.mark.slow
def test_a_search_continues_after_its_disk_was_full(tmp_path):
    path = tmp_path / "search.pt"
    with pytest.raises(KeyboardInterrupt):
        small_search(path, loss_fn=interrupt_at(40))
    with full_disk(1000), pytest.raises(OSError, match=SAID.format(path)):
        small_search(path)
    assert same(small_search(path), small_search(None))


def test_a_minimization_continues_after_its_disk_was_full(tmp_path):
    def minimize_for(evaluations, **settings):
        return minimize(lambda v: v["n"], {"n": Integer(1, 10**6)}, evaluations=evaluations, seed=0, **settings).history

    path = tmp_path / "state.json"
    minimize_for(20, checkpoint=path)
    with full_disk(1000), pytest.raises(OSError, match=SAID.format(path)):
        minimize_for(40, checkpoint=path)
    assert minimize_for(40, checkpoint=path) == minimize_for(40)
