"""`exact` as a chain, where the target or the draft model's cache takes no tree.

The draft model goes on after the most probable next target token by itself. All of its passes are
queued at once, so the host waits twice: for the covers, and for the whole chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING

from tokalign.runtime.rounds import Array, Context
from tokalign.runtime.translation.base import Learned, Pair, chain_with_leaves
from tokalign.runtime.translation.committed_text import Boundary
from tokalign.tables.alignment import Intersection
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.draft_session import DraftModelSession
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.runtime.translation.exact import CandidateCovers, Cover

_LEAST_ALTERNATIVE = 0.04
"""A next target token of a lower probability is not proposed in the place of the most probable."""


class ChainDraft:
    """Drafts the chains of one request.

    shared: gives the pair's intersection, which is needed where ids are drawn.
    """

    def __init__(
        self,
        pair: Pair,
        boundary: Boundary,
        sampler: Sampling | None,
        shared: Callable[[], Intersection],
    ) -> None:
        self._pair, self._boundary, self._sampler, self._shared = pair, boundary, sampler, shared

    def draft(
        self,
        covers: CandidateCovers,
        ids: Sequence[DraftId],
        context: Context,
        session: DraftModelSession,
        steps: int,
        *,
        noise: Array | None,
        alternatives: int,
        learned: Learned,
        counts: Counter[str],
    ) -> tuple[TokenTree[TargetId], int]:
        """A chain after the chosen cover, and how many tokens that takes back.

        covers: all that are likely enough have been looked at. ids: the committed text.
        """
        ranked = self._rank(covers, context, noise)
        if not ranked:
            return EMPTY_TREE, 0
        (_, back, token), data, of_cover = best_with(covers, ranked[0])
        found: Sequence[TargetId] = of_cover
        if steps and data:
            own = [*ids[: len(ids) - back], token]
            if self._sampler is None:
                drafted = session.draft(own, steps).read().ids
                found = self._join_drafted(data, drafted, counts)
            else:
                after, shared = [*context.ids, *of_cover], self._shared()
                drawn = session.draw(own, steps, sampler=self._sampler, after=after, shared=shared)
                found = self._join_drawn(data, of_cover, drawn.read())
        ranking = sorted(covers.mass.items(), key=itemgetter(1), reverse=True)
        probability = {token: min(1.0, mass / covers.possible) for token, mass in ranking}
        if self._sampler is None:
            others = [token for token, known in probability.items() if known >= _LEAST_ALTERNATIVE]
            stated = [probability[token] for token in found[:1] if token in probability]
        else:  # how often a drawn id is right is another question
            others, stated = ranked, []
        leaves = [(token, probability[token]) for token in others if token not in found[:1]]
        tree = chain_with_leaves(found, learned, stated=stated, leaves=leaves[:alternatives])
        return tree, back

    def _rank(
        self, covers: CandidateCovers, context: Context, noise: Array | None
    ) -> list[TargetId]:
        """The next target token, then alternatives to it if it is drawn; none if none is allowed.

        Covers that were not looked at are not drawn from.
        """
        if self._sampler is None:
            return [max(covers.mass, key=covers.mass.__getitem__)]
        return list(self._sampler.expect_among(covers.logprobs(), noise=noise, ids=context.ids))

    def _join_drafted(
        self, data: bytes, drafted: Sequence[DraftId], counts: Counter[str]
    ) -> tuple[TargetId, ...]:
        """Target ids of a text and what was drafted; of less if its end would be absorbed."""
        tokens = self._pair.draft.vocabulary.tokens
        ordinary, end = self._pair.split_end(drafted)
        spelled = [tokens[token] for token in ordinary]
        while (ids := self._boundary.encode(data + b"".join(spelled))) is None:
            counts["absorbed"] += 1
            end = ()
            if not spelled:
                return ()
            spelled.pop()
        return (*ids, *end)

    def _join_drawn(
        self, data: bytes, ids: tuple[TargetId, ...], drawn: Sequence[TargetId]
    ) -> tuple[TargetId, ...]:
        """Target ids of the cover and those drawn after it, their text encoded as a whole."""
        tokens = self._pair.target.vocabulary.tokens
        ordinary = list(takewhile(bool, [tokens[i] for i in drawn]))
        whole = self._boundary.encode(data + b"".join(ordinary))
        return (*(whole or ids), *drawn[len(ordinary) if whole else 0 :])


def best_with(
    covers: CandidateCovers, token: TargetId
) -> tuple[Cover, bytes, tuple[TargetId, ...]]:
    """The most probable cover whose text begins with `token`. Raises: KeyError without one."""
    for found in covers.translated:
        if found[2][0] == token:
            return found
    raise KeyError(token)
