"""MTP: the layer for the id after the next one that some targets bring along in their checkpoint.

mlx-lm leaves it out, so it is read from the target's own folder, or from one that holds it alone.
It is a layer as the target's last one, after a matrix that joins an id's embedding with what goes
into the target's head. Embedding and head are the target's.

| | weights | what it goes on from |
|---|---|---|
| Qwen3-Next, Qwen3.5 and newer | `mtp.*` | its outputs after its last norm |
| GLM-4 MoE, DeepSeek V3 | those of a layer after the last one | its outputs before that norm |

The target's `sanitize` reads the layer's weights as those of its last layer, whatever it stacks,
splits or adds 1 to.
Source: DeepSeek-V3 (2024), section 2.2; `mlx-vlm` 0.7.10 and `mtplx` 2.12.2, which
`lab/tests/test_mtp_parity.py` compares with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache, make_prompt_cache

from tokalign.errors import IncompatibleError
from tokalign.runtime.mlx.cached_drafter import CachedDrafter
from tokalign.runtime.mlx.published_drafter import Weights, fill, read_weights, renamed
from tokalign.runtime.mlx.taps import MOST_ROWS, KeptRows, state_rows
from tokalign.runtime.mlx.trained_drafter import TargetEnds
from tokalign.runtime.rounds import Array
from tokalign.tables.drafter_formats import GOES_ON_NORMED

_OTHER_NAMES = {
    r"^(embed_tokens|shared_head\.head|lm_head)\..*": "",  # copies of the target's
    r"^(eh_proj|input_proj)\.": "fc.",
    r"^(pre_fc_norm_embedding|enorm|token_layernorm)\.": "embedding_norm.",
    r"^(pre_fc_norm_hidden|hnorm|hidden_layernorm)\.": "hidden_norm.",
    r"^(shared_head\.norm|shared_head_norm|final_layernorm)\.": "norm.",
    r"^(?!$|layers\.|(fc|embedding_norm|hidden_norm|norm)\.)": "layers.0.",
}
_ABOUT_0 = ("layernorm.weight", "embedding_norm.weight", "hidden_norm.weight")


class MtpDrafter(CachedDrafter):
    """The network. depth: layers. Raises: IncompatibleError for a target without such a layer."""

    def __init__(self, target: Any, depth: int = 1) -> None:
        super().__init__()
        kind, cache = getattr(target, "model_type", None), make_prompt_cache(target)[-1]
        if kind not in GOES_ON_NORMED or type(cache) is not KVCache:
            raise IncompatibleError(
                f"MTP layers of a {kind} model are not run; leave the drafter out"
            )
        self._ends, self.goes_on_normed = TargetEnds.of(target), GOES_ON_NORMED[kind]
        args = getattr(target, "language_model", target).args
        width, eps, last = args.hidden_size, args.rms_norm_eps, target.layers[-1]
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.embedding_norm = nn.RMSNorm(width, eps=eps)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.norm = nn.RMSNorm(width, eps=eps)
        self.layers = [type(last)(args, len(target.layers) - 1) for _ in range(depth)]

    def watch(self, model: Any) -> KeptRows:
        return state_rows(model, MOST_ROWS)

    def read(self, ids: Array, states: Array, cache: Sequence[Any], mask: Any) -> Array:
        embedded = self._ends.embed(ids).astype(states.dtype)
        joined = [self.embedding_norm(embedded), self.hidden_norm(states)]
        x = self.fc(mx.concatenate(joined, axis=-1))[None]
        if isinstance(mask, str):  # not every architecture takes the word
            mask = create_causal_mask(len(ids), cache[0].offset)
        for layer, of_layer in zip(self.layers, cache, strict=True):
            x = layer(x, mask, of_layer)
        return self.output(x[0])


def holds_mtp(folder: Path, target: Any) -> bool:
    """Whether the folder of a target has the layer's weights. Cost: reading the files' headers."""
    kind = getattr(target, "model_type", None)
    return kind in GOES_ON_NORMED and bool(_own_weights(read_weights(folder), target))


def make_mtp(config: Mapping[str, Any], everything: Weights, target: Any) -> MtpDrafter:
    """As `make_dflash`."""
    weights = _own_weights(everything, target)
    if not weights:
        raise ValueError(
            "it holds no MTP layer, which conversions for mlx-lm drop and original checkpoints have"
        )
    numbers = [int(key.split(".")[1]) for key in weights if key.startswith("layers.")]
    depth = 1 + max(numbers, default=0)
    drafter = MtpDrafter(target, depth)
    # Norms of an original checkpoint of these are about 0, and its convolutions are not turned. A
    # conversion may keep the layer as it was: its norms are 0.3 to 0.4 on average, and 0.9 or more
    # after 1 was added (measured by `mtplx`).
    turned = [of.shape[-1] == 1 for key, of in everything.items() if "conv1d.weight" in key]
    means = [of.mean().item() for key, of in weights.items() if key.endswith(_ABOUT_0)]
    is_original = drafter.goes_on_normed and not (all(turned) and min(means, default=1.0) > 0.5)
    # By a convolution that is not turned, mlx-lm tells an original and adds 1 to a layer's norms.
    others = {"model.layers.0.conv1d.weight": mx.zeros((1, 1, 2))} if is_original else {}
    named: dict[str, Array] = {}
    for index in range(depth):
        layer = _part(weights, f"layers.{index}.")
        sanitized = _sanitized(layer, others, target)
        named |= {f"layers.{index}.{key}": of for key, of in sanitized.items()}
    for key, of in weights.items():
        if not key.startswith("layers."):
            named[key] = of + 1 if is_original and of.ndim == 1 else of
    quantization = config.get("mtplx_mtp_quantization") or config.get("quantization")
    fill(drafter, named, quantization)
    return drafter


def _own_weights(weights: Mapping[str, Array], target: Any) -> dict[str, Array]:
    """The layer's weights of a checkpoint, those outside of `layers.N.` by our names; or {}."""
    prefix = re.compile(r"(?:.*\.)?mtp(?:_layers\.0)?\.(.*)")  # the longer one in `speculators`
    found = {m[1]: of for key, of in weights.items() if (m := prefix.fullmatch(key))}
    after = _part(weights, f"model.layers.{len(target.layers)}.")
    if "eh_proj.weight" in after:
        found = after
    elif {"fc.weight", "model.eh_proj.weight"} & weights.keys():  # a folder that holds it alone
        found = {re.sub(r"^model\.(mtp_block\.)?", "", key): of for key, of in weights.items()}
    return renamed(found, _OTHER_NAMES)


def _part(weights: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The weights whose names have a prefix, without it."""
    return {key.removeprefix(prefix): of for key, of in weights.items() if key.startswith(prefix)}


def _sanitized(
    layer: Mapping[str, Array], others: Mapping[str, Array], target: Any
) -> dict[str, Array]:
    """A layer's weights by mlx-lm's names. others: what tells `sanitize` what it reads."""
    last = f"layers.{len(target.layers) - 1}."
    read = {f"model.{last}{key}": of for key, of in layer.items()} | dict(others)
    if hasattr(target, "sanitize"):
        read = target.sanitize(read)
    return {key.partition(last)[2]: of for key, of in read.items() if last in key}
