"""`exact`: the translation that loses nothing at the boundary between two tokenizers.

It needs three things together (`docs/alignment.md`):

* The draft model reads the canonical encoding of the committed text (`committed_text.py`).
* *Healing by cover search* (`cover_search.py`): the pass that brings the draft's cache up to date
  also gives the logits after its last J+1 tokens. With j of them taken back, every token that
  begins with their bytes is a way to continue; those of all j compete by probability, without a
  further pass.
* *Merge sites masked*: a continuation that the last committed id would absorb contradicts the
  target's own boundary and is passed over.

The draft model then goes on after several of the most probable covers at once and grows a tree
(`growth.py`): where a draft model is wrong, its second or third guess is often right. The host
waits for the device once for each pass, and does what needs no answer while a pass is under way.
Where the target or the draft model's cache takes no tree, the draft is a chain after the most
probable next target token, and the host waits twice: for the covers, and for the whole chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from tokalign.runtime.rounds import Array, Context
from tokalign.runtime.translation.base import Learned, Pair, Translated, chain_with_leaves
from tokalign.runtime.translation.committed_text import Boundary, DraftText
from tokalign.runtime.translation.cover_search import (
    FOR_SAMPLING,
    CandidateCovers,
    CoverSearch,
    CoverTranslator,
    TranslatedCover,
)
from tokalign.runtime.translation.growth import LEAST_NODE, WIDTH, Growth, can_grow, join
from tokalign.tables.alignment import Alignment, Intersection
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.draft_session import DraftModelSession
    from tokalign.runtime.mlx.sampling import Sampling

_LEAST_COVER = 0.002
"""For a tree less likely covers are translated than for a chain, while its first pass runs.

Many covers may begin with one target token: a number after a space is hundreds of Llama's tokens,
each of which begins with one of ten digits.
"""


class ExactTranslation:
    """Drafts canonically, heals the boundary, masks merge sites, translates incrementally.

    sampler: how the draft's ids are chosen; None takes the argmax.
    """

    def __init__(
        self,
        pair: Pair,
        text: DraftText,
        alignment: Alignment,
        search: CoverSearch | None = None,
        sampler: Sampling | None = None,
    ) -> None:
        self._pair, self._text, self._alignment = pair, text, alignment
        self._search = search or (CoverSearch() if sampler is None else FOR_SAMPLING)
        self._sampler = sampler
        self._boundary = Boundary(pair.target, alignment.merge_sites)
        self._translator = CoverTranslator(pair, self._boundary)

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
        lists = rows.among([extending(data) for data in pending[1:]], self._search.width)
        grows = can_grow(session, self._sampler, alternatives)
        self._boundary.follow(committed)
        self._translator.pending = pending
        noise = self._start_noise(context, session)
        least = self._search.least_cover
        if grows:
            least = min(least, _LEAST_COVER)
        covers = CandidateCovers(lists.read(), least, self._translator, self._rules_out)
        greedy = self._sampler is None
        covers.look(enough=WIDTH if grows and greedy else None, until_clear=greedy)
        counts = Counter[str]()
        if not covers.translated or self._is_ruled_out(covers):
            tree, back = EMPTY_TREE, 0
        elif grows:
            tree, back = self._grow(covers, context, session, steps - 1, noise)
        else:
            tree, back = self._chain(
                covers, context, session, steps - 1, noise, alternatives, learned, counts
            )
        counts["masked"] += covers.masked
        if back:
            counts["healed"] += 1
            counts["taken_back"] += back
        return Translated(tree, counts)

    # -- trees -------------------------------------------------------------------------------------

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

    # -- chains ------------------------------------------------------------------------------------

    def _chain(
        self,
        covers: CandidateCovers,
        context: Context,
        session: DraftModelSession,
        steps: int,
        noise: Array | None,
        alternatives: int,
        learned: Learned,
        counts: Counter[str],
    ) -> tuple[TokenTree[TargetId], int]:
        """A chain after the chosen cover, and how many tokens that takes back."""
        ranked = self._rank(covers, context, noise)
        cover = covers.best_with(ranked[0])
        ids: Sequence[TargetId] = cover.ids
        if steps and cover.data:
            own = [*self._text.ids[: len(self._text.ids) - cover.back], cover.token]
            if self._sampler is None:
                drafted = session.draft(own, steps)
                covers.look()  # while these passes run, rank the other first tokens
                ids = self._join_drafted(cover, drafted.read().ids, counts)
            else:
                after = [*context.ids, *cover.ids]
                drawn = session.draw(
                    own, steps, sampler=self._sampler, after=after, shared=self._shared
                )
                covers.look()
                ids = self._join_drawn(cover, drawn.read())
        covers.look()
        probability = covers.probabilities()
        if self._sampler is None:
            least = self._search.least_alternative
            others = [token for token, known in probability.items() if known >= least]
            stated = [probability[token] for token in ids[:1] if token in probability]
        else:  # how often a drawn id is right is another question
            others, stated = ranked, []
        leaves = [(token, probability[token]) for token in others if token not in ids[:1]]
        leaves = leaves[:alternatives]
        return chain_with_leaves(ids, learned, stated=stated, leaves=leaves), cover.back

    def _join_drafted(
        self, cover: TranslatedCover, drafted: Sequence[DraftId], counts: Counter[str]
    ) -> tuple[TargetId, ...]:
        """Target ids of the cover and what was drafted; of less if its end would be absorbed."""
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

    def _join_drawn(
        self, cover: TranslatedCover, drawn: Sequence[TargetId]
    ) -> tuple[TargetId, ...]:
        """Target ids of the cover and those drawn after it, their text encoded as a whole."""
        tokens = self._pair.target.vocabulary.tokens
        ordinary = list(takewhile(bool, [tokens[i] for i in drawn]))
        whole = self._boundary.encode(cover.data + b"".join(ordinary))
        return (*(whole or cover.ids), *drawn[len(ordinary) if whole else 0 :])

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

    # -- both --------------------------------------------------------------------------------------

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

    def _start_noise(self, context: Context, session: DraftModelSession) -> Array | None:
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
        """Whether masking is off and the most probable cover would be absorbed: nothing is
        proposed."""
        if self._search.mask or not covers.doubtful:
            return False
        first = covers.doubtful[0]
        best, _, _ = covers.translated[0]
        return first.logprob > best[0] and self._boundary.absorbs(first.data)

    @cached_property
    def _shared(self) -> Intersection:
        return self._pair.with_roles(self._alignment.intersection)
