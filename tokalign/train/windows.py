"""Labelled windows for drafters that read a target's layers: their batches, and how one is trained.

A step reads some windows, of which the target's layer outputs are known, and drafts after many
positions of each at once. What it drafts with is a subclass of `TapLearner`: a block drafter
(`blocks.py`) or EAGLE-3's (`eagles.py`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.taps import LayerOutputs
from tokalign.runtime.mlx.weights import content_fingerprint, vocabulary_size
from tokalign.runtime.rounds import Array
from tokalign.storage import appearing, parse_json, write_file
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.card import RECORD
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.labels import Candidates, Labels, Shuffled
from tokalign.train.losses import losses_of
from tokalign.train.options import STRIDE, FitOptions, Labelling, LabelOptions

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBatch:
    """W windows of L ids, and drafts after the same A positions of each.

    text: i32[W, L]. taps: f[W, L, layers * width]. places: i[A], the positions. following:
    i32[W, A, 1 + depth], the ids after each: the first one is committed when a draft begins.
    candidates, log_weights: as of `labels.Batch`. correct: i[W, A, depth], the ids to guess, and
    probable: i[W, A, depth, k], what the target finds probable there, as indices into `candidates`.
    probabilities: f16[W, A, depth, k], of these.
    """

    text: NDArray[np.int32]
    taps: Array
    places: NDArray[np.intp]
    following: NDArray[np.int32]
    candidates: NDArray[np.int32]
    log_weights: NDArray[np.float32]
    correct: NDArray[np.intp]
    probable: NDArray[np.intp]
    probabilities: NDArray[np.float16]


class WindowBatches(Shuffled):
    """Batches of windows, as `FutureIds` labels them with taps, `length` positions of each.

    size: drafts of a batch, about. candidates: as of `Candidates`. read: the target's layer outputs
    f[W, L, ...] for windows i[W, L], where they are not among the labels.
    """

    def __init__(
        self,
        labels: Labels,
        labelling: Labelling,
        length: int,
        *,
        size: int,
        vocabulary_size: int,
        candidates: int | None = None,
        seed: int = 0,
        read: Callable[[NDArray[np.int32]], Array],
    ) -> None:
        self.windows = len(labels.ids) // length
        super().__init__(self.windows * STRIDE, max(1, size * STRIDE // length), seed)
        self._labels, self._labelling, self._length, self._read = labels, labelling, length, read
        following = labels.ids[:, 2 : 1 + labelling.future]
        seen = np.bincount(following.reshape(-1), minlength=vocabulary_size)
        self._candidates = Candidates(seen, candidates)

    def __getitem__(self, number: int) -> WindowBatch:
        windows, phases = np.divmod(np.sort(self.part(number)), STRIDE)
        return self.drafts(windows, int(phases[0]), (self._seed, 1, number))

    def drafts(self, windows: NDArray[np.intp], phase: int, seed: tuple[int, ...]) -> WindowBatch:
        """Drafts after every `STRIDE`th position of windows, from position `phase` on.

        seed: of the candidates that are drawn.
        """
        depth, k = self._labelling.future - 1, self._labelling.probable
        rows = windows[:, None] * self._length + np.arange(self._length)
        places = np.arange(phase, self._length, STRIDE)
        values, ids = self._labels.values[rows], self._labels.ids[rows]
        text, following = ids[..., 0], ids[:, places, 1:]
        needed, found = np.unique(following[..., 1:], return_inverse=True)
        candidates, log_weights = self._candidates.draw(needed, seed)
        found = np.searchsorted(candidates, needed)[found].reshape(*following.shape[:2], -1)
        shape, width = (*following.shape[:2], depth, k), values.shape[-1] - depth * k
        keeps = self._labelling.keeps_states
        return WindowBatch(
            text=text,
            taps=mx.array(values[..., :width]) if keeps else self._read(text),
            places=places,
            following=following[..., : 1 + depth],
            candidates=candidates,
            log_weights=log_weights,
            correct=found[..., :depth],
            probable=found[..., depth:].reshape(shape),
            probabilities=values[:, places, width:].reshape(shape),
        )


def target_sizes(target: LanguageModel[TargetId]) -> dict[str, Any]:
    """The sizes in the target's `config.json` that a new drafter's layers have, too."""
    assert target.folder is not None, "it was loaded from a folder"
    config = parse_json((target.folder / CONFIG).read_bytes())
    sizes = {**config, **config.get("text_config", {})}
    heads = sizes["num_attention_heads"]
    return {
        "head_dim": sizes.get("head_dim") or sizes["hidden_size"] // heads,
        "num_key_value_heads": sizes.get("num_key_value_heads") or heads,
        "rms_norm_eps": sizes.get("rms_norm_eps", 1e-6),
        "max_position_embeddings": sizes.get("max_position_embeddings", 4096),
        "rope_theta": sizes.get("rope_theta", 10000.0),
        **{
            name: sizes[name]
            for name in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        },
    }


class TapLearner(ABC):
    """A drafter that reads a target's layers, and its labels (`Learner`); written in float16.

    config: its `config.json`. labelled: how the labels were made.
    """

    def __init__(
        self,
        target: LanguageModel[TargetId],
        drafter: Any,
        config: Mapping[str, Any],
        labels: LabelledCorpus,
        labelled: LabelOptions,
        options: FitOptions,
    ) -> None:
        labelling = labelled.labelling
        self.module, self.options, self.labels, self._config = drafter, options, labels, config
        self.identity = [config, content_fingerprint(drafter)]
        states = LayerOutputs(target.model, labelling.taps)

        def read(ids: NDArray[np.int32]) -> Array:
            states.model(mx.array(ids))
            return mx.stop_gradient(states.take_all())

        def batches(of: Labels, size: int, candidates: int | None) -> WindowBatches:
            return WindowBatches(
                of,
                labelling,
                labelling.positions_of(labelled.window),
                size=size,
                vocabulary_size=vocabulary_size(target.model),
                candidates=candidates,
                seed=options.seed,
                read=read,
            )

        self.batches: Shuffled = batches(labels.training, options.batch, options.candidates)
        self._held_out = batches(labels.held_out, 1, None)
        self.positions = len(labels.training.ids)
        depth = labelling.future - 1
        weights = options.decay ** np.arange(depth)
        self._weights = mx.array(weights * depth / weights.sum(), dtype=mx.float32)

    @abstractmethod
    def states(self, batch: WindowBatch) -> Array:
        """What the head reads f[W, A, depth, width] for each guess."""

    @abstractmethod
    def logits(self, states: Array, ids: Array = None) -> Array:
        """f[..., width] -> logits f[..., vocabulary], or of ids i[n] alone."""

    def loss(self, batch: WindowBatch) -> Array:
        logits = self.logits(self.states(batch), mx.array(batch.candidates)).astype(mx.float32)
        whole = mx.logsumexp(logits + mx.array(batch.log_weights), axis=-1, keepdims=True)
        found = np.concatenate([batch.correct[..., None], batch.probable], axis=-1)
        log_q = mx.take_along_axis(logits, mx.array(found), axis=-1) - whole
        losses = losses_of(log_q, mx.array(batch.probabilities), self.options.losses)
        return (losses * self._weights).mean()

    def measure(self) -> tuple[float, ...]:
        """A guess is the most probable id, after ids that are right."""
        right = []
        for window in range(self._held_out.windows):
            batch = self._held_out.drafts(np.array([window]), STRIDE - 1, (0,))
            guesses = np.array(mx.argmax(self.logits(self.states(batch)), axis=-1))
            right.append(np.logical_and.accumulate(guesses == batch.correct, axis=-1)[0])
        return tuple(map(float, np.concatenate(right).mean(axis=0)))

    def save(self, folder: Path, record: Mapping[str, Any]) -> None:
        write_file(folder / RECORD, json.dumps(record, indent=1) + "\n", parents=True)
        self._write(folder, dict(tree_flatten(self.module.parameters())))

    def publish(self, best: Path, output: Path) -> None:
        weights: Any = mx.load(str(best / WEIGHTS))
        write_file(output / RECORD, (best / RECORD).read_bytes(), parents=True)
        halved = {name: weight.astype(mx.float16) for name, weight in weights.items()}
        self._write(output, halved | self.shared_weights())

    def shared_weights(self) -> dict[str, Array]:
        """What the format wants in the folder besides what was trained."""
        return {}

    def _write(self, folder: Path, weights: Mapping[str, Array]) -> None:
        # An open file, not a path: mlx would hide why a write failed.
        with appearing(folder / WEIGHTS, parents=True) as temporary, temporary.open("wb") as file:
            mx.save_safetensors(file, dict(weights), {"format": "mlx"})
        write_file(folder / CONFIG, json.dumps(self._config, indent=1) + "\n")
