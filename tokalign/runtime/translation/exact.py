"""`exact`: the translation that loses nothing at the boundary between two tokenizers.

It needs three things together (`docs/alignment.md`):

* The draft model reads the canonical encoding of the committed text (`committed_text.py`).
* *Healing by cover search*: the pass that brings the draft's cache up to date also gives the logits
  after its last J+1 tokens. With j of them taken back, every token that begins with their bytes is
  a way to continue; those of all j compete by probability, without a further pass.
* *Merge sites masked*: a continuation that the last committed id would absorb contradicts the
  target's own boundary and is passed over.

A *cover* takes back j of the draft's last tokens and continues with one token that begins with
their bytes. The probability of a cover is that of the tokens it keeps and of the one it adds; the
probability of a next target token is the sum over all covers whose text begins with it.

The draft model then goes on after several of the most probable covers at once and grows a tree
(`growth.py`): where a draft model is wrong, its second or third guess is often right. The host
waits for the device once for each pass, and does what needs no answer while a pass is under way.
Where the target or the draft model's cache takes no tree, the draft is a chain (`exact_chain.py`).
Source: DESIGN of this project; the sum over covers is that of "Exact Byte-Level Probabilities from
Tokenized Language Models" (Phan et al., 2024), cut to J + 1 positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from math import exp, log
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from tokalign.runtime.rounds import Array, Context
from tokalign.runtime.translation.base import Learned, Pair, Translated
from tokalign.runtime.translation.committed_text import Boundary, CoverTranslator, DraftText
from tokalign.runtime.translation.exact_chain import ChainDraft
from tokalign.runtime.translation.growth import (
    LEAST_NODE,
    WIDTH,
    Growth,
    Node,
    can_grow,
    join,
)
from tokalign.tables.alignment import Alignment, Intersection
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.draft_session import DraftModelSession, Shortlist
    from tokalign.runtime.mlx.sampling import Sampling


MOST_BACK = 2
"""J, the most draft tokens taken back; a third one changed nothing."""

_LISTED = 32
"""Draft tokens listed at each position."""

_LEAST_OF_CHAIN, _LEAST_DRAWN, _LEAST_OF_TREE = 0.015, 0.003, 0.002
"""Less probable covers are not translated, unless none above them begins with a target token.

At 0.015 half of them are left out, and 1 in 200 accepted tokens of a chain is lost. Where ids are
drawn, unlikely ones come up as well. For a tree more are translated, while its first pass runs.
Many covers may begin with one target token: a number after a space is hundreds of Llama's tokens,
each of which begins with one of ten digits.
"""

Cover: TypeAlias = tuple[float, int, DraftId]
"""Log-probability (given the text without its last J tokens), how many tokens it takes back, the
token it adds."""


class CandidateCovers:
    """The covers of one round, and what is known of the next target token from those looked at.

    lists: element j says what may follow with j tokens taken back. At j = 0 the whole vocabulary
        may, listed or not.
    least: see `_LEAST_OF_CHAIN`. absorbs: whether the target has ruled out that these bytes
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

    def look(self, enough: int | None = None) -> None:
        """Translate all likely covers, or `enough` of them.

        If none of them gives a target token, go on with less likely ones until one does.
        Cost: 5 µs per cover.
        """
        covers, mass, translate = self._covers, self.mass, self._translator.translate
        while covers:
            if enough is not None and len(self.translated) >= enough:
                return
            cover = covers[-1]
            logprob, back, token = cover
            probability = exp(logprob)
            if mass and probability < self.possible * self._least:
                return
            covers.pop()
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


