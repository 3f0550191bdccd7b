"""`exact`: the translation that loses nothing at the boundary between two tokenizers.

It needs three things together (`docs/alignment.md`):

* The draft model reads the canonical encoding of the committed text (`committed_text.py`).
* *Healing by cover search*: the pass that brings the draft's cache up to date also gives the logits
  after its last J+1 tokens. With j of them taken back, every token that begins with their bytes is
  a way to continue; those of all j compete by probability, without a further pass (`covers.py`).
* *Merge sites masked*: a continuation that the last committed id would absorb contradicts the
  target's own boundary and is passed over.

The same pass reads what the free sources expect after the text (`read_ahead.py`). The draft model
then goes on after several of the most probable covers at once and grows a tree (`growth.py`): where
a draft model is wrong, its second or third guess is often right. The host waits for the device once
for each pass, and does what needs no answer while a pass is under way.
Where the target or the draft model's cache takes no tree, the draft is a chain: the draft model
goes on after the most probable next target token alone. All of its passes are queued at once, so
that the host waits twice, for the covers and for the whole chain.

Where ids are drawn, the draft's ids compete by what they begin with in the target's ids, since the
noise is that of target ids: `Pair.first_ids`.

Source: our own; the sum over covers is that of "Exact Byte-Level Probabilities from
Tokenized Language Models" (Phan et al., 2024), cut to J + 1 positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from tokalign.runtime.rounds import Array, Proposal
from tokalign.runtime.translation.base import Asked, Pair, chain_with_leaves
from tokalign.runtime.translation.committed_text import Boundary, DraftText
from tokalign.runtime.translation.covers import CandidateCovers, CoverTranslator
from tokalign.runtime.translation.growth import CHILDREN, LEAST_NODE, WIDTH, ModelTree, Node, join
from tokalign.runtime.translation.read_ahead import NOTHING_AHEAD, Ahead, ahead_by_text
from tokalign.tables.alignment import Alignment, FirstIds
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
"""

