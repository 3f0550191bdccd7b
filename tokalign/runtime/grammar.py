"""What an output has to match: grammars, and the state that a text has reached in one.

`Grammar` is what a user asks for. A `Constraint` is that for one tokenizer and one request: it says
which ids may follow any text. The verifier masks the target's logits with it, so the target chooses
among those ids, whatever drafts; drafters ask the same states what they need not propose.

llguidance does the matching, with tokalign's own byte-exact vocabulary and canonical encoder. Where
only one text may follow, its mask allows one id: the next one of the canonical encoding of the last
id and that text, as far as no later text can change that. So what is forced can be drafted without
a guess. A state is a copy of its matcher (2 µs) after one more id, and each state is made once:
drafting, verifying and committing walk the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import UsageError
from tokalign.runtime.rounds import UNBOUNDED
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_THINKING = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in llguidance's own format; the class methods make one of each common format."""

    definition: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, *, strict: bool = True) -> Grammar:
        """JSON of a schema (a text is read as JSON), on one line, as most models write it.

        Free white space would cost tokens and rule out most forced text, and small models lose
        themselves in it.
        strict: refuse keywords that are not enforced; they are ignored otherwise.
        Raises: UsageError.
        """
        return cls._checked("JSON schema", _json_part(schema, strict=strict))

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object, on one line."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """The whole output matches a regular expression. Raises: UsageError."""
        from llguidance import LLMatcher

        return cls._checked("regular expression", _parts(LLMatcher.grammar_from_regex(pattern))[0])

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of some texts. Raises: UsageError."""
        if not texts or not all(texts):
            raise UsageError("a choice needs at least one text, none of them empty")
        return cls.lark("start: " + " | ".join(json.dumps(t, ensure_ascii=False) for t in texts))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A grammar in Lark's format, as llguidance reads it. Raises: UsageError."""
        return cls._checked("grammar", {"lark_grammar": text})

    @classmethod
    def text(cls, text: str) -> Grammar:
        """A grammar in llama.cpp's GBNF or in Lark's format. Raises: UsageError."""
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            return cls.lark(any_to_lark(text))
        except UsageError:
            raise
        except Exception as error:  # the converter raises what it likes
            raise UsageError(f"the grammar is not valid GBNF: {_line(error)}") from error

    @classmethod
    def _checked(cls, kind: str, part: Mapping[str, Any]) -> Grammar:
        from llguidance import LLMatcher

        definition = json.dumps({"grammars": [part]})
        failed, messages = LLMatcher.validate_grammar_with_warnings(definition)
        if failed:
            raise UsageError(f"the {kind} cannot be used: {_line(messages[0])}")
        return cls(definition)

    def __or__(self, other: Grammar) -> Grammar:
        """What matches one of two grammars, of which the other one has one part."""
        (one, *more), (two,) = _parts(self.definition), _parts(other.definition)
        either = {"lark_grammar": "start: @one | @two"}
        parts = [either, {**one, "name": "one"}, {**two, "name": "two"}, *more]
        return Grammar(json.dumps({"grammars": parts}))

    def after(self, opening: str) -> Grammar:
        """The same after what `opening` matches, an expression in Lark's format."""
        first, *others = _parts(self.definition)
        lead = {"lark_grammar": f"start: {opening} @rest"}
        return Grammar(json.dumps({"grammars": [lead, {**first, "name": "rest"}, *others]}))


def json_lark(schema: Mapping[str, Any] | bool, *, strict: bool = True) -> str:
    """JSON of a schema, as a part of a rule in Lark's format."""
    return f"%json {json.dumps(_json_part(schema, strict=strict)['json_schema'])}"


