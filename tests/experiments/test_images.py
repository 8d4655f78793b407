"""Where data lies, its halves, and mini-batches that follow from seeds and a number alone."""

from pathlib import Path

import pooch  # type: ignore[import-untyped]
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asng.experiments._images import Batches, ImageSet, data_folder, halves


def test_data_is_where_the_caller_or_environment_says(monkeypatch):
    monkeypatch.setenv("ASNG_DATA", "/from/environment")
    assert data_folder(Path("given")) == Path("given")
    assert data_folder(None) == Path("/from/environment")
    monkeypatch.setenv("ASNG_DATA", "~/pictures")
    assert data_folder(None) == Path.home() / "pictures"
    monkeypatch.setenv("ASNG_DATA", "")
    assert data_folder(None) == Path(pooch.os_cache("asng"))
    monkeypatch.delenv("ASNG_DATA")
    assert data_folder(None) == Path(pooch.os_cache("asng"))


@given(n=st.integers(2, 300), seed=st.integers(0, 2**64))
def test_halves_are_disjoint_and_exhaustive_and_the_first_is_not_larger(n, seed):
    first, second = halves(n, seed)
    assert sorted(first.tolist() + second.tolist()) == list(range(n))
    assert (len(first), len(second)) == (n // 2, n - n // 2)
    assert all(torch.equal(half, again) for half, again in zip((first, second), halves(n, seed), strict=True))


def test_each_image_is_as_often_in_the_first_half_as_in_the_second():
    counts = torch.zeros(20)
    for seed in range(2000):
        counts[halves(20, seed)[0]] += 1
    assert (counts / 2000 - 0.5).abs().max() < 5 * 0.5 / 2000**0.5


def draw(images, chosen, generators):
    """The indices of mini-batches, and a random number for each image."""
    numbers = [torch.rand(len(chosen) // len(generators), generator=generator) for generator in generators]
    return chosen, torch.cat(numbers)


def make_batches(indices, size, seed=0, stream=0):
    return Batches(ImageSet(torch.zeros(2000, 3, 1, 1)), indices, size, draw, seed, stream)


def lists(batch):
    return [tensor.tolist() for tensor in batch]


@given(n=st.integers(1, 60), size=st.integers(1, 60), seed=st.integers(0, 2**32), stream=st.integers(0, 9))
def test_an_epoch_shows_every_image_at_most_once(n, size, seed, stream):
    size = min(size, n)
    indices = torch.arange(1000, 1000 + 3 * n, 3)
    batches = make_batches(indices, size, seed, stream)
    assert batches.steps == n // size
    for epoch in range(3):
        parts = [batches(epoch * batches.steps + step)[0] for step in range(batches.steps)]
        assert all(len(part) == size for part in parts)
        shown = torch.cat(parts).tolist()
        assert len(set(shown)) == len(shown) > n - size
        assert set(shown) <= set(indices.tolist())


def test_every_epoch_has_an_order_of_its_own_and_leaves_out_other_images():
    batches = make_batches(torch.arange(103), 10)
    epochs = [torch.cat([batches(10 * epoch + step)[0] for step in range(10)]) for epoch in range(20)]
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 20
    assert len({frozenset(epoch.tolist()) for epoch in epochs}) == 20


@given(numbers=st.lists(st.integers(0, 10**9), min_size=1, max_size=10))
def test_a_number_gives_the_same_mini_batch_whatever_came_before(numbers):
    batches = make_batches(torch.arange(50), 7, 3, 1)
    before = {number: lists(batches(number)) for number in numbers}
    for number, batch in before.items():
        assert lists(make_batches(torch.arange(50), 7, 3, 1)(number)) == batch == lists(batches(number))


def test_random_numbers_differ_between_mini_batches_seeds_and_streams():
    each = [make_batches(torch.arange(100), 10, seed, stream) for seed in range(5) for stream in range(4)]
    numbers = {tuple(batches(number)[1].tolist()) for batches in each for number in range(30)}
    assert len(numbers) == 5 * 4 * 30
    assert len({tuple(batches(0)[0].tolist()) for batches in each}) == 20


def test_mini_batches_leave_the_global_random_state_alone():
    state = torch.get_rng_state()
    make_batches(torch.arange(20), 4)(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_batch_larger_than_the_images_is_refused_with_the_cure():
    with pytest.raises(ValueError, match="batch_size must be at most 5, the number of images, got 6"):
        make_batches(torch.arange(5), 6)
