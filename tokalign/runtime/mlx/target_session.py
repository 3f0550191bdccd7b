"""The target model's session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.hidden_state import HiddenStates
from tokalign.runtime.mlx.session import ModelSession, top_k
from tokalign.runtime.rounds import Array
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class _States(NamedTuple):
    """Hidden states f[1 + tree, hidden] of one pass.

    ids: of which the first row has read the first `read`. Passes that ran ahead share the list, and
    append to it. fed: the last id i[1] that the first row has read, if the host had not seen it
    then; it is not in the list. tree: the ids of the other rows.
    """

    ids: list[TargetId]
    read: int
    fed: Array | None
    tree: TokenTree[TargetId]
    hidden: Array

    def before_last(self, ids: Sequence[TargetId]) -> Array | None:
        """The state f[1, hidden] before the last of `ids`; None if it is not that of any row."""
        if len(ids) <= self.read:
            return None
        new = ids[self.read : -1]
        path = self.tree.path_of(new)
        if len(path) < len(new) or not self._has_read(ids):
            return None
        row = path[-1] + 1 if path else 0
        return self.hidden[row : row + 1]

    def _has_read(self, ids: Sequence[TargetId]) -> bool:
        """Whether `ids` begin with what the first row has read. Cost: about 1 µs per 1,000 ids."""
        known = self.read if self.fed is None else self.read - 1
        if list(ids[:known]) != self.ids[:known]:
            return False
        return self.fed is None or ids[known] == self.fed.item()


class TargetModelSession(ModelSession[TargetId]):
    """A session of the target model.

    keeps_states: whether the last hidden states of the latest passes are kept, for a drafter that
    starts from them. They are intermediate results of the passes and are not waited for.
    Other parameters and errors are those of `ModelSession`. Raises: IncompatibleError for a model
    whose states cannot be had.
    """

    def __init__(
        self,
        model: Any,
        options: CacheOptions | None = None,
        *,
        cache: list[Any] | None = None,
        rewinds: bool = True,
        keeps_states: bool = False,
    ) -> None:
        super().__init__(model, options, cache=cache, rewinds=rewinds)
        self._watched: HiddenStates | None = None
        self._states: tuple[_States, ...] = ()
        if keeps_states:
            self._watched = HiddenStates(model)
            self._twin = self._watched.model

    def state_before_last(self, ids: Sequence[TargetId]) -> Array | None:
        """The hidden state f[1, hidden], lazy, of the row that chose the last of `ids`.

        None if no pass has computed that row lately, as before the first pass.
        """
        found = (states.before_last(ids) for states in self._states)
        return next((state for state in found if state is not None), None)

    def logits(self, ids: Sequence[TargetId], last: int = 1) -> Array:
        """See `ModelSession`."""
        logits = super().logits(ids, last)
        if self._watched is not None:
            first = len(ids) - last + 1
            self._keep(self._watched, list(ids[:first]), TokenTree.chain(ids[first:], ""))
        return logits

    def feed(self, token: Array) -> Array:
        """See `ModelSession`."""
        logits = super().feed(token)
        if self._watched is not None and self._states:
            latest = self._states[0]
            if latest.fed is not None:  # its round is over, so the host has seen it
                latest.ids.append(TargetId(latest.fed.item()))
            latest.ids.extend(latest.tree.ids)
            self._keep(self._watched, latest.ids, EMPTY_TREE, fed=token)
        return logits

    def tree(
        self, ids: Sequence[TargetId], tree: TokenTree[TargetId], computed: int | None = None
    ) -> Array:
        """See `ModelSession`."""
        logits = super().tree(ids, tree, computed)
        if self._watched is not None and computed is None:
            self._keep(self._watched, list(ids), tree)
        return logits

    def mask(self, allowed: NDArray[np.bool_]) -> Array:
        """A mask bool[rows, vocabulary] as an array of the device."""
        return mx.array(allowed)

    def top_k(self, logprobs: Array, count: int, *, normalized: bool = True) -> tuple[Array, Array]:
        """The top `count` ids i[rows, count] and their log-probabilities, lazy, unsorted.

        normalized: whether `logprobs` f[rows, vocabulary] are log-probabilities and not logits.
        """
        ids, values = top_k(logprobs, count)
        return ids, values if normalized else values - logprobs.logsumexp(axis=-1, keepdims=True)

    def _keep(
        self,
        watched: HiddenStates,
        ids: list[TargetId],
        tree: TokenTree[TargetId],
        fed: Array | None = None,
    ) -> None:
        """Keep the states of the pass's last rows, and those of the pass before it.

        ids, fed, tree: as in `_States`. A pass that ran ahead has read the last id already; the row
        before it is of the other one.
        """
        hidden = watched.take()[-1 - len(tree) :]
        read = len(ids) if fed is None else len(ids) + 1
        self._states = (_States(ids, read, fed, tree, hidden), *self._states[:1])
