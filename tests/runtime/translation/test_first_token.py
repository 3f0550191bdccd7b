"""How probable `exact` takes the next target token to be, against an oracle."""

from __future__ import annotations

from typing import Any

import pytest
from first_token_oracle import FirstTokenOracle

from tokalign.build.alignment import align
from tokalign.runtime.chat import Prompt
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.rounds import Context
from tokalign.runtime.translation.base import DraftTask, Pair
from tokalign.runtime.translation.exact import ExactTranslation
from tokalign.tokenizer.vocabulary import TargetId

TEXT = "Dawno temu w małym domu nad rzeką mieszkała rodzina, która miała 12 kóz i 3 psy."


@pytest.fixture(scope="module")
def guesses(demo_pair: Any) -> list[tuple[dict[TargetId, float], dict[TargetId, float]]]:
    """What `exact` and the oracle say at positions of the text, by target token."""
    target, draft = demo_pair
    pair = Pair(target.tokenizer, draft.tokenizer)
    ids = target.tokenizer.encode(TEXT)
    text = Prompt(target=ids[:2]).draft_text(pair)
    alignment = align(draft.tokenizer.vocabulary, target.tokenizer.vocabulary)
    exact = ExactTranslation(pair, text, alignment)
    oracle, session = FirstTokenOracle(pair, draft.model), DraftModelSession(draft.model)
    found = []
    for position in range(3, len(ids), 2):
        tree = exact.draft(
            DraftTask(Context(ids[:position]), session, 2, 4, lambda n: [0.5] * n)
        ).tree
        first = {
            token: probability
            for token, parent, probability in zip(
                tree.ids, tree.parents, tree.probabilities, strict=True
            )
            if parent < 0
        }
        found.append((first, oracle.distribution(ids[:position], text.ids)))
    return found


@pytest.mark.slow
def test_the_first_guess_is_nearly_as_probable_as_the_oracles(guesses: Any) -> None:
    """In expectation, it is right at least 0.97 times as often as the oracle's most probable
    token."""
    best = sum(max(oracle.values()) for _, oracle in guesses)
    found = sum(oracle[max(exact, key=exact.__getitem__)] for exact, oracle in guesses if exact)
    assert found >= 0.97 * best


@pytest.mark.slow
def test_probabilities_of_next_tokens_are_nearly_the_oracles(guesses: Any) -> None:
    """Some of it is missing where covers are left out; nothing is counted twice."""
    for exact, oracle in guesses:
        assert sum(exact.values()) <= 1.0 + 1e-6
        for token, probability in exact.items():
            assert probability == pytest.approx(oracle.get(token, 0.0), abs=0.15)
