"""Searches that are stopped, killed and continued end with the same bits; checkpoints that do not fit are refused."""

import itertools
import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from processes import POINTS, ended, ready, searching, started
from searches import Net, batches, cross_entropy, data, outcome, same, searched, small_search
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from asng import ASNG, checkpoints
from asng.nas import Limit, OneOf, parameters, space_of

pytestmark = pytest.mark.usefixtures("same_numbers")

# Stopping and going on -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcomes without a pause, with each kind of data loaders."""
    return {own: small_search(None, own_generator=own) for own in (False, True)}


def interrupted_at(call, number=signal.SIGINT):
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == call:
            signal.raise_signal(number)
        return cross_entropy(model, batch)

    return loss


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("call", [1, 2, 4, 13, 20, 21, 43, 78, 119, 120])
def test_ctrl_c_finishes_the_step_saves_and_the_same_call_goes_on(tmp_path, whole, call, own_generator):
    path = tmp_path / "new" / "checkpoint.pt"
    step, per_epoch = (call + 3) // 4, 5
    epoch, within = (step - 1) // per_epoch + 1, (step - 1) % per_epoch + 1
    message = rf"stopped in epoch {epoch} of 6 after step {within}; saved in {path}: the same call continues from there"
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=message):
        small_search(path, own_generator=own_generator, loss=interrupted_at(call))
    assert signal.getsignal(signal.SIGINT) is handler
    random.random()  # whatever happens in between
    torch.rand(3)
    assert same(small_search(path, own_generator=own_generator), whole[own_generator])


