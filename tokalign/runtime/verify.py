"""The target that verifies: its own choice after every proposed id, and how far these agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.grammar import Constraint
from tokalign.runtime.rounds import Array, Context, Proposal, RowStore, Verdict
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.sampling import Sampler
    from tokalign.runtime.mlx.session import TargetModelSession

_Mask: TypeAlias = NDArray[np.bool_] | None
"""Which ids a grammar allows, bool[rows, vocabulary]; None for all."""


class Choices(NamedTuple):
    """The target's choices.

    chosen: i[rows], lazy; or those ids by row that matter, read already. logprobs: f[vocabulary] of
    each such row. likely: arrays i[rows, width] and f[rows, width] for the store of rows.
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
    store: is told the target's top-k logits after every row, while the next pass runs.
    constraint: the grammar that the output follows. Its masks are made while the pass runs.
    """

    def __init__(
        self,
        session: TargetModelSession,
        sampler: Sampler,
        store: RowStore | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.session = session
        self._sampler = sampler
        self._store, self._bare = store, False
        self._constraint = constraint
        self._waited = 0.0
        self._ahead: tuple[int, Choices | Array] | None = None
        self._untold: tuple[list[TargetId], TokenTree[TargetId], tuple[Array, ...]] | None = None

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        ids = context.ids
        choices = self.chosen_ahead(ids, proposal) or self._choose(ids, proposal.tree)
        if self.may_run_ahead(proposal) and not isinstance(choices.chosen, Mapping):
            logits = self.session.feed(choices.chosen)
            self.session.start_ahead(*self.go_on(len(ids) + 1, logits))
        return self.verdict(ids, proposal, choices)

    @property
    def is_ahead(self) -> bool:
        """Whether the pass of the coming round has begun."""
        return self._ahead is not None

    def may_run_ahead(self, proposal: Proposal) -> bool:
        """Whether the next pass may begin before the choice of this one is read."""
        return proposal.run_ahead and not proposal.tree and not self._sampler.needs_history

    def verdict(self, ids: Sequence[TargetId], proposal: Proposal, choices: Choices) -> Verdict:
        """The verdict on a proposal after `ids`, from the choices; waits for the pass."""
        chosen, logprobs, fed, likely = choices
        waited, self._waited = self._waited, 0.0
        if self._store is not None and self._untold is not None:
            before, tree, arrays = self._untold
            self._store.learn(before, tree, *map(np.array, arrays))
        self._untold = (list(ids), proposal.tree, likely) if likely else None
        if isinstance(chosen, Mapping):
            by_row = chosen
        else:
            waited = self.session.wait_for_others(chosen)
            by_row = dict(enumerate(self.session.read(chosen)))
        path = proposal.tree.agreed_path(by_row)
        rows = [0, *[index + 1 for index in path]]
        if self._constraint is not None:
            self._constraint.check(rows)
        return Verdict(
            ids=tuple([by_row[row] for row in rows]),
            path=tuple(path),
            rows=fed,
            logprobs=[logprobs[row] for row in rows],
            waited=waited,
        )

    def chosen_ahead(self, ids: Sequence[TargetId], proposal: Proposal) -> Choices | None:
        """The choices of a pass that ran ahead and can be used now; None if there is none."""
        self._bare = proposal.bare
        (ahead, self._ahead), tree = (self._ahead, None), proposal.tree
        if ahead is None or tree or ahead[0] != len(ids):
            return None
        return ahead[1] if isinstance(ahead[1], Choices) else self.choices(ids, tree, ahead[1], 1)

    def _choose(self, ids: Sequence[TargetId], tree: TokenTree[TargetId]) -> Choices:
        """The target's choice after the context and after each proposed id that matters."""
        fed = self.session.rows
        if tree.chain_length == len(tree):
            logits = self.session.logits([*ids, *tree.ids], last=len(tree) + 1)
        else:
            logits = self.session.tree(ids, tree)
        return self.choices(ids, tree, logits, self.session.rows - fed)

    def choices(
        self, ids: Sequence[TargetId], tree: TokenTree[TargetId], logits: Array, rows: int
    ) -> Choices:
        mask = self._mask(ids, tree, logits)
        if tree and self._sampler.needs_order:
            likely = self._likely(logits)
            self.session.start(logits, *likely)
            self._waited = self.session.wait_for_others(logits)
            return Choices(*self._choose_along(ids, tree, logits, mask), rows, likely)
        positions = [len(ids) + depth for depth in (0, *tree.depths)]
        chosen, logprobs = self._sampler.choose(logits, positions, ids=ids, mask=mask)
        # Processors and masks change the log-probabilities: the raw ones are then computed again.
        changed = self._sampler.needs_history or mask is not None
        likely = self._likely(logits, None if changed else logprobs)
        self.session.start(chosen, logprobs, *likely)
        return Choices(chosen, logprobs, rows, likely)

    def _mask(self, ids: Sequence[TargetId], tree: TokenTree[TargetId], logits: Array) -> _Mask:
        """Which ids the grammar allows in each row; the pass begins before that is found out."""
        if self._constraint is None:
            return None
        self.session.start(logits)
        return self._constraint.masks(ids, tree, logits.shape[-1])

    def _likely(self, logits: Array, logprobs: Array | None = None) -> tuple[Array, ...]:
        """What the store of rows is to be told; nothing without one. logprobs: of the logits."""
        if self._store is None or self._bare:
            return ()
        if logprobs is None:
            return self.session.top_k(logits, self._store.width, normalized=False)
        return self.session.top_k(logprobs, self._store.width)

    def _choose_along(
        self, ids: Sequence[TargetId], tree: TokenTree[TargetId], logits: Array, mask: _Mask
    ) -> tuple[dict[int, TargetId], dict[int, Array]]:
        """Choices and log-probabilities of the rows along the path that agrees, one after another.

        Callables may keep a state, so they are told what plain decoding would tell them: each
        history once, longer by one id than the last, none with a rejected id. That costs a wait for
        each accepted id, and spares the rows that were guessed wrong.
        """
        history = list(ids)
        choices: dict[int, TargetId] = {}
        logprobs: dict[int, Array] = {}
        row: int | None = 0
        while row is not None:
            allowed = None if mask is None else mask[row : row + 1]
            chosen, row_logprobs = self._sampler.choose(
                logits[row : row + 1], [len(history)], ids=history, mask=allowed
            )
            (choices[row],) = self.session.read(chosen)
            logprobs[row] = row_logprobs[0]
            history.append(choices[row])
            child = tree.child_of(row - 1, choices[row])
            row = None if child is None else child + 1
        return choices, logprobs

    def go_on(self, position: int, logits: Array) -> tuple[Array, ...]:
        """Choose the id at `position` from the logits of a pass that runs ahead.

        mlx-lm's `generate_step` runs ahead as well. One pass is wasted at the end of a generation.
        Returns: what the next round reads; its first array tells when the pass is done.
        """
        if self._constraint is not None:  # what it allows depends on the id
            self._ahead = position, logits
            return (logits,)
        following, logprobs = self._sampler.choose(logits, [position])
        likely = self._likely(logits, logprobs)
        self._ahead = position, Choices(following, logprobs, 1, likely)
        return following, logprobs, *likely
