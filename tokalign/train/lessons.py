"""Texts and labels as a draft model is taught by them: all boundaries of a text in one pass.

The draft model reads its own canonical encoding of a text. At every boundary of the target's tokens
its rows say how probable each next target token is: the row at the boundary does, or, where the
boundary lies within a draft token, the row before that token, given the bytes read already. So the
marginal that `exact` computes for one boundary with a pass of its own is had for all of them at the
price of reading the text.

A target token that no single draft token covers is spelled by several. Where it is the text's own
next token, their rows are at hand: the product of their probabilities counts as well, the last of
them again as a sum of covers. Other encodings of the same bytes, which are not canonical, are left
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.chat import Prompt
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.bpe.encoder import TokenOrder
from tokalign.tokenizer.vocabulary import DraftId, TargetId
from tokalign.train.labels import NO_LABEL, Candidates, LabelledText, Shuffled

Ids = NDArray[np.int32]

_NONE: Ids = np.zeros(0, np.int32)
_LOOKED_AT = 16


class Covers:
    """Covers of target tokens among some of a draft's tokens: which of these begin with them.

    At a boundary of the target's text the draft model has read its own tokens up to there, or up to
    a few bytes before. The probability of a next target token is that of all draft tokens which
    continue those bytes with it. Draft tokens that begin alike are one range in the order of their
    bytes; those of a range count whose text the target would really begin with that token.

    chosen: their ids; those that a text of the kind in question has are enough. A letter begins
    thousands of tokens, and most of them are of other languages and have no probability there.

    Example (Llama 3 drafts for Bielik; the bytes read already are ` k`): of the tokens that begin
    with ` kom`, ` kom` and ` komp` cover Bielik's `om`; ` komet` does not, as `omet` is `omet`
    to Bielik, one token.
    """

    def __init__(self, pair: Pair, chosen: Iterable[DraftId]) -> None:
        self._tokens = tokens = pair.draft.vocabulary.tokens
        self._order = TokenOrder.of(tokens, [token for token in chosen if tokens[token]])
        self._ids = np.array(self._order.ids, np.int32)
        self._theirs = pair.target.vocabulary.tokens
        self._encode = pair.target.encoder.encode
        self._special = {target: draft for draft, target in pair.roles().items()}
        self.first = lru_cache(maxsize=1 << 18)(self._first)
        self.of = lru_cache(maxsize=1 << 16)(self._of)
        self.starting_with = lru_cache(maxsize=1 << 14)(self._starting_with)

    def bytes_of(self, token: TargetId) -> bytes:
        """The bytes of a target token; none for one that its model has beyond its vocabulary."""
        return self._theirs[token] if token < len(self._theirs) else b""

    def _first(self, data: bytes) -> TargetId | None:
        """The target token that `data` begins with, encoded by itself."""
        return next(iter(self._encode(data)), None)

    def _starting_with(self, prefix: bytes) -> Ids:
        """The draft tokens that begin with these bytes, i[n]."""
        start, end = self._order.starting_with(prefix)
        return self._ids[start:end]

    def _of(self, prefix: bytes, token: TargetId) -> Ids:
        """The draft tokens that begin with `prefix`, the last bytes of which end `token`, i[n].

        Those that would change `token` by what they add after it are left out. A special token is
        covered by its counterpart.
        """
        data = self.bytes_of(token)
        if not data:
            special = self._special.get(token)
            return _NONE if special is None or prefix else np.array([special], np.int32)
        start, end = self._order.starting_with(prefix)
        added = len(prefix)
        kept = [
            self.first(data + spelled[added:]) == token
            for spelled in self._order.spelled[start:end]
        ]
        return self._ids[start:end][np.array(kept, np.bool_)] if kept else _NONE

    def guess(self, partial: bytes, row: NDArray[Any]) -> TargetId | None:
        """The most probable next target token by the covers of one row of logits f[vocabulary].

        partial: the bytes that the draft model's next token has to begin with. Only its most
        probable tokens are looked at.
        """
        ids = self.starting_with(partial)
        if not len(ids):
            return None
        logits = row[ids]
        if len(ids) > _LOOKED_AT:
            best = np.argpartition(logits, -_LOOKED_AT)[-_LOOKED_AT:]
            ids, logits = ids[best], logits[best]
        mass: Counter[TargetId] = Counter()
        tokens = np.exp(logits.astype(np.float64) - logits.max())
        for token, probability in zip(ids.tolist(), tokens.tolist(), strict=True):
            target = self.first(self._tokens[token][len(partial) :])
            if target is not None:
                mass[target] += probability
        return max(mass, key=mass.__getitem__) if mass else None


ONE, ZERO = 0, 1
"""Sums that are always there: an empty product, and the probability of what has no cover."""
MOST_FACTORS = 4
"""Draft tokens that spell one target token; what takes more is left out."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary after a target token.

    row: of the draft's text, after which a token follows that begins with `partial`.
    at: the index of the target token before it.
    """

    row: int
    partial: bytes
    at: int


class Reading:
    """A text as the draft model reads it, and where the target's boundaries lie in it.

    ids: the draft's. boundaries: those after which a label can be learned; none where the two texts
    differ, as where special tokens are spelled.
    """

    def __init__(self, pair: Pair, text: LabelledText) -> None:
        own = [TargetId(int(i)) for i in text.ids]
        draft_text = Prompt(target=own[:1]).draft_text(pair)
        draft_text.follow(own)
        self.ids: list[DraftId] = list(draft_text.ids)
        tokens, size = pair.draft.vocabulary.tokens, len(pair.draft.vocabulary.tokens)
        self.spelled = [tokens[i] if i < size else b"" for i in self.ids]
        data, theirs = b"".join(self.spelled), pair.target.vocabulary.tokens
        spelled = [theirs[i] for i in own]
        first = next((at for at, token in enumerate(spelled) if token), 0)
        if pair.target.spec.dummy_prefix and spelled:
            spelled[first] = spelled[first].removeprefix(b" ")
        length = sum(map(len, spelled))
        self.boundaries: list[Boundary] = []
        if data.endswith(b"".join(spelled)):
            ends = accumulate(map(len, spelled), initial=len(data) - length)
            next(ends)
            self._find(list(ends), first)

    def _find(self, ends: Sequence[int], first: int) -> None:
        """ends: of the target's tokens in the bytes that the draft reads."""
        token, begin = 0, 0  # the draft token that the boundary lies in or before, its first byte
        for at, end in enumerate(ends):
            while token < len(self.ids) and begin + len(self.spelled[token]) <= end:
                begin += len(self.spelled[token])
                token += 1
            if at < first or not token:
                continue
            partial = self.spelled[token][: end - begin] if token < len(self.ids) else b""
            self.boundaries.append(Boundary(token - 1, partial, at))


