"""The target model's session: besides contexts it verifies trees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tokalign.runtime.mlx.likeliest import likeliest
from tokalign.runtime.mlx.session import ModelSession, timed
from tokalign.runtime.mlx.tree_attention import TreeModel
from tokalign.runtime.mlx.tree_probe import can_branch
from tokalign.runtime.proposal import Array
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


class TargetModelSession(ModelSession[TargetId]):
    """A session of the target model. Parameters and errors are those of `ModelSession`."""

    @property
    def can_branch(self) -> bool:
        """See `interfaces.TargetSession`."""
        return can_branch(self._cache.model, self._cache.layers)

    @timed
    def tree(self, ids: Sequence[TargetId], tree: TokenTree) -> Array:
        """See `interfaces.TargetSession`. The path that the next context goes along is kept."""
        cache = self._cache
        context = list(ids)
        kept = cache.catch_up(context, 1)
        tokens = [*context[kept:], *tree.ids]
        with self._tree_model.rows(cache.layers, len(tokens), tree) as model:
            logits = cache.forward(cache.tokens(tokens), model, begin=kept)[-1 - len(tree) :]
        cache.holds_tree(context, tree)
        self.passes += 1
        self.rows += len(tokens)
        return logits

    def likeliest(
        self, logprobs: Array, count: int, *, normalized: bool = True
    ) -> tuple[Array, Array]:
        """See `interfaces.TargetSession`."""
        ids, values = likeliest(logprobs, count)
        return ids, values if normalized else values - logprobs.logsumexp(axis=-1, keepdims=True)

    @cached_property
    def _tree_model(self) -> TreeModel:
        return TreeModel(self._cache.model)
