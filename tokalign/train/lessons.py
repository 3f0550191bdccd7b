"""Texts and labels as a draft model is taught by them: all boundaries of a text in one pass.

A target token that no single draft token covers is spelled by several. If it is the text's own next
token, the product of their probabilities counts as well, the last of them again as a sum of covers.
Encodings of the same bytes that are not canonical are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.whole_text import (
    NO_IDS,
    DraftReading,
    Ids,
    RowBoundary,
    TokenCovers,
)
from tokalign.tokenizer.vocabulary import DraftId, TargetId
from tokalign.train.labels import NO_LABEL, Candidates, Labels, Shuffled
from tokalign.train.options import FitOptions

ONE, ZERO = 0, 1
"""Sums that are always there."""
MOST_FACTORS = 4
"""Draft tokens that spell one target token; what takes more is left out."""


def readings_of(pair: Pair, texts: Iterable[Labels]) -> Iterator[tuple[Labels, DraftReading]]:
    """Texts, and how the draft model reads them; those that have boundaries."""
    readings = ((text, DraftReading(pair, text.ids[:, 0].tolist())) for text in texts)
    return ((text, reading) for text, reading in readings if reading.boundaries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a batch of texts teaches; n boundaries with 1 + k labels each.

    read: i32[B, L], the draft's ids, padded at their ends.
    candidates: i32[C], ascending, the draft ids that the softmax goes over, with all that the texts
        have and all covers of labels. log_weights: f32[C].
    rows, columns, sums: i32[E]: the probability of candidate `columns` in row `rows` of all B * L
        is added to the sum `sums`. The first two sums are one and zero. count: of sums.
    covers: i32[n, 1 + k], the sum of each label's covers. factors: i32[n, MOST_FACTORS], the sums
        whose product spells the first label. allowed: i32[n], the sum of what may follow at all.
    probabilities: f32[n, k], of all labels but the first.
    own: i32[2, m], rows of the draft's text and the columns of what follows in it.
    """

    read: Ids
    candidates: Ids
    log_weights: NDArray[np.float32]
    rows: Ids
    columns: Ids
    sums: Ids
    count: int
    covers: Ids
    factors: Ids
    allowed: Ids
    probabilities: NDArray[np.float32]
    own: Ids


