"""The verifier: a target model decides what is emitted."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TypeAlias, cast

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import Sampler, Session
from tokalign.runtime.proposal import Array, Proposal, Rows, Verdict
from tokalign.tokenizer.vocabulary import TargetId

Choices: TypeAlias = tuple[list[Array], Sequence[Array]]
"""The target's choices, in arrays of one or more rows; log-probabilities f[vocabulary] by row."""


class TargetVerifier:
    """Sampler-match: what the target chooses itself at every position is what is emitted.

    One pass over the last committed id and the proposal gives the target's choice behind each of
    them; the proposal is accepted as far as it agrees. So drafting changes speed, never output.
    Of a tree, at most one path agrees: what is chosen at a place does not depend on the row.
    """

    def __init__(self, session: Session, sampler: Sampler) -> None:
        self._session = session
        self._sampler = sampler
        self._ahead: tuple[int, Choices] | None = None

    @property
    def can_branch(self) -> bool:
        """Whether it can verify a tree."""
        return self._session.can_branch

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        began = perf_counter()
        chosen, logprobs = self._choose(context, proposal)
        if proposal.run_ahead and not proposal.ids and not self._sampler.needs_history:
            self._run_ahead(context, chosen[0])
        choices: list[int] = []
        for rows in chosen:
            choices += self._session.read(rows)
        seconds = perf_counter() - began  # of the pass: its graph built, computed and read
        path = proposal.follow(choices)
        behind = [0, *[index + 1 for index in path]]
        return Verdict(
            ids=cast("tuple[TargetId, ...]", tuple([choices[row] for row in behind])),
            path=tuple(path),
            logprobs=Rows(logprobs, behind),
            model_seconds=seconds,
        )

    def _choose(self, context: Context, proposal: Proposal) -> Choices:
        """The target's choice behind the context and behind each proposed id."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not proposal.ids and ahead[0] == len(context.ids):
            return ahead[1]
        if proposal.chain_length < len(proposal.ids):
            return self._choose_in_tree(context, proposal)
        ids = [*context.ids, *proposal.ids]
        logits = self._session.logits(ids, last=len(proposal.ids) + 1)
        chosen, logprobs = self._sampler.choose(
            logits, position=len(context.ids), ids=ids, laws=proposal.laws
        )
        self._session.start(chosen, logprobs)
        return [chosen], logprobs

    def _choose_in_tree(self, context: Context, proposal: Proposal) -> Choices:
        logits, size = self._session.tree(context.ids, proposal), proposal.chain_length
        if not (self._sampler.needs_history or self._sampler.needs_position):
            chosen, logprobs = self._sampler.choose(logits, position=len(context.ids))
            self._session.start(chosen, logprobs)
            return [chosen], logprobs
        # Of what stands beside the chain no law is asked: it just agrees or does not.
        ids = [*context.ids, *proposal.ids[:size]]
        choices = [
            self._sampler.choose(
                logits[: size + 1],
                position=len(context.ids),
                ids=ids,
                laws=proposal.laws[:size],
            )
        ]
        for row in range(size + 1, len(proposal.ids) + 1):
            path = [proposal.ids[i] for i in proposal.path_to(row - 1)]
            history = [*context.ids, *path] if self._sampler.needs_history else []
            choices.append(
                self._sampler.choose(
                    logits[row : row + 1], position=len(context.ids) + len(path), ids=history
                )
            )
        chosen = [rows for rows, _ in choices]
        logprobs = [row for _, rows in choices for row in rows]
        self._session.start(*chosen, *logprobs)
        return chosen, logprobs

    def _run_ahead(self, context: Context, chosen: Array) -> None:
        """Start the next round's pass while the host still waits for this round's id.

        What mlx-lm's `generate_step` does. One pass is wasted at the end of a generation.
        """
        position = len(context.ids) + 1
        following, logprobs = self._sampler.choose(self._session.feed(chosen), position=position)
        self._session.start(following, logprobs)
        self._ahead = position, ([following], logprobs)
