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
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import takewhile
from math import exp, log
from operator import itemgetter
from typing import TypeAlias

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import Guesser, Session, Waiting
from tokalign.runtime.mlx.drawing import Drawn, Projection, draw
from tokalign.runtime.proposal import Array
from tokalign.runtime.translation.cover_search import FOR_SAMPLING, CoverSearch, Outlook, Way
from tokalign.runtime.translation.draft_text import DraftText
from tokalign.runtime.translation.published import Alternative, Pair, Translated
from tokalign.tables.alignment import Alignment, match_roles
from tokalign.tables.boundary import Boundary
from tokalign.tokenizer.vocabulary import DraftId, TargetId

Distributions: TypeAlias = tuple[Array | None, ...]


class ExactTranslation:
    """Drafts canonically, heals the boundary, masks merge sites, translates incrementally."""

    def __init__(
        self,
        pair: Pair,
        text: DraftText,
        alignment: Alignment,
        search: CoverSearch | None = None,
        guesser: Guesser | None = None,
    ) -> None:
        self._pair, self._text, self._trie = pair, text, alignment.healing
        self._search = search or (CoverSearch() if guesser is None else FOR_SAMPLING)
        self._guesser, self._intersection = guesser, alignment.intersection
        self._boundary = Boundary(pair.target, alignment.merge_sites)
        self._tokens = pair.draft.vocabulary.tokens
        self._roles = match_roles(pair.draft.vocabulary.roles, pair.target.vocabulary.roles)
        self._extended = pair.target.bpe.order.extended
        self._proposed: tuple[int, tuple[TargetId, ...]] = 0, ()  # behind so many ids

    def draft(self, context: Context, session: Session, steps: int) -> Waiting[Translated]:
        """See `Translation`."""
        committed = context.ids
        self._text.follow(committed)
        ids, pending = self._text.ids, self._pending()
        waiting = session.shortlist(
            ids,
            len(pending) - 1,
            lambda: [self._trie.extending(data) for data in pending[1:]],
            self._search.width,
        )
        # The draft model's pass is under way: what does not need its answer is done beside it.
        self._boundary.follow(committed)
        counts, rolled = self._what_became(context), self._roll(context, session)
        held_with = [ids[: len(ids) - back] for back in range(len(pending))]
        outlook = Outlook(waiting(), self._search.least, partial(self._translate, pending))
        outlook.look(until_clear=self._guesser is None)
        if not outlook.ways or self._is_ruled_out(outlook):
            self._weigh(outlook, counts)
            return lambda: Translated((), counts)
        ranked, law = self._rank(outlook, context, rolled)
        way = outlook.way_to(ranked[0])
        (_, back, token), _, _ = way
        held = held_with[back]
        held.append(DraftId(token))
        going_on = self._go_on(way, law, held, context, session, steps)
        # Alternative the passes that go on: what else may come first, and how probable it all is.
        if back:
            counts["healed"] += 1
            counts["taken_back"] += back
        outlook.look()
        probability = self._weigh(outlook, counts)
        offered, said = self._offer(ranked, probability)

        def translated() -> Translated:
            chain, distributions = going_on(counts)
            self._proposed = len(committed), chain
            return Translated(
                chain,
                counts,
                probabilities=tuple([said[token] for token in chain[:1] if token in said]),
                alternatives=tuple([other for other in offered if other[0] not in chain[:1]]),
                distributions=distributions,
            )

        return translated

    def _what_became(self, context: Context) -> Counter[str]:
        """Whether the last id of the round before was unstable, and accepted with all before it."""
        counts = Counter[str]()
        start, chain = self._proposed
        if chain and chain[-1] in self._extended:
            counts["unstable"] = 1
            if tuple(context.ids[start : start + len(chain)]) == chain:
                counts["unstable_accepted"] = 1
        self._proposed = 0, ()
        return counts

    def _roll(self, context: Context, session: Session) -> Array | None:
        """Have the noise of the first choice computed beside the pass that comes before it."""
        if self._guesser is None:
            return None
        rolled = self._guesser.roll(len(context.ids), len(self._pair.target.vocabulary))
        if rolled is not None:
            session.start(rolled)
        return rolled

    def _rank(
        self, outlook: Outlook, context: Context, rolled: Array | None
    ) -> tuple[list[TargetId], Array | None]:
        """The next target token, then what to propose beside it; the law the former is drawn from.

        Any law will do that is known, so ways that were not looked at are simply not in it.
        """
        if self._guesser is None:
            return [outlook.leader()], None
        return self._guesser.guess_among(
            {token: log(probability) for token, probability in outlook.mass.items()},
            position=len(context.ids),
            ids=context.ids,
            rolled=rolled,
        )

    def _go_on(
        self,
        way: Way,
        law: Array | None,
        held: Sequence[int],
        context: Context,
        session: Session,
        steps: int,
    ) -> Callable[[Counter[str]], tuple[tuple[TargetId, ...], Distributions]]:
        """Draft behind a way; what this returns waits for the whole chain and counts its losses.

        held: the draft's own ids, the way included.
        """
        _, data, ids = way
        if steps == 1 or not data:
            return lambda _: (ids, () if law is None else (law,))
        if self._guesser is None:
            drafting = session.draft(held, steps - 1)
            return lambda counts: (self._continue(data, drafting(), counts), ())
        behind = [*context.ids, *ids]
        drawing = draw(
            session, held, steps - 1, guesser=self._guesser, behind=behind, onto=self._onto
        )
        return lambda _: self._join(way, law, drawing())

    def _join(
        self, way: Way, law: Array | None, drawn: Drawn
    ) -> tuple[tuple[TargetId, ...], Distributions]:
        """A way and the target ids drawn behind it, token for token of the intersection.

        Where no law binds the ids, their text is encoded as a whole, which is likelier.
        """
        _, data, first = way
        ids = tuple(map(TargetId, drawn.ids))
        if law is not None:
            return (*first, *ids), (law, *[None] * (len(first) - 1), *drawn.distributions)
        tokens = self._pair.target.vocabulary.tokens
        ordinary = list(takewhile(bool, (tokens[i] for i in ids)))
        whole = self._boundary.encode(data + b"".join(ordinary))
        return ((*(whole or first), *ids[len(ordinary) if whole else 0 :]), ())

    @cached_property
    def _onto(self) -> Projection:
        to_target = self._intersection.draft_to_target.copy()
        to_target[list(self._roles)] = list(self._roles.values())
        return Projection(to_target, self._intersection.target_to_draft)

    def _weigh(self, outlook: Outlook, counts: Counter[str]) -> dict[TargetId, float]:
        """How probable each first token is, the likeliest first.

        What the target has ruled out is no longer among what may come.
        """
        possible = outlook.possible
        for cover, data in outlook.doubtful:
            if self._search.mask and self._boundary.absorbs(data):
                counts["masked"] += 1
                possible -= exp(cover[0])
        ranked = sorted(outlook.mass.items(), key=itemgetter(1), reverse=True)
        return {token: mass / possible for token, mass in ranked}

    def _is_ruled_out(self, outlook: Outlook) -> bool:
        """Whether nothing is proposed because the likeliest guess is one that would be absorbed."""
        if self._search.mask or not outlook.doubtful:
            return False
        cover, data = outlook.doubtful[0]
        return cover > outlook.ways[0][0] and self._boundary.absorbs(data)

    def _offer(
        self, ranked: Sequence[TargetId], probability: Mapping[TargetId, float]
    ) -> tuple[list[Alternative], Mapping[TargetId, float]]:
        """What may be proposed as the next token, and what is said of it if it leads the chain.

        Of an id that was drawn nothing is said: how often it is right is another question.
        """
        if self._guesser is not None:
            return [(token, probability[token]) for token in ranked], {}
        worth = self._search.worth
        return [(token, p) for token, p in probability.items() if p >= worth], probability

    def _translate(
        self, pending: Sequence[bytes], back: int, token: int
    ) -> tuple[bytes, tuple[TargetId, ...] | None]:
        """The bytes a cover adds and their target ids, as `Outlook` asks for them.

        pending: the bytes of none, the last one, two, ... of the draft's tokens. A special token
        adds none and stands for its counterpart.
        """
        spelled = self._tokens[token] if token < len(self._tokens) else b""
        data = spelled[len(pending[back]) :]
        if data:
            return data, self._boundary.encode(data)
        special = self._roles.get(DraftId(token))
        return data, () if special is None else (special,)

    def _pending(self) -> list[bytes]:
        """The bytes of none, the last one, two, ... J tokens that may still change."""
        segment, pending, tail = self._text.segment, [b""], b""
        # By piece: what is finer, `stable`, costs 60 µs, and no more was accepted with it.
        unstable = segment.ids[max(segment.settled, len(segment.ids) - self._search.max_back) :]
        while unstable:
            tail = self._tokens[unstable.pop()] + tail
            pending.append(tail)
        return pending

    def _continue(
        self, data: bytes, drafted: list[int], counts: Counter[str]
    ) -> tuple[TargetId, ...]:
        """All that was drafted in target ids; less of it where the end would be absorbed."""
        tokens, size = self._tokens, len(self._tokens)
        spelled = [tokens[token] if token < size else b"" for token in drafted]
        end: tuple[TargetId, ...] = ()
        if not all(spelled):
            more, end = self._pair.split_end(drafted)
            del spelled[len(more) :]
        while (ids := self._boundary.encode(data + b"".join(spelled))) is None:
            counts["absorbed"] += 1
            end = ()
            if not spelled:
                return ()
            spelled.pop()
        return (*ids, *end)
