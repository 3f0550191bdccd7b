"""`exact`: the translation that loses nothing to the boundary between two tokenizers.

Three things together, each useless without the others (`docs/lossless.md`):

* The draft model reads the canonical encoding of the committed text (`draft_text.py`).
* *Healing by cover search*: the pass that brings the draft's cache up to date also gives the
  logits behind its last J+1 tokens. With j of them taken back, every token that goes on from their
  bytes is a way to continue; the ways of all j compete by probability, at no extra pass.
* *Merge sites masked*: a continuation that would be absorbed by the last committed id contradicts
  the target's own boundary and is passed over.

What competes is the next *target* token: ways that begin with the same one add up. The host waits
for the device twice a round: for the ways, and for what follows the chosen one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp

from tokalign.alignment_tables import Alignment, match_roles
from tokalign.boundary import Boundary
from tokalign.runtime.context import Context
from tokalign.runtime.draft_text import DraftText
from tokalign.runtime.interfaces import Session, Shortlist
from tokalign.runtime.text import token_bytes
from tokalign.runtime.translate import Pair, Translated
from tokalign.vocab import DraftId, TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverSearch:
    """How far to search.

    max_back: J, the most draft tokens taken back; 0 is no healing. width: ways considered at each
    position.
    """

    max_back: int = 3
    width: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A draft token to go on with.

    back: how many tokens of the draft's context it replaces. data: the bytes it adds to the
    committed text. ids: those bytes in target ids, none where only more text can tell them.
    logprob: of the whole cover, up to a constant.
    """

    back: int
    token: DraftId
    data: bytes
    ids: tuple[TargetId, ...]
    logprob: float


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
        way = choose(list(self._ways(ids, session, counts)))
        if way is None:
            return Translated((), counts)
        if way.back:
            counts["healed"] += 1
            counts["taken_back"] += way.back
        if steps == 1 or not way.data:
            return Translated(way.ids, counts)
        drafted = session.draft([*ids[: len(ids) - way.back], way.token], steps - 1)
        return Translated(self._continue(way, drafted, counts), counts)

    def _ways(self, ids: list[DraftId], session: Session, counts: Counter[str]) -> Iterator[Way]:
        """The likeliest ways from each position, those that would be absorbed left out."""
        pending = [b"", *self._pending()]
        allowed = [None, *(self._trie.extending(data) for data in pending[1:])]
        lists = session.shortlist(ids, allowed, self._search.width)
        for back, (shortlist, kept) in enumerate(zip(lists, _kept(lists), strict=True)):
            for token, logprob in zip(shortlist.ids, shortlist.logprobs, strict=True):
                data = token_bytes(self._tokens, token)[len(pending[back]) :]
                translated = self._translate(DraftId(token), data)
                if translated is None:
                    counts["masked"] += 1
                elif data or translated:
                    yield Way(
                        back=back,
                        token=DraftId(token),
                        data=data,
                        ids=translated,
                        logprob=kept + logprob,
                    )

    def _translate(self, token: DraftId, data: bytes) -> tuple[TargetId, ...] | None:
        """The target ids of a way; none if they are not known yet, None if it would be absorbed."""
        if not data:
            special = self._roles.get(token)
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

    def _continue(self, way: Way, drafted: list[int], counts: Counter[str]) -> tuple[TargetId, ...]:
        """All that was drafted in target ids; less of it where the end would be absorbed."""
        more, end = self._pair.split_end(drafted)
        for length in range(len(more), -1, -1):
            tail = self._pair.draft.vocabulary.bytes_of(more[:length])
            ids = self._boundary.encode(way.data + tail)
            if ids is not None:
                return (*ids, *end) if length == len(more) else tuple(ids)
            counts["absorbed"] += 1
        return ()


def choose(ways: Sequence[Way]) -> Way | None:
    """The likeliest way that begins with the likeliest next target token.

    The probability of a target token is that of all ways that begin with it, together.
    """
    mass: dict[TargetId, float] = defaultdict(float)
    for way in ways:
        if way.ids:
            mass[way.ids[0]] += exp(way.logprob)
    if not mass:
        return None
    first = max(mass, key=mass.__getitem__)
    return max((w for w in ways if w.ids[:1] == (first,)), key=lambda way: way.logprob)


def _kept(lists: list[Shortlist]) -> list[float]:
    """For each j the log-probability of the tokens kept behind the J-th position from the end."""
    taken_back = list(accumulate(shortlist.kept for shortlist in lists))
    return [taken_back[-1] - taken for taken in taken_back]
