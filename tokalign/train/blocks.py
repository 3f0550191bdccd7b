"""A DFlash drafter to be trained: all blocks of a batch at once, a new one, or one to continue.

The ids of a block see the window up to their position, and each other. A new drafter begins with
the target's last layers, whose outputs the head can read. The network is that of
`runtime/mlx/dflash.py`, and the folder has the published layout.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

from tokalign.errors import UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.dflash import DFlashDrafter
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.rounds import Array
from tokalign.tables.dflash_config import DFlashConfig
from tokalign.tables.drafter_config import reading
from tokalign.tables.finding import read_drafter_json
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.begun import attend, begin_as_target, target_sizes
from tokalign.train.drafters import DrafterLearner, Made, WindowBatch


def block_states(drafter: DFlashDrafter, batch: WindowBatch) -> Array:
    """What the head reads f[W, A, depth, width]: the drafter's outputs for all blocks of a batch.

    It computes what `DFlashDrafter` does for one block after another.
    """
    windows, count, depth = batch.correct.shape
    places, size = mx.array(batch.places), depth + 1
    masks = np.full((windows, count, depth), drafter.config.mask_token_id)
    ids = mx.array(np.concatenate([batch.following[..., :1], masks], axis=-1))
    block = drafter.embedded(ids).reshape(windows * count, size, -1).astype(mx.float32)
    context = drafter.hidden_norm(drafter.fc(batch.states.astype(mx.float32)))
    offsets = mx.tile(places + 1, windows)
    before = places[:, None] - mx.arange(context.shape[1])  # [A, L]: how far a position is back
    rows = mx.arange(size)[:, None]
    for layer in drafter.layers:
        attention, x = layer.self_attn, layer.input_layernorm(block)
        window = attention.keys_and_values(context, 0)
        own = attention.keys_and_values(x, offsets)
        seen = before[:, None, None] >= 0
        if attention.window is not None:  # a row sees one id less of the context with each row
            seen = seen & (before[:, None, None] + 1 + rows < attention.window)
        among = rows >= mx.arange(size) if attention.is_causal else None
        queries = attention.queries(x, offsets)
        block = block + attention.o_proj(attend(queries, window, own, seen, among))
        block = block + layer.mlp(layer.post_attention_layernorm(block))
    return drafter.norm(block[:, 1:]).reshape(windows, count, depth, -1)


def _mask(target: LanguageModel[TargetId]) -> int:
    """An id that texts do not have, whose embedding stands for an id that is not known."""
    vocabulary, size = target.tokenizer.vocabulary, vocabulary_size(target.model)
    unused = [token for token, spelled in enumerate(vocabulary.tokens[:size]) if not spelled]
    spare = [token for token in unused if token not in (vocabulary.roles.bos, *target.stop_ids)]
    return (spare or unused or [0])[-1]


class BlockLearner(DrafterLearner):
    """A block drafter (`DrafterLearner`)."""

    def new(self, target: LanguageModel[TargetId]) -> Made:
        """It begins with the target's last layers; `fc` passes on what the first of these reads."""
        model, sizes, shape = target.model, target_sizes(target), self.shape
        taps = shape.read_of(len(model.layers))
        own = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "num_hidden_layers": shape.layers,
            "num_target_layers": len(model.layers),
            "block_size": shape.block,
            "is_causal": shape.causal,
            "dflash_config": {"target_layer_ids": list(taps), "mask_token_id": _mask(target)},
            **sizes,
        }
        with reading("the new drafter"):
            drafter = DFlashDrafter(DFlashConfig.from_json(own), model)
        begin_as_target(drafter, model)
        width, first = sizes["hidden_size"], len(model.layers) - shape.layers
        if first - 1 in taps:
            begin = taps.index(first - 1) * width
            drafter.fc.weight[:, begin : begin + width] += mx.eye(width)
        return drafter, own

    def continued(self, target: LanguageModel[TargetId], folder: Path) -> Made:
        drafter = read_drafter(folder, target.model)
        if drafter.config.quantization:
            raise UsageError(f"{folder} has quantized weights; give the drafter in 16 bits")
        own, others = drafter.config, drafter.links or "lm_head" in drafter
        if others or own.conv_kernel_size or own.whole_window or own.sample_from_anchor:
            raise UsageError(
                f"{folder} is a DFlash 2 or DSpark drafter, or its first slot guesses, too; give "
                "another DFlash drafter"
            )
        return drafter, read_drafter_json(folder)

    def states(self, batch: WindowBatch) -> Array:
        return block_states(self.module, batch)

    def logits(self, states: Array, ids: Array = None) -> Array:
        return self.module.own_logits(states, ids)
