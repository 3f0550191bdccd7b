"""What a caller chooses, and what that will take: known before anything is loaded.

The estimate is arithmetic. Its bytes are upper estimates of what mlx holds at once: the weights,
and the arrays of one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from tokalign.errors import BundleError
from tokalign.storage import parse_json

if TYPE_CHECKING:
    from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig

Kind = Literal["greedy", "sampled", "text"]
DrafterKind = Literal["redrafter", "dflash", "eagle3", "model"]
Loss = Literal["text", "marginal", "kl", "acceptance"]

STRIDE = 4
"""A step drafts blocks after every fourth position of its windows, an epoch after each of them."""

MEASURED = 64
"""Drafts of a batch where acceptance is measured."""

MOST_PROBABLE = 12
"""Ids of the target whose probabilities a draft model may learn at each position."""

MOST_SEED = (1 << 32) - 1
"""A key of the device has 64 bits, of which the seed has half and the window's number the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """Which ids follow a position.

    kind: the target's own ids, "greedy" or "sampled", or those of the "text".
    future: how many ids. The target has committed the first one when a drafter starts, which learns
        to guess the others. temperature, seed (at most MOST_SEED): of sampled ids.
    taps: the layers whose outputs a drafter reads; none for the last hidden state. probable: how
        many of the target's most probable ids are kept, with probabilities, at each guess.
    keeps_states: whether the states are kept, too; otherwise the ids of the text are, and the
        target reads them again in every step.
    """

    kind: Kind = "greedy"
    future: int = 5
    temperature: float = 0.7
    seed: int = 0
    taps: tuple[int, ...] = ()
    probable: int = 0
    keeps_states: bool = True

    @property
    def rows_per_position(self) -> int:
        """Rows of the target for each position."""
        return 1 if self.kind == "text" else self.future

    def positions_of(self, window: int) -> int:
        """How many positions are labelled for a window of this many ids, at most."""
        return window - self.future if self.kind == "text" else window


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What a target writes: about `tokens` tokens.

    prompts: the lines of the corpus are answered; otherwise its texts are continued.
    seed: at most MOST_SEED.
    """

    tokens: int
    prompts: bool = False
    temperature: float = 0.7
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """What is labelled, and how.

    positions, held_out: about how many to train on and to measure acceptance on; fewer if the
        corpus has fewer. window: ids that the target reads at once. seed: of the paragraphs drawn.
    labelling: of the positions to train on; those held out are labelled with the target's greedy
        ids, or with the text's if the target takes no trees or a draft model learns them.
    """

    positions: int = 1_000_000
    held_out: int = 8_192
    window: int = 256
    seed: int = 0
    labelling: Labelling = field(default_factory=Labelling)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """A drafter that reads layers of its target.

    layers: its own. block: ids of a draft, the last committed one included. taps: the target's
    layers that it reads; none for those of `read_of`. causal: an id of a block sees only those
    before it.
    """

    layers: int = 1
    block: int = 8
    taps: tuple[int, ...] = ()
    causal: bool = False

    def read_of(self, layers: int) -> tuple[int, ...]:
        """The layers that it reads of a target with so many: without a choice the second one, the
        middle one, what the drafter's first layer reads, and the last one."""
        places = {1, layers // 2, layers - self.layers - 1, layers - 1}
        return self.taps or tuple(sorted(place for place in places if 0 <= place < layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """How a drafter or a draft model is trained on labels.

    epochs: how often each position is seen. batch, candidates, seed: as of `Batches`.
    learning_rate: as of `Training`. evaluations: how often acceptance is measured and state saved.
    patience: training stops after this many evaluations without a better one; see `Course`.
    losses: see `losses_of`. decay: the weight of a block's position over that of the one before it.
    lora: the rank of a draft model's LoRA adapters; None to train all layers. keep: the share of
        its own weights in the result.
    """

    epochs: float = 2.0
    batch: int = 256
    candidates: int | None = 4_096
    learning_rate: float = 1e-3
    evaluations: int = 20
    patience: int | None = 4
    seed: int = 0
    losses: tuple[Loss, ...] = ("marginal",)
    decay: float = 0.8
    lora: int | None = None
    keep: float = 0.0


# -- estimates -------------------------------------------------------------------------------------

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Memory and labels in 10^9 bytes; rows of the target's passes; work in 10^12 FLOP."""

    labelling_memory_gb: float
    training_memory_gb: float
    labels_on_disk_gb: float
    rows_of_the_target: int
    labelling_tflop: float
    training_tflop: float


class DrafterWork(NamedTuple):
    """parameters: how many numbers a drafter has. flop: of a draft forward, without the head.
    kept: numbers that a draft keeps for its gradients."""

    parameters: int
    flop: float
    kept: int


def recurrent_work(drafter: DrafterConfig, labels: LabelOptions) -> DrafterWork:
    """What a recurrent drafter takes."""
    guesses = labels.labelling.future - 1
    kept = guesses * (4 + 3 * drafter.blocks) * drafter.exit_width
    return DrafterWork(drafter.parameters, 2.0 * guesses * drafter.parameters, kept)


def layers_work(
    target: ModelShape, shape: BlockShape, labels: LabelOptions, reads: int = 1
) -> DrafterWork:
    """What a drafter that reads layers takes.

    reads: rows of the target's width that its attention is made of: an embedding, too, in EAGLE-3.
    """
    h, taps, future = target.hidden_size, len(labels.labelling.taps), labels.labelling.future
    layer = reads * h * (target.attention_width + 2 * target.kv_width)
    layer += h * target.attention_width + 3 * h * target.intermediate_size
    window = taps * h * h + 2 * shape.layers * h * target.kv_width  # for each position of a draft
    activations = 4 * h + 3 * target.intermediate_size + 2 * target.heads * labels.window
    return DrafterWork(
        parameters=shape.layers * layer + taps * h * h,
        flop=2.0 * (future * shape.layers * layer + STRIDE * window),
        kept=future * shape.layers * activations,
    )


def estimate(
    target: ModelShape, work: DrafterWork, labels: LabelOptions, options: FitOptions
) -> Estimate:
    """Estimate how a drafter is trained."""
    positions, labelling = labels.positions + labels.held_out, labels.labelling
    h, guesses = target.hidden_size, labelling.future - 1
    candidates = options.candidates or target.vocabulary_size
    drafts = labels.positions * options.epochs
    rows = positions * labelling.rows_per_position
    columns = labels.window * labelling.rows_per_position
    again = 0 if labelling.keeps_states else round(STRIDE * drafts)
    states = 2 * h * max(1, len(labelling.taps)) * labelling.keeps_states
    ids = 4 * (1 + labelling.future) + 6 * guesses * labelling.probable
    step = _WEIGHT_COPIES * work.parameters + 2 * candidates * h
    step += options.batch * (_LOGIT_COPIES * guesses * candidates + work.kept)
    measured = 3 * MEASURED * guesses * target.vocabulary_size
    # Forward and twice that backward; rows of the target's head are constant: once.
    training = drafts * (3.0 * work.flop + 4.0 * guesses * candidates * h)
    return Estimate(
        labelling_memory_gb=_pass_memory(target, labels.window, columns) / 1e9,
        training_memory_gb=(target.weight_bytes + _FLOAT * max(step, measured)) / 1e9,
        labels_on_disk_gb=positions * (states + ids) / 1e9,
        rows_of_the_target=rows + again,
        labelling_tflop=2.0 * target.parameters * rows / 1e12,
        training_tflop=(training + 2.0 * target.parameters * again) / 1e12,
    )


def estimate_teaching(
    target: ModelShape, draft: ModelShape, labels: LabelOptions, options: FitOptions
) -> Estimate:
    """Estimate how a draft model is taught. The target is not in memory while it learns.

    An id of the target is taken to be one of the draft model's.
    """
    positions, is_text = labels.positions + labels.held_out, labels.labelling.kind == "text"
    rows, probable = (0, 1) if is_text else (positions, MOST_PROBABLE)
    rank, steps = options.lora, labels.positions * options.epochs
    per_id = 6.0 if rank is None else 4.0  # frozen weights have no gradients
    return Estimate(
        labelling_memory_gb=_pass_memory(target, labels.window, labels.window) / 1e9,
        training_memory_gb=(draft.weight_bytes + _lesson_memory(draft, labels, options)) / 1e9,
        labels_on_disk_gb=positions * (6 * probable + 8) / 1e9,
        rows_of_the_target=rows,
        labelling_tflop=2.0 * target.parameters * rows / 1e12,
        training_tflop=steps * per_id * draft.parameters / 1e12,
    )


def _lesson_memory(draft: ModelShape, labels: LabelOptions, options: FitOptions) -> float:
    """Bytes of one step: weights, logits, and what every layer keeps for its gradients."""
    ids = max(options.batch, labels.window)
    candidates = draft.vocabulary_size  # at most: covers of a batch's labels are among them
    if options.losses == ("text",) and options.candidates is not None:
        candidates = min(candidates, options.candidates + ids)
    weights = _WEIGHT_COPIES * draft.trained(options.lora) * _FLOAT
    logits = _LOGIT_COPIES * ids * candidates * _FLOAT
    of_layer = 8 * draft.hidden_size + 4 * draft.intermediate_size + 2 * draft.heads * labels.window
    measured = 3 * labels.window * draft.vocabulary_size * _FLOAT
    return weights + max(logits + ids * draft.layers * of_layer * _FLOAT, measured)


def _pass_memory(target: ModelShape, window: int, columns: int) -> float:
    """Bytes of the last pass over a window: weights, cache, logits, scores of a layer, activations.

    columns: of the attention's scores.
    """
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
