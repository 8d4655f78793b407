"""Ragged arrays: rows of different lengths, concatenated; the arithmetic of categorical variables.

A row holds the entries of one variable, such as the probabilities of its choices. Arrays of entries are
(..., size), arrays with one number per row (..., rows); all may have leading batch axes.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_REPEATED = 2**14  # numbers of a repeated array that is kept
MAX_DENSE_LENGTH = 32  # up to this length of all rows, matrix products are quicker than anything else


class Ragged:
    """Index of a ragged array, and row-wise operations.

    >>> rows = Ragged(np.array([2, 3]))
    >>> rows.owner, rows.last, rows.position
    (array([0, 0, 1, 1, 1]), array([1, 1, 4, 4, 4]), array([0., 1., 0., 1., 2.]))
    >>> rows.totals(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    array([ 3.,  3., 12., 12., 12.])
    """

    def __init__(self, lengths: NDArray[np.intp]) -> None:
        ends = np.cumsum(lengths)
        self.lengths, self.starts = lengths, ends - lengths
        self.owner = np.repeat(np.arange(len(lengths)), lengths)  # per entry, its row
        self.last = (ends - 1)[self.owner]  # per entry, the last entry of its row
        self.position = (np.arange(ends[-1]) - self.starts[self.owner]).astype(float)  # per entry, where in its row
        self._tiled = self.position  # as often as there were rows last: broadcasting few would cost more than comparing
        self._equal_lengths = bool((lengths == lengths[0]).all() and lengths[0] <= MAX_DENSE_LENGTH)
        self._ones = np.ones((lengths[0], lengths[0]) if self._equal_lengths else (1, 1))
        self._column = self._ones[:, 0].copy()
        self._up_to = np.triu(self._ones)  # for cumulative sums, of which the last goes beyond any draw
        self._up_to[:, -1] = 2.0
        # The same for others: less the sum of the rows before, whose entries sum to 1 each.
        self._before = np.where(self.last == np.arange(ends[-1]), -np.inf, self.owner)

    def totals(self, entries: Array) -> Array:
        """For each entry, the sum over its row."""
        if self._equal_lengths:
            result: Array = entries.reshape(-1, len(self._ones)).dot(self._ones)
            return result.reshape(entries.shape)
        return np.add.reduceat(entries, self.starts, -1).take(self.owner, -1)

    def draw(self, probabilities: Array, uniform: Array) -> Array:
        """Sample positions from rows (..., size) of probabilities by inversion of uniform numbers (..., n, rows).

        That is the number of cumulative sums <= r, without the last, so at most length - 1.

        >>> uniform = np.array([[0.4, 0.9], [0.6, 0.15]])
        >>> Ragged(np.array([2, 3])).draw(np.array([0.5, 0.5, 0.1, 0.1, 0.8]), uniform)
        array([[0., 2.],
               [1., 1.]])
        """
        one_run = probabilities.ndim == 1
        positions: Array
        if self._equal_lengths:
            if not one_run:
                return self._draw_many_runs(probabilities, uniform)
            sums = probabilities.reshape(-1, len(self._column)).dot(self._up_to)
            below = uniform[..., None] >= sums
            positions = below.astype(float).reshape(-1, len(self._column)).dot(self._column).reshape(uniform.shape)
            return positions
        sums = np.add.accumulate(probabilities, -1)
        sums -= self._before
        below = uniform.take(self.owner, -1) >= (sums if one_run else sums[..., None, :])
        positions = np.add.reduceat(below, self.starts, -1, dtype=float)
        return positions

    def _draw_many_runs(self, probabilities: Array, uniform: Array) -> Array:
        """`draw` for many runs of rows of equal length, position by position."""
        length = len(self._column)
        positions, sums = np.zeros(uniform.shape), np.zeros((*probabilities.shape[:-1], len(self.lengths)))
        for position in range(length - 1):
            sums += probabilities[..., position::length]
            positions += uniform >= sums[..., None, :]
        return positions

    def one_hot(self, positions: Array) -> Array:
        """For positions (..., rows), one in each row: 1 for the entry there, 0 for the others; raises ValueError.

        >>> Ragged(np.array([2, 3])).one_hot(np.array([1.0, 0.0]))
        array([0., 1., 1., 0., 0.])
        """
        places = positions.take(self.owner, -1)
        position = self._tiled
        if position.shape != places.shape:
            position = self.position
            if places.size <= MAX_REPEATED:
                position = self._tiled = np.broadcast_to(position, places.shape).copy()
        hits: NDArray[np.bool_] = places == position
        if np.count_nonzero(hits) != positions.size:
            raise ValueError(f"no such position in rows of lengths {self.lengths}: {positions}")
        return hits.astype(float)

    def argmax(self, entries: Array) -> Array:
        """The position of the largest entry of each row, the first of equal ones.

        >>> Ragged(np.array([2, 3])).argmax(np.array([0.4, 0.6, 0.4, 0.4, 0.2]))
        array([1., 0.])
        """
        maxima = np.maximum.reduceat(entries, self.starts, -1).take(self.owner, -1)
        first = np.where(entries == maxima, self.position, np.inf)
        return np.minimum.reduceat(first, self.starts, -1)

    def split(self, entries: Array) -> list[Array]:
        """Copies of the rows of entries (size,)."""
        return [row.copy() for row in np.split(entries, self.starts[1:])]
