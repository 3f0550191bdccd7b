"""How ids are chosen: greedily, or by sampling whose randomness is keyed by position.

The filters are mlx-lm's own, in its order: top-p, min-p, XTC, top-k, then the temperature. A choice
is the largest of `score + noise` (`noise.py`). A draft is right if it is the id that the target
chooses, so it chooses with the noise of the target's choice at that position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, apply_xtc
from numpy.typing import NDArray

from tokalign.errors import require_callables, require_integer
from tokalign.runtime.mlx import noise as keyed
from tokalign.runtime.options import SamplingOptions, check_declared
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId

_COLDEST, _HOTTEST = 1e-30, 1e30
"""Temperatures beyond these choose as these do: the scores would leave float32."""

_LEAST_TOP_P = 1e-30
"""The least that float32 tells from 0, about."""

Floats: TypeAlias = NDArray[np.float64]


class Chooser(ABC):
    """Chooses ids from logits. processors: mlx-lm's logits processors, applied first."""

    __slots__ = ()

    processors: Sequence[LogitsProcessor]

    @property
    def needs_history(self) -> bool:
        """Whether a choice depends on earlier ids other than through the logits."""
        return bool(self.processors)

    @property
    def needs_order(self) -> bool:
        """Whether choices have to be made in the order of their positions, each position once."""
        return self.needs_history  # logits processors may keep a state

    def choose(
        self,
        logits: Array,
        positions: Sequence[int],
        *,
        ids: Sequence[TargetId] = (),
        mask: NDArray[np.bool_] | None = None,
    ) -> tuple[Array, Array]:
        """Choices i[rows] and log-probabilities f[rows, vocabulary], both lazy.

        positions: at which index of the context each row's choice comes. ids: what comes before
        that, or an array of it; if a choice `needs_history`, there is one row.
        mask: bool[rows, vocabulary], which ids a grammar allows, whatever processors say.
        """
        logprobs = logprobs_of(logits, self.processors, ids, mask)
        return self.pick(logprobs, positions), logprobs

    @abstractmethod
    def pick(self, logprobs: Array, positions: Sequence[int]) -> Array:
        """The choices i[rows] by log-probabilities f[rows, vocabulary] that are processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(SamplingOptions, Chooser):
    """How the target chooses. Temperature 0 is greedy; 0 switches off top-p, top-k and min-p.

    The random key of a token is (seed, its index in the context): a choice depends on the logits
    and on its position, not on how many rows a pass had. So a seed gives the text of plain
    sampling, whatever drafts. Only the low 32 bits of `seed` are used.
    xtc_probability: how often a token is chosen without the most probable ones, as mlx-lm does it:
    all ids above `xtc_threshold` but the least likely of them, and except `xtc_exempt`, are ruled
    out. The position decides when, and a draft that is drawn on the device follows it.
    processors: mlx-lm's logits processors, applied first. Raises: UsageError.
    """

    xtc_exempt: tuple[int, ...] = ()
    seed: int = 0
    processors: Sequence[LogitsProcessor] = ()
    _noise: keyed.Noise = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_declared(self)
        for token in self.xtc_exempt:
            require_integer("xtc_exempt", token, least=0)
        require_integer("seed", self.seed)
        require_callables("processors", self.processors)
        object.__setattr__(self, "_noise", keyed.Noise(self.seed))

    @property
    def draft_sampler(self) -> Sampling | None:
        """What predicts the choice of a target that samples, with its noise and filters, and
        without its processors: each row would need its own history. None for a greedy one."""
        return self if self.temperature > 0 else None

    def pick(self, logprobs: Array, positions: Sequence[int]) -> Array:
        if self.temperature == 0:
            return mx.argmax(logprobs, axis=-1)
        return self._pick(logprobs, positions, self._noise.rows(positions, logprobs.shape[1]))

    def _pick(self, logprobs: Array, positions: Sequence[int] | Array, noise: Array) -> Array:
        scores = self.filter(logprobs, positions) * (1 / self._heat)
        return mx.argmax(scores + noise, axis=-1)

    def drawing(self, first: int, reach: int, vocabulary: int) -> Callable[[Array, Array], Array]:
        """What draws the id i[1] at a position i[1] by logits f[1, vocabulary], on the device. The
        position is one of `reach` from `first` on; one beyond has the noise of the last."""
        last = first + reach - 1
        noise = self._noise.rows(range(first, last + 1), vocabulary)

        def draw(logits: Array, position: Array) -> Array:
            at = mx.minimum(position, last)
            return self._pick(logprobs_of(logits, ()), at, noise[at - first])

        return draw

    def noise_at(self, position: int, vocabulary: int) -> Array:
        """The noise f[vocabulary] of the choice at `position`, lazy."""
        return self._noise.rows([position], vocabulary)[0]

    def noise_ahead(self, vocabulary: int) -> keyed.NoiseAhead | None:
        """The noise of coming choices among `vocabulary` ids; None if nothing is drawn."""
        return keyed.NoiseAhead(self._noise, vocabulary) if self.temperature > 0 else None

    @property
    def _heat(self) -> float:
        return min(max(self.temperature, _COLDEST), _HOTTEST)

    @property
    def filters(self) -> bool:
        """Whether ids may be ruled out."""
        return 0 < self.top_p < 1 or bool(self.min_p or self.xtc_probability or self.top_k)

    def expect(
        self, logits: Array, positions: Sequence[int], columns: tuple[Array, int] | None = None
    ) -> Array:
        """Log-probabilities f[rows, vocabulary] that the target, with its noise, chooses each id.

        positions: as for `choose`. columns: the id whose noise each column has, if that is not its
        number, and how many ids there are. Logits processors are left out.
        The target's logits are taken to be the draft's log-probabilities and Gumbel noise at the
        temperature 1. So the expectation is the softmax of log q + T g, and at T = 0 it is q.
        """
        filtered = self.filter(logits - mx.logsumexp(logits, axis=-1, keepdims=True), positions)
        if columns is None:
            noise = self._noise.rows(positions, logits.shape[-1])
        else:
            noise = self._noise.rows(positions, columns[1])[:, columns[0]]
        scores = filtered + self._heat * noise
        return scores - mx.logsumexp(scores, axis=-1, keepdims=True)

    def expect_among(
        self, logprobs: Mapping[TargetId, float], noise: Array
    ) -> dict[TargetId, float]:
        """As `expect`, among a few ids; the likeliest first, which `choose` would choose.

        logprobs: up to a constant. noise: from `noise_at` for the same position. Ids that a filter
        rules out are missing.
        """
        among, values = np.array(list(logprobs)), np.array(list(logprobs.values()))
        kept = _filtered(values, top_p=self.top_p, min_p=self.min_p, top_k=self.top_k)
        among = among[kept]
        scores = values[kept] + self._heat * np.array(noise)[among]
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        expected = ranked - ranked.max()
        expected -= np.log(np.exp(expected).sum())
        ordered = cast("list[TargetId]", among[order].tolist())
        return dict(zip(ordered, expected.tolist(), strict=True))

    def filter(self, logprobs: Array, positions: Sequence[int] | Array) -> Array:
        """Log-probabilities f32 with -inf for the ids that top-p, min-p, XTC or top-k rule out.

        positions: as for `choose`; XTC is decided by them.
        """
        if 0 < self.top_p < 1:
            logprobs = apply_top_p(logprobs, max(self.top_p, _LEAST_TOP_P))
        if self.min_p:
            logprobs = apply_min_p(logprobs, self.min_p, 1)
        if self.xtc_probability:
            number = keyed.uniform(self.seed, keyed.VERDICT, positions)
            # A draft may know of fewer ids than the target; mlx would write beyond the row.
            exempt = [token for token in self.xtc_exempt if token < logprobs.shape[-1]]
            without = apply_xtc(logprobs, 1.0, self.xtc_threshold, exempt)
            logprobs = mx.where(number < self.xtc_probability, without, logprobs)
        if 0 < self.top_k < logprobs.shape[-1]:
            logprobs = apply_top_k(logprobs, self.top_k)
        return logprobs.astype(mx.float32)


@dataclass(frozen=True, slots=True)
class CallableSampler(Chooser):
    """A sampler as mlx-lm knows it: log-probabilities f[rows, vocabulary] -> ids i[rows].

    It is asked once for each id of the output, as in plain decoding, so a seed of `mx.random` gives
    the same text, whatever drafts. A draft takes its argmax, as it cannot share the noise.
    """

    sampler: Callable[[Array], Array]
    processors: Sequence[LogitsProcessor] = ()

    @property
    def needs_order(self) -> bool:
        """The random numbers of mlx-lm's samplers are those of mlx, one after another."""
        return True

    @property
    def draft_sampler(self) -> None:
        """Its noise is not known."""

    def pick(self, logprobs: Array, positions: Sequence[int]) -> Array:
        return self.sampler(logprobs)