def _json_part(schema: Mapping[str, Any] | bool | str, *, strict: bool) -> dict[str, Any]:
    from llguidance import LLMatcher

    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        made = LLMatcher.grammar_from_json_schema(
            text,
            overrides={
                "whitespace_flexible": False,
                "item_separator": ", ",
                "key_separator": ": ",
                "lenient": not strict,
            },
        )
    except ValueError as error:
        raise UsageError(f"the JSON schema is not a JSON object: {_line(error)}") from error
    return _parts(made)[0]


def _parts(definition: str) -> list[dict[str, Any]]:
    grammars: list[dict[str, Any]] = json.loads(definition)["grammars"]
    return grammars


def _line(error: object) -> str:
    """An error as the beginning of one line."""
    return " ".join(str(error).split())[:300]


# -- states ----------------------------------------------------------------------------------------


class _Matching:
    """What a text has reached inside the grammar."""

    __slots__ = ("_allowed", "_forced", "_matcher", "_next", "_stop_ids")

    def __init__(self, matcher: LLMatcher, stop_ids: frozenset[TargetId]) -> None:
        self._matcher, self._stop_ids = matcher, stop_ids
        self._next: dict[TargetId, _Matching | None] = {}
        self._allowed: NDArray[np.uint8] | None = None
        self._forced: Sequence[TargetId] | None = None

    def advance(self, token: TargetId) -> _Matching | None:
        """The state after one more id; None where it is forbidden or nothing is asked any more."""
        if token not in self._next:
            reached = None
            if self.allows(token):
                matcher = self._matcher.deep_copy()
                if matcher.consume_token(token):
                    reached = _Matching(matcher, self._stop_ids)
            self._next[token] = reached
        return self._next[token]

    def allows(self, token: TargetId) -> bool:
        """Whether an id may follow; an end of the output is none that is worth drafting."""
        return token not in self._stop_ids and bool(self._matcher.validate_tokens([token]))

    @property
    def allowed(self) -> NDArray[np.uint8]:
        """The ids that may follow, a bit each, the lowest first."""
        if self._allowed is None:
            self._allowed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            if self._matcher.is_error():
                raise UsageError(
                    f"the grammar is too complex here: {_line(self._matcher.get_error())}"
                )
        return self._allowed

    @property
    def forced(self) -> Sequence[TargetId]:
        """The ids that have to follow: the canonical encoding of the only text that may."""
        if self._forced is None:
            ids = self._matcher.compute_ff_tokens()  # its next mask is then made of them
            self._forced = cast("list[TargetId]", ids)
        return self._forced


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
    """The grammar of one request.

    root: the state before the output. begin: how many ids come before it.
    """

    def __init__(self, root: State, begin: int) -> None:
        self._root: State | None = root
        self._begin = begin
        self._latest: tuple[int, State | None] = begin, root

    def after(self, ids: Sequence[TargetId]) -> State | None:
        """The state after `ids`, prompt and output; None once the output has ended.

        Usually `ids` grow from call to call; others cost a walk from the prompt on.
        """
        read, state = self._latest
        if len(ids) < read:
            read, state = self._begin, self._root
        for token in ids[read:]:
            state = None if state is None else state.advance(token)
        self._latest = len(ids), state
        return state

    def rows(
        self, ids: Sequence[TargetId], tree: TokenTree[TargetId], width: int
    ) -> NDArray[np.bool_] | None:
        """Which ids may be chosen after `ids` and after each id of `tree`, bool[1 + tree, width].

        None where all may everywhere. Rows that no choice leads to allow everything.
        """
        states = [self.after(ids)]
        for token, parent in zip(tree.ids, tree.parents, strict=True):
            state = states[parent + 1]
            states.append(None if state is None else state.advance(token))
        masks = [None if state is None else state.allowed for state in states]
        if all(mask is None for mask in masks):
            return None
        rows = np.ones((len(masks), width), dtype=np.bool_)
        for row, mask in zip(rows, masks, strict=True):
            if mask is not None:
                bits = np.unpackbits(mask, bitorder="little")[:width]
                row[: len(bits)], row[len(bits) :] = bits, False
        return rows


