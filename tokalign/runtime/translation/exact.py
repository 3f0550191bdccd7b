"""`exact`: the translation that loses nothing at the boundary between two tokenizers.

It needs three things together (`docs/alignment.md`):

* The draft model reads the canonical encoding of the committed text (`draft_text.py`).
* *Healing by cover search* (`cover_search.py`): the pass that brings the draft's cache up to date
  also gives the logits after its last J+1 tokens. With j of them taken back, every token that
  begins with their bytes is a way to continue; those of all j compete by probability, without a
  further pass.
* *Merge sites masked*: a continuation that the last committed id would absorb contradicts the
  target's own boundary and is passed over.

The draft model then goes on after several of the likeliest covers at once and grows a tree
(`growth.py`): where a draft model is wrong, its second or third guess is often right. The host
waits for the device once for each pass, and does what needs no answer while a pass is under way.
Where the target or the draft model's cache takes no tree, the draft is a chain after the likeliest
next target token (`exact_continuation.py`), and the host waits twice: for the covers, and for the
whole chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import DraftSampler, DraftSession
from tokalign.runtime.proposal import Array
from tokalign.runtime.translation.base import Pair, PendingDraft
from tokalign.runtime.translation.boundary import Boundary
from tokalign.runtime.translation.cover_search import (
    FOR_SAMPLING,
    CandidateCovers,
    CoverSearch,
)
from tokalign.runtime.translation.cover_translator import CoverTranslator
from tokalign.runtime.translation.draft_text import DraftText
from tokalign.runtime.translation.exact_continuation import (
    Continuation,
    GrownDraft,
    NothingDrafted,
)
from tokalign.runtime.translation.growth import (
    LEAST_NODE,
    WIDTH,
    Growth,
    can_rank,
    expectation,
)
from tokalign.tables.alignment import Alignment, Intersection
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_LEAST_COVER = 0.002
"""For a tree less likely covers are translated than for a chain, while its first pass runs.