class Lessons(Shuffled):
    """The lessons of a training run.

    window: ids of a text. options: the ids of a lesson, about, and how `Candidates` are drawn; the
    draft's own tokens are always learned, labels as sums over covers only where a loss needs them.
    positions: how many boundaries are learned from.
    """

    def __init__(
        self,
        pair: Pair,
        texts: Sequence[Labels],
        options: FitOptions,
        *,
        window: int,
        vocabulary_size: int,
    ) -> None:
        self._pair, self._with_covers = pair, options.losses != ("text",)
        self._texts, self.positions = list[Labels](), 0
        seen = np.zeros(vocabulary_size, np.int64)
        for text, reading in readings_of(pair, texts):  # a text is read again where it is used:
            self._texts.append(text)  # boundaries of millions of tokens fill a memory
            self.positions += len(reading.boundaries)
            seen += np.bincount(reading.ids, minlength=vocabulary_size)
        self._candidates = Candidates(seen, options.candidates)
        roles = [token for token in pair.roles() if token < vocabulary_size]
        self.covers = TokenCovers(pair, {*map(DraftId, np.flatnonzero(seen).tolist()), *roles})
        super().__init__(len(self._texts), max(1, options.batch // window), options.seed)

    def __getitem__(self, number: int) -> Lesson:
        sums = _Sums(self.covers)
        readings = [*readings_of(self._pair, [self._texts[i] for i in self.part(number)])]
        length = max(len(reading.ids) for _, reading in readings)
        read = np.full((len(readings), length), readings[0][1].ids[0], np.int32)
        for line, (text, reading) in enumerate(readings):
            read[line, : len(reading.ids)] = reading.ids
            sums.add(text, reading, line * length, covers=self._with_covers)
        return sums.finish(read, self._candidates, (self._seed, 1, number))


class _Sums:
    """Gathers what a lesson adds up."""

    def __init__(self, covers: TokenCovers) -> None:
        self._covers = covers
        self._known: dict[tuple[int, int], int] = {}
        self._terms: list[tuple[int, Ids]] = []  # the row and the tokens of each sum
        self._needed: dict[int, Ids] = {}
        self._learned: list[tuple[list[int], list[int], int, NDArray[np.float16]]] = []
        self._own: list[NDArray[Any]] = []

    def add(self, labels: Labels, reading: DraftReading, offset: int, *, covers: bool) -> None:
        """Take in a text whose rows begin at `offset`."""
        length, spelled = len(reading.ids) - 1, self._covers.bytes_of
        self._own.append(np.stack([np.arange(length) + offset, np.array(reading.ids[1:])]))
        for boundary in reading.boundaries if covers else ():
            next_ids: list[TargetId] = labels.ids[boundary.at, 1:].tolist()
            if next_ids[0] == NO_LABEL:
                continue
            row, begun, after = offset + boundary.row, boundary.partial, boundary.at + 1
            slots = [self._cover(row, begun + spelled(label), label) for label in next_ids]
            follows = after < len(labels.ids) and labels.ids[after, 0] == next_ids[0]
            factors = self._spelling(reading, boundary, next_ids[0], offset) if follows else []
            if slots[0] == ZERO and not factors:
                continue  # the draft model cannot say it
            factors = factors or [ZERO]
            factors += [ONE] * (MOST_FACTORS - len(factors))
            # Among the tokens that may follow at all, those that were drawn tell the sum.
            allowed = self._sum(row, self._covers.starting_with(begun)) if begun else ONE
            self._learned.append((slots, factors, allowed, labels.values[boundary.at]))

    def _spelling(
        self, reading: DraftReading, boundary: RowBoundary, label: TargetId, offset: int
    ) -> list[int]:
        """The sums whose product spells the text's next token in several draft tokens."""
        rest, row = boundary.partial + self._covers.bytes_of(label), boundary.row
        factors = list[int]()
        while row + 1 < len(reading.ids) and len(factors) < MOST_FACTORS:
            token, spelled = reading.ids[row + 1], reading.spelled[row + 1]
            if not spelled or len(spelled) >= len(rest) or not rest.startswith(spelled):
                break
            factors.append(self._sum(offset + row, np.array([token], np.int32)))
            rest, row = rest[len(spelled) :], row + 1
        if not factors or len(factors) == MOST_FACTORS:
            return []
        last = self._cover(offset + row, rest, label)
        return [] if last == ZERO else [*factors, last]

    def _cover(self, row: int, data: bytes, label: TargetId) -> int:
        """The number of the sum of a label's covers, which begin with these bytes."""
        tokens = self._covers.of(data, label)
        self._needed[id(tokens)] = tokens
        return self._sum(row, tokens)

    def _sum(self, row: int, tokens: Ids) -> int:
        """The number of the sum of these tokens' probabilities in a row."""
        if not len(tokens):
            return ZERO
        # `_terms` keeps every array alive, so no other one gets its identity.
        key = row, id(tokens) if len(tokens) > 1 else -int(tokens[0])
        if key not in self._known:
            self._known[key] = len(self._terms) + 2
            self._terms.append((row, tokens))
        return self._known[key]

    def finish(self, read: Ids, drawn_from: Candidates, seed: tuple[int, ...]) -> Lesson:
        """The lesson of all texts taken in."""
        needed = np.concatenate([read.reshape(-1), *self._needed.values()])
        candidates, log_weights = drawn_from.draw(needed, seed)
        own = np.concatenate(self._own, axis=1).astype(np.int32)
        own[1] = np.searchsorted(candidates, own[1])
        sizes = [len(tokens) for _, tokens in self._terms]
        rows = np.repeat(np.array([row for row, _ in self._terms], np.int32), sizes)
        sums = np.repeat(np.arange(len(sizes), dtype=np.int32) + 2, sizes)
        tokens = np.concatenate([*(tokens for _, tokens in self._terms), NO_IDS])
        drawn = np.isin(tokens, candidates)
        learned = zip(*self._learned, strict=True) if self._learned else ((),) * 4
        covers, factors, allowed, probabilities = learned
        return Lesson(
            read=read,
            candidates=candidates,
            log_weights=log_weights,
            rows=rows[drawn],
            columns=np.searchsorted(candidates, tokens[drawn]).astype(np.int32),
            sums=sums[drawn],
            count=len(sizes) + 2,
            covers=np.array(covers, np.int32),
            factors=np.array(factors, np.int32),
            allowed=np.array(allowed, np.int32),
            probabilities=np.array(probabilities, np.float32),
            own=own,
        )
