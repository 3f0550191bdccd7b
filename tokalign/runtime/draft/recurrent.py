"""Drafting with a recurrent drafter: the best ids of a beam search become a tree of guesses.

The search looks at more continuations than are worth verifying, because listing them costs nothing
on top of a step. The expected gain decides which of them become rows, as for every source. A beam
of fixed shape, as published, is there for experiments.
Where the target samples, the search predicts its choices, because the drafter shares its noise.
With logits processors, which need the history of every row, a chain is drawn instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokalign.runtime.draft.beams import BeamShape
from tokalign.runtime.draft.neural import ModelDrafter
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.rounds import Context
from tokalign.runtime.translation.base import Translated, chain_with_leaves
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.drafter_session import DrafterSession
    from tokalign.runtime.mlx.sampling import Sampling


SOURCE = "drafter"

DEFAULT_SHAPE = BeamShape(width=4, length=4)
"""Beams that are searched where the rows are chosen by their gain."""

_LISTED = 8
"""Ids listed after every beam."""

_LEAST_REACHED = 0.003
"""Ids that are less likely to be reached are not looked at."""


class BeamDrafter(ModelDrafter):
    """A recurrent drafter as a drafter of one request, alone or as the model of a hybrid.

    session: of the drafter. sampler: how the target's choices are predicted or drawn; None if it
    decodes greedily. length: steps of a search where the caller does not choose their number.
    width: beams of a search, unless `beam` says.
    beam: propose this beam whole, however unlikely.
    rows: propose so many ids, whatever they cost. branches: whether a proposal may be a tree.
    """

    def __init__(
        self,
        session: DrafterSession,
        *,
        sampler: Sampling | None = None,
        length: int = DEFAULT_SHAPE.length,
        width: int = DEFAULT_SHAPE.width,
        beam: BeamShape | None = None,
        rows: int | None = None,
        branches: bool = True,
    ) -> None:
        steps = length if beam is None else beam.length
        super().__init__(session, steps, DEFAULT_ALTERNATIVES if branches else 0)
        self._session, self._sampler = session, sampler
        self._beam, self._rows = beam, rows
        self._width = 1 if not branches else width if beam is None else beam.width
        self._listed = self._width if beam is not None or not branches else _LISTED

    def choose(self, tree: TokenTree[TargetId], limit: int) -> TokenTree[TargetId]:
        if self._beam is not None:
            return tree
        if self._rows is not None:
            return tree.most_probable(self._rows, least=0.0, depth=limit)
        return super().choose(tree, limit)

    def find(self, context: Context, steps: int) -> Translated:
        """See `ModelDrafter`. Nothing is found before the target's first pass."""
        if self._sampler is not None and self._sampler.needs_history:
            drawn = self._session.draw(context.ids, steps, sampler=self._sampler).read()
            learned = self._acceptance.probabilities
            return Translated(chain_with_leaves(drawn or (), learned, source=SOURCE))
        shape = BeamShape(self._width, steps)
        beams = self._session.search(
            context.ids, shape, count=self._listed, sampler=self._sampler
        ).read()
        if beams is None:
            return Translated()
        if self._beam is not None:
            return Translated(beams.beam_tree(SOURCE))
        tree = beams.tree(SOURCE)
        return Translated(tree.most_probable(len(tree), least=_LEAST_REACHED, depth=steps))
