"""Merge sites against brute force: what they forbid never happens, what they allow can."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from polish import SENTENCES

from tokalign.alignment_tables import MergeSites
from tokalign.build.merge_sites import find_merge_sites
from tokalign.tokenizer_spec import TokenizerSpec
from tokalign.tokenizers import Tokenizer
from tokalign.vocab import Roles, TargetId


@pytest.fixture(scope="module")
def sites(bielik: Tokenizer[Any]) -> MergeSites:
    return find_merge_sites(bielik)


def small() -> Tokenizer[Any]:
    """A SentencePiece-style tokenizer small enough to try every text of it."""
    tokens, triples = [b"a", b"b", b"c"], []
    for left, right in ((0, 1), (2, 0), (3, 2), (1, 2), (4, 4), (1, 1)):
        triples.append((left, right, len(tokens)))
        tokens.append(tokens[left] + tokens[right])
    return Tokenizer(
        TokenizerSpec(
            tokens=tuple(tokens),
            triples=triples,
            fallback=frozenset(),
            specials={},
            roles=Roles(),
            by_characters=True,
        )
    )


def test_every_text_of_a_small_tokenizer() -> None:
    """Exact and complete: a site is exactly what no text, however it goes on, ever shows."""
    tokenizer = small()
    sites, tokens = find_merge_sites(tokenizer), tokenizer.vocabulary.tokens
    seen: dict[int, set[bytes]] = {i: set() for i in range(len(tokens))}
    for length in range(1, 9):
        for letters in product(b"abc", repeat=length):
            ids = tokenizer.bpe.encode(bytes(letters))
            for at, last in enumerate(ids):
                rest = b"".join(tokens[i] for i in ids[at + 1 :])
                seen[last] |= {rest[:n] for n in range(1, 4)}
    for last, token in enumerate(tokens):
        for length in range(1, 4):
            for letters in product(b"abc", repeat=length):
                following = bytes(letters)
                if any(t.startswith(following) for t in tokens):
                    absorbed = sites.absorbs(TargetId(last), following)
                    assert absorbed == (following not in seen[last]), (token, following)


def test_canonical_polish_text_never_crosses_a_merge_site(
    bielik: Tokenizer[Any], sites: MergeSites
) -> None:
    tokens = bielik.vocabulary.tokens
    for sentence in SENTENCES:
        ids = bielik.encode(sentence)
        for at in range(len(ids) - 1):
            rest = b"".join(tokens[i] for i in ids[at + 1 :])
            assert not sites.absorbs(ids[at], rest)


def test_what_is_absorbed_is_never_kept_by_the_encoder(
    bielik: Tokenizer[Any], sites: MergeSites
) -> None:
    tokens, bpe, draw = bielik.vocabulary.tokens, bielik.bpe, random.Random(11)
    words = [i for i, t in enumerate(tokens) if t and i not in bielik.vocabulary.fallback]
    absorbed = 0
    for _ in range(4000):
        last, following, more = (draw.choice(words) for _ in range(3))
        if sites.absorbs(TargetId(last), tokens[following]):
            absorbed += 1
            assert bpe.encode(tokens[last] + tokens[following])[0] != last
            assert bpe.encode(tokens[last] + tokens[following] + tokens[more])[0] != last
    assert absorbed > 50


def test_sites_are_the_shortest_and_agree_with_pair_validity(
    bielik: Tokenizer[Any], sites: MergeSites
) -> None:
    tokens, draw = bielik.vocabulary.tokens, random.Random(12)
    fallback = bielik.vocabulary.fallback
    by_start: dict[bytes, list[int]] = {}
    for i, token in enumerate(tokens):
        if token and i not in fallback:
            for length in range(1, len(token) + 1):
                by_start.setdefault(token[:length], []).append(i)
    for last in draw.sample(range(259, 32_000), 150):
        found = sites.after(TargetId(last))
        for site in found:
            assert not any(bielik.bpe.may_follow(last, t) for t in by_start[site])
            assert not any(site != other and site.startswith(other) for other in found)
        for token in draw.sample(range(259, 32_000), 200):
            if bielik.bpe.may_follow(last, token):
                assert not sites.absorbs(TargetId(last), tokens[token])


def test_a_table_survives_its_sections(sites: MergeSites) -> None:
    again = MergeSites.from_sections(sites.to_sections())
    for token in range(300, 32_000, 1777):
        assert again.after(TargetId(token)) == sites.after(TargetId(token))
    assert sites.to_sections() == again.to_sections()


@pytest.mark.slow
def test_with_a_pre_tokenizer_nothing_canonical_is_forbidden(
    shared_data: Path, llama: Tokenizer[Any]
) -> None:
    text = (shared_data / "corpus" / "dev" / "sejm.txt").read_text("utf-8")[:20_000]
    ids = llama.encode(text)
    found = find_merge_sites(llama)
    assert len(found) > 1000
    tokens = llama.vocabulary.tokens
    for at, last in enumerate(ids[:-1]):
        assert not found.absorbs(last, b"".join(tokens[i] for i in ids[at + 1 : at + 8]))
