"""tokalign: speculative decoding across tokenizers, prepared offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokalign.api import (
        GenerationResponse,
        batch_generate,
        generate,
        load,
        patch_mlx_lm,
        speculative_generate_step,
        stream_generate,
    )
    from tokalign.runtime.grammar import Grammar
    from tokalign.runtime.remembered import clear_session

__version__ = "0.1.0"

__all__ = [
    "GenerationResponse",
    "Grammar",
    "batch_generate",
    "clear_session",
    "generate",
    "load",
    "patch_mlx_lm",
    "speculative_generate_step",
    "stream_generate",
]


def __getattr__(name: str) -> Any:
    """Load the Python API on first use, because it imports mlx."""
    if name == "clear_session":
        from tokalign.runtime.remembered import clear_session

        return clear_session
    if name == "Grammar":
        from tokalign.runtime.grammar import Grammar

        return Grammar
    if name in __all__:
        from tokalign import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
