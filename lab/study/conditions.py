"""The conditions and prompts of a study: several draft models, chains, repeats, temperatures."""

from __future__ import annotations

from dataclasses import dataclass

from tokalign.evaluate import comparison
from tokalign.evaluate.comparison import CONTROL, PLAIN

__all__ = ["BASELINES", "CONTROL", "PLAIN", "Condition", "PromptBlock", "order_of"]


@dataclass(frozen=True, slots=True)
class Condition(comparison.Condition):
    """One way to decode. draft: which of several draft models. chain: it proposes no tree."""

    draft: str = ""
    chain: bool = False

    def __str__(self) -> str:
        return self.label if self.k is None else f"{self.label}, k = {self.k}"

    @property
    def label(self) -> str:
        name = f"{self.name}, a chain" if self.chain else self.name
        return f"{name} · {self.draft}" if self.draft else name


BASELINES = (Condition(PLAIN), Condition(CONTROL))
"""Conditions that belong to every run."""


@dataclass(frozen=True, slots=True)
class PromptBlock(comparison.PromptBlock):
    """One prompt in one repeat, counted from 1. temperature: None for that of the whole run."""

    repeat: int = 1
    temperature: float | None = None


_ORDER = (
    PLAIN, CONTROL, "none", "raw", "naive", "context", "intersection", "exact",
    "dictionary", "copy", "prompt-lookup", "recycling", "sam", "unispec", "hybrid",
)  # fmt: skip


def order_of(condition: Condition) -> tuple[int, str, str, bool, int]:
    """Sort key: published baselines first; chains before trees; k as a number, `auto` last."""
    kind = condition.name.partition(":")[0]
    place = _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
    length = condition.k if isinstance(condition.k, int) else 1 << 30
    return place, condition.name, condition.draft, not condition.chain, length
