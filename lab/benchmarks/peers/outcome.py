"""What every contender answers with, so that all can stand in one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Contender:
    """One way to decode.

    run: decodes a prompt greedily. plain: the name of the contender that decodes plainly in the
    same library with the same weights; the output has to be equal to that one's.
    """

    name: str
    plain: str
    run: Callable[[Asked], Run]
