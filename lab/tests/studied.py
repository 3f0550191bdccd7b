"""Studies for tests: samples with speeds and acceptances as wanted, and whole results of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measured import measured as measurement_of

from lab.study.causes import Attribution
from lab.study.conditions import BASELINES, Condition, PromptBlock
from lab.study.measurements import StudyMeasurement, Surroundings, Work
from lab.study.protocol import PRESETS, SETS
from lab.study.result import Model, Result, Setting
from lab.study.samples import Sample
from tokalign.runtime.cost import CostCurve, Machine, Timing

PLAIN, CONTROL = BASELINES
CONTEXT = {k: Condition("context:5", k, "draft") for k in (2, 4)}
COPY = Condition("copy", 4)
IDS = "00112233445566ff"


def measured(
    condition: Condition, where: PromptBlock | None = None, **figures: Any
) -> StudyMeasurement:
    """A measurement as a study keeps it."""
    sources = {"draft": 2, "target": 2} if condition.drafts else {"target": 4}
    own = {"work": Work(), "finish_reason": "length", "sources": sources}
    own = {name: figures.pop(name, value) for name, value in own.items()}
    return StudyMeasurement.of(measurement_of(condition, where or a_block(), **figures), **own)


def a_block(number: int = 1, *, prompt_set: str = "questions", **fields: Any) -> PromptBlock:
    return PromptBlock(prompt_set, number, f"{number:012x}", **{"temperature": 0.0, **fields})


def a_sample(
    condition: Condition, block: PromptBlock | None = None, *, speed: float = 20.0, **fields: Any
) -> Sample:
    """A generation of 13 tokens: 13 rounds of plain decoding, or 7 that accept one of two ids."""
    drafts, model = condition.drafts, bool(condition.draft)
    rounds = 7 if drafts else 13
    usual: dict[str, Any] = {
        "prompt_tokens": 9,
        "tokens": 13,
        "ids": IDS,
        "differing": 0,
        "rounds": rounds,
        "proposed": 14 if drafts else 0,
        "accepted": 6 if drafts else 0,
        "draft_passes": 14 if model else 0,
        "host_ms": 20.5 if model else 0.5,  # two draft passes take 20
        "finish_reason": "length",
        "sources": {"target": rounds} | ({"draft": 6} if drafts else {}),
        "work": Work(
            rows={3: 6} if drafts else {1: 12},
            first_tokens=1,
            first_seconds=0.25,
            later_passes=12 if model else 0,
            chain_proposed=14 if drafts else 0,
            chain_accepted=6 if drafts else 0,
        ),
        "surroundings": Surroundings(load=0.5, peak_gb=0.1),
    }
    return Sample(
        block=block or a_block(),
        condition=condition,
        tokens_per_second=speed,
        **usual | fields,
    )


def a_curve(*, rows: Sequence[float] = (1.0, 1.1, 1.2, 1.3, 1.4), draft: float = 0.1) -> CostCurve:
    """Costs in units of a tenth of a second."""
    timings = {m: Timing(*[cost / 10] * 3) for m, cost in enumerate(rows, start=1)}
    return CostCurve(
        name="a curve",
        source="made for a test",
        context=128,
        rows=timings,
        draft_pass=Timing(*[draft / 10] * 3),
        host=0.001,
        machine=Machine(device="a chip", mlx="0.32", target="a", draft="b"),
    )


def a_model(name: str, size: int) -> Model:
    return Model(
        name=name, weights="ab" * 6, tokenizer="cd" * 32, bytes=size, bits=32, dtype="float32"
    )


def a_setting(**fields: Any) -> Setting:
    usual: dict[str, Any] = {
        "chip": "a chip",
        "system": "a system",
        "memory_gb": 16.0,
        "python": "3.12.0",
        "mlx": "0.32.0",
        "mlx_lm": "0.32.0",
        "tokalign": "0.1.0",
        "power": "AC",
        "energy": False,
        "target": a_model("a target", 1000),
        "drafts": {"draft": a_model("a draft", 100)},
        "dictionaries": {},
        "prompts": dict.fromkeys(SETS, "ab" * 8),
        "own_prompts": True,
        "protocol": PRESETS["quick"],
    }
    return Setting(**usual | fields)


def a_result(*, prompts: int = 9, control: float = 1.0, **fields: Any) -> Result:
    """Drafting is faster by half than plain decoding; the control by the factor `control`."""
    samples = [
        a_sample(condition, a_block(number, prompt_set=name), speed=speed * (1 + 0.01 * number))
        for name in SETS
        for number in range(1, prompts + 1)
        for condition, speed in (
            (PLAIN, 10.0), (CONTROL, 10.0 * control), (CONTEXT[2], 15.0), (CONTEXT[4], 12.0),
            (COPY, 11.0),
        )
    ]  # fmt: skip
    usual: dict[str, Any] = {
        "setting": a_setting(),
        "measured": "2026-11-22",
        "curves": {"": a_curve(), "draft": a_curve()},
        "samples": tuple(samples),
        "causes": (Attribution(a_block(), CONTEXT[2], 13, {"model": 5, "boundary": 2}),),
    }
    return Result(**usual | fields)
