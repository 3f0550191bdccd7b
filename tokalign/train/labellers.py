"""What a frozen target says of a text: which ids follow each position, and how probable they are.

`FutureIds` is for a recurrent drafter: at each position the hidden state and the ids that follow.
They are the text's own, or those with which the target would go on from that position, greedily
or at a temperature: the paper's distillation (ReDrafter, section 3.5). All positions of a window go
on at once. The window is one pass; then each further id is one pass over a tree that has the window
as its trunk and a branch at every position. So n positions with five ids cost 5 n rows, at the
price of reading a prompt, and not n generations.

`NextIds` is for a draft model: after each id, the ids that the target finds most probable.
"""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from tokalign.errors import IncompatibleError, UsageError
from tokalign.runtime.mlx.hidden_states import HiddenStates
from tokalign.runtime.mlx.layers import Layers, leaves_of
from tokalign.runtime.mlx.tree_attention import TreeModel, can_branch
from tokalign.runtime.mlx.window_cache import WindowCache
from tokalign.runtime.rounds import UNBOUNDED, Array
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labels import Labels
from tokalign.train.lessons import NO_LABEL
from tokalign.train.options import MOST_PROBABLE, Labelling

_SOURCE = "future"


def can_label_itself(model: Any) -> bool:
    """Whether a model can go on from all positions of a window at once."""
    return can_branch(model, make_prompt_cache(model))


class FutureIds:
    """A target that labels windows for a recurrent drafter.

    Raises: IncompatibleError if the target cannot go on from all positions of a window at once, and
    a kind that needs it is asked for; or if its hidden states cannot be had.
    """

    def __init__(self, model: Any, labelling: Labelling) -> None:
        self._model, self._labelling = model, labelling
        self._states = HiddenStates(model)
        self._tree = TreeModel(model)
        if labelling.kind != "text" and not can_label_itself(model):
            raise IncompatibleError(
                f"a {getattr(model, 'model_type', 'model')} model cannot verify trees, so it does "
                "not go on from every position of a text; give --labels text"
            )

    def label(self, window: list[TargetId], number: int = 0) -> Labels:
        """Label the positions of a window.

        With the text's own ids the last positions are left out, because nothing follows them.
        number: of the window, so that each has its own random numbers.
        Raises: UsageError for a window that is too long for layers with a sliding window.
        """
        key = mx.random.key((self._labelling.seed << 32) + number)
        cache = self._cache(len(window))
        ids = mx.array(window, mx.uint32)
        logits = self._states.model(ids[None], cache=cache)[0]
        hidden = self._states.take()
        if self._labelling.kind == "text":
            return self._of_the_text(hidden, window)
        keys = mx.random.split(key, self._labelling.future)
        columns = [choose(logits, keys[0], self._labelling)]
        mx.eval(columns[0], hidden)
        for key in keys[1:]:
            tree = _tree(window, columns)
            with self._tree.rows(cache, len(window), tree) as model:
                logits = model(columns[-1][None], cache=cache)[0]
            columns.append(choose(logits, key, self._labelling))
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


def choose(logits: Array, key: Array, labelling: Labelling) -> Array:
    """The next id u32[rows] of each row of logits f[rows, vocabulary]."""
    if labelling.kind == "greedy":
        return mx.argmax(logits, axis=-1)
    scaled = logits.astype(mx.float32) / labelling.temperature
    return mx.random.categorical(scaled, key=key).astype(mx.uint32)


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


class NextIds:
    """A target that labels windows for a draft model.

    Labels have one row for each id of a window: `ids` are the id, the id to learn after it, and the
    k most probable ones; `values` are the probabilities of these. NO_LABEL stands where nothing is
    known to follow. Of the kind "text" the target is not asked, and one id is kept with no
    probability.
    """

    def __init__(self, model: Any, labelling: Labelling) -> None:
        self._model, self._labelling = model, labelling

    def label(self, window: list[TargetId], number: int = 0) -> Labels:
        """Label a window. number: as of `FutureIds.label`."""
        text = np.array(window, np.int32)
        if self._labelling.kind == "text":
            follows = np.append(text[1:], np.int32(NO_LABEL))
            ids = np.stack([text, follows, follows], axis=1)
            return Labels(np.zeros((len(text), 1), np.float16), ids)
        logits = self._model(mx.array(text)[None])[0]
        key = mx.random.key((self._labelling.seed << 32) + number)
        chosen = np.array(choose(logits, key, self._labelling), np.int32)
        ids, probabilities = most_probable(logits)
        return Labels(probabilities, np.column_stack([text, chosen, ids]))


def most_probable(logits: Array) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """The most probable ids of rows f[..., vocabulary], the first one first, with probabilities."""
    logits = logits.astype(mx.float32)
    some = mx.argpartition(logits, -MOST_PROBABLE, axis=-1)[..., -MOST_PROBABLE:]
    values = mx.take_along_axis(logits, some, axis=-1)
    order = mx.argsort(-values, axis=-1)
    ids = mx.take_along_axis(some, order, axis=-1)
    logprobs = mx.take_along_axis(values, order, axis=-1) - mx.logsumexp(
        logits, axis=-1, keepdims=True
    )
    return np.array(ids, np.int32), np.array(mx.exp(logprobs).astype(mx.float16))
