"""Everything one (draft, target) pair needs, as one bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from tokalign.build.alignment.boundary_rates import measure_boundaries
from tokalign.build.alignment.coverage import measure_coverage
from tokalign.build.alignment.intersect import intersect
from tokalign.build.alignment.merge_sites import find_merge_sites
from tokalign.tables.alignment import Alignment, HealingTrie
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
    corpus: Mapping[str, Any] | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Bundle:
    """All tables of a pair: intersection, merge sites of the target, healing trie of the draft.

    lines: the text that the reported frequencies are measured on. The tables do not depend on it.
    corpus: the stamp of that text.
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
        corpus=corpus or {},
        parameters={},
        statistics={
            "intersection_pairs": alignment.intersection.pairs,
            "merge_sites": len(alignment.merge_sites or ()),
            **asdict(coverage),
            **asdict(rates),
        },
        sections=alignment.to_sections(),
    )
