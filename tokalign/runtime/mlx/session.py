"""Language models on MLX: sessions that keep their caches in step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import mlx.core as mx
import numpy as np
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.cache import (
    can_trim_prompt_cache,
    make_prompt_cache,
    trim_prompt_cache,
)
from numpy.typing import NDArray

from tokalign.errors import CacheError, ContextLengthError
from tokalign.runtime.interfaces import Shortlist, Waiting
from tokalign.runtime.mlx.busy import BusyTime
from tokalign.runtime.mlx.tree_attention import can_branch, find_ropes, tree_rows
from tokalign.runtime.proposal import Array
from tokalign.tables.token_tree import TokenTree

P = ParamSpec("P")
T = TypeVar("T")

_SINGLE_PASS = 32
"""Up to this many new positions go through in one pass, even if only the last logits are wanted."""

_PASSES_PER_CLEANUP = 256
"""How often mlx's pool of freed buffers is emptied, as in mlx-lm's generate_step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How the key-value cache is filled and kept; mlx-lm's flags and defaults.

    kv_bits: None keeps it in the model's own precision; else it is quantized behind position
    `quantized_kv_start`.
    """

    prefill_step_size: int = 2048
    kv_bits: int | None = None
    kv_group_size: int = 64
    quantized_kv_start: int = 5000


def _timed(
    method: Callable[Concatenate[ModelSession, P], T],
) -> Callable[Concatenate[ModelSession, P], T]:
    """Counts the time a session's method takes among its `seconds`.

    What a pass leaves behind for the memory allocator is freed within.
    """

    @wraps(method)
    def timed(session: ModelSession, /, *args: P.args, **kwargs: P.kwargs) -> T:
        session._busy.begin()
        try:
            return method(session, *args, **kwargs)
        finally:
            session._busy.end()

    return timed


class ModelSession:
    """A model with its cache. It is given whole contexts and rewinds by itself.

    model: an mlx-lm model; `model(ids i[1, n], cache=cache)` gives logits f[1, n, vocabulary].
    cache: a cache to go on with, whose content so far stays untouched in front of every context.
    rewinds: whether the cache will have to be trimmed; only plain decoding does without.
    Raises: CacheError if it has to be and cannot.
    """

    def __init__(
        self,
        model: Any,
        options: CacheOptions | None = None,
        *,
        cache: list[Any] | None = None,
        rewinds: bool = True,
    ) -> None:
        self._model = model
        self._options = options or CacheOptions()
        self._cache: list[Any] = make_prompt_cache(model) if cache is None else cache
        self._held: list[int] = []  # the ids in the cache
        self._ropes = find_ropes(model)
        self._unread: list[Array] = []  # ids behind them that the host has not seen yet
        self.passes = self.rows = self.barred = 0
        self._busy = BusyTime()
        self.context_length = _context_length(model)
        if rewinds:
            self._require_trimmable()
            # A rotating cache forgets once it is full, and from then on cannot be rewound.
            sizes = [c.max_size - 1 for c in self._cache if getattr(c, "max_size", None)]
            self.context_length = min([self.context_length, *sizes])

    @property
    def seconds(self) -> float:
        """See `interfaces.Session`."""
        return self._busy.seconds

    @_timed
    def logits(self, ids: Sequence[int], last: int = 1) -> Array:
        """Logits f[last, vocabulary] of the last `last` positions of `ids`, lazily.

        What the cache already holds of `ids` is not computed again, except for those positions.
        """
        ids = list(ids)
        kept = self._keep(ids, last)
        self._held = ids
        logits = self._forward(mx.array(ids[kept:], dtype=mx.uint32))[-last:]
        self.passes += 1
        self.rows += len(ids) - kept
        return logits

    @property
    def can_branch(self) -> bool:
        """See `interfaces.Session`."""
        return can_branch(self._ropes, self._cache)

    @_timed
    def tree(self, ids: Sequence[int], tree: TokenTree) -> Array:
        """See `interfaces.Session`."""
        chain = tree.ids[: tree.chain_length]
        context = list(ids)
        kept = self._keep(context, 1)
        tokens = [*context[kept:], *tree.ids]
        with tree_rows(self._ropes, self._cache, len(tokens), tree):
            logits = self._forward(mx.array(tokens, dtype=mx.uint32))[-1 - len(tree) :]
        self._trim(len(tree) - len(chain))
        self._held = [*context, *chain]
        self.passes += 1
        self.rows += len(tokens)
        return logits

    @_timed
    def feed(self, token: Array) -> Array:
        """See `interfaces.Session`."""
        self._unread.append(token)
        logits = self._forward(token)
        self.passes += 1
        self.rows += 1
        return logits

    @_timed
    def start(self, *arrays: Array) -> None:
        """See `interfaces.Session`."""
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]

    @_timed
    def read(self, array: Array) -> list[int]:
        """See `interfaces.Session`."""
        return cast(list[int], array.tolist())

    @_timed
    def draft(
        self, ids: Sequence[int], steps: int, mask: Array | None = None
    ) -> Waiting[list[int]]:
        """See `interfaces.Session`."""
        if len(ids) + steps > self.context_length:
            return list
        row = self.logits(ids)
        drafted = [_likeliest(row, mask)]
        barred = [] if mask is None else [mx.argmax(row, axis=-1) != drafted[-1]]
        while len(drafted) < steps:
            row = self.feed(drafted[-1])
            drafted.append(_likeliest(row, mask))
            if mask is not None:
                barred.append(mx.argmax(row, axis=-1) != drafted[-1])
        results = mx.concatenate([*drafted, *barred])
        self.start(results)

        def ids_drafted() -> list[int]:
            found = cast(list[int], results.tolist())
            self.barred += sum(found[steps:])
            return found[:steps]

        return self._waiting(ids_drafted)

    @_timed
    def shortlist(
        self,
        ids: Sequence[int],
        back: int,
        allowed: Callable[[], Sequence[NDArray[np.uint32]]],
        count: int,
    ) -> Waiting[list[Shortlist]]:
        """See `interfaces.Session`."""
        if len(ids) >= self.context_length:
            return list
        rows = self.logits(ids, last=back + 1).astype(mx.float32)
        logprobs = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
        self.start(logprobs)
        # The row with no id taken back is the last one.
        best = [_best(logprobs[~j], among, count) for j, among in enumerate([None, *allowed()])]
        tail = mx.array(list(ids[len(ids) - back :]), dtype=mx.uint32)
        kept = logprobs[mx.arange(back), tail]
        values = mx.concatenate([*(of for _, of in best), kept])
        chosen = mx.concatenate([listed for listed, _ in best])
        self.start(chosen, values)
        sizes = [of.shape[0] for _, of in best]
        return self._waiting(lambda: _shortlists(chosen, values, sizes))

    def mask(self, allowed: NDArray[np.bool_]) -> Array:
        """See `interfaces.Session`."""
        return mx.array(np.where(allowed, 0, -np.inf).astype(np.float32))

    def settle(self, ids: Sequence[int]) -> None:
        """Have the cache hold exactly `ids`, for whoever goes on with it."""
        self._learn_unread()
        ids = list(ids)
        kept = common_prefix(ids, self._held)
        self._trim(len(self._held) - kept)
        self._held = ids
        self._prefill(ids, kept, len(ids))

    def require_room(self, prompt_tokens: int) -> None:
        """Raises: ContextLengthError if a prompt leaves no room for a single token behind it."""
        if prompt_tokens >= self.context_length:
            raise ContextLengthError(prompt_tokens, self.context_length)

    def _waiting(self, read: Waiting[T]) -> Waiting[T]:
        """`read`, once; the time from now until it has returned is the passes'."""
        self._busy.begin()

        def wait() -> T:
            try:
                return read()
            finally:
                self._busy.end()

        return wait

    # -- the cache ---------------------------------------------------------------------------------

    def _keep(self, ids: list[int], last: int) -> int:
        """Rewind to what the cache shares with `ids` and fill in what is long; how many it holds.

        The last `last` positions are never among them: their logits are still to be computed.
        """
        self._learn_unread()
        kept = min(common_prefix(ids, self._held), len(ids) - last)
        self._trim(len(self._held) - kept)
        self._held = ids[:kept]
        if len(ids) - kept > max(last, _SINGLE_PASS):
            kept = self._prefill(ids, kept, len(ids) - last)
        return kept

    def _learn_unread(self) -> None:
        """Read ids that were fed while still computing; by now they are there."""
        if self._unread:
            self._held += cast(list[int], mx.concatenate(self._unread).tolist())
            self._unread.clear()

    def _trim(self, count: int) -> None:
        if count > 0:
            self._require_trimmable()  # else trim_prompt_cache would silently do nothing
            trim_prompt_cache(self._cache, count)

    def _require_trimmable(self) -> None:
        if not can_trim_prompt_cache(self._cache):
            kinds = sorted({type(c).__name__ for c in self._cache if not c.is_trimmable()})
            raise CacheError(
                f"this model keeps its context in {', '.join(kinds)}, which cannot be rewound "
                "after a rejected guess; use --method plain, or another model"
            )

    def _prefill(self, ids: list[int], begin: int, end: int) -> int:
        """Fill the cache with ids[begin:end]; their logits are never computed."""
        step = self._options.prefill_step_size
        for at in range(begin, end, step):
            self._forward(mx.array(ids[at : min(at + step, end)], dtype=mx.uint32))
            mx.eval([c.state for c in self._cache])
            mx.clear_cache()
        return end

    def _forward(self, tokens: Array) -> Array:
        logits = self._model(tokens[None], cache=self._cache)[0]
        self._quantize_cache()
        if self.passes % _PASSES_PER_CLEANUP == 0:
            mx.clear_cache()
        return logits

    def _quantize_cache(self) -> None:
        options = self._options
        try:
            maybe_quantize_kv_cache(
                self._cache,
                quantized_kv_start=options.quantized_kv_start,
                kv_group_size=options.kv_group_size,
                kv_bits=options.kv_bits,
            )
        except (ValueError, NotImplementedError) as error:
            reason = str(error).partition(". ")[0] or type(error).__name__
            raise CacheError(
                f"a cache of this model cannot be quantized to {options.kv_bits} bits in groups of "
                f"{options.kv_group_size} ({reason}); choose another --kv-group-size, or leave "
                "--kv-bits out"
            ) from error


