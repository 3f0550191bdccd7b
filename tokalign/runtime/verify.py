"""Who decides: a target model, or a reference text that plays one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import Sampler, Session
from tokalign.runtime.proposal import Array, Proposal, Verdict, matching
from tokalign.vocab import TargetId


class TargetVerifier:
    """Sampler-match: what the target chooses itself at every position is what is emitted.

    One pass over the last committed id and the proposal gives the target's choice behind each of
    them; the proposal is accepted as far as it agrees. So drafting changes speed, never output.
    """

    def __init__(self, session: Session, sampler: Sampler) -> None:
        self._session = session
        self._sampler = sampler
        self._ahead: tuple[int, Array, Array] | None = None

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        began = self._session.seconds
        chosen, logprobs = self._choose(context, proposal)
        if proposal.run_ahead and not proposal.ids and not self._sampler.needs_history:
            self._run_ahead(context, chosen)
        ids = cast(list[TargetId], self._session.read(chosen))
        accepted = matching(proposal.ids, ids)
        return Verdict(
            ids=tuple(ids[: accepted + 1]),
            accepted=accepted,
            logprobs=logprobs,
            model_seconds=self._session.seconds - began,
        )

    def _choose(self, context: Context, proposal: Proposal) -> tuple[Array, Array]:
        """The target's choice behind the context and behind each proposed id."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not proposal.ids and ahead[0] == len(context.ids):
            return ahead[1:]
        ids = [*context.ids, *proposal.ids]
        logits = self._session.logits(ids, last=len(proposal.ids) + 1)
        chosen, logprobs = self._sampler.choose(logits, position=len(context.ids), ids=ids)
        self._session.start(chosen, logprobs)
        return chosen, logprobs

    def _run_ahead(self, context: Context, chosen: Array) -> None:
        """Start the next round's pass while the host still waits for this round's id.

        What mlx-lm's `generate_step` does. One pass is wasted at the end of a generation.
        """
        position = len(context.ids) + 1
        following = self._sampler.choose(self._session.feed(chosen), position=position)
        self._session.start(*following)
        self._ahead = (position, *following)


class ReplayVerifier:
    """A reference text plays the target: it emits itself, whatever is proposed."""

    def __init__(self, reference: Sequence[TargetId]) -> None:
        self._reference = list(reference)

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """Raises IndexError where the reference is at its end: bound `max_tokens` by its length."""
        at = len(context.ids)
        ids = self._reference[at : at + len(proposal.ids) + 1]
        accepted = matching(proposal.ids, ids)
        if accepted == len(ids):
            raise IndexError("the reference text is at its end")
        return Verdict(ids=tuple(ids[: accepted + 1]), accepted=accepted)
