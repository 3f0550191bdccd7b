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
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.eagle3 import Eagle3Drafter
from tokalign.runtime.mlx.published_drafter import by_head
from tokalign.runtime.mlx.short_head import among_all
from tokalign.runtime.mlx.trained_drafter import TargetEnds
from tokalign.runtime.mlx.weights import read_config
from tokalign.runtime.rounds import Array
from tokalign.tables.drafter_config import SHAPE_KEYS, reading
from tokalign.tables.eagle3_config import INPUTS, Eagle3Config
from tokalign.tables.finding import read_drafter_json
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.begun import attend, begin_as_target, target_sizes
from tokalign.train.drafters import DrafterLearner, Made, WindowBatch, halved


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
    window = attention.rope(keys, offset=1), values
    seen = (mx.arange(before.shape[1]) < places[:, None])[:, None, None]  # [A, 1, 1, L - 1]
    x, read_since, outputs = states[:, places], list[tuple[Array, Array]](), []
    for step in range(depth):
        read = _read(drafter, x, mx.array(batch.following[..., step]))
        heads = [
            by_head(part(read).reshape(windows * count, 1, -1), dim)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        ]
        offsets = mx.tile(places + 1 + step, windows)
        queries, key = (attention.rope(part, offset=offsets) for part in heads[:2])
        read_since.append((key, heads[2]))
        own_keys, own_values = (
            mx.concatenate([*parts], axis=-2) for parts in zip(*read_since, strict=True)
        )
        attended = attend(queries, window, (own_keys, own_values), seen)
        output = attention.o_proj(attended.reshape(windows, count, -1))
        x = (layer.hidden_norm(x) if layer.adds_normed else x) + output
        x = drafter.output(x + layer.mlp(layer.post_attention_layernorm(x)))
        outputs.append(x)
    return mx.stack(outputs, axis=2)


def _read(drafter: Eagle3Drafter, states: Array, ids: Array) -> Array:
    """What the first layer's attention reads f[..., 2 * width] of pairs."""
    layer = drafter.layers[0]
    embedded = layer.input_layernorm(drafter.embedded(ids).astype(states.dtype))
    return mx.concatenate([embedded, layer.hidden_norm(states)], axis=-1)


def _as_speculators(
    config: Mapping[str, Any], taps: Sequence[int], verifier: Mapping[str, Any], tokens: int
) -> dict[str, Any]:
    """The `config.json` of `speculators` for a drafter with a config of any layout, or with these
    sizes.

    taps: the layers whose outputs it reads. verifier: name and architectures of its target. tokens:
    that it is to guess in a round.
    """
    nested = config.get("transformer_layer_config") or {}
    # Its network is Llama's, whatever `model_type` said. vLLM knows no activation by itself.
    layer = {"hidden_act": "silu", **config, **nested, "model_type": "llama"}
    proposes = {"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1}
    switches = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    own = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [proposes],
            "default_proposal_method": "greedy",
            "verifier": dict(verifier),
        },
        "draft_vocab_size": layer["vocab_size"],
        **{switch: bool(config.get(switch)) for switch in switches},
        "target_hidden_size": config.get("target_hidden_size") or layer["hidden_size"],
        INPUTS: [tap + 1 for tap in taps],
    }
    of_layer = SHAPE_KEYS - own.keys() | {"model_type"}
    kept = {key: value for key, value in layer.items() if key in of_layer}
    return {**own, "transformer_layer_config": kept}


class EagleLearner(DrafterLearner):
    """An EAGLE-3 drafter (`DrafterLearner`). Its head is the target's at its most frequent ids."""

    def new(self, target: LanguageModel[TargetId]) -> Made:
        """It begins with the target's last layer and norm; `fc` passes on the last tap. While it is
        trained, its head is the target's."""
        # Some targets' states are thousands, to which a layer would add nothing.
        own = target_sizes(target) | {"num_hidden_layers": 1, "norm_before_fc": True}
        model, width = target.model, own["hidden_size"]
        taps = self.shape.read_of(len(model.layers))
        config = self._with_head(target, own, taps)
        with reading("the new drafter"):
            drafter = Eagle3Drafter(Eagle3Config.from_json(config), model)
        begin_as_target(drafter, model)
        drafter.fc.weight[:, -width:] += mx.eye(width)
        return drafter, config

    def continued(self, target: LanguageModel[TargetId], folder: Path) -> Made:
        """It is trained on with the target's head; its embedding, if it has one, stays."""
        drafter = read_drafter(folder, target.model)
        if "q_norm" in drafter.layers[0].self_attn:
            raise UsageError(
                f"{folder} norms queries, which training does not; leave --begin-with out"
            )
        logits = drafter.among_all(mx.zeros(drafter.config.draft_vocab_size))
        self._remark("its head knew", np.flatnonzero(np.array(logits) == 0), logits.size)
        drafter.pop("lm_head", None)
        if "embed_tokens" in drafter:
            drafter.embed_tokens.freeze()
        taps = drafter.config.taps(len(target.model.layers))
        config = {**read_drafter_json(folder), "norm_before_fc": drafter.config.norm_before_fc}
        return drafter, self._with_head(target, config, taps)

    def _with_head(
        self, target: LanguageModel[TargetId], config: Mapping[str, Any], taps: Sequence[int]
    ) -> dict[str, Any]:
        """Choose the ids that the head knows; returns the config to be written."""
        self._ends = TargetEnds.of(target.model)
        size = self._ends.vocabulary_size
        seen = self.labels.frequencies(target.tokenizer, size)
        known = np.sort(np.argsort(-seen, kind="stable")[: self.shape.draft_vocabulary])
        self._remark("the head knows", known, size)
        self._known = mx.array(known)
        depth = self.labels.options.labelling.future - 1
        theirs = {} if target.folder is None else read_config(target.folder)
        verifier = {"name_or_path": target.name, "architectures": theirs.get("architectures") or []}
        packaged = _as_speculators(config, taps, verifier, depth)
        if "quantization" in theirs or Path(target.name).is_absolute():
            self.remarks.append(
                "other programs load the target that config.json names as `verifier`: before you "
                "share it, name a repository there, for `speculators` one that is not quantized"
            )
        return packaged | {"draft_vocab_size": len(known)}

    def _remark(self, begins: str, ids: NDArray[Any], size: int) -> None:
        share = np.isin(self.labels.held_out.ids[:, 1:], ids).mean()
        self.remarks.append(f"{begins} {len(ids):,} of {size:,} ids, {share:.2%} of those held out")

    def states(self, batch: WindowBatch) -> Array:
        return draft_states(self.module, batch)

    def logits(self, states: Array, ids: Array = None) -> Array:
        known, size = self._known, self._ends.vocabulary_size
        logits = self.module.normed(states) @ self._ends.head_rows(known if ids is None else ids).T
        return among_all(logits, known, size) if ids is None else logits

    def weights(self) -> dict[str, Array]:
        ids, ends = self._known, self._ends
        size, weights = ends.vocabulary_size, super().weights()
        weights["lm_head.weight"] = halved(ends.head_rows(ids))
        # `mlx-vlm` reads no folder without an embedding.
        weights.setdefault("embed_tokens.weight", halved(ends.embed(mx.arange(size))))
        if len(ids) == size:
            return weights
        knows = mx.isfinite(among_all(mx.zeros(len(ids)), ids, size))
        return weights | {"d2t": ids.astype(mx.int64) - mx.arange(len(ids)), "t2d": knows}