_LEAST_ALTERNATIVE = 0.04
"""A next target token of a lower probability is not proposed in the place of a chain's first."""


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
        self._sampler, self._most_back = sampler, most_back
        self._target_ids = len(pair.target.vocabulary)
        self._boundary = Boundary(pair.target, alignment.merge_sites)
        self._translator = CoverTranslator(pair, self._boundary)

    def read(self, ids: Sequence[TargetId]) -> list[DraftId]:
        self._text.follow(ids)
        return self._text.ids

    def draft(self, ids: Sequence[TargetId], session: DraftModelSession, asked: Asked) -> Proposal:
        own, sampler, pending = self.read(ids), self._sampler, self._pending_bytes()
        grows = asked.alternatives > 0 and session.can_branch
        tail, ahead = own[len(own) - len(pending) + 1 :], NOTHING_AHEAD
        if grows and (guesses := asked.guesses()):
            ahead = ahead_by_text(guesses, self._pair, tail, pending)
        rows = session.start_shortlists(own, len(tail), ahead.tree)
        # From here to `lists()` the draft model's pass is under way.
        extending = self._alignment.healing.extending
        lists = rows.among([extending(data) for data in pending[1:]], _LISTED)
        known = self._listed(session, rows.ahead, len(ids), ahead)
        self._boundary.follow(ids)
        noise = None if sampler is None else sampler.noise_at(len(ids), self._target_ids)
        if noise is not None:  # of the first choice; it is computed together with the pass
            session.start(noise)
        least = _LEAST_OF_CHAIN if sampler is None else _LEAST_DRAWN
        least = _LEAST_OF_TREE if grows else least
        covers = CandidateCovers(lists(), pending, least, self._translator)
        covers.look(enough=WIDTH if grows and sampler is None else None)
        counts = Counter[str]()
        if not covers.translated:
            tree, back = EMPTY_TREE, 0
        elif grows:
            steps = asked.steps - 1
            tree, back = self._grow(covers, session, len(ids), steps, noise, ahead, known)
        else:
            tree, back = self._chain(covers, session, ids, asked, noise, counts)
        counts["masked"] += covers.masked
        if back:
            counts["healed"] += 1
            counts["taken_back"] += back
        return Proposal(tree=tree, counts=counts)

    def _grow(
        self,
        covers: CandidateCovers,
        session: DraftModelSession,
        start: int,
        steps: int,
        noise: Array | None,
        ahead: Ahead,
        known: Callable[[], list[Shortlist]],
    ) -> tuple[TokenTree[TargetId], int]:
        """A tree after the most probable covers, and how many tokens the most probable one takes
        back. start: how many ids are committed. ahead, known: as of `ModelTree`."""
        begun, sampler = len(covers.translated), self._sampler
        if sampler is None:
            # Longer texts may show what a doubtful cover stands for.
            roots = [*covers.translated, *covers.doubtful]
            roots.sort(key=attrgetter("logprob"), reverse=True)
            least = covers.possible * LEAST_NODE
        else:
            roots, least = covers.expected(sampler, noise), LEAST_NODE
        growth = ModelTree(
            session,
            self._text.ids,
            roots,
            steps,
            extend=self._translator.extend,
            sampler=sampler,
            start=start,
            firsts=self._firsts,
            least=least,
            ahead=ahead,
            known=known(),
        )
        # While the first of these passes runs, look at the other covers.
        covers.look()
        growth.nodes += covers.translated[begun:]
        possible = covers.possible if sampler is None else 1.0
        return join(growth.finish(), possible), roots[0].back

    def _pending_bytes(self) -> list[bytes]:
        """The bytes of none, the last one, two, ... J tokens that may still change. The first token
        of all is never among them: the draft model needs one to go on from."""
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

    @cached_property
    def _firsts(self) -> FirstIds | None:
        """What draft ids compete by; None for themselves, where the target takes its argmax."""
        if self._sampler is None:
            return None
        return self._pair.first_ids(self._alignment.intersection)

    def _listed(
        self, session: DraftModelSession, rows: Array, start: int, ahead: Ahead
    ) -> Callable[[], list[Shortlist]]:
        """What follows each of the ids ahead. rows: of these."""
        if not ahead.tree or rows is None:
            return list
        positions = [start + count for count in ahead.positions]
        return session.listed(rows, CHILDREN, self._firsts, self._sampler, positions)

    # -- chains ------------------------------------------------------------------------------------

    def _chain(
        self,
        covers: CandidateCovers,
        session: DraftModelSession,
        ids: Sequence[TargetId],
        asked: Asked,
        noise: Array | None,
        counts: Counter[str],
    ) -> tuple[TokenTree[TargetId], int]:
        """A chain after the best cover, with other ids in the place of its first one, and how many
        tokens the cover takes back. covers: all that are likely enough have been looked at."""
        ranked = self._rank(covers, noise)
        cover, steps = covers.best_with(ranked[0]), asked.steps - 1
        chain: Sequence[TargetId] = cover.ids or ()
        if steps and cover.data:
            text, first = self._text.ids, len(ids) + len(chain)
            own = [*text[: len(text) - cover.back], cover.token]
            drafted = session.draft(own, steps, self._firsts, self._sampler, first).ids
            chain = self._join_drafted(cover, drafted, counts)
        ranking = sorted(covers.mass.items(), key=itemgetter(1), reverse=True)
        probability = {token: min(1.0, mass / covers.possible) for token, mass in ranking}
        if self._sampler is None:
            others = [token for token, known in probability.items() if known >= _LEAST_ALTERNATIVE]
            stated = [probability[token] for token in chain[:1] if token in probability]
        else:  # how often a drawn id is right is another question
            others, stated = [*ranked], []
        leaves = [(token, probability[token]) for token in others if token not in chain[:1]]
        leaves = leaves[: asked.alternatives]
        return chain_with_leaves(chain, asked.learned, stated=stated, leaves=leaves), cover.back

    def _rank(self, covers: CandidateCovers, noise: Array | None) -> list[TargetId]:
        """The next target token, then alternatives to it if it is drawn. Covers that were not
        looked at are not drawn from."""
        if self._sampler is None:
            return [max(covers.mass, key=covers.mass.__getitem__)]
        return list(self._sampler.expect_among(covers.logprobs(), noise))

    def _join_drafted(
        self, cover: Node, drafted: Sequence[DraftId], counts: Counter[str]
    ) -> tuple[TargetId, ...]:
        """Target ids of a cover and what was drafted; of less if its end would be absorbed."""
        tokens = self._pair.draft.vocabulary.tokens
        ordinary, end = self._pair.split_end(drafted)
        spelled = [tokens[token] for token in ordinary]
        while (ids := self._boundary.encode(cover.data + b"".join(spelled))) is None:
            counts["absorbed"] += 1
            end = ()
            if not spelled:
                return ()
            spelled.pop()
        return (*ids, *end)
