"""The hybrid: guesses merged, the best chain proposed, a draft model asked where it pays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.cost.expected_gain import Costs, best_length, expected_accepted
from tokalign.evaluate.replay import replay
from tokalign.runtime.context import Context
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.cost_aware import CostAwareHybrid
from tokalign.runtime.draft.hybrid import Hybrid
from tokalign.runtime.draft.trust import Trust
from tokalign.runtime.draft.vote_tree import VoteTree
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.statistics import Statistics
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


def ids(*numbers: int) -> tuple[TargetId, ...]:
    return tuple(map(TargetId, numbers))


@st.composite
def guesses(draw: st.DrawFn) -> TokenTree:
    chain = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    probabilities = [draw(st.floats(0.05, 0.95)) for _ in chain]
    return TokenTree.chain(ids(*chain), draw(st.sampled_from("abc")), probabilities)


class Fixed:
    """A source that expects given chains, each after one id."""

    def __init__(self, name: str, chains: dict[int, Sequence[int]], probability: float) -> None:
        self._name, self._chains, self._probability = name, chains, probability
        self._last = -1

    def follow(self, text: Sequence[TargetId]) -> None:
        self._last = text[-1]

    def guesses(self, ahead: Sequence[TargetId], limit: int) -> list[TokenTree]:
        chain = ids(*self._chains.get([self._last, *ahead][-1], ()))[:limit]
        likely = (self._probability,) * len(chain)
        return [TokenTree.chain(chain, self._name, likely)] if chain else []


def tree_of(found: Sequence[TokenTree]) -> VoteTree:
    tree = VoteTree(Trust(rate=0.1))
    for guess in found:
        tree.add(guess)
    return tree


@settings(deadline=None)
@given(st.lists(guesses(), max_size=5))
def test_a_tree_has_every_guess_once(found: list[TokenTree]) -> None:
    chains = {guess.ids for guess in found}
    longest = {
        chain
        for chain in chains
        if not any(other != chain and other[: len(chain)] == chain for other in chains)
    }
    paths = [path.ids for path in tree_of(found).chains()]
    assert set(paths) == (longest or {()})
    assert len(paths) == len(set(paths))


@settings(deadline=None)
@given(guesses())
def test_one_source_alone_is_believed(guess: TokenTree) -> None:
    [path] = tree_of([guess]).chains()
    assert path.ids == guess.ids
    assert path.probabilities == pytest.approx(guess.probabilities)
    assert path.sources == guess.sources


def test_agreement_is_worth_more_and_contradiction_less() -> None:
    one, same = (TokenTree.chain(ids(1), *said) for said in (("a", (0.5,)), ("b", (0.6,))))
    other = TokenTree.chain(ids(2), "b", (0.6,))
    [agreed] = tree_of([one, same]).chains()
    assert agreed.probabilities[0] > 0.6
    assert agreed.sources == ("b",)
    contested = {path.ids: path.probabilities[0] for path in tree_of([one, other]).chains()}
    assert contested[ids(1)] < 0.5
    assert contested[ids(2)] < 0.6


@settings(deadline=None)
@given(
    st.lists(guesses(), min_size=1, max_size=4),
    st.lists(st.floats(1, 3), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_the_best_chain_is_that_of_brute_force(
    found: list[TokenTree], rows: list[float], limit: int
) -> None:
    class Source:
        def follow(self, text: Sequence[TargetId]) -> None: ...

        def guesses(self, ahead: Sequence[TargetId], limit: int) -> list[TokenTree]:
            cut = [guess.head(limit) for guess in found]
            return [] if ahead else cut

    costs = Costs(rows=tuple(sorted(rows)))
    hybrid = Hybrid([Source()], costs=lambda: costs)
    tree = hybrid.propose(Context(ids(7)), limit).tree
    cut = [guess.head(limit) for guess in found]
    rates = [
        (1 + expected_accepted(path.probabilities[:length])) / costs.verify(length + 1)
        for path in tree_of(cut).chains()
        for length in range(1, len(path.ids) + 1)
    ]
    plain = 1 / costs.verify(1)
    best = best_length(tree.probabilities, costs).rate if tree else plain
    assert best == pytest.approx(max([plain, *rates]))
    assert len(tree.probabilities) == len(tree) <= limit


def test_where_one_source_ends_another_goes_on() -> None:
    first = Fixed("first", {7: [1, 2]}, 0.9)
    second = Fixed("second", {2: [3], 3: [4]}, 0.8)
    proposal = Hybrid([first, second], max_tokens=4).propose(Context(ids(7)), 9)
    assert proposal.tree.ids == (1, 2, 3, 4)
    assert proposal.tree.sources == ("first", "first", "second", "second")
    assert Hybrid([first, second]).propose(Context(ids(7)), 3).tree.ids == (1, 2, 3)
    unsure = Fixed("first", {7: [1, 2]}, 0.2)
    assert Hybrid([unsure, second]).propose(Context(ids(7)), 9).tree.ids == (1, 2)


def test_a_source_that_is_wrong_loses_its_say() -> None:
    """In a text where the surer one is always wrong, the other one is soon followed."""
    liar, honest = Fixed("liar", {1: [8], 2: [8]}, 0.8), Fixed("honest", {1: [2], 2: [1]}, 0.6)
    statistics = Statistics()
    for event in replay(ids(*[1, 2] * 60), Hybrid([liar, honest]), prompt_tokens=1):
        statistics.observe(event)
    assert statistics.per_source["honest"]["accepted"] > 45
    assert statistics.per_source["liar"]["accepted"] == 0


def test_nothing_is_proposed_where_a_row_costs_more_than_it_brings() -> None:
    source = Fixed("a", {7: [1, 2]}, 0.5)
    dear = Hybrid([source], costs=lambda: Costs(rows=(1.0, 1.6)))
    assert dear.propose(Context(ids(7)), 9) == Proposal()
    cheap = Hybrid([source], costs=lambda: Costs(rows=(1.0, 1.4)))
    assert cheap.propose(Context(ids(7)), 9).tree.ids == (1,)


class Model:
    """A draft model that expects what a text says, or what it does not; two passes."""

    def __init__(self, text: Sequence[TargetId], *, right: bool) -> None:
        self._text, self._right, self.asked = text, right, 0

    def propose(self, context: Context, limit: int) -> Proposal:
        self.asked += 1
        at = len(context.ids)
        chain = tuple(TargetId(i + (not self._right)) for i in self._text[at : at + 2])[:limit]
        return Proposal(
            tree=TokenTree.chain(chain, "draft"),
            draft_passes=2,
            counts={"masked": 1},
            model_seconds=0.25,
        )


def run(model: Model, text: Sequence[TargetId], draft_pass: float) -> Statistics:
    """Replay a text with a copying hybrid and a model of this price."""
    costs = Costs(rows=(1.0, 1.05), draft_pass=draft_pass)
    hybrid = Hybrid([ContextCopy()], costs=lambda: costs)
    drafter, statistics = CostAwareHybrid(hybrid, model, costs=lambda: costs), Statistics()
    for event in replay(text, drafter, prompt_tokens=1):
        statistics.observe(event)
    return statistics


NOVEL = ids(*range(0, 600, 3))


def test_a_model_is_asked_as_long_as_it_pays() -> None:
    right = Model(NOVEL, right=True)
    found = run(right, NOVEL, 0.1)
    assert found.rounds - right.asked <= 1, "nothing is asked for after the last token"
    assert found.per_source["draft"]["accepted"] == pytest.approx(len(NOVEL) * 2 / 3, abs=2)
    assert (found.draft_passes, found.counts["masked"]) == (2 * right.asked, right.asked)
    wrong = Model(NOVEL, right=False)
    assert run(wrong, NOVEL, 0.1).rounds == len(NOVEL) - 1
    assert wrong.asked < len(NOVEL) / 4
    dear = Model(NOVEL, right=True)
    run(dear, NOVEL, 2.0)
    assert dear.asked == 0


def test_a_model_is_not_asked_where_copying_does_as_well() -> None:
    text = ids(*range(40)) * 6
    model = Model(text, right=True)
    found = run(model, text, 0.2)
    assert model.asked < 40
    assert found.per_source["copy"]["accepted"] > 120


def test_what_the_model_answers_is_gone_on_from() -> None:
    """The chain of a model is extended by sources that know what follows it."""
    text = ids(7, 1, 2, 3, 4)
    costs = Costs(rows=(1.0, 1.01), draft_pass=0.01)
    hybrid = Hybrid([Fixed("table", {2: [3, 4]}, 0.9)], costs=lambda: costs)
    drafter = CostAwareHybrid(hybrid, Model(text, right=True), costs=lambda: costs)
    proposal = drafter.propose(Context(ids(7)), 9)
    assert proposal.tree.ids == (1, 2, 3, 4)
    assert proposal.tree.sources == ("draft", "draft", "table", "table")
    assert (proposal.draft_passes, proposal.model_seconds) == (2, 0.25)
