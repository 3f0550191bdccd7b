"""Generations measured one by one: what was decoded, how, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PLAIN, CONTROL = "plain", "plain again"
"""Plain decoding, and the same once more: how far the two differ is the noise of the machine."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One way to decode.

    name: `PLAIN`, `CONTROL`, a translation of the draft model, or another method. k: ids or passes
    drafted in a round, or "auto"; None for plain decoding and its control. draft: which of several
    draft models, by its name; empty for the only one, and without one. chain: the draft model
    proposes no tree, even where its translation could.
    """

    name: str
    k: int | str | None = None
    draft: str = ""
    chain: bool = False

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted."""
        return self.k is not None

    def __str__(self) -> str:
        return self.label if self.k is None else f"{self.label}, k = {self.k}"

    @property
    def label(self) -> str:
        """The condition without its draft length."""
        name = f"{self.name}, a chain" if self.chain else self.name
        return f"{name} · {self.draft}" if self.draft else name


BASELINES = (Condition(PLAIN), Condition(CONTROL))
"""Conditions that belong to every run."""


@dataclass(frozen=True, slots=True)
class Block:
    """What conditions are compared on: one prompt in one repeat.

    number, repeat: counted from 1. digest: of the prompt's text, so that another prompt at the same
    place is another block. temperature: None for that of the whole run.
    """

    prompt_set: str
    number: int
    digest: str
    repeat: int = 1
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One generation.

    tokens_per_second: after the first round, which reads the prompt; 0 if there was no other.
    host_ms: median time of a round outside model passes. sources: accepted tokens by source.
    """

    block: Block
    condition: Condition
    token_ids: tuple[int, ...]
    prompt_tokens: int
    rounds: int
    proposed: int
    accepted: int
    draft_passes: int
    tokens_per_second: float
    host_ms: float
    finish_reason: str
    sources: Mapping[str, int]
