"""An EAGLE-3 drafter to be trained: all drafts of a batch at once, and a new drafter.

It reads pairs of what the target computed for an id and the next id. A draft after a position goes
on from there alone, by the ids that are right: its step sees the pairs of the window before that
position, and the steps before it. The network is that of `runtime/mlx/eagle3.py`; the folder has
the packaging of `speculators`.
Source: EAGLE-3 (Li et al., 2025), section 3.2: several steps are trained on their own outputs.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from numpy.typing import NDArray

from tokalign.errors import UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.eagle3 import Eagle3Config, Eagle3Drafter
from tokalign.runtime.mlx.recurrent_drafter import TargetEnds
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labels import Labels
from tokalign.train.options import BlockShape
from tokalign.train.windows import TapLearner, WindowBatch, target_sizes

_NEVER = -1e9


def draft_states(drafter: Eagle3Drafter, batch: WindowBatch) -> Array:
    """The drafter's outputs f[W, A, depth, width] for all guesses of a batch.

    It computes what a `CachedSession` does for one draft after another. The network has one layer.
    """
    (windows, count, depth), [layer] = batch.correct.shape, drafter.layers
    attention, places = layer.self_attn, mx.array(batch.places)
    states = drafter.states(batch.taps.astype(mx.float32))
    before = _read(drafter, states[:, :-1], mx.array(batch.text[:, 1:]))
    length = before.shape[1]
    keys, values = (attention.split(part(before)) for part in (attention.k_proj, attention.v_proj))
    keys = attention.rope(keys, offset=1)
    shared, dim = keys.shape[1], keys.shape[-1]
    seen = (mx.arange(length) < places[:, None])[:, None]  # [A, 1, L - 1]
    x, own_keys, own_values, outputs = states[:, places], list[Array](), list[Array](), []
    for step in range(depth):
        ids = mx.array(batch.following[..., step])
        read, offsets = _read(drafter, x, ids), mx.tile(places + 1 + step, windows)

        def by_head(projected: Array, offsets: Array | None = None) -> Array:
            """f[W, A, heads * d] -> f[W, shared, A, heads / shared, d]."""
            heads = attention.split(projected.reshape(windows * count, 1, -1))
            heads = heads if offsets is None else attention.rope(heads, offset=offsets)
            return heads.reshape(windows, count, shared, -1, dim).swapaxes(1, 2)

        queries = by_head(attention.q_proj(read), offsets) * dim**-0.5
        own_keys.append(by_head(attention.k_proj(read), offsets))
        own_values.append(by_head(attention.v_proj(read)))
        flat = queries.reshape(windows, shared, -1, dim)
        outer = (flat @ keys.swapaxes(-1, -2)).reshape(*queries.shape[:-1], length)
        inner = queries @ mx.concatenate(own_keys, axis=-2).swapaxes(-1, -2)
        scores = mx.concatenate([mx.where(seen, outer, _NEVER), inner], axis=-1)
        weights = mx.softmax(scores, axis=-1)
        output = weights[..., :length].reshape(windows, shared, -1, length) @ values
        output = output.reshape(queries.shape)
        output += weights[..., length:] @ mx.concatenate(own_values, axis=-2)
        output = output.swapaxes(1, 2).reshape(windows, count, -1)
        x = (layer.hidden_norm(x) if layer.adds_normed else x) + attention.o_proj(output)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        outputs.append(x)
    return mx.stack(outputs, axis=2)


def _read(drafter: Eagle3Drafter, states: Array, ids: Array) -> Array:
    """What the first layer's attention reads f[..., 2 * width] of pairs."""
    layer = drafter.layers[0]
    embedded = layer.input_layernorm(drafter.embedded(ids).astype(states.dtype))
    return mx.concatenate([embedded, layer.hidden_norm(states)], axis=-1)


def new_eagle(
    target: LanguageModel[TargetId], shape: BlockShape, seed: int = 0
) -> tuple[Eagle3Drafter, dict[str, Any]]:
    """A drafter that begins with the target's last layer and norm, and its `config.json`.

    `fc` passes on the last tap. While it is trained, its head is the target's.
    Raises: UsageError for a number of taps that the format does not have.
    """
    model, sizes = target.model, target_sizes(target)
    taps, width = shape.read_of(len(model.layers)), sizes["hidden_size"]
    if len(taps) != 3:
        raise UsageError(f"an EAGLE-3 drafter reads three layers, not {len(taps)}; give --taps")
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": sizes["vocab_size"],
        "norm_before_residual": False,
        "target_hidden_size": width,
        "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in taps],
        "transformer_layer_config": {"model_type": "llama", "num_hidden_layers": 1, **sizes},
    }
    mx.random.seed(seed)
    drafter = Eagle3Drafter(
        Eagle3Config.from_json(config, name="the new drafter"), model, own_head=False
    )
    own, last = drafter.layers[0], dict(tree_flatten(model.layers[-1].parameters()))
    weights = dict(tree_flatten(own.parameters()))
    for name, weight in last.items():
        twice = mx.concatenate([weight, weight], axis=-1) if weight.ndim == 2 else weight
        for fitting in (weight, twice):
            if name in weights and weights[name].shape == fitting.shape:
                weights[name] = fitting.astype(mx.float32)
    own.update(tree_unflatten([*weights.items()]))
    ends = dict(tree_flatten(getattr(model, "model", model).parameters()))
    if (norm := ends.get("norm.weight")) is not None:
        drafter.norm.weight = norm.astype(mx.float32)
    drafter.fc.weight[:, -width:] += mx.eye(width)
    return drafter, config


def choose_ids(
    labels: Labels, future: int, count: int, size: int
) -> tuple[NDArray[np.int32], float]:
    """The `count` ids of a vocabulary of `size` that follow most often, ascending, and the share of
    all that follow which they are. Ties go to the lowest ids. future: as of `Labelling`."""
    seen = np.bincount(labels.ids[:, 1 : 1 + future].reshape(-1), minlength=size)
    chosen = np.sort(np.argsort(-seen, kind="stable")[:count])
    return chosen.astype(np.int32), float(seen[chosen].sum() / max(1, seen.sum()))


class EagleLearner(TapLearner):
    """An EAGLE-3 drafter (`TapLearner`). The file has the target's head at the ids in `known`."""

    def __init__(self, *parts: Any, known: NDArray[np.int32]) -> None:
        target, drafter, config, *rest = parts
        self._known, self._ends = known, TargetEnds.of(target.model)
        config = {**config, "draft_vocab_size": len(known)}
        super().__init__(target, drafter, config, *rest)

    def states(self, batch: WindowBatch) -> Array:
        return draft_states(self.module, batch)

    def logits(self, states: Array, ids: Array = None) -> Array:
        normed, ends = self.module.norm(states), self._ends
        return ends.unembed(normed) if ids is None else normed @ ends.head_rows(ids).T

    def shared_weights(self) -> dict[str, Array]:
        ids, size = mx.array(self._known), self._ends.vocabulary_size
        weights = {"lm_head.weight": self._ends.head_rows(ids).astype(mx.float16)}
        if len(ids) == size:
            return weights
        knows = np.isin(np.arange(size), self._known)
        return weights | {"d2t": ids - mx.arange(len(ids)), "t2d": mx.array(knows)}
