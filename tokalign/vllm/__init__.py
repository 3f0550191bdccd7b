"""Drafting for vLLM with tokalign's dictionaries: `tokalign.vllm.DictionaryProposer`.

    vllm serve MODEL --speculative-config \\
        '{"method": "custom_class", "model": "tokalign.vllm.DictionaryProposer",
          "num_speculative_tokens": 8}'

`proposer.py` is what vLLM calls, with `options.py`; `batch_drafter.py` drafts for a batch, with
`batch_lookup.py`, `batch_fit.py` and `context_matches.py`. NumPy does all of it; neither mlx nor
vLLM is imported.
"""

from tokalign.vllm.proposer import DictionaryProposer

__all__ = ["DictionaryProposer"]
