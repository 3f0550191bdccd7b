"""What the first pass of a draft reads besides the text: what the free sources expect after it.

A pass tells what comes after every id that it reads. So where dictionary or context are right about
the next ids, one pass of the draft model finds what comes after those, for which it needed one pass
each. It reads the guesses as its own tokenizer spells them after the text, so the last ids of the
text, which a longer word may replace, are read once more, as the first ids of the tree.
Source: our own; draft models that check the guesses of weaker ones are known from "Cascade
Speculative Drafting" (Chen et al., 2023), there by ids of one tokenizer and as a chain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from tokalign.runtime.rounds import common_prefix
from tokalign.runtime.translation.base import SOURCE, Pair
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId, token_bytes

_MOST_ROWS = 8
"""Rows of a first pass that reads ahead: eight take a draft model on a CPU a seventh more than one,
eleven 60 % more (`lab/results/real-models.md`)."""


class Ahead(NamedTuple):
    """Ids that a pass reads, as a tree after the text without its last `back` ids, which come first
    in it. positions: after each of the others, how many target ids have come since the text."""

    tree: TokenTree[DraftId] = EMPTY_TREE
    back: int = 0
    positions: Sequence[int] = ()


NOTHING_AHEAD = Ahead()


class _Growing:
    """An `Ahead` while paths join it."""

    def __init__(self, tail: Sequence[DraftId]) -> None:
        self._tail = len(tail)
        self._ids, self._parents = [*tail], [*range(-1, len(tail) - 1)]
        self._positions: list[int] = []
        self._place: dict[tuple[int, DraftId], int] = {}

    def add(self, parent: int, token: DraftId, position: int) -> int | None:
        """The index of the id that follows the one at `parent`; None where there is no room."""
        place = self._place.get((parent, token))
        if place is None and len(self._ids) + 1 < _MOST_ROWS:
            place = self._place[parent, token] = len(self._ids)
            self._ids.append(token)
            self._parents.append(parent)
            self._positions.append(position)
        return place

    def done(self) -> Ahead:
        """What there is; nothing if no path has joined."""
        if not self._positions:
            return NOTHING_AHEAD
        sources = (SOURCE,) * len(self._ids)
        tree = TokenTree(tuple(self._ids), tuple(self._parents), sources)
        return Ahead(tree, self._tail, self._positions)


def ahead_by_text(
    guesses: TokenTree[TargetId], pair: Pair, tail: list[DraftId], pending: Sequence[bytes]
) -> Ahead:
    """Guesses as the draft's tokenizer spells them after the text.

    tail: the last ids of the text, which may change. pending: the bytes of its last 0, 1, ... ids.
    Cost: about 5 µs for each guess.
    """
    spelled, own, back = pair.target.vocabulary.tokens, pair.draft.vocabulary.tokens, len(tail)
    growing = _Growing(tail)
    paths: list[tuple[bytes, ...]] = []  # of each guess; empty from a special one on
    for guess, parent in zip(guesses.ids, guesses.parents, strict=True):
        data, before = token_bytes(spelled, guess), () if parent < 0 else paths[parent]
        paths.append((*before, data) if data and (before or parent < 0) else ())
    for path in filter(None, [paths[index] for index in _likeliest_first(guesses)]):
        ids = pair.draft.encoder.encode(pending[back] + b"".join(path))
        kept = common_prefix(ids, tail)
        left = pending[back - kept]  # that the first new id takes back
        if kept == len(ids) or not own[ids[kept]].startswith(left):
            continue
        ends, at = [*accumulate(map(len, path))], -len(left)
        last: int | None = kept - 1
        for token in ids[kept:]:
            at += len(own[token])
            if last is not None:
                last = growing.add(last, token, 1 + bisect_left(ends, at))
    return growing.done()


def ahead_by_token(
    guesses: TokenTree[TargetId], draft_of: Callable[[TargetId], DraftId | None]
) -> Ahead:
    """Guesses whose ids are the draft's. draft_of: None for one that the draft lacks."""
    growing, places, depths = _Growing(()), dict[int, int | None]({-1: -1}), guesses.depths
    for index in _likeliest_first(guesses):
        token, last = draft_of(guesses.ids[index]), places[guesses.parents[index]]
        if token is None or last is None:
            places[index] = None
        else:
            places[index] = growing.add(last, token, depths[index])
    return growing.done()


def _likeliest_first(guesses: TokenTree[TargetId]) -> list[int]:
    """The indices of guesses, those first that are most probably reached: parents come before their
    children, which are no likelier."""
    reached = guesses.reached
    return sorted(range(len(reached)), key=lambda index: -reached[index])
