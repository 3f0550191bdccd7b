"""The tree: guesses merged, the best tree proposed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp, log
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import ids, reached

from tokalign.evaluate.replay import replay
from tokalign.runtime.draft.costs import Costs
from tokalign.runtime.draft.growth import Answer, BlockAnswer
from tokalign.runtime.draft.mixing import Mixer
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.rounds import Context, Round
from tokalign.runtime.statistics import Statistics
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


def odds(probability: float) -> float:
    return log(probability / (1.0 - probability))


class Fixed:
    """A source that expects given chains, each after one id."""

    def __init__(self, name: str, chains: dict[int, Sequence[int]], probability: float) -> None:
        self.name, self._chains, self._odds = name, chains, odds(probability)

    def follow(self, text: Sequence[TargetId]) -> tuple[TargetId, ...]:
        return tuple(text)

    def advance(self, state: tuple[TargetId, ...], token: TargetId) -> tuple[TargetId, ...]:
        return (*state, token)

    def expect(self, state: tuple[TargetId, ...]) -> list[tuple[TargetId, float]]:
        for back in range(1, len(state) + 1):
            chain = self._chains.get(state[-back], ())
            if len(chain) >= back and tuple(chain[: back - 1]) == state[len(state) - back + 1 :]:
                return [(TargetId(chain[back - 1]), self._odds)]
        return []


class Random(Fixed):
    """A source whose expectations are drawn once for each text."""

    def __init__(self, name: str, seed: int, width: int) -> None:
        super().__init__(name, {}, 0.5)
        self._seed, self._width = seed, width

    def expect(self, state: tuple[TargetId, ...]) -> list[tuple[TargetId, float]]:
        drawn = random.Random(hash((self._seed, state)))
        found = [(TargetId(i), odds(drawn.uniform(0.05, 0.5))) for i in range(self._width)]
        return sorted(found, key=lambda one: -one[1])


def expected_of(*sources: Fixed) -> dict[TargetId, float]:
    """What is mixed from what these sources expect after 7."""
    mixer = Mixer(
        Mixing(), [s.name for s in sources], [(s.expect, n) for n, s in enumerate(sources)]
    )
    found, chances = mixer.candidates(mixer.ask([s.follow(ids(7)) for s in sources]), 1e-3, 1e-3)
    return {token: chance for (token, *_), chance in zip(found, chances, strict=True)}


def test_agreement_is_worth_more_and_contradiction_less() -> None:
    one, same, other = (Fixed(name, {7: [id]}, 0.6) for name, id in (("a", 1), ("b", 1), ("b", 2)))
    silent = Fixed("b", {}, 0.6)
    [agreed], [undisputed] = (expected_of(one, s).values() for s in (same, silent))
    contested = expected_of(one, other)
    assert agreed > undisputed > contested[TargetId(1)]
    assert contested.keys() == {1, 2}


def all_ids(source: Random, text: tuple[TargetId, ...], depth: int) -> list[float]:
    """How likely each id within `depth` ids is to be reached, by asking for all of them."""
    if not depth:
        return []
    found = []
    for token, x in source.expect(text):
        probability = 1 / (1 + exp(-x))
        found.append(probability)
        found += [probability * p for p in all_ids(source, (*text, token), depth - 1)]
    return found


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 99), st.lists(st.floats(1, 2), min_size=1, max_size=6), st.integers(0, 4))
def test_the_best_tree_is_that_of_brute_force(seed: int, rows: list[float], limit: int) -> None:
    """No set of ids has a better rate than the most probable ones; and no number of them has."""
    costs, source = Costs(rows=tuple(sorted(rows))), Random("a", seed, 3)
    tree = TreeDrafter([source], costs=costs).propose(Context(ids(7)), limit).tree
    best_ones = sorted(all_ids(source, ids(7), limit), reverse=True)[:limit]
    rates = [(1 + sum(best_ones[:n])) / costs.verify(n + 1) for n in range(len(best_ones) + 1)]
    best = (1 + sum(reached(tree).values())) / costs.verify(len(tree) + 1)
    assert best == pytest.approx(max(rates))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 99), st.integers(1, 12))
def test_a_number_of_rows_that_is_asked_for_is_kept(seed: int, rows: int) -> None:
    """However dear they are; and a target that cannot branch is given a chain."""
    sources, dear = [Random("a", seed, 3), Random("b", seed, 2)], Costs(rows=(1.0, 9.0))
    tree = TreeDrafter(sources, costs=dear, rows=rows).propose(Context(ids(7)), 40).tree
    assert len(tree) == rows
    assert all(parent < index for index, parent in enumerate(tree.parents))
    children = [(parent, token) for parent, token in zip(tree.parents, tree.ids, strict=True)]
    assert len(set(children)) == rows
    chain = TreeDrafter(sources, branches=False).propose(Context(ids(7)), rows).tree
    assert chain.chain_length == len(chain) <= rows
    assert chain


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 99), st.floats(1, 1.3), st.floats(0, 3))
def test_a_tree_that_has_to_be_better_than_a_model_is_found(
    seed: int, row: float, over: float
) -> None:
    """And one that is not is as good as any: whether there is one is known in either case."""
    drafter, times = TreeDrafter([Random("a", seed, 3)]), Costs(rows=(1.0, row)).by_proposed(8)
    tree, plan = drafter.offer(ids(7), 8, times)
    found, known = drafter.offer(ids(7), 8, times, over=over)
    if plan.rate > over:
        assert (found, known) == (tree, plan)
    assert known.rate <= plan.rate
    assert bool(found) == bool(tree)


def test_where_one_source_ends_another_goes_on() -> None:
    first = Fixed("first", {7: [1, 2]}, 0.9)
    second = Fixed("second", {2: [3], 3: [4]}, 0.8)
    proposal = TreeDrafter([first, second], max_tokens=4).propose(Context(ids(7)), 9)
    assert proposal.tree.ids == (1, 2, 3, 4)
    assert proposal.tree.sources == ("first", "first", "second", "second")
    assert TreeDrafter([first, second]).propose(Context(ids(7)), 3).tree.ids == (1, 2, 3)


def test_a_source_that_is_wrong_loses_its_say() -> None:
    """In a text where the surer one is always wrong, the other one is soon followed."""
    liar, honest = Fixed("liar", {1: [8], 2: [8]}, 0.8), Fixed("honest", {1: [2], 2: [1]}, 0.6)
    statistics = Statistics()
    for event in replay(ids(*[1, 2] * 60), TreeDrafter([liar, honest]), prompt_tokens=1):
        statistics.observe(event)
    assert statistics.per_source["honest"]["accepted"] > 45
    assert statistics.per_source["liar"]["accepted"] == 0


def test_every_branch_of_a_models_tree_is_gone_on_from() -> None:
    """A model's tree may have siblings in any order; the table goes on after each branch."""
    answer = TokenTree(
        ids(9, 4, 1, 5, 6), (-1, 0, -1, 2, 2), ("draft",) * 5, (0.6, 0.9, 0.1, 0.01, 0.9)
    )
    hybrid = TreeDrafter([Fixed("table", {4: [3], 6: [8]}, 0.9)], max_tokens=16)
    tree, _ = hybrid.offer(ids(7), 16, [1.1] * 17, answers=[Answer(answer)])
    assert {(9, 4, 3), (1, 6, 8)} <= reached(tree).keys()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 99), st.lists(st.integers(0, 3), min_size=4, max_size=12))
