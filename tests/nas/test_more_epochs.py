"""A search is continued for more epochs from its checkpoint."""

import math

import pytest
import torch

from asng.nas import _checkpoints as checkpoints
from tests.helpers.searches import Net, batches, cross_entropy, interrupt_at, outcome, run_search, same, small_search

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


def test_a_finished_search_goes_on_for_more_epochs(tmp_path):
    path = tmp_path / "search.pt"
    first = small_search(path, epochs=2)
    longer = small_search(path, epochs=5)
    assert longer["history"][:2] == first["history"]
    assert len(longer["history"]) == 5
    assert not same(longer["weights"], first["weights"])
    assert same(small_search(path, epochs=5), longer)  # finished, too


@pytest.mark.parametrize("call", [41, 62, 80])  # in the first, second and last of the epochs that are added
def test_an_extension_that_is_stopped_resumes_bit_for_bit(tmp_path, call):
    for name in ("whole", "stopped"):
        small_search(tmp_path / name, epochs=2)
    whole = small_search(tmp_path / "whole", epochs=5)
    with pytest.raises(KeyboardInterrupt, match="stopped in epoch"):
        small_search(tmp_path / "stopped", epochs=5, loss_fn=interrupt_at(call - 40))
    assert same(small_search(tmp_path / "stopped", epochs=5), whole)


def cosine(n):
    return [0.05 * (1 + math.cos(math.pi * i / n)) for i in range(n)]


@pytest.mark.parametrize(("interval", "per_epoch"), [("epoch", 1), ("step", 2)])
def test_the_default_schedule_starts_over_for_what_is_added(tmp_path, interval, per_epoch):
    lrs: list[float] = []
    for epochs in (2, 5):
        model = Net()
        weights = torch.optim.SGD(model.parameters(), 0.1)

        def loss_fn(model, batch, weights=weights):
            lrs.append(weights.param_groups[0]["lr"])
            return cross_entropy(model, batch)

        data = batches(per_epoch)
        options = {"weight_optimizer": weights, "scheduler_interval": interval, "checkpoint": tmp_path / "search.pt"}
        run_search(model, data, [*data], loss_fn, epochs=epochs, **options)
    assert lrs[::4] == pytest.approx(cosine(2 * per_epoch) + cosine(3 * per_epoch))  # four losses in a step


def test_what_is_added_may_be_extended_again_but_not_cut(tmp_path):
    path = tmp_path / "search.pt"
    for epochs in (1, 2, 4):
        assert len(small_search(path, epochs=epochs)["history"]) == epochs
    with pytest.raises(ValueError, match="epochs: 4 there, 2 here"):
        small_search(path, epochs=2)
    assert len(checkpoints.load(path)["history"]) == 4


@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize("call", [1, 30, 60])  # in the first, second and last of three epochs
def test_an_interrupted_search_with_more_epochs_ends_as_one_that_was_finished_first(tmp_path, call, interval):
    finished, interrupted = tmp_path / "finished.pt", tmp_path / "interrupted.pt"
    small_search(finished, epochs=3, scheduler_interval=interval)
    with pytest.raises(KeyboardInterrupt):
        small_search(interrupted, epochs=3, loss_fn=interrupt_at(call), scheduler_interval=interval)
    with pytest.raises(KeyboardInterrupt):  # once more, before the epochs that are added
        small_search(interrupted, epochs=6, loss_fn=interrupt_at(1), scheduler_interval=interval)
    whole, resumed = (small_search(path, epochs=6, scheduler_interval=interval) for path in (finished, interrupted))
    assert same(resumed, whole)


def test_an_interrupted_search_is_not_cut(tmp_path):
    path = tmp_path / "search.pt"
    with pytest.raises(KeyboardInterrupt):
        small_search(path, epochs=3, loss_fn=interrupt_at(30))
    with pytest.raises(ValueError, match="epochs: 3 there, 2 here"):
        small_search(path, epochs=2)


def test_an_extension_is_no_cover_for_other_differences(tmp_path):
    path = tmp_path / "search.pt"
    small_search(path, epochs=2)
    with pytest.raises(ValueError, match=r"max_grad_norm: 5\.0 there, 1\.0 here"):
        small_search(path, epochs=4, max_grad_norm=1.0)


def scheduled_search(path, epochs, length):
    model = Net()
    weights = torch.optim.SGD(model.parameters(), 0.1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(weights, length)
    return run_search(model, weight_optimizer=weights, lr_scheduler=cosine, epochs=epochs, checkpoint=path)


def test_a_schedule_of_ones_own_goes_on_and_another_says_how_to(tmp_path):
    path = tmp_path / "search.pt"
    scheduled_search(path, epochs=2, length=2)
    with pytest.raises(
        ValueError, match=r"\(lr_scheduler\.T_max: 2 there, 4 here\); to continue it, restore these settings;"
    ):
        scheduled_search(path, epochs=4, length=4)
    assert len(scheduled_search(path, epochs=4, length=2).history) == 4


def test_several_optimizers_all_start_over(tmp_path):
    def search(epochs):
        torch.manual_seed(0)
        model = Net()
        weights = [torch.optim.SGD(model.head.parameters(), 0.1)]
        weights.append(torch.optim.SGD([*model.first.parameters(), *model.blocks.parameters()], 0.2))
        lrs: list[list[float]] = []

        def callback(record):
            if isinstance(record, dict):
                lrs.append([one.param_groups[0]["lr"] for one in weights])

        found = run_search(
            model, weight_optimizer=weights, epochs=epochs, checkpoint=tmp_path / "search.pt", callback=callback
        )
        return outcome(model, found), lrs

    search(1)
    _, lrs = search(3)
    assert lrs == [pytest.approx([0.05, 0.1]), pytest.approx([0.0, 0.0], abs=1e-12)]
