"""A model with its KV cache, kept in step with the contexts that it is given.

It knows which ids a cache holds, so a session can hand over whole contexts: what they share with
the cache is not computed again. Read next: `session.py`, which runs passes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from time import perf_counter
from typing import Any, Generic, cast

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from tokalign.errors import CacheError, IncompatibleError
from tokalign.runtime.mlx.layers import (
    Layers,
    cut_back,
    least_positions,
    positions,
    remember,
    remembered,
)
from tokalign.runtime.mlx.pace import pace_of
from tokalign.runtime.mlx.quantized_cache import cannot_be_quantized, is_quantized, quantize
from tokalign.runtime.mlx.tree_attention import keep_rows
from tokalign.runtime.mlx.weights import context_length, embedding_of, even_length, vocabulary_size
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import UNBOUNDED, Array, common_prefix
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import Id

_SINGLE_PASS = 32
"""Most new positions that go through in one pass although only the last logits are wanted, unless
`prefill_step_size` allows fewer."""

_PASSES_PER_CLEANUP = 256
"""How often mlx's pool of freed buffers is emptied, as in mlx-lm's generate_step."""


class ModelCache(Generic[Id]):
    """A model, its cache, and the ids that the cache holds.

    layers: a cache to continue, changed in place. Content whose ids are not known, of
    `unknown_positions`, stays in front of every context.
    rewinds: whether drafts will be taken back; only plain decoding does without.
    after_step: called after each step of a long text that a pass begins with; it may raise.
    Raises: CacheError if the cache has to be trimmed and cannot.
    """

    def __init__(
        self, model: Any, options: CacheOptions, layers: list[Any] | None, *, rewinds: bool
    ) -> None:
        self.model, self._options = model, options
        self.layers: list[Any] = self._new_layers() if layers is None else layers
        self._layers, self._rewinds = Layers(self.layers), rewinds
        known = [] if layers is None else cast("list[Id] | None", remembered(layers))
        self.unknown_positions = least_positions(self.layers) if known is None else 0
        # After a pass the cache holds `_held`, and then ids that the host has not seen yet. After a
        # pass over a tree it holds the ids before the tree and a row for each of the tree. The next
        # context says which path was accepted: its rows are moved to where a chain would have put
        # them, and the others are dropped.
        self._held: list[Id] = known or []
        self._unread: list[Array] = []
        self._branches: tuple[list[Id], TokenTree[Id]] | None = None
        self._is_whole = True  # false where a change was left in the middle
        self._embeddings: tuple[int, Array] = 0, ()
        self._passes = 0
        self.context_length = context_length(model)
        self.vocabulary_size = vocabulary_size(model)
        self._even_length = even_length(model)
        self.after_step: Callable[[], None] = lambda: None
        if rewinds and (kinds := self._layers.unknown_kinds):
            raise _cannot_rewind(kinds)

    @property
    def rewindable(self) -> int:
        """How many positions may be cached if some are to be taken back, or read in one pass."""
        return min(self._layers.rewindable, self._even_length) - self.unknown_positions

    @property
    def quantized_from(self) -> int:
        """The position from which rows see a quantized cache; -1 if none does."""
        options = self._options
        if options.kv_bits is None:
            return -1
        return max(1, options.quantized_kv_start) - self.unknown_positions

    @property
    def held(self) -> list[Id]:
        """The ids in the cache, as far as they are known; what was read before a change that was
        left in the middle, which the next user reads again."""
        if self._is_whole:
            self._settle_branches([])
            self._read_unread()
        return self._held

    def catch_up(self, ids: list[Id], last: int) -> int:
        """Rewind to what the cache shares with `ids`, and fill in a long rest.

        Returns: how many of the ids the cache holds then; the last `last` are left to compute.
        """
        if self._has_long_rest(ids, last):
            for _ in self._steps(ids, len(ids) - last):
                self.after_step()
        kept = len(self._held)
        self._layers.mark(kept)
        return kept

    def reading(self, ids: Sequence[Id], *, stops: Iterable[int] = ()) -> Iterator[int]:
        """Read a long prompt in steps of about a second, but for its last id.

        stops: numbers of ids after which a step ends. Yields: after each step how many ids the
        cache holds. The caller may do something else meanwhile, or leave the rest unread. What one
        pass can read is left to it, unless there is a stop in it.
        """
        ids, known = list(ids), len(ids) - 1
        is_long = self._has_long_rest(ids, 1)
        stops = [stop for stop in stops if len(self._held) < stop <= known]
        if is_long or stops:
            yield from self._steps(ids, known if is_long else max(stops), stops)

    def _has_long_rest(self, ids: list[Id], last: int) -> bool:
        """Rewind to what the cache shares with `ids`. Returns: whether the rest is for steps."""
        known = len(ids) - last
        read = min(self._ready_for(ids), known)
        kept = self._rewind(read)
        most = max(last, min(_SINGLE_PASS, self._options.prefill_step_size))
        return kept < known and (
            len(ids) - kept > most
            or kept < self.quantized_from <= known
            or known > self.rewindable  # in a pass over several rows the last one would differ
            or (read < known and self._layers.show_a_prompt_more(known))
        )

    def tokens(self, ids: list[Id]) -> Array:
        """These ids as u32[n] for a pass.

        Raises: IncompatibleError for an id beyond the embeddings, which the device does not check.
        """
        if ids and not 0 <= min(ids) <= max(ids) < self.vocabulary_size:
            wrong = next(i for i in ids if not 0 <= i < self.vocabulary_size)
            raise IncompatibleError(
                f"the id {wrong} is none of the model's, which has {self.vocabulary_size}; check "
                "that model, tokenizer and tables belong together (tokalign tables verify FILE)"
            )
        return mx.array(ids, dtype=mx.uint32)

    def embed(self, begin: int, embeddings: Array) -> None:
        """Read the ids at the indices from `begin` on as these embeddings f[n, dimension]."""
        self._embeddings = begin, embeddings

    def quantize(self) -> None:
        """Quantize what the cache holds, if it is time. It replaces layers.

        mlx-lm does so after a pass; here rejected rows are gone first. Raises: CacheError.
        """
        if self._options.kv_bits is not None and positions(self.layers):
            quantize(self.layers, self.model, self._options)

    def forward(self, tokens: Array, model: Any = None, *, begin: int = UNBOUNDED) -> Array:
        """Logits f[n, vocabulary] of a pass over ids i[n], lazy; `quantize` comes before it.

        model: another one with the same weights and layers (`twin_of`). begin: the index of
        the first id in the context, where embeddings may have been given for some of them.
        The caller notes what the cache holds after the pass. Raises: as `reading_quantized`.
        """
        model = self.model if model is None else model
        with self.reading_quantized():
            logits = model(tokens[None], cache=self.layers, **self._embedded(begin, tokens))[0]
        if self._passes % _PASSES_PER_CLEANUP == 0:
            mx.clear_cache()
        self._passes += 1
        return logits

    @contextmanager
    def reading_quantized(self) -> Iterator[None]:
        """For a pass. Raises: CacheError where an attention cannot read a quantized cache."""
        try:
            yield
        except (AttributeError, TypeError) as error:  # quantized keys are no array
            if not is_quantized(self.layers):
                raise
            reason = f"its attention does not read quantized keys: {type(error).__name__}"
            raise cannot_be_quantized(self.model, self._options, reason) from error

    def settle(self, ids: Sequence[Id]) -> None:
        """Leave exactly `ids` in the cache for its next user. Raises: CacheError."""
        ids = list(ids)
        self.rewind(ids)
        self._fill(ids)
        if not self._layers.can_hand_over:
            self._begin_anew()
            self._fill(ids)
        self.quantize()
        self._layers.hand_over()
        if not self.unknown_positions:
            remember(self.layers, ids)

    def rewind(self, ids: Sequence[Id]) -> int:
        """Drop what the cache holds besides a beginning of `ids`. Returns: how many of them it
        holds then; fewer than it did, or none, if the cache needs it. Raises: CacheError."""
        return self._rewind(self._ready_for(list(ids)))

    def _ready_for(self, ids: list[Id]) -> int:
        """Make the cache ready to go on with `ids`. Returns: how many of them it holds."""
        self._mend()
        self._layers.open()
        self._settle_branches(ids)
        self._read_unread()
        return common_prefix(ids, self._held)

    def shared_with(self, ids: Sequence[Id]) -> int:
        """How many of `ids` the cache can go on with, leaving one at least to read."""
        if not self._is_whole:
            return 0
        known, more = self._branches or (self._held, self._unread)
        shared, held = min(common_prefix(known, list(ids)), len(ids) - 1), len(known) + len(more)
        return shared if shared == held else self._layers.left_by(held - shared, held=held) or 0

    def copy_of(self, count: int) -> list[Any]:
        """A copy of the layers with the first `count` ids. Not where the cache forgets some."""
        layers = deepcopy(self.layers)
        cut_back(layers, (positions(layers) or 0) - count)
        return layers

    def adopt(self, layers: Sequence[Any], ids: Sequence[Id]) -> None:
        """Go on with another cache of the same model, which holds exactly `ids`."""
        with self._changing():
            self._unread.clear()
            self._branches = None
            self.unknown_positions = 0
            self._layers.renew(layers)
            self._held = list(ids)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the layers, and note what they hold then. Where Ctrl-C or an error comes between,
        some layers have changed and others have not."""
        self._is_whole = False
        yield
        self._is_whole = True

    def _mend(self) -> None:
        """Begin anew if a change was left in the middle. Raises: CacheError as `_begin_anew`."""
        if self._is_whole:
            return
        if self.unknown_positions:
            raise CacheError(
                "a pass over this cache was interrupted, and what it had read is not known; make a "
                "new one, and give the whole text"
            )
        self._begin_anew()

    def _settle_branches(self, ids: list[Id]) -> None:
        """Keep the path of the tree that `ids` goes along; its first chain, if `ids` is shorter."""
        if self._branches is None:
            return
        (before, tree), begin = self._branches, len(self._branches[0])
        path = tree.path_of(ids[begin:]) if ids[:begin] == before else []
        path = path or list(range(tree.chain_length))
        with self._changing():
            self._branches = None
            keep_rows(self.layers, self.unknown_positions + begin, path)
            self._layers.take_back(len(tree.ids) - len(path), held=begin + len(tree.ids))
            self._held = [*before, *[tree.ids[index] for index in path]]

    def _rewind(self, kept: int) -> int:
        """Drop all but the first `kept` ids; more of them, or all, if the cache needs it.

        Returns: how many the cache holds then. Raises: as `_begin_anew`.
        """
        held = len(self._held)
        if kept < held:
            with self._changing():
                remaining = self._layers.take_back(held - kept, held=held)
                self._held = self._held[:remaining]
            if remaining is None:
                self._begin_anew()
        return len(self._held)

    def _begin_anew(self) -> None:
        """Go on with an empty cache. Raises: CacheError if ids that are not known would be lost."""
        if self.unknown_positions:
            raise _cannot_rewind(sorted({type(c).__name__ for c in self.layers}))
        self.adopt(self._new_layers(), [])

    def _read_unread(self) -> None:
        """Read ids that were fed while they were computing; by now they are known."""
        if self._unread:
            ids = cast("list[Id]", mx.concatenate(self._unread).tolist())
            with self._changing():
                self._held += ids
                self._unread.clear()

    def _fill(self, ids: list[Id]) -> None:
        for _ in self._steps(ids, len(ids)):
            pass

    def _steps(self, ids: list[Id], end: int, stops: Iterable[int] = ()) -> Iterator[int]:
        """Fill the cache with the ids up to `end`; yields after each step how many it holds.

        Steps lie in blocks of `prefill_step_size`. What a row sees may depend on where a block
        begins, if the cache is quantized there or keeps its first positions in a ring; it does not
        depend on the steps, which the clock decides.
        """
        pace, begin, block = pace_of(self.model), len(self._held), self._options.prefill_step_size
        while (at := len(self._held)) < end:
            self._layers.open()  # the caller may have copied the cache as mlx-lm knows it
            most = block - (at - begin) % block
            if most == block:
                self.quantize()
            step = self._layers.step(pace.step(most), most)
            read = ids[: min([at + step, end, *[stop for stop in stops if stop > at]])]
            began = perf_counter()
            with self._changing():
                self.forward(self.tokens(read[at:]), begin=at)
                self._held = read
            mx.eval([c.state for c in self.layers])
            if len(read) - at == most or len(read) == end:  # after each step it took 3 % longer
                mx.clear_cache()
            pace.learn(len(read) - at, perf_counter() - began)
            yield len(read)

    def _embedded(self, begin: int, tokens: Array) -> dict[str, Array]:
        """The argument that a model takes embeddings by; nothing where none were given."""
        first, embeddings = self._embeddings
        at, end = max(begin, first), min(begin + tokens.shape[0], first + len(embeddings))
        if at >= end:
            return {}
        rows = [embeddings[at - first : end - first]]
        for place, ids in ((0, tokens[: at - begin]), (2, tokens[end - begin :])):
            if ids.shape[0]:  # as of a text that is read again from its beginning
                rows.insert(place, embedding_of(self.model)(ids).astype(rows[0].dtype))
        return {"input_embeddings": mx.concatenate(rows)[None]}

    def _new_layers(self) -> list[Any]:
        made = make_prompt_cache(self.model, max_kv_size=self._options.max_kv_size)
        return cast("list[Any]", made)


def kinds_without_rewinding(model: Any) -> list[str]:
    """The kinds of caches in a model that can only decode plainly; none, as a rule."""
    return Layers(make_prompt_cache(model)).unknown_kinds


def _cannot_rewind(kinds: Sequence[str]) -> CacheError:
    return CacheError(
        f"this model keeps its context in {', '.join(kinds)}, which cannot be rewound after a "
        "rejected guess; use method plain, or another model"
    )
