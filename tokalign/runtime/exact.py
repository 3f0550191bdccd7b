"""`exact`: the translation that loses nothing to the boundary between two tokenizers.

Three things together, each useless without the others (`docs/lossless.md`):

* The draft model reads the canonical encoding of the committed text (`draft_text.py`).
* *Healing by cover search*: the pass that brings the draft's cache up to date also gives the
  logits behind its last J+1 tokens. With j of them taken back, every token that goes on from their
  bytes is a way to continue; the ways of all j compete by probability, at no extra pass.
* *Merge sites masked*: a continuation that would be absorbed by the last committed id contradicts
  the target's own boundary and is passed over.

The draft model goes on behind the likeliest next target token. The next ones are proposed beside
it, as leaves of a tree: where a draft model is wrong, its second or third guess often is not.
The host waits for the device twice a round: for the ways, and for what follows the chosen one.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from math import exp

from tokalign.alignment_tables import Alignment, match_roles
from tokalign.boundary import Boundary
from tokalign.runtime.context import Context
from tokalign.runtime.cover_search import (
    Cover,
    CoverSearch,
    Outlook,
    Way,
    find_covers,
    look_out,
)
from tokalign.runtime.draft_text import DraftText
from tokalign.runtime.interfaces import Session
from tokalign.runtime.text import token_bytes
from tokalign.runtime.translate import Pair, Translated
from tokalign.vocab import DraftId, TargetId


class ExactTranslation:
    """Drafts canonically, heals the boundary, masks merge sites, translates incrementally."""

    def __init__(
        self,
        pair: Pair,
        text: DraftText,
        alignment: Alignment,
        search: CoverSearch | None = None,
    ) -> None:
        self._pair, self._text, self._trie = pair, text, alignment.healing
        self._search = search or CoverSearch()
        self._boundary = Boundary(pair.target, alignment.merge_sites)
        self._tokens = pair.draft.vocabulary.tokens
        self._roles = match_roles(pair.draft.vocabulary.roles, pair.target.vocabulary.roles)

    def draft(self, context: Context, session: Session, steps: int) -> Translated:
        self._text.follow(context.ids)
        self._boundary.follow(context.ids)
        ids, counts = self._text.ids, Counter[str]()
        outlook = self._look_out(ids, session, counts)
        if outlook is None:
            return Translated((), counts)
        (_, back, token), data, chain = outlook.way
        if back:
            counts["healed"] += 1
            counts["taken_back"] += back
        if steps > 1 and data:
            drafted = session.draft([*ids[: len(ids) - back], token], steps - 1)
            chain = self._continue(data, drafted, counts)
        return self._propose(chain, outlook, counts)

    def _propose(
        self, chain: tuple[TargetId, ...], outlook: Outlook, counts: Counter[str]
    ) -> Translated:
        """A chain, and beside its first id the other likely ones."""
        search, probability = self._search, dict(outlook.first)
        beside = [(t, p) for t, p in outlook.first if p >= search.worth and t not in chain[:1]]
        return Translated(
            chain,
            counts,
            probabilities=tuple(probability[t] for t in chain[:1] if t in probability),
            beside=tuple(beside[: search.alternatives]),
        )

    def _look_out(
        self, ids: list[DraftId], session: Session, counts: Counter[str]
    ) -> Outlook | None:
        """One pass of the draft model, and what it expects of the target."""
        pending = [b"", *self._pending()]
        allowed = [None, *(self._trie.extending(data) for data in pending[1:])]
        lists = session.shortlist(ids, allowed, self._search.width)
        covers, possible = find_covers(lists)
        ways: list[Way] = []
        known = False
        for cover in covers:
            if known and cover.logprob < covers[0].logprob - self._search.depth:
                break
            data = token_bytes(self._tokens, cover.token)[len(pending[cover.back]) :]
            translated = self._translate(cover, data)
            if translated is not None:
                ways.append(Way(cover, data, translated))
                known = known or bool(translated)
            elif self._search.mask:
                counts["masked"] += 1
                possible -= exp(cover.logprob)
        return look_out(ways, possible)

    def _translate(self, cover: Cover, data: bytes) -> tuple[TargetId, ...] | None:
        """The target ids of a way; none if they are not known yet, None if it would be absorbed."""
        if not data:
            special = self._roles.get(cover.token)
            return () if special is None else (special,)
        ids = self._boundary.encode(data)
        if ids is None and self._boundary.absorbs(data):
            return None
        return tuple(ids or ())

    def _pending(self) -> list[bytes]:
        """The bytes of the last one, two, ... J tokens that may still change."""
        segment = self._text.segment
        unstable = segment.ids[segment.stable :][::-1][: self._search.max_back]
        return list(accumulate((self._tokens[i] for i in unstable), lambda tail, t: t + tail))

    def _continue(
        self, data: bytes, drafted: list[int], counts: Counter[str]
    ) -> tuple[TargetId, ...]:
        """All that was drafted in target ids; less of it where the end would be absorbed."""
        more, end = self._pair.split_end(drafted)
        for length in range(len(more), -1, -1):
            tail = self._pair.draft.vocabulary.bytes_of(more[:length])
            ids = self._boundary.encode(data + tail)
            if ids is not None:
                return (*ids, *end) if length == len(more) else tuple(ids)
            counts["absorbed"] += 1
        return ()
