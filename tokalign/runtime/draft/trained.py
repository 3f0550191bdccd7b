"""Drafters that were trained for one target and start from what its layers computed."""

from __future__ import annotations

from math import exp

from tokalign.runtime.draft.growth import Answer, BlockAnswer
from tokalign.runtime.draft.mixing import LEAST_REACHED
from tokalign.runtime.draft.neural import DRAFTER, ModelDrafter
from tokalign.runtime.mlx.beam_search import DEFAULT_SHAPE, SOURCE, BeamSession, BeamShape
from tokalign.runtime.mlx.dflash_session import DFlashSession, Guess
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.trained_drafter import DrafterSession
from tokalign.runtime.options import DEFAULT_ALTERNATIVES
from tokalign.runtime.rounds import Context, Proposal
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_LISTED = 8
"""Ids listed after every beam."""


class BeamDrafter(ModelDrafter):
    """A drafter that extends beams as a drafter of one request, alone or as the model of a hybrid.

    session: of the drafter. length: ids of a beam where the caller does not choose. sampler: how
    the target's choices are predicted; None if it decodes greedily. branches: whether a proposal
    may be a tree.
    """

    kind = DRAFTER
    session: BeamSession

    def __init__(
        self,
        session: BeamSession,
        length: int | None = None,
        *,
        sampler: Sampling | None = None,
        branches: bool = True,
    ) -> None:
        length = length or DEFAULT_SHAPE.length
        super().__init__(session, length, DEFAULT_ALTERNATIVES if branches else 0)
        self._sampler = sampler
        self._width, self._listed = (DEFAULT_SHAPE.width, _LISTED) if branches else (1, 1)

    def find(self, context: Context, steps: int) -> Proposal:
        shape = BeamShape(self._width, steps)
        beams = self.session.search(
            context.ids, shape, count=self._listed, sampler=self._sampler, meanwhile=self.meanwhile
        )
        if beams is None:
            return Proposal()
        tree = beams.tree(SOURCE)
        return Proposal(tree=tree.most_probable(len(tree), least=LEAST_REACHED, depth=steps))


BLOCK = "block"
"""The source of ids that a block drafter guessed."""


class BlockDrafter(ModelDrafter):
    """A block drafter as a drafter of one request, alone or as the model of a hybrid.

    Alone it proposes the most probable id of each position after those before, as its authors do.
    session: of the drafter. length: the most ids that it proposes; None for all of a block.
    sampler: how the target's choices are predicted; None if it decodes greedily.
    """

    kind = DRAFTER
    in_one_pass = True
    session: DFlashSession

    def __init__(
        self, session: DFlashSession, length: int | None = None, *, sampler: Sampling | None = None
    ) -> None:
        super().__init__(session, min(session.most, length or session.most), 0)
        self._sampler = sampler
        self._block = Guess([], [])

    def find(self, context: Context, steps: int) -> Proposal:
        self._block = self.session.draft(context.ids, _LISTED, self._sampler, self.meanwhile)
        ids: list[TargetId] = []
        probabilities: list[float] = []
        for position, listed in enumerate(self._block.positions[:steps]):
            links = self._block.links[position - 1] if ids and self._block.links else {}
            following = links.get(ids[-1], listed) if ids else listed
            if not following:
                break
            token, logprob = following[0]
            ids.append(token)
            probabilities.append(exp(logprob))
        return Proposal(tree=TokenTree.chain(ids, BLOCK, probabilities))

    def answer(self, proposal: Proposal) -> Answer:
        return BlockAnswer(self._block.positions, BLOCK, self._block.links)


def with_trained(
    session: DrafterSession,
    length: int | None = None,
    *,
    sampler: Sampling | None,
    branches: bool = True,
) -> ModelDrafter:
    """The drafter of one request with a trained drafter's session. Arguments: as for its kind."""
    if isinstance(session, BeamSession):
        return BeamDrafter(session, length, sampler=sampler, branches=branches)
    assert isinstance(session, DFlashSession)
    return BlockDrafter(session, length, sampler=sampler)
