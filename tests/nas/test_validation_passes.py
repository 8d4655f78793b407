"""search goes through the validation batches pass after pass, across epochs, and goes on there when it is resumed."""

import itertools
import multiprocessing
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.searches import Net, batches, data, outcome, run_search, same

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]

TRAIN, EPOCHS = 5, 4  # batches, of four rows


@pytest.mark.parametrize("length", [1, 3, 5, 7, 10, 20])
def test_valid_goes_on_across_epochs_and_starts_over_at_its_end(length):
    judged = []

    def loss(model, batch):
        if not torch.is_grad_enabled():
            judged.append(batch)
        return model(torch.ones(1, 4)).mean()

    run_search(train_loader=range(TRAIN), valid_loader=range(length), loss_fn=loss, epochs=EPOCHS)
    assert judged[::2] == judged[1::2] == [step % length for step in range(TRAIN * EPOCHS)]


class Unsized:
    """A generator for every pass, shuffled by torch's global random numbers, that does not know how long it is."""

    def __init__(self, rows):
        self._rows = rows

    def __iter__(self):
        for place in torch.randperm(len(self._rows[0])).split(4):
            yield [column[place] for column in self._rows]


def loaders(kind, length):
    """Batches to train on and to validate, whose rows say by their last column which they are."""
    rows = [(*data(4 * n, seed), torch.arange(4 * n)) for n, seed in ((TRAIN, 1), (length, 2))]
    if kind == "unsized":
        return [Unsized(columns) for columns in rows]
    shared = torch.Generator().manual_seed(7) if kind == "own generator" else None
    workers = 1 if kind == "workers" else 0
    return [
        DataLoader(TensorDataset(*columns), batch_size=4, shuffle=True, generator=shared, num_workers=workers)
        for columns in rows
    ]


def observe(kind, length, path=None, stop=None):
    """The outcome of a search, and the rows of each validation batch; interrupted in step `stop`."""
    torch.manual_seed(3)
    train, valid = loaders(kind, length)
    judged, calls = [], itertools.count(4)

    def loss(model, batch):
        if next(calls) == 4 * (stop or 0):
            signal.raise_signal(signal.SIGINT)
        if not torch.is_grad_enabled():
            judged.append(batch[2].tolist())
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    model, result = Net(), None
    try:
        result = outcome(model, run_search(model, train, valid, loss, epochs=EPOCHS, checkpoint=path))
    except KeyboardInterrupt:
        assert stop is not None
    return result, judged[::2]


@pytest.mark.parametrize("length", [3, 12])
@pytest.mark.parametrize("kind", ["shuffled", "own generator", "unsized", "workers"])
def test_a_resumed_search_goes_on_within_its_pass_over_valid(kind, length, tmp_path):
    expected, rows = observe(kind, length)
    for place in range(0, len(rows) - length + 1, length):
        assert sorted(itertools.chain(*rows[place : place + length])) == list(range(4 * length))  # whole passes
    for stop in [7, 15, 18] if kind != "workers" else [18]:  # within epochs and at the end of one
        path = tmp_path / f"{stop}.pt"
        _, before = observe(kind, length, path, stop)
        result, after = observe(kind, length, path)
        assert before + after == rows
        assert same(result, expected)


def test_many_pauses_within_a_pass_change_nothing(tmp_path):
    expected, rows = observe("shuffled", 12)
    result, seen = None, []
    while result is None:
        result, more = observe("shuffled", 12, tmp_path / "c.pt", stop=3)
        seen += more
    assert seen == rows
    assert same(result, expected)


def test_a_complete_pass_draws_no_more_than_its_batches_do():
    _, rows = observe("own generator", TRAIN)
    train, valid = loaders("own generator", TRAIN)
    assert rows == [batch[2].tolist() for _ in range(EPOCHS) for _, batch in zip(train, valid, strict=False)]


def test_fewer_valid_batches_than_were_used_before_the_pause_are_noticed(tmp_path):
    path = tmp_path / "checkpoint.pt"
    observe("unsized", 12, path, stop=8)  # others are told by their length
    with pytest.raises(ValueError, match="valid_loader gives fewer than the 5 batches that were used when it stopped"):
        observe("unsized", 3, path)


def test_no_worker_of_an_unfinished_pass_stays_behind():
    others = set(multiprocessing.active_children())  # of tests before
    valid = DataLoader(TensorDataset(*data(40)), batch_size=8, num_workers=1)
    run_search(train_loader=batches(3, 1), valid_loader=valid, epochs=1)  # three of five
    assert set(multiprocessing.active_children()) <= others
