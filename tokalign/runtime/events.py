"""Everything the decode loop says. Command line, statistics, API and tests fold over this stream.

A stream is `Started (Proposed Emitted)* Finished`; it may end early when the consumer closes it or
is interrupted, so a fold has to be right after every event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from tokalign.runtime.proposal import Array, Proposal
from tokalign.tokenizer.vocabulary import TargetId

FinishReason: TypeAlias = Literal["stop", "length"]


class Started(NamedTuple):
    """The first round is about to begin."""

    prompt_tokens: int


class Proposed(NamedTuple):
    """A drafter was asked for at most `limit` ids and has answered.

    seconds: how long that took, passes of a draft model included.
    """

    proposal: Proposal
    limit: int
    seconds: float


class Emitted(NamedTuple):
    """A round's output, already committed.

    The first `accepted` ids were proposed; `sources` says by whom, `"target"` for its own.
    seconds: the verifier's time, model_seconds of it in the target's pass.
    logprobs: for each id f[vocabulary], lazy; None when no model was asked.
    """

    ids: tuple[TargetId, ...]
    sources: tuple[str, ...]
    accepted: int
    seconds: float
    model_seconds: float
    logprobs: Sequence[Array] | None = None


class Finished(NamedTuple):
    """The generation came to its own end."""

    reason: FinishReason


Event: TypeAlias = Started | Proposed | Emitted | Finished
