"""Beam search as its authors verify it: the last step's beams, whatever their rows cost."""

from __future__ import annotations

from tokalign.runtime.draft.trained import BeamDrafter
from tokalign.runtime.mlx.beam_search import SOURCE, Beams, BeamSession, BeamShape
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.rounds import Context, Proposal
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


def last_beams(beams: Beams, source: str = SOURCE) -> TokenTree[TargetId]:
    """The last step's beams alone, their shared prefixes merged: the beams 7 8 9, 7 8 4 and 7 2 3
    are six rows instead of nine."""
    count = len(beams.ids[0][0])
    paths: list[list[TargetId]] = [[]]
    for rows, chosen in zip(beams.ids, beams.chosen, strict=True):
        paths = [[*paths[place // count], rows[place // count][place % count]] for place in chosen]
    tree = beams.tree(source)
    return tree.select(sorted({index for path in paths for index in tree.path_of(path)}))


class WholeBeams(BeamDrafter):
    """Proposes the last step's beams, however unlikely."""

    def __init__(
        self, session: BeamSession, shape: BeamShape, sampler: Sampling | None = None
    ) -> None:
        super().__init__(session, shape.length, sampler=sampler)
        self._width = shape.width

    def choose(self, tree: TokenTree[TargetId], limit: int) -> TokenTree[TargetId]:
        return tree

    def find(self, context: Context, steps: int) -> Proposal:
        shape = BeamShape(self._width, steps)
        how = {"sampler": self._sampler, "meanwhile": self.meanwhile}
        beams = self.session.search(context.ids, shape, count=self._width, **how)  # type: ignore[arg-type]
        return Proposal() if beams is None else Proposal(tree=last_beams(beams))
