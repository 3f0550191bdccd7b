"""tokalign, mlx-lm and mlx-dspark, on MLX with the same weights."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm import load, stream_generate

from lab.benchmarks.peers.outcome import Asked, Run
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.request import Request


class Tokalign:
    """`exact` with a draft model, or a method that needs none.

    endless: no token stops an output, and prompts are read as they are, without a chat template.
    """

    def __init__(self, decoder: Decoder, *, tokens: int, endless: bool = True) -> None:
        self._tokens = tokens
        if endless:
            decoder = replace(decoder, target=replace(decoder.target, stop_ids=frozenset()))
        self._decoder, self._endless = decoder, endless

    def generate(self, asked: Asked, *, tokens: int | None = None) -> Run:
        """Decode greedily. tokens: at most so many in this answer."""
        prompt = self._decoder.prompt(asked.text, use_template=not self._endless)
        assert list(prompt.target) == asked.ids
        generation = Generation(self._decoder, Request(prompt, max_tokens=tokens or self._tokens))
        began = perf_counter()
        emitted = [int(piece.token) for piece in generation]
        seconds = perf_counter() - began
        figures = generation.summary()
        rounds: int = figures["rounds"]
        passes = round(rounds * figures.get("draft_passes_per_round", 0))
        return Run(emitted, rounds, passes, seconds)


class _Counted:
    """A model that counts its passes; everything else is the model's own."""

    def __init__(self, model: Any) -> None:
        self.model, self.passes = model, 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.passes += 1
        return self.model(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class MlxLm:
    """mlx-lm's own functions. draft: a model that shares the target's tokenizer, or drafts none."""

    def __init__(
        self, folder: Path, target: LanguageModel[Any], draft: LanguageModel[Any], *, tokens: int
    ) -> None:
        self._target, self._draft, self._tokens = target.model, _Counted(draft.model), tokens
        self._tokenizer = load(str(folder), lazy=True)[1]
        self._tokenizer.eos_token_ids = set(target.stop_ids)

    def generate(self, asked: Asked, *, drafted: int, tokens: int | None = None) -> Run:
        """Decode greedily. drafted: ids a round. tokens: at most so many in this answer."""
        options: dict[str, Any] = {"max_tokens": tokens or self._tokens}
        if drafted:
            options |= {"draft_model": self._draft, "num_draft_tokens": drafted}
        self._draft.passes = 0
        began = perf_counter()
        found = list(stream_generate(self._target, self._tokenizer, asked.ids, **options))
        seconds = perf_counter() - began
        # Every round of mlx-lm's yields one token that was not drafted.
        passes = sum(not one.from_draft for one in found)
        return Run([int(one.token) for one in found], passes, self._draft.passes, seconds)


class Dspark:
    """mlx-dspark's functions that need no drafter, with their default arguments."""

    def __init__(self, folder: Path, *, tokens: int) -> None:
        self._model, self._tokenizer = import_module("mlx_dspark.load").load_target(str(folder))
        self._model.model.set_dtype(mx.float32)
        names = {"greedy_generate": "generate", "lookup_generate": "lookup"}
        self._functions = {
            name: getattr(import_module(f"mlx_dspark.{module}"), name)
            for name, module in names.items()
        }
        self._tokens = tokens

    def generate(self, name: str, asked: Asked, *, tokens: int | None = None) -> Run:
        """Decode greedily by one of its functions. tokens: at most so many in this answer."""
        most = tokens or self._tokens
        began = perf_counter()
        found = self._functions[name](
            self._model, self._tokenizer, prompt_ids=asked.ids, max_new_tokens=most
        )
        seconds = perf_counter() - began
        ids = [int(one) for one in found.token_ids[:most]]  # its last round may give more
        return Run(ids, found.target_forwards, 0, seconds)
