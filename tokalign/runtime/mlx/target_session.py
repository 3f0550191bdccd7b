"""The target model's session."""

from __future__ import annotations

from tokalign.runtime.mlx.likeliest import likeliest
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.proposal import Array
from tokalign.tokenizer.vocabulary import TargetId


class TargetModelSession(ModelSession[TargetId]):
    """A session of the target model. Parameters and errors are those of `ModelSession`."""

    def likeliest(
        self, logprobs: Array, count: int, *, normalized: bool = True
    ) -> tuple[Array, Array]:
        """See `interfaces.TargetSession`."""
        ids, values = likeliest(logprobs, count)
        return ids, values if normalized else values - logprobs.logsumexp(axis=-1, keepdims=True)
