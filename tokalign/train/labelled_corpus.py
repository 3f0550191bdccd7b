"""From a target and a corpus to labels: positions to train on, and positions held out.

The frozen target says what follows each position of the corpus's windows. Another run of the same
target, corpus and options finds the labels in the workspace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from tokalign.build.corpus import Corpus, Stage, count_ids, draw_windows, silent
from tokalign.errors import CorpusError, IncompatibleError, UsageError
from tokalign.locks import locked
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import target_fingerprints
from tokalign.runtime.mlx.hidden_states import HiddenStates
from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.mlx.session import TargetModelSession, most_probable
from tokalign.runtime.mlx.taps import LayerOutputs
from tokalign.runtime.mlx.tree_attention import can_branch
from tokalign.runtime.mlx.window_cache import WindowCache
from tokalign.runtime.rounds import UNBOUNDED, Array
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labels import NO_LABEL, LabelFile, Labels
from tokalign.train.options import LEAST_WINDOW, Labelling, LabelOptions


class Labeller:
    """A target that labels windows: for a drafter hidden states, and the ids that follow.

    The ids are the text's own, or those with which the target would go on from each position
    (distillation as in ReDrafter, section 3.5). All positions of a window go on at once: each
    further id is one pass over a tree that has the window as its trunk and a branch at every
    position. So n positions with five ids cost 5 n rows, at the price of reading a prompt.
    For a draft model, with a future of 0, there are no states, and one id follows: NO_LABEL where
    none is known. Of the kind "text" no pass is made, and no probability is known.
    Raises: IncompatibleError if the target cannot do that and the labelling needs it, or if its
    hidden states cannot be read.
    """

    def __init__(self, model: Any, labelling: Labelling) -> None:
        self._model, self._labelling = model, labelling
        if not labelling.future:
            return
        self._states = (
            LayerOutputs(model, labelling.taps) if labelling.taps else HiddenStates(model)
        )
        if labelling.kind != "text" and not can_branch(model, make_prompt_cache(model)):
            raise IncompatibleError(
                f"a {getattr(model, 'model_type', 'model')} model cannot verify trees, so it does "
                "not go on from every position of a text; give --labels text"
            )

    def label(self, window: list[TargetId], number: int = 0) -> Labels:
        """Label the positions of a window, except the last ones if only the text's ids follow.

        number: of the window, so that each has its own random numbers.
        Raises: UsageError for a window that is too long for layers with a sliding window.
        """
        future = self._labelling.future
        if not future:
            return self._next_ids(np.array(window, np.int32), number)
        if self._labelling.kind == "text":
            logits = self._states.model(mx.array([window], mx.uint32))[0]
            following = np.lib.stride_tricks.sliding_window_view(np.array(window[1:]), future)
            count, (ids, shares) = len(following), self._probable(logits)
            parts = [slice(depth, depth + count) for depth in range(1, future)]
            probable = [(ids[part], shares[part]) for part in parts]
            return self._labels(window[:count], self._states.take()[:count], following, probable)
        session = TargetModelSession(self._states.model)
        keys = mx.random.split(_key(self._labelling, number), future)
        logits = session.tree(window[:1], _tree(window, []))
        self._require_room(session, len(window))
        hidden, columns = self._states.take(), [choose(logits, keys[0], self._labelling)]
        mx.eval(hidden, columns[0])
        probable = []
        for key in keys[1:]:
            tree = _tree(window, columns)
            logits = session.tree(window[:1], tree, len(tree) - len(window))
            columns.append(choose(logits, key, self._labelling))
            mx.eval(columns[-1])
            probable.append(self._probable(logits))
        return self._labels(window, hidden, np.array(mx.stack(columns, axis=1)), probable)

    def _probable(self, logits: Array) -> tuple[NDArray[Any], NDArray[Any]]:
        """The most probable ids i[n, k] after rows f[n, vocabulary], and their probabilities."""
        if not self._labelling.probable:
            return np.zeros((len(logits), 0), np.int32), np.zeros((len(logits), 0), np.float16)
        ids, logprobs = most_probable(logits, self._labelling.probable)
        return np.array(ids), np.array(mx.exp(logprobs).astype(mx.float16))

    def _next_ids(self, text: NDArray[np.int32], number: int) -> Labels:
        if self._labelling.kind == "text":
            follows = np.append(text[1:], np.int32(NO_LABEL))
            ids = np.stack([text, follows, follows], axis=1)
            return Labels(np.zeros((len(text), 1), np.float16), ids)
        logits = self._model(mx.array(text)[None])[0]
        chosen = choose(logits, _key(self._labelling, number), self._labelling)
        found, probabilities = self._probable(logits)
        return Labels(probabilities, np.column_stack([text, np.array(chosen), found]))

    def _labels(
        self,
        text: list[TargetId],
        states: Array,
        ids: NDArray[Any],
        probable: Sequence[tuple[NDArray[Any], NDArray[Any]]],
    ) -> Labels:
        """Labels of states f[n, width] and the ids i[n, future] that follow.

        probable: for each of these but the first, as of `_probable`.
        """
        states = states if self._labelling.keeps_states else states[:, :0]
        # In float32, as the nearest bfloat16 is larger: it would be infinite in float16.
        bounded = mx.clip(states.astype(mx.float32), -_LARGEST, _LARGEST)
        states = np.array(bounded.astype(mx.float16))
        columns = [np.array(text)[:, None], ids, *[found for found, _ in probable]]
        return Labels(
            np.concatenate([states, *[shares for _, shares in probable]], axis=1),
            np.concatenate(columns, axis=1, dtype=np.int32, casting="unsafe"),
        )

    def _require_room(self, session: TargetModelSession, length: int) -> None:
        """Raises: UsageError if layers with a sliding window would forget parts of the tree."""
        leaves = leaves_of(session.layers)
        sizes = [leaf.max_size for leaf in leaves if isinstance(leaf, WindowCache)]
        most = min(sizes, default=UNBOUNDED) // self._labelling.future
        if length > most:
            remedy = f"give --window {most}" if most >= LEAST_WINDOW else "give another target"
            raise UsageError(
                f"this model sees {min(sizes)} ids in some layers, too few for windows of {length} "
                f"with {self._labelling.future} ids after each position; {remedy}"
            )


def _key(labelling: Labelling, number: int) -> Array:
    """The random key of a window."""
    return mx.random.key((labelling.seed << 32) + number)


def choose(logits: Array, key: Array, labelling: Labelling) -> Array:
    """The next id u32[rows] of each row of logits f[rows, vocabulary]."""
    if labelling.kind == "greedy":
        return mx.argmax(logits, axis=-1)
    scaled = logits.astype(mx.float32) / labelling.temperature
    return mx.random.categorical(scaled, key=key).astype(mx.uint32)


def _tree(window: list[TargetId], columns: list[Array]) -> TokenTree[TargetId]:
    """What follows a window's first id: the others, and a branch after each id, depth by depth."""
    own = [token for column in columns for token in column.tolist()]
    parents = (*range(-1, len(window) - 2), *range(-1, len(own) - 1))
    return TokenTree((*window[1:], *own), parents, ("",) * len(parents))


