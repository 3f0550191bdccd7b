"""Cost models: planted parameters are found again, and two ways to expect a speed-up agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studied import CONTEXT, CONTROL, COPY, PLAIN, a_block, a_curve, a_result, a_sample

from lab.project import project
from lab.recorded_proposals import ProposalTrace, RecordedProposal, TracedText
from lab.round_costs import RoundCosts
from lab.study.conditions import Condition
from lab.study.cost_model import (
    break_even_by_equation_6,
    costs_of,
    expectations,
    expected_time,
    fit_costs,
    speedup_by_equation_5,
)
from lab.study.measurements import work_of
from lab.study.samples import Sample, trials
from lab.study.waterfall import waterfalls
from tokalign.runtime.rounds import Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

SIX, TREE = Condition("context:5", 6, "draft"), Condition("exact", 2, "draft")


def planted(r: float, beta: float, conditions: list[Condition]) -> list[Sample]:
    """Samples whose rounds take (k + 1) r + 1 + β k² plain passes and emit two tokens."""
    found = []
    for number in range(1, 6):
        block, plain = a_block(number), 10.0 + number
        found += [a_sample(c, block, speed=plain) for c in (PLAIN, CONTROL)]
        for condition in conditions:
            assert isinstance(condition.k, int)
            time = (condition.k + 1) * r + 1 + beta * condition.k**2
            found.append(a_sample(condition, block, speed=plain * 2 / time, proposed=15))
            if condition != TREE:
                found[-1] = replace(found[-1], proposed=14)
    return found


@given(st.floats(0.01, 0.5), st.floats(0.0, 0.4))
def test_planted_costs_are_found(r: float, beta: float) -> None:
    [fit] = fit_costs(trials(planted(r, beta, [CONTEXT[2], CONTEXT[4], SIX])), {"draft": 0.3})
    assert (fit.r, fit.beta) == (pytest.approx(r), pytest.approx(beta))
    assert fit.r_squared == pytest.approx(1)
    assert fit.size_ratio == 0.3
    assert [p.k for p in fit.predictions] == [2, 4, 6]
    for one in fit.predictions:
        assert one.break_even == pytest.approx(break_even_by_equation_6(one.k, r, beta))
        assert one.predicted == pytest.approx(speedup_by_equation_5(6 / 14, one.k, r, beta))
        assert one.residual == one.speedup - one.predicted


def test_with_one_length_r_is_the_size_ratio() -> None:
    [fit] = fit_costs(trials(planted(0.2, 0.1, [CONTEXT[2]])), {"draft": 0.2})
    assert (fit.r, fit.beta) == (0.2, pytest.approx(0.1))


def test_trees_and_free_sources_are_not_fitted() -> None:
    chain = Condition("exact", 2, "draft", chain=True)
    fits = fit_costs(trials(planted(0.2, 0.1, [TREE, chain, COPY])), {"draft": 0.2})
    assert [fit.condition for fit in fits] == [chain]


def test_equation_5_is_that_of_the_polish_study() -> None:
    """Its own example: r = 0.071 and β = 0.19 give a break-even of 45.1 % at k = 2."""
    assert break_even_by_equation_6(2, 0.071, 0.19) == pytest.approx(0.451)
    assert speedup_by_equation_5(0.487, 2, 0.071, 0.19) == pytest.approx(1, abs=0.001)


def a_round(accepted: int, proposed: int, *, passes: int = 2) -> Round:
    ids = tuple(TargetId(i) for i in range(proposed))
    return Round(
        limit=9,
        tree=TokenTree.chain(ids, "draft", [0.5] * proposed),
        path=tuple(range(accepted)),
        emitted=(*ids[:accepted], TargetId(99)),
        rows=1 + proposed,
        draft_passes=passes,
    )


@given(
    st.lists(
        st.integers(1, 3).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
        min_size=1,
        max_size=12,
    )
)
def test_project_expects_the_same_of_the_same_rounds(shapes: list[tuple[int, int]]) -> None:
    """`project` decodes on a simulated clock; here the rows and passes are added up.

    The last rounds propose nothing, as at the end of an output, where there is no room left.
    """
    costs = RoundCosts(rows=(1.0, 1.25, 1.5, 1.75), draft_pass=0.125, host=0.0625)
    rounds = [a_round(accepted, proposed) for accepted, proposed in [(0, 1), *shapes]]
    rounds += [a_round(0, 0, passes=0)] * 3
    later = rounds[1:]
    at, recorded = 8, {}
    for one in later:
        recorded[at] = RecordedProposal.of(one.tree, one.path, passes=one.draft_passes)
        at += len(one.emitted)
    text = TracedText(given=8, length=at, proposals={"draft": recorded})
    sample = a_sample(CONTEXT[2], work=work_of(rounds), tokens=sum(len(r.emitted) for r in rounds))
    projected = project(ProposalTrace(texts=(text,)), costs, lengths=[2]).fixed[2]
    assert sample.later_tokens / expected_time(sample, costs) == pytest.approx(projected)


def test_an_expectation_by_hand() -> None:
    """Six rounds emit 12 tokens. Each takes 0.12 s for three rows, the host's work of the pass
    included, 0.0205 s for two draft passes and the drafter's own work; a plain pass takes
    0.099 s, because 0.001 s of 0.1 s is hidden."""
    samples = [a_sample(c, speed=s) for c, s in ((PLAIN, 10), (CONTROL, 10), (CONTEXT[2], 15))]
    [found] = expectations(trials(samples), {"draft": a_curve()})
    assert found.expected == pytest.approx(12 * 0.099 / (6 * (0.12 + 0.02 + 0.0005)))
    assert found.measured == 1.5
    assert found.error == pytest.approx(found.expected / 1.5 - 1)


def test_costs_are_in_plain_passes() -> None:
    """The host's millisecond is in every row of the curve; the sample has half of one."""
    costs = costs_of(a_curve(), a_sample(PLAIN))
    assert costs.rows == pytest.approx([t / 0.099 for t in (0.099, 0.109, 0.119, 0.129, 0.139)])
    assert costs.draft_pass == pytest.approx(0.01 / 0.099)
    assert costs.host == pytest.approx(0.0015 / 0.099)


