"""Teaching a draft model with another tokenizer what a target says: what `run.py` needs of it.

The model learns what `exact` uses: the probability of the target's next token as a sum over covers
(`lessons.py`). All weights are trained, embedding and head at the ids that a batch has, or LoRA
adapters of mlx-lm's tuner, which are fused when the model is saved. The result is a folder like the
draft's own.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.tuner.utils import linear_to_lora_layers

from tokalign.errors import CorpusError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.hidden_states import body_and_head, find_head
from tokalign.runtime.mlx.published_drafter import read_weights
from tokalign.runtime.mlx.twins import twin_of
from tokalign.runtime.mlx.weights import content_fingerprint, vocabulary_size, write_weights
from tokalign.runtime.rounds import Array
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.whole_text import TokenCovers
from tokalign.storage import appearing
from tokalign.tables.finding import TRAINING_RECORD
from tokalign.tokenizer.vocabulary import DraftId
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.labels import NO_LABEL
from tokalign.train.lessons import Lesson, Lessons, readings_of
from tokalign.train.losses import losses_of
from tokalign.train.options import FitOptions, Loss
from tokalign.train.run import write_record

_LEAST = 1e-30
_SCALE = 2.0


def marginals(logits: Array, lesson: Lesson) -> Array:
    """The probability f32[n, 1 + k] of every label. logits: f32[B * L, C], of the candidates."""
    logits = logits.astype(mx.float32)
    weighted, rows = logits + mx.array(lesson.log_weights), mx.array(lesson.rows)
    whole = mx.logsumexp(weighted, axis=-1)
    chosen = mx.exp(weighted[rows, mx.array(lesson.columns)] - whole[rows])
    sums = (mx.arange(lesson.count) == 0).astype(mx.float32)
    sums = sums.at[mx.array(lesson.sums)].add(chosen)
    covered, factors = sums[mx.array(lesson.covers)], sums[mx.array(lesson.factors)]
    spelled = factors.prod(axis=1)
    covered = mx.concatenate([covered[:, :1] + spelled[:, None], covered[:, 1:]], axis=1)
    return covered / mx.maximum(sums[mx.array(lesson.allowed)], _LEAST)[:, None]


def loss_of(logits: Array, lesson: Lesson, kinds: tuple[Loss, ...]) -> Array:
    """The mean of some losses, in nats for each boundary, or for each draft token in "text".

    "text": cross-entropy of the draft's own tokens. For the others see `losses_of`.
    """
    losses = []
    if "text" in kinds:
        rows, columns = mx.array(lesson.own)
        whole = mx.logsumexp(logits + mx.array(lesson.log_weights), axis=-1)
        losses.append((whole[rows] - logits[rows, columns]).mean())
    if soft := [kind for kind in kinds if kind != "text"]:
        log_q = mx.log(mx.maximum(marginals(logits, lesson), _LEAST))
        p = mx.array(lesson.probabilities)
        p = mx.where(mx.array(lesson.covers[:, 1:] > 1), p, 0.0)  # what has no cover is left over
        losses += [losses_of(log_q, p, [kind]).mean() for kind in soft]
    return sum(losses) / len(losses)


class DraftLearner:
    """A draft model and its labels (`Learner`); it is written in the number format of its files.

    labels: with a future of 0. The model is changed in place.
    Raises: CorpusError where the draft model's tokenizer cannot read the texts.
    """

    def __init__(
        self, draft: LanguageModel[DraftId], pair: Pair, labels: LabelledCorpus, options: FitOptions
    ) -> None:
        self._draft, self.options, self.labels = draft, options, labels
        self.module = model = draft.model
        self.identity, window = content_fingerprint(model), labels.options.window
        size = vocabulary_size(model)
        texts = labels.training.texts(window)
        self.batches = Lessons(pair, texts, options, window=window, vocabulary_size=size)
        self.positions = self.batches.positions
        self._covers = TokenCovers(pair, map(DraftId, range(min(size, len(pair.draft.vocabulary)))))
        self._held_out = [*readings_of(pair, labels.held_out.texts(window))]
        if not self.positions or not self._held_out:
            raise CorpusError(
                "the draft model's tokenizer does not spell these texts as the target's does, so "
                "nothing can be learned from them; give other text"
            )
        self._ends = body_and_head(model)
        if self._ends is None:  # a batch would move the rows of every id
            for module in model.modules():
                if module is find_head(model) or isinstance(module, nn.Embedding):
                    module.freeze()
        if options.lora:
            mx.random.seed(options.seed)
            model.freeze()
            config = {"rank": options.lora, "scale": _SCALE, "dropout": 0.0}
            linear_to_lora_layers(model, len(model.layers), config)
        self._first = model.trainable_parameters() if options.keep else None

    def loss(self, batch: Lesson) -> Array:
        read, candidates = mx.array(batch.read), batch.candidates
        if self._ends is None:
            logits = self.module(read)[..., mx.array(candidates)]
        else:
            body, head = self._ends
            rows, is_read = head.weight[mx.array(candidates)], np.isin(candidates, batch.read)
            # Rows of ids that are not read have no gradient: every batch would move them.
            rows = mx.where(mx.array(is_read)[:, None], rows, mx.stop_gradient(rows))
            logits = body(read) @ rows.T
        logits = logits.reshape(batch.read.size, -1).astype(mx.float32)
        return loss_of(logits, batch, self.options.losses)

    def measure(self) -> tuple[float, ...]:
        """A guess is the most probable next target token, by covers."""
        right = list[bool]()
        with self._averaged():
            for labels, reading in self._held_out:
                rows = np.array(self.module(mx.array([reading.ids]))[0].astype(mx.float32))
                for boundary in reading.boundaries:
                    label = int(labels.ids[boundary.at, 1])
                    if label != NO_LABEL:
                        guess = self._covers.guess(boundary.partial, rows[boundary.row])
                        right.append(guess == label)
        return (sum(right) / max(1, len(right)),)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Meanwhile the model has the weights that are measured and saved: the mean of those
        trained and, by the share that is kept, the first ones.

        An adapter adds the product of two matrices, the second of which is zero at first.
        Source: Wortsman et al., Robust fine-tuning of zero-shot models (2022).
        """
        keep, trained = self.options.keep, self.module.trainable_parameters()

        def mean(name: str, now: Array, first: Array) -> Array:
            return now if name.endswith("lora_a") else (1 - keep) * now + keep * first

        if self._first is not None:
            self.module.update(tree_map_with_path(mean, trained, self._first))
        yield
        self.module.update(trained)

    def save(self, folder: Path, record: Mapping[str, Any]) -> None:
        """LoRA adapters are fused."""
        own = self._draft.folder
        assert own is not None, "it was loaded from a folder"
        write_record(folder, record)
        with self._averaged():
            fused = twin_of(self.module, lambda layer: layer.fuse() if "lora_a" in layer else None)
            save_like(own, folder, dict(tree_flatten(fused.parameters())))


