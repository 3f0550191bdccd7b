"""Every pair of an intersection has equal bytes, and none is missing."""

from __future__ import annotations

from typing import Any

import pytest
from small_tables import bundle_of

from tokalign.build.alignment import intersect
from tokalign.tables.alignment import NO_TOKEN, Intersection, match_roles
from tokalign.tokenizer.tokenizer import Tokenizer


def check_pairs(draft: Tokenizer[Any], target: Tokenizer[Any]) -> Intersection:
    found = intersect(draft.vocabulary, target.vocabulary)
    ours, theirs = draft.vocabulary.tokens, target.vocabulary.tokens
    for draft_id, target_id in enumerate(found.draft_to_target.tolist()):
        assert (target_id == NO_TOKEN) == (ours[draft_id] not in target.vocabulary.id_of)
        assert target_id == NO_TOKEN or ours[draft_id] == theirs[target_id]
    for target_id, draft_id in enumerate(found.target_to_draft.tolist()):
        assert (draft_id == NO_TOKEN) == (theirs[target_id] not in draft.vocabulary.id_of)
        assert draft_id == NO_TOKEN or ours[draft_id] == theirs[target_id]
    assert found.pairs == len(set(draft.vocabulary.id_of) & set(target.vocabulary.id_of))
    return found


@pytest.mark.parametrize(("draft", "pairs"), [("llama", 29_110), ("qwen", 29_234)])
def test_real_tokenizers_share_all_tokens_of_equal_bytes(
    draft: str, pairs: int, bielik: Tokenizer[Any], request: pytest.FixtureRequest
) -> None:
    assert check_pairs(request.getfixturevalue(draft), bielik).pairs == pairs


def test_a_table_survives_its_sections(llama: Tokenizer[Any], bielik: Tokenizer[Any]) -> None:
    found = intersect(llama.vocabulary, bielik.vocabulary)
    again = Intersection.from_bundle(bundle_of(found.to_sections()))
    assert (again.draft_to_target == found.draft_to_target).all()
    assert (again.target_to_draft == found.target_to_draft).all()


def test_roles_are_matched_by_meaning(llama: Tokenizer[Any], bielik: Tokenizer[Any]) -> None:
    matched = match_roles(llama.vocabulary.roles, bielik.vocabulary.roles)
    ours, theirs = llama.vocabulary.special_ids, bielik.vocabulary.special_ids
    assert matched[ours["<|eot_id|>"]] == theirs["<|im_end|>"]
    assert matched[ours["<|end_of_text|>"]] == theirs["<|im_end|>"]
    assert matched[ours["<|begin_of_text|>"]] == theirs["<s>"]
