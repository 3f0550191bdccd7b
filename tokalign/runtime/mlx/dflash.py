"""DFlash: a block drafter, which gives the distributions of several coming ids in one pass.

Its layers read the outputs of some of the target's layers (`taps.py`) as additional keys and
values, and a block of the last committed id and masks. The ids of a block do not see each other's
choices: each distribution is that of a position, whatever comes between. Embedding and output head
are the target's.
Source: DFlash (z-lab): the published layout of its folders, and `dflash` 0.1.0, which
`lab/tests/test_dflash_parity.py` compares with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from mlx_lm.models.qwen3 import MLP

from tokalign.errors import BundleError, IncompatibleError
from tokalign.runtime.mlx.published_drafter import (
    LayerShape,
    Projections,
    fill,
    layer_fields,
    read_drafter_json,
    read_weights,
    reading_config,
)
from tokalign.runtime.mlx.recurrent_drafter import TargetEnds
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession, top_k
from tokalign.runtime.mlx.taps import KeptRows, taps_of
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.mlx.weights import weight_bytes
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId

FULL, SLIDING = "full_attention", "sliding_attention"

_KNOWN = {
    "block_size",
    "final_logit_softcapping",
    "input_embedding_scale",
    "mask_token_id",
    "output_multiplier",
    "target_layer_ids",
}
"""Keys of `dflash_config`. One that is not among them may change what the network computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig(LayerShape):
    """The shape of a drafter, named as in its `config.json`.

    target_layer_ids: the target's layers whose outputs it reads. block_size: the last committed id
    and the positions that a pass guesses.
    """

    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    final_logit_softcapping: float | None
    input_embedding_scale: float
    output_multiplier: float

    @classmethod
    def from_json(cls, config: dict[str, Any], *, name: str) -> DFlashConfig:
        """Read a `config.json`. Raises: BundleError, with `name`, for one that cannot be run."""
        own = config.get("dflash_config")
        if not isinstance(own, dict):
            raise BundleError(f"{name} is no DFlash drafter: its config has no dflash_config")
        if unknown := sorted(own.keys() - _KNOWN):
            raise BundleError(
                f"{name}: dflash_config has {', '.join(unknown)}, which this version does not run; "
                "DFlash 2 and DSpark drafters are of this kind"
            )
        cap = "final_logit_softcapping"
        with reading_config(name):
            layers = int(config.get("num_hidden_layers", 0))
            made = cls(
                **layer_fields(config, name=name),
                layer_types=tuple(config.get("layer_types") or [FULL] * layers),
                sliding_window=config.get("sliding_window"),
                is_causal=config.get("is_causal"),
                block_size=int(own.get("block_size", config.get("block_size", 16))),
                mask_token_id=int(own["mask_token_id"]),
                target_layer_ids=tuple(map(int, own["target_layer_ids"])),
                num_target_layers=int(config["num_target_layers"]),
                final_logit_softcapping=own.get(cap, config.get(cap)),
                input_embedding_scale=float(own.get("input_embedding_scale", 1.0)),
                output_multiplier=float(own.get("output_multiplier", 1.0)),
            )
        types = made.layer_types
        if len(types) != layers or not set(types) <= {FULL, SLIDING} or not layers:
            raise BundleError(f"{name}: {layers} layers with types {types} cannot be run")
        if SLIDING in types and not made.sliding_window:
            raise BundleError(f"{name}: layers with a sliding window, and no sliding_window")
        if made.block_size < 2 or not made.target_layer_ids:
            raise BundleError(f"{name}: a block of {made.block_size} ids cannot be drafted")
        return made


