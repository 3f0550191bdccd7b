"""The target model's session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.hidden_state import HiddenStates
from tokalign.runtime.mlx.likeliest import likeliest
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.proposal import Array
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class _States(NamedTuple):
    """Hidden states f[1 + tree, hidden] of one pass.

    read: how many ids of the context the first row has read. tree: the ids of the other rows.
    """

    read: int
    tree: TokenTree
    hidden: Array

    def before_last(self, ids: Sequence[TargetId]) -> Array | None:
        """The state f[1, hidden] before the last of `ids`; None if it is not that of any row."""
        new = ids[self.read : -1]
        path = self.tree.path_of(new)
        if len(ids) <= self.read or len(path) < len(new):
            return None
        row = path[-1] + 1 if path else 0
        return self.hidden[row : row + 1]


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
            self.runs_on(self._watched.model)

    def state_before_last(self, ids: Sequence[TargetId]) -> Array | None:
        """The hidden state f[1, hidden], lazy, of the row that chose the last of `ids`.

        None if no pass has computed that row lately, as before the first pass.
        """
        found = (states.before_last(ids) for states in self._states)
        return next((state for state in found if state is not None), None)

    def logits(self, ids: Sequence[TargetId], last: int = 1) -> Array:
        """See `interfaces.Session`."""
        logits = super().logits(ids, last)
        first = len(ids) - last + 1
        self._keep(first, TokenTree.chain(ids[first:], ""), last)
        return logits

    def feed(self, token: Array) -> Array:
        """See `interfaces.Session`."""
        logits = super().feed(token)
        if self._states:
            latest = self._states[0]
            self._keep(latest.read + 1 + len(latest.tree), EMPTY_TREE, 1)
        return logits

    def tree(self, ids: Sequence[TargetId], tree: TokenTree, computed: int | None = None) -> Array:
        """See `ModelSession.tree`."""
        logits = super().tree(ids, tree, computed)
        if computed is None:
            self._keep(len(ids), tree, 1 + len(tree))
        return logits

    def likeliest(
        self, logprobs: Array, count: int, *, normalized: bool = True
    ) -> tuple[Array, Array]:
        """See `interfaces.TargetSession`."""
        ids, values = likeliest(logprobs, count)
        return ids, values if normalized else values - logprobs.logsumexp(axis=-1, keepdims=True)

    def _keep(self, read: int, tree: TokenTree, rows: int) -> None:
        """Keep the states of the pass's last `rows` rows, and those of the pass before it.

        A pass that ran ahead has read the last id already; the row before it is of the other one.
        """
        if self._watched is not None:
            hidden = self._watched.take()[-rows:]
            self._states = (_States(read, tree, hidden), *self._states[:1])
