"""Everything one (draft, target) pair needs, as one bundle, and how well the two fit together.

The fit is counted on a text. `Coverage` counts what they share. `BoundaryRates` counts, where the
target's tokens end, what makes drafting harder there. Some draft tokens are ruled out, because the
target would have merged them into its last token. And more text may change the last tokens of the
draft's own encoding, which then have to be healed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, takewhile
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.build.corpus import Stage, batches, silent
from tokalign.build.merge_sites import find_merge_sites
from tokalign.tables.alignment import NO_TOKEN, Alignment, HealingTrie, Intersection, MergeSites
from tokalign.tables.bundle import Bundle
from tokalign.tokenizer.bpe.absorption import Absorption
from tokalign.tokenizer.bpe.encoder import IncrementalEncoder
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId, Vocabulary

_TEXT_LENGTH = 8_000
"""About how many characters of text are looked at."""

_BATCH = 1 << 17  # characters; encoding takes 200 bytes for each

_LONG_WORD = re.compile(r"(\S{500})\S+|(\s{500})\s+")

_BOUNDARIES = 300
_TOKENS = 130
"""At how many boundaries how many draft tokens are tried, both drawn with a fixed seed."""


def align(draft: Vocabulary[DraftId], target: Vocabulary[TargetId]) -> Alignment:
    """The intersection of a pair, without merge sites. Cost: 0.2 s."""
    return Alignment(intersect(draft, target), HealingTrie(draft.tokens))


def build_alignment(
    draft: Tokenizer[DraftId], target: Tokenizer[TargetId], *, stage: Stage = silent
) -> Bundle:
    """All tables of a pair: intersection, and merge sites of the target."""
    with stage(len(target.vocabulary), "Aligning the vocabularies") as advance:
        alignment = replace(
            align(draft.vocabulary, target.vocabulary),
            merge_sites=find_merge_sites(target, progress=advance),
        )
    return Bundle(
        kind="alignment",
        fingerprints={"draft": draft.fingerprint, "target": target.fingerprint},
        statistics={
            "intersection_pairs": alignment.intersection.pairs,
            "merge_sites": len(alignment.merge_sites or ()),
        },
        sections=alignment.to_sections(),
    )


def intersect(draft: Vocabulary[DraftId], target: Vocabulary[TargetId]) -> Intersection:
    """Match the ordinary tokens of two vocabularies by their bytes.

    Example: Mistral's token `ą` is the bytes C4 85, and Llama has a token of the same bytes. The
    token-level intersections of Transformers and vLLM match *strings*. They pair `ą` with Llama's
    token of the byte 05, which the byte-level alphabet happens to write as `ą`.
    Cost: O(size of both vocabularies).
    """
    return Intersection(_map_ids(draft, target), _map_ids(target, draft))


def _map_ids(
    source: Vocabulary[DraftId] | Vocabulary[TargetId],
    onto: Vocabulary[DraftId] | Vocabulary[TargetId],
) -> NDArray[np.int32]:
    """For each id of `source` the id of `onto` with the same bytes; NO_TOKEN if there is none."""
    ids = onto.id_of
    return np.array([ids.get(token, NO_TOKEN) for token in source.tokens], dtype=np.int32)


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
    for batch in batches(lines, _BATCH):
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


def _count(encoded: Iterable[Sequence[int]], size: int) -> NDArray[np.int64]:
    ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int64)
    return np.bincount(ids, minlength=size)


def _ends(tokenizer: Tokenizer[DraftId] | Tokenizer[TargetId], ids: Sequence[int]) -> set[int]:
    """The byte positions inside a text at which a token ends."""
    tokens, prefix = tokenizer.vocabulary.tokens, int(tokenizer.spec.dummy_prefix)
    ends = [end - prefix for end in accumulate(len(tokens[i]) for i in ids)]
    return {end for end in ends[:-1] if end > 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryRates:
    """Rates over the boundaries of a text; shares are in [0, 1].

    boundaries: how many were looked at, evenly over the text.
    merge_site_boundaries: share of boundaries at which a draft token is ruled out (130 are tried).
    draft_tokens_ruled_out: how many tokens of the draft's vocabulary are ruled out on average,
        estimated from the same trials.
    healed_boundaries: share of boundaries at which the rest of the text changes the last tokens of
        the draft's encoding.
    tokens_taken_back: how many tokens it changes, on average over the healed boundaries.
    """

    boundaries: int
    merge_site_boundaries: float
    draft_tokens_ruled_out: float
    healed_boundaries: float
    tokens_taken_back: float


@dataclass(frozen=True, slots=True)
class _Boundary:
    """One boundary.

    left: the target's text up to it, from the last settled piece on. last: the token it ends with.
    changed: how many of the draft's last tokens the rest of the line changes.
    """

    left: bytes
    last: TargetId
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
    absorbs, draw = _absorbs(target, merge_sites), Random(0)
    tokens = draft.encoder.order.spelled
    ruled_out = [
        sum(absorbs(at.left, at.last, t) for t in draw.choices(tokens, k=_TOKENS))
        for at in draw.sample(found, min(len(found), _BOUNDARIES))
    ]
    healed = [boundary.changed for boundary in found if boundary.changed]
    in_vocabulary = len(tokens) / _TOKENS
    return BoundaryRates(
        boundaries=len(found),
        merge_site_boundaries=_mean([count > 0 for count in ruled_out]),
        draft_tokens_ruled_out=round(_mean(ruled_out) * in_vocabulary),
        healed_boundaries=_mean([boundary.changed > 0 for boundary in found]),
        tokens_taken_back=_mean(healed),
    )


def _absorbs(
    target: Tokenizer[TargetId], merge_sites: MergeSites | None
) -> Callable[[bytes, TargetId, bytes], bool]:
    """Whether a text that ends with a token never goes on with these bytes.

    Where the merges are not known, encoding the text with and without these bytes decides.
    """
    if target.level is Level.ALIGNED:
        known = None if merge_sites is None else merge_sites.absorbs
        return Absorption(target.bpe, known).absorbs
    encode = target.encoder.encode

    def absorbs(left: bytes, _last: TargetId, data: bytes) -> bool:
        committed = encode(left)
        return encode(left + data)[: len(committed)] != committed

    return absorbs


def _some(lines: Sequence[str]) -> Sequence[str]:
    """Every n-th line, together about `_TEXT_LENGTH` long.

    Longer lines, words and gaps are cut, because the time grows with the square of their lengths.
    """
    some = lines[:: max(1, -(-sum(map(len, lines)) // _TEXT_LENGTH))]
    return [_LONG_WORD.sub(r"\1\2", line[:_TEXT_LENGTH]) for line in some]


def _boundaries(
    draft: Tokenizer[DraftId], target: Tokenizer[TargetId], line: str
) -> Iterator[_Boundary]:
    """The boundary after each of the target's tokens but the last."""
    spelled = target.vocabulary.tokens
    text, ahead = IncrementalEncoder(target.encoder), IncrementalEncoder(draft.encoder)
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
            pairs = zip(ahead.ids, whole, strict=False)
            kept = sum(1 for _ in takewhile(lambda two: two[0] == two[1], pairs))
            yield _Boundary(
                left=b"".join([spelled[i] for i in text.ids[text.settled :]]),
                last=last,
                changed=len(ahead.ids) - kept,
            )


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0
