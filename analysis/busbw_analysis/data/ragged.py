"""Rows of different lengths as one array: the ranks of groups, the samples of blocks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of integers. Row i is ``flat[starts[i]:starts[i + 1]]``.

    starts: one more entry than rows, ascending from 0
    """

    flat: Integers
    starts: Integers

    @classmethod
    def of(cls, values: Integers, lengths: Integers) -> "Ragged":
        """Rows of these ``lengths``, cut from ``values``."""
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """``rows`` as one array."""
        values = np.fromiter((value for row in rows for value in row), dtype=np.int64)
        return cls.of(values, np.fromiter(map(len, rows), dtype=np.int64))

    @classmethod
    def joined(cls, parts: Iterable["Ragged"]) -> "Ragged":
        """The rows of all ``parts``, in order."""
        pieces = list(parts)
        if not pieces:
            return cls.of_rows(())
        return cls.of(np.concatenate([part.flat for part in pieces]), np.concatenate([part.lengths for part in pieces]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(self.row, range(len(self)))

    @property
    def lengths(self) -> Integers:
        """The length of every row."""
        return np.diff(self.starts)

    def row(self, index: int) -> tuple[int, ...]:
        """Row ``index``."""
        return tuple(self.flat[self.starts[index] : self.starts[index + 1]].tolist())

    def places(self, rows: Integers) -> Integers:
        """The indices into ``flat`` of all values of ``rows``, row after row."""
        return spans(self.starts[rows], self.lengths[rows])

    def take(self, rows: Integers) -> "Ragged":
        """These ``rows``, in this order."""
        return Ragged.of(self.flat[self.places(rows)], self.lengths[rows])


def spans(starts: Integers, lengths: Integers) -> Integers:
    """The indices of all spans, one after the other: ``starts[0]``, ``starts[0] + 1`` and so on."""
    return np.asarray(np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum())))


def numbered(ranks: Ragged) -> Integers:
    """The number of the ranks of every row, in order of first appearance."""
    seen: dict[tuple[int, ...], int] = {}
    return np.asarray([seen.setdefault(row, len(seen)) for row in ranks], dtype=np.int64)
