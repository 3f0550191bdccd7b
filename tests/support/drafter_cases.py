"""What drafters of every format are tried on: architectures of targets, ways to choose ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import zoo
from random_models import rounds_of

from tokalign.runtime.draft.trained import with_trained
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.rounds import Round

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


def penalize_last(history: mx.array, logits: mx.array) -> mx.array:
    """A logits processor: the latest id is less likely to come again."""
    return logits - 3.0 * (mx.arange(logits.shape[-1]) == history[-1:])


def rounds_that_lose_nothing(
    target: Any,
    temperature: float,
    networks: Callable[[list[int], int], Sequence[Any]],
    *,
    tokens: int = 24,
    branches: bool = True,
) -> list[Round]:
    """The last network's rounds after a long prompt, where all say what plain decoding says.

    networks: made from the plain output and the length of the prompt.
    """
    prompt = [(i * 7 + 3) % zoo.VOCABULARY for i in range(70)]
    chosen, limits = Sampling(temperature=temperature, seed=2), Limits(max_tokens=tokens)
    session, rounds = TargetModelSession(target), list[Round]()
    plain, _ = rounds_of(NoDrafter(), session, chosen, prompt=prompt, limits=limits)
    for network in networks(plain, len(prompt)):
        session = TargetModelSession(target, watch=network.watch)
        drafter = with_trained(
            network.session(session),
            sampler=chosen.draft_sampler,
            branches=branches and session.can_branch,
        )
        emitted, rounds = rounds_of(drafter, session, chosen, prompt=prompt, limits=limits)
        assert emitted == plain
    return rounds
