"""What draft tokens begin with in the target's ids."""

from __future__ import annotations

from typing import Any

from tokalign.build.alignment import intersect
from tokalign.runtime.translation.base import Pair
from tokalign.tables.alignment import NO_TOKEN
from tokalign.tokenizer.tokenizer import Tokenizer


def test_first_ids_are_those_of_the_targets_encoding(
    bielik: Tokenizer[Any], llama: Tokenizer[Any]
) -> None:
    """Bielik drafts for Llama: of tokens that Llama lacks, too. Ends stand for ends."""
    pair = Pair(llama, bielik)
    shared = intersect(bielik.vocabulary, llama.vocabulary)
    firsts, several = pair.first_ids(shared), 0
    for token, spelled in enumerate(bielik.vocabulary.tokens):
        if spelled and shared.target_of(token) is None:
            ids = llama.encoder.encode(spelled)
            assert (firsts.first[token], firsts.counts[token]) == (ids[0], len(ids))
            several += 1
    assert several > 1000
    known = shared.draft_to_target != NO_TOKEN
    assert (firsts.first[known] == shared.draft_to_target[known]).all()
    assert (firsts.counts[known] == 1).all()
    for draft, target in pair.roles().items():
        assert firsts.first[draft] == target
    few = Pair(llama, bielik, 1000).first_ids(shared)
    assert few.first.max() < 1000
