"""States of a grammar: walking, rolling back and copying allow what a fresh matcher allows."""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from tokalign.child_processes import end_once
from tokalign.errors import GrammarError, UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.grammar import Grammar, constrain, constraint, matcher
from tokalign.runtime.grammar.matcher import engine_of
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.tokenizer import Tokenizer

PROMPT = [5, 6]
OBJECT = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"enum": ["wczoraj rano", "wczoraj", 17]}},
        "b": {"type": "string", "pattern": "^[a-c]+x?$"},
    },
}
GRAMMARS = {
    "schema": Grammar.json_schema(OBJECT),
    "regex": Grammar.regex("(ab|a|wczoraj )*[0-9]{2,}"),
    "choice": Grammar.choice(["wczoraj rano", "wczoraj wieczorem", "wczoraj"]),
    "recursion": Grammar.lark('start: "(" start ")" | "[" start "]" start | /[a-z]+/'),
    "no rollback": Grammar.lark('start: (name ";")+\nname[stop=","]: /[a-z ]+/'),
}
Pair = tuple[LanguageModel[Any], LanguageModel[Any]]


@pytest.fixture(scope="module")
def tokenizer(demo_pair: Pair) -> Tokenizer[Any]:
    return demo_pair[0].tokenizer


@pytest.fixture(scope="module")
def stops(demo_pair: Pair) -> frozenset[Any]:
    return demo_pair[0].stop_ids


def fresh_mask(
    grammar: Grammar, tokenizer: Tokenizer[Any], stops: frozenset[Any], ids: list[int]
) -> bytes:
    matcher = LLMatcher(engine_of(tokenizer, stops), grammar.definition, log_level=0)
    assert matcher.consume_tokens(ids)
    return bytes(matcher.compute_bitmask())


def test_ends_that_no_token_is_allow_nothing(
    tokenizer: Tokenizer[Any], stops: frozenset[Any]
) -> None:
    """As -1 in a configuration, or an id of the model's padding."""
    size, grammar = len(tokenizer.vocabulary), Grammar.choice(["wczoraj"])
    expected = constrain(grammar, tokenizer, PROMPT, stops).masks(PROMPT, EMPTY_TREE, size + 8)
    more = constrain(grammar, tokenizer, PROMPT, stops | {-1, size, size + 5}, size + 8)
    assert np.array_equal(more.masks(PROMPT, EMPTY_TREE, size + 8), expected)
    with pytest.raises(UsageError, match="end-of-text"):
        constrain(grammar, tokenizer, PROMPT, frozenset({-1, size}))


