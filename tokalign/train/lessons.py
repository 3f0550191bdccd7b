"""Texts and labels as a draft model is taught by them: all boundaries of a text in one pass.

The draft model reads its own canonical encoding of a text. At every boundary of the target's tokens
one of its rows says how probable each next target token is: the row at the boundary, or, where the
boundary lies within a draft token, the row before that token, given the bytes read already. So one
pass gives the marginals that `exact` computes with a pass for each boundary.

A target token that no single draft token covers is spelled by several. If it is the text's own next
token, the product of their probabilities counts as well, the last of them again as a sum of covers.
Encodings of the same bytes that are not canonical are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.chat import Prompt
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.bpe.encoder import TokenOrder
from tokalign.tokenizer.vocabulary import DraftId, TargetId, token_bytes
from tokalign.train.labels import NO_LABEL, Candidates, Labels, Shuffled

Ids = NDArray[np.int32]

_NONE: Ids = np.zeros(0, np.int32)
_LOOKED_AT = 16


class Covers:
    """Covers of target tokens among some of a draft's tokens: which of these begin with them.

    At a boundary of the target's text the draft model has read its own tokens up to there, or up to
    a few bytes before. The probability of a next target token is that of all draft tokens which
    continue those bytes with it, if the target would really encode their text so.

    chosen: their ids; those that occur in such texts are enough. A letter begins thousands of
    tokens, most of them of other languages.

    Example (Llama 3 drafts for Bielik; the bytes read already are ` k`): of the tokens that begin
    with ` kom`, ` kom` and ` komp` cover Bielik's `om`; ` komet` does not, as `omet` is `omet`
    to Bielik, one token.
    """

    def __init__(self, pair: Pair, chosen: Iterable[DraftId]) -> None:
        self._tokens = tokens = pair.draft.vocabulary.tokens
        self._order = TokenOrder.of(tokens, [token for token in chosen if tokens[token]])
        self._ids = np.array(self._order.ids, np.int32)
        self.bytes_of = partial(token_bytes, pair.target.vocabulary.tokens)
        self._encode = pair.target.encoder.encode
        self._special = {target: draft for draft, target in pair.roles().items()}
        self.first = lru_cache(maxsize=1 << 18)(self._first)
        self.of = lru_cache(maxsize=1 << 16)(self._of)
        self.starting_with = lru_cache(maxsize=1 << 14)(self._starting_with)

    def _first(self, data: bytes) -> TargetId | None:
        """The target token that `data` begins with, encoded by itself."""
        return next(iter(self._encode(data)), None)

    def _starting_with(self, prefix: bytes) -> Ids:
        """The draft tokens that begin with these bytes, i[n]."""
        start, end = self._order.starting_with(prefix)
        return self._ids[start:end]

    def _of(self, prefix: bytes, token: TargetId) -> Ids:
        """The draft tokens that begin with `prefix`, the last bytes of which end `token`, i[n].

        Tokens whose further bytes would change `token` are left out. A special token is covered by
        its counterpart.
        """
        data = self.bytes_of(token)
        if not data:
            special = self._special.get(token)
            return _NONE if special is None or prefix else np.array([special], np.int32)
        start, end = self._order.starting_with(prefix)
        added, spelled = len(prefix), self._order.spelled[start:end]
        kept = [self.first(data + spelling[added:]) == token for spelling in spelled]
        return self._ids[start:end][np.array(kept, np.bool_)]

    def guess(self, partial: bytes, row: NDArray[Any]) -> TargetId | None:
        """The most probable next target token by one row of logits f[vocabulary].

        partial: bytes with which the draft's next token begins. Only the most probable draft tokens
        are looked at.
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
"""Sums that are always there."""
MOST_FACTORS = 4
"""Draft tokens that spell one target token; what takes more is left out."""


@dataclass(frozen=True, slots=True)
class TaughtBoundary:
    """A boundary after the target token of index `at`.

    row: of the draft's text, after which a token follows that begins with `partial`.
    """

    row: int
    partial: bytes
    at: int