def test_trees_take_the_passes_of_trees() -> None:
    tree, chain = a_sample(TREE, proposed=15), a_sample(TREE)
    costs = RoundCosts(rows=(1.0, 1.25, 1.5), draft_pass=0.125, host=0.0625, tree_pass=0.25)
    assert expected_time(tree, costs) == 6 * (1.5 + 0.125 + 0.25 + 0.0625)
    assert expected_time(chain, costs) == 6 * (1.5 + 2 * 0.125 + 0.0625)


def test_with_auto_only_rounds_with_a_proposal_wait_for_the_host() -> None:
    """Two of five rounds propose two ids; at a fixed length the other three would wait too."""
    work = replace(a_sample(COPY).work, rows={1: 3, 3: 2}, later_passes=0)
    costs = RoundCosts(rows=(1.0, 1.25, 1.5), host=0.25)
    auto = a_sample(replace(COPY, k="auto"), work=work)
    assert expected_time(auto, costs) == 3 * 1.0 + 2 * (1.5 + 0.25)
    assert expected_time(a_sample(COPY, work=work), costs) == 3 * 1.25 + 2 * (1.5 + 0.25)


def test_nothing_is_expected_where_the_cost_of_a_draft_is_not_known() -> None:
    """As that of a recurrent drafter; what drafts without a model needs no such cost."""
    block, drafter = a_block(), Condition("drafter", 4, "drafter")
    found = trials([a_sample(c, block) for c in (PLAIN, CONTROL, COPY, drafter)])
    curves = dict.fromkeys(["", "drafter"], a_curve().without_draft())
    assert [one.condition for one in expectations(found, curves)] == [COPY]
    assert [one.condition for one in waterfalls(found, curves)] == [COPY]


def test_a_waterfall_ends_at_the_measured_time() -> None:
    result = a_result()
    for one in waterfalls(result.trials, result.curves):
        speedups = [trial.speedup(one.condition) for trial in result.trials]
        assert one.total == pytest.approx(1 / (speedups[0] or 0))
        assert one.saved == pytest.approx(6 / 12 - 1)
        assert one.rows == pytest.approx(6 * (0.02 / 0.099) / 12)
        assert one.drafting == pytest.approx(0.01 / 0.099 if one.condition.draft else 0)
        assert one.host == pytest.approx(6 * (0.0015 / 0.099) / 12)
        assert sum(one.steps.values()) == pytest.approx(one.total - 1)


def test_sampled_prompts_do_not_count_for_costs() -> None:
    result = a_result(prompts=2)
    sampled = [replace(s, block=replace(s.block, temperature=0.7)) for s in result.samples]
    both, greedy = trials([*result.samples, *sampled]), trials(result.samples)
    assert expectations(both, result.curves) == expectations(greedy, result.curves)
    assert waterfalls(both, result.curves) == waterfalls(greedy, result.curves)
    assert fit_costs(both, {"draft": 0.1}) == fit_costs(greedy, {"draft": 0.1})
