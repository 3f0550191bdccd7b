"""Which next target token the draft model expects, from the logits after its last few tokens.

A *cover* takes back j of the draft's last tokens and continues with one token that begins with
their bytes. It is one way in which the draft's own encoding of the text may go on. The probability
of a cover is that of the tokens it keeps and of the one it adds; the probability of a next target
token is the sum over all covers whose text begins with it. Source: DESIGN of this project; the sum
over covers is that of "Exact Byte-Level Probabilities from Tokenized Language Models" (Phan et al.,
2024), cut to J + 1 positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tokalign.runtime.rounds import Array
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.committed_text import Boundary
from tokalign.runtime.translation.growth import Extension, Node
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.draft_session import Shortlist
    from tokalign.runtime.mlx.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverSearch:
    """How far to search.

    max_back: J, the most draft tokens taken back. 0 means no healing; a third one changed nothing.
    width: how many draft tokens are listed at each position.
    least_cover: covers of a lower probability are not translated, unless none above it begins with
        a target token. At 0.015 half of them are left out, and 1 in 200 accepted tokens is lost.
    mask: whether covers that would be absorbed are passed over. Without it nothing is proposed
        where one of them is the most probable, as with a drafter that does not know of merge sites.
    least_alternative: a next target token of a lower probability is not proposed in the place of
        the most probable one.
    """

    max_back: int = 2
    width: int = 32
    least_cover: float = 0.015
    mask: bool = True
    least_alternative: float = 0.04


FOR_SAMPLING = CoverSearch(least_cover=0.003)
"""Where ids are drawn, unlikely ones come up as well, and there are many of them."""

_SECOND_GETS = 1 / 3
"""The share of the probability not looked at yet that is assumed to go to the second target token.

