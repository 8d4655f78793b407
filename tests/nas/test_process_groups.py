"""More processes than candidates: groups of them split the batch of one candidate each."""

import copy
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from asng import fused
from asng.nas import _distributed
from asng.nas._checks import check_device
from asng.nas._distributed import Groups
from tests.helpers.processes import (
    communicate_alone,
    crowd,
    exit_code_of,
    normalize_together,
    search_together,
    step_groups,
)
from tests.helpers.searches import Net, make_oneshot, small_search

pytestmark = pytest.mark.usefixtures("same_numbers")

# Steps in one, four and five processes, of which the last one is left over ---------------------------

# By name: whether there are batch norms, the ranks on which deep networks fail, and options of OneShot.
KINDS: dict[str, tuple[bool, list[int], dict[str, Any]]] = {
    "no norm": (False, [], {}),
    "synchronized": (True, [], {"sync_batchnorm": True}),
    "limits": (True, [], {"sync_batchnorm": True, "limited": True}),
    "not synchronized": (True, [], {}),
    "failing": (False, [0, 2], {}),
    "failing in one": (False, [2], {}),
}


@pytest.fixture(scope="module")
def by_size(tmp_path_factory):
    """The results of each process, by the number of processes."""
    results = {}
    for size in (1, 4, 5):
        folder = tmp_path_factory.mktemp(f"of{size}")
        members = crowd(step_groups, folder, KINDS, world_size=size)
        assert [exit_code_of(member) for member in members] == [0] * size, (folder / "stderr0.txt").read_text()
        results[size] = [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(size)]
    return results


def numbers(result, name):
    return np.array(result[name], dtype=float)  # NaN where not run


