"""The target's hidden states along a given text, for a drafter that is asked at many of its places.

One pass over the text computes them all, where decoding would take a pass for each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from tokalign.runtime.mlx.hidden_state import HiddenStates
from tokalign.runtime.proposal import Array
from tokalign.tokenizer.vocabulary import TargetId


class StatesOfText:
    """Gives a drafter its states (`drafter_session.KeepsStates`) as if passes had just run.

    model: the target. ids: the text. prompt: how many of the ids were given; after these alone
    there is no state, as before the first pass of a generation.
    Raises: IncompatibleError for a model whose states cannot be had.
    """

    def __init__(self, model: Any, ids: Sequence[TargetId], *, prompt: int) -> None:
        states = HiddenStates(model)
        states.model(mx.array([list(ids)]))
        self._hidden, self._prompt = states.take(), prompt
        mx.eval(self._hidden)

    def state_before_last(self, ids: Sequence[TargetId]) -> Array | None:
        """The state f[1, hidden] before the last of `ids`, with which the text begins."""
        return None if len(ids) <= self._prompt else self._hidden[len(ids) - 2 : len(ids) - 1]