Many covers may begin with one target token: a number after a space is hundreds of Llama's tokens,
each of which begins with one of ten digits.
"""


class ExactTranslation:
    """Drafts canonically, heals the boundary, masks merge sites, translates incrementally.

    sampler: how the draft's ids are chosen; None takes the likeliest ones.
    """

    def __init__(
        self,
        pair: Pair,
        text: DraftText,
        alignment: Alignment,
        search: CoverSearch | None = None,
        sampler: DraftSampler | None = None,
    ) -> None:
        self._pair, self._text, self._alignment = pair, text, alignment
        self._search = search or (CoverSearch() if sampler is None else FOR_SAMPLING)
        self._sampler = sampler
        self._boundary = Boundary(pair.target, alignment.merge_sites)
        self._translator = CoverTranslator(pair, self._boundary)
        self._extended = pair.target.encoder.order.extended
        self._last: Continuation | GrownDraft | None = None  # of the round before

    def begin(
        self, context: Context, session: DraftSession, steps: int, *, alternatives: int = 0
    ) -> PendingDraft:
        """See `Translation`."""
        committed = context.ids
        self._text.follow(committed)
        ids, pending = self._text.ids, self._pending_bytes()
        rows = session.start_shortlists(ids, len(pending) - 1)
        # From here to `read` the draft model's pass is under way.
        extending = self._alignment.healing.extending
        lists = rows.among([extending(data) for data in pending[1:]], self._search.width)
        grows = alternatives > 0 and session.can_branch and can_rank(self._sampler)
        self._boundary.follow(committed)
        self._translator.pending = pending
        counts, noise = self._count_unstable(context), self._start_noise(context, session)
        least = self._search.least_cover
        if grows:
            least = min(least, _LEAST_COVER)
        covers = CandidateCovers(lists.read(), least, self._translator, self._rules_out)
        greedy = self._sampler is None
        covers.look(enough=WIDTH if grows and greedy else None, until_clear=greedy)
        if not covers.translated or self._is_ruled_out(covers):
            _count(covers, 0, counts)
            return NothingDrafted(counts)
        if grows:
            return self._grow(covers, context, session, steps - 1, noise, counts)
        ranked = self._rank(covers, context, noise)
        cover = covers.likeliest_with(ranked[0])
        draft = Continuation(self._pair, self._boundary, cover, len(committed), counts)
        if steps > 1 and cover.data:
            own_ids = [*ids[: len(ids) - cover.back], cover.token]
            self._go_on(draft, own_ids, context, session, steps - 1)
        # While these passes run, rank the other first tokens and compute their probabilities.
        covers.look()
        _count(covers, cover.back, counts)
        self._offer(draft, ranked, covers.probabilities())
        self._last = draft
        return draft

    def _grow(
        self,
        covers: CandidateCovers,
        context: Context,
        session: DraftSession,
        steps: int,
        noise: Array | None,
        counts: Counter[str],
    ) -> GrownDraft:
        """Start the passes that grow a tree after the likeliest covers."""
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
            least=least,
            shared=shared,
            expect=expectation(sampler, len(context.ids)),
        )
        # While the first of these passes runs, look at the other covers.
        covers.look()
        growth.nodes += covers.nodes()[known:]
        _count(covers, roots[0].back, counts)
        possible = covers.possible if sampler is None else 1.0
        self._last = draft = GrownDraft(growth, len(context.ids), possible, counts)
        return draft

    def _pending_bytes(self) -> list[bytes]:
        """The bytes of none, the last one, two, ... J tokens that may still change.

        The first token of all is never among them: the draft model needs one to go on from.
        """
        tokens, segment = self._pair.draft.vocabulary.tokens, self._text.segment
        pending, tail = [b""], b""
        most = min(self._search.max_back, len(self._text.ids) - 1)
        # By piece: `stable` would be finer, but costs 60 µs, and no more was accepted with it.
        unstable = segment.ids[max(segment.settled, len(segment.ids) - most) :]
        while unstable:
            tail = tokens[unstable.pop()] + tail
            if not segment.ends_with(tail):  # the draft's vocabulary cannot spell all of the text
                break
            pending.append(tail)
        return pending

    def _count_unstable(self, context: Context) -> Counter[str]:
        """Count whether the last proposal's last id was unstable, and accepted with all before it.

        An unstable id is one that more text could merge into a longer token.
        """
        counts = Counter[str]()
        last, self._last = self._last, None
        if last is not None and last.chain and last.chain[-1] in self._extended:
            counts["unstable"] = 1
            end = last.start + len(last.chain)
            if tuple(context.ids[last.start : end]) == last.chain:
                counts["unstable_accepted"] = 1
        return counts

    def _start_noise(self, context: Context, session: DraftSession) -> Array | None:
        """Have the noise of the first choice computed together with the pass before it."""
        if self._sampler is None:
            return None
        noise = self._sampler.noise_at(len(context.ids), len(self._pair.target.vocabulary))
        if noise is not None:
            session.start(noise)
        return noise

    def _rules_out(self, data: bytes) -> bool:
        """Whether a text that begins with these bytes is masked."""
        return self._search.mask and self._boundary.absorbs(data)

    def _is_ruled_out(self, covers: CandidateCovers) -> bool:
        """Whether masking is off and the likeliest cover would be absorbed: nothing is proposed."""
        if self._search.mask or not covers.doubtful:
            return False
        first = covers.doubtful[0]
        likeliest, _, _ = covers.translated[0]
        return first.logprob > likeliest[0] and self._boundary.absorbs(first.data)

    def _rank(
        self, covers: CandidateCovers, context: Context, noise: Array | None
    ) -> list[TargetId]:
        """The next target token, then alternatives to it if it is drawn.

        Covers that were not looked at are not drawn from.
        """
        if self._sampler is None:
            return [covers.leader()]
        return self._sampler.draw_among(
            covers.logprobs(),
            position=len(context.ids),
            ids=context.ids,
            noise=noise,
        )

    def _go_on(
        self,
        draft: Continuation,
        own_ids: Sequence[DraftId],
        context: Context,
        session: DraftSession,
        steps: int,
    ) -> None:
        """Start the passes that draft on after the draft's cover.

        own_ids: the draft's ids of the text, the cover's token included.
        """
        if self._sampler is None:
            draft.drafted = session.draft(own_ids, steps)
        else:
            draft.drawn = session.draw(
                own_ids,
                steps,
                sampler=self._sampler,
                after=[*context.ids, *draft.cover.ids],
                shared=self._shared,
            )

    @cached_property
    def _shared(self) -> Intersection:
        return self._pair.with_roles(self._alignment.intersection)

    def _offer(
        self, draft: Continuation, ranked: Sequence[TargetId], probability: dict[TargetId, float]
    ) -> None:
        """Note what may be proposed as the first token, and how probable each of these is.

        For a drawn id no probability is given: how often it is right is another question.
        """
        if self._sampler is not None:
            draft.alternatives = [(token, probability[token]) for token in ranked]
            return
        least = self._search.least_alternative
        draft.alternatives = [pair for pair in probability.items() if pair[1] >= least]
        draft.probability = probability


def _count(covers: CandidateCovers, back: int, counts: Counter[str]) -> None:
    """Count what was masked, and the likeliest cover if it takes draft tokens back."""
    counts["masked"] += covers.masked
    if back:
        counts["healed"] += 1
        counts["taken_back"] += back
