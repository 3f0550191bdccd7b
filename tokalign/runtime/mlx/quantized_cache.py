"""Caches that are quantized while they are read (`kv_bits`), and models that have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.cache import QuantizedKVCache

from tokalign.errors import CacheError
from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.options import CacheOptions


def quantize(layers: list[Any], model: Any, options: CacheOptions) -> None:
    """Replace layers by quantized ones, in place, if they hold as many positions as the options
    say. model: whose cache it is. Raises: CacheError."""
    try:
        maybe_quantize_kv_cache(
            layers,
            quantized_kv_start=options.quantized_kv_start,
            kv_group_size=options.kv_group_size,
            kv_bits=options.kv_bits,
        )
    except (ValueError, NotImplementedError) as error:
        reason, remedy = str(error).partition(". ")[0] or type(error).__name__, ""
        if isinstance(error, ValueError):  # the groups do not divide its width
            remedy = "choose another kv_group_size, or "
        raise cannot_be_quantized(model, options, reason, remedy) from error


def is_quantized(layers: Sequence[Any]) -> bool:
    """Whether any layer is."""
    return any(isinstance(layer, QuantizedKVCache) for layer in leaves_of(layers))


def cannot_be_quantized(
    model: Any, options: CacheOptions, reason: str, remedy: str = ""
) -> CacheError:
    """The error for a model's cache. remedy: what to try before."""
    return CacheError(
        f"a cache of this {getattr(model, 'model_type', 'kind of')} model cannot be quantized to "
        f"{options.kv_bits} bits in groups of {options.kv_group_size} ({reason}); {remedy}leave "
        "kv_bits out"
    )
