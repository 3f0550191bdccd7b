"""What `tokalign bench` compares, how each condition drafts, what was measured, and what it shows.

Every run measures plain decoding twice. The second measurement, the control, shows how much equal
conditions differ on this machine; a condition is called faster only where it clears the control.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct, structs

from tokalign.runtime.draft.knowledge import new_worth
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.options import METHODS
from tokalign.runtime.statistics import ratio
from tokalign.tokenizer.tokenizer import Tokenizer

PLAIN, CONTROL = "plain", "plain again"


@dataclass(frozen=True, slots=True)
class Condition:
    """One way to decode.

    name: `PLAIN`, `CONTROL`, a method, or a translation of the draft model. k: ids or passes
    drafted in a round, or "auto"; None for plain decoding.
    """

    name: str
    k: int | str | None = None

    @property
    def is_plain(self) -> bool:
        return self.name == PLAIN

    @property
    def drafts(self) -> bool:
        return self.k is not None

    def __str__(self) -> str:
        return self.name if self.k is None else f"{self.name}, k = {self.k}"


BASELINES = (Condition(PLAIN), Condition(CONTROL))
"""Conditions that belong to every run."""


@dataclass(frozen=True, slots=True)
class PromptBlock:
    """What conditions are compared on: one prompt, counted from 1. digest: of its text."""

    prompt_set: str
    number: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One generation.

    tokens_per_second: after the first round, which reads the prompt; 0 if there was no other.
    host_ms: median time of a round outside the target's pass.
    round_ms, pass_ms, drafting_ms: means of a round, its pass and its drafting, but for the first.
    """

    block: PromptBlock
    condition: Condition
    token_ids: tuple[int, ...]
    prompt_tokens: int
    rounds: int
    proposed: int
    accepted: int
    draft_passes: int
    tokens_per_second: float
    host_ms: float
    round_ms: float = 0.0
    pass_ms: float = 0.0
    drafting_ms: float = 0.0


def drafting_of(drafting: Drafting, condition: Condition) -> Drafting:
    """How a condition drafts, with nothing learned yet. Its name is a method, else a
    translation."""
    name = condition.name if condition.drafts else PLAIN
    options: dict[str, Any] = {"method": name}
    if name not in METHODS:
        options = {"method": "draft", "translation": name}
    count = condition.k if isinstance(condition.k, int) else None
    drafting = drafting.with_options(**options, num_draft_tokens=count)
    return replace(drafting, mixing=Mixing(), model_worth=new_worth())


def conditions_of(
    drafting: Drafting,
    names: Sequence[str] | None = None,
    *,
    lengths: Sequence[int | str],
    pair: tuple[Tokenizer[Any], Tokenizer[Any]] | None,
    with_drafter: bool = False,
) -> list[Condition]:
    """The baselines, which a name may repeat, and the methods and translations of these names (all
    by default)."""
    if names is None:
        translations: Sequence[str] = ()
        if pair is not None:
            same = pair[0].fingerprint == pair[1].fingerprint
            translations = ("none",) if same else ("context:5", "intersection", "exact")
        dictionary = () if drafting.dictionary is None else ("dictionary",)
        drafter = ("drafter",) if with_drafter else ()
        names = (*translations, *drafter, *dictionary, "copy", "hybrid")
    drafting_names = [name for name in names if name != PLAIN]
    return [*BASELINES, *(Condition(name, k) for name in drafting_names for k in lengths)]


ENOUGH_PROMPTS = 8
"""Among fewer timed prompts noise clears the control too often."""


