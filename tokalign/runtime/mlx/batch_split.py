"""Where a pass that sessions share is split: every session's rows go to its own cache.

There are two ways to split it:

* at attention: the projections are shared, and `scaled_dot_product_attention` is called for each
  session. The module's functions are the model's own, and find another function by that name.
* at modules: a module that is given a cache is called for each session, or for all sessions that
  have equally many rows as a batch where the cache is a recurrent state. Its weights are read more
  often, but it may do what it likes: latent attention, convolutions, positions by offset.

Which way works is found out by a pass of two sessions over three rows, in which an offset is no
number. A model that calculates with it otherwise than to turn rows cannot share passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from types import FunctionType
from typing import Any, NamedTuple, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import ArraysCache, CacheList, make_prompt_cache

from tokalign.runtime.mlx.layers import Layers
from tokalign.runtime.mlx.tree_attention import Offset, RowPositions, RowRope, with_row_positions
from tokalign.runtime.mlx.twins import mixed_in, twin_of
from tokalign.runtime.mlx.weights import once_per_model
from tokalign.runtime.rounds import Array

_ATTENTION = "scaled_dot_product_attention"


class Segments(RowPositions):
    """The rows of the pass under way: whose they are, by the index of the first one after them."""

    def __init__(self) -> None:
        self.ends: list[int] = []

    def split(self, rows: Array, axis: int) -> list[Array]:
        """Every session's rows of an array."""
        return cast("list[Array]", mx.split(rows, self.ends[:-1], axis=axis))

    def bounds(self) -> Iterator[tuple[int, int]]:
        return zip([0, *self.ends], self.ends, strict=False)


class _Masks(NamedTuple):
    """A mask for each session."""

    parts: list[Any]


class SharedLayer:
    """The caches of one layer, of all sessions."""

    def __init__(self, parts: Sequence[Any], segments: Segments) -> None:
        self.parts, self._segments = parts, segments
        self.offset = Offset()

    def make_mask(self, _rows: int, *more: Any, **named: Any) -> _Masks:
        bounds = zip(self.parts, self._segments.bounds(), strict=True)
        return _Masks([part.make_mask(end - at, *more, **named) for part, (at, end) in bounds])

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[list[Any], list[Any]]:
        """Keys and values of every session, as its own cache gives them."""
        split = self._segments.split
        rows = zip(self.parts, split(keys, 2), split(values, 2), strict=True)
        fetched = [part.update_and_fetch(key, value) for part, key, value in rows]
        return [key for key, _ in fetched], [value for _, value in fetched]

    def __getitem__(self, index: int) -> SharedLayer:
        if not isinstance(self.parts[0], CacheList):
            raise TypeError("the states of several sessions are no array")
        return SharedLayer([part[index] for part in self.parts], self._segments)


class _SplitCalls:
    """Mixed into the class of a module that is called for each session.

    _turns: whether it turns rows by their positions, which a batch does not have.
    """

    _segments: Segments
    _turns: bool

    def __call__(self, *args: Any, **named: Any) -> Any:
        call, segments = super().__call__, self._segments  # type: ignore[misc]
        shared = next((v for v in (*args, *named.values()) if isinstance(v, SharedLayer)), None)
        if shared is None:  # a layer of another kind, which keeps nothing
            return call(*args, **named)
        caches, bounds, places = shared.parts, [*segments.bounds()], segments.now
        outputs: list[Any] = [None] * len(bounds)

        def part_of(value: Any, group: Sequence[int], state: Any) -> Any:
            """An argument for some sessions with equally many rows."""
            if isinstance(value, SharedLayer):
                return state
            if isinstance(value, _Masks):
                return value.parts[group[0]]
            if isinstance(value, mx.array) and value.shape[:2] == (1, segments.ends[-1]):
                rows = [value[:, slice(*bounds[i])] for i in group]
                return rows[0] if len(rows) == 1 else mx.concatenate(rows)
            return value

        try:
            for group in _groups(caches, bounds, apart=self._turns):
                segments.now = None if places is None else places[slice(*bounds[group[0]])]
                state = _joined([caches[i] for i in group])
                given = [part_of(value, group, state) for value in args]
                by_name = {name: part_of(value, group, state) for name, value in named.items()}
                output = call(*given, **by_name)
                if len(group) > 1:
                    _part(state, [caches[i] for i in group])
                for i, own in zip(group, _rows_of(output, len(group)), strict=True):
                    outputs[i] = own
        finally:
            segments.now = places
        return _concatenated(outputs)


def _rows_of(output: Any, count: int) -> list[Any]:
    """The output of each item of a batch. It is an array, or a tuple of arrays."""
    if isinstance(output, tuple):
        return [*zip(*[_rows_of(part, count) for part in output], strict=True)]
    return [output[i : i + 1] for i in range(count)]


