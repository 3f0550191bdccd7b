"""The verifier: a target model decides what is emitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tokalign.runtime.grammar import Constraint
from tokalign.runtime.rounds import Array, Context, Proposal, Rows, RowStore, Verdict
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.sampling import Sampler
    from tokalign.runtime.mlx.target_session import TargetModelSession

_Rows: TypeAlias = tuple[Sequence[TargetId], TokenTree[TargetId], tuple[Array, ...]]


class Choices(NamedTuple):
    """The target's choices.

    chosen: i[rows], lazy; or those ids by row that matter, read already. logprobs: f[vocabulary] of
    each such row. rows: how many rows the target computed for them. likely: arrays i[rows, width]
    and f[rows, width] for the store of rows, if there is one.
    """

    chosen: Array | Mapping[int, TargetId]
    logprobs: Array | Mapping[int, Array]
    rows: int
    likely: tuple[Array, ...] = ()


class TargetVerifier:
    """Emits what the target chooses itself at every position, whatever is proposed.

    One pass over the last committed id and the proposal gives the target's choice after each of
    them; the proposal is accepted as far as it agrees. So drafting changes speed, never output.
    At most one path of a tree agrees, as a choice depends on its position and not on its row.
    store: is told what the target found likely after every row. That is computed and read together
    with the choices, so nothing waits for the device once more; and it is told while the next pass
    runs, as rows of a pass hardly ever say what follows the id that ends it.
    constraint: the grammar that the output follows. Its masks are made while the pass runs.
    """

    def __init__(
        self,
        session: TargetModelSession,
        sampler: Sampler,
        store: RowStore | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self._session = session
        self._sampler = sampler
        self._store, self._parked = store, False
        self._constraint = constraint
        self._ahead: tuple[int, Choices | Array] | None = None
        self._untold: _Rows | None = None  # what the store of rows does not know yet

    @property
    def can_branch(self) -> bool:
        return self._session.can_branch

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        began = perf_counter()
        self._parked = proposal.parked
        chosen, logprobs, fed, likely = self._choose(context, proposal)
        self._tell_store()
        self._untold = (list(context.ids), proposal.tree, likely) if likely else None
        if isinstance(chosen, Mapping):
            choices = chosen
        else:
            if proposal.run_ahead and not proposal.tree and not self._sampler.needs_history:
                self._run_ahead(context, chosen)
            choices = dict(enumerate(self._session.read(chosen)))
        seconds = perf_counter() - began  # of the pass: its graph built, computed and read
        path = proposal.tree.agreed_path(choices)
        rows = [0, *[index + 1 for index in path]]
        return Verdict(
            ids=tuple([choices[row] for row in rows]),
            path=tuple(path),
            rows=fed,
            logprobs=Rows(logprobs, rows),
            model_seconds=seconds,
        )

    def _tell_store(self) -> None:
        """Tell the store of rows about the pass before."""
        if self._store is not None and self._untold is not None:
            ids, tree, likely = self._untold
            self._store.learn(ids, tree, *map(np.array, likely))

    def _choose(self, context: Context, proposal: Proposal) -> Choices:
        """The target's choice after the context and after each proposed id that matters."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not proposal.tree and ahead[0] == len(context.ids):
            if isinstance(ahead[1], Choices):
                return ahead[1]
            return self._choices(context, EMPTY_TREE, ahead[1], 1)
        fed = self._session.rows
        tree = proposal.tree
        is_chain = tree.chain_length == len(tree)
        if is_chain:
            logits = self._session.logits([*context.ids, *tree.ids], last=len(tree) + 1)
        else:
            logits = self._session.tree(context.ids, tree)
        return self._choices(context, tree, logits, self._session.rows - fed)

    def _choices(
        self, context: Context, tree: TokenTree[TargetId], logits: Array, rows: int
    ) -> Choices:
        """The choices from the logits after the context and after each id of the tree."""
        mask = self._mask(context, tree, logits)
        if tree and self._sampler.needs_order:
            likely = self._likely(logits)
            self._session.start(logits, *likely)
            return Choices(*self._choose_along(context, tree, logits, mask), rows, likely)
        chosen, logprobs = self._sampler.choose(
            logits,
            position=len(context.ids),
            ids=context.ids,
            depths=None if tree.chain_length == len(tree) else [0, *tree.depths],
            mask=mask,
        )
        # Processors and masks change the log-probabilities: the raw ones are then computed again.
        changed = self._sampler.needs_history or mask is not None
        likely = self._likely(logits, None if changed else logprobs)
        self._session.start(chosen, logprobs, *likely)
        return Choices(chosen, logprobs, rows, likely)

    def _mask(self, context: Context, tree: TokenTree[TargetId], logits: Array) -> Array | None:
        """Which ids the grammar allows in each row; the pass begins before that is found out."""
        if self._constraint is None:
            return None
        self._session.start(logits)
        allowed = self._constraint.rows(context.ids, tree, logits.shape[-1])
        return None if allowed is None else self._session.mask(allowed)

    def _likely(self, logits: Array, logprobs: Array | None = None) -> tuple[Array, ...]:
        """What the store of rows is to be told; nothing without one. logprobs: of the logits."""
        if self._store is None or self._parked:
            return ()
        if logprobs is None:
            return self._session.top_k(logits, self._store.width, normalized=False)
        return self._session.top_k(logprobs, self._store.width)

    def _choose_along(
        self, context: Context, tree: TokenTree[TargetId], logits: Array, mask: Array | None
    ) -> tuple[dict[int, TargetId], dict[int, Array]]:
        """Choices and log-probabilities of the rows along the path that agrees, one after another.

        Samplers and logits processors that are callables may keep a state. So they are told what
        plain decoding would tell them: each history once, longer by one id than the last, and none
        with a rejected id. That costs a wait for each accepted id, and spares the rows that were
        guessed wrong.
        """
        history = list(context.ids)
        choices: dict[int, TargetId] = {}
        logprobs: dict[int, Array] = {}
        row: int | None = 0
        while row is not None:
            chosen, row_logprobs = self._sampler.choose(
                logits[row : row + 1],
                position=len(history),
                ids=history,
                mask=None if mask is None else mask[row : row + 1],
            )
            (choices[row],) = self._session.read(chosen)
            logprobs[row] = row_logprobs[0]
            history.append(choices[row])
            child = tree.child_of(row - 1, choices[row])
            row = None if child is None else child + 1
        return choices, logprobs

    def _run_ahead(self, context: Context, chosen: Array) -> None:
        """Start the next round's pass while the host still waits for this round's id.

        mlx-lm's `generate_step` does the same. One pass is wasted at the end of a generation.
        """
        position = len(context.ids) + 1
        logits = self._session.feed(chosen)
        if self._constraint is not None:  # what it allows depends on the id
            self._session.start(logits)
            self._ahead = position, logits
            return
        following, logprobs = self._sampler.choose(logits, position=position)
        likely = self._likely(logits, logprobs)
        self._session.start(following, logprobs, *likely)
        self._ahead = position, Choices(following, logprobs, 1, likely)
