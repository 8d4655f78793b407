"""Searches that are stopped by a signal and continued end with the same bits."""

import itertools
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader, RandomSampler

from asng import _signals
from tests.helpers.searches import (
    Augmented,
    Net,
    cross_entropy,
    interrupt_at,
    outcome,
    run_search,
    same,
    small_search,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("call", [1, 2, 4, 13, 20, 21, 43, 78, 119, 120])
def test_ctrl_c_finishes_the_step_saves_and_the_same_call_goes_on(tmp_path, whole, call, own_generator):
    path = tmp_path / "new" / "checkpoint.pt"
    step, per_epoch = (call + 3) // 4, 5
    epoch, within = (step - 1) // per_epoch + 1, (step - 1) % per_epoch + 1
    message = rf"stopped in epoch {epoch} of 6 after step {within}; saved in {path}: the same call continues from there"
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=message):
        small_search(path, own_generator=own_generator, loss_fn=interrupt_at(call))
    assert signal.getsignal(signal.SIGINT) is handler
    random.random()  # whatever happens in between
    torch.rand(3)
    assert same(small_search(path, own_generator=own_generator), whole[own_generator])


@pytest.mark.parametrize("number", list(_signals.DEFAULTS)[1:])
def test_the_end_of_a_batch_job_and_a_closed_terminal_save_as_ctrl_c_does(tmp_path, whole, number):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt, match="the same call continues from there"):
        small_search(path, loss_fn=interrupt_at(43, number))
    assert signal.getsignal(number) is signal.SIG_DFL
    assert same(small_search(path), whole[False])


def test_ctrl_c_without_a_checkpoint_says_that_nothing_is_saved():
    with pytest.raises(KeyboardInterrupt, match="after step 1; nothing was saved, since no checkpoint was given"):
        run_search(loss_fn=interrupt_at(1))


def test_a_second_ctrl_c_does_not_wait(monkeypatch):
    monkeypatch.setattr(_signals, "BURST", 0.0)

    def loss(model, batch):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        run_search(loss_fn=loss)


def test_a_search_runs_in_a_thread_too():
    results = []
    thread = threading.Thread(target=lambda: results.append(run_search()))
    thread.start()
    thread.join()
    assert len(results[0].history) == 2


def test_many_pauses_change_nothing(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    result, pauses = None, 0
    while result is None:
        try:
            result = small_search(path, loss_fn=interrupt_at(7))
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
        run_search(loss_fn=slow, checkpoint=tmp_path / "c.pt")
    first = run_search(checkpoint=tmp_path / "c.pt").history[0]
    assert first["seconds"] > 8 * 0.05


def test_a_search_that_is_done_is_not_done_again(tmp_path, whole):
    path = tmp_path / "checkpoint.pt"
    small_search(path)
    assert same(small_search(path, loss_fn=lambda model, batch: pytest.fail("a step")), whole[False])


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"sampler": True}], ids=["plain", "workers", "sampler"])
def test_augmented_data_go_on_the_same(tmp_path, settings):
    def one(path, loss_fn=cross_entropy):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        dataset = Augmented()
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(5)) if "sampler" in settings else None
        workers = {"num_workers": settings.get("num_workers", 0)}
        train = DataLoader(dataset, batch_size=8, sampler=sampler, shuffle=sampler is None, **workers)
        model = Net()
        return outcome(model, run_search(model, train, DataLoader(dataset, 8), loss_fn, epochs=3, checkpoint=path))

    expected = one(None)
    for call in (27, 42):
        path = tmp_path / f"{call}.pt"
        with pytest.raises(KeyboardInterrupt):
            one(path, interrupt_at(call))
        assert same(one(path), expected)


def test_a_longer_search_on_a_schedule_of_one_s_own_goes_on(tmp_path):
    def one(epochs):
        model = Net()
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lr_scheduler = StepLR(weight_optimizer, 1)
        return run_search(
            model,
            weight_optimizer=weight_optimizer,
            lr_scheduler=lr_scheduler,
            epochs=epochs,
            checkpoint=tmp_path / "c.pt",
        )

    one(2)
    assert [record["epoch"] for record in one(4).history] == [1, 2, 3, 4]


def test_an_amp_search_goes_on_with_its_scale(tmp_path):
    path = tmp_path / "checkpoint.pt"
    expected = small_search(None, amp_dtype=torch.float16, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        small_search(path, amp_dtype=torch.float16, epochs=3, loss_fn=interrupt_at(30))
    assert same(small_search(path, amp_dtype=torch.float16, epochs=3), expected)


def test_a_search_whose_schedule_computes_in_numpy_is_continued(tmp_path):
    def settings():
        model = Net()
        weight_optimizer = torch.optim.SGD(model.parameters(), np.float64(0.1))
        lr_scheduler = LambdaLR(weight_optimizer, lambda epoch: 0.5 * (1 + np.cos(np.pi * epoch / 10)))
        return {"model": model, "weight_optimizer": weight_optimizer, "lr_scheduler": lr_scheduler}

    path = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run_search(checkpoint=path, loss_fn=interrupt_at(23), **settings())
    assert len(run_search(checkpoint=path, **settings()).history) == 2


def test_a_state_that_could_not_be_read_back_is_refused_at_once(tmp_path):
    class Stamped(Net):
        def get_extra_state(self):
            return object()

        def set_extra_state(self, state):
            pass

    with pytest.raises(ValueError, match=r"cannot hold job\.search\.model\._extra_state, which is a object"):
        run_search(Stamped(), checkpoint=tmp_path / "checkpoint.pt", epochs=1)
