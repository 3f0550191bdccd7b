"""Labels on disk, the texts that they are of, and the batches that a training run draws from them.

Two plain arrays grow at their ends, and `labels.json` says after which window how many of their
rows are whole. A killed run leaves rows beyond that, which the next one overwrites. A batch is
known by its number alone, so that runs resume anywhere.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import BundleError, IncompatibleError
from tokalign.storage import parse_json, unwritable, write_file

_HIDDEN, _IDS, _STATE = "hidden.f16", "ids.i32", "labels.json"
_WINDOWS_PER_NOTE = 4

NO_LABEL = -1
"""In the place of an id: nothing follows."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What the target says at n positions.

    values: f16[n, width], for a recurrent drafter its last hidden states, for a draft model
    probabilities of ids. ids: i32[n, future], what follows; for a draft model see `NextIds`.
    """

    values: NDArray[np.float16]
    ids: NDArray[np.int32]


def write_labels(
    folder: Path,
    recipe: Mapping[str, Any],
    windows: Sequence[Any],
    label: Callable[[Any, int], Labels],
) -> Iterator[int]:
    """Label the windows that are not labelled yet; yields the positions of each as it is done.

    recipe: what the labels depend on, as JSON; labels in the folder have to be of an equal one.
    label: gives the labels of a window and its number.
    Raises: IncompatibleError if the folder has labels of another recipe; BundleError if they are
    damaged; UsageError or OutputError if they cannot be written.
    """
    state = _read_state(folder, recipe)
    done = int(state["windows"])
    if done:
        yield int(state["positions"])
    if state.get("complete"):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            _growing(folder / _HIDDEN, 2, state, "hidden_size") as hidden,
            _growing(folder / _IDS, 4, state, "future") as ids,
        ):
            for number in range(done, len(windows)):
                labels = label(windows[number], number)
                hidden.write(labels.values.tobytes())
                ids.write(labels.ids.tobytes())
                state["positions"] += len(labels.ids)
                state["windows"] = number + 1
                state["hidden_size"] = labels.values.shape[1]
                state["future"] = labels.ids.shape[1]
                state["complete"] = state["windows"] == len(windows)
                if state["complete"] or state["windows"] % _WINDOWS_PER_NOTE == 0:
                    for file in (hidden, ids):  # on the disk before anything says so
                        file.flush()
                        os.fsync(file.fileno())
                    write_file(folder / _STATE, json.dumps(state))
                yield len(labels.ids)
    except OSError as error:
        raise unwritable(folder, error) from error


def are_complete(folder: Path, recipe: Mapping[str, Any]) -> bool:
    """Whether a folder has all labels of a recipe. Raises: as `write_labels`."""
    return bool(_read_state(folder, recipe).get("complete"))


def open_labels(folder: Path) -> Labels:
    """All labels of a folder, memory-mapped. Raises: BundleError if they are damaged or missing."""
    state = _read_state(folder, None)
    rows = int(state["positions"])
    if not rows:
        raise BundleError(f"there are no labels in {folder}; {_remedy(folder)}")
    arrays: list[Any] = []
    for name, kind, size in ((_HIDDEN, np.float16, "hidden_size"), (_IDS, np.int32, "future")):
        path, wide = folder / name, int(state[size])
        length = rows * wide * np.dtype(kind).itemsize
        _require_size(path, length)
        if state.get("complete") and path.stat().st_size != length:
            raise BundleError(f"{path} does not hold rows of {wide} values; {_remedy(folder)}")
        arrays.append(np.memmap(path, kind, "r", shape=(rows, wide)))
    return Labels(*arrays)


def _read_state(folder: Path, recipe: Mapping[str, Any] | None) -> dict[str, Any]:
    """The state of a folder; that of an empty one if it has none."""
    path = folder / _STATE
    if not path.is_file():
        return {"recipe": recipe, "windows": 0, "positions": 0}
    try:
        state = parse_json(path.read_bytes())
        found, counts = state["recipe"], [int(state["windows"]), int(state["positions"])]
        sizes = [int(state["hidden_size"]), int(state["future"])] if counts[1] else [1]
        if min(counts) < 0 or min(sizes) < 1:
            raise ValueError("a number is too small")
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path} is damaged; {_remedy(folder)}") from error
    if recipe is not None and found != recipe:
        names = [name for name in {**recipe, **found} if recipe.get(name) != found.get(name)]
        raise IncompatibleError(
            f"the labels in {folder} were made with another {' and another '.join(names)}; "
            f"give the same as then, another --workspace, or remove that folder"
        )
    return dict(state)


def _growing(path: Path, item: int, state: Mapping[str, Any], wide: str) -> BinaryIO:
    """Open a file that goes on after the rows that are known to be whole; others are cut off."""
    path.touch()
    length = int(state["positions"]) * item * int(state.get(wide, 0))
    _require_size(path, length)
    os.truncate(path, length)
    return path.open("ab")


def _require_size(path: Path, least: int) -> None:
    if not path.is_file() or path.stat().st_size < least:
        raise BundleError(f"{path} is shorter than it was; {_remedy(path.parent)}")


def _remedy(folder: Path) -> str:
    return f"remove {folder}, and label the corpus again with: tokalign train"


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text and what the target says follows each of its ids.

    ids: i32[n]. labels: i32[n, 1 + k]: the id to learn where one is learned, and the k ids that the
    target finds most probable. probabilities: f16[n, k], of these.
    """

    ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    probabilities: NDArray[np.float16]


