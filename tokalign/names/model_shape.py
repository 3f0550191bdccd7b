"""The sizes of a model, as its folder says them before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tokalign.errors import BundleError
from tokalign.names.memory import weights_bytes


def layer_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's `config.json` says of its layers. Raises: KeyError."""
    sizes = {**config, **config.get("text_config", {})}
    heads = sizes["num_attention_heads"]
    return sizes | {
        "head_dim": sizes.get("head_dim") or sizes["hidden_size"] // heads,
        "num_key_value_heads": sizes.get("num_key_value_heads") or heads,
    }


_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("d_model", "n_embd", "model_dim"),
    "num_hidden_layers": ("n_layers", "n_layer", "num_layers"),
    "num_attention_heads": ("n_heads", "n_head", "num_heads"),
    "num_key_value_heads": ("kv_n_heads", "n_kv_heads", "num_kv_heads"),
    "intermediate_size": ("ffn_hidden_size", "mlp_hidden_size", "n_inner"),
    "max_position_embeddings": ("max_seq_len", "n_positions"),
}
"""What some architectures call a size, such as DBRX, GPT-2 and EXAONE."""


def model_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """`layer_sizes` of a target or a draft model, whatever its architecture calls them. Raises:
    KeyError."""
    sizes = {**config}
    for part in ("text_config", "attn_config", "ffn_config"):
        sizes |= config.get(part) or {}
    for usual, others in _OTHER_NAMES.items():
        stated = (sizes[name] for name in (usual, *others) if sizes.get(name) is not None)
        sizes[usual] = next(stated, None)
    sizes = {name: size for name, size in sizes.items() if size is not None}
    return layer_sizes({"intermediate_size": 4 * sizes["hidden_size"], **sizes})


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

    def pass_bytes(self, rows: int, passes: int = 1) -> float:
        """Bytes that the last of some passes of so many rows each holds: weights, cache, logits,
        scores of a layer, activations, in float32."""
        columns = rows * passes  # of the attention's scores
        cache = columns * self.layers * 2 * self.kv_width
        logits = 2 * rows * self.vocabulary_size
        scores = 2 * self.heads * rows * columns
        layer = rows * (6 * self.hidden_size + 3 * self.intermediate_size)
        return self.weight_bytes + 4 * (cache + logits + scores + layer)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], weight_bytes: float) -> Self:
        """Read `config.json`. Raises: KeyError for a configuration that lacks a size."""
        sizes = model_sizes(config)
        return cls(
            hidden_size=sizes["hidden_size"],
            vocabulary_size=sizes["vocab_size"],
            layers=sizes["num_hidden_layers"],
            heads=sizes["num_attention_heads"],
            attention_width=sizes["num_attention_heads"] * sizes["head_dim"],
            kv_width=sizes["num_key_value_heads"] * sizes["head_dim"],
            intermediate_size=sizes["intermediate_size"],
            parameters=8 * weight_bytes / _bits_per_weight(config),
            weight_bytes=weight_bytes,
            is_quantized=bool(config.get("quantization")),
        )

    @classmethod
    def from_folder(cls, folder: Path, config: Mapping[str, Any], *, remedy: str) -> Self:
        """The shape of a model in mlx-lm's layout. config: of the folder. Raises: BundleError, with
        the remedy, if a size is missing."""
        try:
            return cls.from_config(config, weights_bytes(folder))
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise BundleError(
                f"{folder / 'config.json'} does not tell {error}, which is needed here; {remedy}"
            ) from error


def _bits_per_weight(config: Mapping[str, Any]) -> float:
    quantization = config.get("quantization")
    if quantization:  # a scale and a bias of 16 bits for each group
        return float(quantization["bits"] + 32 / quantization["group_size"])
    return 32.0 if "32" in str(config.get("torch_dtype", config.get("dtype", ""))) else 16.0
