"""DFlash, DFlash 2 and DSpark: drafters that give the distributions of several ids in one pass.

Their layers read the outputs of some of the target's layers (`taps.py`) as additional keys and
values, and a block of the last committed id and masks. The ids of a block do not see each other's
choices: each distribution is that of a position, whatever comes between. DFlash 2 and DSpark have a
head that makes it one after a certain id: that of a Markov head (DSpark) on all ids, that of a
candidate selector (DFlash 2) on the position's candidates. Embedding and output head are the
target's, or their own.
Source: DFlash (z-lab), DFlash 2 and DSpark (DeepSpec): the published layouts, and `dflash` 0.1.0,
`speculators` 0.9.0 and `mlx-dspark` 0.20.3, with which `lab/tests/test_dflash_parity.py` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.llama import Attention, TransformerBlock

from tokalign.runtime.mlx.dflash_session import DFlashSession
from tokalign.runtime.mlx.published_drafter import TapsDrafter, Weights, by_head
from tokalign.runtime.mlx.session import TargetModelSession, top_k
from tokalign.runtime.mlx.short_head import among_all
from tokalign.runtime.mlx.window_cache import WindowCache
from tokalign.runtime.rounds import UNBOUNDED, Array
from tokalign.tables.dflash_config import DFlashConfig


class GroupedConvolution(nn.Module):  # type: ignore[misc]
    """A causal convolution over the slots of a block, before and after a layer's part. A
    coefficient is a learned one for its channel, and what the input adds for its group."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        width, taps = config.hidden_size, config.conv_kernel_size
        self.base_kernel = mx.zeros((2, taps, width))
        self.kernel_projection = nn.Linear(
            width, 2 * taps * (width // config.conv_group_size), bias=False
        )
        self._taps, self._group = taps, config.conv_group_size

    def __call__(self, x: Array, part: Callable[[Array], Array]) -> Array:
        """What a part of a layer makes of x f[1, block, width], both convolved."""
        added = self.kernel_projection(x).reshape(*x.shape[:2], 2, self._taps, -1, 1)
        output = part(self._convolved(x, added[:, :, 0], 0))
        return self._convolved(output, added[:, :, 1], 1)

    def _convolved(self, x: Array, added: Array, side: int) -> Array:
        grouped = x.reshape(*x.shape[:2], -1, self._group)
        kernel = self.base_kernel[side].reshape(self._taps, -1, self._group) + added
        output = kernel[:, :, 0] * grouped
        for tap in range(1, self._taps):
            earlier = mx.pad(grouped[:, :-tap], [(0, 0), (tap, 0), (0, 0), (0, 0)])
            output = output + kernel[:, :, tap] * earlier
        return output.reshape(x.shape)


class MarkovHead(nn.Module):  # type: ignore[misc]
    """Adds a matrix of low rank to the logits, the row of the id before."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.draft_vocab_size, bias=False)

    def after(self, hidden: Array, logits: Array, before: Array) -> Array:
        """Logits f[n, m, vocabulary] of n positions after the ids i[n, m] of the target. hidden:
        f[n, width]. logits: f[n, vocabulary] whatever comes before."""
        return logits[:, None] + self.markov_w2(self.markov_w1(before))


class CandidateSelector(nn.Module):  # type: ignore[misc]
    """Scores the most probable ids of a position by the id before; others get -inf."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        rank, size = config.selector_rank, config.vocab_size
        self.predecessor_codebook = mx.zeros((size, rank))
        self.successor_codebook = mx.zeros((size, rank))
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)
        self._count = min(config.selector_top_k, size)

    def after(self, hidden: Array, logits: Array, before: Array) -> Array:
        candidates, _ = top_k(logits, self._count)  # a GPU would sort the whole vocabulary
        context = self.predecessor_codebook[before] * self.hidden_projection(hidden)[:, None]
        links = context @ self.successor_codebook[candidates].swapaxes(1, 2)
        scores = mx.take_along_axis(logits, candidates, axis=-1)[:, None] + links
        return among_all(scores, candidates[:, None], logits.shape[-1])


class DFlashAttention(Attention):  # type: ignore[misc]
    """Attention of a block over the context and over itself."""

    def __init__(self, config: DFlashConfig, window: int | None) -> None:
        super().__init__(config)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.is_causal = window is not None if config.is_causal is None else config.is_causal
        self.window = None if config.whole_window else window
        self.most = UNBOUNDED if window is None else window - (not config.whole_window)

    def __call__(self, block: Array, context: Array, known: WindowCache) -> Array:
        """block: f[1, block, width]. context: f[1, n, width], of the ids since the last call."""
        seen = context[:, -self.most :]
        known.skip(context.shape[1] - seen.shape[1])
        known.update_and_fetch(*self.keys_and_values(seen, known.offset))
        (keys, values), end = known.before_next(), known.offset
        mask = self._mask(keys.shape[2], block.shape[1])
        own_keys, own_values = self.keys_and_values(block, end)
        keys = mx.concatenate([keys, own_keys], axis=2)
        values = mx.concatenate([values, own_values], axis=2)
        output = mx.fast.scaled_dot_product_attention(
            self.queries(block, end), keys, values, scale=self.scale, mask=mask
        )
        return self.o_proj(output.swapaxes(1, 2).flatten(-2))

    def queries(self, x: Array, offset: int | Array) -> Array:
        """f[n, length, width] -> f[n, heads, length, dimension]. offset: of the first, or i[n]."""
        return self.rope(self.q_norm(by_head(self.q_proj(x), self.head_dim)), offset=offset)

    def keys_and_values(self, x: Array, offset: int | Array) -> tuple[Array, Array]:
        """As `queries`, of the heads that share keys and values."""
        keys, values = (by_head(part(x), self.head_dim) for part in (self.k_proj, self.v_proj))
        return self.rope(self.k_norm(keys), offset=offset), values

    def _mask(self, context: int, block: int) -> Array | None:
        """bool[block, context + block]; None where every row sees everything."""
        if not self.is_causal and self.window is None:
            return None
        query = context + mx.arange(block)[:, None]
        key = mx.arange(context + block)[None]
        seen = key <= query if self.is_causal else key >= 0
        if self.window is not None:
            seen = seen & ((key >= context) | (query - key < self.window))
        return seen