def readings_of(
    pair: Pair, texts: Iterable[LabelledText]
) -> Iterator[tuple[LabelledText, Reading]]:
    """The texts that have boundaries, and how the draft model reads them."""
    readings = ((text, Reading(pair, text)) for text in texts)
    return ((text, reading) for text, reading in readings if reading.boundaries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a batch of texts teaches; n boundaries with 1 + k labels each.

    read: i32[B, L], the draft's ids, padded at their ends.
    candidates: i32[C], ascending, the draft ids that the softmax goes over; log_weights: f32[C].
        Among them are all that the texts have and all covers of labels.
    rows, columns, sums: i32[E], what is added up: the probability of candidate `columns` in row
        `rows` of all B * L, to the sum `sums`. The first two sums are one and zero. count: of sums.
    covers: i32[n, 1 + k], the sum of each label's covers. factors: i32[n, MOST_FACTORS], the sums
        whose product spells the first label. given: i32[n], the sum of what may follow at all.
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
    given: Ids
    probabilities: NDArray[np.float32]
    own: Ids


class Lessons(Shuffled[Lesson]):
    """The lessons of a training run.

    size: texts of a lesson. candidates: as of `labels.Candidates`.
    covers: whether labels are learned as sums over covers; the draft's own tokens always are.
    positions: how many boundaries are learned from.
    """

    def __init__(
        self,
        pair: Pair,
        texts: Sequence[LabelledText],
        *,
        size: int,
        vocabulary_size: int,
        candidates: int | None,
        seed: int,
        covers: bool = True,
    ) -> None:
        self._pair, self._with_covers = pair, covers
        self._texts, self.positions = list[LabelledText](), 0
        seen = np.zeros(vocabulary_size, np.int64)
        for text, reading in readings_of(pair, texts):  # a text is read again where it is used:
            self._texts.append(text)  # boundaries of millions of tokens would fill the memory
            self.positions += len(reading.boundaries)
            seen += np.bincount(reading.ids, minlength=vocabulary_size)
        self._candidates = Candidates(seen, candidates)
        roles = [token for token in pair.roles() if token < vocabulary_size]
        self.covers = Covers(pair, {*map(DraftId, np.flatnonzero(seen).tolist()), *roles})
        super().__init__(len(self._texts), size, seed)

    def __getitem__(self, number: int) -> Lesson:
        sums = _Sums(self.covers)
        texts = [*readings_of(self._pair, [self._texts[i] for i in self.part(number)])]
        length = max(len(reading.ids) for _, reading in texts)
        read = np.full((len(texts), length), texts[0][1].ids[0], np.int32)
        for line, (text, reading) in enumerate(texts):
            read[line, : len(reading.ids)] = reading.ids
            sums.add(text, reading, line * length, covers=self._with_covers)
        return sums.finish(read, self._candidates, (self._seed, 1, number))


class _Sums:
    """Gathers what a lesson adds up."""

    def __init__(self, covers: Covers) -> None:
        self._covers = covers
        self._known: dict[Any, int] = {}
        self._needed: dict[int, Ids] = {}
        self._rows: list[Ids] = []
        self._tokens: list[Ids] = []
        self._sizes: list[int] = []
        self._slots: list[list[int]] = []
        self._factors: list[list[int]] = []
        self._given: list[int] = []
        self._probabilities: list[NDArray[Any]] = []
        self._own: list[NDArray[Any]] = []

    def add(self, text: LabelledText, reading: Reading, offset: int, *, covers: bool) -> None:
        """Take in a text whose rows begin at `offset`."""
        length, spelled = len(reading.ids) - 1, self._covers.bytes_of
        self._own.append(np.stack([np.arange(length) + offset, np.array(reading.ids[1:])]))
        for one in reading.boundaries if covers else ():
            labels = [TargetId(int(i)) for i in text.labels[one.at]]
            if labels[0] == NO_LABEL:
                continue
            row, begun = offset + one.row, one.partial
            slots = [self._cover(row, begun + spelled(label), label) for label in labels]
            follows = one.at + 1 < len(text.ids) and text.ids[one.at + 1] == labels[0]
            factors = self._spelling(reading, one, labels[0], offset) if follows else None
            if slots[0] == ZERO and factors is None:
                continue  # the draft model cannot say it
            self._slots.append(slots)
            self._factors.append((factors or [ZERO]) + [ONE] * (MOST_FACTORS - len(factors or "1")))
            # Of what may follow at all, those that were drawn tell the sum.
            allowed = self._covers.starting_with(begun)
            self._given.append(self._sum(row, allowed) if begun else ONE)
            self._probabilities.append(text.probabilities[one.at])

    def _spelling(
        self, reading: Reading, one: Boundary, label: TargetId, offset: int
    ) -> list[int] | None:
        """The sums whose product spells the text's next token in several draft tokens, if it is."""
        left, row, factors = one.partial + self._covers.bytes_of(label), one.row, list[int]()
        while row + 1 < len(reading.ids) and len(factors) < MOST_FACTORS:
            token, spelled = reading.ids[row + 1], reading.spelled[row + 1]
            if not spelled or len(spelled) >= len(left) or not left.startswith(spelled):
                break
            factors.append(self._sum(offset + row, np.array([token], np.int32)))
            left, row = left[len(spelled) :], row + 1
        if not factors or len(factors) == MOST_FACTORS:
            return None
        last = self._cover(offset + row, left, label)
        return None if last == ZERO else [*factors, last]

    def _cover(self, row: int, data: bytes, label: TargetId) -> int:
        """The number of the sum of a label's covers, which begin with these bytes."""
        tokens = self._covers.of(data, label)
        self._needed[id(tokens)] = tokens
        return self._sum(row, tokens)

    def _sum(self, row: int, tokens: Ids) -> int:
        """The number of the sum of these tokens' probabilities in a row."""
        if not len(tokens):
            return ZERO
        # `_tokens` keeps every array alive, so no other one gets its identity.
        key = row, id(tokens) if len(tokens) > 1 else -int(tokens[0])
        if key not in self._known:
            self._known[key] = len(self._sizes) + 2
            self._sizes.append(len(tokens))
            self._rows.append(np.full(len(tokens), row, np.int32))
            self._tokens.append(tokens)
        return self._known[key]

    def finish(self, read: Ids, drawn_from: Candidates, seed: tuple[int, ...]) -> Lesson:
        """The lesson of all texts taken in."""
        needed = np.concatenate([read.reshape(-1), *self._needed.values()])
        candidates, log_weights = drawn_from.draw(needed, seed)
        own = np.concatenate(self._own, axis=1).astype(np.int32)
        own[1] = np.searchsorted(candidates, own[1])
        tokens = np.concatenate([*self._tokens, _NONE])
        drawn = np.isin(tokens, candidates)
        sums = np.repeat(np.arange(len(self._sizes), dtype=np.int32) + 2, self._sizes)
        return Lesson(
            read=read,
            candidates=candidates,
            log_weights=log_weights,
            rows=np.concatenate([*self._rows, _NONE])[drawn],
            columns=np.searchsorted(candidates, tokens[drawn]).astype(np.int32),
            sums=sums[drawn],
            count=len(self._sizes) + 2,
            covers=np.array(self._slots, np.int32),
            factors=np.array(self._factors, np.int32),
            given=np.array(self._given, np.int32),
            probabilities=np.array(self._probabilities, np.float32),
            own=own,
        )
