"""What a training run will take, by arithmetic: memory, disk and work, before anything is loaded.

The figures are upper estimates of what mlx holds at once: the weights, and the arrays of one pass.
Time is work divided by a speed that the caller knows of the machine, that of reading a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tokalign.errors import BundleError
from tokalign.storage import parse_json
from tokalign.train.options import MOST_PROBABLE, FitOptions, LabelOptions

if TYPE_CHECKING:
    from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig

_FLOAT = 4
_WEIGHT_COPIES = 8
"""Arrays as large as the drafter's weights, at the end of a step: weights, gradients, two moments,
and the new ones of each before the old ones are let go."""
_LOGIT_COPIES = 4
"""Arrays as large as the logits of a step: logits, weighted ones, and the gradients of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a target or a draft model that costs depend on.

    kv_width: numbers in the keys of one position and layer, and as many in its values.
    weight_bytes: of all weights. parameters: how many numbers they stand for.
    """

    hidden_size: int
    vocabulary_size: int
    layers: int
    heads: int
    kv_width: int
    intermediate_size: int
    parameters: float
    weight_bytes: float
    is_quantized: bool

    def trained(self, lora: int | None) -> float:
        """How many numbers are trained: all but an embedding, or LoRA adapters of a rank."""
        if lora is None:
            return self.parameters - self.vocabulary_size * self.hidden_size
        h, attention = self.hidden_size, 2 * self.hidden_size + 2 * self.kv_width
        return self.layers * lora * (4 * h + attention + 3 * (h + self.intermediate_size))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], weight_bytes: float) -> Self:
        """The shape that a model's `config.json` tells, with so many bytes of weights.

        Raises: KeyError for a configuration that lacks a size.
        """
        sizes = {**config, **config.get("text_config", {})}
        heads = sizes["num_attention_heads"]
        head_size = sizes.get("head_dim") or sizes["hidden_size"] // heads
        return cls(
            hidden_size=sizes["hidden_size"],
            vocabulary_size=sizes["vocab_size"],
            layers=sizes["num_hidden_layers"],
            heads=heads,
            kv_width=(sizes.get("num_key_value_heads") or heads) * head_size,
            intermediate_size=sizes["intermediate_size"],
            parameters=8 * weight_bytes / _bits_per_weight(config),
            weight_bytes=weight_bytes,
            is_quantized=bool(config.get("quantization")),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """The shape of a model in mlx-lm's layout; weights are not read.

        Raises: BundleError for a configuration that lacks a size.
        """
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
    """Bytes of memory while labelling and while training, with the target loaded in both; bytes of
    labels on disk; rows of the target's passes; multiplications and additions, in FLOP.
    """

    labelling_memory: float
    training_memory: float
    disk: float
    rows: int
    labelling_work: float
    training_work: float


def estimate(
    target: ModelShape, drafter: DrafterConfig, labels: LabelOptions, options: FitOptions
) -> Estimate:
    """Estimate how a recurrent drafter is trained."""
    positions, labelling = labels.positions + labels.held_out, labels.labelling
    candidates = options.candidates or target.vocabulary_size
    guesses = positions * options.epochs * (labelling.future - 1)
    rows = positions * labelling.rows_per_position
    columns = labels.window * labelling.rows_per_position
    # Forward and twice that backward; rows of the target's head are constant: once.
    per_guess = 6.0 * drafter.parameters + 4.0 * candidates * target.hidden_size
    step_rows = options.batch * (labelling.future - 1)
    activations = step_rows * (4 + 3 * drafter.blocks) * drafter.exit_width
    step = _WEIGHT_COPIES * drafter.parameters + _LOGIT_COPIES * step_rows * candidates
    step += 2 * candidates * target.hidden_size + activations
    measured = 3 * options.batch * target.vocabulary_size
    return Estimate(
        labelling_memory=target.weight_bytes + _pass_memory(target, labels.window, columns),
        training_memory=target.weight_bytes + _FLOAT * max(step, measured),
        disk=positions * (2 * target.hidden_size + 4 * labelling.future),
        rows=rows,
        labelling_work=2.0 * target.parameters * rows,
        training_work=guesses * per_guess,
    )


def estimate_teaching(
    target: ModelShape, draft: ModelShape, labels: LabelOptions, options: FitOptions
) -> Estimate:
    """Estimate how a draft model is taught. The target is not in memory while it learns.

    An id of the target is taken to be one of the draft model's.
    """
    positions = labels.positions + labels.held_out
    rows = 0 if labels.labelling.kind == "text" else positions
    rank, steps = options.lora, labels.positions * options.epochs
    labelling = _pass_memory(target, labels.window, labels.window)
    per_id = 6.0 if rank is None else 4.0  # frozen weights have no gradients
    return Estimate(
        labelling_memory=target.weight_bytes + labelling,
        training_memory=draft.weight_bytes + _lesson_memory(draft, labels, options),
        disk=positions * (6 * MOST_PROBABLE + 8),
        rows=rows,
        labelling_work=2.0 * target.parameters * rows,
        training_work=steps * per_id * draft.parameters,
    )


def _lesson_memory(draft: ModelShape, labels: LabelOptions, options: FitOptions) -> float:
    """Bytes of one step: weights, logits, and what every layer keeps for its gradients."""
    ids = max(options.batch, labels.window)
    candidates = draft.vocabulary_size  # at most: besides those drawn, all ids that the texts have
    weights = _WEIGHT_COPIES * draft.trained(options.lora) * _FLOAT
    logits = _LOGIT_COPIES * ids * candidates * _FLOAT
    of_layer = 8 * draft.hidden_size + 4 * draft.intermediate_size + 2 * draft.heads * labels.window
    measured = 3 * labels.window * draft.vocabulary_size * _FLOAT
    return weights + max(logits + ids * draft.layers * of_layer * _FLOAT, measured)


def _pass_memory(target: ModelShape, window: int, columns: int) -> float:
    """Bytes of the last pass over a window: cache, logits, scores of a layer, activations.

    columns: of the attention's scores.
    """
    cache = columns * target.layers * 2 * target.kv_width * _FLOAT
    logits = 2 * window * target.vocabulary_size * _FLOAT
    scores = 2 * target.heads * window * columns * _FLOAT
    layer = window * (6 * target.hidden_size + 3 * target.intermediate_size) * _FLOAT
    return cache + logits + scores + layer
