"""Sessions: passes of a language model over whole contexts and over trees, counted, with its cache
(`cache.py`). The draft model's session can do more (`draft_session.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeAlias, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.errors import ContextLengthError, UsageError
from tokalign.runtime.mlx.cache import ModelCache
from tokalign.runtime.mlx.passes_ahead import AHEAD
from tokalign.runtime.mlx.taps import KeptRows
from tokalign.runtime.mlx.tree_attention import (
    RowPositions,
    can_branch,
    tree_masks,
    with_row_positions,
)
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import UNBOUNDED, Array, Meanwhile, common_prefix
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import Id, TargetId

MOST_READ_AGAIN = 8
"""A round that reads more ids again proposes nothing; it emits one id, so no pass is lost. Without
a bound `qwen3_next` read 3.25 rows a token, with it 2.77 (`lab/results/cache-rows.md`)."""


class PassRows(NamedTuple, Generic[Id]):
    """What one session reads in a pass.

    ids: the context, and a chain after it. begin: the index of the first token to read. tokens: to
    read. wanted: of how many rows, the last ones, the logits are wanted. tree: after `ids`, if it
    is no chain.
    """

    ids: list[Id]
    begin: int
    tokens: list[Id]
    wanted: int
    tree: TokenTree[Id] | None = None


class ModelSession(ModelCache[Id]):
    """A model that is given whole contexts and rewinds its cache by itself.

    cache: as `layers` of `ModelCache`. watch: makes what keeps rows of its passes for a drafter
    (`state_rows`, `taps_of`).
    passes, rows: computed so far, but for filling in long prompts.
    Raises: as `ModelCache`; IncompatibleError for a model whose states cannot be had.
    """

    def __init__(
        self,
        model: Any,
        options: CacheOptions | None = None,
        *,
        cache: list[Any] | None = None,
        rewinds: bool = True,
        watch: Callable[[Any], KeptRows] | None = None,
    ) -> None:
        super().__init__(model, options or CacheOptions(), cache, rewinds=rewinds)
        self._kept = None if watch is None else watch(model)
        self._twin = model if self._kept is None else self._kept.model
        self._positions = RowPositions()
        self.passes = self.rows = 0

    def logits(self, ids: Sequence[Id], last: int = 1) -> Array:
        """Logits f[last, vocabulary] of the last `last` positions of `ids`, lazy. What the cache
        holds of `ids` is not computed again, except for those positions."""
        ids = list(ids)
        assert 0 < last <= len(ids), f"{last} rows of {len(ids)} ids"
        return self.run(self._after(ids, last))

    def reads(self, ids: list[Id], tree: TokenTree[Id]) -> PassRows[Id]:
        """What a pass reads that verifies a tree after `ids`; the cache is made ready for it."""
        if tree.chain_length == len(tree):
            return self._after([*ids, *tree.ids], 1 + len(tree))
        return self._after(ids, 1, tree)

    def proposable(self, ids: Sequence[Id]) -> int:
        """How many ids in a row may be proposed after `ids`, so that they can be taken back."""
        most, quantized_from = self.rewindable - len(ids), self.quantized_from
        # One token at a time, no pass begins before quantization does and ends after it.
        if len(ids) <= quantized_from:
            most = min(most, quantized_from - len(ids))
        return most if self._read_again(ids) <= MOST_READ_AGAIN else 0

    def _read_again(self, ids: Sequence[Id]) -> int:
        """How many of `ids` were read, but go through the model once more in the next pass."""
        marked = self._layers.marked
        if not self._rewinds or marked is None or self._branches or not self._is_whole:
            return 0
        self._read_unread()
        shared = min(common_prefix(list(ids), self._held), len(ids) - 1)
        return 0 if shared == len(self._held) else shared - marked

    def have_read(self, rows: PassRows[Id], taps: Array = None) -> None:
        """A pass has read these rows. taps: of it, if it was another model's."""
        ids, tree = rows.ids, rows.tree
        self.passes += 1
        self.rows += len(rows.tokens)
        if tree is None:
            self._held = ids
            first = len(ids) - rows.wanted + 1
            ids, tree = ids[:first], TokenTree.chain(ids[first:], "")
        else:
            self._branches = ids, tree
        if self._kept is not None:
            if taps is not None:
                self._kept.note(rows.begin, taps)
            self._kept.keep(ids, tree)

    def _after(self, ids: list[Id], last: int, tree: TokenTree[Id] | None = None) -> PassRows[Id]:
        """The last ids, and a tree after them."""
        kept = self.catch_up(ids, last)
        self.quantize()  # which replaces layers, so it comes before their masks are set
        branches = () if tree is None else tree.ids
        return PassRows(ids, kept, [*ids[kept:], *branches], last + len(branches), tree)

    def run(self, rows: PassRows[Id]) -> Array:
        """The wanted logits f[wanted, vocabulary] of a pass, lazy."""
        tokens = self.tokens(rows.tokens)
        with self._changing():
            if rows.tree is None:
                logits = self.forward(tokens, begin=rows.begin)
            else:
                with tree_masks(self.layers, len(rows.tokens), rows.tree) as positions:
                    self._positions.now = mx.array(positions)
                    logits = self.forward(tokens, self._tree_model, begin=rows.begin)
            self.have_read(rows)
        return logits[-rows.wanted :]

    def feed(self, token: Array) -> Array:
        """Logits f[1, vocabulary] after one more token i[1], which may still be computing; lazy."""
        self.quantize()
        with self._changing():
            logits = self.forward(token)
            self.have_fed(token)
        return logits

    def have_fed(self, token: Array, taps: Array = None) -> None:
        """A pass has read one more token i[1]. taps: as of `have_read`."""
        self._unread.append(token)
        self.passes += 1
        self.rows += 1
        if self._kept is not None:
            if taps is not None:
                self._kept.note(UNBOUNDED, taps)
            self._kept.keep_fed(token)

    @cached_property
    def can_branch(self) -> bool:
        return can_branch(self.model, self.layers)

    def tree(self, ids: Sequence[Id], tree: TokenTree[Id], computed: int | None = None) -> Array:
        """Logits after each id of a tree, lazy. The path that the next context goes along is kept.

        computed: how many leading ids of the tree follow `ids` in the cache already; only the rows
        of the others are computed. None computes the row of the last context id, then all others.
        """
        if computed is None:
            return self.run(self._after(list(ids), 1, tree))
        self.quantize()
        tokens = list(tree.ids[computed:])
        return self.run(PassRows(list(ids), len(ids) + computed, tokens, len(tokens), tree))

    @cached_property
    def _tree_model(self) -> Any:
        return with_row_positions(self._twin, self._positions)

    def start(self, *arrays: Array) -> None:
        """Begin computing `arrays` without waiting for them."""
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]

    def start_ahead(self, *arrays: Array) -> None:
        """Begin computing what is read in a later round; the first array tells when it is done."""
        self.start(*arrays)
        AHEAD.begin(self, arrays[0])

    def wait_for_others(self, before: Array | None = None) -> float:
        return AHEAD.wait_for_others(self, before) if AHEAD.passes else 0.0

    def read(self, array: Array) -> list[Id]:
        return cast("list[Id]", array.tolist())

    def require_room(self, prompt_tokens: int) -> None:
        """Raises: ContextLengthError if a prompt leaves no room for a single token after it."""
        if prompt_tokens >= self.context_length:
            raise ContextLengthError(prompt_tokens, self.context_length)

    def require_ids(self, name: str, ids: Sequence[Id]) -> None:
        """Raises: UsageError for an id that the model does not have. name: of the argument."""
        size = self.vocabulary_size
        if ids and not 0 <= min(ids) <= max(ids) < size:
            place = next(i for i, token in enumerate(ids) if not 0 <= token < size)
            raise UsageError(
                f"{name}[{place}] is {ids[place]}, but the model's ids are from 0 to {size - 1}"
            )

    def forward(self, tokens: Array, model: Any = None, *, begin: int = UNBOUNDED) -> Array:
        logits = super().forward(tokens, self._twin if model is None else model, begin=begin)
        if self._kept is not None:
            self._kept.note(begin)
        return logits

    def state_before_last(self, ids: Sequence[Id]) -> Array | None:
        """See `KeptRows.before_last`; None where none are kept."""
        return None if self._kept is None else self._kept.before_last(ids)

    def take_taps(self, ids: Sequence[Id], first: int) -> tuple[int, Array | None]:
        """See `KeptRows.take`. The session was made to watch."""
        assert self._kept is not None
        return self._kept.take(ids, first)

    def top_k(self, logprobs: Array, count: int, *, normalized: bool = True) -> tuple[Array, Array]:
        """The top `count` ids i[rows, count] and their log-probabilities, lazy, unsorted.

        normalized: whether `logprobs` f[rows, vocabulary] are log-probabilities and not logits.
        """
        ids, values = top_k(logprobs, count)
        return ids, values if normalized else values - logprobs.logsumexp(axis=-1, keepdims=True)


