"""`exact`: the translation that loses nothing to the boundary between two tokenizers.

Three things together, each useless without the others (`docs/lossless.md`):

* The draft model reads the canonical encoding of the committed text (`draft_text.py`).
* *Healing by cover search*: the pass that brings the draft's cache up to date also gives the
  logits behind its last J+1 tokens. With j of them taken back, every token that goes on from their
  bytes is a way to continue; the ways of all j compete by probability, at no extra pass.
* *Merge sites masked*: a continuation that would be absorbed by the last committed id contradicts
  the target's own boundary and is passed over.

What competes is the next *target* token: ways that begin with the same one add up, and the choice
is made when the likeliest way is known one draft token further. Two waits for the device per round
with two draft tokens, three with more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, log

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
    """How far to search; 0 or False switches a part off.

    max_back: J, the most draft tokens taken back. width: ways considered at each position.
    look_ahead: choose after the second draft token, not the first. mask: pass over ways that the
    last committed id would absorb.
    """

    max_back: int = 3
    width: int = 16
    look_ahead: bool = True
    mask: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One or two draft tokens to go on with.

    back: how many tokens of the draft's context they replace. data: the bytes they add to the
    committed text. ids: those bytes in target ids, none where only more text can tell them.
    logprob: of the whole cover, up to a constant.
    """

    back: int
    tokens: tuple[DraftId, ...]
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
        ways, left = list(self._first_ways(ids, session, counts)), steps - 1
        looked = bool(left) and self._search.look_ahead
        if looked:
            ways, left = self._look_ahead(ways, ids, session), left - 1
        way = choose(ways, depth=2 if looked else 1)
        if way is None:
            return Translated((), counts)
        if way.back:
            counts["healed"] += 1
            counts["taken_back"] += way.back
        if not left or self._ends(way):
            return Translated(way.ids, counts)
        start = [*ids[: len(ids) - way.back], *way.tokens]
        return Translated(self._continue(way, session.draft(start, left), counts), counts)

    def _ends(self, way: Way) -> bool:
        return not self._tokens[way.tokens[-1]]

    # -- the ways to go on -------------------------------------------------------------------------

    def _first_ways(
        self, ids: list[DraftId], session: Session, counts: Counter[str]
    ) -> Iterator[Way]:
        """The likeliest ways from each position, those that would be absorbed left out."""
        pending = [b"", *self._pending()]
        allowed = [None, *(self._trie.extending(data) for data in pending[1:])]
        lists = session.shortlist(ids, allowed, self._search.width)
        for back, (shortlist, kept) in enumerate(zip(lists, _kept(lists), strict=True)):
            base = Way(back=back, tokens=(), data=b"", ids=(), logprob=kept)
            yield from self._extend(base, shortlist, counts, without=len(pending[back]))

    def _pending(self) -> list[bytes]:
        """The bytes of the last one, two, ... J tokens that may still change."""
        segment = self._text.segment
        unstable = segment.ids[segment.stable :][::-1][: self._search.max_back]
        return list(accumulate((self._tokens[i] for i in unstable), lambda tail, t: t + tail))

    def _look_ahead(self, ways: list[Way], ids: list[DraftId], session: Session) -> list[Way]:
        """`ways` with the best of them replaced by all that may follow it, one token further.

        What the shortlist leaves out keeps the rest of its probability, as far as it is known what
        it begins with; else a way would lose for having been looked at.
        """
        best = choose(ways, depth=1) or max(ways, key=lambda way: way.logprob, default=None)
        if best is None or self._ends(best):
            return ways
        start = [*ids[: len(ids) - best.back], best.tokens[-1]]
        shortlist = session.shortlist(start, [None], self._search.width)[0]
        unlisted = 1 - sum(map(exp, shortlist.logprobs))
        others = [way for way in ways if way is not best]
        if best.ids and unlisted > 0:
            others.append(replace(best, logprob=best.logprob + log(unlisted)))
        return [*self._extend(best, shortlist, Counter()), *others]

    def _extend(
        self, way: Way, shortlist: Shortlist, counts: Counter[str], *, without: int = 0
    ) -> Iterator[Way]:
        """`way` with one more token: those of `shortlist` that can be translated.

        without: how many bytes of the token the committed text has already.
        """
        for token, logprob in zip(shortlist.ids, shortlist.logprobs, strict=True):
            added = token_bytes(self._tokens, token)
            data, _end = way.data + added[without:], ()
            if not added:
                special = self._roles.get(DraftId(token))
                if special is None or way.back > len(way.tokens):
                    continue
                ids: Sequence[TargetId] | None = (*way.ids, special)
            else:
                ids = self._boundary.encode(data)
            if ids is None and self._search.mask and self._boundary.absorbs(data):
                counts["masked"] += 1
                continue
            yield Way(
                back=way.back,
                tokens=(*way.tokens, DraftId(token)),
                data=data,
                ids=tuple(ids or ()),
                logprob=way.logprob + logprob,
            )

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


def choose(ways: Sequence[Way], *, depth: int) -> Way | None:
    """The likeliest way among those that begin with the likeliest next `depth` target tokens.

    The probability of a target token is that of all ways that begin with it, together. A second
    token is asked for only when all ways are known that far: a way that reaches it early would win
    over likelier ones that have not got there.
    """
    begun: tuple[TargetId, ...] = ()
    for at in range(depth):
        mass: dict[TargetId, float] = defaultdict(float)
        for way in ways:
            if len(way.ids) > at and way.ids[:at] == begun:
                mass[way.ids[at]] += exp(way.logprob)
        if not mass:
            break
        begun = (*begun, max(mass, key=mass.__getitem__))
    found = (way for way in ways if way.ids and way.ids[: len(begun)] == begun)
    return max(found, key=lambda way: way.logprob, default=None)


def _kept(lists: list[Shortlist]) -> list[float]:
    """For each j the log-probability of the tokens kept behind the J-th position from the end."""
    taken_back = list(accumulate(shortlist.kept for shortlist in lists))
    return [taken_back[-1] - taken for taken in taken_back]
