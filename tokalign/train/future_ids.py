"""What a frozen target says of a text: at each position its hidden state and the ids that follow.

The ids are the text's own, or those with which the target would go on from that position, greedily
or at a temperature: the paper's distillation (ReDrafter, section 3.5). All positions of a window go
on at once. The window is one pass; then each further id is one pass over a tree that has the window
as its trunk and a branch at every position. So n positions with five ids cost 5 n rows, at the
price of reading a prompt, and not n generations.

Or the target writes texts of its own, several at once, after short openings of the corpus. A
position of such a text costs one row, and what follows it is what the target wrote.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from tokalign.errors import IncompatibleError, UsageError
from tokalign.runtime.mlx.layers import Layers, leaves_of
from tokalign.runtime.mlx.target_session import HiddenStates
from tokalign.runtime.mlx.tree_attention import TreeModel, can_branch
from tokalign.runtime.mlx.window_cache import WindowCache
from tokalign.runtime.rounds import UNBOUNDED, Array
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labels import Labels
from tokalign.train.options import OPENING, Labelling
from tokalign.train.writing import before_stop, sample, write

_SOURCE = "future"


def can_label_itself(model: Any) -> bool:
    """Whether a model can go on from all positions of a window at once."""
    return can_branch(model, make_prompt_cache(model))


class Labeller:
    """A target that labels windows.

    bos: the id that every text begins with, if any. stop_ids: those that end a text.
    Raises: IncompatibleError if the target cannot go on from all positions of a window at once, and
    a kind that needs it is asked for; or if its hidden states cannot be had.
    """

    def __init__(
        self,
        model: Any,
        labelling: Labelling,
        *,
        bos: TargetId | None = None,
        stop_ids: Collection[TargetId] = (),
    ) -> None:
        self._model, self._labelling = model, labelling
        self._bos, self._stop_ids = bos, sorted(stop_ids)
        self._states = HiddenStates(model)
        self._tree = TreeModel(model)
        if labelling.kind in ("greedy", "sampled") and not can_label_itself(model):
            raise IncompatibleError(
                f"a {getattr(model, 'model_type', 'model')} model cannot verify trees, so it does "
                "not go on from every position of a text; give --labels generated"
            )

    def label(self, window: list[TargetId], number: int = 0) -> Labels:
        """Label the positions of a window, or of texts that the target writes after its openings.

        With the text's own ids the last positions are left out, because nothing follows them.
        number: of the window, so that each has its own random numbers.
        Raises: UsageError for a window that is too long for layers with a sliding window.
        """
        key = mx.random.key((self._labelling.seed << 32) + number)
        if self._labelling.kind == "generated":
            return self._generated(window, key)
        cache = self._cache(len(window))
        ids = mx.array(window, mx.uint32)
        logits = self._states.model(ids[None], cache=cache)[0]
        hidden = self._states.take()
        if self._labelling.kind == "text":
            return self._of_the_text(hidden, window)
        keys = mx.random.split(key, self._labelling.future)
        columns = [self._choose(logits, keys[0])]
        mx.eval(columns[0], hidden)
        for key in keys[1:]:
            tree = _tree(window, columns)
            with self._tree.rows(cache, len(window), tree) as model:
                logits = model(columns[-1][None], cache=cache)[0]
            columns.append(self._choose(logits, key))
            mx.eval(columns[-1])
        return Labels(_on_host(hidden), np.array(mx.stack(columns, axis=1), np.int32))

    def _cache(self, length: int) -> list[Any]:
        """An empty cache for a window of this length.

        Raises: UsageError if layers with a sliding window would forget parts of the tree.
        """
        cache: list[Any] = make_prompt_cache(self._model)
        if self._labelling.kind == "text":
            return cache
        Layers(cache, rewinds=True).open()
        sizes = [leaf.max_size for leaf in leaves_of(cache) if isinstance(leaf, WindowCache)]
        most = min(sizes, default=UNBOUNDED) // self._labelling.future
        if length > most:
            raise UsageError(
                f"this model sees {min(sizes)} ids in some layers, too few for windows of {length} "
                f"with {self._labelling.future} ids after each position; give --window {most}"
            )
        return cache

    def _of_the_text(self, hidden: Array, window: list[TargetId]) -> Labels:
        count = len(window) - self._labelling.future
        following = np.lib.stride_tricks.sliding_window_view(
            np.array(window[1:], np.int32), self._labelling.future
        )
        return Labels(_on_host(hidden[:count]), following.copy())

    def _generated(self, window: list[TargetId], key: Array) -> Labels:
        """Labels of the texts, as long as the window, that the target writes after its openings.

        Positions from which a text ends within the ids that follow are left out.
        """
        length, future = len(window), self._labelling.future
        openings = openings_of(window, self._bos)
        states, written = list[Array](), list[Array]()
        for ids in write(
            self._states.model,
            openings.tolist(),
            key,
            length=length,
            temperature=self._labelling.temperature,
            stop_ids=self._stop_ids,
            least=future,
        ):
            states.append(self._states.take_batch()[:, -1])
            written.append(ids)
            mx.async_eval(states[-1])  # type: ignore[no-untyped-call]
        found = np.array(mx.stack(written, axis=1), np.int32)
        following = np.lib.stride_tricks.sliding_window_view(found, future, axis=1)
        hidden = _on_host(mx.stack(states[: following.shape[1]], axis=1))
        kept = before_stop(found, self._stop_ids)[:, future - 1 :]
        return Labels(hidden[kept], following[kept])

    def _choose(self, logits: Array, key: Array) -> Array:
        return choose(logits, key, self._labelling)


def openings_of(window: list[TargetId], bos: TargetId | None) -> NDArray[Any]:
    """The openings i[n, OPENING] that a window is cut into, each after `bos` if there is one."""
    openings = np.array(window[: len(window) // OPENING * OPENING]).reshape(-1, OPENING)
    if bos is not None:
        openings[:, 0] = bos
    return openings


def choose(logits: Array, key: Array, labelling: Labelling) -> Array:
    """The next id u32[rows] of each row of logits f[rows, vocabulary]."""
    if labelling.kind == "greedy":
        return mx.argmax(logits, axis=-1)
    return sample(logits, labelling.temperature, key)


def _tree(window: list[TargetId], columns: list[Array]) -> TokenTree[TargetId]:
    """The window as a chain, and a branch after each of its ids; ids of one depth lie together."""
    count = len(window)
    parents = list(range(-1, count - 1))
    for depth in range(len(columns)):
        parents += range(depth * count, (depth + 1) * count)
    own = cast("list[TargetId]", [token for column in columns for token in column.tolist()])
    return TokenTree((*window, *own), tuple(parents), (_SOURCE,) * len(parents))


def _on_host(hidden: Array) -> NDArray[np.float16]:
    return np.array(hidden.astype(mx.float16))
