"""How well two tokenizers fit together, counted on a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.alignment import NO_TOKEN, Intersection
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

Counts = NDArray[np.int64]
"""How often each id of a vocabulary occurs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Counts over a text, encoded by both tokenizers; shares are in [0, 1].

    draft_token_coverage, target_token_coverage: share of the draft's, the target's tokens of the
        text that are in the intersection.
    byte_coverage: share of the text's bytes that such target tokens cover.
    draft_fertility, target_fertility: tokens per word, words being separated by white space.
    boundaries_inside_draft_tokens: share of the target's boundaries within a line that fall inside
        a token of the draft's canonical encoding.
    """

    draft_tokens: int
    target_tokens: int
    text_bytes: int
    words: int
    draft_token_coverage: float
    target_token_coverage: float
    byte_coverage: float
    draft_fertility: float
    target_fertility: float
    boundaries_inside_draft_tokens: float


def measure_coverage(
    draft: Tokenizer[DraftId],
    target: Tokenizer[TargetId],
    intersection: Intersection,
    lines: Iterable[str],
) -> Coverage:
    """Encode `lines` with both tokenizers and count. Cost: 1 s per megabyte."""
    drafted = np.zeros(len(draft.vocabulary), dtype=np.int64)
    targeted = np.zeros(len(target.vocabulary), dtype=np.int64)
    words = text_bytes = inside = boundaries = 0
    for batch in _batches(lines):
        draft_ids, target_ids = draft.encode_batch(batch), target.encode_batch(batch)
        drafted += _count(draft_ids, len(drafted))
        targeted += _count(target_ids, len(targeted))
        words += sum(len(line.split()) for line in batch)
        text_bytes += sum(len(line.encode()) for line in batch)
        for ours, theirs in zip(draft_ids, target_ids, strict=True):
            draft_ends, target_ends = _ends(draft, ours), _ends(target, theirs)
            boundaries += len(target_ends)
            inside += len(target_ends - draft_ends)

    draft_mapped = intersection.draft_to_target != NO_TOKEN
    target_mapped = intersection.target_to_draft != NO_TOKEN
    target_lengths = np.array([len(token) for token in target.vocabulary.tokens])
    target_bytes = int(targeted @ target_lengths)
    return Coverage(
        draft_tokens=int(drafted.sum()),
        target_tokens=int(targeted.sum()),
        text_bytes=text_bytes,
        words=words,
        draft_token_coverage=_share(drafted[draft_mapped].sum(), drafted.sum()),
        target_token_coverage=_share(targeted[target_mapped].sum(), targeted.sum()),
        byte_coverage=_share((targeted * target_lengths)[target_mapped].sum(), target_bytes),
        draft_fertility=_share(drafted.sum(), words),
        target_fertility=_share(targeted.sum(), words),
        boundaries_inside_draft_tokens=_share(inside, boundaries),
    )


def _share(part: int | np.integer[Any], whole: int | np.integer[Any]) -> float:
    return round(float(part) / float(whole), 4) if whole else 0.0


def _batches(lines: Iterable[str], size: int = 512) -> Iterator[list[str]]:
    iterator = iter(lines)
    while batch := list(islice(iterator, size)):
        yield batch


def _count(encoded: Iterable[Sequence[int]], size: int) -> Counts:
    ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int64)
    return np.bincount(ids, minlength=size)


def _ends(tokenizer: Tokenizer[DraftId] | Tokenizer[TargetId], ids: Sequence[int]) -> set[int]:
    """The byte positions inside a text at which a token ends."""
    tokens, prefix = tokenizer.vocabulary.tokens, int(tokenizer.spec.dummy_prefix)
    ends = [end - prefix for end in accumulate(len(tokens[i]) for i in ids)]
    return {end for end in ends[:-1] if end > 0}
