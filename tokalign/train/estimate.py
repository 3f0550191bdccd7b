"""What a training run will take, known before anything is loaded.

It is arithmetic. Bytes are upper estimates of what mlx holds at once: the weights, and the arrays
of one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tokalign.errors import BundleError
from tokalign.storage import parse_json
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a target or a draft model that costs depend on.

    attention_width: numbers in the queries of one position and layer. kv_width: in its keys, and as
    many in its values.
    weight_bytes: of all weights. parameters: how many numbers they stand for.
    """

    hidden_size: int
    vocabulary_size: int
    layers: int
    heads: int
    attention_width: int
    kv_width: int
    intermediate_size: int
    parameters: float
    weight_bytes: float
    is_quantized: bool

    def trained(self, lora: int | None) -> float:
        """How many numbers are trained: all, or LoRA adapters of a rank."""
        if lora is None:
            return self.parameters
        h, attention = self.hidden_size, 2 * self.hidden_size + 2 * self.kv_width
        return self.layers * lora * (4 * h + attention + 3 * (h + self.intermediate_size))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], weight_bytes: float) -> Self:
        """Read `config.json`. Raises: KeyError for a configuration that lacks a size."""
        sizes = {**config, **config.get("text_config", {})}
        heads = sizes["num_attention_heads"]
        head_size = sizes.get("head_dim") or sizes["hidden_size"] // heads
        return cls(
            hidden_size=sizes["hidden_size"],
            vocabulary_size=sizes["vocab_size"],
            layers=sizes["num_hidden_layers"],
            heads=heads,
            attention_width=heads * head_size,
            kv_width=(sizes.get("num_key_value_heads") or heads) * head_size,
            intermediate_size=sizes["intermediate_size"],
            parameters=8 * weight_bytes / _bits_per_weight(config),
            weight_bytes=weight_bytes,
            is_quantized=bool(config.get("quantization")),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """The shape of a model in mlx-lm's layout. Raises: BundleError if a size is missing."""
        size = sum(path.stat().st_size for path in folder.glob("model*.safetensors"))
        try:
            return cls.from_config(parse_json((folder / "config.json").read_bytes()), size)
        except (KeyError, ValueError) as error:
            raise BundleError(
                f"{folder / 'config.json'} does not tell {error}, which an estimate needs; "
                "train without --dry-run"
            ) from error


def _bits_per_weight(config: Mapping[str, Any]) -> float:
    quantization = config.get("quantization")
    if quantization:  # a scale and a bias of 16 bits for each group
        return float(quantization["bits"] + 32 / quantization["group_size"])
    return 32.0 if "32" in str(config.get("torch_dtype", config.get("dtype", ""))) else 16.0


class Work(NamedTuple):
    """What one kind takes.

    parameters: numbers that are trained. held: bytes of the model beside them. step, measured:
    numbers that a step keeps for its gradients, and that a measurement keeps. flop: of learning
    from a position. rows, size: of the target, and bytes on disk, for a label. again: rows of the
    target for a position that is learned from.
    """

    parameters: float
    held: float
    step: float
    measured: float
    flop: float
    rows: int
    size: float
    again: int = 0


def recurrent_work(
    target: ModelShape, drafter: DrafterConfig, labels: LabelOptions, options: FitOptions
) -> Work:
    """A recurrent drafter."""
    guesses, own = labels.labelling.future - 1, drafter.parameters
    kept = guesses * (4 + 3 * drafter.blocks) * drafter.exit_width
    return _drafter_work(target, labels, options, own, 2.0 * guesses * own, kept)


def layers_work(
    target: ModelShape,
    shape: BlockShape,
    labels: LabelOptions,
    options: FitOptions,
    reads: int = 1,
) -> Work:
    """A drafter that reads layers.

    reads: rows of the target's width that its attention is made of: an embedding, too, in EAGLE-3.
    """
    h, taps, future = target.hidden_size, len(labels.labelling.taps), labels.labelling.future
    layer = reads * h * (target.attention_width + 2 * target.kv_width)
    layer += h * target.attention_width + 3 * h * target.intermediate_size
    window = taps * h * h + 2 * shape.layers * h * target.kv_width  # for each position of a draft
    activations = 4 * h + 3 * target.intermediate_size + 2 * target.heads * labels.window
    return _drafter_work(
        target,
        labels,
        options,
        parameters=shape.layers * layer + taps * h * h,
        flop=2.0 * (future * shape.layers * layer + STRIDE * window),
        kept=future * shape.layers * activations,
    )


def _drafter_work(
    target: ModelShape,
    labels: LabelOptions,
    options: FitOptions,
    parameters: int,
    flop: float,
    kept: int,
) -> Work:
    """flop: of a draft forward, without the head. kept: numbers that a draft keeps."""
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
        flop=3.0 * flop + 4.0 * guesses * candidates * h,
        rows=labelling.rows_per_position,
        size=states + 4 * (1 + labelling.future) + 6 * guesses * labelling.probable,
        again=0 if labelling.keeps_states else STRIDE,
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
        rows=labels.labelling.rows_per_position,
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
        rows += positions * work.rows
        again += round(work.again * learned)
        disk += positions * work.size
        flop += learned * work.flop
    labelling = [_pass_memory(target, labels.window, work.rows) for labels, work in parts]
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


def _pass_memory(target: ModelShape, window: int, rows: int) -> float:
    """Bytes of the last pass over a window: weights, cache, logits, scores of a layer, activations.
    rows: for each position of the window."""
    columns = window * max(1, rows)  # of the attention's scores
    cache = columns * target.layers * 2 * target.kv_width * _FLOAT
    logits = 2 * window * target.vocabulary_size * _FLOAT
    scores = 2 * target.heads * window * columns * _FLOAT
    layer = window * (6 * target.hidden_size + 3 * target.intermediate_size) * _FLOAT
    return target.weight_bytes + cache + logits + scores + layer


_SLOW = 0.01
"""Seconds after which a product is large enough to tell a machine's speed."""


def machine_tflops() -> float:
    """10^12 FLOP a second of large matrix products on this machine: the best of three."""
    import mlx.core as mx  # sizes alone need no mlx

    best, size = 0.0, 256
    while best < _SLOW and size < 8192:
        size, times = 2 * size, list[float]()
        square = mx.ones((size, size))
        for _ in range(3):
            began = perf_counter()
            mx.eval(square @ square)
            times.append(perf_counter() - began)
        best = min(times)
    return float(2 * size**3 / best / 1e12)
