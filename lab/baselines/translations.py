"""Published translations that are kept as baselines: `raw` and `naive`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from tokalign.runtime.chat import Prompt
from tokalign.runtime.draft.neural import make_translation as product_translation
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.rounds import Proposal
from tokalign.runtime.translation.base import Asked, Pair, Translation, chain_with_leaves
from tokalign.runtime.translation.committed_text import DraftText
from tokalign.tables.alignment import Alignment
from tokalign.tokenizer.vocabulary import DraftId, TargetId

PUBLISHED_TRANSLATIONS = ("raw", "naive")


class RawIds:
    """`raw`: ids of one vocabulary are read in the other one as they are, whatever they mean.

    Where the two tokenizers differ, the draft model reads other text than the target, and what it
    drafts is right by chance, or where both vocabularies have the same token at the same place. Ids
    that the other vocabulary does not have are left out of the draft's context, and end a draft.

    Source: the "no translation" condition of the Polish study, which is what mlx-lm does with two
    tokenizers. It is kept as a baseline.
    """

    def __init__(self, pair: Pair) -> None:
        self._sizes = len(pair.draft.vocabulary), len(pair.target.vocabulary)

    def read(self, ids: Sequence[TargetId]) -> list[DraftId]:
        return [DraftId(token) for token in ids if token < self._sizes[0]]

    def draft(self, ids: Sequence[TargetId], session: DraftModelSession, asked: Asked) -> Proposal:
        """See `Translation`."""
        drafted = session.draft(self.read(ids), asked.steps).ids
        common = takewhile(lambda token: token < self._sizes[1], drafted)
        chain = [TargetId(token) for token in common]
        return Proposal(tree=chain_with_leaves(chain, asked.learned))


class Naive:
    """`naive`: `encode(decode(draft ids))`, each chunk an isolated string to both tokenizers.

    Source: Transformers' universal assisted decoding without its context window. A target with a
    dummy prefix puts a space before every chunk, so that next to nothing is accepted.
    """

    def __init__(self, pair: Pair, text: DraftText) -> None:
        self._pair, self._text = pair, text

    def read(self, ids: Sequence[TargetId]) -> list[DraftId]:
        self._text.follow(ids)
        return self._text.ids

    def draft(self, ids: Sequence[TargetId], session: DraftModelSession, asked: Asked) -> Proposal:
        """See `Translation`."""
        chunk, end = self._pair.split_end(session.draft(self.read(ids), asked.steps).ids)
        text = self._pair.target.encode(self._pair.draft.decode(chunk)) if chunk else []
        return Proposal(tree=chain_with_leaves([*text, *end], asked.learned))


def make_translation(
    name: str,
    pair: Pair,
    prompt: Prompt,
    alignment: Callable[[], Alignment],
    sampler: Sampling | None = None,
) -> Translation:
    """The translation `name` for one request, `raw` and `naive` included."""
    if name == "raw":
        return RawIds(pair)
    if name == "naive":
        return Naive(pair, prompt.draft_text(pair, chunked=True))
    return product_translation(name, pair, prompt, alignment, sampler)
