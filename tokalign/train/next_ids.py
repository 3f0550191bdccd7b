"""What a target says of a text for a draft model: after each id, the ids that it finds probable.

Labels have one row for each id of a text, and a text as many rows as a window: `ids` are the text's
id, the id to learn after it, and the k most probable ones; `values` are the probabilities of these.
-1 stands where a text has ended, and where nothing is known to follow.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.future_ids import choose, openings_of
from tokalign.train.labels import Labels
from tokalign.train.lessons import NO_LABEL
from tokalign.train.options import MOST_PROBABLE, OPENING, Labelling
from tokalign.train.writing import before_stop, write


class NextIds:
    """A target that labels windows for a draft model; arguments as those of `Labeller`.

    Of the kind "text" it is not asked, and one id is kept with no probability.
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

    def label(self, window: list[TargetId], number: int = 0) -> Labels:
        """Label a window, or the texts that the target writes after its openings."""
        key = mx.random.key((self._labelling.seed << 32) + number)
        if self._labelling.kind == "generated":
            return self._generated(window, key)
        text = np.array(window, np.int32)
        follows = np.append(text[1:], np.int32(NO_LABEL))
        if self._labelling.kind == "text":
            ids = np.stack([text, follows, follows], axis=1)
            return Labels(np.zeros((len(text), 1), np.float16), ids)
        logits = self._model(mx.array(text)[None])[0]
        chosen = np.array(choose(logits, key, self._labelling), np.int32)
        return _labels(text, chosen, *most_probable(logits))

    def _generated(self, window: list[TargetId], key: Array) -> Labels:
        """The texts are read again when they are written, at the price of a prompt."""
        length, openings = len(window), openings_of(window, self._bos)
        steps = write(
            self._model,
            openings.tolist(),
            key,
            length=length - OPENING,
            temperature=self._labelling.temperature,
            stop_ids=self._stop_ids,
        )
        written = np.array(mx.stack(list(steps), axis=1), np.int32)
        goes_on = before_stop(written, self._stop_ids)
        found = []
        for opening, ids, own in zip(openings, written, goes_on, strict=True):
            # The id that ends a text belongs to it.
            text = np.concatenate([opening, ids[: own.sum() + 1]]).astype(np.int32)
            logits = self._model(mx.array(text)[None])[0]
            follows = np.append(text[1:], np.int32(NO_LABEL))
            labels = _labels(text, follows, *most_probable(logits))
            rest = (0, length - len(text)), (0, 0)
            ended = np.pad(labels.ids, rest, constant_values=NO_LABEL)
            found.append(Labels(np.pad(labels.values, rest), ended))
        return Labels(
            np.concatenate([one.values for one in found]),
            np.concatenate([one.ids for one in found]),
        )


def _labels(
    text: NDArray[np.int32],
    follows: NDArray[np.int32],
    ids: NDArray[np.int32],
    probabilities: NDArray[np.float16],
) -> Labels:
    return Labels(probabilities, np.concatenate([text[:, None], follows[:, None], ids], axis=1))


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
