"""What is asked of a drafter that was trained for one target, whatever its format, and what it uses
of the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.mlx.hidden_states import as_head, head_of
from tokalign.runtime.mlx.short_head import ShortHead, frequent_rows
from tokalign.runtime.mlx.taps import KeptRows, state_rows
from tokalign.runtime.mlx.weights import embedding_of, weight_bytes
from tokalign.runtime.rounds import Array
from tokalign.tables.drafter_config import DrafterShape, StateShape
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.session import TargetModelSession

_FORM = ("group_size", "bits", "mode")
_AT_ONCE = 1 << 13  # rows of a matrix that are compared
_ROUNDED = 5e-4
"""By which share of its square a row is off that was in another format of 16 bits before (up to
1.2e-4 of Qwen2.5's in 3 to 8 bits)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEnds:
    """The target's embedding and output head; a drafter uses both as they are.

    embed: ids i[...] -> f[..., H]. unembed: f[..., H] -> logits f[..., V]. head_rows: ids i[n] ->
    the rows f[n, H] of the matrix of `head`, that gives their logits.
    embed_scale: what a Gemma 4 multiplies its embeddings by.
    """

    embed: Callable[[Array], Array]
    embed_scale: float
    unembed: Callable[[Array], Array]
    head: Any
    head_rows: Callable[[Array], Array]
    hidden_size: int
    vocabulary_size: int
    dtype: Any

    @classmethod
    def of(cls, model: Any) -> TargetEnds:
        """The matrices of an mlx-lm model, without the factors of its embeddings and logits.
        Raises: as `head_of`."""
        embedding, head = embedding_of(model), head_of(model)
        # Rows are taken of a linear layer as of an embedding, quantized or not.
        rows = nn.QuantizedEmbedding.__call__ if "scales" in head else nn.Embedding.__call__
        hidden = embedding(mx.array([0]))
        scales = (part.embed_scale for part in model.modules() if hasattr(part, "embed_scale"))
        return cls(
            embed=embedding,
            embed_scale=float(next(scales, 1.0)),
            unembed=as_head(head),
            head=head,
            head_rows=partial(rows, head),
            hidden_size=int(hidden.shape[-1]),
            vocabulary_size=int(head.weight.shape[0]),
            dtype=hidden.dtype,
        )

    def require_fit(self, shape: DrafterShape | StateShape, layers: int = 0) -> None:
        """Raises: IncompatibleError for the shape of a drafter of another target."""
        shape.require_fit(layers=layers, width=self.hidden_size, vocabulary=self.vocabulary_size)

    def embeds(self, weight: Array) -> bool:
        """Whether a matrix f[V, H] is the embedding, but for its number format."""
        return self._is_copy(weight, self.embed, self.embed)

    def unembeds(self, weight: Array) -> bool:
        """The same of the head."""
        return self._is_copy(weight, self.head, self.head_rows)

    def _is_copy(self, weight: Array, part: Any, rows: Callable[[Array], Array]) -> bool:
        """Compares all rows, as one of them may have been trained, in the format of `part`."""
        if weight.shape != (self.vocabulary_size, self.hidden_size):
            return False
        is_quantized = "scales" in part
        form = {name: getattr(part, name) for name in _FORM if is_quantized}
        for begin in range(0, len(weight), _AT_ONCE):
            theirs = weight[begin : begin + _AT_ONCE]
            if is_quantized:
                theirs = mx.dequantize(*mx.quantize(theirs, **form), **form)
            theirs = theirs.astype(mx.float32)
            own = rows(mx.arange(begin, begin + len(theirs))).astype(mx.float32)
            off = mx.square(own - theirs).sum(-1) / mx.square(theirs).sum(-1)
            if mx.any(off > _ROUNDED).item():
                return False
        return True


class TrainedDrafter(nn.Module, ABC):  # type: ignore[misc]
    """A network that guesses from what its target computed. The target's ends are not part of it.
    in_one_pass: whether a pass guesses all the ids of a draft, not one more."""

    in_one_pass = False
    _ends: TargetEnds

    def watch(self, model: Any) -> KeptRows:
        """Keep what it reads of the passes of its target, such as the last hidden states. Raises:
        IncompatibleError."""
        return state_rows(model)

    @abstractmethod
    def session(self, target: TargetModelSession) -> DrafterSession:
        """Itself for one request, beside the target's session, which was opened with `watch`."""

    def new_cache(self, position: int) -> list[Any]:
        """An empty cache of its own, if it has one, of a text that is known from `position` on."""
        return []

    def layers_after(self, watched: Array) -> list[Any]:
        """A cache of its own that has read what `watch` keeps of an id, lazy, if it has one."""
        return []

    def short_session(
        self, target: TargetModelSession, ids: NDArray[np.uint32] | None
    ) -> DrafterSession:
        """The same with the target's head shortened to these ids, as far as it has no other."""
        rows = None if self.has_head or ids is None else frequent_rows(target.model, ids)
        if rows is None:
            return self.session(target)
        twin, head = copy(self), ShortHead(rows)
        twin._ends = replace(self._ends, unembed=head)
        session = twin.session(target)
        session.head = head
        return session

    def unembed(self, x: Array) -> Array:
        """f[..., width] -> logits of its head, or of the target's."""
        if "lm_head" in self:
            return self.lm_head(x)
        if self.has_head:
            return self.embed_tokens.as_linear(x)
        return self._ends.unembed(x.astype(self._ends.dtype))

    @property
    def dtype(self) -> Any:
        """The number format of the target's ends."""
        return self._ends.dtype

    @property
    def has_head(self) -> bool:
        """Whether its logits do not come from the target's head."""
        return "lm_head" in self

    @property
    def step_bytes(self) -> int:
        """How many bytes of weights a pass reads, those of the target's head included."""
        return weight_bytes(self) + (0 if self.has_head else weight_bytes(self._ends.head))


class DrafterSession:
    """A drafter of one request, which goes on from the latest pass of the target's session. That
    one was opened with `watch`.

    passes: of the drafter so far. head: its own, of its text.
    Of a context that a cache brings along, it knows only what the target reads now.
    """

    passes = 0
    head: ShortHead | None = None

    def __init__(self, drafter: Any, target: TargetModelSession) -> None:
        self._drafter, self._target = drafter, target
        self._cache: list[Any] = []
        self._end = 0  # of what this has read

    def _unread(self, ids: Sequence[TargetId]) -> Array | None:
        """What `watch` has kept of the ids that the cache lacks, f[n, ...], but for the last one;
        None before the target's first pass. Where ids between are not known, the cache is new."""
        begin, rows = self._target.take_taps(ids, self._end)
        if rows is not None:
            if begin != self._end or not self._cache:
                self._cache = self._drafter.new_cache(begin)
            self._end = len(ids) - 1
        return rows
