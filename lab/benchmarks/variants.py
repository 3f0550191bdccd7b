"""Many dictionaries from one corpus, which is counted once for each kind, and what they save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.build.counting.token_ngrams import count_token_ngrams
from tokalign.build.counting.word_ngrams import WordNgrams, count_word_ngrams
from tokalign.build.dictionary.backoff import make_table
from tokalign.build.dictionary.dictspec import find_continuations
from tokalign.build.dictionary.ngram_tree import Level, grow_tree
from tokalign.evaluate.replay import emulate, figures
from tokalign.runtime.drafting import Drafting
from tokalign.tables.bundle import Bundle
from tokalign.tables.opening import read_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

LONGEST = {"backoff": 8, "dictspec": 3}
"""The highest order of each kind: ids of a context (backoff), words of an n-gram (dictspec)."""


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """One table.

    order: ids of the longest context (backoff), words of the longest n-gram (dictspec).
    size: most bytes of the file (backoff), n-grams kept (dictspec).
    """

    kind: str
    order: int
    size: int
    p_min: float


class VariantBuilder:
    """Builds tables of any kind and size, and keeps the counts in memory meanwhile.

    workspace: a folder from which a killed count of token n-grams resumes.
    """

    def __init__(
        self,
        target: Tokenizer[TargetId],
        corpus: Corpus,
        *,
        workspace: Path | None = None,
        stage: Stage = silent,
    ) -> None:
        self._target, self._corpus = target, corpus
        self._workspace, self._stage = workspace, stage

    def build(self, variant: Variant) -> Bundle:
        """Build the dictionary of a variant, as a bundle."""
        parameters: dict[str, object] = {
            "kind": variant.kind,
            "vocabulary_size": len(self._target.vocabulary),
        }
        if variant.kind == "dictspec":
            words = replace(
                self._words,
                packed=self._words.packed[: variant.order],
                counts=self._words.counts[: variant.order],
            )
            found = find_continuations(
                words.most_frequent(variant.size), self._target, p_min=variant.p_min
            )
            entries, sections = len(found), found.to_sections()
        else:
            table = make_table(
                self._tokens[: variant.order + 1],
                vocabulary_size=len(self._target.vocabulary),
                max_bytes=variant.size,
                p_min=variant.p_min,
            )
            entries, sections = len(table), table.to_sections()
            parameters |= table.parameters.to_header()
        return Bundle(
            kind="dictionary",
            fingerprints={"target": self._target.fingerprint},
            corpus=self._corpus.stamp,
            parameters=parameters,
            statistics={"entries": entries},
            sections=sections,
        )

    @cached_property
    def _words(self) -> WordNgrams:
        with self._stage(self._corpus.size, "Counting word n-grams") as advance:
            return count_word_ngrams(self._corpus.lines(advance))

    @cached_property
    def _tokens(self) -> list[Level]:
        return grow_tree(
            count_token_ngrams(
                self._corpus,
                self._target,
                max_order=LONGEST["backoff"] + 1,
                workspace=self._workspace,
                stage=self._stage,
            )
        )


def emulate_table(
    bundle: Bundle, *, texts: Mapping[str, Sequence[Sequence[TargetId]]], max_draft: int
) -> dict[str, dict[str, float]]:
    """The figures of `tokalign emulate` for a dictionary, by the names of the texts."""
    table = read_dictionary(bundle)
    drafting = Drafting(method="dictionary", num_draft_tokens=max_draft, dictionary=table)
    return {name: figures(emulate(drafting, ids)) for name, ids in texts.items()}