class ContextKeys:
    """Keys and values of the context in one layer; those of a window are the latest alone.

    begin: the position of the first id that was read; ids before it are not known.
    """

    def __init__(self, begin: int, window: int | None) -> None:
        self.end, self._most = begin, None if window is None else window - 1
        self._cache = KVCache() if window is None else None
        self._keys: Array = None
        self._values: Array = None

    def append(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """f[1, heads, n, dimension] of the next n ids; returns those of all that are known."""
        self.end += keys.shape[2]
        if self._cache is not None:
            found: tuple[Array, Array] = self._cache.update_and_fetch(keys, values)
            return found
        if self._keys is not None:
            keys = mx.concatenate([self._keys, keys], axis=2)
            values = mx.concatenate([self._values, values], axis=2)
        most = self._most or 1
        self._keys, self._values = keys[:, :, -most:], values[:, :, -most:]
        return self._keys, self._values


class DFlashAttention(Projections):
    """Attention of a block over the context and over itself."""

    def __init__(self, config: DFlashConfig, layer_type: str) -> None:
        super().__init__(config)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self._window = config.sliding_window if layer_type == SLIDING else None
        causal = config.is_causal
        self._causal = self._window is not None if causal is None else causal

    def __call__(self, block: Array, context: Array, rope: Any, known: ContextKeys) -> Array:
        """block: f[1, block, width]. context: f[1, n, width], of the ids since the last call."""
        if self._window is not None and context.shape[1] > self._window - 1:
            known.end += context.shape[1] - (self._window - 1)
            context = context[:, 1 - self._window :]
        begin, end = known.end, known.end + context.shape[1]
        queries = rope(self.q_norm(self.split(self.q_proj(block))), offset=end)
        keys, values = known.append(
            rope(self.k_norm(self.split(self.k_proj(context))), offset=begin),
            self.split(self.v_proj(context)),
        )
        mask = self._mask(keys.shape[2], block.shape[1])
        own = rope(self.k_norm(self.split(self.k_proj(block))), offset=end)
        keys = mx.concatenate([keys, own], axis=2)
        values = mx.concatenate([values, self.split(self.v_proj(block))], axis=2)
        return self.attend(queries, keys, values, mask)

    def _mask(self, context: int, block: int) -> Array | None:
        """bool[block, context + block]; None where every row sees everything."""
        if not self._causal and self._window is None:
            return None
        query = context + mx.arange(block)[:, None]
        key = mx.arange(context + block)[None]
        seen = key <= query if self._causal else key >= 0
        if self._window is not None:
            seen = seen & ((key >= context) | (query - key < self._window))
        return seen


class DFlashLayer(nn.Module):  # type: ignore[misc]
    """Attention and a gated MLP, each after a norm and added to its input."""

    def __init__(self, config: DFlashConfig, layer_type: str) -> None:
        super().__init__()
        self.self_attn = DFlashAttention(config, layer_type)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, block: Array, context: Array, rope: Any, known: ContextKeys) -> Array:
        block = block + self.self_attn(self.input_layernorm(block), context, rope, known)
        return block + self.mlp(self.post_attention_layernorm(block))