def is_statistic(name):
    """Each process has those of the candidates that it ran itself."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


@pytest.mark.long
@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("kind", ["no norm", "synchronized", "limits"])
def test_groups_of_processes_compute_what_one_computes(by_size, kind, size):
    alone = by_size[1][0][kind]
    for result in (of_rank[kind] for of_rank in by_size[size]):
        assert result["optimizer"]["state"] == alone["optimizer"]["state"]  # theta and all else, exactly
        assert result["optimizer"]["generator"] == alone["optimizer"]["generator"]
        for name in ("train", "valid", "metrics"):
            np.testing.assert_allclose(numbers(result, name), numbers(alone, name), rtol=1e-9, atol=1e-12)
        for name, value in result["weights"].items():
            if not is_statistic(name):
                torch.testing.assert_close(value, alone["weights"][name], rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_the_limit_of_these_tests_leaves_groups_without_a_candidate(by_size):
    assert None in by_size[1][0]["limits"]["valid"]


@pytest.mark.long
def test_statistics_of_a_share_are_others_and_theta_is_equal_everywhere(by_size):
    alone, *group = by_size[1][0]["not synchronized"], *(result["not synchronized"] for result in by_size[4])
    for result in group:
        assert result["optimizer"]["state"] == group[0]["optimizer"]["state"]
        for name in ("train", "valid", "metrics"):
            assert result[name] == group[0][name]
        for name, value in result["weights"].items():
            assert is_statistic(name) or torch.equal(value, group[0]["weights"][name])
    assert not np.allclose(numbers(group[0], "train"), numbers(alone, "train"), rtol=1e-3)


@pytest.mark.long
def test_a_candidate_that_fails_in_one_process_of_its_group_fails_in_all(by_size):
    """Ranks 0 and 2 run the first candidate of a half, 1 and 3 the second, which does not fail."""
    in_both = by_size[4][0]["failing"]
    assert np.inf in in_both["train"][::2]
    assert np.inf not in in_both["train"][1::2]
    for result in (of_rank["failing in one"] for of_rank in by_size[4]):
        assert result["optimizer"]["state"] == in_both["optimizer"]["state"]
        assert (result["train"], result["metrics"]) == (in_both["train"], in_both["metrics"])
        torch.testing.assert_close(result["weights"], in_both["weights"], rtol=0, atol=0)


@pytest.mark.slow
def test_synchronized_statistics_are_those_of_the_whole_batch(tmp_path):
    members = crowd(normalize_together, tmp_path)
    assert [exit_code_of(member) for member in members] == [0, 0], (tmp_path / "stderr0.txt").read_text()


@pytest.mark.slow
def test_four_processes_search_what_one_searches(tmp_path):
    settings = {"epochs": 3, "dropout": 0.0}
    members = crowd(search_together, tmp_path, settings, world_size=4)
    expected = small_search(None, **settings)
    assert [exit_code_of(member) for member in members] == [0] * 4, (tmp_path / "stderr0.txt").read_text()
    for rank in range(4):
        alone = copy.deepcopy(expected)
        result = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert result["optimizer"] == alone["optimizer"]
        assert result["values"] == alone["values"]
        for one, other in zip(result["history"], alone["history"], strict=True):
            assert one.pop("distribution") == other.pop("distribution")
            assert one == pytest.approx(other)
        for name, value in result["weights"].items():
            torch.testing.assert_close(value, alone["weights"][name])


NCCL = dist.is_nccl_available() and torch.cuda.is_available()
NEEDS_NCCL = pytest.mark.skipif(not NCCL, reason="needs NCCL and a GPU")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "device"), [("gloo", "cpu"), pytest.param("nccl", "cuda", marks=NEEDS_NCCL)], ids=["gloo", "nccl"]
)
def test_all_that_is_communicated_is_so_by_a_group_of_one(tmp_path, backend, device):
    """One process, which communicates with itself: on one GPU NCCL takes no more."""
    members = crowd(communicate_alone, tmp_path, KINDS, device, world_size=1, backend=backend)
    assert [exit_code_of(member) for member in members] == [0], (tmp_path / "stderr0.txt").read_text()
    alone, together = (torch.load(tmp_path / f"together {t}" / "rank0.pt", weights_only=True) for t in (False, True))
    for kind in KINDS:
        assert together[kind]["optimizer"]["state"] == alone[kind]["optimizer"]["state"]
        torch.testing.assert_close(together[kind]["weights"], alone[kind]["weights"])
        for name in ("train", "valid", "metrics"):
            np.testing.assert_allclose(numbers(together[kind], name), numbers(alone[kind], name), rtol=1e-9)
    alone, together = (torch.load(tmp_path / f"together {t}" / "search", weights_only=True) for t in (False, True))
    assert together["history"] == pytest.approx(alone["history"])
    assert together["ranked"] == pytest.approx(alone["ranked"])


@pytest.mark.slow
@pytest.mark.skipif(not NCCL or torch.cuda.device_count() < 4, reason="needs NCCL and four GPUs")
def test_groups_compute_the_same_with_nccl(tmp_path):
    alone, group = tmp_path / "alone", tmp_path / "group"
    for folder, size in ((alone, 1), (group, 4)):
        folder.mkdir()
        members = crowd(step_groups, folder, KINDS, "cuda", world_size=size, backend="nccl")
        assert [exit_code_of(member) for member in members] == [0] * size
    expected = torch.load(alone / "rank0.pt", weights_only=True, map_location="cpu")
    for path in group.glob("rank*.pt"):
        for kind in ("no norm", "synchronized"):
            result = torch.load(path, weights_only=True, map_location="cpu")[kind]
            assert result["optimizer"]["state"] == expected[kind]["optimizer"]["state"]
            np.testing.assert_allclose(result["train"], expected[kind]["train"], rtol=1e-6)


# Shares ----------------------------------------------------------------------------------------------


def groups(monkeypatch, rank, world_size, population_size=2):
    monkeypatch.setattr(_distributed, "rank_and_world_size", lambda: (rank, world_size))
    return Groups(population_size, sync_batchnorm=False)


@pytest.mark.filterwarnings("ignore:.* processes are idle")
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("population_size", [1, 2, 4])
def test_every_row_of_every_candidate_is_run_once(monkeypatch, world_size, population_size):
    for candidates in range(population_size + 1):
        ran = []
        for rank in range(world_size):
            mine = groups(monkeypatch, rank, world_size, population_size)
            own = mine.shard(candidates)
            rows, fraction = mine.take(torch.arange(11)) if own else (torch.arange(0), 0)
            assert fraction == pytest.approx(len(rows) / 11)
            ran += [(index, row) for index in own for row in rows.tolist()]
        assert sorted(ran) == [(index, row) for index in range(candidates) for row in range(11)]


def test_processes_that_are_left_over_are_warned_of(monkeypatch):
    with pytest.warns(
        UserWarning, match=r"1 of 3 processes are idle, .* a multiple of 2, or give ASNG another population_size$"
    ):
        groups(monkeypatch, rank=0, world_size=3)


class Pair(NamedTuple):
    x: torch.Tensor
    scale: float


def test_rows_are_taken_from_batches_of_any_structure(monkeypatch):
    second = groups(monkeypatch, rank=2, world_size=4)
    x, names = torch.arange(12).reshape(4, 3), ["a", "b", "c", "d"]
    batch = {
        "x": x,
        "rest": [Pair(x[:, 0], 0.5), (x, None)],
        "names": names,
        "sizes": [1, 2, 3, 4],
        "t": torch.tensor(3),
    }
    taken, fraction = second.take(batch)
    assert fraction == 0.5
    assert torch.equal(taken["x"], x[2:])
    pair, inner = taken["rest"]
    assert isinstance(pair, Pair)
    assert (pair.x.tolist(), pair.scale, inner[0].tolist(), inner[1]) == ([6, 9], 0.5, x[2:].tolist(), None)
    assert (taken["names"], taken["sizes"], taken["t"].item()) == (["c", "d"], [1, 2, 3, 4], 3)


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (None, "a NoneType with no tensors"),
        ((torch.ones(4), torch.ones(3)), "a tuple with tensors of 3, 4 rows"),
        (torch.ones(1, 5), "a Tensor with tensors of 1 rows"),
    ],
)
def test_a_batch_that_cannot_be_split_is_refused(monkeypatch, batch, found):
    with pytest.raises(
        ValueError, match=rf"2 processes split .* {found} cannot be split; give tensors with equal numbers of rows"
    ):
        groups(monkeypatch, rank=0, world_size=4).take(batch)
    assert groups(monkeypatch, rank=0, world_size=2).take(batch) == (batch, 1.0)


# Models that cannot be synchronized ------------------------------------------------------------------


def test_layers_that_are_not_synchronized_are_refused():
    for model, message in (
        (nn.Sequential(fused.BatchNorm2d(3), Net()), r"does not reach 0, a BatchNorm2d; use torch's own: .*unfuse"),
        (torch.compile(Net(), backend="eager"), "does not reach the model, a OptimizedModule; search the model itself"),
    ):
        with pytest.raises(ValueError, match=message):
            make_oneshot(model, sync_batchnorm=True)


def test_torchs_synchronized_norms_are_refused_in_several_processes(monkeypatch):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Net(norm=True))
    make_oneshot(model)
    monkeypatch.setattr(_distributed, "is_distributed", lambda: True)
    with pytest.raises(ValueError, match=r"blocks\.blocks\.0\.1 is a SyncBatchNorm, .* sync_batchnorm=True"):
        make_oneshot(model)


@pytest.mark.parametrize(
    ("current", "message"),
    [
        (None, r"by NCCL, from GPU to GPU, but the model is on cpu; move it .*, or use init_process_group\('gloo'\)"),
        (0, r"on cuda:1, but the current GPU of its process, .*, is 0; call torch\.cuda\.set_device\(1\) before"),
        (1, None),
    ],
)
def test_nccl_takes_a_model_on_the_current_gpu_alone(monkeypatch, current, message):
    monkeypatch.setattr(_distributed, "is_distributed", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    device = torch.device("cpu") if current is None else torch.device("cuda:1")
    with nullcontext() if message is None else pytest.raises(ValueError, match=message):
        check_device(device)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    check_device(device)
