"""Followers and merge sites: the worked examples, and what the merges say, asked one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from polish import SENTENCES
from small_tables import bundle_of
from small_tokenizers import random_merges

from tokalign.build.merge_sites import Followers, find_merge_sites
from tokalign.tables.alignment import MergeSites
from tokalign.tokenizer.bpe.absorption import MIN_FANOUT, Absorption
from tokalign.tokenizer.bpe.validity import EdgeToken
from tokalign.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def sites(bielik: Tokenizer[Any]) -> MergeSites:
    return find_merge_sites(bielik)


@pytest.fixture(scope="module")
def followers(bielik: Tokenizer[Any]) -> Followers:
    return Followers(bielik.bpe)


def id_of(tokenizer: Tokenizer[Any], shown: str) -> int:
    """The id of a token that is written with `▁` for a space."""
    return int(tokenizer.vocabulary.id_of[shown.replace("▁", " ").encode()])


def test_the_example_of_the_followers(bielik: Tokenizer[Any], followers: Followers) -> None:
    war, par, sz, st, ar, s = (id_of(bielik, t) for t in ("▁War", "▁par", "sz", "st", "ar", "s"))
    validity = bielik.bpe.validity
    assert bielik.bpe.merges.rules[ar << 32 | s] >> 32 == 1829

    def leaves(spine: tuple[EdgeToken[Any], ...], token: int) -> int:
        return next(edge.left for edge in spine if edge.id == token)

    assert [leaves(validity.right_spine(token), ar) for token in (war, par)] == [6770, 1308]
    assert [leaves(validity.left_spine(token), s) for token in (sz, st)] == [10875, 59]

    place = bielik.bpe.order.ids.index
    ruled_out = {t: followers.ruled_out(followers.signatures[t]) for t in (war, par)}
    assert ruled_out[war][place(sz)]
    assert not ruled_out[war][place(st)]
    assert not ruled_out[par][[place(sz), place(st)]].any()
    assert bielik.encode("Warst") == [war, st]
    assert bielik.encode("parsz") == [par, sz]
    assert bielik.encode("Warsz") == [id_of(bielik, "▁Wars"), id_of(bielik, "z")]


def test_what_is_ruled_out_is_what_may_not_follow(
    bielik: Tokenizer[Any], followers: Followers
) -> None:
    compare_followers(bielik, followers, tokens=4)


@pytest.mark.long
def test_it_is_so_in_large_vocabularies(tokenizer: Tokenizer[Any]) -> None:
    compare_followers(tokenizer, Followers(tokenizer.bpe), tokens=10)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 30])
def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    encodings = [random_merges(Random(seed)).bpe for seed in range(20)]
    expected = [Followers(bpe).signatures for bpe in encodings]
    monkeypatch.setattr("tokalign.build.merge_sites._CHUNK", chunk)
    assert [Followers(bpe).signatures for bpe in encodings] == expected


def compare_followers(tokenizer: Tokenizer[Any], followers: Followers, *, tokens: int) -> None:
    draw, order, validity = Random(5), tokenizer.bpe.order, tokenizer.bpe.validity
    assert list(followers.signatures) == [i for i in order.ids if validity.reachable(i)]
    for token in draw.sample([*followers.signatures], tokens):
        ruled_out = followers.ruled_out(followers.signatures[token])
        for at in draw.sample(range(len(order.ids)), 1500):
            follower = order.ids[at]
            allowed = validity.reachable(follower) and validity.may_follow(token, follower)
            assert ruled_out[at] == (not allowed)


def after(sites: MergeSites, token: int) -> list[bytes]:
    return list(sites.sites[sites.rows[token]])


def prefixes(tokenizer: Tokenizer[Any], *, more_than: int = 0) -> list[bytes]:
    """All byte strings with which more than so many tokens begin, sorted."""
    order = tokenizer.bpe.order
    found = {token[:size] for token in order.spelled for size in range(1, len(token) + 1)}
    return sorted(p for p in found if np.diff(order.starting_with(p))[0] > more_than)


@pytest.mark.parametrize("seed", range(3))
def test_sites_are_the_shortest_prefixes_that_are_absorbed(seed: int) -> None:
    """`test_absorption.py` holds the right-hand side against brute force."""
    draw, found = Random(seed), 0
    for _ in range(40):
        tokenizer = random_merges(draw)
        absorption, sites = Absorption(tokenizer.bpe), find_merge_sites(tokenizer, more_than=0)
        every = prefixes(tokenizer)
        for token in filter(tokenizer.bpe.validity.reachable, tokenizer.bpe.order.ids):
            absorbed = [p for p in every if absorption.within_piece(token, p)]
            assert after(sites, token) == [p for p in absorbed if p[:-1] not in absorbed]
            found += len(after(sites, token))
    assert found > 100


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [20, pytest.param(60, marks=pytest.mark.long)])
def test_the_table_is_what_the_merges_say(
    bielik: Tokenizer[Any], sites: MergeSites, tokens: int
) -> None:
    """For every crowded prefix: absorbed iff a stored site begins it."""
    compare(bielik, sites, tokens=tokens)


@pytest.mark.long
def test_the_table_of_a_byte_level_target_is_what_the_merges_say(llama: Tokenizer[Any]) -> None:
    compare(llama, find_merge_sites(llama), tokens=20)


def compare(tokenizer: Tokenizer[Any], sites: MergeSites, *, tokens: int) -> None:
    bpe, draw = tokenizer.bpe, Random(12)
    absorption, every = Absorption(bpe), prefixes(tokenizer, more_than=MIN_FANOUT)
    frequent = {i for s in SENTENCES for i in bpe.encode(s.encode())} & set(bpe.order.ids)
    chosen = [*draw.sample(sorted(frequent), tokens), *draw.sample(bpe.order.ids, tokens)]
    absorbed = 0
    for last in filter(bpe.validity.reachable, chosen):
        for prefix in every:
            expected = absorption.within_piece(last, prefix)
            assert sites.absorbs(last, prefix) == expected, (bpe.tokens[last], prefix)
            absorbed += expected
    assert absorbed > 100


def test_stored_sites_are_crowded_and_none_begins_another(
    bielik: Tokenizer[Any], sites: MergeSites
) -> None:
    order = bielik.bpe.order
    for token in order.ids[::50]:
        found = after(sites, token)
        for site in found:
            assert np.diff(order.starting_with(site))[0] > MIN_FANOUT
            assert not any(site != other and site.startswith(other) for other in found)
    assert sum(len(after(sites, token)) > 0 for token in order.ids) > 10_000


@pytest.mark.slow
def test_with_the_table_and_without_it_the_same_is_absorbed(
    bielik: Tokenizer[Any], sites: MergeSites
) -> None:
    """Whatever the bytes: prefixes of tokens, whole tokens, tokens and more."""
    bpe, draw = bielik.bpe, Random(14)
    with_table, without = Absorption(bpe, sites.absorbs), Absorption(bpe)
    outcomes = {True: 0, False: 0}
    frequent = [i for s in SENTENCES for i in bpe.encode(s.encode()) if bpe.validity.reachable(i)]
    for _ in range(2000):
        last = draw.choice(frequent)
        data = draw.choice(bpe.order.spelled) + draw.choice(bpe.order.spelled)
        data = data[: draw.randint(1, len(data))]
        expected = without.within_piece(last, data)
        assert with_table.within_piece(last, data) == expected
        outcomes[expected] += 1
    assert min(outcomes.values()) > 100


def test_a_table_survives_its_sections(sites: MergeSites) -> None:
    again = MergeSites.from_bundle(bundle_of(sites.to_sections()), len(sites.rows))
    for token in range(300, 32_000, 1777):
        assert after(again, token) == after(sites, token)
    assert sites.to_sections() == again.to_sections()
