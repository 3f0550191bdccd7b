"""A small random model of every architecture in mlx-lm, for tests that hold for all of them.

`COMMON` has a value for each argument that many architectures take, under all the names in use;
every `ModelArgs.from_dict` picks those that it knows. `OWN` has what an architecture needs besides.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx.utils import tree_map_with_path
from random_models import WildDrafter as WildDrafter
from random_models import decoder_of
from small_tables import half_right

from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Round
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

VOCABULARY = 64
WINDOW = 64
LAYERS = 4

_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM = 128, 4, 2, 32
_WINDOWED = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]

_NAMES_BY_VALUE: list[tuple[Any, str]] = [
    (VOCABULARY, "vocab_size"),
    (_HIDDEN, "hidden_size hidden_dim d_model n_embd model_dim"),
    (LAYERS, "num_hidden_layers num_layers n_layer n_layers num_transformer_layers"),
    (_HEADS, "num_attention_heads num_heads n_head n_heads"),
    (_KV_HEADS, "num_key_value_heads num_kv_heads n_kv_heads num_attention_groups"),
    (_HEAD_DIM, "head_dim"),
    (96, "intermediate_size intermediate_size_mlp ffn_hidden_size ff_intermediate_size n_inner"),
    (
        32,
        "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size "
        "moe_shared_expert_intermediate_size shared_intermediate_size share_expert_dim",
    ),
    (4096, "max_position_embeddings n_positions n_ctx block_size model_max_length"),
    (1e-5, "rms_norm_eps layer_norm_eps layernorm_epsilon layer_norm_epsilon norm_eps"),
    (10000.0, "rope_theta"),
    (10000, "rotary_emb_base"),
    (0.5, "rotary_pct partial_rotary_factor"),
    (16, "rotary_dim"),
    (False, "tie_word_embeddings attention_bias mlp_bias use_bias use_qkv_bias conv_bias"),
    (True, "use_conv_bias use_qk_norm"),
    # experts
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    (2, "num_experts_per_tok moe_topk moe_top_k moe_k"),
    (
        1,
        "num_shared_experts n_shared_experts num_shared_expert n_group topk_group "
        "first_k_dense_replace num_dense_layers decoder_sparse_step moe_layer_freq",
    ),
    ("noaux_tc", "topk_method"),
    ("sigmoid", "scoring_func"),
    (1.0, "routed_scaling_factor"),
    (True, "norm_topk_prob"),
    ([], "mlp_only_layers"),
    # latent attention
    (32, "q_lora_rank kv_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim index_head_dim"),
    (2, "index_n_heads"),
    (48, "index_topk"),
    # windows
    (
        WINDOW,
        "sliding_window sliding_window_size attention_window_size window_size loop_window_size",
    ),
    (4, "sliding_window_pattern"),
    (_WINDOWED, "layer_types"),
    # recurrent states
    (16, "state_size ssm_state_size mamba_d_state"),
    (
        4,
        "conv_kernel mamba_num_heads mamba_d_conv mamba_n_heads linear_num_value_heads "
        "linear_conv_kernel_dim",
    ),
    (8, "time_step_rank"),
    ((0.001, 100.0), "time_step_limit"),
    (32, "mamba_head_dim mamba_d_head linear_key_head_dim linear_value_head_dim"),
    (False, "mamba_proj_bias"),
    (2, "mamba_expand layer_group_size full_attention_interval linear_num_key_heads"),
    (1, "mamba_n_groups n_groups group_norm_size"),
    (128, "mamba_d_ssm"),
    (True, "linear_allow_neg_eigval"),
    (3, "conv_L_cache"),
    (1.0, "logits_scaling embedding_multiplier residual_multiplier"),
    (0.2, "attention_multiplier"),
]
COMMON: dict[str, Any] = {name: one for one, names in _NAMES_BY_VALUE for name in names.split()}

_LINEAR = ["linear_attention", "full_attention"] * (LAYERS // 2)
_YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_DYNAMIC = {"type": "dynamic", "factor": 1.0, "alpha": 100.0}
_LONGROPE = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0] * 16}
_ROPE_BY_LAYER = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 100000.0},
}
_DELTA = {
    "kda_layers": [1, 3],
    "full_attn_layers": [2, 4],
    "num_heads": 2,
    "head_dim": 32,
    "short_conv_kernel_size": 4,
}


def _nested(architecture: str = "", **own: Any) -> dict[str, Any]:
    """Arguments that stand in a `text_config`."""
    return {"text_config": {**COMMON, "model_type": architecture, **own}}


_GEMMA3N = {
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "rope_local_base_freq": 10000.0,
    "final_logit_softcapping": 30.0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    "hidden_size_per_layer_input": 16,
    "altup_num_inputs": 2,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 8,
    "intermediate_size": 96,
}
_GEMMA4 = {
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16,
    "global_head_dim": 64,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": _ROPE_BY_LAYER,
    "num_experts": None,
}
_SCALED = {
    "rope_parameters": {
        "rope_theta": 10000.0,
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 16,
    }
}
_NGRAM = {"ngram_vocab_size_ratio": 4, "emb_neighbor_num": 2, "emb_split_num": 2}
_LONGCAT = {
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "zero_expert_num": 2,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}
_LFM2 = {
    "block_dim": _HIDDEN,
    "block_multiple_of": 32,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention"] * 2,
}
_MUSE = {
    "post_norm_eps": 1e-8,
    "rope_parameters": {"rope_theta": 10000.0},
    "layer_rope_theta": [10000.0, 10000.0, 10000.0, 0.0],
    "final_logit_softcapping": 20.0,
    "output_multiplier": 0.5,
    "moe_hidden_size": 64,
    "num_shared_experts": 0,
}

OWN: dict[str, dict[str, Any]] = {
    "afm7": {"num_kv_reuse_layers": 1},
    "apertus": {"post_norm": False, "qk_norm": True},
    "baichuan_m1": {"sliding_window_layers": [0, 2], "conv_window": 2},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v2": {"rope_scaling": _YARN, "topk_method": "greedy"},
    "exaone4": {"rope_scaling": None, "sliding_window_pattern": "LLLG"},
    "exaone_moe": {"is_moe_layer": [False, True, True, True]},
    "gear": {"layer_types": ["conv_mixer", "sliding_attention", "conv_mixer", "full_attention"]},
    "gemma3": _nested("gemma3_text"),
    "gemma3n": _nested("gemma3n_text", **_GEMMA3N),
    "gemma4": _nested("gemma4_text", **_GEMMA4),
    "gemma4_text": _GEMMA4,
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {"rope_parameters": {"rope_theta": 10000.0}},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "hunyuan": {
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "rope_scaling": _DYNAMIC,
    },
    "hunyuan_v1_dense": {"rope_scaling": _DYNAMIC},
    "jamba": {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
    },
    "kimi_k25": _nested("kimi_k2"),
    "kimi_k3": _nested(
        "kimi_linear",
        linear_attn_config=_DELTA,
        activation_situ_beta=1.0,
        attn_res_block_size=2,
        num_experts_per_token=2,
    ),
    "kimi_linear": {"linear_attn_config": _DELTA, "num_experts_per_token": 2},
    "kimi_vl": _nested("deepseek_v3"),
    "laguna": {"rope_parameters": _ROPE_BY_LAYER},
    "lfm2": _LFM2,
    "lfm2_moe": {"use_expert_bias": True, "layer_types": ["conv", "full_attention"] * 2},
    "lfm2-vl": _nested("lfm2", **_LFM2),
    "llama": {"layer_types": _WINDOWED},
    "llama4": _nested(
        "llama4_text",
        attention_chunk_size=WINDOW,
        interleave_moe_layer_step=2,
        rope_scaling=None,
        num_experts_per_tok=1,
    ),
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "longcat_flash": _LONGCAT,
    "longcat_flash_ngram": {**_LONGCAT, **_NGRAM},
    "mellum": {"rope_parameters": _ROPE_BY_LAYER},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 1, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "swa_rope_theta": 10000.0,
        "swa_num_attention_heads": _HEADS,
        "swa_num_key_value_heads": _KV_HEADS,
        "swa_head_dim": _HEAD_DIM,
        "swa_v_head_dim": _HEAD_DIM,
    },
    "minicpm": {"dim_model_base": _HIDDEN, "scale_depth": 1.4, "scale_emb": 1.0},
    "minicpm3": {
        "dim_model_base": _HIDDEN,
        "scale_depth": 1.4,
        "scale_emb": 1.0,
        "rope_scaling": {**_LONGROPE, "original_max_position_embeddings": 4096},
    },
    "minimax_m3_vl": _nested(
        dense_intermediate_size=96,
        rotary_dim=16,
        moe_layer_freq=[0, 1, 1, 1],
        layer_types=["full_attention", "sparse", "full_attention", "sparse"],
        index_block_size=8,
        index_topk_blocks=3,
    ),
    "ministral3": _SCALED,
    "mistral3": _nested("llama"),
    "mistral4": _SCALED,
    "muse_glimmer": _MUSE,
    "muse_spark": _nested(**_MUSE),
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": True}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.0}},
        ]
    },
    "nemotron_h": {"layer_types": None, "hybrid_override_pattern": ["M", "*", "-", "E"]},
    "nanbeige": {"num_loops": 2},
    "olmo_hybrid": {"layer_types": _LINEAR},
    "openelm": {
        "ffn_dim_divisor": 32,
        "num_query_heads": [_HEADS] * LAYERS,
        "num_kv_heads": [_KV_HEADS] * LAYERS,
        "ffn_multipliers": [1.0] * LAYERS,
    },
    "phi3small": {
        "dense_attention_every_n_layers": 2,
        "gegelu_limit": 20.0,
        "num_key_value_heads": 2,
        "blocksparse_block_size": 64,
    },
    "phimoe": {"rope_scaling": {**_LONGROPE, "short_mscale": 1.0, "long_mscale": 1.0}},
    "phixtral": {"num_vocab": VOCABULARY},
    "pixtral": _nested("llama"),
    "plamo": {"n_shared_head": 2},
    "plamo2": {"hidden_size_per_head": 32, "full_attention_idx": [1, 3]},
    "prism_hadamard_qwen35": _nested("qwen3_5"),
    "qwen": {"num_attention_heads": _HEADS, "kv_channels": _HEAD_DIM},
    "qwen2_vl": _nested("qwen2"),
    "qwen3_5": _nested("qwen3_5_text", num_experts=0),
    "qwen3_5_moe": _nested("qwen3_5_moe_text"),
    "qwen3_vl": _nested("qwen3"),
    "qwen3_vl_moe": _nested("qwen3_moe"),
    "recurrent_gemma": {
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "block_types": ["recurrent", "attention"],
    },
    "rwkv7": {
        "a_low_rank_dim": 16,
        "v_low_rank_dim": 16,
        "gate_low_rank_dim": 16,
        "decay_low_rank_dim": 16,
    },
    "spark2_5": {"rope_parameters": _ROPE_BY_LAYER},
    "step3p5": {"moe_layers_enum": "1,2,3"},
}


PARTS = {"activations", "base", "bitlinear_layers", "cache", "gated_delta", "mla", "pipeline"}
PARTS |= {"rope_utils", "ssm", "switch_layers"}
"""Modules of `mlx_lm.models` that are no architectures."""

UNBUILDABLE = {
    "bitnet": "its layers are a Metal kernel",
    "muse_spark": "its rotary embedding is a Metal kernel",
    "olmo": "it needs the package ai2-olmo",
    "phi3small": "its block-sparse attention crashes the interpreter on the CPU",
    "prism_hadamard_qwen35": "it needs the manifest of weights that were packed for it",
}
"""Architectures of which no small random model can be run here, and why."""


def architectures() -> list[str]:
    """The names of all architectures in mlx-lm."""
    names = sorted(module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__))
    return [name for name in names if name not in PARTS]


def zoo() -> list[str]:
    """The architectures of which `zoo_model` makes a model."""
    return [name for name in architectures() if name not in UNBUILDABLE]


def arguments(architecture: str) -> dict[str, Any]:
    """The configuration of a small model of this architecture."""
    own = OWN.get(architecture, {})
    return {**COMMON, "model_type": architecture, **own}


@cache
def zoo_model(architecture: str) -> Any:
    """As `make_model`, made once."""
    return make_model(architecture)


def make_model(architecture: str, **changes: Any) -> Any:
    """A float32 model of this architecture with random weights.

    changes: of its configuration.
    Raises: what the architecture raises if it cannot be built here.
    """
    module = import_module(f"mlx_lm.models.{architecture}")
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict(arguments(architecture) | changes))
    model.set_dtype(mx.float32)
    model.update(tree_map_with_path(random_weight, model.parameters()))
    mx.eval(model.parameters())
    model.eval()
    return model


def random_weight(name: str, weight: mx.array) -> mx.array:
    """Matrices large enough, and embeddings small enough, that greedy output does not repeat."""
    if weight.ndim < 2 or not mx.issubdtype(weight.dtype, mx.floating):
        return weight
    size = 0.3 if "embed" in name else 3.0
    return mx.random.normal(weight.shape) * size / weight.shape[-1] ** 0.5


def with_lookups(
    model: Any, tokenizer: Tokenizer[Any], prompt: Sequence[int], right: Sequence[int], method: str
) -> tuple[list[int], int]:
    """As many ids as `right` has, drafted by looking up: those emitted, and how many were proposed.

    The dictionary and an earlier output to copy from hold some of the right ids, and wrong ones.
    """
    how = half_right(right, len(tokenizer.vocabulary))
    how |= {"method": method, "draft_rows": 6 if method == "hybrid" else None}
    decoder = decoder_of((LanguageModel(model=model, tokenizer=tokenizer), None), **how)
    opening = Prompt(target=[TargetId(token) for token in prompt])
    decoding = decoder.begin(Request(opening, max_tokens=len(right)))
    context, events = decoding.context, iter(decoding)
    proposed = sum(len(event.tree) for event in events if isinstance(event, Round))
    return list(context.emitted), proposed
