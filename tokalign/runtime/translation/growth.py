"""A draft model's tree: one pass finds what may follow each of the most probable texts so far.

The tree grows by draft tokens. Its rows stay in the draft model's cache after the rows of the
committed text, each with the mask and the position that its branch gives it. Between two passes the
host chooses the nodes that the next pass goes on after: the most probable of the newest ones, and
always the end of the most probable chain. `join` then turns the tree into one of target ids. Read
next: `exact.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from math import exp, log
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tokalign.runtime.translation.base import SOURCE
from tokalign.runtime.translation.read_ahead import NOTHING_AHEAD, Ahead
from tokalign.tables.alignment import FirstIds
from tokalign.tables.token_tree import TokenTree, chain_first
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.draft_session import DraftModelSession, Shortlist
    from tokalign.runtime.mlx.sampling import Sampling

WIDTH = 4
"""How many nodes a pass goes on after; with eight of them no more was accepted."""

CHILDREN = 4
"""How many next tokens are listed after each of them; eight gained 0.005 tokens per round."""

LEAST_NODE = 0.005
"""A node that is less likely is left out. At 0.015, 3 of 100 accepted tokens are lost."""


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

Extension: TypeAlias = tuple[bytes, tuple[TargetId, ...] | None, bool, bool]
"""A node's text with one more token: `data`, `ids`, `goes_on` and `absorbed` of a `Node`."""

Extend: TypeAlias = Callable[[Node, DraftId], Extension]


class ModelTree:
    """The tree of one round while it grows. `finish` is called exactly once.

    ids: the text that the session has read. roots: the first nodes, the most probable first.
    steps: passes to come. sampler: how the target draws, from position `start` on; None if it takes
    its argmax. firsts: as for `DraftModelSession.branch`. least: nodes of a lower probability are
    dropped.
    width, children: how many nodes a pass goes on after, and how many ids are listed after each.
    ahead, known: what the latest pass has read besides the text, and what follows each id of it.
    """

    def __init__(
        self,
        session: DraftModelSession,
        ids: Sequence[DraftId],
        roots: Sequence[Node],
        steps: int,
        *,
        extend: Extend,
        sampler: Sampling | None = None,
        start: int = 0,
        firsts: FirstIds | None = None,
        least: float = LEAST_NODE,
        width: int = WIDTH,
        children: int = CHILDREN,
        ahead: Ahead = NOTHING_AHEAD,
        known: Sequence[Shortlist] = (),
    ) -> None:
        self._session, self._sampler, self._firsts, self._start_at = session, sampler, firsts, start
        self._width, self._children, self._extend = width, children, extend
        self._least, self._steps = log(least), steps
        self.nodes = list(roots)
        self._untranslated = set[int]()
        self._end = 0  # of the most probable chain
        self._open = {*range(len(roots))}  # the nodes that no pass has gone on after
        # The ids that a branch takes back become the first ids of the tree in the draft's cache,
        # and branches begin after them.
        if ahead.tree:
            self._back = ahead.back
        else:
            likely = [self.nodes[index].back for index in self._most_probable()]
            self._back = max(likely, default=0)
        self._before = ids[: len(ids) - self._back]
        self._tokens = list(ids[len(ids) - self._back :])
        self._parents = list(range(-1, self._back - 1))
        self._row: dict[int, int] = {}  # of a node in that tree
        self._go_on_ahead(ahead, known)
        self._pending = self._start()

    def finish(self) -> list[Node]:
        """Wait for all passes. Returns: the nodes, parents before their children."""
        self._translate()
        while self._pending is not None:
            chosen, pending = self._pending
            begin = len(self.nodes)
            for index, found in zip(chosen, pending(), strict=True):
                self._add(index, found)
            self._open = {*range(begin, len(self.nodes))}
            # Few of them are needed for the next pass; the others are translated while it runs.
            self._pending = self._start()
            self._translate()
        return self.nodes

    def _go_on_ahead(self, ahead: Ahead, known: Sequence[Shortlist]) -> None:
        """Add what follows the nodes that have been read already."""
        self._tokens += ahead.tree.ids[self._back :]
        self._parents += ahead.tree.parents[self._back :]
        read = zip(self._parents, self._tokens, strict=True)
        rows = {key: row for row, key in enumerate(read) if row >= self._back}
        index = 0
        while rows and index < len(self.nodes):
            row = rows.get((self._row_before(index), self.nodes[index].token))
            if row is not None and self._translated(index).goes_on:
                self._row[index] = row
                self._open.remove(index)
                self._add(index, known[row - self._back])
            index += 1

    def _add(self, index: int, found: Shortlist) -> None:
        node, on_chain = self.nodes[index], index == self._end
        best = max(found.logprobs, default=0.0)
        for token, logprob in zip(found.ids, found.logprobs, strict=True):
            reached, goes_on_chain = node.logprob + logprob, on_chain and logprob == best
            if goes_on_chain:
                self._end = len(self.nodes)
            if goes_on_chain or reached >= self._least:
                self._open.add(len(self.nodes))
                self._untranslated.add(len(self.nodes))
                self.nodes.append(Node(reached, index, 0, token, b"", None))

    def _translated(self, index: int) -> Node:
        node = self.nodes[index]
        if index in self._untranslated:
            self._untranslated.remove(index)
            text = self._extend(self.nodes[node.parent], node.token)
            node = self.nodes[index] = Node(*node[:4], *text)
        return node

    def _translate(self) -> None:
        for index in sorted(self._untranslated):
            self._translated(index)

    def _row_before(self, index: int) -> int:
        """The row that a node's own one follows."""
        node = self.nodes[index]
        return self._back - node.back - 1 if node.parent < 0 else self._row[node.parent]

    def _most_probable(self) -> list[int]:
        """The nodes to go on after: the end of the most probable chain, then by probability."""
        nodes = self.nodes
        ranked = sorted(self._open, key=lambda index: (index != self._end, -nodes[index].logprob))
        going_on = (index for index in ranked if self._translated(index).goes_on)
        return list(islice(going_on, self._width))

    def _start(self) -> tuple[Sequence[int], Callable[[], list[Shortlist]]] | None:
        """Begin a pass over the rows of the most probable nodes, if one is left."""
        if not self._steps or not (chosen := self._most_probable()):
            return None
        self._steps -= 1
        computed = len(self._tokens)
        for index in chosen:
            follows = self._row_before(index)
            self._row[index] = len(self._tokens)
            self._tokens.append(self.nodes[index].token)
            self._parents.append(follows)
        return chosen, self._session.branch(
            self._before,
            TokenTree(tuple(self._tokens), tuple(self._parents), (SOURCE,) * len(self._tokens)),
            computed,
            self._children,
            self._firsts,
            self._sampler,
            [self._start_at + len(self.nodes[index].ids or ()) for index in chosen],
        )


