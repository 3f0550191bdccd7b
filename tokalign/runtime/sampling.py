"""How the target chooses: greedy, or sampling whose randomness is keyed by position.

The filters are mlx-lm's own, in its order: top-p, min-p, top-k, then the temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from tokalign.runtime.proposal import Array

LogitsProcessor: TypeAlias = Callable[[Array, Array], Array]
"""mlx-lm's: (ids so far i[n], logits f[1, vocabulary]) -> logits f[1, vocabulary]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Temperature 0 is greedy; 0 switches off top-p, top-k and min-p.

    The random key of a token is (seed, its index in the context): a choice depends on the logits
    and on where it stands, not on how many rows a pass had. So with one seed, whatever drafts, the
    sampled text is that of plain sampling. The low 32 bits of `seed` count.
    """

    temperature: float = 0.0
    top_p: float = 0.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    processors: Sequence[LogitsProcessor] = ()

    @property
    def needs_history(self) -> bool:
        return bool(self.processors)

    def choose(
        self, logits: Array, *, position: int, ids: Sequence[int] = ()
    ) -> tuple[Array, Array]:
        """See `interfaces.Sampler`."""
        logprobs = logprobs_of(logits, self.processors, position=position, ids=ids)
        if self.temperature == 0:
            return mx.argmax(logprobs, axis=-1), logprobs
        filtered = self.filter(logprobs) * (1 / self.temperature)
        return _draw(filtered, self._keys(position, logits.shape[0])), logprobs

    def filter(self, logprobs: Array) -> Array:
        """-inf where top-p, min-p and top-k rule a token out."""
        if 0 < self.top_p < 1:
            logprobs = apply_top_p(logprobs, self.top_p)
        if self.min_p:
            logprobs = apply_min_p(logprobs, self.min_p, 1)
        if 0 < self.top_k < logprobs.shape[-1]:
            logprobs = apply_top_k(logprobs, self.top_k)
        return logprobs

    def _keys(self, position: int, rows: int) -> Array:
        seed = self.seed & 0xFFFFFFFF
        return mx.array([[seed, position + row] for row in range(rows)], dtype=mx.uint32)


@dataclass(frozen=True, slots=True)
class CallableSampler:
    """A sampler as mlx-lm knows it: log-probabilities f[rows, vocabulary] -> ids i[rows].

    Its randomness is its own, so its output has the right distribution but is not reproduced token
    for token when something else drafts.
    """

    sampler: Callable[[Array], Array]
    processors: Sequence[LogitsProcessor] = ()

    @property
    def needs_history(self) -> bool:
        return bool(self.processors)

    def choose(
        self, logits: Array, *, position: int, ids: Sequence[int] = ()
    ) -> tuple[Array, Array]:
        """See `interfaces.Sampler`."""
        logprobs = logprobs_of(logits, self.processors, position=position, ids=ids)
        return self.sampler(logprobs), logprobs


def logprobs_of(
    logits: Array, processors: Sequence[LogitsProcessor], *, position: int, ids: Sequence[int]
) -> Array:
    """Log-probabilities of the processed logits, row i standing at `position + i`.

    Choices are made on these, as mlx-lm does: rounding may tie two logits.
    """
    if processors:
        logits = apply_processors(processors, logits, position=position, ids=ids)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def apply_processors(
    processors: Sequence[LogitsProcessor], logits: Array, *, position: int, ids: Sequence[int]
) -> Array:
    """Every row behind its own history: the context and the proposed ids before it."""
    history = mx.array(list(ids), dtype=mx.uint32)
    rows = []
    for row in range(logits.shape[0]):
        processed = logits[row : row + 1]
        for processor in processors:
            processed = processor(history[: position + row], processed)
        rows.append(processed)
    return mx.concatenate(rows)


def _draw(logits: Array, keys: Array) -> Array:
    """One id per row, each with its own key."""
    return mx.vmap(_draw_row)(logits, keys)


def _draw_row(logits: Array, key: Array) -> Array:
    return mx.random.categorical(logits, key=key)
