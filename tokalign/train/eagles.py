"""An EAGLE-3 drafter to be trained: all drafts of a batch at once, and a new drafter.

It reads pairs of what the target computed for an id and the next id. A draft after a position goes
on from there alone, by the ids that are right: its step sees the pairs of the window before that
position, and the steps before it. The network is that of `runtime/mlx/eagle3.py`; the folder has
the packaging of `speculators`.
Source: EAGLE-3 (Li et al., 2025), section 3.2: several steps are trained on their own outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.errors import UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.eagle3 import Eagle3Config, Eagle3Drafter, load_eagle3
from tokalign.runtime.mlx.published_drafter import (
    SHAPE_KEYS,
    among_all,
    by_head,
    places_of,
    read_drafter_json,
)
from tokalign.runtime.mlx.recurrent_drafter import TargetEnds
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.begun import attend, begin_as_target, by_key_head, target_sizes
from tokalign.train.drafters import DrafterLearner, halved
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.options import BlockShape, FitOptions
from tokalign.train.windows import WindowBatch


def draft_states(drafter: Eagle3Drafter, batch: WindowBatch) -> Array:
    """The drafter's outputs f[W, A, depth, width] for all guesses of a batch.

    It computes what a `CachedSession` does for one draft after another. The network has one layer.
    """
    (windows, count, depth), [layer] = batch.correct.shape, drafter.layers
    attention, places = layer.self_attn, mx.array(batch.places)
    states = drafter.states(batch.states.astype(mx.float32))
    before = _read(drafter, states[:, :-1], mx.array(batch.text[:, 1:]))
    dim = attention.head_dim
    keys, values = (by_head(part(before), dim) for part in (attention.k_proj, attention.v_proj))
    window, shared = (attention.rope(keys, offset=1), values), keys.shape[1]
    seen = (mx.arange(before.shape[1]) < places[:, None])[:, None]  # [A, 1, L - 1]
    x, own_keys, own_values, outputs = states[:, places], list[Array](), list[Array](), []
    for step in range(depth):
        read = _read(drafter, x, mx.array(batch.following[..., step]))
        heads = [
            by_head(part(read).reshape(windows * count, 1, -1), dim)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        ]
        offsets = mx.tile(places + 1 + step, windows)
        heads[:2] = [attention.rope(part, offset=offsets) for part in heads[:2]]
        queries, own_key, own_value = (by_key_head(part, windows, shared) for part in heads)
        own_keys.append(own_key)
        own_values.append(own_value)
        own = mx.concatenate(own_keys, axis=-2), mx.concatenate(own_values, axis=-2)
        output = attention.o_proj(attend(queries, window, own, seen).reshape(windows, count, -1))
        x = (layer.hidden_norm(x) if layer.adds_normed else x) + output
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        outputs.append(x)
    return mx.stack(outputs, axis=2)


def _read(drafter: Eagle3Drafter, states: Array, ids: Array) -> Array:
    """What the first layer's attention reads f[..., 2 * width] of pairs."""
    layer = drafter.layers[0]
    embedded = layer.input_layernorm(drafter.embedded(ids).astype(states.dtype))
    return mx.concatenate([embedded, layer.hidden_norm(states)], axis=-1)


def _packaged(config: Mapping[str, Any], taps: Sequence[int]) -> dict[str, Any]:
    """The `config.json` of `speculators` for a drafter with these sizes, or with any packaging."""
    layer = {"model_type": "llama", **config, **config.get("transformer_layer_config", {})}
    own = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": layer["vocab_size"],
        "norm_before_residual": bool(config.get("norm_before_residual")),
        "norm_before_fc": bool(config.get("norm_before_fc")),
        "target_hidden_size": config.get("target_hidden_size") or layer["hidden_size"],
        "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in taps],
    }
    of_layer = SHAPE_KEYS - own.keys() | {"model_type"}
    nested = {key: value for key, value in layer.items() if key in of_layer}
    return {**own, "transformer_layer_config": nested}


