"""What a training run will take, known before anything is loaded.

It is arithmetic. Bytes are upper estimates of what mlx holds at once: the weights, and the arrays
of one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tokalign.names.model_shape import ModelShape
from tokalign.train.options import (
    MEASURED,
    MOST_PROBABLE,
    STRIDE,
    BlockShape,
    FitOptions,
    LabelOptions,
)

if TYPE_CHECKING:
    from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig

_FLOAT = 4
_WEIGHT_COPIES = 8
"""At the end of a step: weights, gradients, two moments, and the new ones of each."""
_LOGIT_COPIES = 4
"""In a step: logits, weighted ones, and the gradients of both."""


class Work(NamedTuple):
    """What one kind takes.

    parameters: numbers that are trained. held: bytes of the model beside them. step, measured:
    numbers that a step keeps for its gradients, and that a measurement keeps. flop: of learning
    from a position. size: bytes on disk for a label.
    """

    parameters: float
    held: float
    step: float
    measured: float
    flop: float
    size: float


def recurrent_work(
    target: ModelShape, drafter: DrafterConfig, labels: LabelOptions, options: FitOptions
) -> Work:
    """A recurrent drafter."""
    guesses, own = labels.labelling.future - 1, drafter.parameters
    kept = guesses * (4 + 3 * drafter.blocks) * drafter.exit_width
    return _drafter_work(target, labels, options, own, guesses * own, kept)


def layers_work(
    target: ModelShape, shape: BlockShape, labels: LabelOptions, options: FitOptions, reads: int = 1
) -> Work:
    """A drafter that reads layers.

    reads: rows of the target's width that its attention is made of: an embedding, too, in EAGLE-3.
    """
    h, taps, future = target.hidden_size, len(labels.labelling.taps), labels.labelling.future
    layer = reads * h * (target.attention_width + 2 * target.kv_width)
    layer += h * target.attention_width + 3 * h * target.intermediate_size
    window = taps * h * h + 2 * shape.layers * h * target.kv_width  # for each position of a draft
    kept = 4 * h + 3 * target.intermediate_size + 2 * target.heads * labels.window
    own, products = shape.layers * layer, future * shape.layers * layer + STRIDE * window
    return _drafter_work(
        target, labels, options, own + taps * h * h, products, future * shape.layers * kept
    )


def _drafter_work(
    target: ModelShape,
    labels: LabelOptions,
    options: FitOptions,
    parameters: int,
    products: int,
    kept: int,
) -> Work:
    """products: multiplications of a draft, without the head. kept: numbers that a draft keeps."""
    labelling, h = labels.labelling, target.hidden_size
    guesses = labelling.future - 1
    candidates = options.candidates or target.vocabulary_size
    states = 2 * h * max(1, len(labelling.taps)) * labelling.keeps_states
    return Work(
        parameters=parameters,
        held=target.weight_bytes,
        step=2 * candidates * h + options.batch * (_LOGIT_COPIES * guesses * candidates + kept),
        measured=3 * MEASURED * guesses * target.vocabulary_size,
        # Forward and twice that backward; rows of the target's head are constant: once.
        flop=6.0 * products + 4.0 * guesses * candidates * h,
        size=states + 4 * (1 + labelling.future) + 6 * guesses * labelling.probable,
    )


def teaching_work(draft: ModelShape, labels: LabelOptions, options: FitOptions) -> Work:
    """A draft model, without the target in memory.

    An id of the target is taken to be one of the draft model's.
    """
    is_text, ids = labels.labelling.kind == "text", max(options.batch, labels.window)
    candidates = draft.vocabulary_size  # at most: covers of a batch's labels are among them
    if options.losses == ("text",) and options.candidates is not None:
        candidates = min(candidates, options.candidates + ids)
    of_layer = 8 * draft.hidden_size + 4 * draft.intermediate_size + 2 * draft.heads * labels.window
    return Work(
        parameters=draft.trained(options.lora),
        held=draft.weight_bytes,
        step=ids * (_LOGIT_COPIES * candidates + draft.layers * of_layer),
        measured=3 * labels.window * draft.vocabulary_size,
        flop=(6.0 if options.lora is None else 4.0) * draft.parameters,  # frozen: no gradients
        size=6 * (1 if is_text else MOST_PROBABLE) + 8,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Memory and labels in 10^9 bytes; rows of the target's passes; work in 10^12 FLOP."""

    labelling_memory_gb: float
    training_memory_gb: float
    labels_on_disk_gb: float
    rows_of_the_target: int
    labelling_tflop: float
    training_tflop: float


def estimate(
    target: ModelShape, parts: Sequence[tuple[LabelOptions, Work]], options: FitOptions
) -> Estimate:
    """Estimate a run. parts: sets of labels that it learns, made one after another in the same
    memory, and what each takes."""
    rows = again = 0
    disk = flop = 0.0
    for labels, work in parts:
        positions, learned = labels.positions + labels.held_out, labels.positions * options.epochs
        rows += positions * labels.labelling.rows_per_position
        again += round(STRIDE * learned) * (not labels.labelling.keeps_states)
        disk += positions * work.size
        flop += learned * work.flop
    labelling = [
        target.pass_bytes(labels.window, max(1, labels.labelling.rows_per_position))
        for labels, _ in parts
    ]
    training = [
        work.held + _FLOAT * (_WEIGHT_COPIES * work.parameters + max(work.step, work.measured))
        for _, work in parts
    ]
    return Estimate(
        labelling_memory_gb=max(labelling) / 1e9,
        training_memory_gb=max(training) / 1e9,
        labels_on_disk_gb=disk / 1e9,
        rows_of_the_target=rows + again,
        labelling_tflop=2.0 * target.parameters * rows / 1e12,
        training_tflop=(flop + 2.0 * target.parameters * again) / 1e12,
    )
