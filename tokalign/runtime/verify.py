"""The verifier: a target model decides what is emitted."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import RowStore, Sampler, TargetSession
from tokalign.runtime.proposal import Array, Proposal, Rows, Verdict
from tokalign.tokenizer.vocabulary import TargetId


class Choices(NamedTuple):
    """The target's choices, lazy, in arrays i[rows] of one or more rows each.

    logprobs: f[vocabulary] of each row. rows: how many rows the target computed for them.
    likely: arrays i[rows, width] and f[rows, width] for the store of rows, if there is one.
    """

    chosen: list[Array]
    logprobs: Sequence[Array]
    rows: int
    likely: tuple[Array, ...] = ()


class TargetVerifier:
    """Emits what the target chooses itself at every position, whatever is proposed.

    One pass over the last committed id and the proposal gives the target's choice after each of
    them; the proposal is accepted as far as it agrees. So drafting changes speed, never output.
    At most one path of a tree agrees, as a choice depends on its position and not on its row.
    store: is told what the target found likely after every row. That is computed and read together
    with the choices, so nothing waits for the device once more.
    """

    def __init__(
        self, session: TargetSession, sampler: Sampler, store: RowStore | None = None
    ) -> None:
        self._session = session
        self._sampler = sampler
        self._store = store
        self._ahead: tuple[int, Choices] | None = None

    @property
    def can_branch(self) -> bool:
        """Whether it can verify a tree."""
        return self._session.can_branch

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `interfaces.Verifier`."""
        began = perf_counter()
        chosen, logprobs, fed, likely = self._choose(context, proposal)
        if proposal.run_ahead and not proposal.tree and not self._sampler.needs_history:
            self._run_ahead(context, chosen[0])
        choices: list[TargetId] = []
        for some in chosen:
            choices += self._session.read(some)
        seconds = perf_counter() - began  # of the pass: its graph built, computed and read
        if self._store is not None:
            ids, values = map(np.array, likely)
            self._store.learn(context.ids, proposal.tree, ids, values)
        path = proposal.tree.agreed_path(choices)
        rows = [0, *[index + 1 for index in path]]
        return Verdict(
            ids=tuple([choices[row] for row in rows]),
            path=tuple(path),
            rows=fed,
            logprobs=Rows(logprobs, rows),
            model_seconds=seconds,
        )

    def _choose(self, context: Context, proposal: Proposal) -> Choices:
        """The target's choice after the context and after each proposed id."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not proposal.tree and ahead[0] == len(context.ids):
            return ahead[1]
        fed = self._session.rows
        tree = proposal.tree
        if tree.chain_length < len(tree):
            logits = self._session.tree(context.ids, tree)
            chosen, logprobs = self._choose_in_tree(context, proposal, logits)
        else:
            ids = [*context.ids, *tree.ids]
            logits = self._session.logits(ids, last=len(tree) + 1)
            rows, logprobs = self._sampler.choose(
                logits, position=len(context.ids), ids=ids, drawn=proposal.drawn
            )
            chosen = [rows]
        likely = self._likely(logits, logprobs)
        self._session.start(*chosen, *_arrays(logprobs), *likely)
        return Choices(chosen, logprobs, self._session.rows - fed, likely)

    def _likely(self, logits: Array, logprobs: Sequence[Array]) -> tuple[Array, ...]:
        """What the store of rows is to be told; nothing without one.

        Processors change the log-probabilities, so with them the raw ones are computed again.
        """
        if self._store is None:
            return ()
        if self._sampler.needs_history:
            return self._session.likeliest(logits, self._store.width, normalized=False)
        return self._session.likeliest(logprobs, self._store.width)

    def _choose_in_tree(
        self, context: Context, proposal: Proposal, logits: Array
    ) -> tuple[list[Array], Sequence[Array]]:
        tree, drawn, position = proposal.tree, proposal.drawn, len(context.ids)
        if not self._sampler.needs_history:
            chosen, logprobs = self._sampler.choose(
                logits, position=position, depths=[0, *tree.depths], drawn=drawn
            )
            return [chosen], logprobs
        choices = []
        for row in range(1 + len(tree)):
            history = [*context.ids, *[tree.ids[i] for i in tree.path_to(row - 1)]]
            choices.append(
                self._sampler.choose(
                    logits[row : row + 1],
                    position=len(history),
                    ids=history,
                    drawn=None if drawn is None else drawn.row(row),
                )
            )
        arrays = [rows for rows, _ in choices]
        return arrays, [row for _, rows in choices for row in rows]

    def _run_ahead(self, context: Context, chosen: Array) -> None:
        """Start the next round's pass while the host still waits for this round's id.

        mlx-lm's `generate_step` does the same. One pass is wasted at the end of a generation.
        """
        position = len(context.ids) + 1
        logits = self._session.feed(chosen)
        following, logprobs = self._sampler.choose(logits, position=position)
        likely = self._likely(logits, logprobs)
        self._session.start(following, logprobs, *likely)
        self._ahead = position, Choices([following], logprobs, 1, likely)


def _arrays(logprobs: Sequence[Array]) -> list[Array]:
    """Rows that were computed one by one, or all of them as the one array that they are."""
    return logprobs if isinstance(logprobs, list) else [logprobs]
