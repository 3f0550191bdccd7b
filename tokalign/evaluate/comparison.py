"""What `tokalign bench` compares, how each condition drafts, what was measured, and what it shows.

Every run measures plain decoding twice. Its second measurement, the control, shows how much equal
conditions differ on this machine; a condition is called faster only where it clears the control.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import median
from typing import Any

import numpy as np

from tokalign.runtime.draft.knowledge import ModelWorth
from tokalign.runtime.draft.mixing import Mixing
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.options import METHODS
from tokalign.runtime.statistics import ratio
from tokalign.tokenizer.tokenizer import Tokenizer

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
    def is_plain(self) -> bool:
        """Whether this is plain decoding, with which every condition is compared."""
        return self.name == PLAIN

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
    host_ms: median time of a round outside the target's pass. sources: accepted tokens by source.
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


def drafting_of(drafting: Drafting, condition: Condition) -> Drafting:
    """How a condition drafts, with nothing learned yet.

    Its name is a method, else a translation of the draft model.
    """
    name = condition.name if condition.drafts else PLAIN
    asked: dict[str, Any] = {"method": name}
    if name not in METHODS:
        asked = {"method": "draft", "translation": name}
    if condition.chain:
        asked["alternatives"] = 0
    count = condition.k if isinstance(condition.k, int) else None
    drafting = drafting.with_options(**asked, num_draft_tokens=count)
    return replace(drafting, mixing=Mixing(), model_worth=ModelWorth())


def conditions_of(
    drafting: Drafting,
    names: Sequence[str] | None = None,
    *,
    lengths: Sequence[int | str],
    pair: tuple[Tokenizer[Any], Tokenizer[Any]] | None,
    with_drafter: bool = False,
) -> list[Condition]:
    """Plain decoding and its control, and the methods and translations of these names by length.

    names: by default all that can be measured, a dictionary or a recurrent drafter if there is one.
    pair: the tokenizers of target and draft, None without a draft model. If both are the same,
    `none` is the only translation; else the others are measured.
    """
    if names is None:
        translations: Sequence[str] = ()
        if pair is not None:
            same = pair[0].fingerprint == pair[1].fingerprint
            translations = ("none",) if same else ("context:5", "intersection", "exact")
        dictionary = () if drafting.dictionary is None else ("dictionary",)
        drafter = ("drafter",) if with_drafter else ()
        names = (*translations, *drafter, *dictionary, "copy", "hybrid")
    return [*BASELINES, *(Condition(name, k) for name in names for k in lengths)]


ENOUGH_PROMPTS = 8
"""Fewer timed prompts decide nothing: among them noise clears the control too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One condition over the prompts of a set, or over all of them.

    Token figures count all tokens together; `tokens_per_second`, `host_ms` and `speedup` are
    medians over prompts, `low` and `high` the quartiles of the speed-up. timed: how many
    prompts have a speed; one whose output ended in its first round has none.
    ids_that_differ: positions at which the output is not that of plain decoding, over all prompts.
    against_plain: "faster" where tokens were accepted and `low` lies above the control's `high`,
    "slower" where `high` lies below the control's `low`, else "no difference"; empty without
    drafting, without a control, and for fewer than `ENOUGH_PROMPTS` timed ones.
    """

    condition: Condition
    prompts: int
    tokens: int
    acceptance: float
    tokens_per_round: float
    draft_passes_per_round: float
    tokens_per_second: float
    host_ms: float
    speedup: float
    low: float
    high: float
    ids_that_differ: int
    timed: int
    against_plain: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of every set of prompts by its name, and over all of them."""

    sets: Mapping[str, Sequence[Row]]
    overall: Sequence[Row]

    @property
    def ids_that_differ(self) -> int:
        """Positions at which an output is not that of plain decoding, over all conditions."""
        return sum(row.ids_that_differ for row in self.overall)


def compare(measurements: Iterable[Measurement]) -> Comparison:
    """Compare every condition with plain decoding, by set of prompts and over all.

    Plain decoding and its control come first. Prompts without a plain decoding are left out.
    """
    found = list(measurements)
    plain = {m.block: m for m in found if m.condition.is_plain}
    found = [m for m in found if m.block in plain]
    conditions = sorted({m.condition for m in found}, key=order_of)
    sets = dict.fromkeys(m.block.prompt_set for m in found)

    def rows(of: str | None) -> list[Row]:
        chosen = [m for m in found if of in (None, m.block.prompt_set)]
        rows = [_row(c, [m for m in chosen if m.condition == c], plain) for c in conditions]
        control = next((row for row in rows if row.condition.name == CONTROL), None)
        return [replace(row, against_plain=_against(row, control)) for row in rows]

    return Comparison({name: rows(name) for name in sets}, rows(None))


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


def _row(
    condition: Condition, measured: Sequence[Measurement], plain: Mapping[Block, Measurement]
) -> Row:
    proposed = sum(m.proposed for m in measured)
    rounds, tokens = sum(m.rounds for m in measured), sum(len(m.token_ids) for m in measured)
    speedups = [
        m.tokens_per_second / usual
        for m in measured
        if m.tokens_per_second and (usual := plain[m.block].tokens_per_second)
    ]
    low, middle, high = np.quantile(speedups or [0.0], [0.25, 0.5, 0.75]).tolist()
    return Row(
        condition=condition,
        prompts=len(measured),
        tokens=tokens,
        acceptance=ratio(sum(m.accepted for m in measured), proposed),
        tokens_per_round=ratio(tokens, rounds),
        draft_passes_per_round=ratio(sum(m.draft_passes for m in measured), rounds),
        tokens_per_second=_median([m.tokens_per_second for m in measured if m.tokens_per_second]),
        host_ms=_median([m.host_ms for m in measured if m.tokens_per_second]),
        speedup=middle,
        low=low,
        high=high,
        ids_that_differ=sum(_differing(m, plain[m.block]) for m in measured),
        timed=len(speedups),
    )


def _differing(measured: Measurement, plain: Measurement) -> int:
    pairs = zip_longest(measured.token_ids, plain.token_ids)
    return sum(1 for own, wanted in pairs if own != wanted)


def _against(row: Row, control: Row | None) -> str:
    """How a row compares with plain decoding; see `Row.against_plain`."""
    if control is None or not row.condition.drafts:
        return ""
    if min(row.timed, control.timed) < ENOUGH_PROMPTS:
        return ""
    if row.low > control.high and row.acceptance > 0:
        return "faster"
    return "slower" if row.high < control.low else "no difference"


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0
