"""Whether to draft in a round, with what, and how much: the rules, as one pure function.

A round that proposes n ids is expected to emit 1 + sum of P_i tokens and costs drafting plus
C(n + 1) (`cost/expected_gain.py`). Each source's best length by that rate is a `Plan`; here the
plans compete with each other and with plain decoding.
"""

from __future__ import annotations

from typing import NamedTuple

from tokalign.cost.expected_gain import Plan

MAX_DRAFT = 16
"""The most passes of a draft model in a round."""

MAX_IDS = 32
"""The most ids proposed in a round. Chips with a matrix unit take up to 32 rows at one price."""


class Situation(NamedTuple):
    """All that the decision of one round depends on.

    limit: the most ids to propose, at least 1. plain: time per token of plain decoding.
    offer: the part of the free sources' offer with the best rate; of length 0 if none pays.
    pass_under_way: the last round ran ahead, so this round's pass has begun without a proposal.
    budget_is_spent: drafting has lost so much that it has to rest.
    plain_rounds_due: plain rounds needed to time plain decoding, this one included.
    offers_pay: waiting for the next offer is expected to pay.
    model: the number of draft passes with the best rate; None without a draft model.
    trial_is_due: a draft model that is not expected to pay is to be tried all the same.
    long_draft_is_due: the next draft is to be longer than expected to be best.
    """

    limit: int
    plain: float
    offer: Plan
    pass_under_way: bool = False
    budget_is_spent: bool = False
    plain_rounds_due: int = 0
    offers_pay: bool = False
    model: Plan | None = None
    trial_is_due: bool = False
    long_draft_is_due: bool = False


class Decision(NamedTuple):
    """What a round does; plain decoding where it has neither passes nor offered ids.

    passes: of the draft model. is_trial: they are not expected to pay. offered: how many ids of the
    free sources' offer to propose. run_ahead: nothing will be proposed in the next round either.
    """

    passes: int = 0
    is_trial: bool = False
    offered: int = 0
    run_ahead: bool = False


def decide(now: Situation) -> Decision:
    """Choose the draft of a round. Equal situations give equal decisions.

    1. Where drafting is impossible or has to pause, decode plainly.
    2. Draft with the model where its rate beats plain decoding and the offer, or for a trial.
    3. Otherwise propose the part of the offer that pays, if any.
    """
    if now.pass_under_way or now.budget_is_spent or now.plain_rounds_due:
        return _plain(now)
    if now.model is not None and (
        now.trial_is_due or (_model_pays(now) and now.model.rate > now.offer.rate)
    ):
        return Decision(passes=_length(now, now.model), is_trial=now.trial_is_due)
    if now.offer.length:
        return Decision(offered=_length(now, now.offer))
    return _plain(now)


def _plain(now: Situation) -> Decision:
    """Plain decoding. It runs ahead unless the next round may have something to propose."""
    may_draft_next = not now.budget_is_spent and now.plain_rounds_due <= 1
    expects_draft = now.offers_pay or now.trial_is_due or _model_pays(now)
    return Decision(run_ahead=not (may_draft_next and expects_draft))


def _model_pays(now: Situation) -> bool:
    return now.model is not None and now.model.rate * now.plain > 1.0


def _length(now: Situation, plan: Plan) -> int:
    length = 2 * plan.length + 1 if now.long_draft_is_due else plan.length
    return min(now.limit, length)
