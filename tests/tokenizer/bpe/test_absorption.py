"""What is absorbed is in no canonical encoding, and canonical text is never absorbed."""

from __future__ import annotations

from collections import Counter
from itertools import chain, product
from random import Random
from typing import Any

import pytest
from polish import SENTENCES
from small_families import BYTE_LEVEL, GPT4O_PATTERN, isolated
from small_tokenizers import of_merges, random_merges

from tokalign.tokenizer.bpe.absorption import Absorption
from tokalign.tokenizer.bpe.encoder import BytePairEncoding, IncrementalEncoder
from tokalign.tokenizer.spec import byte_level
from tokalign.tokenizer.tokenizer import Tokenizer


def goes_on(bpe: BytePairEncoding, ids: list[int], rest: bytes) -> bool:
    """Brute force: whether `ids`, and tokens after them that begin with `rest`, are canonical."""
    text = b"".join([bpe.tokens[i] for i in ids])
    for token in bpe.order.ids:
        spelled = bpe.tokens[token]
        longer = [*ids, token]
        meets = spelled.startswith(rest) or rest.startswith(spelled)
        if meets and bpe.merge(text + spelled).ids == longer:
            left = rest[len(spelled) :]
            if not left or goes_on(bpe, longer, left):
                return True
    return False


@pytest.mark.parametrize("seed", range(3))
def test_absorbed_iff_no_sequence_of_tokens_goes_on_like_that(seed: int) -> None:
    draw, outcomes = Random(seed), Counter[bool]()
    for _ in range(40):
        bpe = random_merges(draw).bpe
        absorption = Absorption(bpe)
        letters = sorted(token for token in bpe.tokens if len(token) == 1)
        for last in filter(bpe.validity.reachable, bpe.order.ids):
            for data in chain.from_iterable(product(letters, repeat=n) for n in (1, 2, 3)):
                expected = not goes_on(bpe, [last], b"".join(data))
                assert absorption.within_piece(last, b"".join(data)) == expected
                outcomes[expected] += 1
    assert min(outcomes[True], outcomes[False]) > 300


def following(bpe: BytePairEncoding, last: bytes, draw: Random) -> bytes:
    """The beginning of a token, or of what a token that begins with `last` has after it."""
    first, end = bpe.order.extending(last)
    if first < end and draw.random() < 0.5:
        return bpe.order.spelled[draw.randrange(first, end)][len(last) :]
    spelled = draw.choice(bpe.order.spelled)
    return spelled[: draw.randint(1, len(spelled))]


def crowded(bpe: BytePairEncoding, data: bytes) -> bool:
    """Whether this takes long to derive; `test_merge_sites.py` tries these with their table."""
    first, end = bpe.order.starting_with(data)
    return end - first > 100


def test_canonical_text_is_never_absorbed(tokenizer: Tokenizer[Any]) -> None:
    absorption = Absorption(tokenizer.bpe)
    for sentence in SENTENCES:
        encoder, tokens = IncrementalEncoder(tokenizer.bpe), tokenizer.vocabulary.tokens
        ids = tokenizer.encode(sentence)
        for at, last in enumerate(ids[:-1]):
            encoder.push(tokens[last])
            left = b"".join(tokens[i] for i in encoder.ids[encoder.settled :])
            rest = b"".join(tokens[i] for i in ids[at + 1 :])
            for size in (1, 2, 3, 5, 8, len(rest)):
                assert not absorption.absorbs(left, last, rest[:size])


@pytest.mark.parametrize("word", ["[INST]", "3.14", "½", "xYz"])
def test_a_word_without_end_is_asked_about(tokenizer: Tokenizer[Any], word: str) -> None:
    """Each of its tokens was a call within the one before."""
    data = tokenizer.text_bytes(word * 300)
    ids, tokens = tokenizer.encoder.encode(data), tokenizer.vocabulary.tokens
    absorption = Absorption(tokenizer.bpe)
    for kept in range(1, 9):
        left = b"".join(tokens[i] for i in ids[:kept])
        assert not absorption.absorbs(left, ids[kept - 1], data[len(left) :])