class DFlashLayer(TransformerBlock):  # type: ignore[misc]
    """Attention and a gated MLP, each after a norm and added to its input."""

    def __init__(self, config: DFlashConfig, window: int | None) -> None:
        super().__init__(config)
        self.self_attn = DFlashAttention(config, window)
        if config.conv_kernel_size:
            self.attention_conv = GroupedConvolution(config)
            self.mlp_conv = GroupedConvolution(config)

    def __call__(self, block: Array, context: Array, known: WindowCache) -> Array:
        attend = partial(self.self_attn, context=context, known=known)
        block = block + self._part("attention_conv", attend, self.input_layernorm(block))
        return block + self._part("mlp_conv", self.mlp, self.post_attention_layernorm(block))

    def _part(self, convolution: str, part: Callable[[Array], Array], x: Array) -> Array:
        output: Array = self[convolution](x, part) if convolution in self else part(x)
        return output


class DFlashDrafter(TapsDrafter):
    """The network. Raises: IncompatibleError for a target of another size."""

    def __init__(self, config: DFlashConfig, target: Any) -> None:
        super().__init__(config, target)
        width = config.hidden_size
        # `speculators` trains with embeddings as they are stored.
        scale = 1.0 if config.whole_window else self._ends.embed_scale
        self._scale = scale * config.input_embedding_scale
        self.hidden_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.layers = [DFlashLayer(config, window) for window in config.windows]
        if config.markov_rank:
            self.markov_head = MarkovHead(config)
        if config.selector_rank:
            self.candidate_selector = CandidateSelector(config)
        if config.enable_confidence_head:
            markov = config.markov_rank if config.confidence_head_with_markov else 0
            self.confidence_head = {"proj": nn.Linear(width + markov, 1)}

    in_one_pass = True

    def session(self, target: TargetModelSession) -> DFlashSession:
        return DFlashSession(self, target)

    def layers_after(self, watched: Array) -> list[WindowCache]:
        known = self.new_cache(0)
        self.hidden(0, watched, known)
        return known

    def new_cache(self, position: int) -> list[WindowCache]:
        known = [WindowCache(layer.self_attn.most + 1) for layer in self.layers]
        for cache in known:
            cache.skip(position)
        return known

    def hidden(self, last: int, taps: Array, known: Sequence[WindowCache]) -> Array:
        """Hidden states f[guesses, width] of the positions after the committed id `last`.

        taps: f[n, layers * width], of the ids before `last` that `known` does not have yet.
        """
        masks = [self.config.mask_token_id] * (self.config.block_size - 1)
        block = self.embedded(mx.array([[last, *masks]], dtype=mx.uint32))
        context = self.hidden_norm(self.fc(taps.astype(self.norm.weight.dtype)[None]))
        for layer, keys in zip(self.layers, known, strict=True):
            block = layer(block, context, keys)
        return self.norm(block[0, -self.config.guesses :])

    def own_logits(self, hidden: Array, ids: Array = None) -> Array:
        """f[..., width] -> f[..., draft vocabulary], whatever comes before a position; or of ids
        i[n] of the target's head alone, which is cheaper."""
        logits = self.unembed(hidden) if ids is None else hidden @ self._ends.head_rows(ids).T
        logits = logits * self.config.output_multiplier
        if cap := self.config.final_logit_softcapping:
            logits = mx.tanh(logits / cap) * cap
        return logits

    @property
    def links(self) -> Any:
        """What can tell what a position is after a certain id; None without it."""
        return self.get("markov_head", self.get("candidate_selector"))

    def after(self, hidden: Array, logits: Array, before: Array) -> Array:
        """Logits f[n, m, vocabulary of the target] of n positions after the ids i[n, m].

        logits: from `own_logits`.
        """
        return self.among_all(self.links.after(hidden, logits, before))

    def confidence(self, hidden: Array, before: Array) -> Array | None:
        """The log-odds f[n] that guesses of n positions after the ids i[n] are accepted, if those
        before them are; None for a drafter that does not say."""
        if "confidence_head" not in self:
            return None
        if self.config.confidence_head_with_markov:
            hidden = mx.concatenate([hidden, self.markov_head.markov_w1(before)], axis=-1)
        return self.confidence_head["proj"](hidden)[:, 0]


def make_dflash(config: Mapping[str, Any], weights: Weights, target: Any) -> DFlashDrafter:
    """The drafter of a `config.json` and the weights of its folder, for a loaded target."""
    return DFlashDrafter(DFlashConfig.from_json(config), target).filled(weights)
