"""tokalign and mlx-lm, on MLX with the same weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm import load, stream_generate

from lab.benchmarks.peers.outcome import Asked, Run
from tokalign.runtime.decoder import Decoder
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
    """mlx-lm's own functions; its draft model has to share the target's tokenizer.

    The draft model is the target itself in 4 bits. stop_ids: end an output; without them every one
    is as long. model: the target's, if it is loaded already.
    """

    def __init__(
        self,
        target: Path,
        *,
        tokens: int,
        num_draft_tokens: int,
        stop_ids: Collection[int] = (),
        model: Any = None,
    ) -> None:
        loaded, self._tokenizer = load(str(target), lazy=True)[:2]
        self._target = loaded if model is None else model
        self._tokenizer.eos_token_ids = set(stop_ids)
        draft = load(str(target), lazy=True)[0]
        draft.set_dtype(mx.float32)
        self._target.set_dtype(mx.float32)
        nn.quantize(draft, group_size=32, bits=4)
        self._draft, self._tokens, self._k = _Counted(draft), tokens, num_draft_tokens

    def generate(self, asked: Asked, *, drafted: bool, tokens: int | None = None) -> Run:
        """Decode greedily. tokens: at most so many in this answer."""
        options: dict[str, Any] = {"max_tokens": tokens or self._tokens}
        if drafted:
            options |= {"draft_model": self._draft, "num_draft_tokens": self._k}
        self._draft.passes = 0
        began = perf_counter()
        found = list(stream_generate(self._target, self._tokenizer, asked.ids, **options))
        seconds = perf_counter() - began
        # Every round of mlx-lm's yields one token that was not drafted.
        passes = sum(not one.from_draft for one in found)
        return Run([int(one.token) for one in found], passes, self._draft.passes, seconds)
