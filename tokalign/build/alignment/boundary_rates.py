"""How often the boundary matters to a pair, counted where the target's tokens end in a text.

Two things make drafting harder at a boundary. Some draft tokens are ruled out, because the target
would have merged them into its last token. And more text may change the last tokens of the draft's
own encoding, which then have to be healed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from random import Random

from tokalign.bpe.incremental import IncrementalEncoder
from tokalign.tables.absorption import Absorption
from tokalign.tables.alignment import MergeSites
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_TEXT_LENGTH = 8_000
"""About how many characters of text are looked at."""

_LONG_WORD = re.compile(r"(\S{500})\S+|(\s{500})\s+")

_BOUNDARIES = 300
_TOKENS = 130
"""At how many boundaries how many draft tokens are tried, both drawn with a fixed seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryRates:
    """Rates over the boundaries of a text; shares are in [0, 1].

    boundaries: how many were looked at, evenly over the text.
    merge_site_boundaries: share of boundaries at which a draft token is ruled out (130 are tried).
    draft_tokens_ruled_out: how many tokens of the draft's vocabulary are ruled out on average,
        estimated from the same trials.
    unstable_boundaries: share of boundaries at which more text may change the last tokens of the
        draft's encoding.
    unstable_tokens: how many tokens it may change, on average over all boundaries.
    healed_boundaries: share of boundaries at which the rest of the text does change them.
    tokens_taken_back: how many tokens it changes, on average over the healed boundaries.
    """

    boundaries: int
    merge_site_boundaries: float
    draft_tokens_ruled_out: float
    unstable_boundaries: float
    unstable_tokens: float
    healed_boundaries: float
    tokens_taken_back: float


@dataclass(frozen=True, slots=True)
class _Boundary:
    """One boundary.

    left: the target's text up to it, from the last settled piece on. last: the token it ends with.
    unstable: how many of the draft's last tokens more text may change.
    changed: how many of them the rest of the line does change.
    """

    left: bytes
    last: TargetId
    unstable: int
    changed: int


def measure_boundaries(
    draft: Tokenizer[DraftId],
    target: Tokenizer[TargetId],
    lines: Iterable[str],
    merge_sites: MergeSites | None = None,
) -> BoundaryRates:
    """Measure the boundaries of the target's tokens in `lines`. Cost: 1-2 s.

    merge_sites: the target's table; it saves time and does not change the result.
    """
    found = [b for line in _some(list(lines)) for b in _boundaries(draft, target, line)]
    absorption, draw = Absorption(target.bpe, merge_sites), Random(0)
    ruled_out = [
        _count_ruled_out(absorption, boundary, draw.choices(draft.bpe.order.spelled, k=_TOKENS))
        for boundary in draw.sample(found, min(len(found), _BOUNDARIES))
    ]
    healed = [boundary.changed for boundary in found if boundary.changed]
    in_vocabulary = len(draft.bpe.order.ids) / _TOKENS
    return BoundaryRates(
        boundaries=len(found),
        merge_site_boundaries=_mean([count > 0 for count in ruled_out]),
        draft_tokens_ruled_out=round(_mean(ruled_out) * in_vocabulary),
        unstable_boundaries=_mean([boundary.unstable > 0 for boundary in found]),
        unstable_tokens=_mean([boundary.unstable for boundary in found]),
        healed_boundaries=_mean([boundary.changed > 0 for boundary in found]),
        tokens_taken_back=_mean(healed),
    )


def _some(lines: Sequence[str]) -> Sequence[str]:
    """Every n-th line, together about `_TEXT_LENGTH` long.

    Of a longer line only the beginning is taken, and of a long word or gap too: the time grows with
    the square of their lengths.
    """
    some = lines[:: max(1, -(-sum(map(len, lines)) // _TEXT_LENGTH))]
    return [_LONG_WORD.sub(r"\1\2", line[:_TEXT_LENGTH]) for line in some]


def _boundaries(
    draft: Tokenizer[DraftId], target: Tokenizer[TargetId], line: str
) -> Iterator[_Boundary]:
    """The boundary after each of the target's tokens but the last."""
    spelled = target.vocabulary.tokens
    text, ahead = IncrementalEncoder(target.bpe), IncrementalEncoder(draft.bpe)
    whole = draft.encode(line)
    ids = target.encode(line)
    data = draft.text_bytes(line)
    # From positions in the target's text to the draft's: only one may begin with a dummy prefix.
    shift = int(draft.spec.dummy_prefix) - int(target.spec.dummy_prefix)
    ends = [end + shift for end in accumulate(len(spelled[i]) for i in ids)]
    for last, end in zip(ids[:-1], ends, strict=False):
        text.push(spelled[last])
        if end > len(ahead.text):
            ahead.push(data[len(ahead.text) : end])
            stable = ahead.stable
            same = takewhile(_equal, zip(ahead.ids[stable:], whole[stable:], strict=False))
            unstable = len(ahead.ids) - stable
            yield _Boundary(
                left=b"".join([spelled[i] for i in text.ids[text.settled :]]),
                last=last,
                unstable=unstable,
                changed=unstable - sum(1 for _ in same),
            )


def _equal(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


def _count_ruled_out(absorption: Absorption, at: _Boundary, tokens: Iterable[bytes]) -> int:
    return sum(absorption.absorbs(at.left, at.last, token) for token in tokens)


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0