class DraftReading:
    """A text as the draft model reads it, and where the target's boundaries lie in it.

    labels: of the text. ids, spelled: the draft's tokens. boundaries: those after which a label can
    be learned; none if the two texts differ, for example in how special tokens are spelled.
    """

    def __init__(self, pair: Pair, labels: Labels) -> None:
        self.labels, own = labels, [TargetId(int(i)) for i in labels.ids[:, 0]]
        draft_text = Prompt(target=own[:1]).draft_text(pair)
        draft_text.follow(own)
        self.ids: list[DraftId] = list(draft_text.ids)
        ours, theirs = pair.draft.vocabulary.tokens, pair.target.vocabulary.tokens
        self.spelled = [token_bytes(ours, i) for i in self.ids]
        self.boundaries: list[TaughtBoundary] = []
        spelled = [theirs[i] for i in own]
        first = next((at for at, token in enumerate(spelled) if token), 0)
        if pair.target.spec.dummy_prefix and spelled:
            spelled[first] = spelled[first].removeprefix(b" ")
        data, read = b"".join(spelled), b"".join(self.spelled)
        if not read.endswith(data):
            return
        token, begin = 0, 0  # the draft token that the boundary lies in or before, its first byte
        ends = accumulate(map(len, spelled), initial=len(read) - len(data))
        for at, end in enumerate(islice(ends, 1, None)):
            while token < len(self.ids) and begin + len(self.spelled[token]) <= end:
                begin += len(self.spelled[token])
                token += 1
            if at >= first and token:
                partial = self.spelled[token][: end - begin] if token < len(self.ids) else b""
                self.boundaries.append(TaughtBoundary(token - 1, partial, at))


def readings_of(pair: Pair, texts: Iterable[Labels]) -> Iterator[DraftReading]:
    """How the draft model reads texts, of those that have boundaries."""
    readings = (DraftReading(pair, text) for text in texts)
    return (reading for reading in readings if reading.boundaries)


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

    size: texts of a lesson. candidates: as of `labels.Candidates`.
    covers: whether labels are learned as sums over covers; the draft's own tokens always are.
    positions: how many boundaries are learned from.
    """

    def __init__(
        self,
        pair: Pair,
        texts: Sequence[Labels],
        *,
        size: int,
        vocabulary_size: int,
        candidates: int | None,
        seed: int,
        covers: bool = True,
    ) -> None:
        self._pair, self._with_covers = pair, covers
        self._texts, self.positions = list[Labels](), 0
        seen = np.zeros(vocabulary_size, np.int64)
        for reading in readings_of(pair, texts):  # a text is read again where it is used:
            self._texts.append(reading.labels)  # boundaries of millions of tokens fill a memory
            self.positions += len(reading.boundaries)
            seen += np.bincount(reading.ids, minlength=vocabulary_size)
        self._candidates = Candidates(seen, candidates)
        roles = [token for token in pair.roles() if token < vocabulary_size]
        self.covers = Covers(pair, {*map(DraftId, np.flatnonzero(seen).tolist()), *roles})
        super().__init__(len(self._texts), size, seed)

    def __getitem__(self, number: int) -> Lesson:
        sums = _Sums(self.covers)
        readings = [*readings_of(self._pair, [self._texts[i] for i in self.part(number)])]
        length = max(len(reading.ids) for reading in readings)
        read = np.full((len(readings), length), readings[0].ids[0], np.int32)
        for line, reading in enumerate(readings):
            read[line, : len(reading.ids)] = reading.ids
            sums.add(reading, line * length, covers=self._with_covers)
        return sums.finish(read, self._candidates, (self._seed, 1, number))


class _Sums:
    """Gathers what a lesson adds up."""

    def __init__(self, covers: Covers) -> None:
        self._covers = covers
        self._known: dict[tuple[int, int], int] = {}
        self._terms: list[tuple[int, Ids]] = []  # the row and the tokens of each sum
        self._needed: dict[int, Ids] = {}
        self._learned: list[tuple[list[int], list[int], int, NDArray[np.float16]]] = []
        self._own: list[NDArray[Any]] = []

    def add(self, reading: DraftReading, offset: int, *, covers: bool) -> None:
        """Take in a text whose rows begin at `offset`."""
        length, spelled = len(reading.ids) - 1, self._covers.bytes_of
        text, probabilities = reading.labels.ids[:, 0], reading.labels.values
        self._own.append(np.stack([np.arange(length) + offset, np.array(reading.ids[1:])]))
        for boundary in reading.boundaries if covers else ():
            labels = [TargetId(int(i)) for i in reading.labels.ids[boundary.at, 1:]]
            if labels[0] == NO_LABEL:
                continue
            row, begun, after = offset + boundary.row, boundary.partial, boundary.at + 1
            slots = [self._cover(row, begun + spelled(label), label) for label in labels]
            follows = after < len(text) and text[after] == labels[0]
            factors = self._spelling(reading, boundary, labels[0], offset) if follows else []
            if slots[0] == ZERO and not factors:
                continue  # the draft model cannot say it
            factors = factors or [ZERO]
            factors += [ONE] * (MOST_FACTORS - len(factors))
            # Among the tokens that may follow at all, those that were drawn tell the sum.
            allowed = self._sum(row, self._covers.starting_with(begun)) if begun else ONE
            self._learned.append((slots, factors, allowed, probabilities[boundary.at]))

    def _spelling(
        self, reading: DraftReading, boundary: TaughtBoundary, label: TargetId, offset: int
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
        tokens = np.concatenate([*(tokens for _, tokens in self._terms), _NONE])
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
