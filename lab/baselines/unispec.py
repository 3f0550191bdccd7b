"""UniSpec as published, kept as a baseline: a tree grown by the target's own probabilities.

The store has one row per id: its most probable successors and their probabilities when the target
last verified it. A draft begins with the successors of the last id, and with what else the target
found likely where it chose that id, which often comes next ("next-next" candidates). Level by
level, the successors of the surest ids are added. The confidence of an id is the product of the
probabilities on its path, and the surest ids of all levels are verified.

Two things that the paper leaves open are settled like this: the chosen id itself is no next-next
candidate, and an id that is a candidate twice on the first level counts once, as a successor.

Source: Do, Le and Nguyen, "UniSpec" (ACL 2026, long paper 285), algorithm 1 and appendices A and F.
Its algorithms 2 to 4, verification, are the verifier's here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lab.baselines.adjacency import Adjacency, most_probable_chain
from tokalign.runtime.draft.costs import Costs
from tokalign.runtime.rounds import Context, Drafter, Proposal
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

UNISPEC = "unispec"

UNISPEC_WIDTH = 10
"""Successors kept of each id, and ids that are expanded on each level: k."""

DEPTH = 10
"""Levels of a tree: d."""

THRESHOLD = 0.05
"""Ids that are less sure than this are not expanded: r."""

PUBLISHED_ACCEPTANCE = {0: 1.0, 25: 2.24, 50: 2.56, 75: 2.74, 100: 2.83, 111: 2.90, 125: 2.94}
"""Tokens per pass by drafted ids, as the paper's table 16 has them; 1 where nothing is drafted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """How a tree is grown; the defaults are the paper's, the other values its ablations.

    depth, threshold: see `DEPTH` and `THRESHOLD`. next_next: whether the first level has next-next
    candidates. scored: whether confidences count; without them ids are taken level by level, in the
    order of their ranks, and none falls under the threshold.
    """

    depth: int = DEPTH
    threshold: float = THRESHOLD
    next_next: bool = True
    scored: bool = True


PUBLISHED = Expansion()

ABLATED = {
    "scores": Expansion(scored=False),
    "expansion": Expansion(threshold=0.0, next_next=False),
}
"""The ablations of the paper's table 2 that change how a tree is grown."""

UNCALIBRATED_SIZE = 110
"""The draft size of the ablation without calibration: what the paper calibrates for an A100."""


class UniSpecDrafter(Drafter):
    """Drafts the surest ids of a tree of the target's top-k logits.

    adjacency: the verifier's store of rows. size: ids proposed in a round, g.
    branches: whether the target can verify a tree; the first ranks are proposed as a chain if not.
    """

    def __init__(
        self,
        adjacency: Adjacency,
        *,
        size: int,
        expansion: Expansion = PUBLISHED,
        branches: bool = True,
    ) -> None:
        self._adjacency = adjacency
        self._size = size
        self._expansion = expansion
        self._branches = branches

    def propose(self, context: Context, limit: int) -> Proposal:
        limit = min(limit, self._size)
        if not limit:
            return Proposal()
        if not self._branches:
            depth = min(limit, self._expansion.depth)
            return Proposal(
                tree=most_probable_chain(self._adjacency, context.ids[-1], depth, UNISPEC)
            )
        return Proposal(tree=grow(self._adjacency, context.ids, limit, self._expansion))


def grow(
    adjacency: Adjacency, ids: Sequence[TargetId], size: int, expansion: Expansion = PUBLISHED
) -> TokenTree[TargetId]:
    """The `size` surest ids that may follow `ids`, as a tree; fewer if there are no more."""
    tokens: list[TargetId] = []
    parents: list[int] = []
    own: list[float] = []
    sure: list[float] = []
    level: list[int] = []
    for token, probability in _first_level(adjacency, ids, expansion):
        level.append(len(tokens))
        tokens.append(token)
        parents.append(-1)
        own.append(probability)
        sure.append(probability if expansion.scored else 1.0)
    for _ in range(1, expansion.depth):
        best = sorted(level, key=lambda i: -sure[i])[: adjacency.width]
        level = []
        for above in best:
            found = adjacency.after(tokens[above])
            if found is None or sure[above] < expansion.threshold:
                continue
            for token, probability in zip(*found, strict=True):
                level.append(len(tokens))
                tokens.append(token)
                parents.append(above)
                own.append(probability)
                sure.append(sure[above] * (probability if expansion.scored else 1.0))
    if not tokens:
        return EMPTY_TREE
    # No id is surer than the one above it, and ties go to the earlier, so this is a tree.
    kept = sorted(sorted(range(len(tokens)), key=lambda i: -sure[i])[:size])
    everything = TokenTree(tuple(tokens), tuple(parents), (UNISPEC,) * len(tokens), tuple(own))
    return everything.select(kept)


def _first_level(
    adjacency: Adjacency, ids: Sequence[TargetId], expansion: Expansion
) -> Iterator[tuple[TargetId, float]]:
    """The successors of the last id, then the next-next candidates, with their probabilities."""
    last = ids[-1]
    found = adjacency.after(last)
    if found is not None:
        yield from zip(*found, strict=True)
    beside = adjacency.beside_last(ids) if expansion.next_next else None
    if beside is not None:
        known = {last} if found is None else {last, *found.ids}
        for token, probability in zip(*beside, strict=True):
            if token not in known:
                yield token, probability


def draft_size(costs: Costs) -> int:
    """The draft size g* with the most tokens per time on a machine with these costs.

    The paper finds that tokens per pass hardly depend on the machine, and calibrates their number
    and the time of a pass on each. Here the cubic through its published tokens per pass stands for
    the one, and the costs for the other. `lab/benchmarks/draft_free.py` calibrates both.
    """
    sizes = np.array([*PUBLISHED_ACCEPTANCE], dtype=float)
    tokens = np.polynomial.Polynomial.fit(sizes, [*PUBLISHED_ACCEPTANCE.values()], deg=3)
    rates = {
        size: float(tokens(size)) / costs.verify(1 + size) for size in range(1, int(sizes[-1]) + 1)
    }
    return max(rates, key=rates.__getitem__)


_DEGREE, _KNOTS = 2, 8


def calibrated_size(sizes: Sequence[int], tokens: Sequence[float], times: Sequence[float]) -> int:
    """The draft size that UniSpec's calibration chooses (appendix F).

    The time of a pass is fitted by B-splines of degree 2 on 8 knots and its tokens by a cubic, and
    differential evolution maximizes their ratio.
    sizes: the lengths that were measured, ascending. tokens, times: of a step at each of them.
    """
    from scipy.interpolate import BSpline
    from scipy.optimize import differential_evolution

    least, longest = sizes[0], sizes[-1]
    lengths = np.array(sizes, dtype=float)
    inner = np.linspace(least, longest, _KNOTS)
    beyond = (inner[1] - inner[0]) * np.arange(1, _DEGREE + 1)
    knots = np.concatenate([inner[0] - beyond[::-1], inner, inner[-1] + beyond])
    basis = BSpline.design_matrix(lengths, knots, _DEGREE).toarray()
    time = BSpline(knots, np.linalg.lstsq(basis, np.array(times))[0], _DEGREE)
    accepted = np.polynomial.Polynomial.fit(lengths, tokens, deg=3)
    found = differential_evolution(
        lambda g: -float(accepted(g[0]) / time(g[0])),
        [(least, longest)],
        seed=42,
        maxiter=1000,
        atol=1e-6,
        tol=1e-6,
    )
    return round(float(found.x[0]))
