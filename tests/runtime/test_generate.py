"""Streaming text: never half a character, stop strings, special tokens, dummy prefixes.

Besides, how many modules a round goes through, from one piece of text to the next.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import SENTENCES, texts
from random_models import decoder_of
from small_families import family_document
from tokenizer_files import character_document, library_tokenizer

from lab.benchmarks.round_calls import calls_of_rounds
from tokalign.errors import UsageError
from tokalign.runtime.generate import Generation, TextStream
from tokalign.runtime.loop import Limits
from tokalign.runtime.request import Request
from tokalign.tokenizer.foreign import ForeignTokenizer
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spelling import SPACE_MARK
from tokalign.tokenizer.tokenizer import Tokenizer


def stream(tokenizer: Tokenizer[Any], ids: list[Any], **options: Any) -> tuple[list[str], str]:
    """The pieces that were printed, and all of the text."""
    text = TextStream(tokenizer, **options)
    pieces = [text.push(token) for token in ids]
    return pieces, "".join(pieces) + text.finish()


@settings(max_examples=80, deadline=None)
@given(text=texts)
def test_the_pieces_are_the_text(tokenizer: Tokenizer[Any], text: str) -> None:
    pieces, whole = stream(tokenizer, tokenizer.encode(text))
    if tokenizer.spec.by_characters:  # the library takes the mark itself for a space
        text = text.replace(SPACE_MARK, " ")
    assert whole == (unicodedata.normalize("NFC", text) if tokenizer.spec.normalizer else text)
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces) or "\ufffd" in text


def _without_bytes() -> dict[str, Any]:
    """Letters alone, decoded as files converted from SentencePiece are: what else is unknown."""
    to_spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    steps = [to_spaces, {"type": "Fuse"}, strip]
    document = character_document(decoder={"type": "Sequence", "decoders": steps})
    model = document["model"]
    kept = [token for token in model["vocab"] if not token.startswith("<0x")]
    model["vocab"] = {token: i for i, token in enumerate(kept)}
    model["byte_fallback"] = False
    return document


DECODED = {
    "aligned": _without_bytes,
    "by text": lambda: family_document("Unigram"),
    "ids only": lambda: family_document("WordPiece"),
}


@pytest.mark.parametrize("level", DECODED)
def test_wherever_a_text_is_cut_it_is_what_the_library_decodes(level: str, tmp_path: Path) -> None:
    """Unknown tokens included: they are spelled, and the space after one is kept."""
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(DECODED[level]()))
    tokenizer, library = read_tokenizer(tmp_path), library_tokenizer(file)
    assert tokenizer.level == level
    unknown = 0
    for text in ("kot 漢字 tak", "漢 kot, a 字ta.", "🐟", "Żółw 漢 🐟 ok 漢", *SENTENCES[:4]):
        ids = tokenizer.encode(text)
        whole = library.decode(ids, skip_special_tokens=False)
        unknown += whole.count("<unk>") + whole.count("[UNK]")
        for cut in range(len(ids)):
            before = library.decode(ids[:cut], skip_special_tokens=False)
            assert before + stream(tokenizer, ids[cut:], prompt=ids[:cut])[1] == whole
    assert unknown > 3
    begun = [0, *ids]  # the unknown token first
    assert stream(tokenizer, begun)[1] == library.decode(begun, skip_special_tokens=False)


def test_spaces_that_a_program_would_remove_later_take_no_letters_with_them() -> None:
    """As programs of transformers do where `clean_up_tokenization_spaces` is set."""

    class Cleaning:
        clean_up_tokenization_spaces = True

        def encode(self, text: str) -> list[int]:
            return [*text.encode()]

        def decode(self, ids: list[int], *, clean_up_tokenization_spaces: bool = True) -> str:
            text = bytes(ids).decode()
            return text.replace(" 's", "'s") if clean_up_tokenization_spaces else text

    tokenizer: Tokenizer[Any] = ForeignTokenizer(Cleaning())
    text = "it 's it 's"
    assert (
        stream(tokenizer, tokenizer.encode(text))[1] == tokenizer.decode([*text.encode()]) == text
    )


def test_bytes_that_never_become_a_character_are_replaced_at_the_end(
    bielik: Tokenizer[Any],
) -> None:
    ids = bielik.encode("a🐟")[:-1]
    pieces, whole = stream(bielik, ids)
    assert "".join(pieces) == "a"
    assert whole == "a\N{REPLACEMENT CHARACTER}"


def test_the_dummy_prefix_is_dropped_only_where_a_segment_begins(bielik: Tokenizer[Any]) -> None:
    ids = bielik.encode("Ala ma kota")
    start = bielik.vocabulary.roles.turn_start
    assert stream(bielik, ids)[1] == "Ala ma kota"
    assert stream(bielik, ids, prompt=[start])[1] == "Ala ma kota"
    assert stream(bielik, ids[2:], prompt=ids[:2])[1] == " ma kota"
    assert stream(bielik, [*ids, start, *ids])[1] == "Ala ma kota<|im_start|>Ala ma kota"


def test_stop_ids_are_not_printed(bielik: Tokenizer[Any]) -> None:
    end = bielik.vocabulary.roles.turn_end
    assert stream(bielik, [*bielik.encode("Tak."), end], silent=frozenset({end}))[1] == "Tak."
    assert stream(bielik, [*bielik.encode("Tak."), end])[1] == "Tak.<|im_end|>"
    *word, dot = bielik.encode("Tak.")  # an end may be a token that is text elsewhere
    assert stream(bielik, [*word, dot], silent=frozenset({dot}))[1] == bielik.decode(word)


def test_ids_beyond_a_padded_vocabulary_print_nothing(bielik: Tokenizer[Any]) -> None:
    assert stream(bielik, [*bielik.encode("Tak"), len(bielik.vocabulary) + 5])[1] == "Tak"


@settings(max_examples=80, deadline=None)
@given(
    text=st.sampled_from(SENTENCES),
    cut=st.tuples(st.integers(0, 60), st.integers(1, 8)),
    extra=st.text("ab \n", min_size=1, max_size=3),
    of_round=st.sampled_from([1, 3, 100]),
)
def test_text_ends_right_before_a_stop_string(
    tokenizer: Tokenizer[Any], text: str, cut: tuple[int, int], extra: str, of_round: int
) -> None:
    """Printed text never has to be taken back, and loop and text agree on where it ends."""
    stop = text[cut[0] : cut[0] + cut[1]] or text[:3]
    ids = tokenizer.encode(text)
    watching, shown = (TextStream(tokenizer, stop_strings=[stop, extra * 4]) for _ in range(2))
    limits, kept, printed = Limits(max_tokens=None, completes_stop=watching.completes_stop), [], ""
    for at in range(0, len(ids), of_round):
        more, reason = limits.cut(tuple(ids[at : at + of_round]))
        kept += more
        if reason:
            break
    for token in kept:
        assert shown.stop_string is None
        printed += shown.push(token)
        assert text.startswith(printed)
    assert shown.stop_string is not None
    assert reason == "stop"
    # Of two that overlap the one counts that is complete first, even if the other begins earlier.
    seen = tokenizer.decode(kept)
    ends = [at for s in (stop, extra * 4) if (at := seen.find(s)) >= 0]
    assert printed + shown.finish() == text[: min(ends)]


def test_an_empty_stop_string_is_refused(bielik: Tokenizer[Any]) -> None:
    with pytest.raises(UsageError, match="stop string is empty"):
        TextStream(bielik, stop_strings=[""])


@pytest.mark.parametrize(("method", "most"), [("draft", 20), ("hybrid", 33)])
def test_a_round_with_a_tree_can_be_followed_through_few_modules(
    demo_pair: Any, method: str, most: int
) -> None:
    """Between two rounds, text and statistics included; greedy, as noise is one module more. In
    most rounds of the hybrid the draft model's answer joins what the free sources expect."""
    target, draft = demo_pair
    endless = replace(target, stop_ids=frozenset()), draft
    how = {"method": method, "translation": "exact", "num_draft_tokens": 3}
    decoder = decoder_of(endless, **how)
    prompt = decoder.prompt("Wisła jest", use_template=False)
    rounds = calls_of_rounds(Generation(decoder, Request(prompt, max_tokens=24)))
    assert len(rounds) > 4
    assert median(len(calls.modules) for calls in rounds) <= most
    assert median(calls.crossings.total() for calls in rounds) <= 350
    assert median(calls.functions.total() for calls in rounds) <= 1200
