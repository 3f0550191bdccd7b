"""What the arguments of an mlx-lm model, or else its weights, say about its ids and its context."""

from __future__ import annotations

from typing import Any

import mlx.nn as nn
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE

from tokalign.runtime.rounds import UNBOUNDED


def vocabulary_size(model: Any) -> int:
    """How many ids a model's embeddings have; padded models have more than their tokenizer."""
    known = _argument(model, "vocab_size")
    return int(embedding_of(model).weight.shape[0]) if known is None else known


def context_length(model: Any) -> int:
    """How many ids a model can hold; without a bound if its arguments name none."""
    return _argument(model, "max_position_embeddings") or UNBOUNDED


def even_length(model: Any) -> int:
    """Up to how many ids it does not matter which rows are read together.

    Beyond its bound a dynamic rotary embedding turns all rows of a pass by where the pass ends.
    """
    modules = model.modules() if isinstance(model, nn.Module) else []
    ropes = [module for module in modules if isinstance(module, DynamicNTKScalingRoPE)]
    return min([UNBOUNDED, *[int(rope.max_position_embeddings) - 1 for rope in ropes]])


def embedding_of(model: Any) -> Any:
    """The embedding of a model's ids: of as many of them, and as wide, as the arguments say.

    Other tables are of positions, and gemma4's of ids for what its layers read beside. The largest
    one is taken where arguments decide nothing.
    """
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.QuantizedEmbedding)]
    wanted = _argument(model, "vocab_size"), _argument(model, "hidden_size")

    def rank(table: Any) -> tuple[int, int]:
        count, width = table.weight.shape
        width = table.dims if isinstance(table, nn.QuantizedEmbedding) else width
        return (count == wanted[0]) + (width == wanted[1]), count

    return max(tables, key=rank)


def _argument(model: Any, name: str) -> int | None:
    """A number in a model's arguments, which models of several parts nest."""
    for holder in (getattr(model, "args", None), getattr(model, "config", None)):
        nested = getattr(holder, "text_config", None)
        value = getattr(holder, name, None) or getattr(nested, name, None)
        value = value or (nested.get(name) if isinstance(nested, dict) else None)
        if isinstance(value, int):
            return value
    return None
