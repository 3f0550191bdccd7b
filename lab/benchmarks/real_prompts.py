"""Kinds of prompts, and those of `real_models.py`, `real_replay.py` and `peers/real.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokalign.cli.texts import read_texts

PROMPTS = Path(__file__).resolve().parents[1] / "prompts"
_REAL = "general", "code", "editing", "polish"
_FREE = "general", "explaining", "code", "editing", "tests", "json", "summary"
KINDS = *_FREE, "polish"
EVERY_KIND = *KINDS, "unguessable"
"""With poems, random words and foreign scripts, which are in no mean of the others."""
_HELD_OUT = range(5, 10)
"""Numbers of prompts that no weight, prior or rule of the free sources was fitted to."""


class Asked(NamedTuple):
    """A prompt: its kind, its number among those of the kind from 1 on, and its text."""

    kind: str
    number: int
    text: str


def prompts(*, held_out: bool = False, kinds: Sequence[str] = KINDS) -> list[Asked]:
    """The prompts of these kinds, in an order of which every beginning has them in equal shares.

    held_out: of `lab/prompts/free`, numbers 5 to 9 of each kind, and as many Polish ones of
    `lab/prompts/real`; else all of `lab/prompts/real`.
    """
    found = []
    for kind in kinds if held_out else [kind for kind in _REAL if kind in kinds]:
        folder = "real" if kind == "polish" or not held_out else "free"
        path = PROMPTS / folder / f"{kind}.txt"
        texts = read_texts(path)
        numbers = _HELD_OUT if held_out else range(1, 1 + len(texts))
        for place, number in enumerate(numbers):
            text = texts[number - 1].replace("\\n", "\n")
            found.append(((place + 0.5) / len(numbers), Asked(kind, number, text)))
    return [asked for _, asked in sorted(found)]
