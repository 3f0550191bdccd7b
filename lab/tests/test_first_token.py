"""How probable `exact` takes the next target token to be, against an oracle.

The oracle shares no code with `exact` beyond the models: every way in which the draft's encoding of
the text may go on is looked at, one pass for each, and every text is encoded as a whole. A text
whose first new target token may still change is gone on with. Source: the valid covering tree of
"Sampling from Your Language Model One Byte at a Time" (Hayase et al., 2025), down to a least
probability.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tokalign.build.alignment import align
from tokalign.runtime.chat import Prompt
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.translation.base import Asked, Pair
from tokalign.runtime.translation.exact import ExactTranslation
from tokalign.tokenizer.vocabulary import DraftId, TargetId

TEXT = "Dawno temu w małym domu nad rzeką mieszkała rodzina, która miała 12 kóz i 3 psy."
_MOST_BACK = 4


class FirstTokenOracle:
    """Distributions of the next target token.

    least: texts that are less likely are not gone on with. depth: after so many draft tokens the
    first target token of a text is taken to be decided.
    """

    def __init__(self, pair: Pair, model: Any, *, least: float = 3e-3, depth: int = 3) -> None:
        self._pair, self._session = pair, DraftModelSession(model)
        self._least, self._depth = least, depth
        self._tokens = pair.draft.vocabulary.tokens

    def distribution(
        self, committed: Sequence[TargetId], own: Sequence[DraftId]
    ) -> dict[TargetId, float]:
        """The probability of each next target token after a text without special tokens.

        committed: the text from its beginning. own: the draft's canonical encoding of it.
        """
        self._committed = list(committed)
        self._text = b"".join(self._pair.target.vocabulary.tokens[i] for i in committed)
        self._mass: Counter[TargetId] = Counter()
        most = min(_MOST_BACK, len(own) - 1)
        starts = []
        for back in range(most + 1):
            before = list(own[: len(own) - back])
            kept = 1.0
            for place in range(len(own) - most, len(before)):
                kept *= float(self._following(own[:place])[own[place]])
            starts.append((before, kept, b"".join(self._tokens[i] for i in own[len(before) :])))
        possible = sum(
            kept * float(self._following(before)[self._beginning_with(pending)].sum())
            for before, kept, pending in starts
        )
        for before, kept, pending in starts:
            self._go_on(before, kept / possible, pending, b"", self._depth)
        total = sum(self._mass.values())
        return {token: mass / total for token, mass in self._mass.items()}

    def _go_on(
        self, before: list[DraftId], probability: float, pending: bytes, data: bytes, depth: int
    ) -> float:
        """Look at every token that may follow. Returns: the probability of all of them.

        pending: what the token has to begin with, and go beyond. data: what follows the committed
        text so far.
        """
        reached = probability * self._following(before)
        found = 0.0
        for token in self._beginning_with(pending):
            share = float(reached[token])
            if share >= self._least / 10:
                found += share
                longer = data + self._tokens[token][len(pending) :]
                self._decide([*before, DraftId(token)], share, longer, depth - 1)
        return found

    def _beginning_with(self, pending: bytes) -> list[int]:
        """The tokens that begin with these bytes and go beyond them."""
        spelled = enumerate(self._tokens)
        return [i for i, data in spelled if len(data) > len(pending) and data.startswith(pending)]

    def _decide(self, path: list[DraftId], probability: float, data: bytes, depth: int) -> None:
        """Count a text for its first target token, or go on with it while that may change."""
        whole = self._pair.target.bpe.encode(self._text + data)
        count = len(self._committed)
        first = whole[count] if whole[:count] == self._committed else None
        left = probability
        if depth and probability >= self._least and (first is None or len(whole) == count + 1):
            left -= self._go_on(path, probability, b"", data, depth)
        if first is not None:
            self._mass[first] += max(0.0, left)

    def _following(self, ids: Sequence[DraftId]) -> NDArray[np.float64]:
        row = np.array(self._session.logits(ids)[0], dtype=np.float64)
        weights = np.exp(row - row.max())
        return np.asarray(weights / weights.sum())


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
        asked = Asked(2, alternatives=4, learned=[0.5].__mul__)
        tree = exact.draft(ids[:position], session, asked).tree
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