class Row(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One condition over the prompts of a set, or over all of them, as it is shown and published;
    `docs/metrics.md` defines the fields."""

    name: str
    k: int | str | None
    prompts: int = 0
    tokens: int = 0
    acceptance: float = 0.0
    tokens_per_round: float = 0.0
    draft_passes_per_round: float = 0.0
    tokens_per_second: float = 0.0
    host_ms: float = 0.0
    speedup: float = 0.0
    low: float = 0.0
    high: float = 0.0
    ids_that_differ: int = 0
    timed: int = 0
    fewest: float = 0.0
    most: float = 0.0
    waterfall: tuple[float, ...] = ()
    against_plain: str = ""

    @property
    def condition(self) -> Condition:
        return Condition(self.name, self.k)

    def figures(self) -> dict[str, Any]:
        """All fields, to six digits after the point."""
        fields = structs.asdict(self) | {
            "waterfall": tuple(round(speed, 6) for speed in self.waterfall)
        }
        return {n: round(v, 6) if isinstance(v, float) else v for n, v in fields.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of every set of prompts by its name, and over all of them."""

    sets: Mapping[str, Sequence[Row]]
    overall: Sequence[Row]

    @property
    def ids_that_differ(self) -> int:
        return sum(row.ids_that_differ for row in self.overall)


def compare(measurements: Iterable[Measurement]) -> Comparison:
    """Compare every condition with plain decoding, by set of prompts and over all, in the order in
    which they come. Prompts without a plain decoding are left out."""
    measurements = list(measurements)
    plain = {m.block: m for m in measurements if m.condition.is_plain}
    compared = [m for m in measurements if m.block in plain]
    conditions = list(dict.fromkeys(m.condition for m in compared))

    def rows(chosen: Sequence[Measurement]) -> list[Row]:
        rows = [_row(c, [m for m in chosen if m.condition == c], plain) for c in conditions]
        control = next((row for row in rows if row.name == CONTROL), None)
        return [structs.replace(row, against_plain=_against(row, control)) for row in rows]

    names = dict.fromkeys(m.block.prompt_set for m in compared)
    sets = {n: rows([m for m in compared if m.block.prompt_set == n]) for n in names}
    return Comparison(sets, rows(compared))


def _row(
    condition: Condition, measured: Sequence[Measurement], plain: Mapping[PromptBlock, Measurement]
) -> Row:
    proposed = sum(m.proposed for m in measured)
    rounds, tokens = sum(m.rounds for m in measured), sum(len(m.token_ids) for m in measured)
    timed = [m for m in measured if m.tokens_per_second]
    speedups = [
        m.tokens_per_second / usual for m in timed if (usual := plain[m.block].tokens_per_second)
    ]
    low, middle, high = np.quantile(speedups or [0.0], [0.25, 0.5, 0.75]).tolist()
    per_pass = [ratio(len(m.token_ids), m.rounds) for m in measured]
    fewest, most = np.quantile(per_pass or [0.0], [0.25, 0.75]).tolist()
    return Row(
        **asdict(condition),
        prompts=len(measured),
        tokens=tokens,
        acceptance=ratio(sum(m.accepted for m in measured), proposed),
        tokens_per_round=ratio(tokens, rounds),
        draft_passes_per_round=ratio(sum(m.draft_passes for m in measured), rounds),
        tokens_per_second=median([m.tokens_per_second for m in timed] or [0.0]),
        host_ms=median([m.host_ms for m in timed] or [0.0]),
        speedup=middle,
        low=low,
        high=high,
        ids_that_differ=sum(
            own != usual
            for m in measured
            for own, usual in zip_longest(m.token_ids, plain[m.block].token_ids)
        ),
        timed=len(speedups),
        fewest=fewest,
        most=most,
        waterfall=_waterfall(timed, [plain[m.block] for m in timed]),
    )


def _waterfall(measured: Sequence[Measurement], plain: Sequence[Measurement]) -> tuple[float, ...]:
    """From tokens to seconds, in the speed of plain decoding, over all tokens but first rounds'.

    Returns: tokens per pass, which is the speed if a pass over a tree took as long as one over a
    row and nothing else took time; then with what the rows cost; with drafting (passes of a draft
    model and looking things up); with the host's other work, which is the speed by the clock.
    Empty where nothing was timed.
    """
    rounds = sum(m.rounds - 1 for m in measured)
    usual = _mean([*plain], "round_ms")
    if not rounds or not usual:
        return ()
    tokens = sum(m.tokens_per_second * m.round_ms * (m.rounds - 1) for m in measured) / 1e3
    with_rows = usual + _mean(measured, "pass_ms") - _mean(plain, "pass_ms")
    with_drafting = with_rows + _mean(measured, "drafting_ms")
    times = (usual, with_rows, with_drafting, _mean(measured, "round_ms"))
    return tuple(tokens / rounds * ratio(usual, time) for time in times)


def _mean(measured: Sequence[Measurement], time: str) -> float:
    """The mean of a time over the rounds of several generations."""
    spent = sum(getattr(m, time) * (m.rounds - 1) for m in measured)
    return ratio(spent, sum(m.rounds - 1 for m in measured))


def _against(row: Row, control: Row | None) -> str:
    """Whether a row's quartiles lie beyond the control's; empty where nothing is decided."""
    if control is None or not row.condition.drafts:
        return ""
    if min(row.timed, control.timed) < ENOUGH_PROMPTS:
        return ""
    if row.low > control.high and row.acceptance > 0:
        return "faster"
    return "slower" if row.high < control.low else "no difference"
