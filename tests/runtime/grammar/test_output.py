"""Output under a grammar: it parses, and it is that of masked plain decoding, whatever drafts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import regex
from jsonschema import validate
from llguidance import LLMatcher
from random_models import decoder_of, emitted
from small_tables import half_right

from tokalign.errors import IncompatibleError, UsageError
from tokalign.runtime.chat import with_bos
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.grammar import Grammar, constrain
from tokalign.runtime.grammar.matcher import engine_of
from tokalign.runtime.mlx.sampling import CallableSampler, Sampling
from tokalign.runtime.remembered import OutputStore
from tokalign.runtime.request import Request
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.foreign import any_ids
from tokalign.tokenizer.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "imię": {"type": "string", "maxLength": 6},
        "wiek": {"type": "integer", "minimum": 1, "maximum": 130},
        "zawód": {"enum": ["nauczyciel", "naukowiec", "kierowca"]},
        "tagi": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
    },
    "required": ["imię", "wiek", "zawód", "tagi"],
    "additionalProperties": False,
}
PATTERN = r"Tel\. [0-9]{3}-[0-9]{3}, (?:ul|al)\. [A-ZŻŁ][a-zżółć]{2,8} [0-9]{1,3}"
CHOICES = ("wczoraj rano", "wczoraj wieczorem", "„żółw” 🐢")
GBNF = 'root ::= "- " item ("\\n- " item)? "."\nitem ::= [a-z]+ (" " [a-z]+)?'

CHECKED: dict[str, tuple[Grammar, Callable[[str], object]]] = {
    "schema": (Grammar.json_schema(SCHEMA), lambda text: validate(json.loads(text), SCHEMA)),
    "regex": (Grammar.regex(PATTERN), lambda text: regex.fullmatch(PATTERN, text) or 1 / 0),
    "choice": (Grammar.choice(CHOICES), CHOICES.index),
    "gbnf": (
        Grammar.text(GBNF),
        lambda text: regex.fullmatch(r"- [a-z ]+(\n- [a-z ]+)?\.", text) or 1 / 0,
    ),
}
SAMPLINGS: dict[str, Any] = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1.0, top_p=0.95, top_k=40, seed=4),
    "xtc": Sampling(temperature=0.9, min_p=0.01, xtc_probability=0.5, seed=7),
    "processed": Sampling(
        temperature=0.7,
        seed=2,
        processors=(lambda ids, row: row - 0.1 * (mx.arange(row.shape[-1]) % 7),),
    ),
    "callable": CallableSampler(lambda logprobs: mx.argmax(logprobs + 0.0, axis=-1)),
}
SHORT = [("greedy", "schema"), ("sampled", "schema"), ("processed", "regex"), ("xtc", "choice")]
PLAIN = [(sampling, kind) for sampling in ("greedy", "sampled") for kind in CHECKED]
DRAFTED = [
    pytest.param(sampling, kind, marks=() if (sampling, kind) in SHORT else pytest.mark.long)
    for sampling in SAMPLINGS
    for kind in CHECKED
]
METHODS = [("copy", "none"), ("dictionary", "none"), ("draft", "exact"), ("hybrid", "exact")]
PROMPT, TOKENS = "Wczoraj rano", 90


Pair = tuple[LanguageModel[Any], LanguageModel[Any]]
Emit = Callable[..., tuple[list[int], str, str]]


@pytest.fixture(scope="module")
def emit(demo_pair: Pair) -> Emit:
    """The ids, the text and the end of a generation; that of plain decoding is made once."""

    def run(
        sampling: Any, grammar: Grammar | None, tokens: int = TOKENS, **how: Any
    ) -> tuple[list[int], str, str]:
        decoder = decoder_of(demo_pair, **how)
        prompt = decoder.prompt(PROMPT, use_template=False)
        request = Request(prompt, max_tokens=tokens, sampler=sampling, grammar=grammar)
        generation = Generation(decoder, request)
        text = "".join(piece.text for piece in generation) + generation.rest()
        return list(generation.context.emitted), text, generation.summary()["finish_reason"]

    plain = cache(lambda sampling, kind: run(SAMPLINGS[sampling], CHECKED[kind][0], method="plain"))
    return lambda *given, **how: run(*given, **how) if how or len(given) > 2 else plain(*given)


@pytest.mark.parametrize(("sampling", "kind"), PLAIN)
def test_the_output_matches_the_grammar_and_is_that_of_a_plain_mask(
    demo_pair: Pair, emit: Emit, sampling: str, kind: str
) -> None:
    """The mask is made by another path: a logits processor, with a new matcher for every row."""
    target, _ = demo_pair
    prompt = len(with_bos(target.tokenizer, target.tokenizer.encode(PROMPT)))
    grammar, check = CHECKED[kind]

    def masked(ids: Any, row: Any) -> Any:
        matcher = LLMatcher(engine_of(target.tokenizer, target.stop_ids), definition, log_level=0)
        assert matcher.consume_tokens(ids.tolist()[prompt:])
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.zeros(row.shape[-1], bool)
        allowed[: len(bits)] = bits[: len(allowed)]
        return mx.where(mx.array(allowed), row, -mx.inf)

    definition = grammar.definition
    ids, text, ends = emit(sampling, kind)
    assert ends == "stop"
    check(text)
    processed = replace(SAMPLINGS[sampling], processors=(masked,))
    assert emit(processed, None, TOKENS, method="plain")[0] == ids


@pytest.mark.parametrize(("sampling", "kind"), DRAFTED)
@pytest.mark.parametrize(("method", "translation"), METHODS)
@pytest.mark.slow
def test_what_drafts_changes_nothing(
    emit: Emit, sampling: str, kind: str, method: str, translation: str
) -> None:
    """The sources know parts of the output, so that some proposals are wrong, some forbidden."""
    plain, _, _ = emit(sampling, kind)
    drafted, _, ends = emit(
        SAMPLINGS[sampling],
        CHECKED[kind][0],
        method=method,
        translation=translation,
        num_draft_tokens=4,
        **half_right(plain, 4000),
    )
    assert (drafted, ends) == (plain, "stop")


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("method", ["copy", "hybrid"])
def test_forced_ids_are_never_rejected_and_forbidden_ones_never_drafted(
    demo_pair: Pair, sampling: str, method: str
) -> None:
    target, _ = demo_pair
    grammar = CHECKED["schema"][0]
    store = OutputStore()
    store.add(target.tokenizer.encode('Wczoraj rano {"imię": "Wczoraj rano", "wiek": [], }'))
    how = {"method": method, "num_draft_tokens": 12}
    decoder = decoder_of((target, None), **how)
    prompt = decoder.prompt(PROMPT, use_template=False)
    request = Request(
        prompt,
        max_tokens=TOKENS,
        sampler=SAMPLINGS[sampling],
        grammar=grammar,
        outputs=(store.text,),
    )
    emitted(generation := Generation(decoder, request))
    constraint, ids, forced = decoder.constrain(grammar, prompt.target), list(prompt.target), 0
    for one in generation.rounds:
        states = [constraint.after(ids)]
        for index, (token, parent) in enumerate(zip(one.tree.ids, one.tree.parents, strict=True)):
            state = states[parent + 1]
            assert state is not None
            allowed = state.allowed
            assert allowed is not None
            assert allowed[token // 8] >> token % 8 & 1, "what the mask forbids was drafted"
            states.append(state.advance(token))
            certain = one.tree.sources[index] == "grammar"
            if certain and (parent == -1 or parent in one.path) and one.ends is None:
                assert index in one.path, "the only text that may follow was rejected"
            forced += certain and index in one.path
        ids += one.emitted
    assert forced > len(generation.context.emitted) / 3
    assert len(generation.rounds) < len(generation.context.emitted) / 2


def test_a_cut_output_says_so_and_is_a_prefix(emit: Emit) -> None:
    whole, _, _ = emit("greedy", "schema")
    ids, _, ends = emit(Sampling(), CHECKED["schema"][0], 5, method="copy")
    assert (ids, ends) == (whole[:5], "length")


def test_rows_of_a_tree_are_those_of_their_paths(demo_pair: Pair) -> None:
    target, _ = demo_pair
    tokenizer, prompt = target.tokenizer, [5, 6]
    grammar = Grammar.json_schema(SCHEMA)
    right = tokenizer.encoder.encode(b'{"imi\xc4\x99": "Ala", "wiek": 3')
    wrong = tokenizer.encoder.encode(b"[1")
    tree = TokenTree(
        (*right, *wrong), (*range(-1, len(right) - 1), 3, len(right)), ("x",) * (len(right) + 2)
    )
    rows = constrain(grammar, tokenizer, prompt, target.stop_ids).masks(prompt, tree, 4000)
    assert rows is not None
    for count in range(len(right) + 1):
        alone = constrain(grammar, tokenizer, prompt, target.stop_ids)
        (row,) = alone.masks([*prompt, *right[:count]], TokenTree(), 4000)  # type: ignore[misc]
        assert (rows[count] == row).all()
        if count < len(right):
            assert row[right[count]], "the canonical encoding is always allowed"
    assert rows[-1].all(), "no choice leads here"


def test_a_thought_comes_before_the_grammar(
    demo_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = demo_pair
    marks = ("<nonesuch>", "</nonesuch>"), ("<|im_start|>", "<|im_end|>")
    monkeypatch.setattr("tokalign.runtime.grammar.constraint.THOUGHTS", marks)
    specials = target.tokenizer.vocabulary.special_ids
    begin, end = specials["<|im_start|>"], specials["<|im_end|>"]
    (brace,) = target.tokenizer.encoder.encode(b"{")
    grammar, stops = Grammar.json_object(), target.stop_ids - {end}
    constraint = constrain(grammar, target.tokenizer, [begin, 9], stops)
    assert constraint.masks([begin, 9, 10], TokenTree(), 4000) is None
    (row,) = constraint.masks([begin, 9, 10, end], TokenTree(), 4000)  # type: ignore[misc]
    assert row[brace]
    assert not row[10]
    closed = constrain(grammar, target.tokenizer, [begin, 9, end], stops)
    assert closed.masks([begin, 9, end], TokenTree(), 4000) is not None


TEXTS = (Grammar.regex, Grammar.text, Grammar.lark)
WRONG: list[tuple[Callable[[Any], Grammar], Any]] = [
    *((make, bad) for make in TEXTS for bad in (5, None, b"a", ["a"], "\ud800")),
    *((Grammar.choice, bad) for bad in ("tak", 5, None, [5], [None, "x"], ["\ud800"])),
]


def test_what_cannot_be_followed_is_refused(demo_pair: Pair) -> None:
    for make in (
        lambda: Grammar.json_schema({"type": "strng"}),
        lambda: Grammar.json_schema("[1]"),
        lambda: Grammar.json_schema({"not": {"type": "string"}}),
        lambda: Grammar.regex("a(b"),
        lambda: Grammar.text("root ::= other"),
        lambda: Grammar.text("start: other"),
        lambda: Grammar.choice([]),
        *(partial(make, bad) for make, bad in WRONG),
    ):
        with pytest.raises(UsageError) as refused:
            make()
        assert "\n" not in str(refused.value)
    assert Grammar.json_schema({"type": "object", "not": {}}, strict=False)
    target, _ = demo_pair
    with pytest.raises(UsageError, match="end-of-text"):
        constrain(Grammar.json_object(), target.tokenizer, [1], frozenset())
    with pytest.raises(IncompatibleError, match="ids only"):
        constrain(Grammar.json_object(), any_ids(100), [1], target.stop_ids)


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


@pytest.mark.parametrize("opening", ["", "<|im_start|>assistant\n<think>"])
def test_a_schema_that_requires_itself_is_refused_before_the_output_begins(
    bielik: Tokenizer[Any], llama: Tokenizer[Any], opening: str
) -> None:
    """llguidance takes it, and fails at the first id after a dummy prefix or a thought."""
    for tokenizer, grammar in product(
        (bielik, llama), (Grammar.json_schema(ENDLESS), Grammar.text('root ::= "a" root'))
    ):
        prompt, stops = tokenizer.encode(opening, specials=True), tokenizer.vocabulary.roles.eos
        with pytest.raises(UsageError, match="no finite text"):
            constrain(grammar, tokenizer, prompt, stops)


def test_a_grammar_at_which_llguidance_panics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It did at `b|c(cb)|ccb`, and a panic is no Exception."""

    class PanicException(BaseException):
        pass

    def panics(*_given: Any, **_options: Any) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr("llguidance.LLMatcher.validate_grammar_with_warnings", panics)
    with pytest.raises(UsageError, match="llguidance gives up on the grammar"):
        Grammar.lark('start: "a text of no other test"')