With it the first token is overtaken later in 1 of 200 rounds, and half of the rounds need no second
look.
"""


Cover: TypeAlias = tuple[float, int, DraftId]
"""Log-probability (given the text without its last J tokens), how many tokens it takes back, the
token it adds."""


class TranslatedCover(NamedTuple):
    """A cover with what it adds to the committed text.

    logprob, back, token: as in `Cover`. data, ids: the bytes, and their target ids (one or more).
    """

    logprob: float
    back: int
    token: DraftId
    data: bytes
    ids: tuple[TargetId, ...]


class CoverTranslator:
    """Translates covers. One object per request; `boundary` follows the committed ids elsewhere.

    pending: the bytes of none, the last one, the last two, ... of the draft's tokens in this round.
    """

    def __init__(self, pair: Pair, boundary: Boundary) -> None:
        self._tokens, self._roles = pair.draft.vocabulary.tokens, pair.roles()
        self._boundary = boundary
        self.pending: Sequence[bytes] = (b"",)

    def translate(self, back: int, token: DraftId) -> tuple[bytes, tuple[TargetId, ...] | None]:
        """The bytes that follow the committed text, and their target ids.

        back, token: of the cover. The ids are None if the bytes alone would change committed ids.
        A special token adds no bytes; its ids are its counterpart's, or none if it has no
        counterpart.
        """
        tokens = self._tokens
        spelled = tokens[token] if token < len(tokens) else b""
        data = spelled[len(self.pending[back]) :]
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
            absorbed = ids is None and self._boundary.absorbs(data)
            return Extension(data, ids, goes_on=not absorbed, absorbed=absorbed)
        special = self._roles.get(token)
        ids = None if special is None or node.ids is None else (*node.ids, special)
        return Extension(node.data, ids, goes_on=False)


class CandidateCovers:
    """The covers of one round, and what is known of the next target token from those looked at.

    lists: element j says what may follow with j tokens taken back. At j = 0 the whole vocabulary
        may, listed or not.
    least: `CoverSearch.least_cover`. absorbs: whether the target has ruled out that these bytes
        follow; such covers are masked.

    mass: for each next target token found so far, the summed probability of its covers.
    possible: the probability of everything that may follow; `mass / possible` is between 0 and 1.
        What is masked is subtracted as it is found.
    masked: how many covers were.
    translated: the covers that gave `mass`, the most probable first, as (cover, bytes, ids).
    doubtful: other covers whose bytes alone would change committed ids, as nodes of a tree. Longer
        texts with these beginnings may leave the ids as they are.

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

    # Loops and tuples are plain on purpose: after a model's pass the processor's caches are cold,
    # and a generator or a named tuple in a loop costs a handful of cache misses.

    def __init__(
        self,
        lists: Sequence[Shortlist],
        least: float,
        translator: CoverTranslator,
        absorbs: Callable[[bytes], bool],
    ) -> None:
        self._translator, self._absorbs, self._least = translator, absorbs, least
        self.mass: dict[TargetId, float] = {}
        self.translated: list[tuple[Cover, bytes, tuple[TargetId, ...]]] = []
        self.doubtful: list[Node] = []
        kept = 0.0  # log-probability of the tail tokens that are kept
        for at in lists:
            kept += at.kept
        possible = exp(kept) if lists else 0.0
        covers: list[Cover] = []
        for back, at in enumerate(lists):
            kept -= at.kept
            logprobs = at.logprobs
            for i, token in enumerate(at.ids):
                logprob = kept + logprobs[i]
                covers.append((logprob, back, token))
                if back:  # only what begins with the bytes taken back may follow
                    possible += exp(logprob)
        covers.sort()
        self.possible, self.masked = possible, 0
        self._covers = covers  # not looked at yet, the most probable last
        self._left = 0.0  # the probability of those of them that will be
        for cover in reversed(covers):
            probability = exp(cover[0])
            if probability < possible * least:
                break
            self._left += probability

    def look(self, *, enough: int | None = None, until_clear: bool = False) -> None:
        """Translate all likely covers, `enough` of them, or until one target token clearly leads.

        If none of them gives a target token, go on with less likely ones until one does.
        Cost: 5 µs per cover.
        """
        covers, mass, translate = self._covers, self.mass, self._translator.translate
        while covers:
            if enough is not None:
                if len(self.translated) >= enough:
                    return
            elif until_clear and self._is_clear():
                return
            cover = covers[-1]
            logprob, back, token = cover
            probability = exp(logprob)
            if mass and probability < self.possible * self._least:
                return
            covers.pop()
            self._left -= probability
            data, ids = translate(back, token)
            if ids:
                self.translated.append((cover, data, ids))
                mass[ids[0]] = mass.get(ids[0], 0.0) + probability
            elif ids is None:
                if self._absorbs(data):
                    self.possible -= probability
                    self.masked += 1
                else:
                    self.doubtful.append(Node(logprob, -1, back, token, data, None, goes_on=True))

    def nodes(self) -> list[Node]:
        """The covers looked at, as the first nodes of a tree."""
        return [
            Node(logprob, -1, back, token, data, ids, goes_on=bool(data))
            for (logprob, back, token), data, ids in self.translated
        ]

    def expected_nodes(self, sampler: Sampling, noise: Array | None) -> list[Node]:
        """The same by how probable it is that the target, drawing as `sampler` does, chooses them.

        The most probable come first; those that a filter rules out are left out.
        noise: as for `Sampling.expect_among`.
        """
        logprobs = self.logprobs()
        expected = sampler.expect_among(logprobs, noise=noise)
        nodes = []
        for node in self.nodes():
            assert node.ids, "a cover looked at has target ids"
            first = node.ids[0]
            if first in expected:
                logprob = node.logprob - logprobs[first] + expected[first]
                nodes.append(node._replace(logprob=logprob))
        return sorted(nodes, key=attrgetter("logprob"), reverse=True)

    def logprobs(self) -> dict[TargetId, float]:
        """The logarithms of `mass`."""
        return {token: log(probability) for token, probability in self.mass.items()}

    def probabilities(self) -> dict[TargetId, float]:
        """The probability of each next target token found so far, the most probable first."""
        ranked = sorted(self.mass.items(), key=itemgetter(1), reverse=True)
        return {token: min(1.0, mass / self.possible) for token, mass in ranked}

    def leader(self) -> TargetId:
        """The most probable next target token among the covers looked at."""
        return max(self.mass, key=self.mass.__getitem__)

    def best_with(self, token: TargetId) -> TranslatedCover:
        """The most probable cover whose text begins with `token`. Raises: KeyError if there is
        none."""
        for cover, data, ids in self.translated:
            if ids[0] == token:
                return TranslatedCover(*cover, data, ids)
        raise KeyError(token)

    def _is_clear(self) -> bool:
        lead = second = 0.0
        for mass in self.mass.values():
            if mass > lead:
                lead, second = mass, lead
            elif mass > second:
                second = mass
        return lead > 0.0 and lead >= second + self._left * _SECOND_GETS
