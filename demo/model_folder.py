"""A model folder as mlx-lm loads it: `config.json`, `model.safetensors`, the tokenizer's files."""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model
from vocabularies import END_OF_TEXT, END_OF_TURN

TOKENIZER_FILES = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a Llama model: blocks, floats per position, floats inside an MLP, heads."""

    layers: int
    width: int
    hidden: int
    heads: int


def make_config(shape: Shape, vocab_size: int) -> dict[str, Any]:
    """Return `config.json`: the Llama architecture in the keys mlx-lm and transformers share."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "intermediate_size": shape.hidden,
        "vocab_size": vocab_size,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": [END_OF_TURN, END_OF_TEXT],
    }


def write_model(model: Model, config: dict[str, Any], tokenizer_from: Path, out: Path) -> None:
    """Write float16 weights, config and tokenizer beside `out`, then move them there together."""
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    folder.chmod(0o755)
    weights = {name: value.astype(mx.float16) for name, value in tree_flatten(model.parameters())}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer_from / name, folder / name)
    # No reader sees the weights of one beside the other's config.
    retired = out.with_name(out.name + ".retired")
    if out.exists():
        out.rename(retired)
    folder.rename(out)
    shutil.rmtree(retired, ignore_errors=True)


def read_weights(model: Model, folder: Path) -> None:
    """Load the float16 weights of `folder` into a float32 model, to train on from there."""
    model.load_weights(str(folder / "model.safetensors"))
    model.set_dtype(mx.float32)
