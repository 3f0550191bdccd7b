"""Residual rejection: what is emitted has the target's distribution, whatever the draft's is.

Every outcome of a toy vocabulary is enumerated and its probability computed from the target's own
logits; a chi-square test compares many draws with that. The tests have teeth: the same statistic
refuses the same draws when one part of the rule is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from chi_square import Floats, p_value
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_model

from tokalign.runtime.context import Context
from tokalign.runtime.draft.drawn_places import Place, Shape, shape_of
from tokalign.runtime.interfaces import Shortlist
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.mlx import noise
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.drawing import draw
from tokalign.runtime.mlx.processors import logprobs_of
from tokalign.runtime.mlx.rejection import judge
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.proposal import Draws, Proposal
from tokalign.runtime.translation.drawn_tree import DrawnTree
from tokalign.runtime.verify import TargetVerifier
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

WIDTH = 5
LIMIT = 1e-3
"""p-values of right distributions are above it, those of wrong ones below. Seeds are fixed."""


def shift(ids: Any, logits: Any) -> Any:
    """A logits processor that makes the next higher id than the last one likelier."""
    return logits + 1.2 * (mx.arange(logits.shape[-1]) == (ids[-1] + 1) % WIDTH)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "temperature": {"temperature": 0.6},
    "top-p": {"temperature": 1.3, "top_p": 0.8},
    "top-k": {"temperature": 1.0, "top_k": 3},
    "min-p": {"temperature": 1.0, "min_p": 0.2},
    "processor": {"temperature": 0.9, "processors": (shift,)},
}
TARGET = np.array([1.0, 0.2, -0.5, 0.6, -1.5])
DRAFT = np.array([-0.5, 0.9, 0.3, 0.8, -2.0])


def distribution(options: Sampling, logits: Floats, ids: Sequence[int]) -> Floats:
    """f[WIDTH]: what plain sampling after `ids` draws from."""
    row = mx.array(logits[None], dtype=mx.float32)
    logprobs = logprobs_of(row, options.processors, position=len(ids), ids=ids)
    scores = np.array(options.filter(logprobs)[0], dtype=np.float64) / options.temperature
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


# -- one position, many times ----------------------------------------------------------------------

TRIALS = 5_000


def verdicts(p: Floats, drawn: Any, distributions: Sequence[Any]) -> Any:
    """What is emitted, i[TRIALS]. drawn: i[TRIALS], or several candidates i[TRIALS, count]."""
    candidates = drawn.reshape(TRIALS, -1)
    if not any(q is not None for q in distributions):
        candidates = candidates[:, :0]
    return judge(
        mx.broadcast_to(mx.array(p, dtype=mx.float32), (TRIALS, WIDTH)),
        Draws(candidates.tolist(), distributions),
        uniform=noise.uniform(3, noise.VERDICT, 0, TRIALS, count=WIDTH),
        noise=noise.gumbel(3, noise.TARGET, 0, (TRIALS, WIDTH)),
    )


def several_from(q: Floats, number: int) -> Any:
    """Draws without replacement, i[TRIALS, number], in their order."""
    with np.errstate(divide="ignore"):
        scores = mx.array(np.log(q), dtype=mx.float32)
    return mx.argsort(-(scores + noise.gumbel(3, noise.DRAFT, 0, (TRIALS, WIDTH))))[:, :number]


def by(q: Floats) -> list[Any]:
    return [mx.array(q[None], dtype=mx.float32)] * TRIALS


def drawn_from(q: Floats, stream: int = noise.DRAFT) -> Any:
    with np.errstate(divide="ignore"):
        scores = mx.array(np.log(q), dtype=mx.float32)
    return mx.argmax(scores + noise.gumbel(3, stream, 0, (TRIALS, WIDTH)), axis=-1)


def count(ids: Any) -> Floats:
    return np.bincount(np.array(ids), minlength=WIDTH).astype(np.float64)


@pytest.mark.parametrize("name", OPTIONS)
def test_ids_drawn_from_any_distribution_are_emitted_with_the_targets(name: str) -> None:
    """And the drawn id is accepted as often as the theorem says."""
    options = Sampling(**OPTIONS[name])
    p, q = distribution(options, TARGET, [1, 3]), distribution(options, DRAFT, [1, 3])
    drawn = drawn_from(q)
    assert p_value(count(drawn), q) > LIMIT
    found = verdicts(p, drawn, by(q))
    assert p_value(count(found), p) > LIMIT
    same = np.array(found == drawn).mean()
    assert abs(same - np.minimum(p, q).sum()) < 5 * np.sqrt(0.25 / TRIALS)


@pytest.mark.parametrize("token", range(WIDTH))
def test_an_id_without_a_distribution_is_a_point_mass(token: int) -> None:
    """It is accepted with probability p(id); what is emitted has the distribution p."""
    p = distribution(Sampling(temperature=1.0), TARGET, [1])
    drawn = mx.full((TRIALS,), token, dtype=mx.uint32)
    found = verdicts(p, drawn, [])
    assert p_value(count(found), p) > LIMIT
    assert found.tolist() == verdicts(p, drawn, [None] * TRIALS).tolist()


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("name", ["plain", "temperature"])
def test_several_ids_drawn_without_replacement_are_emitted_with_the_targets(
    name: str, number: int
) -> None:
    """And one of them is accepted more often than the first one alone."""
    options = Sampling(**OPTIONS[name])
    p, q = distribution(options, TARGET, [1, 3]), distribution(options, DRAFT, [1, 3])
    drawn = several_from(q, min(number, np.count_nonzero(q)))
    found = verdicts(p, drawn, by(q))
    assert p_value(count(found), p) > LIMIT
    among = np.array(mx.any(found[:, None] == drawn, axis=-1)).mean()
    alone = np.array(verdicts(p, drawn[:, 0], by(q)) == drawn[:, 0]).mean()
    assert among > alone + 0.03


def test_the_statistic_refuses_wrong_rules_for_several_ids() -> None:
    """Candidates that are not in the order drawn, or chosen by what they are."""
    options = Sampling(temperature=1.0)
    p, q = distribution(options, TARGET, [1]), distribution(options, DRAFT, [1])
    drawn = several_from(q, 3)
    assert p_value(count(verdicts(p, drawn, by(q))), p) > LIMIT
    assert p_value(count(verdicts(p, drawn[:, ::-1], by(q))), p) < LIMIT
    assert p_value(count(verdicts(p, mx.sort(drawn, axis=-1), by(q))), p) < LIMIT


def test_the_statistic_refuses_wrong_rules() -> None:
    """No residual; a q that does not add up to 1; another q than the one drawn from."""
    options = Sampling(temperature=1.0)
    p, q = distribution(options, TARGET, [1]), distribution(options, DRAFT, [1])
    drawn = drawn_from(q)
    found = verdicts(p, drawn, by(q))
    assert p_value(count(found), p) > LIMIT
    no_residual = mx.where(found == drawn, drawn, drawn_from(p, noise.TARGET))
    assert p_value(count(no_residual), p) < LIMIT**3
    assert p_value(count(verdicts(p, drawn, by(0.8 * q))), p) < LIMIT**3
    flatter = distribution(options, DRAFT / 2, [1])
    assert p_value(count(verdicts(p, drawn, by(flatter))), p) < LIMIT**3


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=2, max_size=6),
    st.lists(st.integers(0, 8), min_size=2, max_size=6),
    st.integers(0, 10),
)
def test_an_id_that_the_target_rules_out_is_never_emitted(
    p: list[int], q: list[int], padding: int
) -> None:
    """With zeros in p and q, and with models that pad their logits to other widths."""
    p[0] += 1
    q[-1] += 1
    wide = np.array([*p, *[0] * padding], dtype=np.float64) / sum(p)
    own = np.array(q[: len(p)], dtype=np.float64)
    possible = np.flatnonzero(own)
    if not len(possible):
        return
    proposed = [TargetId(int(i)) for i in possible]
    q_of_all = mx.array(own[None] / own.sum(), dtype=mx.float32)
    candidates = [[*proposed[at:], *proposed[:at]] for at in range(len(proposed))]
    chosen = judge(
        mx.array(np.tile(wide, (len(proposed), 1)), dtype=mx.float32),
        Draws(candidates, [q_of_all] * len(proposed)),
        uniform=noise.uniform(1, noise.VERDICT, 0, len(proposed), count=len(proposed)),
        noise=noise.gumbel(1, noise.TARGET, 0, (len(proposed), len(wide))),
    )
    assert all(wide[i] > 0 for i in chosen.tolist())


# -- whole sequences through the loop --------------------------------------------------------------

LENGTH, PROMPT, RUNS = 3, (1, 3), 400


class TableSession:
    """A model of a toy vocabulary: its logits are looked up by the last two ids."""

    passes, rows, seconds, context_length, can_branch = 0, 0, 0.0, 64, True

    def __init__(self, seed: int) -> None:
        self.table = np.random.default_rng(seed).normal(0, 1.2, (WIDTH, WIDTH, WIDTH))
        self._held: list[int] = []

    def logits(self, ids: Sequence[int], last: int = 1) -> Any:
        self._held = list(ids)
        ends = range(len(ids) - last + 1, len(ids) + 1)
        rows = [self.table[ids[i - 2], ids[i - 1]] for i in ends]
        return mx.array(np.array(rows), dtype=mx.float32)

    def feed(self, token: Any) -> Any:
        return self.logits([*self._held, *token.tolist()])

    def tree(self, ids: Sequence[int], tree: TokenTree) -> Any:
        paths = [tree.path_to(row - 1) for row in range(1 + len(tree))]
        texts = [[*ids, *(tree.ids[i] for i in path)] for path in paths]
        return mx.concatenate([self.logits(text) for text in texts])

    def start(self, *arrays: Any) -> None: ...

    def read(self, array: Any) -> list[int]:
        found: list[int] = array.tolist()
        return found


@dataclass
class Drawing:
    """Draws from another model: a chain, or the tree with the shape `shape_of(2, size)`."""

    session: TableSession
    options: Sampling
    size: int = 0
    says_distributions: bool = True

    def propose(self, context: Context, limit: int) -> Proposal:
        if not limit:
            return Proposal()
        if self.size:
            tree, distributions = self._tree(context, shape_of(min(2, limit), self.size))
        else:
            ids, steps = context.ids, min(2, limit)
            drawn, chain = draw(self.session, ids, steps, sampler=self.options, after=ids)  # type: ignore[arg-type]
            tree = TokenTree.chain([TargetId(i) for i in drawn.tolist()], "draft")
            distributions = tuple(chain)
        return Proposal(tree=tree, distributions=distributions if self.says_distributions else ())

    def _tree(self, context: Context, shape: Shape) -> tuple[TokenTree, tuple[Any, ...]]:
        drafted = DrawnTree(
            TableBranches(self.session, context.ids),  # type: ignore[arg-type]
            Place(shape),
            start=len(context.ids),
            sampler=self.options,
            target_of=TargetId,
        ).finish()
        return drafted.tree, drafted.distributions


class TableBranches:
    """`Branches` of a `TableSession`."""

    def __init__(self, session: TableSession, text: Sequence[int]) -> None:
        self._session, self._texts = session, [list(text)]
        self._new = [0]

    def extend(self, row: int, token: int) -> int:
        self._texts.append([*self._texts[row + 1], token])
        self._new.append(len(self._texts) - 1)
        return len(self._texts) - 2

    def look(self, number: int, shared: None, expect: Any) -> Any:
        texts, self._new = [self._texts[at] for at in self._new], []
        values = np.array(expect(mx.concatenate([self._session.logits(one) for one in texts])))
        best = np.argsort(-values, axis=-1)[:, :number]
        self._lists = [
            Shortlist([DraftId(int(i)) for i in ids], row[ids].tolist(), 0.0)
            for ids, row in zip(best, values, strict=True)
        ]
        return self

    def read(self) -> list[Shortlist]:
        return self._lists


def frequencies(options: Sampling, **how: Any) -> Floats:
    """How often every sequence is emitted, over as many seeds as there are runs."""
    target, counts = TableSession(1), np.zeros((WIDTH,) * LENGTH)
    for seed in range(RUNS):
        seeded, context = replace(options, seed=seed), Context([TargetId(i) for i in PROMPT])
        drafter = Drawing(TableSession(2), seeded, **how)
        verifier = TargetVerifier(target, seeded)  # type: ignore[arg-type]
        for _ in decode(context, drafter, verifier, limits=Limits(max_tokens=LENGTH)):
            pass
        counts[tuple(context.emitted)] += 1
    return counts


def distribution_of_sequences(options: Sampling) -> Floats:
    table, found = TableSession(1).table, np.zeros((WIDTH,) * LENGTH)
    for sequence in product(range(WIDTH), repeat=LENGTH):
        ids = [*PROMPT, *sequence]
        steps = range(len(PROMPT), len(ids))
        found[sequence] = np.prod(
            [distribution(options, table[ids[i - 2], ids[i - 1]], ids[:i])[ids[i]] for i in steps]
        )
    return found


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("plain", {}),
        ("plain", {"size": 6}),
        ("top-k", {"size": 4}),
        ("processor", {"size": 0}),
        ("temperature", {"says_distributions": False}),
    ],
)
@pytest.mark.slow
def test_sequences_have_the_targets_distribution(name: str, how: dict[str, Any]) -> None:
    """Chains, trees, and proposals that keep their distributions to themselves."""
    options = Sampling(acceptance="residual", **OPTIONS[name])
    expected = distribution_of_sequences(options)
    assert expected.sum() == pytest.approx(1, abs=1e-5)
    assert p_value(frequencies(options, **how), expected) > LIMIT


def without_residual(p: Any, drawn: Draws, **how: Any) -> Any:
    """The right ids are accepted, but replacements are draws from all of p."""
    kept = judge(p, drawn, **how)
    afresh = mx.argmax(mx.log(p) + how["noise"], axis=-1)
    accepted = [token in ids for token, ids in zip(kept.tolist(), drawn.candidates, strict=True)]
    return mx.where(mx.array(accepted), kept, afresh)


def in_another_order(p: Any, drawn: Draws, **how: Any) -> Any:
    """Candidates are judged as if the last one had been drawn first."""
    return judge(p, drawn._replace(candidates=[ids[::-1] for ids in drawn.candidates]), **how)


@pytest.mark.parametrize(("rule", "size"), [(without_residual, 0), (in_another_order, 6)])
def test_sequences_of_a_wrong_rule_are_refused(
    monkeypatch: pytest.MonkeyPatch, rule: Any, size: int
) -> None:
    monkeypatch.setattr("tokalign.runtime.mlx.sampling.judge", rule)
    options = Sampling(acceptance="residual", **OPTIONS["plain"])
    assert p_value(frequencies(options, size=size), distribution_of_sequences(options)) < LIMIT


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceptance", ["match", "residual"])
def test_a_draft_that_is_the_target_is_always_right(acceptance: Any) -> None:
    """With either rule, ids are rejected only where the two models disagree."""
    options = Sampling(temperature=1.0, top_p=0.95, seed=3, acceptance=acceptance)
    context = Context([TargetId(i) for i in (5, 17, 3)])
    session = DraftModelSession(random_model())
    verifier = TargetVerifier(TargetModelSession(random_model()), options)
    for _ in range(8):
        drawn = session.draw(context.ids, 3, sampler=options, after=context.ids).read()  # type: ignore[arg-type]
        tree = TokenTree.chain(drawn.ids, "draft")
        proposal = Proposal(tree=tree, distributions=tuple(drawn.distributions))
        verdict = verifier.verify(context, proposal)
        assert len(verdict.path) == 3
        context.extend(verdict.ids)
