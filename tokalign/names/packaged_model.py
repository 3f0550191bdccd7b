"""A model that lies inside an installed distribution as a GGUF file, in mlx-lm's layout.

For a first run without the Hub: the folder is made once, in the user's cache. The weights keep
their bits (MLX reads blocks of Q4_1 and Q8_0 as its own quantization with groups of 32), but on a
CPU, where MLX multiplies such weights more slowly, they become float32.
Source: llama.cpp's docs/gguf.md for the names of fields and tensors. Its llama tensors have the two
halves of every rotated pair of rows side by side; mlx-lm wants all first halves, then all second.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tokalign.installation import needing
from tokalign.storage import cache_folder, writing_to

_GROUP, _BITS, _PARTS = 32, 4, ("scales", "biases")
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_CONTROL = 3
"""llama.cpp's type of tokens such as `<|im_end|>`."""


def packaged_model(file: Path) -> Path:
    """The folder of the "llama" model in a GGUF file, which is written when it is first asked for.
    Raises: MissingAssetError without mlx; UsageError for a cache that cannot be written to."""
    with needing(f"{file.name} is read by mlx, which is not installed; install it", extra="mlx"):
        import mlx.core as mx
    quantized = mx.default_device().type != mx.cpu
    name = f"{file.stem.lower()}-{'mlx' if quantized else 'float32'}"
    folder = cache_folder() / "models" / name
    if folder.exists():
        return folder
    with writing_to(folder, "set TOKALIGN_CACHE to a folder that you may write to"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        half = Path(mkdtemp(prefix=f"unfinished-{folder.name}-", dir=folder.parent))
        try:
            _convert(mx, file, half, quantized=quantized)
            if not folder.exists():  # else another process was faster
                half.rename(folder)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return folder


def _convert(mx: Any, file: Path, folder: Path, *, quantized: bool) -> None:
    loaded, about = mx.load(str(file), return_metadata=True)
    facts = {
        name: value.tolist() if isinstance(value, mx.array) else value
        for name, value in about.items()
    }
    arrays = {}
    for name, array in loaded.items():
        base, kind = name.rsplit(".", 1)
        inner = re.fullmatch(r"blk\.(\d+)\.(\w+)", base)
        if inner is None:
            arrays[f"{_OUTER[base]}.{kind}"] = array
            continue
        if inner[2] in ("attn_q", "attn_k"):
            heads = facts["llama.attention.head_count" + "_kv" * (inner[2] == "attn_k")]
            paired = array.reshape(heads, -1, 2, array.shape[-1])
            array = paired.swapaxes(1, 2).reshape(array.shape)
        arrays[f"model.layers.{inner[1]}.{_INNER[inner[2]]}.{kind}"] = array
    if not quantized:
        arrays = _dequantized(mx, arrays)
    # An open file, not a path: mlx would hide why a write failed.
    with (folder / "model.safetensors").open("wb") as weights:
        mx.save_safetensors(weights, arrays, {"format": "mlx"})
    for name, content in (
        ("config.json", _config(facts, arrays)),
        ("tokenizer.json", _tokenizer(facts)),
        ("tokenizer_config.json", _tokenizer_config(facts)),
    ):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _dequantized(mx: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Weights in float32; those that have no scales are so already."""
    dense = {}
    for name, array in arrays.items():
        base, _, kind = name.rpartition(".")
        if f"{base}.scales" not in arrays:
            dense[name] = array
        elif kind == "weight":
            scales, biases = (arrays[f"{base}.{of}"].astype(mx.float32) for of in _PARTS)
            bits = _bits(array, scales)
            dense[name] = mx.dequantize(array, scales, biases, group_size=_GROUP, bits=bits)
    return dense


def _bits(weight: Any, scales: Any) -> int:
    """Bits of one weight; a group of 32 weights is packed into `bits` numbers of 32 bits."""
    return int(weight.shape[-1] // scales.shape[-1])


def _config(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    each = {
        (base := name.removesuffix(".scales")): {
            "group_size": _GROUP,
            "bits": _bits(arrays[f"{base}.weight"], scales),
        }
        for name, scales in arrays.items()
        if name.endswith(".scales")
    }
    quantization = {"quantization": {"group_size": _GROUP, "bits": _BITS, **each}} if each else {}
    llama = {name.removeprefix("llama."): value for name, value in facts.items()}
    return {
        "model_type": "llama",
        "hidden_size": llama["embedding_length"],
        "num_hidden_layers": llama["block_count"],
        "intermediate_size": llama["feed_forward_length"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "rms_norm_eps": llama["attention.layer_norm_rms_epsilon"],
        "rope_theta": llama["rope.freq_base"],
        "max_position_embeddings": llama["context_length"],
        "vocab_size": llama["vocab_size"],
        "tie_word_embeddings": "lm_head.weight" not in arrays,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        **quantization,
    }


def _tokenizer(facts: Mapping[str, Any]) -> dict[str, Any]:
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": i, "content": token, "special": True, **flags}
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _CONTROL
    ]
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, _BYTE_LEVEL]},
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in facts["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(facts: Mapping[str, Any]) -> dict[str, Any]:
    tokens = facts["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": facts["tokenizer.chat_template"],
        "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
        "clean_up_tokenization_spaces": False,
    }
