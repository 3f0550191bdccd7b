"""The grammar of one request: which ids may follow, along the committed text and along a tree.

The verifier masks the target's logits with it, so the target chooses among those ids, whatever
drafts. Drafters ask the same states what is forced and what is forbidden.

llguidance does the matching, with tokalign's own byte-exact vocabulary and canonical encoder. Where
only one text may follow, its mask allows one id: the next one of the canonical encoding of the last
id and that text, as far as no later text can change that. So forced ids are drafted with certainty.

A request holds three matchers, however long its output is. The first has read nothing. The second
reads the committed ids. The third walks the tree of a round and rolls back (2 µs an id); when it
fails, or cannot roll back, a copy of the second takes its place. So a guess can fail without the
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import GrammarError, UsageError
from tokalign.runtime.chat import THOUGHTS
from tokalign.runtime.grammar.gbnf import with_ids
from tokalign.runtime.grammar.grammar import Grammar
from tokalign.runtime.grammar.matcher import engine_of, matcher_of
from tokalign.runtime.rounds import UNBOUNDED, common_prefix
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_Path: TypeAlias = tuple[TargetId, ...]


class _Walk:
    """The matchers of a request. A path is what follows the committed ids."""

    def __init__(self, fresh: LLMatcher, stop_ids: frozenset[TargetId]) -> None:
        self._committed = fresh.deep_copy()
        self.stop_ids = stop_ids
        self._walker: LLMatcher | None = None
        self._path: list[TargetId] = []

    def commit(self, token: TargetId) -> None:
        """Raises: GrammarError where the id may not follow, or the matcher fails."""
        allows = self._committed.validate_tokens([token])
        if self._committed.is_error() or not allows or not self._committed.consume_token(token):
            raise GrammarError
        if self._walker is None:
            return
        if self._path[:1] == [token]:
            del self._path[0]
        elif not (self._back_to(0) and self._walker.consume_token(token)):
            self._walker = None

    def at(self, path: _Path) -> LLMatcher | None:
        """The matcher after a path; None where it cannot follow."""
        common = common_prefix(self._path, list(path))
        if self._walker is None or self._walker.is_error() or not self._back_to(common):
            self._walker, self._path, common = self._committed.deep_copy(), [], 0
        for token in path[common:]:
            if not self._walker.consume_token(token):
                return None
            self._path.append(token)
        return self._walker

    def _back_to(self, length: int) -> bool:
        assert self._walker is not None
        surplus = len(self._path) - length
        del self._path[length:]
        return not surplus or self._walker.rollback(surplus)


class _Matching:
    """A state inside the grammar, after the committed text and a path; until more is committed."""

    def __init__(self, walk: _Walk, path: _Path = ()) -> None:
        self._walk, self._path = walk, path
        self._next: dict[TargetId, _Matching | None] = {}

    def advance(self, token: TargetId) -> _Matching | None:
        """The state after one more id; None where no choice leads, or the output ends."""
        if token not in self._next:
            path = (*self._path, token)
            self._next[token] = _Matching(self._walk, path) if self.allows(token) else None
        return self._next[token]

    def allows(self, token: TargetId) -> bool:
        """Whether an id may follow; an end of the output is none that is worth drafting."""
        matcher = None if token in self._walk.stop_ids else self._walk.at(self._path)
        return matcher is not None and bool(matcher.validate_tokens([token]))

    @cached_property
    def allowed(self) -> NDArray[np.uint8]:
        """The ids that may follow, a bit each, the lowest first. Raises: GrammarError."""
        matcher = self._walk.at(self._path)
        bits = b"" if matcher is None else matcher.compute_bitmask()
        if matcher is None or matcher.is_error():
            raise GrammarError
        return np.frombuffer(bits, dtype=np.uint8)

    @cached_property
    def forced(self) -> Sequence[TargetId]:
        """The ids that have to follow: the canonical encoding of the only text that may."""
        matcher = self._walk.at(self._path)
        return cast("list[TargetId]", [] if matcher is None else matcher.compute_ff_tokens())


class _Thinking:
    """Before the grammar begins, the model thinks until an id ends that; every id is allowed."""

    allowed, forced = None, ()

    def __init__(self, end: TargetId, begin: _Matching) -> None:
        self._end, self._begin = end, begin

    def allows(self, token: TargetId) -> bool:
        return True

    def advance(self, token: TargetId) -> State:
        return self._begin if token == self._end else self


State: TypeAlias = _Matching | _Thinking
"""What a text has reached."""


class Constraint:
    """The grammar of one request. One thread at a time may use it.

    fresh: a matcher before the output. begin: how many ids come before it. thought_end: the id
    that the grammar begins after, where the prompt leaves a thought open.
    """

    def __init__(
        self,
        fresh: LLMatcher,
        stop_ids: frozenset[TargetId],
        begin: int,
        thought_end: TargetId | None = None,
    ) -> None:
        self._fresh, self._stop_ids, self._begin = fresh, stop_ids, begin
        self._thought_end = thought_end
        self._failed = set[int]()
        self._restart()

    def _restart(self) -> None:
        self._walk, self._read = _Walk(self._fresh, self._stop_ids), self._begin
        first, end = _Matching(self._walk), self._thought_end
        self._state: State | None = first if end is None else _Thinking(end, first)

    def after(self, ids: Sequence[TargetId]) -> State | None:
        """The state after `ids`, prompt and output; None once the output has ended.

        `ids` grow from call to call; fewer than in the last one cost a walk from the prompt on.
        Raises: GrammarError where an id has left the grammar, or the matcher fails.
        """
        if len(ids) < self._read:
            self._restart()
        for token in ids[self._read :]:
            if isinstance(self._state, _Thinking):
                self._state = self._state.advance(token)
            elif token in self._stop_ids:
                self._state = None
            elif self._state is not None:
                self._walk.commit(token)
                self._state = _Matching(self._walk)
            self._read += 1
        return self._state

    def masks(
        self, ids: Sequence[TargetId], tree: TokenTree[TargetId], width: int
    ) -> NDArray[np.bool_] | None:
        """Which ids may be chosen after `ids` and after each id of `tree`, bool[1 + tree, width].

        None where all may everywhere. Rows that no choice leads to allow everything, and so do
        those where the matcher fails: ask `check` about the rows that were reached.
        Raises: GrammarError where it fails after `ids`.
        """
        states = [self.after(ids)]
        for token, parent in zip(tree.ids, tree.parents, strict=True):
            state = states[parent + 1]
            states.append(None if state is None else state.advance(token))
        rows, self._failed = np.ones((len(states), width), dtype=np.bool_), set()
        for number, (row, state) in enumerate(zip(rows, states, strict=True)):
            try:
                mask = None if state is None else state.allowed
            except GrammarError:
                self._failed.add(number)
                continue
            if mask is not None:
                bits = np.unpackbits(mask, bitorder="little")[:width]
                row[: len(bits)], row[len(bits) :] = bits, False
        self.check([0])
        return None if rows.all() else rows

    def check(self, rows: Sequence[int]) -> None:
        """Raises: GrammarError if the matcher failed in one of these rows of the last tree."""
        if not self._failed.isdisjoint(rows):
            raise GrammarError


def constrain(
    grammar: Grammar,
    tokenizer: Tokenizer[TargetId],
    prompt: Sequence[TargetId],
    stop_ids: frozenset[TargetId],
    size: int = UNBOUNDED,
) -> Constraint:
    """The grammar of a request; it begins after the prompt, or after a thought that this opens.

    Any thread may ask for it, also while others decode. stop_ids: they may end the output where
    the grammar allows an end. size: how many ids the model has, if the tokenizer may know more;
    those of the latter are never allowed.
    Raises: UsageError for a grammar that cannot be used, or where nothing can end the output;
    IncompatibleError for a tokenizer whose tokens are not known as bytes.
    """
    tokenizer.require(Level.BY_TEXT)
    known = range(min(size, len(tokenizer.vocabulary)))  # a configuration may name others
    stop_ids = frozenset(token for token in stop_ids if token in known)
    if not stop_ids:
        raise UsageError("a grammar needs a model with an end-of-text token; this one has none")
    end, before = _thought_end(tokenizer, prompt, stop_ids), list(prompt)
    if end is not None:
        before.append(end)
        grammar = grammar.after(r"/\n{0,2}/")
    fresh = _matcher_after(before, grammar, tokenizer, engine_of(tokenizer, stop_ids, size))
    walk = _Walk(fresh, stop_ids)
    try:
        _ = _Matching(walk).allowed
        _require_beginning(walk, tokenizer.vocabulary.id_of.get(b" " if end is None else b"\n"))
    except GrammarError as error:
        raise UsageError(
            "the grammar is too complex, or no finite text matches it; simplify it"
        ) from error
    return Constraint(fresh, stop_ids, len(prompt), end)


def _require_beginning(walk: _Walk, lead: TargetId | None) -> None:
    """Raises: GrammarError where the first ids that are forced fail, as those of a text without an
    end do. lead: what may come before: the dummy prefix, or the line ends after a thought."""
    path: _Path = ()
    for _ in range(4):
        if (matcher := walk.at(path)) is None:
            raise GrammarError
        token = next(iter(cast("list[TargetId]", matcher.compute_ff_tokens())), lead)
        if token is None or not matcher.validate_tokens([token]):
            return
        path = (*path, token)


def _matcher_after(
    before: Sequence[TargetId],
    grammar: Grammar,
    tokenizer: Tokenizer[TargetId],
    engine: LLTokenizer,
) -> LLMatcher:
    """A matcher of the ids after `before`. The dummy prefix is no part of the text.

    It is missing where a special token comes first. Where a space may come first, only a prefix
    before it tells the two apart.
    """
    vocabulary = tokenizer.vocabulary
    specials = {mark.encode(): token for mark, token in vocabulary.special_ids.items()}
    ids = {**vocabulary.id_of, **specials}

    def matcher(grammar: Grammar) -> LLMatcher:
        return matcher_of(with_ids(grammar.definition, ids), engine)

    if not (tokenizer.spec.dummy_prefix and tokenizer.opens_segment(before)):
        return matcher(grammar)
    space, either = vocabulary.id_of.get(b" "), matcher(grammar.after('" "?'))
    is_certain = space is not None and either.deep_copy().validate_tokens([space, space]) < 2
    return either if is_certain else matcher(grammar.after('" "'))


def _thought_end(
    tokenizer: Tokenizer[TargetId], prompt: Sequence[TargetId], stop_ids: frozenset[TargetId]
) -> TargetId | None:
    """The id that ends the thought that a prompt leaves open; None if it leaves none open. The end
    of a turn, which a stop id is, ends a thought that somebody's turn spells."""
    specials, texts = tokenizer.vocabulary.special_ids, tokenizer.vocabulary.id_of
    for marks in THOUGHTS:
        begin, end = (specials.get(mark, texts.get(mark.encode())) for mark in marks)
        if begin is not None and end is not None:
            ends = {begin, end, *stop_ids}
            last = next((token for token in reversed(prompt) if token in ends), end)
            return end if last == begin else None
    return None
