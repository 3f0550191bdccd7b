"""The prompts of `real_models.py`, `real_replay.py` and `peers/real.py`, by kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tokalign.cli.texts import read_texts

PROMPTS = Path(__file__).resolve().parents[1] / "prompts"
_REAL = "general", "code", "editing", "polish"
_FREE = "general", "explaining", "code", "editing", "tests", "json", "summary"
KINDS = *_FREE, "polish"
_HELD_OUT = range(5, 9)
"""Numbers of prompts that no weight, prior or rule of the free sources was fitted to."""


class Asked(NamedTuple):
    """A prompt: its kind, its number among those of the kind from 1 on, and its text."""

    kind: str
    number: int
    text: str


def prompts(*, held_out: bool = False) -> list[Asked]:
    """The prompts in an order of which every beginning has the kinds in the same shares.

    held_out: of `lab/prompts/free`, numbers 5 to 8 of seven kinds, and as many Polish ones of
    `lab/prompts/real`; else all of `lab/prompts/real`.
    """
    found = []
    for kind, path in _files(held_out):
        texts = read_texts(path)
        numbers = _HELD_OUT if held_out else range(1, 1 + len(texts))
        for place, number in enumerate(numbers):
            text = texts[number - 1].replace("\\n", "\n")
            found.append(((place + 0.5) / len(numbers), Asked(kind, number, text)))
    return [asked for _, asked in sorted(found)]


def _files(held_out: bool) -> Iterator[tuple[str, Path]]:
    for kind in KINDS if held_out else _REAL:
        folder = "free" if held_out and kind in _FREE else "real"
        yield kind, PROMPTS / folder / f"{kind}.txt"