class DFlashDrafter(TrainedDrafter):
    """The network. The target's embedding and head are no parameters of it.

    Raises: IncompatibleError for a target of another size.
    """

    def __init__(self, config: DFlashConfig, target: Any) -> None:
        super().__init__()
        self.config = config
        self._ends = ends = TargetEnds.of(target)
        if (ends.hidden_size, len(target.layers)) != (config.hidden_size, config.num_target_layers):
            raise IncompatibleError(
                f"the drafter is for a target with {config.num_target_layers} layers of width "
                f"{config.hidden_size}, and this one has {len(target.layers)} of "
                f"{ends.hidden_size}; give its own target"
            )
        inner = getattr(target, "model", target)
        scale = getattr(ends.embed, "embed_scale", getattr(inner, "embed_scale", 1.0))
        self._scale = scale * config.input_embedding_scale
        taps = len(config.target_layer_ids) * config.hidden_size
        self.fc = nn.Linear(taps, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [DFlashLayer(config, kind) for kind in config.layer_types]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._rope = config.rope()

    in_one_pass = True

    def watch(self, model: Any) -> KeptRows:
        """See `TrainedDrafter`: the outputs of some layers."""
        return taps_of(model, self.config.target_layer_ids)

    def session(self, target: TargetModelSession) -> DFlashSession:
        """See `TrainedDrafter`."""
        return DFlashSession(self, target)

    def begin(self, position: int) -> list[ContextKeys]:
        """An empty context, whose first id is at `position`."""
        window = self.config.sliding_window
        kinds = self.config.layer_types
        return [ContextKeys(position, window if kind == SLIDING else None) for kind in kinds]

    def __call__(self, last: int, count: int, taps: Array, known: Sequence[ContextKeys]) -> Array:
        """Logits f[count, vocabulary] of the positions after the committed id `last`.

        count: from 1 to `block_size` - 1. taps: f[n, layers * width], of the ids before `last` that
        `known` does not have yet.
        """
        ids = mx.array([[last, *[self.config.mask_token_id] * count]], dtype=mx.uint32)
        block = self.embedded(ids)
        context = self.context(taps)
        for layer, keys in zip(self.layers, known, strict=True):
            block = layer(block, context, self._rope, keys)
        logits = self._ends.unembed(self.norm(block[:, 1:]))[0] * self.config.output_multiplier
        if cap := self.config.final_logit_softcapping:
            logits = mx.tanh(logits / cap) * cap
        return logits

    @property
    def dtype(self) -> Any:
        """The number format of the target's ends."""
        return self._ends.dtype

    def embedded(self, ids: Array) -> Array:
        """i[..., n] -> f[..., n, width], by the target's embedding."""
        return self._ends.embed(ids) * self._scale

    def context(self, taps: Array) -> Array:
        """f[n, layers * width] -> f[1, n, width], what all layers read of the context."""
        return self.hidden_norm(self.fc(taps.astype(self.norm.weight.dtype)[None]))

    @property
    def step_bytes(self) -> int:
        """How many bytes of weights a pass reads, those of the target's head included."""
        return weight_bytes(self) + self._ends.head_bytes


class DFlashSession:
    """The drafter of one request, beside the target's session, whose taps it reads.

    passes: of the drafter so far. most: ids that it guesses.
    Of a context that a cache brings along, it knows only what the target reads now.
    """

    def __init__(self, drafter: DFlashDrafter, target: TargetModelSession) -> None:
        self._drafter, self._target = drafter, target
        self._known: list[ContextKeys] = []
        self._end = 0  # of what they know
        self.passes, self.most = 0, drafter.config.block_size - 1

    def draft(
        self, ids: Sequence[TargetId], listed: int, sampler: Sampling | None = None
    ) -> list[list[tuple[TargetId, float]]]:
        """For each position after `ids`, the most probable ids and their log-probabilities.

        sampler: predicts the choices of a target that samples (`Sampling.expect`); without one,
        probabilities are the drafter's own. Empty before the target's first pass.
        """
        begin, taps = self._target.take_taps(ids, self._end)
        if taps is None:
            return []
        if begin != self._end or not self._known:
            self._known = self._drafter.begin(begin)
        self._end = len(ids) - 1
        count = self.most
        logits = self._drafter(ids[-1], count, taps, self._known).astype(mx.float32)
        if sampler is None:
            logprobs = logits - logits.logsumexp(axis=-1, keepdims=True)
        else:
            logprobs = sampler.expect(logits, [len(ids) + place for place in range(count)])
        found, values = top_k(logprobs, min(listed, logits.shape[-1]))
        mx.eval(found, values)  # the one wait of a round's drafting
        self.passes += 1
        rows = zip(cast("list[list[TargetId]]", found.tolist()), values.tolist(), strict=True)
        return [
            sorted(zip(of, likely, strict=True), key=itemgetter(1), reverse=True)
            for of, likely in rows
        ]


def is_dflash(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a drafter of this kind."""
    return "dflash_config" in config


def load_dflash(folder: Path, target: Any) -> DFlashDrafter:
    """Read the drafter in a folder, for a loaded target, whose number format it takes.

    Raises: BundleError for one that cannot be read or run; IncompatibleError for another target.
    """
    config = DFlashConfig.from_json(read_drafter_json(folder), name=str(folder))
    taps_of(target, config.target_layer_ids)
    drafter = DFlashDrafter(config, target)
    weights = read_weights(folder)
    fill(drafter, weights, config.quantization, drafter.dtype, name=str(folder))
    return drafter