def _concatenated(outputs: Sequence[Any]) -> Any:
    if isinstance(outputs[0], tuple):
        return tuple(map(_concatenated, zip(*outputs, strict=True)))
    return mx.concatenate([*outputs], axis=1)


def _groups(
    caches: Sequence[Any], bounds: Sequence[tuple[int, int]], *, apart: bool
) -> list[list[int]]:
    """Sessions that are called together: equally many rows, and nothing but filled states."""
    groups: dict[Any, list[int]] = {}
    for i, (cache, (at, end)) in enumerate(zip(caches, bounds, strict=True)):
        is_state = type(cache) is ArraysCache and all(part is not None for part in cache.cache)
        groups.setdefault(end - at if is_state and not apart else (i, -1), []).append(i)
    return list(groups.values())


def _joined(caches: Sequence[Any]) -> Any:
    """Recurrent states as those of a batch; a single cache as it is."""
    if len(caches) == 1:
        return caches[0]
    joined = ArraysCache(len(caches[0].cache))
    states = zip(*[cache.cache for cache in caches], strict=True)
    joined.cache = [mx.concatenate([*parts]) for parts in states]
    return joined


def _part(joined: ArraysCache, caches: Sequence[ArraysCache]) -> None:
    """Give the states of a batch back to where they came from."""
    for i, cache in enumerate(caches):
        cache.cache = [state[i : i + 1] for state in joined.cache]


@once_per_model
def way_to_share(model: Any) -> str | None:
    """Where a shared pass is split: at "attention" or at "modules"; None where it cannot be, so
    that sessions of this model cannot share passes."""
    if not isinstance(model, nn.Module):
        return None
    for way in ("attention", "modules"):
        segments = Segments()
        segments.ends, segments.now = [2, 3], mx.array([0, 1, 0])
        caches = [make_prompt_cache(model) for _ in segments.ends]
        for layers in caches:
            Layers(layers).open()
        shared = [SharedLayer(of, segments) for of in zip(*caches, strict=True)]
        twin = shared_twin(model, segments, at_attention=way == "attention")
        try:
            logits = twin(mx.zeros((1, 3), mx.uint32), cache=shared)
        except (TypeError, ValueError, AttributeError, IndexError):
            continue
        if not bool(mx.isnan(logits).any()):
            return way
    return None


def shared_twin(model: Any, segments: Segments, *, at_attention: bool) -> Any:
    """A twin of a model whose passes are split at attention where they can be, or at modules."""

    def replace(module: Any) -> Any:
        if not _is_given_a_cache(module) or any(map(_is_given_a_cache, _within(module))):
            return None
        attending = _attending(type(module)) if at_attention else {}
        if not attending:
            turns = any(isinstance(inner, RowRope) for inner in _within(module))
            return mixed_in(_SplitCalls, module, _segments=segments, _turns=turns)
        names = {_ATTENTION: _attention_of(segments)}
        own = {n: _with_names(function, names) for n, function in attending.items()}
        return mixed_in(type("Split", (), own), module)

    return twin_of(with_row_positions(model, segments), replace)


def _is_given_a_cache(module: Any) -> bool:
    return isinstance(module, nn.Module) and "cache" in signature(type(module).__call__).parameters


def _within(module: Any) -> list[Any]:
    return [inner for _, inner in module.named_modules() if inner is not module]


def _attending(kind: type) -> dict[str, FunctionType]:
    """The functions of a class that attend."""
    return {
        name: function
        for of in reversed(kind.__mro__)
        for name, function in vars(of).items()
        if isinstance(function, FunctionType) and _ATTENTION in function.__code__.co_names
    }


def _with_names(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """A function that finds other globals by these names."""
    scope = {**function.__globals__, **names}
    code, closure = function.__code__, function.__closure__
    other = FunctionType(code, scope, function.__name__, function.__defaults__, closure)
    other.__kwdefaults__ = function.__kwdefaults__
    return other


def _attention_of(segments: Segments) -> Callable[..., Array]:
    """`scaled_dot_product_attention` for each session, of its own cache."""

    def attend(
        queries: Array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, **more: Any
    ) -> Array:
        split = segments.split(queries, 2)
        own = [None] * len(split) if cache is None else cache.parts  # a layer that shares its keys
        parts = zip(split, keys, values, own, mask.parts, strict=True)
        attended = [
            scaled_dot_product_attention(
                query, key, value, cache=own, scale=scale, mask=seen, **more
            )
            for query, key, value, own, seen in parts
        ]
        return mx.concatenate(attended, axis=2)

    return attend