_WEIGHTS = "*.safetensors", "*.safetensors.index.json", "*.bin", "*.pth", "*.gguf"


def save_like(own: Path, folder: Path, weights: Mapping[str, Array]) -> None:
    """Write weights, in the number format of those in the folder `own`, and copy its other files.

    `config.json` is last: until then the folder has the model that it had before. Raises:
    UsageError or OutputError if it cannot be written.
    """
    dtype = _number_format(own)
    stored = {
        name: weight.astype(dtype) if mx.issubdtype(weight.dtype, mx.floating) else weight
        for name, weight in weights.items()
    }
    write_weights(folder / "model.safetensors", stored, {"format": "mlx"})
    not_copied = *_WEIGHTS, TRAINING_RECORD
    files = [path for path in own.iterdir() if not any(map(path.match, not_copied))]
    for path in sorted(filter(Path.is_file, files), key=lambda path: path.name == "config.json"):
        with appearing(folder / path.name) as temporary:
            shutil.copyfile(path, temporary)


def _number_format(folder: Path) -> Any:
    """The number format that most floating-point weights of a folder have."""
    counts: Counter[Any] = Counter()
    for weight in read_weights(folder).values():  # lazy: only headers are read
        if mx.issubdtype(weight.dtype, mx.floating):
            counts[weight.dtype] += weight.size
    return counts.most_common(1)[0][0]