TargetModelSession: TypeAlias = ModelSession[TargetId]


def wait(ids: Sequence[TargetId], meanwhile: Meanwhile, *arrays: Array) -> None:
    """Wait for what a drafter computes after `ids`: the one wait of a round's drafting."""
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]
    meanwhile(ids)
    mx.eval(*arrays)


_BLOCK = 128


def top_k(logprobs: Array, count: int) -> tuple[Array, Array]:
    """The top `count` ids i[rows, count] and their log-probabilities of the same shape, unsorted.

    They are in the `count` blocks of ids with the largest maxima. So the maxima are sorted, and the
    ids of those blocks: 0.5 ms for 16 rows of 32,128 ids on a CPU, where sorting all took 17.
    logprobs: f[rows, vocabulary]. Where fewer than `count` ids are possible, ids may repeat, with
    the log-probability -inf.
    """
    rows, width = logprobs.shape
    missing = -width % _BLOCK
    if missing:
        logprobs = mx.pad(logprobs, [(0, 0), (0, missing)], constant_values=-mx.inf)
    blocks = logprobs.reshape(rows, _BLOCK, -1)  # id = block + count of blocks * place
    stride = blocks.shape[-1]
    best = _top(blocks.max(axis=1), count)
    inside = mx.take_along_axis(blocks, best[:, None, :], axis=2).reshape(rows, -1)
    places = _top(inside, count)
    values = mx.take_along_axis(inside, places, axis=-1).astype(mx.float32)
    taken = best.shape[-1]
    ids = places // taken * stride + mx.take_along_axis(best, places % taken, axis=-1)
    return mx.minimum(ids, width - 1), values


def most_probable(logits: Array, count: int) -> tuple[Array, Array]:
    """The `count` most probable ids after rows f[rows, vocabulary], and log-probabilities, lazy."""
    logits = logits.astype(mx.float32)
    ids, values = top_k(logits, count)
    return ids, values - mx.logsumexp(logits, axis=-1, keepdims=True)


def expected_after(model: Any, ids: Sequence[Id], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The `count` most probable ids i[n, count] after each of n ids, and log-probabilities."""
    found, logprobs = most_probable(model(mx.array([ids]))[0], count)
    return np.array(found), np.array(logprobs)


def _top(values: Array, count: int) -> Array:
    """Indices of the `count` largest values of each row; all if there are no more."""
    if values.shape[-1] <= count:
        return mx.broadcast_to(mx.arange(values.shape[-1]), values.shape)
    return mx.argpartition(-values, count - 1, axis=-1)[:, :count]
