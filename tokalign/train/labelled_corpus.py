"""From a target and a corpus to labels: positions to train on, and positions held out.

Paragraphs in a random order are joined and cut into windows of one length, and the frozen target
says what follows each position: `FutureIds` for a recurrent drafter, `NextIds` for a draft model.
The labels lie in a workspace, where another run of the same target, corpus and options finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, TypeAlias, cast

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from tokalign.build.corpus import Corpus, Progress, Stage, silent
from tokalign.errors import CorpusError, IncompatibleError, UsageError
from tokalign.runtime.chat import with_bos
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import target_fingerprints
from tokalign.runtime.mlx.hidden_states import HiddenStates
from tokalign.runtime.mlx.layers import Layers, leaves_of
from tokalign.runtime.mlx.tree_attention import TreeModel, can_branch
from tokalign.runtime.mlx.window_cache import WindowCache
from tokalign.runtime.rounds import UNBOUNDED, Array
from tokalign.storage import locked
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labels import NO_LABEL, Labels, are_complete, open_labels, write_labels
from tokalign.train.options import MOST_PROBABLE, Kind, Labelling, LabelOptions


def can_label_itself(model: Any) -> bool:
    """Whether a model can go on from all positions of a window at once."""
    return can_branch(model, make_prompt_cache(model))


class FutureIds:
    """A target that labels windows for a recurrent drafter: hidden states, and the ids that follow.

    The ids are the text's own, or those with which the target would go on from each position,
    greedily or at a temperature: the paper's distillation (ReDrafter, section 3.5). All positions
    of a window go on at once. The window is one pass; then each further id is one pass over a tree
    that has the window as its trunk and a branch at every position. So n positions with five ids
    cost 5 n rows, at the price of reading a prompt, and not n generations.
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
            future, text = self._labelling.future, np.array(window, np.int32)
            following = np.lib.stride_tricks.sliding_window_view(text[1:], future)
            return Labels(_on_host(hidden[: len(following)]), following.copy())
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
    return TokenTree((*window, *own), tuple(parents), ("future",) * len(parents))


def _on_host(hidden: Array) -> NDArray[np.float16]:
    return np.array(hidden.astype(mx.float16))


class NextIds:
    """A target that labels windows for a draft model: after each id, its most probable next ids.

    Labels have one row for each id of a window: `ids` are the id, the id to learn after it, and the
    k most probable ones; `values` are the probabilities of these. NO_LABEL stands where nothing is
    known to follow. For the kind "text" the target is not asked, and one id is kept with no
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


Makes: TypeAlias = type[FutureIds] | type[NextIds]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCorpus:
    """Labels to train on and labels held out. recipe: what they depend on, as JSON."""

    training: Labels
    held_out: Labels
    recipe: Mapping[str, Any]


def label_corpus(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    workspace: Path,
    options: LabelOptions,
    *,
    labeller: Makes = FutureIds,
    stage: Stage = silent,
) -> LabelledCorpus:
    """Label a corpus; what is in the workspace already is not made again.

    labeller: `FutureIds` for a recurrent drafter, `NextIds` for a draft model.
    Raises: as `Corpus.lines`, `FutureIds` and `write_labels`; CorpusError for a corpus that is too
        short; UsageError while another process labels into the workspace.
    """
    training, held_out = workspace / "labels", workspace / "held-out"
    recipe = {
        **({} if labeller is FutureIds else {"labeller": labeller.__name__}),
        "target": target_fingerprints(target),
        "corpus": corpus.listing,
        **asdict(options),
    }
    if not (are_complete(training, recipe) and are_complete(held_out, recipe)):
        doing, remedy = f"labelling into {workspace}", "wait until it has ended"
        with locked(workspace / "labels.lock", doing, remedy):
            _label_windows(target, corpus, workspace, recipe, options, labeller, stage)
    return LabelledCorpus(
        training=open_labels(training), held_out=open_labels(held_out), recipe=recipe
    )


def _label_windows(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    workspace: Path,
    recipe: Mapping[str, Any],
    options: LabelOptions,
    labeller: Makes,
    stage: Stage,
) -> None:
    """Label what is not in the workspace yet."""
    count = -(-options.held_out // options.window)
    labelling = options.labelling
    training_windows = -(-options.positions // labelling.positions_of(options.window))
    with stage(2 * corpus.size, "reading the corpus") as advance:
        windows = draw_windows(
            corpus,
            target.tokenizer,
            length=options.window,
            positions=options.window * (count + training_windows),
            seed=options.seed,
            progress=advance,
        )
    if len(windows) <= count:
        raise CorpusError(
            f"the corpus has {len(windows)} windows of {options.window} tokens, and {count} "
            "have to be held out; give more text, or fewer --held-out positions"
        )
    held_out = _held_out(target, options, labeller)
    for name, some, how in (
        ("held-out", windows[:count], held_out),
        ("labels", windows[count:], labelling),
    ):
        label = labeller(target.model, how).label
        with stage(how.positions_of(options.window) * len(some), f"labelling {name}") as advance:
            for positions in write_labels(workspace / name, recipe, some, label):
                advance(positions)


def _held_out(target: LanguageModel[TargetId], options: LabelOptions, labeller: Makes) -> Labelling:
    """The labelling of the positions held out: greedy, where that can be had.

    A draft model that learns the text's own ids is measured by these.
    """
    own = options.labelling
    if labeller is not FutureIds:
        return own if own.kind == "text" else replace(own, kind="greedy")
    kind: Kind = "greedy" if can_label_itself(target.model) else "text"
    return replace(own, kind=kind)


_BYTES_DRAWN_PER_TOKEN = 6.5
"""Bytes of text. Tokenizers in use have 3 to 5 bytes in a token, so enough is drawn."""


def draw_windows(
    corpus: Corpus,
    tokenizer: Tokenizer[TargetId],
    *,
    length: int,
    positions: int,
    seed: int,
    progress: Progress = lambda _: None,
) -> list[list[TargetId]]:
    """Draw paragraphs from everywhere in a corpus and cut them into windows.

    length: ids in a window, BOS included if the tokenizer adds one. positions: about how many ids
    to draw, all windows together; fewer if the corpus has fewer.
    progress: called with bytes of the corpus on disk, of which two readings are made: one to learn
    its size, one to draw. Only what is drawn is kept in memory.
    Raises: CorpusError as `Corpus.lines`.
    """
    for _ in corpus.lines(progress):
        pass
    share = positions * _BYTES_DRAWN_PER_TOKEN / corpus.text_bytes
    random = Random(seed)
    drawn = [line for line in corpus.lines(progress) if random.random() < share]
    random.shuffle(drawn)
    ids = chain.from_iterable(tokenizer.encode(line + "\n") for line in drawn)
    opening = with_bos(tokenizer, [])
    windows: list[list[TargetId]] = []
    while len(windows) * length < positions:
        window = [*opening, *islice(ids, length - len(opening))]
        if len(window) < length:
            break
        windows.append(window)
    return windows
