"""Rows of different lengths in one array: each computation against the plain one, row by row in Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asng._ragged import MAX_DENSE_LENGTH, Ragged

PARTS = 64  # probabilities and draws are multiples of 1 / PARTS, whose sums are exact

some_lengths = st.one_of(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.builds(lambda length, n: [length] * n, st.integers(1, 6), st.integers(1, 5)),  # all alike
    st.sampled_from(
        [
            [MAX_DENSE_LENGTH] * 2,
            [MAX_DENSE_LENGTH + 1] * 2,
            [MAX_DENSE_LENGTH],
            [MAX_DENSE_LENGTH + 1],
            [1, MAX_DENSE_LENGTH + 1],
            [MAX_DENSE_LENGTH, MAX_DENSE_LENGTH + 1],
        ]
    ),
)
some_batches = st.sampled_from([(), (1,), (2,), (3,), (2, 1), (2, 2), (2, 3, 2)])
seeds = st.integers(0, 2**32 - 1)

every = settings(max_examples=200)


def cut(entries, lengths):
    """The rows of entries (size,), as lists."""
    rest = entries.tolist()
    return [[rest.pop(0) for _ in range(length)] for length in lengths]


def row_by_row(function, entries, lengths):
    """What a function makes of each row, one after another, for all entries (..., size)."""
    flat = entries.reshape(-1, entries.shape[-1])
    return np.array([[number for row in cut(one, lengths) for number in function(row)] for one in flat], float).reshape(
        *entries.shape[:-1], -1
    )


def ragged(lengths):
    return Ragged(np.array(lengths))


def whole_numbers(seed, shape):
    """Few different ones, so that there are equal ones; their sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def probabilities(generator, batch, lengths):
    """(*batch, size), of which some are 0; each row sums to 1."""
    rows = [generator.multinomial(PARTS, generator.dirichlet(np.full(m, 0.5)), batch) / PARTS for m in lengths]
    return np.concatenate(rows, -1)


@every
@given(some_lengths)
def test_every_entry_knows_its_row_its_position_and_the_last_of_its_row(lengths):
    rows = ragged(lengths)
    where = [(row, position) for row, length in enumerate(lengths) for position in range(length)]
    assert list(zip(rows.owner.tolist(), rows.position.tolist(), strict=True)) == where
    assert rows.last.tolist() == [where.index((row, lengths[row] - 1)) for row, _ in where]
    assert rows.starts.tolist() == [where.index((row, 0)) for row in range(len(lengths))]


@every
@given(some_lengths, some_batches, seeds)
def test_totals_are_the_sums_of_the_rows(lengths, batch, seed):
    entries = whole_numbers(seed, (*batch, sum(lengths)))
    before = entries.copy()
    expected = row_by_row(lambda row: [sum(row)] * len(row), entries, lengths)
    np.testing.assert_array_equal(ragged(lengths).totals(entries), expected)
    np.testing.assert_array_equal(entries, before)


@every
@given(some_lengths, some_batches, seeds)
def test_the_largest_is_the_first_of_equal_ones(lengths, batch, seed):
    entries = whole_numbers(seed, (*batch, sum(lengths)))
    expected = row_by_row(lambda row: [row.index(max(row))], entries, lengths)
    np.testing.assert_array_equal(ragged(lengths).argmax(entries), expected)


@every
@given(some_lengths, some_batches, seeds)
def test_one_hot_is_1_at_the_position_of_each_row_and_0_elsewhere(lengths, batch, seed):
    positions = np.random.default_rng(seed).integers(0, lengths, (*batch, len(lengths))).astype(float)
    expected = [
        [float(position == there) for length, there in zip(lengths, one, strict=True) for position in range(length)]
        for one in positions.reshape(-1, len(lengths))
    ]
    one_hot = ragged(lengths).one_hot(positions)
    assert one_hot.shape == (*batch, sum(lengths))
    assert one_hot.reshape(-1, sum(lengths)).tolist() == expected


@pytest.mark.parametrize("position", [-1.0, 0.5, 2.0, 1e300, np.inf, np.nan])
@pytest.mark.parametrize("batch", [(), (2,), (3, 2)], ids=str)
@pytest.mark.parametrize("lengths", [[2, 2], [3, 2]], ids=["alike", "different"])
def test_a_position_that_its_row_does_not_have_is_refused(lengths, batch, position):
    positions = np.zeros((*batch, 2))
    positions[..., -1].flat[0] = position
    with pytest.raises(ValueError, match=r"no such position in rows of lengths \[[23] 2\]"):
        ragged(lengths).one_hot(positions)


@every
@given(some_lengths, some_batches, st.integers(1, 4), seeds)
def test_drawn_counts_the_cumulative_sums_up_to_the_draw_without_the_last(lengths, batch, n, seed):
    generator = np.random.default_rng(seed)
    entries = probabilities(generator, batch, lengths)
    uniform = generator.integers(0, PARTS, (*batch, n, len(lengths))) / PARTS  # often equal to a sum
    before = entries.copy(), uniform.copy()
    positions = ragged(lengths).draw(entries, uniform)
    assert positions.shape == uniform.shape
    for run in np.ndindex(batch):
        rows = cut(entries[run], lengths)
        for draw in range(n):
            for position, row, number in zip(positions[run][draw], rows, uniform[run][draw], strict=True):
                assert position == sum(sum(row[: end + 1]) <= number for end in range(len(row) - 1))
    np.testing.assert_array_equal(entries, before[0])
    np.testing.assert_array_equal(uniform, before[1])


@pytest.mark.parametrize("lengths", [[3, 3], [3, 2], [MAX_DENSE_LENGTH + 1] * 2], ids=["alike", "different", "long"])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "several"])
def test_draws_stay_in_their_row_despite_rounding(lengths, batch):
    entries = np.concatenate([np.full(m, (1 - 1e-9) / m) for m in lengths]) * np.ones((*batch, 1))
    uniform = np.full((*batch, 1, len(lengths)), np.nextafter(1.0, 0.0))
    assert (ragged(lengths).draw(entries, uniform) == np.array(lengths) - 1).all()


@every
@given(some_lengths, seeds)
def test_split_gives_copies_of_the_rows(lengths, seed):
    entries = whole_numbers(seed, sum(lengths))
    rows = ragged(lengths).split(entries)
    assert [row.tolist() for row in rows] == cut(entries, lengths)
    assert not any(np.shares_memory(row, entries) for row in rows)