def constrain(
    grammar: Grammar,
    tokenizer: Tokenizer[TargetId],
    prompt: Sequence[TargetId],
    stop_ids: frozenset[TargetId],
    size: int = UNBOUNDED,
) -> Constraint:
    """The grammar of a request; it begins after the prompt, or after a thought that this opens.

    stop_ids: they may end the output where the grammar allows an end. size: how many ids the model
    has, if the tokenizer may know more; those of the latter are never allowed.
    Raises: UsageError for a grammar that cannot be used, or where nothing can end the output;
    IncompatibleError for a tokenizer whose tokens are not known as bytes.
    """
    from llguidance import LLMatcher

    stop_ids = frozenset(token for token in stop_ids if token < size)
    if not stop_ids:
        raise UsageError("a grammar needs a model with an end-of-text token; this one has none")
    tokenizer.require(Level.BY_TEXT)
    if tokenizer.spec.dummy_prefix and tokenizer.opens_segment(prompt):
        grammar = grammar.after('" "?')  # the dummy prefix does not count
    end = _thought_end(tokenizer, prompt)
    if end is not None:
        grammar = grammar.after(r"/\n{0,2}/")
    matcher = LLMatcher(_engine(tokenizer, stop_ids, size), grammar.definition, log_level=0)
    if matcher.is_error():
        raise UsageError(f"the grammar cannot be used: {_line(matcher.get_error())}")
    root = _Matching(matcher, stop_ids)
    return Constraint(root if end is None else _Thinking(end, root), len(prompt))


def _thought_end(tokenizer: Tokenizer[TargetId], prompt: Sequence[TargetId]) -> TargetId | None:
    """The id that ends the thought that a prompt leaves open; None if it leaves none open."""
    vocabulary = tokenizer.vocabulary
    begin, end = (
        vocabulary.special_ids.get(mark, vocabulary.id_of.get(mark.encode())) for mark in _THINKING
    )
    if begin is None or end is None:
        return None
    last = next((token for token in reversed(prompt) if token in (begin, end)), end)
    return end if last == begin else None


class _Tokens:
    """A vocabulary as llguidance reads one, without the ids from `size` on."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, tokenizer: Tokenizer[TargetId], stop_ids: frozenset[TargetId], size: int
    ) -> None:
        tokens, specials = tokenizer.vocabulary.tokens[:size], tokenizer.vocabulary.specials
        self.eos_token_id = min(stop_ids)
        self.tokens = [
            token or specials.get(TargetId(i), "").encode() for i, token in enumerate(tokens)
        ]
        self.special_token_ids = [i for i, token in enumerate(tokens) if not token]
        self._vocabulary, self._encoder = tokenizer.vocabulary, tokenizer.encoder

    def __call__(self, text: bytes | str) -> list[TargetId]:
        """The canonical encoding, without a dummy prefix; tokens that are left out are spelled."""
        ids = self._encoder.encode(text.encode() if isinstance(text, str) else text)
        if max(ids, default=0) < len(self.tokens):
            return ids
        return [letter for token in ids for letter in self._spelled(token)]

    def _spelled(self, token: TargetId) -> list[TargetId]:
        """A token, or those of its bytes if it is left out."""
        if token < len(self.tokens):
            return [token]
        return [self._vocabulary.id_of[bytes([b])] for b in self._vocabulary.tokens[token]]


@lru_cache(maxsize=4)
def _engine(
    tokenizer: Tokenizer[TargetId], stop_ids: frozenset[TargetId], size: int = UNBOUNDED
) -> LLTokenizer:
    """Cost: 0.4 s for 49,000 tokens, 2.3 s for 262,000, once."""
    from llguidance import LLTokenizer

    # The type that is asked for would wrap a tokenizer of another library.
    wrapped: Any = _Tokens(tokenizer, stop_ids, size)
    return LLTokenizer(wrapped, eos_token=[int(token) for token in sorted(stop_ids)])
