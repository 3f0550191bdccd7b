"""A round of several generations: all proposals are verified in one pass of the target, or, where
its caches cannot share passes, the generations take turns.

Each generation keeps its own context, drafter, verifier and caches (`loop.Decoding`), so it may
come, go and be decoded alone between any two rounds. What is shared is the pass (`mlx/batch.py`)
and its rows: they go to the proposals that bring most (`draft/shared_costs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, cast

from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.costs import LearnedCosts
from tokalign.runtime.draft.shared_costs import SharedCosts, worth_verifying
from tokalign.runtime.loop import Choices, Decoding, TargetVerifier
from tokalign.runtime.mlx.batch import SharedModel
from tokalign.runtime.mlx.session import PassRows
from tokalign.runtime.mlx.taps import KeptRows
from tokalign.runtime.rounds import Array, Proposal, Round, Verdict
from tokalign.tokenizer.vocabulary import TargetId


class OwnPasses:
    """Rounds of generations that need passes of their own."""

    shares_passes = False

    def round(self, decodings: Sequence[Decoding]) -> Iterator[Round | Exception]:
        """A round of each: what became of it, or the error that has ended it. It begins when its
        outcome is asked for, so nobody waits for those after it."""
        for decoding in decodings:
            try:
                yield decoding.round()
            except Exception as error:
                yield error


class _Turn:
    """One generation's part in a round.

    is_weighed: whether its proposal is cut to what is worth its rows. rows: of the pass; none if
    its pass ran ahead. failure: ends it, and none of the others.
    """

    reads: PassRows[TargetId]
    verdict: Verdict
    round: Round

    def __init__(self, decoding: Decoding) -> None:
        self.decoding, self.ids = decoding, decoding.context.ids
        self.verifier = cast("TargetVerifier", decoding.verifier)
        self.proposal, self.is_weighed = Proposal(), False
        self.rows = 0
        self.choices: Choices | None = None
        self.failure: Exception | None = None

    @property
    def decided(self) -> Choices:
        assert self.choices is not None
        return self.choices

    def attempt(self, action: Callable[[_Turn], None]) -> None:
        """Do something that concerns this generation alone."""
        if self.failure is None:
            try:
                action(self)
            except Exception as error:
                self.failure = error

    def propose(self) -> None:
        self.proposal = self.decoding.propose()
        self.choices = self.verifier.chosen_ahead(self.ids, self.proposal)

    def prepare(self) -> None:
        self.reads = self.verifier.session.reads([*self.ids], self.proposal.tree)
        self.rows = len(self.reads.tokens)

    def choose(self, logits: Array) -> None:
        self.choices = self.verifier.choices(self.ids, self.proposal.tree, logits, self.rows)

    def conclude(self) -> None:
        self.verdict = self.verifier.verdict(self.ids, self.proposal, self.decided)

    def commit(self, seconds: float) -> None:
        self.round = self.decoding.commit(self.proposal, self.verdict, seconds)


class SharedPasses:
    """A `Batch` that verifies all proposals in one pass.

    watch: as of their sessions. costs: of passes, from which the rows of a round are chosen; None
    where the lengths of drafts are given.
    """

    shares_passes = True

    def __init__(
        self,
        model: Any,
        *,
        watch: Callable[[Any], KeptRows] | None = None,
        costs: LearnedCosts | None = None,
    ) -> None:
        self._model, self._costs = SharedModel(model, watch), costs

    def round(self, decodings: Sequence[Decoding]) -> list[Round | Exception]:
        """See `OwnPasses`. Raises: what a shared pass raises, which concerns all."""
        turns = [_Turn(decoding) for decoding in decodings]
        for turn in turns:
            self._price(turn, len(turns))
        if len(turns) == 1:
            return [decodings[0].round()]
        for turn in turns:
            turn.attempt(_Turn.propose)
        began = perf_counter()
        self._verify([turn for turn in turns if turn.choices is None and turn.failure is None])
        self._run_ahead([turn for turn in turns if turn.failure is None])
        for turn in turns:
            turn.attempt(_Turn.conclude)
        seconds = perf_counter() - began  # of the pass, which all have waited for
        self._learn(turns, seconds)
        for turn in turns:
            turn.attempt(partial(_Turn.commit, seconds=seconds))
        return [turn.failure or turn.round for turn in turns]

    def _price(self, turn: _Turn, requests: int) -> None:
        """Tell a drafter that weighs what rows cost what they cost in this round."""
        drafter, costs = turn.decoding.drafter, self._costs
        if costs is None or not isinstance(drafter, Controller) or not drafter.is_timed:
            return
        turn.is_weighed = True
        if requests == 1:
            drafter.costs = costs
        else:
            drafter.costs = SharedCosts(costs, requests, runs_ahead=turn.verifier.is_ahead)

    def _verify(self, turns: Sequence[_Turn]) -> None:
        """Run the pass of a round, and begin to choose."""
        if self._costs is not None and turns:
            trees = worth_verifying(
                [(turn.proposal.tree, turn.is_weighed) for turn in turns], self._costs.rows
            )
            for turn, tree in zip(turns, trees, strict=True):
                turn.proposal = replace(turn.proposal, tree=tree)
        for turn in turns:
            turn.attempt(_Turn.prepare)
        reading = [turn for turn in turns if turn.failure is None]
        if not reading:
            return
        logits = self._model.read([(turn.verifier.session, turn.reads) for turn in reading])
        reading[0].verifier.session.start(*logits)
        for turn, part in zip(reading, logits, strict=True):
            turn.attempt(partial(_Turn.choose, logits=part))

    def _run_ahead(self, turns: Sequence[_Turn]) -> None:
        """Begin the next pass before this one's ids are known, if nobody will propose anything."""
        going_on = [turn for turn in turns if not turn.decoding.is_last]
        ready = [turn.verifier.may_run_ahead(turn.proposal) for turn in going_on]
        if not going_on or not all(ready):
            return
        chosen = [turn.decided.chosen for turn in going_on]
        logits = self._model.feed([turn.verifier.session for turn in going_on], chosen)
        following: list[Array] = []
        for turn, part in zip(going_on, logits, strict=True):
            following += turn.verifier.go_on(len(turn.ids) + 1, part)
        going_on[0].verifier.session.start(*following)

    def _learn(self, turns: Sequence[_Turn], seconds: float) -> None:
        """Learn from the time of a pass, unless that of one that ran ahead is in it."""
        verified = [turn for turn in turns if turn.rows and turn.failure is None]
        if self._costs is None or not verified:
            return
        self._costs.rows.count_round()
        if len(verified) == len(turns):
            self._costs.rows.observe(sum(turn.rows for turn in verified), seconds)


Batch: TypeAlias = OwnPasses | SharedPasses
"""Decodes generations of one target. shares_passes: whether several are verified in one."""
