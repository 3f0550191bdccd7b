"""What block drafters and EAGLE-3's have in common in training: how they begin, how they attend."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from tokalign.names.model_shape import model_sizes
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.shape import full_config
from tokalign.runtime.mlx.trained_drafter import TargetEnds
from tokalign.runtime.mlx.weights import read_config
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId

_NEVER = -1e9
_LOOKED_AT, _DEVIATION = 1000, 2.0
"""Ids whose logits are looked at, and how much these differ at the beginning, at most."""


_SIZES = (
    *("head_dim", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "rope_theta"),
    *("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"),
)


def target_sizes(target: LanguageModel[TargetId]) -> dict[str, Any]:
    """The sizes in the target's `config.json` that a new drafter's layers have, too. Raises:
    KeyError for one that is not told."""
    assert target.folder is not None, "it was loaded from a folder"
    sizes = {"rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 10000.0}
    told = model_sizes(full_config(read_config(target.folder)))
    sizes |= {name: size for name, size in told.items() if size is not None}
    return {name: sizes[name] for name in _SIZES}


def begin_as_target(drafter: Any, model: Any) -> None:
    """Give a new drafter the weights of the target's last layers and last norm, where they fit.

    A matrix that reads twice the width gets them twice. Norms of queries and keys, and all that
    does not fit, begin as in any new network. A new network's outputs point anywhere, so the last
    norm is made smaller where the head would be sure of ids by chance: Gemma 3 270M would begin
    with a loss of 130 nats.
    """
    count = len(drafter.layers)
    for layer, theirs in zip(drafter.layers, model.layers[-count:], strict=True):
        given = dict(tree_flatten(theirs.parameters()))
        given |= {
            f"{name}.weight": _factors(module)
            for name, module in theirs.named_modules()
            if name.endswith("layernorm")
        }
        if (before_mlp := given.get("pre_feedforward_layernorm.weight")) is not None:
            given["post_attention_layernorm.weight"] = before_mlp
        begun = {}
        for name, weight in tree_flatten(layer.parameters()):
            found = given.get(name, mx.zeros(0))
            twice = mx.concatenate([found, found], axis=-1)
            fits = [array for array in (found, twice) if array.shape == weight.shape]
            begun[name] = fits[0].astype(mx.float32) if fits else weight
        layer.update(tree_unflatten([*begun.items()]))
    if (norm := getattr(getattr(model, "model", model), "norm", None)) is not None:
        factors, ends = _factors(norm).astype(mx.float32), TargetEnds.of(model)
        some = mx.arange(0, ends.vocabulary_size, max(1, ends.vocabulary_size // _LOOKED_AT))
        deviation = mx.sqrt(((ends.head_rows(some) * factors) ** 2).sum(axis=-1)).mean()
        drafter.norm.weight = factors * mx.minimum(1.0, _DEVIATION / deviation)


def _factors(norm: Any) -> Array:
    """What a norm multiplies by f[width]; Gemma's adds one to its weights."""
    signs = 1 - 2.0 * (mx.arange(norm.weight.size) % 2)
    return norm(signs) * signs


def attend(
    queries: Array,
    window: tuple[Array, Array],
    own: tuple[Array, Array],
    seen: Array,
    among: Array | None = None,
) -> Array:
    """What A drafts of each of W windows attend to: their window, and their own rows.

    queries: f[W * A, heads, rows, d]. window: keys and values f[W, shared, L, d]; own: f[W * A,
    shared, m, d]. seen: what is seen of the window, a bool array that broadcasts to [A, 1, rows,
    L]; among: of the own rows, bool[rows, m], or all.
    Returns: f[W * A, rows, heads * d].
    """
    (keys, values), (windows, shared, length, dim) = window, window[0].shape
    drafts, heads, rows, _ = queries.shape
    # Queries that share keys are rows of one product.
    queries, own_keys, own_values = (
        part.reshape(windows, drafts // windows, shared, -1, dim).swapaxes(1, 2)
        for part in (queries * dim**-0.5, *own)
    )
    flat = windows, shared, -1
    by_head = *queries.shape[:3], heads // shared, rows
    outer = queries.reshape(*flat, dim) @ keys.swapaxes(-1, -2)
    inner = (queries @ own_keys.swapaxes(-1, -2)).reshape(*by_head, -1)
    if among is not None:
        inner = mx.where(among, inner, _NEVER)
    outer = mx.where(seen, outer.reshape(*by_head, length), _NEVER)
    weights = mx.softmax(mx.concatenate([outer, inner], axis=-1), axis=-1)
    output = (weights[..., :length].reshape(*flat, length) @ values).reshape(queries.shape)
    output = output + weights[..., length:].reshape(*queries.shape[:-1], -1) @ own_values
    output = output.reshape(*by_head, dim).transpose(0, 2, 4, 1, 3, 5)
    return output.reshape(drafts, rows, heads * dim)
