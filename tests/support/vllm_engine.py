"""Generate with vLLM, plainly, with tokalign's proposer or with an EAGLE-3 drafter, and print what
came as JSON.

    python tests/support/vllm_engine.py MODEL MAX_TOKENS [DICTIONARY | FOLDER] < prompts.json

It is a program of its own because an engine keeps its process's memory.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def drafting_with(given: str | None) -> dict[str, Any]:
    """What vLLM is told. given: a dictionary, the folder of a drafter, or nothing."""
    if given is None:
        return {}
    if os.path.isdir(given):
        eagle = {"method": "eagle3", "model": given, "num_speculative_tokens": 3}
        return {"speculative_config": eagle}
    return {
        "speculative_config": {
            "method": "custom_class",
            "model": "tokalign.vllm.DictionaryProposer",
            "num_speculative_tokens": 6,
        },
        "additional_config": {"tokalign": {"dictionary": given}},
    }


def generate(model: str, prompts: list[str], max_tokens: int, drafts: str | None) -> Any:
    """The greedy outputs as ids, and vLLM's own counters of drafts."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=4,  # fewer than the prompts, so that requests change rows
        disable_log_stats=False,
        **drafting_with(drafts),
    )
    outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=max_tokens))
    counts = {m.name: m.value for m in engine.get_metrics() if hasattr(m, "value")}
    return {
        "prompts": [list(output.prompt_token_ids) for output in outputs],
        "ids": [list(output.outputs[0].token_ids) for output in outputs],
        "drafted": counts.get("vllm:spec_decode_num_draft_tokens", 0),
        "accepted": counts.get("vllm:spec_decode_num_accepted_tokens", 0),
        "rounds": counts.get("vllm:spec_decode_num_drafts", 0),
    }


if __name__ == "__main__":
    given = [*sys.argv[3:], None][0]
    result = generate(sys.argv[1], json.load(sys.stdin), int(sys.argv[2]), given)
    print(json.dumps(result))
