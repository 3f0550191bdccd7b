"""A back-off table: the most probable next id for the longest stored suffix of the text.

Contexts have up to 8 ids. Every suffix of a stored context is stored too. So the search begins with
the last id and takes in one more as long as that context is stored. For a longer continuation, the
answer is appended and the table asked again.

A context may have *alternatives*: its second and third most probable next id. They are stored as
the answers of contexts of their own, which begin with the id `ALTERNATIVE` once or twice. No text
has that id, so chains are not affected.

Contexts are not stored themselves, only fingerprints of 8 bits (`binary_fuse`): about one search in
256 finds a context that is not stored. That can cost a wrong guess, never a wrong output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import log
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import shown
from tokalign.tables.binary_fuse import (
    FINGERPRINT_SHIFT,
    FINGERPRINT_WIDTH,
    MULTIPLIER,
    OFFSET_SHIFTS,
    SEGMENT_SHIFT,
    SEGMENT_WIDTH,
    WORD,
    FuseShape,
)
from tokalign.tables.bundle import Bundle, array_bytes, ids_section
from tokalign.tables.dictionary import MAX_CONTEXT, SOURCE
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

KIND = "backoff"

LOG_ODDS = tuple([log((byte + 0.5) / (255.5 - byte)) for byte in range(256)])
"""The log-odds of a probability that is stored in 1/255."""

ALTERNATIVE = (1 << 32) - 1
"""An id that no vocabulary has."""

_MOST_ALTERNATIVES = 8

_SHORTER = 2
"""The most answers of shorter contexts besides those of the longest."""

_SHORTER_ODDS = tuple([0.5 * odds - 1.3 for odds in LOG_ODDS])
"""Log-odds of a shorter context's answer, by those stored, where a longer one has another answer:
a line through what ten answers of the tiny target showed."""

_, _SECOND, _THIRD = OFFSET_SHIFTS
_SEGMENT_MASK = (1 << SEGMENT_WIDTH) - 1
_FINGERPRINT = (1 << FINGERPRINT_WIDTH) - 1
_MOST_SEGMENT_BITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffParameters:
    """What the header says of a table. p_min: the least probability of a whole continuation."""

    shape: FuseShape
    max_context: int
    p_min: float
    alternatives: int

    def to_header(self) -> dict[str, Any]:
        own = asdict(self)
        return {**own.pop("shape"), **own}

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> BackoffParameters:
        shape = FuseShape(
            seed=bundle.number("seed", most=WORD),
            segment_bits=bundle.number("segment_bits", most=_MOST_SEGMENT_BITS),
            segments=bundle.number("segments", least=1, most=1 << SEGMENT_WIDTH),
        )
        return cls(
            shape=shape,
            max_context=bundle.number("max_context", most=MAX_CONTEXT),
            p_min=bundle.number("p_min", most=1, kind=float),
            alternatives=bundle.number("alternatives", most=_MOST_ALTERNATIVES),
        )


class BackoffTable:
    """Text -> the most probable next id and its probability, by the longest stored suffix.

    entries: the number of stored contexts. fingerprints: u8[slots], numbers: u16[slots]: two planes
    of a binary fuse map; a context's number is the index of its prediction. ids: u16 or
    u32[predictions], probabilities: u8[predictions], in 1/255: the predictions.
    """

    def __init__(
        self,
        parameters: BackoffParameters,
        *,
        entries: int,
        fingerprints: NDArray[np.uint8],
        numbers: NDArray[np.uint16],
        ids: NDArray[Any],
        probabilities: NDArray[np.uint8],
    ) -> None:
        self.parameters = parameters
        self._entries = entries
        # Both planes side by side, as a search waits for each place of cold memory. A memoryview
        # gives plain ints, several times faster than an array.
        slots = (numbers.astype(np.uint32) << FINGERPRINT_WIDTH | fingerprints).data
        self._ids = cast("Sequence[TargetId]", ids.data)
        self._probabilities = probabilities.data
        shape = parameters.shape
        self._start, self._alternatives = shape.start, (ALTERNATIVE,) * parameters.alternatives
        # Everything a search needs, so that it reads one attribute only.
        self._shape = (
            shape.segments,
            shape.segment_bits,
            1 << shape.segment_bits,
            (1 << shape.segment_bits) - 1,
            slots,
        )

    def __len__(self) -> int:
        return self._entries

    @property
    def predictions(self) -> int:
        """The number of different pairs of an id and a probability."""
        return len(self._ids)

    @cached_property
    def known_ids(self) -> NDArray[np.uint32]:
        """See `Dictionary`."""
        return np.unique(np.asarray(self._ids)).astype(np.uint32)

    @property
    def arrays(self) -> tuple[NDArray[np.uint32], NDArray[Any], NDArray[np.uint8]]:
        """Slots (numbers above the 8 bits of fingerprints), ids and probabilities, in place."""
        slots = self._shape[-1]
        return np.asarray(slots), np.asarray(self._ids), np.asarray(self._probabilities)

    def predict(self, suffix: Sequence[TargetId]) -> tuple[TargetId, float] | None:
        """The most probable next id and its probability; None if no suffix is stored. Cost: about
        0.7 µs for each id of the longest stored suffix and for one more."""
        _, stored = self._search(suffix)
        if not stored or stored[-1] >= len(self._ids):
            return None
        return self._ids[stored[-1]], self._probabilities[stored[-1]] / 255

    def match_length(self, suffix: Sequence[TargetId]) -> int:
        return len(self._search(suffix)[1])

    def _search(self, suffix: Sequence[TargetId]) -> tuple[int, list[int]]:
        """For every stored suffix, the shortest first, as `_follow`; they have 1, 2, ... ids."""
        return self._follow(self._start, suffix[: -self.parameters.max_context - 1 : -1])

    def _follow(self, last: int, ids: Sequence[int]) -> tuple[int, list[int]]:
        """The keys that begin with the hash `last` and go on with 1, 2, ... ids, up to the first
        that is not stored: the hash of the last one, and of each the number of its prediction.

        A key whose fingerprint is right by chance may have a larger number than there are.
        """
        segments, bits, size, mask, slots = self._shape
        stored: list[int] = []
        for token in ids:
            state = (last ^ token) * MULTIPLIER & WORD
            state ^= state >> 32
            start = (state >> SEGMENT_SHIFT & _SEGMENT_MASK) * segments >> SEGMENT_WIDTH << bits
            first = start + (state & mask)
            second = start + size + (state >> _SECOND & mask)
            third = start + size + size + (state >> _THIRD & mask)
            value = slots[first] ^ slots[second] ^ slots[third]
            if value & _FINGERPRINT != state >> FINGERPRINT_SHIFT:
                break
            stored.append(value >> FINGERPRINT_WIDTH)
            last = state
        return last, stored

    def expected(self, suffix: Sequence[TargetId]) -> Sequence[tuple[TargetId, float]]:
        """See `Dictionary`. First the answers of the longest stored suffix. Cost: as `predict`, 0.7
        µs for each alternative and 0.4 µs for each shorter suffix."""
        last, stored = self._search(suffix)
        if not stored:
            return ()
        ids, probabilities, count = self._ids, self._probabilities, len(self._ids)
        answers: dict[TargetId, float] = {}
        longest = stored.pop()
        for number in (longest, *self._follow(last, self._alternatives)[1]):
            if number >= count or (token := ids[number]) in answers:
                break
            answers[token] = LOG_ODDS[probabilities[number]]
        most = len(answers) + _SHORTER
        while stored and len(answers) < most:
            number = stored.pop()
            if number < count and (token := ids[number]) not in answers:
                answers[token] = _SHORTER_ODDS[probabilities[number]]
        return [*answers.items()]

    def follow(self, suffix: Sequence[TargetId], limit: int) -> TokenTree[TargetId]:
        """Predictions one after another while their product is at least the table's `p_min`."""
        text = list(suffix[-self.parameters.max_context :])
        known = len(text)
        probabilities: list[float] = []
        together = 1.0
        while len(probabilities) < limit and (predicted := self.predict(text)):
            token, probability = predicted
            together *= probability
            if together < self.parameters.p_min:
                break
            text.append(token)
            probabilities.append(probability)
        return TokenTree.chain(text[known:], SOURCE, probabilities)

    def to_sections(self) -> dict[str, bytes]:
        slots, ids, probabilities = self.arrays
        return {
            "backoff.fingerprints": array_bytes(slots.astype(np.uint8)),
            "backoff.numbers": array_bytes((slots >> FINGERPRINT_WIDTH).astype(np.uint16)),
            "backoff.predictions.probabilities": array_bytes(probabilities),
        } | ids_section("backoff.predictions.ids", ids)

    @classmethod
    def from_bundle(cls, bundle: Bundle, vocabulary_size: int | None = None) -> BackoffTable:
        """The table in a bundle, every id of which is checked. Raises: BundleError."""
        if (kind := bundle.parameters.get("kind")) != KIND:
            raise bundle.wrong(f"the dictionary is of kind {shown(kind)}, not {KIND!r}")
        parameters = BackoffParameters.from_bundle(bundle)
        slots = parameters.shape.slots
        ids = bundle.ids("backoff.predictions.ids", bundle.vocabulary_size(vocabulary_size))
        return cls(
            parameters,
            entries=bundle.number("entries", most=slots),
            fingerprints=bundle.array("backoff.fingerprints", "u1", length=slots),
            numbers=bundle.array("backoff.numbers", "<u2", length=slots),
            ids=ids,
            probabilities=bundle.array("backoff.predictions.probabilities", "u1", length=len(ids)),
        )
