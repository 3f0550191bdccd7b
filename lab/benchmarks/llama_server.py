"""llama.cpp's own server with a Llama model of MLX's layout, in float32, for `serve_load.py`.

    PYTHON lab/benchmarks/llama_server.py --model FOLDER --port PORT

PYTHON has the packages xllamacpp (llama.cpp's server in a wheel), gguf and safetensors, in an
environment of its own. The GGUF file is written beside the weights. Its keys and values are kept in
half precision, llama.cpp's default, with one slot for each of eight clients.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

SLOTS = 8


def write_gguf(folder: Path) -> Path:
    """The weights, the SentencePiece vocabulary and the chat template of a folder in one file."""
    import gguf
    import numpy as np
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    path, heads, layers = (
        folder / "model.gguf",
        config["num_attention_heads"],
        config["num_hidden_layers"],
    )
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, folder, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for name, weight in load_file(folder / "model.safetensors").items():
        for part in ("q", "k"):
            if name.endswith(f"{part}_proj.weight"):
                count = config["num_attention_heads" if part == "q" else "num_key_value_heads"]
                halves = weight.reshape(count, 2, -1, weight.shape[1])
                weight = halves.swapaxes(1, 2).reshape(weight.shape)
        known = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(known, np.ascontiguousarray(weight, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, folder: Path, config: dict[str, Any]) -> None:
    from gguf import TokenType

    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids, specials = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    merged = {"".join(m.split(" ") if isinstance(m, str) else m): rank
              for rank, m in reversed(list(enumerate(tokenizer["model"]["merges"])))}  # fmt: skip
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [TokenType.BYTE if token.startswith("<0x") else TokenType.NORMAL for token in tokens]
    for special in specials:
        kinds[special["id"]] = TokenType.CONTROL
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(merged.get(token, 1e9)) for token in tokens])
    writer.add_token_types(kinds)
    ends = config["eos_token_id"]
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(ends[0] if isinstance(ends, list) else ends)
    about = json.loads((folder / "tokenizer_config.json").read_text())
    writer.add_chat_template(about["chat_template"])


def main() -> None:
    """See the module."""
    import xllamacpp

    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", type=Path, required=True)
    arguments.add_argument("--port", type=int, required=True)
    given = arguments.parse_args()
    room = json.loads((given.model / "config.json").read_text())["max_position_embeddings"]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(write_gguf(given.model))
    parameters.port, parameters.n_parallel, parameters.n_ctx = given.port, SLOTS, SLOTS * room
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
