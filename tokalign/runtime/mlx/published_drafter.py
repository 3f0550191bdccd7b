"""Trained drafters as others publish them: reading their folders, and the parts that formats share.

A folder has a `config.json` (`tables/drafter_config.py`) and safetensors files, whose weights have
to be called exactly as those of the network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from tokalign.errors import BundleError, IncompatibleError, in_one_line
from tokalign.runtime.mlx.short_head import among_all
from tokalign.runtime.mlx.taps import KeptRows, taps_of
from tokalign.runtime.mlx.trained_drafter import TargetEnds, TrainedDrafter
from tokalign.runtime.rounds import Array
from tokalign.tables.drafter_config import DrafterShape
from tokalign.tables.finding import drafter_weights

Weights = Mapping[str, Array]

_OTHER_NAMES = {
    r"^(model|logit_head|encoder)\.": "",  # what NeMo, SpecForge and Muse Glimmer wrap networks in
    r"^output_norm_enc\.": "hidden_norm.",  # of Muse Glimmer
    r"^midlayer\.": "layers.0.",  # of SafeAILab and SpecForge
    r"^(?=markov_w)": "markov_head.",  # of ModelOpt
    r"^confidence_proj\.": "confidence_head.proj.",
    r"^(t2d|verifier_.*|.*rotary_emb.*)$": "",
}
"""As of `renamed`."""


def read_weights(folder: Path) -> dict[str, Array]:
    """All weights of a folder, lazy. Raises: BundleError."""
    weights: dict[str, Array] = {}
    for file in drafter_weights(folder):
        try:
            weights |= cast("dict[str, Array]", mx.load(str(file)))
        except (RuntimeError, ValueError) as error:
            raise BundleError(f"{file}: {in_one_line(error)}; fetch it again") from error
    return weights


def renamed(weights: Weights, others: Mapping[str, str]) -> dict[str, Array]:
    """Weights by our names. others: what is replaced in the names of others, one after another; of
    the names of what is no parameter nothing is left."""
    named = {}
    for key, weight in weights.items():
        for theirs, ours in others.items():
            key = re.sub(theirs, ours, key)
        named[key] = weight
    named.pop("", None)
    return named


def target_ids(offsets: Array | None, count: int, size: int) -> Array | None:
    """The target's ids that a head of `count` ids knows, i + d2t[i]; None for all `size` of them.

    Raises: ValueError.
    """
    if count == size and (offsets is None or not offsets.any()):  # SpecForge always writes one
        return None
    if offsets is None:
        raise ValueError(f"its head knows {count} of {size} ids, and no d2t says which")
    is_list = offsets.shape == (count,) and mx.issubdtype(offsets.dtype, mx.integer)
    ids = mx.arange(count) + offsets.astype(mx.int64) if is_list else None
    if ids is None or not 0 <= ids.min().item() <= ids.max().item() < size:
        raise ValueError("its d2t names ids that the target does not have")
    return ids


class TapsDrafter(TrainedDrafter):
    """A drafter that reads the outputs of some of the target's layers. Its embedding and its head
    are the target's, or its own. Raises: IncompatibleError for a target of another size."""

    config: Any

    def __init__(self, config: DrafterShape, target: Any) -> None:
        super().__init__()
        self.config, self._ends = config, TargetEnds.of(target)
        reads, layers = self._ends.hidden_size, len(target.layers)
        self._ends.require_fit(config, layers)
        self._taps = config.taps(layers)
        self._ids: Array = None
        self._scale = 1.0  # of the target's embedding
        self.watch(target)
        self.fc = nn.Linear(len(self._taps) * reads, config.hidden_size, bias=False)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def watch(self, model: Any) -> KeptRows:
        return taps_of(model, self._taps)

    def own(self, *, embedding: bool = False, head: bool = False, ids: Array = None) -> None:
        """Give it an embedding or a head in the place of the target's. ids: i[draft vocabulary],
        the target's ids that its head knows; None for all in their order.

        Raises: IncompatibleError for one that would need the target's at another width.
        """
        shape, ends = self.config, self._ends
        if not (embedding and head) and shape.hidden_size != ends.hidden_size:
            raise IncompatibleError(
                f"the drafter has the width {shape.hidden_size}, and its embedding or its head is "
                f"that of a target with {ends.hidden_size}; give its own target"
            )
        if embedding:
            self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        if head:
            self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)
        self._ids = ids

    def filled(self, weights: Weights) -> Self:
        """With the weights of a folder, by their published names. Raises: ValueError; as `own`."""
        parameters = renamed(weights, _OTHER_NAMES)
        size, drafts = self._ends.vocabulary_size, self.config.draft_vocab_size
        ids = target_ids(parameters.pop("d2t", None), drafts, size)
        # Some programs read no folder without copies. Without a head, an embedding may be the head.
        copied = {"embed_tokens.weight": self._ends.embeds, "lm_head.weight": self._ends.unembeds}
        for name, is_copy in copied.items() if "lm_head.weight" in parameters else ():
            if name in parameters and not is_copy(parameters[name]):
                break
            parameters.pop(name, None)
        named = parameters.keys()
        self.own(embedding="embed_tokens.weight" in named, head="lm_head.weight" in named, ids=ids)
        fill(self, parameters, self.config.quantization)
        return self

    def embedded(self, ids: Array) -> Array:
        """i[...] -> f[..., width]."""
        if "embed_tokens" in self:
            return self.embed_tokens(ids)
        return self._ends.embed(ids) * self._scale

    def among_all(self, logits: Array) -> Array:
        """f[..., draft vocabulary] -> f[..., vocabulary of the target], -inf for ids that its head
        does not know."""
        if self._ids is None:
            return logits
        return among_all(logits, self._ids, self._ends.vocabulary_size)


def fill(
    drafter: TrainedDrafter, weights: Weights, quantization: Mapping[str, Any] | None = None
) -> None:
    """Give a drafter its weights, and quantized ones their scales, in its target's number format.

    Raises: ValueError for weights of another network.
    """
    mode = str((quantization or {}).get("mode", "affine"))

    def quantized(path: str, part: nn.Module) -> dict[str, Any] | None:
        """As the shapes of its weights say, which may differ from part to part."""
        if (scales := weights.get(f"{path}.scales")) is None:
            return None
        width, packed = part.weight.shape[-1], weights[f"{path}.weight"].shape[-1]
        bits, group_size = 32 * packed // width, width // scales.shape[-1]
        return {"group_size": group_size, "bits": bits, "mode": mode}

    if quantization:
        nn.quantize(drafter, class_predicate=quantized)
    own = dict(tree_flatten(drafter.parameters()))
    drafter.load_weights([*weights.items()])
    for key, weight in weights.items():
        if _is_floating(own[key]) and not _is_floating(weight):
            raise ValueError(f"its {key} is of the type {weight.dtype}")
    drafter.eval()
    drafter.set_dtype(drafter.dtype)
    mx.eval(drafter.parameters())


def _is_floating(weight: Array) -> bool:
    return bool(mx.issubdtype(weight.dtype, mx.floating))


def by_head(x: Array, dim: int) -> Array:
    """f[n, length, heads * dim] -> f[n, heads, length, dim]."""
    return x.reshape(*x.shape[:2], -1, dim).swapaxes(1, 2)
