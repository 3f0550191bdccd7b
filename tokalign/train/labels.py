"""Labels on disk, and the batches that a training run draws from them.

Labels are a file that grows window by window. A killed run leaves a part of a window at its end,
which the next one overwrites. A batch is known by its number alone, so that runs resume anywhere.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import BundleError, IncompatibleError
from tokalign.storage import parse_json, unwritable

NO_LABEL = -1
"""In the place of an id: nothing follows."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What the target says at n positions.

    values: f16[n, width], its states, which a draft model does not need, and probabilities of ids.
    ids: i32[n, 1 + future ...], the text's own id, the ids to learn after it, one for a draft
    model, and the ids that have probabilities.
    """

    values: NDArray[np.float16]
    ids: NDArray[np.int32]

    def texts(self, length: int) -> list[Labels]:
        """Its texts of `length` positions, one after another."""
        parts = [slice(i, i + length) for i in range(0, len(self.ids) - length + 1, length)]
        return [Labels(self.values[part], self.ids[part]) for part in parts]


class LabelFile:
    """The labels of a folder: a line with the recipe and the sizes, then records by windows.

    recipe: what the labels depend on, as JSON. labels: memory-mapped; None if some are missing.
    Raises: IncompatibleError for labels of another recipe; BundleError for damaged ones.
    """

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self._folder, self._path, self._recipe = folder, folder / "labels.bin", recipe
        self._done = self._positions = self._end = 0  # whole windows, their lengths, their end
        self.labels: Labels | None = None
        head = b""
        if self._path.is_file():
            with self._path.open("rb") as file:
                head = file.readline()
        if head.endswith(b"\n"):
            self._read(head)

    def _read(self, head: bytes) -> None:
        remedy = f"remove {self._folder}, and label again with: tokalign train"
        try:
            theirs, windows, positions, *sizes = parse_json(head)
            record = _record(*sizes)
            done = (self._path.stat().st_size - len(head)) // (positions * record.itemsize)
            if min(windows - done, windows, positions, *sizes) < 0 or not isinstance(theirs, dict):
                raise ValueError("the sizes are not those of labels")
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise BundleError(f"{self._path} is damaged; {remedy}") from error
        named = {**self._recipe, **theirs}
        names = [name for name in named if self._recipe.get(name) != theirs.get(name)]
        if names:
            raise IncompatibleError(
                f"the labels in {self._folder} were made with another "
                f"{' and another '.join(names)}; give the same as then, another --workspace, or "
                "remove that folder"
            )
        if not done:  # the head is written again, too
            return
        self._done, self._positions = done, positions
        self._end = len(head) + done * positions * record.itemsize
        if done == windows:
            records = np.memmap(self._path, record, "r", len(head), (done * positions,))
            self.labels = Labels(records["values"], records["ids"])

    def write(self, windows: Sequence[Any], label: Callable[[Any, int], Labels]) -> Iterator[int]:
        """Label the windows that are not labelled yet; yields the positions of each as it is done.

        label: labels a window with its number. Raises: UsageError or OutputError if labels cannot
        be written.
        """
        if self._done:
            yield self._done * self._positions
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.truncate(self._end)
                for number in range(self._done, len(windows)):
                    labels = label(windows[number], number)
                    sizes = labels.values.shape[1], labels.ids.shape[1]
                    records = np.empty(len(labels.ids), _record(*sizes))
                    records["values"], records["ids"] = labels.values, labels.ids
                    if not number:
                        head = [self._recipe, len(windows), len(records), *sizes]
                        file.write(json.dumps(head).encode() + b"\n")
                    file.write(records.tobytes())
                    file.flush()
                    os.fsync(file.fileno())
                    yield len(records)
        except OSError as error:
            raise unwritable(self._folder, error) from error


def _record(width: int, ids: int) -> np.dtype[Any]:
    return np.dtype([("values", "<f2", (width,)), ("ids", "<i4", (ids,))])


class Shuffled(ABC):
    """Batches of `size` of the numbers 0, 1, ... `count` - 1, in an order that epochs differ in."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        self.count, self.size, self._seed = count, min(size, count), seed

    @property
    def per_epoch(self) -> int:
        """How many batches have each position at most once."""
        return self.count // self.size

    @abstractmethod
    def __getitem__(self, number: int) -> Any:
        """The batch of a number, 0 or more."""

    def part(self, number: int) -> NDArray[np.intp]:
        """What a batch is made of; after the last batch of an epoch comes another epoch."""
        epoch, index = divmod(number, self.per_epoch)
        order = shuffled(self.count, self._seed, epoch)
        return order[index * self.size : (index + 1) * self.size]


_TURNS = (0, 1, 0, 1, 0)
"""Which set of labels each of five steps learns; measured in lab/results/block-drafter.md."""


class InTurns:
    """Batches of two sets of labels in turn."""

    def __init__(self, *sets: Shuffled) -> None:
        self._sets = sets
        self.per_epoch = sum(batches.per_epoch for batches in sets)

    def __getitem__(self, number: int) -> Any:
        rounds, place = divmod(number, len(_TURNS))
        turn = _TURNS[place]
        return self._sets[turn][rounds * _TURNS.count(turn) + _TURNS[:place].count(turn)]


@lru_cache(maxsize=4)
def shuffled(count: int, seed: int, epoch: int) -> NDArray[np.intp]:
    """The numbers 0, 1, ... `count` - 1 in the order of an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


_UNSEEN = 0.05
"""The share of all draws that ids have in common which the labels do not have."""


class Candidates:
    """Draws the ids that a softmax goes over: those that it needs, and about `count` others.

    Each id is drawn by itself, the more probably the more often it occurs, and weighs one over its
    probability, so the sum of exponentials is an unbiased estimate of that over the vocabulary.
    An id that is right at some position has to be among those needed: left to chance, it would
    weigh a hundredfold where it is drawn.
    Source: importance sampling of the partition function by frequency (Bengio and Senecal, 2003),
    with the estimator of Horvitz and Thompson (1952).
    seen: i[V], how often each id of the vocabulary occurs. count: None for all of them.
    """

    def __init__(self, seen: NDArray[np.int64], count: int | None) -> None:
        size = len(seen)
        self._chances = np.ones(size)
        if count is None or count >= size:
            return
        shares = (1 - _UNSEEN) * seen / seen.sum() + _UNSEEN / size
        least, most = 0.0, size / _UNSEEN  # factors by which fewer and more than `count` are drawn
        while most - least > 1e-3 * most:
            factor = (least + most) / 2
            self._chances = np.minimum(1, factor * shares)
            least, most = (factor, most) if self._chances.sum() < count else (least, factor)

    def draw(
        self, needed: NDArray[np.int32], seed: tuple[int, ...]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Candidates i32[C], ascending, and their logarithmic weights f32[C]."""
        chances = self._chances.copy()
        chances[needed] = 1
        drawn = np.flatnonzero(np.random.default_rng(seed).random(len(chances)) < chances)
        return drawn.astype(np.int32), -np.log(chances[drawn]).astype(np.float32)
