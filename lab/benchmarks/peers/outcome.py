"""What every contender answers with, so that all can stand in one table."""

from __future__ import annotations

from typing import NamedTuple


class Asked(NamedTuple):
    """A prompt: its text, and the ids that the target reads."""

    text: str
    ids: list[int]


class Run(NamedTuple):
    """One prompt decoded.

    ids: of the output. passes, draft_passes: forward passes of the target and of the draft model
    that the output took; reading the prompt counts only where the same pass also yields output.
    seconds: of wall-clock time.
    """

    ids: list[int]
    passes: int
    draft_passes: int
    seconds: float
