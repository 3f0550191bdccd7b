"""A draft model's tree: one pass finds what may follow each of the likeliest texts so far.

The tree grows by draft tokens. Its rows stay in the draft model's cache after the rows of the
committed text, each with the mask and the position that its branch gives it. Between two passes the
host chooses the nodes that the next pass goes on after: the likeliest of the newest ones.
`join` then turns the tree into one of target ids. Read next: `exact.py`.

However unlikely, the likeliest chain is always gone on with, so that a tree has the draft's chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import exp, log
from typing import NamedTuple, TypeAlias, cast

from tokalign.runtime.interfaces import DraftSampler, DraftSession, Pending, Shortlist
from tokalign.runtime.proposal import Array
from tokalign.tables.alignment import Intersection
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

WIDTH = 4
"""How many nodes a pass goes on after; with eight of them no more was accepted."""

CHILDREN = 4
"""How many next tokens are listed after each of them; eight gained 0.005 tokens per round."""

LEAST_NODE = 0.005
"""A node that is less likely is left out. At 0.015, 3 of 100 accepted tokens are lost."""

_SOURCE = "draft"


class Node(NamedTuple):
    """A draft token of the tree, and the text that it ends.

    logprob: of the whole path. parent: index of the node before it; -1 if there is none. back: how
    many of the text's last tokens the path takes back. ids: of the path's text after the committed
    ids, None if the text would change those. goes_on: whether a token may follow. absorbed: the
    target has ruled the text out, whatever follows it.
    """

    logprob: float
    parent: int
    back: int
    token: DraftId
    data: bytes
    ids: tuple[TargetId, ...] | None
    goes_on: bool = True
    absorbed: bool = False


TEXT = Node(0.0, -1, 0, DraftId(0), b"", ())
"""What comes before the first nodes: the committed text."""


class Extension(NamedTuple):
    """A node's text with one more token; the fields are those of `Node`."""

    data: bytes
    ids: tuple[TargetId, ...] | None
    goes_on: bool
    absorbed: bool = False


Extend: TypeAlias = Callable[[Node, DraftId], Extension]
"""Translates a node's text with one more token."""


Expect: TypeAlias = Callable[[Sequence[int], Array], Array]
"""Log-probabilities of target ids, given how many ids come before each row, and its logits."""


def can_rank(sampler: DraftSampler | None) -> bool:
    """Whether ids may be ranked by how probably the target chooses them.

    They may not with logits processors, which would need each row's history.
    """
    return sampler is None or not sampler.needs_history


def expectation(sampler: DraftSampler | None, start: int) -> Expect | None:
    """How probably the target, drawing as `sampler` does, chooses each id; None if it draws none.

    start: the position of a tree's first ids.
    """
    if sampler is None:
        return None

    def expect(depths: Sequence[int], logits: Array) -> Array:
        return sampler.expect(logits, positions=[start + depth for depth in depths])

    return expect


class Branches:
    """The rows of a tree of draft tokens, which lie in the draft model's cache after the text.

    ids: the text that the cache holds. back: the most of its last tokens that a branch takes back;
    they become the first ids of the tree, and branches begin after them.
    """

    def __init__(self, session: DraftSession, ids: Sequence[DraftId], back: int) -> None:
        self._session, self._back = session, back
        self._before = ids[: len(ids) - back]
        self._tokens, self._parents = list(ids[len(ids) - back :]), list(range(-1, back - 1))
        self._computed = back

    def begin(self, token: DraftId, *, back: int) -> int:
        """Add a branch after the text without its last `back` tokens. Returns: its row."""
        return self.extend(self._back - back - 1, token)

    def extend(self, row: int, token: DraftId) -> int:
        """Add a token after that of a row. Returns: its row."""
        self._tokens.append(token)
        self._parents.append(row)
        return len(self._tokens) - 1

    def look(
        self,
        count: int,
        shared: Intersection | None = None,
        expect: Callable[[Array], Array] | None = None,
    ) -> Pending[list[Shortlist]]:
        """Start the pass over the rows added since the last one; arguments as in `branch`.

        Before any row is added, it lists what follows the text.
        """
        tree = TokenTree(
            cast("tuple[TargetId, ...]", tuple(self._tokens)),
            tuple(self._parents),
            (_SOURCE,) * len(self._tokens),
        )
        computed, self._computed = self._computed, len(self._tokens)
        if not self._tokens:
            return self._session.branch(self._before, tree, None, count, shared, expect)
        return self._session.branch(self._before, tree, computed, count, shared, expect)