def common_prefix(left: list[int], right: list[int]) -> int:
    """How many leading ids agree. Cost: a bisection over slices, about 1 µs per 1,000 ids."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return bisect_right(range(1, shorter), False, key=lambda n: left[:n] != right[:n])


def _shortlists(chosen: Array, values: Array, sizes: list[int]) -> list[Shortlist]:
    """Cut up what comes from the device; behind the lists' logprobs are those kept, last first."""
    ids, logprobs = cast(list[int], chosen.tolist()), cast(list[float], values.tolist())
    kept = [0.0, *logprobs[: len(ids) - 1 : -1]]
    ends = list(accumulate(sizes))
    return [
        Shortlist(ids=ids[begin:end], logprobs=logprobs[begin:end], kept=behind)
        for begin, end, behind in zip([0, *ends], ends, kept, strict=False)
    ]


def _best(row: Array, among: NDArray[np.uint32] | None, count: int) -> tuple[Array, Array]:
    """The `count` likeliest ids of a row f[vocabulary], or of some of them; unsorted."""
    ids = None if among is None else mx.array(among)
    values = row if ids is None else row[ids]
    if values.shape[0] > count:
        chosen = mx.argpartition(-values, count)[:count]
        values = values[chosen]
        ids = chosen if ids is None else ids[chosen]
    return (mx.arange(values.shape[0]) if ids is None else ids), values


def _likeliest(row: Array, mask: Array | None) -> Array:
    if mask is not None:
        size = min(row.shape[-1], mask.shape[0])  # models are padded beyond their vocabulary
        row = row[:, :size] + mask[:size]
    return mx.argmax(row, axis=-1)


def _context_length(model: Any) -> int:
    arguments = model.args
    nested = getattr(arguments, "text_config", None) or {}
    length = getattr(arguments, "max_position_embeddings", None)
    length = length or nested.get("max_position_embeddings")
    return int(length) if length else 1 << 30