def choose_ids(following: NDArray[np.int32], count: int, size: int) -> NDArray[np.int32]:
    """The `count` ids of a vocabulary of `size` that are most frequent in i[n], ascending. Ties go
    to the lowest ids."""
    seen = np.bincount(following, minlength=size)
    return np.sort(np.argsort(-seen, kind="stable")[:count]).astype(np.int32)


class EagleLearner(DrafterLearner):
    """An EAGLE-3 drafter (`DrafterLearner`). Its head is the target's at its most frequent ids."""

    def __init__(
        self,
        target: LanguageModel[TargetId],
        shape: BlockShape,
        labels: LabelledCorpus,
        options: FitOptions,
        begin_with: Path | None = None,
    ) -> None:
        super().__init__(target, shape, labels, options, begin_with)
        self._ends, following = TargetEnds.of(target.model), labels.following()
        size = self._ends.vocabulary_size
        known = choose_ids(following, shape.draft_vocabulary, size)
        self._known, self._config["draft_vocab_size"] = mx.array(known), len(known)
        heads: dict[str, NDArray[Any]] = {"the head knows": known}
        if begin_with is not None:
            logits = self.module.among_all(mx.zeros(self.module.config.draft_vocab_size))
            heads = {"its head knew": np.flatnonzero(np.array(logits) == 0), **heads}
        self.remarks = tuple(
            f"{begins} {len(ids):,} of {size:,} ids, {np.isin(following, ids).mean():.2%} of the "
            "labels"
            for begins, ids in heads.items()
        )

    def new(
        self, target: LanguageModel[TargetId], shape: BlockShape
    ) -> tuple[Eagle3Drafter, dict[str, Any]]:
        """It begins with the target's last layer and norm; `fc` passes on the last tap. While it is
        trained, its head is the target's.

        Raises: UsageError for a number of taps that the format does not have.
        """
        model, sizes = target.model, target_sizes(target)
        taps, width = shape.read_of(len(model.layers)), sizes["hidden_size"]
        if len(taps) != 3:
            raise UsageError(f"an EAGLE-3 drafter reads three layers, not {len(taps)}; give --taps")
        # Some targets' states are thousands, to which a layer would add nothing.
        config = _packaged({**sizes, "num_hidden_layers": 1, "norm_before_fc": True}, taps)
        shape_of = Eagle3Config.from_json(config, name="the new drafter")
        drafter = Eagle3Drafter(shape_of, model)
        begin_as_target(drafter, model)
        drafter.fc.weight[:, -width:] += mx.eye(width)
        return drafter, config

    def continued(
        self, target: LanguageModel[TargetId], folder: Path
    ) -> tuple[Eagle3Drafter, dict[str, Any]]:
        """It is trained on with the target's head; its embedding, if it has one, stays."""
        drafter = load_eagle3(folder, target.model)
        if drafter.config.quantization or len(drafter.layers) != 1:
            raise UsageError(
                f"{folder} has quantized weights or several layers; give an EAGLE-3 drafter of one "
                "layer in 16 bits"
            )
        drafter.pop("lm_head", None)
        if "embed_tokens" in drafter:
            drafter.embed_tokens.freeze()
        return drafter, _packaged(read_drafter_json(folder), drafter.config.taps(target.model))

    def states(self, batch: WindowBatch) -> Array:
        return draft_states(self.module, batch)

    def logits(self, states: Array, ids: Array = None) -> Array:
        known, size = self._known, self._ends.vocabulary_size
        logits = self.module.norm(states) @ self._ends.head_rows(known if ids is None else ids).T
        return among_all(logits, places_of(known, size)) if ids is None else logits

    def shared_weights(self) -> dict[str, Array]:
        ids, size = self._known, self._ends.vocabulary_size
        weights = {"lm_head.weight": halved(self._ends.head_rows(ids))}
        if len(ids) == size:
            return weights
        knows = places_of(ids, size) < len(ids)
        return weights | {"d2t": ids - mx.arange(len(ids)), "t2d": knows}