def test_what_is_absorbed_never_leaves_the_committed_ids(tokenizer: Tokenizer[Any]) -> None:
    """Whatever comes after it: more tokens, other pieces, a broken character."""
    bpe, draw = tokenizer.bpe, Random(13)
    absorption, tokens = Absorption(bpe), tokenizer.vocabulary.tokens
    absorbed = 0
    for sentence in SENTENCES:
        ids = tokenizer.encode(sentence)
        for cut in range(1, len(ids)):
            left = b"".join(tokens[i] for i in ids[:cut])
            if bpe.encode(left) != ids[:cut]:
                continue
            for _ in range(12):
                data = following(bpe, tokens[ids[cut - 1]], draw)
                if not crowded(bpe, data) and data == data.decode("utf-8", "ignore").encode():
                    found = absorption.absorbs(left, ids[cut - 1], data)
                    absorbed += found
                    for more in (b"", draw.choice(bpe.order.spelled), b" a", b"\n", b"\xc5"):
                        kept = bpe.encode(left + data + more)[:cut] == ids[:cut]
                        assert not (found and kept)
    assert absorbed > 300


@pytest.mark.parametrize(
    ("left", "last", "data", "absorbed"),
    [
        (b" Pol", b" Pol", b"ska", True),
        (b" Pol", b" Pol", b" ska", False),
        (b"koniec.", b".", b"\n", True),  # one piece with the full stop
        (b"koniec.", b".", b" ", False),
        (b"rok 19", b"19", b"5", True),  # three digits are one piece, and here one token
        (b"rok 195", b"195", b"5", False),
        ("za\u017c".encode()[:-1], b"\xc5", b"\xbc", True),  # the rest of a character
    ],
)
def test_the_text_before_the_boundary_decides_the_piece(
    llama: Tokenizer[Any], left: bytes, last: bytes, data: bytes, absorbed: bool
) -> None:
    token = llama.vocabulary.id_of[last]
    assert Absorption(llama.bpe).absorbs(left, token, data) == absorbed


@pytest.mark.parametrize("contraction", ["'t", "'re", "'ll"])
def test_an_apostrophe_may_become_a_contraction(contraction: str) -> None:
    """GPT-4o's expression counts it to the word: `tc` is one token, but `tc't` is `t|c't`."""
    made = [contraction[:n].encode() for n in range(2, len(contraction) + 1)]
    cuts = [(t[:-1], t[-1:]) for t in made] + [(b"c", contraction.encode()), (b"t", b"c")]
    by_pieces = {"by_characters": False, "pre_tokenizer": byte_level(GPT4O_PATTERN)}
    tokenizer = of_merges(bytes(range(256)), cuts, **by_pieces)
    bpe, ids = tokenizer.bpe, tokenizer.vocabulary.id_of
    whole = ids[f"c{contraction}".encode()]
    assert bpe.encode(f"tc{contraction}".encode()) == [ids[b"t"], whole]
    for size in range(1, len(contraction)):
        data = f"c{contraction[:size]}".encode()
        assert not Absorption(bpe).absorbs(b"t", ids[b"t"], data)


def test_text_may_become_an_added_token() -> None:
    """`a<` is one token, but `a<b>` is `a` and the added `<b>`."""
    pairs = [(b"a", b"<")]
    plain = of_merges(b"ab<>", pairs).spec.tokens
    added = {"tokens": (*plain, b"<b>"), "text_tokens": frozenset({len(plain)})}
    bpe, a = of_merges(b"ab<>", pairs, **added).bpe, plain.index(b"a")
    assert bpe.encode(b"a<b>") == [a, len(plain)]
    for size in (1, 2, 3):
        assert not Absorption(bpe).absorbs(b"a", a, b"<b>"[:size])
    assert Absorption(bpe).absorbs(b"a", a, b"<a")


@pytest.mark.parametrize("digits", [4, 5])
def test_digits_may_be_counted_from_the_last(digits: int) -> None:
    """`12` is one piece and one token, but `1234` is `1` and `234`."""
    steps = (isolated(r"\d{1,3}(?=(?:\d{3})*\b)"), BYTE_LEVEL)
    pairs = [(b"1", b"1"), (b"11", b"1")]
    tokenizer = of_merges(bytes(range(256)), pairs, by_characters=False, pre_tokenizer=steps)
    bpe = tokenizer.bpe
    ids = bpe.encode(b"1" * digits)
    left = bpe.tokens[ids[0]]
    for size in range(1, digits - len(left) + 1):
        assert not Absorption(bpe).absorbs(left, ids[0], b"1" * size)
