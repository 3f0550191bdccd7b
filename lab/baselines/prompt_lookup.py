"""Prompt lookup decoding as published, kept as a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.runtime.rounds import Context, Drafter, Proposal
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

PROMPT_LOOKUP = "prompt-lookup"


class PromptLookupDrafter(Drafter):
    """Proposes what followed the first earlier occurrence of the context's last n-gram (PLD).

    As published, it takes the longest n-gram that occurs earlier, of 3 ids down to 1, and copies up
    to 10 ids. N-grams are indexed as the context grows, so the cost of a round does not depend on
    the length of the context.
    Source: github.com/apoorvumang/prompt-lookup-decoding, and Transformers'
    PromptLookupCandidateGenerator.
    """

    def __init__(self, *, max_tokens: int = 10) -> None:
        self._sizes = (3, 2, 1)
        self._max_tokens = max_tokens
        self._first_end: dict[tuple[TargetId, ...], int] = {}
        self._indexed = 0

    def propose(self, context: Context, limit: int) -> Proposal:
        ids = context.ids
        self._index(ids)
        for size in self._sizes:
            end = self._first_end.get(tuple(ids[-size:])) if size <= len(ids) else None
            if end is not None:
                copied = ids[end : end + min(self._max_tokens, limit)]
                return Proposal(tree=TokenTree.chain(copied, PROMPT_LOOKUP))
        return Proposal()

    def _index(self, ids: Sequence[TargetId]) -> None:
        """Remember where each n-gram first ends, except for the one at the end of the context."""
        for end in range(max(self._indexed, 1), len(ids)):
            for size in self._sizes:
                if size <= end:
                    self._first_end.setdefault(tuple(ids[end - size : end]), end)
        self._indexed = len(ids)
