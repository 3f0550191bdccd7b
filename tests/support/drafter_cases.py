"""What drafters of every format are tried on: architectures of targets, ways to choose ids."""

from __future__ import annotations

from tokalign.runtime.mlx.sampling import Sampling

PROMPT = (5, 17, 3)
ARCHITECTURES = (
    "llama",
    "gemma3_text",  # windows
    "gpt_oss",
    "qwen3_next",  # gated delta
    "mamba2",
    "falcon_h1",
    "lfm2",
    "recurrent_gemma",
    "rwkv7",
    "deepseek_v32",  # latent attention with an index
    "llama4",
    "gpt2",
)
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.8, seed=3),
    "filtered": Sampling(temperature=1.1, top_p=0.9, min_p=0.02, seed=5),
    "processed": Sampling(temperature=0.8, seed=6, processors=(lambda _, logits: logits * 0.9,)),
}
