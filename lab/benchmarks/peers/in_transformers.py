"""Transformers: plain, and assisted generation, its passes counted by hooks."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.benchmarks.peers.outcome import Asked, Run

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Counted:
    """A model with its tokenizer, which counts its forward passes. dtype: its name in PyTorch."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        weights = getattr(torch, dtype)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=weights).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.passes = 0
        self.model.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.passes += 1


class Transformers:
    """A pair of models. tokens: at most so many in an answer.

    num_draft_tokens: per round; None for what the library does by itself.
    endless: no token stops an output, so that every one is as long.
    shared: both have one tokenizer, so that no text is encoded again.
    """

    def __init__(
        self,
        target: Counted,
        draft: Counted,
        *,
        tokens: int,
        num_draft_tokens: int | None,
        endless: bool = True,
        shared: bool = False,
    ) -> None:
        self.target, self.draft, self._tokens = target, draft, tokens
        self._shared, self._config = shared, deepcopy(draft.model.generation_config)
        if endless:
            self.target.model.generation_config.eos_token_id = None
        if num_draft_tokens is not None:
            self._config.num_assistant_tokens = num_draft_tokens
            self._config.num_assistant_tokens_schedule = "constant"
            self._config.assistant_confidence_threshold = 0.0

    def generate(
        self, asked: Asked, *, assisted: bool, tokens: int | None = None, **options: Any
    ) -> Run:
        """Decode greedily, or with the options of the library that are given.

        tokens: at most so many in this answer.
        """
        self.target.passes = self.draft.passes = 0
        if assisted:
            self.draft.model.generation_config = self._config
            options["assistant_model"] = self.draft.model
        if assisted and not self._shared:
            options["tokenizer"] = self.target.tokenizer
            options["assistant_tokenizer"] = self.draft.tokenizer
        given = torch.tensor([asked.ids])
        began = perf_counter()
        with torch.no_grad():
            found = self.target.model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=tokens or self._tokens,
                **({"do_sample": False} | options),
            )
        seconds = perf_counter() - began
        emitted = [int(one) for one in found[0, given.shape[1] :]]
        return Run(emitted, self.target.passes, self.draft.passes, seconds)

    def negative_log_likelihood(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Nats of each id of an output under the target at temperature 1."""
        given = torch.tensor([[*prompt, *ids]])
        with torch.no_grad():
            logits = self.target.model(given).logits[0, len(prompt) - 1 : -1]
        taken = logits.log_softmax(-1).gather(1, torch.tensor(list(ids))[:, None])
        return [-float(one) for one in taken[:, 0]]