def join(nodes: Sequence[Node], possible: float = 1.0) -> TokenTree[TargetId]:
    """The tree of target ids that the nodes' texts stand for; the most probable chain comes first.

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
    place: dict[int, int] = {}  # of an id of the tree, by its parent and itself
    ends: list[int] = []  # of each node, the last id of its text
    for node, probability in zip(nodes, left, strict=True):
        path, last = node.ids or (), -1
        if node.parent >= 0 and (above := nodes[node.parent].ids):
            shared = len(above)
            if path[:shared] == above:  # the text begins as that of the node before
                path, last = path[shared:], ends[node.parent]
        for token in path:
            key = (last << 32) + token
            found = place.get(key)
            if found is None:
                found = place[key] = len(ids)
                ids.append(token)
                parents.append(last)
                reached.append(0.0)
            last = found
        ends.append(last)
        if last >= 0:
            reached[last] += max(0.0, probability)
    for index in reversed(range(len(ids))):
        if parents[index] >= 0:
            reached[parents[index]] += reached[index]
    # Where nearly all is absorbed, rounding may leave less than there is.
    first = sum([mass for mass, parent in zip(reached, parents, strict=True) if parent < 0])
    possible = max(possible, first)
    reached = [mass / possible for mass in reached] if possible else reached
    likeliest = sorted(range(len(parents)), key=lambda i: (-reached[i], i))
    chain, others = chain_first(parents, likeliest)
    kept = [i for i in chain if reached[i]]  # nothing is left of what is absorbed for certain
    kept += [i for i in others if reached[i] >= LEAST_NODE]
    at = {index: new for new, index in enumerate(kept)}
    return TokenTree(
        tuple([ids[i] for i in kept]),
        tuple([at.get(parents[i], -1) for i in kept]),
        (SOURCE,) * len(kept),
        tuple(
            [min(1.0, reached[i] / (reached[p] if (p := parents[i]) >= 0 else 1.0)) for i in kept]
        ),
    )