Sampler: TypeAlias = Sampling | CallableSampler
"""The target's choice at every position."""


def _filtered(logprobs: Floats, *, top_p: float, min_p: float, top_k: int) -> NDArray[np.int64]:
    """Indices that mlx-lm's filters keep, the most probable first; 0 switches a filter off.

    logprobs: f[n], up to a constant. Source: mlx_lm.sample_utils, its filters in its order.
    """
    order = np.argsort(-logprobs, kind="stable")
    ordered = logprobs[order]
    probabilities = np.exp(ordered - ordered[0])
    above = np.cumsum(probabilities) - probabilities
    kept = np.ones(len(order), dtype=bool)
    if 0 < top_p < 1:
        kept &= above < top_p * probabilities.sum()
    if min_p:
        kept &= probabilities >= min_p
    if top_k:
        kept[top_k:] = False
    return order[kept]


LogitsProcessor: TypeAlias = Callable[[Array, Array], Array]
"""mlx-lm's: (ids so far i[n], logits f[1, vocabulary]) -> logits f[1, vocabulary]."""


def logprobs_of(
    logits: Array,
    processors: Sequence[LogitsProcessor],
    ids: Sequence[TargetId] | Array = (),
    mask: NDArray[np.bool_] | None = None,
) -> Array:
    """Log-probabilities f[rows, vocabulary] of the processed logits.

    ids: what comes before the row, for processors; with these there is one row.
    mask: bool[rows, vocabulary], which ids a grammar allows. It has the last word.
    Choices are made on these, as in mlx-lm: rounding may make two of them equal.
    """
    made = processed(logits, processors, ids) if processors else logits
    if mask is not None:
        allowed = mx.array(mask)
        made = mx.where(allowed, made, -mx.inf)
        if processors:  # which may rule out all that is allowed
            none_is_left = mx.max(made, axis=-1, keepdims=True) == -mx.inf
            made = mx.where(none_is_left & allowed, logits, made)
    return made - mx.logsumexp(made, axis=-1, keepdims=True)


def expected(sampler: Sampling | None, logits: Array, positions: Sequence[int]) -> Array:
    """Log-probabilities f[rows, vocabulary] that the target chooses each id by a drafter's logits
    (`Sampling.expect`); without a sampler, the drafter's own."""
    return logprobs_of(logits, ()) if sampler is None else sampler.expect(logits, positions)


def processed(
    row: Array, processors: Sequence[LogitsProcessor], ids: Sequence[TargetId] | Array
) -> Array:
    """A row of logits f[1, vocabulary] after all processors, which are told the ids before it."""
    assert row.shape[0] == 1, "a history is that of one row"
    history = ids if isinstance(ids, mx.array) else mx.array(list(ids), dtype=mx.uint32)
    row = row[:1]  # another array, as processors may write into it
    for processor in processors:
        row = processor(history, row)
    return row
