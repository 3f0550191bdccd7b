"""Why rounds ended, as counted: what `attribution.py` finds and results keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from lab.study.conditions import Condition, PromptBlock, order_of

CAUSES = {
    "length": "accepted to its end: a longer draft might have gone on",
    "nothing": "nothing was proposed",
    "model": "the draft model's own best guess is not the target's choice",
    "vocabulary": "the draft model knew the token, but its translation cannot name it",
    "context": "the draft model knew the token, but read other ids than the text has",
    "boundary": "the draft model knew the token, and it was lost between the two tokenizers",
}
"""Why a round ended, in the order of the waterfall."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """How many rounds of one generation ended for which cause; `tokens` were emitted."""

    block: PromptBlock
    condition: Condition
    tokens: int
    causes: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote. Raises: KeyError or TypeError for anything else."""
        block, condition = PromptBlock(**saved["block"]), Condition(**saved["condition"])
        return cls(block, condition, int(saved["tokens"]), dict(saved["causes"]))


def shares_of(found: Iterable[Attribution]) -> dict[str, dict[str, float]]:
    """For each condition, as text: of 1 token, the share of each cause; `accepted` is the rest."""
    counts: dict[Condition, Counter[str]] = {}
    tokens: Counter[Condition] = Counter()
    for one in found:
        counts.setdefault(one.condition, Counter()).update(one.causes)
        tokens[one.condition] += one.tokens
    shares = {}
    for condition in sorted(counts, key=order_of):
        causes, whole = counts[condition], tokens[condition]
        rest = {"accepted": (whole - causes.total()) / whole}
        shares[str(condition)] = rest | {cause: causes[cause] / whole for cause in CAUSES}
    return shares
