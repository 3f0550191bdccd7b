"""Many short sequences in one flat array, so that all of them are handled at once."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Element = TypeVar("Element", bound=np.generic)

_SPARE = 4


def positions(starts: Ints, lengths: Ints) -> Ints:
    """All positions of all spans, one span after the other.

    Example: starts 5, 0 and lengths 2, 3 -> 5, 6, 0, 1, 2.
    """
    ends = np.cumsum(lengths)
    flat = np.repeat(starts - (ends - lengths), lengths)
    flat += np.arange(len(flat))
    return flat


class Pool(Generic[Element]):
    """Numbered sequences in one growing array, `flat`, with at least four elements to spare."""

    def __init__(self, dtype: type[Element] | np.dtype[Element]) -> None:
        self.flat: NDArray[Element] = np.zeros(1 << 12, dtype=dtype)
        self._starts = np.zeros(1 << 10, dtype=np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, flat: NDArray[np.generic], lengths: Ints) -> None:
        """Number more sequences, which stand in `flat` one after the other."""
        end, size = int(self._starts[self._size]), self._size
        self.flat = grown(self.flat, end + len(flat) + _SPARE)
        self._starts = grown(self._starts, size + len(lengths) + 1)
        self.flat[end : end + len(flat)] = flat
        self._starts[size + 1 : size + len(lengths) + 1] = end + np.cumsum(lengths)
        self._size += len(lengths)

    def truncate(self, size: int) -> None:
        """Forget all but the first `size` sequences."""
        self._size = size

    def spans(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Where the sequences with these numbers start in `flat`, and their lengths."""
        starts = self._starts[numbers]
        return starts, self._starts[numbers + 1] - starts

    def concatenate(self, numbers: Ints) -> NDArray[Element]:
        """The sequences with these numbers, one after the other."""
        return self.flat.take(positions(*self.spans(numbers)))


def grown(array: NDArray[Element], size: int) -> NDArray[Element]:
    """The array, at least `size` long. It is doubled, so that growing costs O(1) per element."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