class Growth:
    """The tree of one round while it grows. `finish` is called exactly once.

    ids: the text that the session's cache holds. roots: the first nodes, the likeliest first.
    steps: passes to come. least: nodes of a lower probability are dropped. shared: as for
    `DraftSession.branch`. expect: what the target probably chooses; None for its likeliest id.
    width, children: how many nodes a pass goes on after, and how many ids are listed after each.
    """

    def __init__(
        self,
        session: DraftSession,
        ids: Sequence[DraftId],
        roots: Sequence[Node],
        steps: int,
        *,
        extend: Extend,
        least: float = LEAST_NODE,
        shared: Intersection | None = None,
        expect: Expect | None = None,
        width: int = WIDTH,
        children: int = CHILDREN,
    ) -> None:
        self._width, self._children, self._extend = width, children, extend
        self._least, self._shared, self._expect = log(least), shared, expect
        self._steps = steps
        self.nodes = list(roots)
        self._end = 0  # of the likeliest chain
        chosen = self._likeliest(range(len(roots)))
        back = max([self.nodes[index].back for index in chosen], default=0)
        self._branches = Branches(session, ids, back)
        self._row: dict[int, int] = {}  # of a node among the branches
        self._pending = self._start(chosen)

    def finish(self) -> list[Node]:
        """Wait for all passes. Returns: the nodes, parents before their children."""
        while self._pending is not None:
            chosen, pending = self._pending
            begin = len(self.nodes)
            for index, found in zip(chosen, pending.read(), strict=True):
                self._add(index, found)
            self._pending = self._start(self._likeliest(range(begin, len(self.nodes))))
        return self.nodes

    def _add(self, index: int, found: Shortlist) -> None:
        node, on_chain = self.nodes[index], index == self._end
        best = max(found.logprobs, default=0.0)
        for token, logprob in zip(found.ids, found.logprobs, strict=True):
            reached, goes_on_chain = node.logprob + logprob, on_chain and logprob == best
            if goes_on_chain:
                self._end = len(self.nodes)
            if goes_on_chain or reached >= self._least:
                self.nodes.append(Node(reached, index, 0, token, *self._extend(node, token)))

    def _likeliest(self, among: Sequence[int]) -> list[int]:
        """The nodes to go on after: the end of the likeliest chain, then by probability."""
        going_on = [index for index in among if self.nodes[index].goes_on]
        going_on.sort(key=lambda index: (index != self._end, -self.nodes[index].logprob))
        return going_on[: self._width]

    def _start(
        self, chosen: Sequence[int]
    ) -> tuple[Sequence[int], Pending[list[Shortlist]]] | None:
        """Begin the pass over the rows of these nodes, if one is left."""
        if not chosen or not self._steps:
            return None
        self._steps -= 1
        branches = self._branches
        for index in chosen:
            node = self.nodes[index]
            if node.parent < 0:
                self._row[index] = branches.begin(node.token, back=node.back)
            else:
                self._row[index] = branches.extend(self._row[node.parent], node.token)
        depths = [len(self.nodes[index].ids or ()) for index in chosen]
        expect = None if self._expect is None else partial(self._expect, depths)
        return chosen, branches.look(self._children, self._shared, expect)


def join(nodes: Sequence[Node], possible: float) -> TokenTree:
    """The tree of target ids that the nodes' texts stand for; the likeliest chain comes first.

    The probability that a target id is reached is that of all nodes whose text has it on its path.
    A node counts with what its children leave of its probability, since their texts say more.
    possible: the probability of everything that may follow the committed ids; what is absorbed is
    subtracted from it.
    """
    left = [exp(node.logprob) for node in nodes]
    for node, probability in zip(nodes, left.copy(), strict=True):
        if node.parent >= 0 and (node.ids or node.absorbed):
            left[node.parent] -= probability
        if node.absorbed:
            possible -= probability
    ids: list[TargetId] = []
    parents: list[int] = []
    reached: list[float] = []
    place: dict[tuple[int, TargetId], int] = {}
    for node, probability in zip(nodes, left, strict=True):
        last = -1
        for token in node.ids or ():
            found = place.get((last, token))
            if found is None:
                found = place[last, token] = len(ids)
                ids.append(token)
                parents.append(last)
                reached.append(0.0)
            reached[found] += max(0.0, probability)
            last = found
    # Where nearly all is absorbed, rounding may leave less than there is.
    first = sum([mass for mass, parent in zip(reached, parents, strict=True) if parent < 0])
    possible = max(possible, first)
    reached = [mass / possible for mass in reached] if possible else reached
    chain, others = _chain_first(parents, reached)
    kept = chain + [i for i in others if reached[i] >= LEAST_NODE]
    at = {index: new for new, index in enumerate(kept)}
    return TokenTree(
        tuple([ids[i] for i in kept]),
        tuple([at.get(parents[i], -1) for i in kept]),
        (_SOURCE,) * len(kept),
        tuple(
            [min(1.0, reached[i] / (reached[p] if (p := parents[i]) >= 0 else 1.0)) for i in kept]
        ),
    )


def _chain_first(parents: Sequence[int], reached: Sequence[float]) -> tuple[list[int], list[int]]:
    """The indices of the likeliest chain, and the others, the likeliest first."""
    order = sorted(range(len(parents)), key=lambda i: (-reached[i], i))
    chain, last = [], -1
    for index in order:
        if parents[index] == last:
            chain.append(index)
            last = index
    on_chain = set(chain)
    return chain, [index for index in order if index not in on_chain]
