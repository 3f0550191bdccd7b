"""What DFlash 2 and DSpark add to DFlash: convolutions, and heads that look at the id before.

With such a head the distribution of a position depends on the id before it: that of a Markov head
(DSpark) on all ids, that of a candidate selector (DFlash 2) on the position's candidates.
Source: `speculators` 0.9.0 and `mlx-dspark` 0.20.3, with which `lab/tests/test_dflash_parity.py`
compares.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from tokalign.runtime.mlx.published_drafter import among_all
from tokalign.runtime.rounds import Array
from tokalign.tables.dflash_config import DFlashConfig


class GroupedConvolution(nn.Module):  # type: ignore[misc]
    """A causal convolution over the slots of a block, before and after a layer's part. A
    coefficient is a learned one for its channel, and what the input adds for its group."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        width, taps = config.hidden_size, config.conv_kernel_size
        self.base_kernel = mx.zeros((2, taps, width))
        self.kernel_projection = nn.Linear(
            width, 2 * taps * (width // config.conv_group_size), bias=False
        )
        self._taps, self._group = taps, config.conv_group_size

    def __call__(self, x: Array, part: Callable[[Array], Array]) -> Array:
        """What a part of a layer makes of x f[1, block, width], both convolved."""
        added = self.kernel_projection(x).reshape(*x.shape[:2], 2, self._taps, -1, 1)
        output = part(self._convolved(x, added[:, :, 0], 0))
        return self._convolved(output, added[:, :, 1], 1)

    def _convolved(self, x: Array, added: Array, side: int) -> Array:
        grouped = x.reshape(*x.shape[:2], -1, self._group)
        kernel = self.base_kernel[side].reshape(self._taps, -1, self._group) + added
        output = kernel[:, :, 0] * grouped
        for tap in range(1, self._taps):
            earlier = mx.pad(grouped[:, :-tap], [(0, 0), (tap, 0), (0, 0), (0, 0)])
            output = output + kernel[:, :, tap] * earlier
        return output.reshape(x.shape)


class MarkovHead(nn.Module):  # type: ignore[misc]
    """Adds a matrix of low rank to the logits, the row of the id before."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.draft_vocab_size, bias=False)

    def after(self, hidden: Array, logits: Array, before: Array) -> Array:
        """Logits f[n, m, vocabulary] of n positions after the ids i[n, m] of the target. hidden:
        f[n, width]. logits: f[n, vocabulary] whatever comes before."""
        return logits[:, None] + self.markov_w2(self.markov_w1(before))


class CandidateSelector(nn.Module):  # type: ignore[misc]
    """Scores the most probable ids of a position by the id before; others get -inf."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        rank, size = config.selector_rank, config.vocab_size
        self.predecessor_codebook = mx.zeros((size, rank))
        self.successor_codebook = mx.zeros((size, rank))
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)
        self._count = min(config.selector_top_k, size)

    def after(self, hidden: Array, logits: Array, before: Array) -> Array:
        candidates = mx.argpartition(logits, -self._count, axis=-1)[:, -self._count :]
        context = self.predecessor_codebook[before] * self.hidden_projection(hidden)[:, None]
        links = context @ self.successor_codebook[candidates].swapaxes(1, 2)
        scores = mx.take_along_axis(logits, candidates, axis=-1)[:, None] + links
        return among_all(scores, candidates[:, None], logits.shape[-1])


class ConfidenceHead(nn.Module):  # type: ignore[misc]
    """The log-odds that a guess of a position will be accepted, if those before it are."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self.proj = nn.Linear(reads, 1)

    def __call__(self, features: Array) -> Array:
        """f[positions, reads] -> f[positions]."""
        return self.proj(features)[:, 0]
