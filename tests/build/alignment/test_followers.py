"""Which tokens may not follow which: the worked examples, and the same asked pair by pair."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tokalign.build.alignment.merge_sites import Followers, find_merge_sites
from tokalign.tokenizer.bpe.validity import EdgeToken
from tokalign.tokenizer.tokenizer import Tokenizer


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


def test_the_example_of_the_merge_sites(bielik: Tokenizer[Any]) -> None:
    war, order = id_of(bielik, "▁War"), bielik.bpe.order
    follows = bielik.bpe.validity.may_follow
    first, last = order.starting_with(b"su")
    assert last - first == 31
    assert not any(follows(war, token) for token in [id_of(bielik, "s"), *order.ids[first:last]])
    assert follows(war, id_of(bielik, "st"))
    sites = find_merge_sites(bielik).after(war)  # type: ignore[arg-type]
    assert b"su" in sites
    assert b"s" not in sites


def test_what_is_ruled_out_is_what_may_not_follow(
    bielik: Tokenizer[Any], followers: Followers
) -> None:
    compare(bielik, followers, tokens=4)


@pytest.mark.long
def test_what_is_ruled_out_is_what_may_not_follow_in_large_vocabularies(
    tokenizer: Tokenizer[Any],
) -> None:
    compare(tokenizer, Followers(tokenizer.bpe), tokens=10)


def compare(tokenizer: Tokenizer[Any], followers: Followers, *, tokens: int) -> None:
    draw, order, validity = Random(5), tokenizer.bpe.order, tokenizer.bpe.validity
    assert list(followers.signatures) == [i for i in order.ids if validity.reachable(i)]
    for token in draw.sample([*followers.signatures], tokens):
        ruled_out = followers.ruled_out(followers.signatures[token])
        for at in draw.sample(range(len(order.ids)), 1500):
            follower = order.ids[at]
            allowed = validity.reachable(follower) and validity.may_follow(token, follower)
            assert ruled_out[at] == (not allowed)
