"""Which tokens may not follow which: the worked examples, and the same asked pair by pair."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tokalign.build.alignment.followers import Derivations, EdgeTokens, Followers
from tokalign.build.alignment.merge_sites import SiteSearch
from tokalign.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def derivations(bielik: Tokenizer[Any]) -> Derivations:
    return Derivations.of(bielik)


def id_of(tokenizer: Tokenizer[Any], shown: str) -> int:
    """The id of a token that is written with `▁` for a space."""
    return int(tokenizer.vocabulary.id_of[shown.replace("▁", " ").encode()])


def test_the_example_of_the_derivations(bielik: Tokenizer[Any], derivations: Derivations) -> None:
    war, w, ar, r = (id_of(bielik, token) for token in ("▁War", "▁W", "ar", "r"))
    assert (derivations.left[war], derivations.right[war]) == (w, ar)
    assert derivations.last_rank[war] == derivations.max_rank[war] == 6770
    levels = list(derivations.right_edges(np.array([war])))
    assert [int(level.id[0]) for level in levels] == [war, ar, r]
    assert [int(level.entered[0]) for level in levels] == [6770, 34, -1]
    assert [int(level.left[0]) for level in levels[1:]] == [6770, 34]


def test_the_example_of_the_followers(bielik: Tokenizer[Any], derivations: Derivations) -> None:
    tokens = np.array([id_of(bielik, token) for token in ("▁War", "▁par", "sz", "st")])
    war, par, sz, st = tokens.tolist()
    ar, s = id_of(bielik, "ar"), id_of(bielik, "s")
    assert derivations.rules.ranks_of(np.array([ar]), np.array([s])).tolist() == [1829]

    def leaves(levels: list[EdgeTokens], owner: int, token: int) -> int:
        [found] = [
            int(level.left[row])
            for level in levels
            for row in np.flatnonzero((level.owner == owner) & (level.id == token))
        ]
        return found

    right, left = list(derivations.right_edges(tokens)), list(derivations.left_edges(tokens))
    assert (leaves(right, 0, ar), leaves(right, 1, ar)) == (6770, 1308)
    assert (leaves(left, 2, s), leaves(left, 3, s)) == (10875, 59)

    order = bielik.bpe.order
    followers = Followers(derivations, order)
    ruled_out = {
        token: {order.ids[at] for at in followers.ruled_out(signature).tolist()}
        for token, signature in zip((war, par), followers.signatures(tokens[:2]), strict=True)
    }
    assert sz in ruled_out[war]
    assert not {sz, st} & ruled_out[par]
    assert st not in ruled_out[war]
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
    search = SiteSearch(bielik)
    [signature] = [signature for tokens, signature in search.groups() if war in tokens]
    sites = [search.text(node) for node in search.sites(signature)]
    assert b"su" in sites
    assert b"s" not in sites


def test_what_is_ruled_out_is_what_may_not_follow(bielik: Tokenizer[Any]) -> None:
    compare(bielik, tokens=4)


@pytest.mark.long
def test_what_is_ruled_out_is_what_may_not_follow_in_large_vocabularies(
    tokenizer: Tokenizer[Any],
) -> None:
    compare(tokenizer, tokens=10)


def compare(tokenizer: Tokenizer[Any], *, tokens: int) -> None:
    draw, order = Random(5), tokenizer.bpe.order
    followers = Followers(Derivations.of(tokenizer), order)
    validity = tokenizer.bpe.validity
    for token in draw.sample([i for i in order.ids if validity.reachable(i)], tokens):
        [signature] = followers.signatures(np.array([token]))
        ruled_out = set(followers.ruled_out(signature).tolist())
        for at in draw.sample(range(len(order.ids)), 1500):
            follower = order.ids[at]
            allowed = validity.reachable(follower) and validity.may_follow(token, follower)
            assert (at in ruled_out) == (not allowed)
