"""`exact`: the translation that loses nothing to the boundary between two tokenizers.

Three things together, each useless without the others (`docs/lossless.md`):

* The draft model reads the canonical encoding of the committed text (`draft_text.py`).
* *Healing by cover search*: the pass that brings the draft's cache up to date also gives the
  logits behind its last J+1 tokens. With j of them taken back, every token that goes on from their
  bytes is a way to continue; the ways of all j compete by probability, at no extra pass.
* *Merge sites masked*: a continuation that would be absorbed by the last committed id contradicts
  the target's own boundary and is passed over.

What competes is the next *target* token: ways that begin with the same one add up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import accumulate
from math import exp

from tokalign.alignment_tables import HealingTrie, match_roles
from tokalign.boundary import Boundary
from tokalign.runtime.context import Context
from tokalign.runtime.draft_text import DraftText
from tokalign.runtime.interfaces import Session, Shortlist
from tokalign.runtime.text import token_bytes
from tokalign.runtime.translate import Pair, Translated
from tokalign.vocab import DraftId, TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverSearch:
    """How wide to search. The defaults are what `benchmarks/alignment.py` found to suffice.

    max_back: J, the most draft tokens taken back. width: ways considered at each of the J+1
    positions. mask: pass over ways that the last committed id would absorb.
    """

    max_back: int = 4
    width: int = 12
    mask: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A draft token to go on with.

    back: how many tokens of the draft's context it replaces. data: the bytes it adds to the
    committed text; empty for a special token. logprob: of the whole cover, up to a constant.
    """

    back: int
    token: DraftId
    data: bytes
    logprob: float


class ExactTranslation:
    """Drafts canonically, heals the boundary, masks merge sites, translates incrementally."""

    def __init__(
        self,
        pair: Pair,
        text: DraftText,
        trie: HealingTrie,
        search: CoverSearch | None = None,
    ) -> None:
        self._pair, self._text, self._trie = pair, text, trie
        self._search = search or CoverSearch()
        self._boundary = Boundary(pair.target)
        self._tokens = pair.draft.vocabulary.tokens
        self._roles = match_roles(pair.draft.vocabulary.roles, pair.target.vocabulary.roles)

    def draft(self, context: Context, session: Session, steps: int) -> Translated:
        self._text.follow(context.ids)
        self._boundary.follow(context.ids)
        ids, counts = self._text.ids, Counter[str]()
        way = self._choose(self._ways(ids, session), counts)
        if way is None:
            return Translated((), counts)
        if way.back:
            counts["healed"] += 1
            counts["taken_back"] += way.back
        if not way.data:
            return Translated((self._roles[way.token],), counts)
        start = [*ids[: len(ids) - way.back], way.token]
        more = session.draft(start, steps - 1) if steps > 1 else []
        return Translated(self._translate(way.data, more, counts), counts)

    def _ways(self, ids: list[DraftId], session: Session) -> list[Way]:
        """Every way to go on that is worth a look, likeliest first."""
        pending = self._pending()
        allowed = [None, *(self._trie.extending(data) for data in pending)]
        lists = session.shortlist(ids, allowed, self._search.width)
        ways = [
            way
            for back, (shortlist, kept) in enumerate(zip(lists, _kept(lists), strict=True))
            for way in self._ways_at(back, pending[back - 1] if back else b"", shortlist, kept)
        ]
        return sorted(ways, key=lambda way: -way.logprob)

    def _pending(self) -> list[bytes]:
        """The bytes of the last one, two, ... J tokens that may still change."""
        segment = self._text.segment
        unstable = segment.ids[segment.stable :][::-1][: self._search.max_back]
        tails = accumulate((self._tokens[i] for i in unstable), lambda tail, token: token + tail)
        return list(tails)

    def _ways_at(self, back: int, pending: bytes, shortlist: Shortlist, kept: float) -> list[Way]:
        ways = []
        for token, logprob in zip(shortlist.ids, shortlist.logprobs, strict=True):
            data = token_bytes(self._tokens, token)
            if data or (not back and token in self._roles):
                ways.append(
                    Way(
                        back=back,
                        token=DraftId(token),
                        data=data[len(pending) :],
                        logprob=kept + logprob,
                    )
                )
        return ways

    def _choose(self, ways: list[Way], counts: Counter[str]) -> Way | None:
        """The likeliest way that begins with the likeliest next target token."""
        mass: dict[TargetId, float] = defaultdict(float)
        likeliest: dict[TargetId, Way] = {}
        for way in ways:
            first = self._first_token(way)
            if first is None:
                counts["masked"] += 1
                continue
            mass[first] += exp(way.logprob - ways[0].logprob)
            likeliest.setdefault(first, way)
        if not mass:
            return None
        return likeliest[max(mass, key=mass.__getitem__)]

    def _first_token(self, way: Way) -> TargetId | None:
        """The target token that `way` begins with; None if it would be absorbed."""
        if not way.data:
            return self._roles[way.token]
        ids = self._boundary.encode(way.data)
        if ids is None and not self._search.mask:
            ids = [TargetId(-1)]
        return ids[0] if ids else None

    def _translate(
        self, data: bytes, more: list[int], counts: Counter[str]
    ) -> tuple[TargetId, ...]:
        """All that was drafted in target ids; less of it where the end would be absorbed."""
        drafted, end = self._pair.split_end(more)
        for length in range(len(drafted), -1, -1):
            tail = self._pair.draft.vocabulary.bytes_of(drafted[:length])
            ids = self._boundary.encode(data + tail)
            if ids is not None:
                return (*ids, *end) if length == len(drafted) else tuple(ids)
            counts["absorbed"] += 1
        return ()


def _kept(lists: list[Shortlist]) -> list[float]:
    """For each j the log-probability of the tokens kept behind the J-th position from the end."""
    taken_back = list(accumulate((shortlist.kept for shortlist in lists), initial=0.0))[1:]
    return [taken_back[-1] - taken for taken in taken_back]