class ExactTranslation:
    """Drafts canonically, heals the boundary, masks merge sites, translates incrementally.

    sampler: how the draft's ids are chosen; None takes the argmax. most_back: draft tokens taken
    back at most; 0 means no healing.
    """

    def __init__(
        self,
        pair: Pair,
        text: DraftText,
        alignment: Alignment,
        sampler: Sampling | None = None,
        *,
        most_back: int = MOST_BACK,
    ) -> None:
        self._pair, self._text, self._alignment = pair, text, alignment
        self._most_back = most_back
        self._sampler, self._target_ids = sampler, len(pair.target.vocabulary)
        self._boundary = Boundary(pair.target, alignment.merge_sites)
        self._translator = CoverTranslator(pair, self._boundary)
        self._chains = ChainDraft(pair, self._boundary, sampler, lambda: self._shared)

    def draft(
        self,
        context: Context,
        session: DraftModelSession,
        steps: int,
        *,
        alternatives: int,
        learned: Learned,
    ) -> Translated:
        committed = context.ids
        self._text.follow(committed)
        ids, pending = self._text.ids, self._pending_bytes()
        rows = session.start_shortlists(ids, len(pending) - 1)
        # From here to `read` the draft model's pass is under way.
        extending = self._alignment.healing.extending
        lists = rows.among([extending(data) for data in pending[1:]], _LISTED)
        grows = can_grow(session, self._sampler, alternatives)
        self._boundary.follow(committed)
        self._translator.pending = pending
        noise = self._start_noise(context, session)
        least = _LEAST_OF_CHAIN if self._sampler is None else _LEAST_DRAWN
        least = _LEAST_OF_TREE if grows else least
        covers = CandidateCovers(lists.read(), least, self._translator, self._boundary.absorbs)
        greedy = self._sampler is None
        covers.look(enough=WIDTH if grows and greedy else None)
        counts = Counter[str]()
        if not covers.translated:
            tree, back = EMPTY_TREE, 0
        elif grows:
            tree, back = self._grow(covers, context, session, steps - 1, noise)
        else:
            tree, back = self._chains.draft(
                covers,
                ids,
                context,
                session,
                steps - 1,
                noise=noise,
                alternatives=alternatives,
                learned=learned,
                counts=counts,
            )
        counts["masked"] += covers.masked
        if back:
            counts["healed"] += 1
            counts["taken_back"] += back
        return Translated(tree, counts)

    def _grow(
        self,
        covers: CandidateCovers,
        context: Context,
        session: DraftModelSession,
        steps: int,
        noise: Array | None,
    ) -> tuple[TokenTree[TargetId], int]:
        """A tree after the most probable covers, and how many tokens the most probable one takes
        back."""
        known, sampler = len(covers.translated), self._sampler
        if sampler is None:
            # Longer texts may show what a doubtful cover stands for.
            roots = [*covers.nodes(), *covers.doubtful]
            roots.sort(key=attrgetter("logprob"), reverse=True)
            least, shared = covers.possible * LEAST_NODE, None
        else:
            roots = covers.expected_nodes(sampler, noise)
            least, shared = LEAST_NODE, self._shared
        growth = Growth(
            session,
            self._text.ids,
            roots,
            steps,
            extend=self._translator.extend,
            sampler=sampler,
            start=len(context.ids),
            shared=shared,
            least=least,
        )
        # While the first of these passes runs, look at the other covers.
        covers.look()
        growth.nodes += covers.nodes()[known:]
        possible = covers.possible if sampler is None else 1.0
        return join(growth.finish(), possible), roots[0].back

    def _pending_bytes(self) -> list[bytes]:
        """The bytes of none, the last one, two, ... J tokens that may still change.

        The first token of all is never among them: the draft model needs one to go on from.
        """
        tokens, segment = self._pair.draft.vocabulary.tokens, self._text.segment
        pending, tail = [b""], b""
        most = min(self._most_back, len(self._text.ids) - 1)
        # By piece: `stable` would be finer, but costs 60 µs, and no more was accepted with it.
        unstable = segment.ids[max(segment.settled, len(segment.ids) - most) :]
        while unstable:
            tail = tokens[unstable.pop()] + tail
            if not segment.ends_with(tail):  # the draft's vocabulary cannot spell all of the text
                break
            pending.append(tail)
        return pending

    def _start_noise(self, context: Context, session: DraftModelSession) -> Array | None:
        """Have the noise of the first choice computed together with the pass before it."""
        if self._sampler is None:
            return None
        noise = self._sampler.noise_at(len(context.ids), self._target_ids)
        if noise is not None:
            session.start(noise)
        return noise

    @cached_property
    def _shared(self) -> Intersection:
        return self._pair.with_roles(self._alignment.intersection)
