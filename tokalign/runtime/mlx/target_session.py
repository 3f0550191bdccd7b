"""The target model's session."""

from __future__ import annotations

from tokalign.runtime.mlx.session import ModelSession
from tokalign.tokenizer.vocabulary import TargetId


class TargetModelSession(ModelSession[TargetId]):
    """A session of the target model. Parameters and errors are those of `ModelSession`."""