def test_what_is_asked_ahead_changes_no_tree(seed: int, text: list[int]) -> None:
    """The sources are asked while a model's pass runs, and learn before they are asked."""
    asked, trees = list[tuple[TargetId, ...]](), list[list[TokenTree[TargetId]]]()

    class Counted(Random):
        def expect(self, state: tuple[TargetId, ...]) -> list[tuple[TargetId, float]]:
            asked.append(state)
            return super().expect(state)

    for ahead in (False, True):
        drafter, context, found = TreeDrafter([Counted("a", seed, 3)], rows=8), ids(7), []
        for number, token in enumerate(text):
            positions = [[(TargetId((number + i) % 4), -0.5)] for i in range(4)]
            if ahead:
                drafter.ask_ahead(context)
            asked.clear()
            answer = BlockAnswer(positions, "block", [])
            found.append(drafter.offer(context, 8, [1.0] * 9, answers=[answer])[0])
            assert (context in asked) != ahead, "about the text itself"
            context = (*context, TargetId(token))
            ends: Any = "length" if number + 1 == len(text) else None
            emitted = (TargetId(token),)
            drafter.observe(Round(limit=8, tree=found[-1], path=(), emitted=emitted, ends=ends))
        trees.append(found)
    assert trees[0] == trees[1]


def test_a_staircase_has_more_than_one_summit() -> None:
    chain, pairs = Fixed("a", {7: [1, 2, 3, 4]}, 0.8), Costs(rows=(1.0, 1.9, 1.9, 1.9, 1.9))
    for most, count in ((4, 4), (1, 0)):
        tree, plan = TreeDrafter([chain]).offer(ids(7), most, pairs.by_proposed(most))
        assert len(tree) == plan.length == count
