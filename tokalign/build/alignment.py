"""Everything one (draft, target) pair needs, as one bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from tokalign.alignment_tables import HealingTrie
from tokalign.build.coverage import measure_coverage
from tokalign.build.intersect import intersect
from tokalign.build.merge_sites import find_merge_sites
from tokalign.bundle import Bundle
from tokalign.tokenizers import Tokenizer
from tokalign.vocab import DraftId, TargetId


def build_alignment(
    draft: Tokenizer[DraftId],
    target: Tokenizer[TargetId],
    lines: Iterable[str],
    corpus: Mapping[str, Any] | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Bundle:
    """All tables of a pair: intersection, merge sites of the target, healing trie of the draft.

    lines: the text for the reported frequencies; the tables follow from the vocabularies alone.
    corpus: the stamp of that text. progress: target tokens done since the last call.
    """
    intersection = intersect(draft.vocabulary, target.vocabulary)
    merge_sites = find_merge_sites(target, progress=progress)
    coverage = measure_coverage(draft, target, intersection, lines, merge_sites)
    return Bundle(
        kind="alignment",
        fingerprints={"draft": draft.fingerprint, "target": target.fingerprint},
        corpus=corpus or {},
        parameters={},
        statistics={
            "intersection_pairs": intersection.pairs,
            "merge_sites": len(merge_sites),
            **asdict(coverage),
        },
        sections=(
            intersection.to_sections()
            | merge_sites.to_sections()
            | HealingTrie.of(draft.vocabulary.tokens).to_sections()
        ),
    )
