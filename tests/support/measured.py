"""Measurements for tests: speeds and acceptances as wanted."""

from __future__ import annotations

from typing import Any

from tokalign.evaluate.comparison import Condition, Measurement, PromptBlock

EXACT = Condition("exact", 2)


def block(number: int = 1, *, prompt_set: str = "questions") -> PromptBlock:
    return PromptBlock(prompt_set, number, f"{number:08x}")


def measured(condition: Condition, where: PromptBlock | None = None, **figures: Any) -> Measurement:
    drafts = not condition.is_plain
    usual: dict[str, Any] = {
        "token_ids": (5, 6, 7, 8),
        "prompt_tokens": 9,
        "rounds": 2 if drafts else 4,
        "proposed": 4 if drafts else 0,
        "accepted": 2 if drafts else 0,
        "draft_passes": 4 if drafts else 0,
        "tokens_per_second": 20.0,
        "host_ms": 0.5,
    }
    return Measurement(block=where or block(), condition=condition, **usual | figures)
