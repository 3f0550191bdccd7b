"""Gemma 4's assistants: layers that attend to the target's own keys and values.

They have no cache. Each step reads the embedding of an id beside what goes into the target's head
for the id before, or the output of the step before, always at the position of the last committed
id. The layers see the keys and values of the target's last layer of their kind.
Source: the published layout of Gemma 4's assistants, and `mlx-vlm` 0.7.10, which
`lab/tests/test_gemma4_parity.py` compares with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from mlx_lm.models.gemma4_text import DecoderLayer, ModelArgs

from tokalign.errors import IncompatibleError
from tokalign.runtime.mlx.beam_search import BeamSession, State
from tokalign.runtime.mlx.published_drafter import Weights, fill, renamed
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.short_head import among_all
from tokalign.runtime.mlx.trained_drafter import TargetEnds, TrainedDrafter
from tokalign.runtime.mlx.tree_attention import RowPositions, with_row_positions
from tokalign.runtime.mlx.window_cache import WindowCache
from tokalign.runtime.rounds import Array
from tokalign.tables.drafter_config import StateShape
from tokalign.tables.drafter_formats import TARGETS, DrafterFormat
from tokalign.tokenizer.vocabulary import TargetId

Seen = Mapping[str, tuple[Array, Array]]
"""By kind of layer: keys and values f[1, heads, positions, dimension] that a step sees."""


class OrderedHead(nn.Module):  # type: ignore[misc]
    """Logits of the ids in the most probable of some equal groups of ids alone. looked_at: how many
    groups that is of `count`. Raises: ValueError."""

    def __init__(self, args: ModelArgs, count: int, looked_at: int) -> None:
        super().__init__()
        if not 0 < looked_at <= count or args.vocab_size % count:
            raise ValueError(f"it has a head over {looked_at} of {count} groups of ids")
        self._count, self._looked_at = count, looked_at
        self.centroids = nn.Linear(args.hidden_size, count, bias=False)
        self.token_ordering = mx.zeros((args.vocab_size,), mx.int32)

    def __call__(self, x: Array, embedding: Any) -> Array:
        """f[n, width] -> f[n, vocabulary], -inf for other ids."""
        best = mx.argpartition(-self.centroids(x), self._looked_at - 1)[:, : self._looked_at]
        ids = self.token_ordering.reshape(self._count, -1)[best].reshape(len(x), -1)
        logits = (embedding(ids) @ x[:, :, None]).squeeze(-1)
        return among_all(logits, ids, self.token_ordering.size)


class Gemma4Assistant(TrainedDrafter):
    """The network. config: its `config.json`. Raises: IncompatibleError for another target; what
    mlx-lm raises for a garbled configuration."""

    def __init__(self, config: Mapping[str, Any], target: Any) -> None:
        super().__init__()
        shape = StateShape.from_json(config)
        text, width = config["text_config"], config["backbone_hidden_size"]
        args = ModelArgs.from_dict({**text, "num_kv_shared_layers": text["num_hidden_layers"]})
        if getattr(target, "model_type", None) not in TARGETS[DrafterFormat.GEMMA_4]:
            raise IncompatibleError(
                f"the assistant is for a Gemma 4, and this is a {target.model_type} model; give "
                "its own target"
            )
        self._ends = TargetEnds.of(target)
        self._ends.require_fit(shape)
        having_keys = [index for index, of in enumerate(target.layers) if of.self_attn.has_kv]
        self._last = {target.layers[index].layer_type: index for index in having_keys}
        self.pre_projection = nn.Linear(2 * width, args.hidden_size, bias=False)
        self.layers = [DecoderLayer(args, index) for index in range(args.num_hidden_layers)]
        known = {_kind_and_width(target.layers[index]) for index in self._last.values()}
        if not known.issuperset(map(_kind_and_width, self.layers)):
            raise IncompatibleError(
                "the assistant has layers of a kind that this target does not have; give its own "
                "target"
            )
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_projection = nn.Linear(args.hidden_size, width, bias=False)
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        if config.get("use_ordered_embeddings"):
            groups = config.get("num_centroids", 2048)
            looked_at = config.get("centroid_intermediate_top_k", 32)
            self.masked_embedding = OrderedHead(args, groups, looked_at)
        elif not config.get("tie_word_embeddings", True):
            self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def session(self, target: TargetModelSession) -> AssistantSession:
        return AssistantSession(self, target)

    def read(self, ids: Array, states: Array, seen: Seen) -> tuple[Array, Array]:
        """Ids i[n] beside states f[n, width] -> the next states and logits f[n, vocabulary]; rows
        do not see each other."""
        embedded = (self._ends.embed(ids) * self._ends.embed_scale).astype(states.dtype)
        x = self.pre_projection(mx.concatenate([embedded, states], axis=-1))[None]
        for layer in self.layers:
            x, *_ = layer(x, shared_kv=seen[layer.layer_type], offset=0)
        x = self.norm(x[0])
        if "masked_embedding" in self:
            logits = self.masked_embedding(x, self.embed_tokens)
        else:
            logits = self.unembed(x)
        return self.post_projection(x), logits

    def seen(self, layers: Sequence[Any]) -> Seen:
        """What a step sees of the target's cache. Raises: IncompatibleError for a cache of another
        kind, such as a quantized one."""
        return {kind: _contents(layers[index]) for kind, index in self._last.items()}

    has_head = True


class AssistantSession(BeamSession):
    """An assistant of one request. Its state after some beams is what their next step reads,
    f[beams, width]."""

    def __init__(self, drafter: Gemma4Assistant, target: TargetModelSession) -> None:
        self._positions = RowPositions()
        super().__init__(with_row_positions(drafter, self._positions), target)
        self._position = 0
        self._seen: Seen = {}

    def begin(self, ids: Sequence[TargetId]) -> tuple[State, Array] | None:
        """See `BeamSession`; nothing where no recent pass of the target chose the last id."""
        state = self._target.state_before_last(ids)
        if state is None or self._target.catch_up([*ids], 1) != len(ids) - 1:
            return None
        self._position, self._seen = len(ids) - 1, self._drafter.seen(self._target.layers)
        return self.step((state,), mx.array([ids[-1]], mx.uint32))

    def step(self, state: State, ids: Array) -> tuple[State, Array]:
        self._positions.now = mx.full((len(ids),), self._position)
        states, logits = self._drafter.read(ids, state[0], self._seen)
        return (states,), logits


def _contents(layer: Any) -> tuple[Array, Array]:
    """Keys and values of a layer's cache that a row after it sees."""
    if type(layer) is WindowCache:
        return layer.before_next()
    if type(layer) is not KVCache:
        raise IncompatibleError(
            f"an assistant cannot read a {type(layer).__name__}; leave kv_bits out"
        )
    return layer.keys[..., : layer.offset, :], layer.values[..., : layer.offset, :]


def make_assistant(config: Mapping[str, Any], weights: Weights, target: Any) -> Gemma4Assistant:
    """As `make_dflash`."""
    drafter = Gemma4Assistant(config, target)
    for layer in drafter.layers:  # a rotary embedding looks at its base when it is used
        mx.eval(layer.self_attn.rope(mx.zeros((1, 1, layer.self_attn.head_dim))))
    no_head = {r"^lm_head\.weight$": ""} if config.get("tie_word_embeddings", True) else {}
    named = renamed(weights, no_head | {r"^model\.": ""})
    fill(drafter, named, config.get("quantization"))
    if "masked_embedding" in drafter:
        order = drafter.masked_embedding.token_ordering
        if bool(mx.any((order < 0) | (order >= order.size))):
            raise ValueError("it orders ids that it does not have")
    return drafter


def _kind_and_width(layer: Any) -> tuple[str, int]:
    """What its keys have in common with those that it sees."""
    return layer.layer_type, layer.self_attn.head_dim