def test_a_dummy_prefix_costs_one_more_compilation_only_where_a_space_may_begin(
    bielik: Tokenizer[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema of 99 KB takes seconds to compile."""
    compiled = list[str]()

    def compile_once(definition: str, engine: Any) -> LLMatcher:
        compiled.append(definition)
        return matcher.matcher_of(definition, engine)

    monkeypatch.setattr(constraint, "matcher_of", compile_once)
    specials, ids = bielik.vocabulary.special_ids, bielik.vocabulary.id_of
    for pattern, times, may_begin in (("[ab]+", 1, True), (" ?[ab]+", 2, False)):
        compiled.clear()
        fresh = constrain(Grammar.regex(pattern), bielik, [specials["<s>"]], frozenset({2}))
        state = fresh.after([specials["<s>"]])
        assert state is not None
        assert state.allows(ids[b" "])
        assert state.allows(ids[b"a"]) == may_begin
        assert len(compiled) == times


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("seed", range(3))
def test_a_state_allows_what_a_fresh_matcher_does(
    tokenizer: Tokenizer[Any], stops: frozenset[Any], kind: str, seed: int
) -> None:
    """Trees grow in any order, their states are asked in any order, and some of it is committed."""
    rng, grammar = random.Random(seed), GRAMMARS[kind]
    constraint, emitted = constrain(grammar, tokenizer, PROMPT, stops), list[int]()
    for _ in range(6):
        root = constraint.after([*PROMPT, *emitted])
        if root is None:
            break
        nodes = [([], root)]
        for _ in range(10):
            path, state = rng.choice(nodes)
            if rng.random() < 0.3:
                assert not state.forced or state.allows(state.forced[0])
            mask = bytes(state.allowed.tobytes())
            assert mask == fresh_mask(grammar, tokenizer, stops, [*emitted, *path])
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            token = int(rng.choice(np.flatnonzero(bits)))
            following = state.advance(token)
            assert (following is None) == (token in stops)
            forbidden = int(rng.choice(np.flatnonzero(bits == 0)))
            assert bits.sum() == 1 or state.advance(forbidden) is None
            if following is not None:
                nodes.append(([*path, token], following))
        emitted += rng.choice(nodes)[0]


def test_no_text_lets_the_constraint_go(tokenizer: Tokenizer[Any], stops: frozenset[Any]) -> None:
    """Where the matcher fails, an error is raised, in plain decoding, in trees and in batches."""
    wide = [{"properties": {f"p{m}{n}": {} for n in range(900)}} for m in range(2)]
    parts = {"n": {"type": "integer"}, "x": {"type": "object", "anyOf": wide}}
    grammar = Grammar.json_schema({"type": "object", "properties": parts, "required": [*parts]})
    constraint, ids = constrain(grammar, tokenizer, PROMPT, stops), list(PROMPT)

    def follow() -> None:
        for token in tokenizer.encoder.encode(b'{"n": 12345, "x": {"p110": 7'):
            assert constraint.masks(ids, EMPTY_TREE, 4000) is not None
            ids.append(token)

    with pytest.raises(GrammarError, match="too complex") as failed:
        follow()
    assert "<" not in str(failed.value), "a matcher's state holds the text of a request"
    with pytest.raises(GrammarError):
        constraint.masks(ids, EMPTY_TREE, 4000)
    assert isinstance(failed.value, UsageError)


def test_a_text_that_nothing_may_follow_is_told_as_one(
    tokenizer: Tokenizer[Any], stops: frozenset[Any]
) -> None:
    """llguidance takes a comma after the last name that there may be, however simple the schema."""
    names = {"a": {"const": 1}, "b": {"const": 2}}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    grammar = Grammar.json_schema({**schema, "patternProperties": {"^[ab]$": {}}})
    constraint = constrain(grammar, tokenizer, PROMPT, stops)
    state = constraint.after([*PROMPT, *tokenizer.encoder.encode(b'{"a": 1, "b": 2, ')])
    with pytest.raises(GrammarError, match="or no text goes on from here"):
        _ = state.allowed if state else None


def test_a_guess_may_fail_without_the_request(
    tokenizer: Tokenizer[Any], stops: frozenset[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a row that was reached ends the output; those beside it are as without the guess."""
    grammar = GRAMMARS["recursion"]
    (good,), (bad,) = (tokenizer.encoder.encode(text) for text in (b"(", b"["))

    class Fails:
        """A matcher that cannot read one id."""

        def __init__(self, inner: LLMatcher) -> None:
            self._inner, self._failed = inner, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def is_error(self) -> bool:
            return self._failed

        def deep_copy(self) -> Fails:
            return Fails(self._inner.deep_copy())

        def consume_token(self, token: int) -> bool:
            self._failed = self._failed or token == bad
            return not self._failed and self._inner.consume_token(token)

    constraint = constrain(grammar, tokenizer, PROMPT, stops)
    plain = constraint.masks(PROMPT, TokenTree((good,), (-1,), ("x",)), 4000)
    monkeypatch.setattr(constraint, "_fresh", Fails(constraint._fresh))
    constraint._restart()
    tree = TokenTree((bad, good, bad), (-1, -1, 1), ("x",) * 3)
    rows = constraint.masks(PROMPT, tree, 4000)
    assert plain is not None
    assert rows is not None
    assert (rows[[0, 2]] == plain).all()
    constraint.check([0, 2])
    for reached in ([0, 1], [0, 2, 3]):
        with pytest.raises(GrammarError):
            constraint.check(reached)
    with pytest.raises(GrammarError):
        constraint.masks([*PROMPT, bad], EMPTY_TREE, 4000)


def test_a_request_holds_three_matchers_however_long_it_is(
    tokenizer: Tokenizer[Any], stops: frozenset[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = Grammar.json_schema({"type": "array", "items": {"type": "integer"}})
    constraint, ids = constrain(grammar, tokenizer, PROMPT, stops), list(PROMPT)
    text = tokenizer.encoder.encode(("[" + ", ".join(map(str, range(100)))).encode())

    copies = []

    class Counted:
        def __init__(self, inner: LLMatcher) -> None:
            self._inner = inner
            copies.append(self)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def deep_copy(self) -> Counted:
            return Counted(self._inner.deep_copy())

    monkeypatch.setattr(constraint, "_fresh", Counted(constraint._fresh))
    constraint._restart()
    for token in text:
        constraint.masks(ids, TokenTree((token, 7, token), (-1, -1, 0), ("x",) * 3), 4000)
        ids.append(token)
    assert len(copies) == 3, "the fresh one, the committed one, the one that walks"


def test_threads_may_constrain_at_once(tokenizer: Tokenizer[Any], stops: frozenset[Any]) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(
            pool.map(lambda one: constrain(one, tokenizer, PROMPT, stops), [GRAMMARS["schema"]] * 8)
        )
    masks = {one.after(PROMPT).allowed.tobytes() for one in made}  # type: ignore[union-attr]
    assert len(masks) == 1


def test_a_long_forced_text_is_encoded_as_its_beginning_is(
    tokenizer: Tokenizer[Any], stops: frozenset[Any]
) -> None:
    text = "wczoraj rano i wczoraj wieczorem " * 300
    constraint, ids = constrain(Grammar.choice([text]), tokenizer, PROMPT, stops), list(PROMPT)
    for _ in range(100):
        state = constraint.after(ids)
        assert state is not None
        assert state.forced
        ids.append(state.forced[0])
    assert tokenizer.encoder.encode(text.encode())[:90] == ids[len(PROMPT) :][:90]


@pytest.mark.parametrize(
    ("number", "ended"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_an_interrupt_while_the_grammar_asks_for_an_encoding_comes_after_it(
    tokenizer: Tokenizer[Any],
    stops: frozenset[Any],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    ended: Any,
) -> None:
    """It is no failure of the grammar, which would be told to be too complex."""
    constraint = constrain(Grammar.choice(["wczoraj rano"]), tokenizer, PROMPT, stops)
    encode, asked = matcher._Tokens._encode, list[bytes]()

    def interrupted(self: Any, data: bytes) -> list[Any]:
        asked.append(data)
        if len(asked) == 1:
            signal.raise_signal(number)
        return encode(self, data)

    monkeypatch.setattr(matcher._Tokens, "_encode", interrupted)
    # As the program has them; one that a shell starts in the background ignores SIGINT.
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: end_once}
    handlers[signal.SIGHUP] = signal.SIG_DFL
    before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
    try:
        with pytest.raises(ended):  # noqa: PT012  # whenever it comes
            state = constraint.after(PROMPT)
            assert state is not None
            assert state.forced
            assert state.allowed is not None
            time.sleep(30)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert len(asked) > 1