def texts_of(labels: Labels, length: int) -> list[LabelledText]:
    """The texts in `labels` as `NextIds` writes them, `length` rows for each."""
    found = []
    for begin in range(0, len(labels.ids) - length + 1, length):
        ids = np.asarray(labels.ids[begin : begin + length])
        values = np.asarray(labels.values[begin : begin + length])
        known = int((ids[:, 0] != NO_LABEL).sum())
        found.append(LabelledText(ids[:known, 0], ids[:known, 1:], values[:known]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Positions, and the ids among which a drafter has to find what follows them.

    hidden: f16[B, H]. read: i32[B, depth], the ids that the drafter reads.
    candidates: i32[C], ascending; log_weights: f32[C], see `Candidates`. correct: i[B, depth], what
    follows each read id, as an index into `candidates`.
    """

    hidden: NDArray[np.float16]
    read: NDArray[np.int32]
    candidates: NDArray[np.int32]
    correct: NDArray[np.intp]
    log_weights: NDArray[np.float32]


B = TypeVar("B")
"""A batch of a learner."""


class Shuffled(ABC, Generic[B]):
    """Batches of `size` of the numbers 0, 1, ... `count` - 1, in an order that epochs differ in.

    A batch is known by its number alone, so that runs resume anywhere. seed: of the order.
    """

    def __init__(self, count: int, size: int, seed: int) -> None:
        self.count, self.size, self._seed = count, min(size, count), seed
        self._order = lru_cache(maxsize=2)(self._order_of)

    @property
    def per_epoch(self) -> int:
        """How many batches have each position at most once."""
        return self.count // self.size

    @abstractmethod
    def __getitem__(self, number: int) -> B:
        """The batch of a number, 0 or more."""

    def part(self, number: int) -> NDArray[np.intp]:
        """What a batch is made of; after the last batch of an epoch comes another epoch."""
        epoch, index = divmod(number, self.per_epoch)
        return self._order(epoch)[index * self.size : (index + 1) * self.size]

    def _order_of(self, epoch: int) -> NDArray[np.intp]:
        return np.random.default_rng((self._seed, epoch)).permutation(self.count)


class Batches(Shuffled[Batch]):
    """The batches of a training run.

    size: positions of a batch. candidates: as of `Candidates`; what follows in a batch is needed.
    """

    def __init__(
        self, labels: Labels, *, size: int, vocabulary_size: int, candidates: int | None, seed: int
    ) -> None:
        super().__init__(len(labels.ids), size, seed)
        self._labels = labels
        seen = np.bincount(labels.ids[:, 1:].reshape(-1), minlength=vocabulary_size)
        self._candidates = Candidates(seen, candidates)

    def __getitem__(self, number: int) -> Batch:
        rows = np.sort(self.part(number))
        ids = self._labels.ids[rows]
        following, correct = np.unique(ids[:, 1:], return_inverse=True)
        candidates, log_weights = self._candidates.draw(following, (self._seed, 1, number))
        return Batch(
            hidden=self._labels.values[rows],
            read=ids[:, :-1],
            candidates=candidates,
            correct=np.searchsorted(candidates, following)[correct].reshape(ids[:, 1:].shape),
            log_weights=log_weights,
        )


_UNSEEN = 0.05
"""The share of all draws that ids have in common which the labels do not have."""


class Candidates:
    """Draws the ids that a softmax goes over: those that it needs, and about `count` others.

    Each id is drawn by itself, the more probably the more often it occurs, and weighs one over its
    probability, which makes the sum of exponentials an unbiased estimate of that over the whole
    vocabulary. So those that matter most are always there. An id that is right at some position has
    to be among those needed: left to chance, it would weigh a hundredfold where it is drawn.
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
