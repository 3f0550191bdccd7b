"""Covers: ways to continue the committed text with one token of the draft, in the target's ids.

A *cover* takes back j of the draft's last tokens and continues with one token that begins with
their bytes. The probability of a cover is that of the tokens it keeps and of the one it adds; the
probability of a next target token is the sum over all covers whose text begins with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from operator import attrgetter
from typing import TYPE_CHECKING

from tokalign.runtime.rounds import Array
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.committed_text import Boundary
from tokalign.runtime.translation.growth import Extension, Node
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_NOTHING = 1e-300
"""Less probable covers are none: a share of theirs could be 0, which has no logarithm."""

if TYPE_CHECKING:
    from tokalign.runtime.mlx.draft_session import Shortlist
    from tokalign.runtime.mlx.sampling import Sampling


class CoverTranslator:
    """Translates covers. One object per request; `boundary` follows the committed ids elsewhere."""

    def __init__(self, pair: Pair, boundary: Boundary) -> None:
        self._tokens, self._roles, self.size = pair.draft.vocabulary.tokens, pair.roles(), pair.size
        self._boundary, self.absorbs = boundary, boundary.absorbs

    def translate(
        self, taken_back: int, token: DraftId
    ) -> tuple[bytes, tuple[TargetId, ...] | None]:
        """The bytes that follow the committed text, and their target ids.

        taken_back: how many bytes the cover takes back. token: the one that it adds.
        The ids are None if the bytes alone would change committed ids. A special token adds no
        bytes; its ids are its counterpart's, or none if it has no counterpart.
        """
        tokens = self._tokens
        spelled = tokens[token] if token < len(tokens) else b""
        data = spelled[taken_back:]
        if data:
            return data, self._boundary.encode(data)
        special = self._roles.get(token)
        return data, () if special is None else (special,)

    def extend(self, node: Node, token: DraftId) -> Extension:
        """See `growth.Extend`. A special token ends the text."""
        tokens = self._tokens
        spelled = tokens[token] if token < len(tokens) else b""
        if spelled:
            data = node.data + spelled
            ids = self._boundary.encode(data)
            absorbed = ids is None and self.absorbs(data)
            return data, ids, not absorbed, absorbed
        special = self._roles.get(token)
        ids = None if special is None or node.ids is None else (*node.ids, special)
        return node.data, ids, False, False


class CandidateCovers:
    """The covers of one round, and what is known of the next target token from those looked at.

    lists: element j says what may follow with j tokens taken back. At j = 0 the whole vocabulary
        may, listed or not. pending: element j has the bytes of the last j tokens.
    least: less probable covers are not translated, unless none above them begins with a target
        token.

    mass: for each next target token found so far, the summed probability of its covers.
    possible: the probability of everything that may follow; `mass / possible` is between 0 and 1.
        What the target has ruled out is masked: it is subtracted as it is found. So is a token that
        the target's model does not have.
    masked: how many covers were.
    translated: the covers that gave `mass`, the most probable first, as the first nodes of a tree.
    doubtful: other covers whose bytes alone would change committed ids. Longer texts with these
        beginnings may leave the ids as they are.

    Example: Llama 3 drafts for Bielik, and the committed text is "Dziękuję b", whose ` b` is a
    token of both.
        back  token      adds     in Bielik's tokens
        0     `ard`      `ard`    `ard`
        1     ` bardzo`  `ardzo`  `ard|zo`
        1     ` bar`     `ar`     none: with ` b` it would be the token ` bar`
        1     ` by`      `y`      none: with ` b` it would be the token ` by`
    The mass of `ard` is the probability of the first two covers together. ` by` is masked: after
    ` b` Bielik never goes on with `y`. ` bar` is doubtful: the text `ar` may still become `ard`.
    """

    # The loops over all covers are plain on purpose: after a model's pass the processor's caches
    # are cold, and a generator or a named tuple for each of them costs a handful of cache misses.

    def __init__(
        self,
        lists: Sequence[Shortlist],
        pending: Sequence[bytes],
        least: float,
        translator: CoverTranslator,
    ) -> None:
        self._translator, self._least = translator, least
        self._taken_back = [len(data) for data in pending]
        self.mass: dict[TargetId, float] = {}
        self.translated: list[Node] = []
        self.doubtful: list[Node] = []
        kept = 0.0  # log-probability of the tail tokens that are kept
        for at in lists:
            kept += at.kept
        possible = exp(kept) if lists else 0.0
        covers: list[tuple[float, int, DraftId]] = []  # log-probability, tokens taken back, token
        for back, at in enumerate(lists):
            kept -= at.kept
            logprobs = at.logprobs
            for i, token in enumerate(at.ids):
                logprob = kept + logprobs[i]
                covers.append((logprob, back, token))
                if back:  # only what begins with the bytes taken back may follow
                    possible += exp(logprob)
        covers.sort()
        self._possible = self._before = possible
        self.masked = 0
        self._covers = covers  # not looked at yet, the most probable last

    @property
    def possible(self) -> float:
        """The probability of all that may follow, but for what was absorbed: `mass`, where rounding
        leaves less than that of a whole that is nearly all absorbed."""
        return max(self._possible, min(sum(self.mass.values()), self._before))

    def look(self, enough: int | None = None) -> None:
        """Translate all likely covers, or `enough` of them. If none of them gives a target token,
        go on with less likely ones until one does. Cost: 5 µs per cover."""
        covers, mass, translator = self._covers, self.mass, self._translator
        size = translator.size
        while covers:
            if enough is not None and len(self.translated) >= enough:
                return
            logprob, back, token = covers[-1]
            probability = exp(logprob)
            if probability < _NOTHING or (mass and probability < self._possible * self._least):
                return
            covers.pop()
            data, ids = translator.translate(self._taken_back[back], token)
            if ids and ids[0] < size:
                self.translated.append(Node(logprob, -1, back, token, data, ids, bool(data)))
                mass[ids[0]] = mass.get(ids[0], 0.0) + probability
            elif ids or ids is None:
                if ids or translator.absorbs(data):
                    self._possible -= probability
                    self.masked += 1
                else:
                    self.doubtful.append(Node(logprob, -1, back, token, data, None))

    def expected(self, sampler: Sampling, noise: Array) -> list[Node]:
        """The translated covers in the order in which a target that draws as `sampler` does chooses
        among them, without those that a filter rules out. noise: as for `Sampling.expect_among`."""
        logprobs = self.logprobs()
        expected = sampler.expect_among(logprobs, noise)
        nodes = []
        for node in self.translated:
            assert node.ids, "a cover looked at has target ids"
            first = node.ids[0]
            if first in expected:
                logprob = node.logprob - logprobs[first] + expected[first]
                nodes.append(node._replace(logprob=logprob))
        return sorted(nodes, key=attrgetter("logprob"), reverse=True)

    def logprobs(self) -> dict[TargetId, float]:
        return {token: log(probability) for token, probability in self.mass.items()}

    def best_with(self, token: TargetId) -> Node:
        """The most probable cover whose text begins with `token`, which is in `mass`."""
        return next(node for node in self.translated if node.ids and node.ids[0] == token)
