"""The tables of a (draft, target) pair, and how well two tokenizers fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.build.compile_pack import encode_words
from tokalign.build.corpus import Stage, batches, silent
from tokalign.build.merge_sites import find_merge_sites
from tokalign.tables.alignment import NO_TOKEN, Alignment, HealingTrie, Intersection
from tokalign.tables.bundle import Bundle, read_bundle
from tokalign.tables.pack import word_probabilities
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, Id, TargetId, Vocabulary

_BATCH = 1 << 17  # characters; encoding takes 200 bytes for each

_COVERED = 0.985
"""The share of a language's text that is made of the ids that are told. Of Llama 3.2's 128,256,
49,512 have this share in each of seven packs; texts in these languages have up to 6 % of others,
German, French and Hungarian ones 17 to 33."""


def align(draft: Vocabulary[DraftId], target: Vocabulary[TargetId]) -> Alignment:
    """The intersection of a pair, without merge sites. Cost: 0.2 s."""
    return Alignment(intersect(draft, target), HealingTrie(draft.tokens))


def build_alignment(
    draft: Tokenizer[DraftId],
    target: Tokenizer[TargetId],
    *,
    packs: Mapping[str, Path] = MappingProxyType({}),
    stage: Stage = silent,
) -> Bundle:
    """All tables of a pair: intersection, merge sites of the target, and the ids that the draft
    needs in the languages of these packs, by language. Raises: BundleError for what is no pack."""
    with stage(len(target.vocabulary), "Aligning the vocabularies") as advance:
        alignment = replace(
            align(draft.vocabulary, target.vocabulary),
            merge_sites=find_merge_sites(target, progress=advance),
        )
    if packs:
        alignment = replace(alignment, frequent=frequent_ids(draft, packs.values(), stage=stage))
    return Bundle(
        kind="alignment",
        fingerprints={"draft": draft.fingerprint, "target": target.fingerprint},
        parameters={"packs": sorted(packs)},
        statistics={
            "intersection_pairs": alignment.intersection.pairs,
            "merge_sites": len(alignment.merge_sites or ()),
            "frequent_ids": 0 if alignment.frequent is None else len(alignment.frequent),
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


def _map_ids(source: Vocabulary[Any], onto: Vocabulary[Any]) -> NDArray[np.int32]:
    """For each id of `source` the id of `onto` with the same bytes; NO_TOKEN if there is none."""
    ids = onto.id_of
    return np.array([ids.get(token, NO_TOKEN) for token in source.tokens], dtype=np.int32)


def frequent_ids(
    tokenizer: Tokenizer[Id], packs: Iterable[Path], *, stage: Stage = silent
) -> NDArray[np.uint32]:
    """The ids u32[n], in their order, that the languages of these packs need most, those of single
    bytes and those with a role. Raises: BundleError. Cost: 1 s a pack."""
    vocabulary, packs = tokenizer.vocabulary, list(packs)
    frequent = np.array([len(token) == 1 for token in vocabulary.tokens])
    roles = vocabulary.roles
    for token in (*roles.eos, roles.bos, roles.turn_start, roles.turn_end):
        if token is not None:
            frequent[token] = True
    with stage(len(packs), "Counting the draft's ids") as advance:
        for pack in packs:
            shares = _shares(tokenizer, word_probabilities(read_bundle(pack)))
            order = np.argsort(-shares, kind="stable")
            reached = np.cumsum(shares[order])
            frequent[order[: 1 + np.searchsorted(reached, _COVERED * reached[-1])]] = True
            advance(1)
    return np.flatnonzero(frequent).astype(np.uint32)


def _shares(tokenizer: Tokenizer[Id], words: dict[str, float]) -> NDArray[np.float64]:
    """How often each id stands in a text of these words, f64[vocabulary]."""
    encoded, size = encode_words(tokenizer, [*words]), len(tokenizer.vocabulary)
    weights = np.repeat(np.array([*words.values()]), encoded.lengths)
    return np.bincount(encoded.ids, weights, size)[:size].astype(np.float64)  # without gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Counts over a text, encoded by both tokenizers. `docs/metrics.md` defines the shares.
    Fertility is tokens per word, words being separated by white space."""

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
