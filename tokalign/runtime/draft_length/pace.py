"""What the gain controller knows about one machine and one pair, over all requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokalign.cost.expected_gain import Costs, Plan, best_length
from tokalign.runtime.draft.trust import Trust
from tokalign.runtime.draft_length.estimates import Acceptance, PassTimes
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

SLACK, SLACK_SHARE = 8.0, 0.03
"""Drafting may lose so many passes before it rests, or this share of a request, if that is less."""

CREDIT, SHARE = 64.0, 0.004
"""What it has gained counts up to so many passes, and this share of all time is added to it."""

_HOPE = 0.95
"""A draft model that would not pay if its ids were right so often is not tried."""

_REFRESH = 256
"""Rounds without a plain one, at most, before plain decoding is timed again."""

_PLAIN_WEIGHT = 4
_FIRST_WAIT, _LONGEST_WAIT = 16, 1024
_WORTH_MEMORY = 32
_TRUST_RATE = 0.05


class Pace:
    """Costs and acceptance as learned so far; it holds nothing of any text.

    rows: time of a round by the rows it verifies, drafting not included, host and device in turn.
    drafts: time of a draft by its passes; None without a draft model; in passes of the target until
    `is_calibrated`. host: seconds of a round that running ahead is expected to hide.
    """

    def __init__(
        self,
        rows: PassTimes,
        drafts: PassTimes | None = None,
        *,
        host: float = 0.0,
        acceptance: Acceptance | None = None,
    ) -> None:
        self.rows, self.drafts = rows, drafts
        self.acceptance = acceptance or Acceptance()
        self.worth = 0.05
        self.asking = 0.0
        self._host = host
        # Of a calibrated machine it is known; a first round that something disturbed is no measure.
        known = self._run_ahead() if rows.is_calibrated else None
        self._ahead = PassTimes([known or 1.0], weight=0 if known is None else _PLAIN_WEIGHT)
        self._trust = Trust(rate=_TRUST_RATE)
        self._unspoken: dict[str, Acceptance] = {}
        self._lost, self._slack = 0.0, SLACK
        self._ids_per_pass = 1.0
        self._wait, self._due = _FIRST_WAIT, 0
        self._drafts, self._explore_at = 0, 8
        self.rounds = self.rounds_ahead = 0

    # -- costs -----------------------------------------------------------------------------------

    @property
    def plain(self) -> float:
        """Time per token of plain decoding, host and device overlapping."""
        if self._ahead.is_calibrated:
            return self._ahead(1)
        return self._run_ahead()

    def _run_ahead(self) -> float:
        """What a round that runs ahead should take, by one that does not."""
        return max(self.rows(1) - self._host, 0.5 * self.rows(1))

    @property
    def knows_plain(self) -> bool:
        """Whether plain decoding has been timed."""
        return self.rounds_ahead > 0

    @property
    def overlap(self) -> float:
        """What a plain round loses by not running ahead, in plain passes."""
        return max(0.0, self.rows(1) / self.plain - 1)

    def costs(self, most: int) -> Costs:
        """Of rounds with up to `most` ids that do not run ahead."""
        return Costs(rows=self.rows.table(most + 1))

    @property
    def timed_again_after(self) -> int:
        """Rounds without a plain one after which plain decoding is to be timed again.

        The fewer have been timed, the sooner: all is measured by it, so a mistake must not last.
        """
        return min(_REFRESH, _REFRESH // 8 * max(1, self.rounds_ahead))

    def why_plain(self) -> str | None:
        """One line for the user if most rounds were plain decoding, run ahead; else None."""
        if self.rounds_ahead <= self.rounds / 2:
            return None
        row = self.rows(2) / self.plain
        return (
            f"auto: {self.rounds_ahead} of {self.rounds} rounds were plain decoding, drafting was "
            f"not expected to pay (verifying a second row takes {row:.2f} plain passes)"
        )

    def known_costs(self) -> Costs:
        """Of rows and of a draft pass, as known by now: what a hybrid ranks its chains by."""
        draft_pass = self.drafting(1) if self.drafts is not None else 0.0
        return replace(self.costs(32), draft_pass=draft_pass)

    def drafting(self, steps: int) -> float:
        """Time that a draft of so many passes takes."""
        assert self.drafts is not None
        time = self.drafts(steps)
        return time if self.drafts.is_calibrated else time * self.plain

    def timed_plain(self, seconds: float) -> None:
        """A token of plain decoding, running ahead, took so long."""
        self.rounds_ahead += 1
        self._ahead.observe(1, seconds)
        if not self.rows.is_calibrated:
            self.rows.observe(1, seconds + self._host)

    # -- what drafting has lost --------------------------------------------------------------------

    @property
    def rests(self) -> bool:
        """Whether drafting has lost too much to go on for now."""
        return self._lost > self._slack

    def begin(self, tokens: int) -> None:
        """A request for at most so many tokens begins: a short one has little to lose."""
        self._slack = min(SLACK, SLACK_SHARE * tokens)

    def account(self, seconds: float, tokens: int, *, expected: float) -> None:
        """A round is over: what it took beyond plain decoding, and the share that it may.

        A machine hiccups at times: no more counts than twice the time that was expected.
        """
        self.rounds += 1
        passes = min(seconds, 2 * expected) / self.plain - tokens * (1 + SHARE)
        self._lost = max(-CREDIT, self._lost + passes)

    def explores(self) -> bool:
        """Whether this draft is to be longer than expected to be best: the 8th, 16th, 32nd, ...

        What longer drafts cost and bring is only learned from longer drafts.
        """
        self._drafts += 1
        if self._drafts < self._explore_at:
            return False
        self._explore_at = self._drafts + min(self._drafts, _LONGEST_WAIT)
        return True

    # -- free sources ------------------------------------------------------------------------------

    def believed(self, tree: TokenTree) -> list[float]:
        """The conditional probabilities of a tree's ids, as they have turned out so far."""
        if tree.probabilities:
            pairs = zip(tree.probabilities, tree.sources, strict=True)
            return [self._trust.calibrated(p, source) for p, source in pairs]
        return self._of(tree).probabilities(len(tree))

    def learn(self, tree: TokenTree, came: Sequence[TargetId]) -> None:
        """Compare a tree with the ids that came in its place, as far as these tell about it."""
        path = tree.path_of(came)
        if not tree.probabilities:
            self._of(tree).observe(min(len(tree), len(came)), len(path))
            return
        depths = {-1: 0} | {index: depth for depth, index in enumerate(path, start=1)}
        for index, (parent, source) in enumerate(zip(tree.parents, tree.sources, strict=True)):
            if depths.get(parent, len(came)) < len(came):
                said = self._trust.calibrated(tree.probabilities[index], source)
                self._trust.learn(said, source, right=index in depths)

    def value(self, plan: Plan) -> None:
        """Free sources made an offer (or none): is it worth waiting for the next?

        A plan is worth the passes it saves; a round without one loses the overlap.
        """
        gain = -self.overlap
        if plan.length:
            gain = plan.tokens - plan.tokens / (plan.rate * self.plain)
        self.worth += (gain - self.worth) / _WORTH_MEMORY

    def _of(self, tree: TokenTree) -> Acceptance:
        source = tree.sources[0] if tree else ""
        return self._unspoken.setdefault(source, Acceptance())

    # -- the draft model ---------------------------------------------------------------------------

    def best_steps(self, most: int) -> Plan:
        """The number of draft passes, at least 1, with the best expected rate."""
        return self._best_steps(self.acceptance.probabilities(most))

    def is_hopeless(self, most: int) -> bool:
        """Whether not even a draft model that is nearly always right would pay on this machine."""
        return self._best_steps([_HOPE] * most).rate * self.plain <= 1.0

    def _best_steps(self, probabilities: Sequence[float]) -> Plan:
        costs, best, tokens, reached = self.costs(2 * len(probabilities)), Plan(0, 0.0), 1.0, 1.0
        for steps, probability in enumerate(probabilities, start=1):
            reached *= probability
            tokens += reached
            rows = 1 + max(1, round(steps * self._ids_per_pass))
            rate = tokens / (costs.verify(rows) + self.drafting(steps))
            if rate > best.rate:
                best = Plan(steps, rate, tokens)
        return best

    def drafted(self, steps: int, right: int, *, known: int, rows: int) -> None:
        """`steps` passes drafted, and of the `known` ids that came next the first `right` so.

        rows: how many of the ids drafted were worth verifying.
        """
        self.acceptance.observe(min(known, max(steps, right)), right)
        self._ids_per_pass += (rows / steps - self._ids_per_pass) / _WORTH_MEMORY

    def is_due(self, most: int) -> bool:
        """Whether a draft model that does not pay is to be tried again, with at most `most` passes.

        A hopeless one only after very long: costs may have been mistaken.
        """
        return self._due <= 0 and (self._due <= -_LONGEST_WAIT or not self.is_hopeless(most))

    def a_round_less(self) -> None:
        """A round nearer to the next try."""
        self._due -= 1

    def tried(self, *, pays: bool) -> None:
        """The draft model drafted; in vain, the next try has twice as long to wait."""
        self._due = 0 if pays else self._wait
        self._wait = _FIRST_WAIT if pays else min(2 * self._wait, _LONGEST_WAIT)


def plan_offer(pace: Pace, tree: TokenTree, *, spent: float = 0.0) -> Plan:
    """How much of a tree to verify."""
    return best_length(
        pace.believed(tree), pace.costs(len(tree)), spent=spent, parents=tree.parents
    )