def test_the_end_of_a_batch_job_saves_as_ctrl_c_does(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt, match="the same call continues from there"):
        small_search(path, loss=interrupted_at(43, signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert same(small_search(path), whole[False])


def test_ctrl_c_without_a_checkpoint_says_that_nothing_is_saved():
    with pytest.raises(KeyboardInterrupt, match="after step 1; nothing was saved, since no checkpoint was given"):
        searched(loss=interrupted_at(1))


def test_a_second_ctrl_c_does_not_wait():
    def loss(model, batch):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        searched(loss=loss)


def test_a_search_runs_in_a_thread_too():
    results = []
    thread = threading.Thread(target=lambda: results.append(searched()))
    thread.start()
    thread.join()
    assert len(results[0].history) == 2


def test_many_pauses_change_nothing(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    result, pauses = None, 0
    while result is None:
        try:
            result = small_search(path, loss=interrupted_at(7))
        except KeyboardInterrupt:
            pauses += 1
    assert pauses == 15  # two steps at a time, of thirty
    assert same(result, whole[False])


def test_the_seconds_of_an_epoch_count_from_before_the_pause(tmp_path):
    calls = itertools.count(1)

    def slow(model, batch):
        time.sleep(0.05)
        if next(calls) == 8:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(model, batch)

    with pytest.raises(KeyboardInterrupt):
        searched(loss=slow, checkpoint=tmp_path / "c.pt")
    first = searched(checkpoint=tmp_path / "c.pt").history[0]
    assert first["seconds"] > 8 * 0.05


def test_a_search_that_is_done_is_not_done_again(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    small_search(path)
    assert same(small_search(path, loss=lambda model, batch: pytest.fail("a step")), whole[False])


class Augmented(torch.utils.data.Dataset):
    """Every reading is another: by NumPy's and Python's global random numbers, and torch's."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        x, y = data(40)
        noise = random.random() + np.random.random() + torch.rand(()).item()  # noqa: NPY002
        return x[index] + noise, y[index]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"sampler": True}], ids=["plain", "workers", "sampler"])
def test_augmented_data_go_on_the_same(tmp_path, settings):
    def one(path, loss=cross_entropy):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        dataset = Augmented()
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(5)) if "sampler" in settings else None
        workers = {"num_workers": settings.get("num_workers", 0)}
        train = DataLoader(dataset, batch_size=8, sampler=sampler, shuffle=sampler is None, **workers)
        model = Net()
        return outcome(model, searched(model, train, DataLoader(dataset, 8), loss, epochs=3, checkpoint=path))

    expected = one(None)
    for call in (27, 42):
        path = tmp_path / f"{call}.pt"
        with pytest.raises(KeyboardInterrupt):
            one(path, interrupted_at(call))
        assert same(one(path), expected)


def test_a_longer_search_on_a_schedule_of_one_s_own_goes_on(tmp_path):
    def one(epochs):
        model = Net()
        weights = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(weights, 1)
        return searched(model, weights=weights, schedule=schedule, epochs=epochs, checkpoint=tmp_path / "c.pt")

    one(2)
    assert [record["epoch"] for record in one(4).history] == [1, 2, 3, 4]


def test_an_amp_search_goes_on_with_its_scale(tmp_path):
    path = tmp_path / "checkpoint.pt"
    expected = small_search(None, amp=torch.float16, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        small_search(path, amp=torch.float16, epochs=3, loss=interrupted_at(30))
    assert same(small_search(path, amp=torch.float16, epochs=3), expected)


# Checkpoints that do not fit -----------------------------------------------------------------------


def test_fewer_batches_than_before_the_pause_are_noticed(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        searched(checkpoint=path, loss=interrupted_at(16))
    with pytest.raises(ValueError, match="train gives only 2 batches, but was at step 4 when it stopped"):
        searched(train=batches(2), checkpoint=path)


def test_a_checkpoint_of_another_search_is_refused_by_name(tmp_path):
    path = tmp_path / "checkpoint.pt"
    searched(checkpoint=path)
    others: dict[str, Any] = {
        "first.options.0.weight is (8, 4) there, absent here": {
            "model": nn.Sequential(OneOf("first", [nn.Sequential(nn.Linear(4, 3)), nn.Linear(4, 3)]))
        },
        "first.options.0.weight is (8, 4) there, (9, 4) here": {"model": Net(width=9)},
        "blocks.blocks.3": {"model": Net(depth=4)},
        "planned for 2 epochs, not 3": {"epochs": 3},
        "its limits are on [], these on ['parameters']": {"limits": [Limit(parameters, 200)]},
        "optimizer with another settings": {"optimizer": ASNG(space_of(Net()), alpha=2.0)},
    }
    for reason, settings in others.items():
        with pytest.raises(ValueError) as error:  # noqa: PT011
            searched(checkpoint=path, **settings)
        assert str(error.value).startswith(f"{path} is of another search (")
        assert reason in str(error.value)
        assert "use another path, or delete it to start anew" in str(error.value)
    assert len(searched(checkpoint=path).history) == 2


def test_a_checkpoint_that_lacks_something_is_refused_by_its_name(tmp_path):
    path = tmp_path / "checkpoint.pt"
    searched(checkpoint=path)
    whole = checkpoints.load(path)
    for state in (whole, whole["run"], whole["run"]["search"]):
        for part in list(state):
            kept = state.pop(part)
            checkpoints.save(path, whole)
            with pytest.raises(ValueError, match=rf"is of another search \(.*it has no '{part}'\); use another path"):
                searched(checkpoint=path)
            state[part] = kept


def test_a_damaged_checkpoint_ends_the_search_with_the_previous_one_offered(tmp_path):
    path = tmp_path / "checkpoint.pt"
    searched(checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"damaged .*the one before it is .*checkpoint\.previous\.pt: rename it"):
        searched(checkpoint=path)
    os.replace(checkpoints.previous(path), path)
    assert len(searched(checkpoint=path).history) == 2


# Processes that are killed -------------------------------------------------------------------------


def result_of(folder):
    return torch.load(folder / "result.pt", weights_only=True)


@pytest.mark.parametrize("own_generator", [False, True])
def test_killed_at_any_moment_and_resumed_ends_with_the_same_bits(tmp_path, whole, own_generator):
    moments = random.Random(11 + own_generator)
    kills, longest = 0, 0.1
    while not (tmp_path / "result.pt").exists():
        process = started(searching, str(tmp_path), {"own_generator": own_generator})
        ready(process, tmp_path)
        process.join(moments.uniform(0, longest))
        longest *= 1.1  # whatever the machine, it ends
        if process.exitcode is None:
            process.kill()
            kills += 1
        assert ended(process) in (0, -signal.SIGKILL)
    assert kills >= 2
    assert same(result_of(tmp_path), whole[own_generator])


@pytest.mark.parametrize("save", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_saving_and_resumed_ends_with_the_same_bits(tmp_path, whole, point, save):
    killed = started(searching, str(tmp_path), {}, (point, save))
    code = ended(killed)
    if code == 0:
        assert save == 1  # there is no previous one yet
        assert point in ("second name", "before the last rename", "renamed")
    else:
        assert code == -signal.SIGKILL
        newest = tmp_path / "checkpoint.pt"
        known = len(checkpoints.load(newest)["run"]["history"]) if newest.exists() else 0
        assert known == (save if point == "renamed" or (save == 1 and point == "previous in place") else save - 1)
        assert ended(started(searching, str(tmp_path), {})) == 0
    assert same(result_of(tmp_path), whole[False])


def test_a_process_stopped_by_ctrl_c_goes_on_with_the_same_bits(tmp_path, whole):
    moments = random.Random(3)
    longest, messages = 0.1, []
    while not (tmp_path / "result.pt").exists():
        process = started(searching, str(tmp_path), {})
        ready(process, tmp_path)
        process.join(moments.uniform(0, longest))
        longest *= 1.1
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT)
        assert ended(process) in (0, 1, 3)  # 3: stopped; 1: before there was anything to stop, or after it
        if (tmp_path / "stopped.txt").exists():
            messages.append((tmp_path / "stopped.txt").read_text())
    assert any("the same call continues from there" in message for message in messages)
    assert same(result_of(tmp_path), whole[False])
