"""Everything one (draft, target) pair needs, as one bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from tokalign.build.alignment.fit import measure_boundaries, measure_coverage
from tokalign.build.alignment.merge_sites import find_merge_sites
from tokalign.tables.alignment import NO_TOKEN, Alignment, HealingTrie, Intersection
from tokalign.tables.bundle import Bundle
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId, Vocabulary


def align(draft: Vocabulary[DraftId], target: Vocabulary[TargetId]) -> Alignment:
    """The intersection and the healing trie of a pair, without merge sites. Cost: 0.5 s."""
    return Alignment(intersect(draft, target), HealingTrie.of(draft.tokens))


def build_alignment(
    draft: Tokenizer[DraftId],
    target: Tokenizer[TargetId],
    lines: Iterable[str],
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Bundle:
    """All tables of a pair: intersection, merge sites of the target, healing trie of the draft.

    lines: the text that the reported frequencies are measured on. The tables do not depend on it.
    progress: called with the number of target tokens done since the last call.
    """
    alignment = replace(
        align(draft.vocabulary, target.vocabulary),
        merge_sites=find_merge_sites(target, progress=progress),
    )
    text = list(lines)
    coverage = measure_coverage(draft, target, alignment.intersection, text)
    rates = measure_boundaries(draft, target, text, alignment.merge_sites)
    return Bundle(
        kind="alignment",
        fingerprints={"draft": draft.fingerprint, "target": target.fingerprint},
        statistics={
            "intersection_pairs": alignment.intersection.pairs,
            "merge_sites": len(alignment.merge_sites or ()),
            **asdict(coverage),
            **asdict(rates),
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
    return Intersection(
        draft_to_target=_map_ids(draft, target), target_to_draft=_map_ids(target, draft)
    )


def _map_ids(
    source: Vocabulary[DraftId] | Vocabulary[TargetId],
    onto: Vocabulary[DraftId] | Vocabulary[TargetId],
) -> NDArray[np.int32]:
    """For each id of `source` the id of `onto` with the same bytes; NO_TOKEN if there is none."""
    ids = onto.id_of
    return np.array([ids.get(token, NO_TOKEN) for token in source.tokens], dtype=np.int32)