_LARGEST = 65504.0
"""The largest number of float16. Gemma's states after BOS are larger."""

_LAYOUT = 4
"""Version of the labels' columns and windows; labels of an earlier one are made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCorpus:
    """Labels to train on and labels held out. recipe: what they depend on, as JSON.

    corpus: that was labelled. held_out_labelling: of those held out, if it is another. own: of what
    the target wrote, if that is learned in turn with these.
    """

    training: Labels
    held_out: Labels
    recipe: Mapping[str, Any]
    options: LabelOptions
    corpus: Corpus | None = None
    held_out_labelling: Labelling | None = None
    own: LabelledCorpus | None = None

    @property
    def sets(self) -> tuple[LabelledCorpus, ...]:
        """All labels that are learned."""
        return (self,) if self.own is None else (self, self.own)

    def frequencies(self, tokenizer: Tokenizer[TargetId], size: int) -> NDArray[np.int64]:
        """How often each id of `size` occurs in the corpora and after positions to train on."""
        columns = slice(1, 1 + self.options.labelling.future)
        seen = np.zeros(size, np.int64)
        for one in self.sets:
            if one.corpus is not None:  # but for what is held out
                seen += count_ids(one.corpus, tokenizer, size)
                seen -= np.bincount(one.held_out.ids[:, 0], minlength=size)
            seen = seen.clip(0) + np.bincount(one.training.ids[:, columns].ravel(), minlength=size)
        return seen


def label_corpus(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    workspace: Path,
    options: LabelOptions,
    *,
    stage: Stage = silent,
) -> LabelledCorpus:
    """Label a corpus; what is in the workspace already is not made again.

    Raises: as `Corpus.lines`, `Labeller` and `LabelFile`; CorpusError for a corpus that is too
        short; UsageError while another process labels into the workspace.
    """
    parts = {
        "layout": _LAYOUT,
        "target": target_fingerprints(target),
        "corpus": corpus.identity,
        **asdict(options),
    }
    recipe = json.loads(json.dumps(parts))  # as it is read again
    how = {"held-out": _held_out(target, options), "labels": options.labelling}

    def files() -> list[LabelFile]:
        return [LabelFile(workspace / name, recipe) for name in how]

    if any(file.labels is None for file in files()):
        with locked(workspace / "labels.lock", f"labelling into {workspace}"):
            texts = _windows(target, corpus, options, stage)
            for file, (name, labelling), windows in zip(files(), how.items(), texts, strict=True):
                label = Labeller(target.model, labelling).label
                positions = labelling.positions_of(options.window) * len(windows)
                with stage(positions, f"labelling {name}", "positions") as advance:
                    for count in file.write(windows, label):
                        advance(count)
    held_out, training = [file.labels for file in files()]
    assert held_out is not None
    assert training is not None
    return LabelledCorpus(
        training=training,
        held_out=held_out,
        recipe=recipe,
        options=options,
        corpus=corpus,
        held_out_labelling=how["held-out"],
    )


def _windows(
    target: LanguageModel[TargetId], corpus: Corpus, options: LabelOptions, stage: Stage
) -> tuple[list[list[TargetId]], list[list[TargetId]]]:
    """The windows that are held out, and those to train on."""
    count = -(-options.held_out // options.window)
    training = -(-options.positions // options.labelling.positions_of(options.window))
    positions = options.window * (count + training)
    how = {"length": options.window, "positions": positions, "seed": options.seed}
    windows = draw_windows(corpus, target.tokenizer, **how, stage=stage)
    if len(windows) <= count:
        raise CorpusError(
            f"the corpus has {len(windows)} windows of {options.window} tokens, and {count} "
            "have to be held out; give more text, or fewer --held-out positions"
        )
    return windows[:count], windows[count:]


def _held_out(target: LanguageModel[TargetId], options: LabelOptions) -> Labelling:
    """The labelling of the positions held out; see `LabelOptions`."""
    own = options.labelling
    makes_passes = own.kind != "text"
    if own.future:
        makes_passes = can_branch(target.model, make_prompt_cache(target.model))
    return replace(own, kind="greedy" if makes_passes else "text")
