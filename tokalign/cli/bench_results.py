"""What `tokalign bench` makes of its measurements: a verdict, a page, a report for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokalign.cli.output import cell, note
from tokalign.storage import write_file

if TYPE_CHECKING:
    from tokalign.evaluate.comparison import Comparison, Measurement
    from tokalign.runtime.decoder import Decoder

COLUMNS = (
    "name", "k", "acceptance", "tokens_per_round", "draft_passes_per_round", "host_ms",
    "tokens_per_second", "speedup", "low", "high", "against_plain", "ids_that_differ",
)  # fmt: skip
"""Columns of the page; `docs/metrics.md` says what they mean."""


def publish(
    path: Path,
    about: Mapping[str, Any],
    decoder: Decoder,
    comparison: Comparison,
    measurements: Sequence[Measurement],
) -> None:
    """Write a report, and show on stderr what is in it before."""
    from tokalign.evaluate.machine_report import (
        MeasuredModels,
        Software,
        public_name,
        report_of,
        system_name,
        write,
    )
    from tokalign.names.memory import machine_memory
    from tokalign.runtime.cost import find_curve
    from tokalign.runtime.mlx.machine import machine_of
    from tokalign.runtime.mlx.weights import number_format, weight_bytes

    model, drafts = decoder.target.model, decoder.drafting_models or (None,)
    number, bits = number_format(model)
    curve = find_curve(machine_of(model, drafts[0]))
    if curve is None:
        note("the report has no costs of passes; tokalign calibrate measures them first")
    named = {role: public_name(about[role]) for role in ("draft", "drafter")}
    target = public_name(about["target"]) or ""
    report = report_of(
        comparison,
        measurements,
        curve,
        device=about["machine"],
        memory=machine_memory(),
        software=Software(system=system_name(), mlx=about["mlx"], tokalign=about["tokalign"]),
        models=MeasuredModels(
            target=target, memory=weight_bytes(model), format=number, bits=bits, **named
        ),
        **{name: about[name] for name in ("language", "temperature", "max_tokens")},
    )
    text = write(report)
    for line in (f"{path} gets this and nothing else:", *text.splitlines()):
        note(line)
    write_file(path, text)


def write_page(path: Path, comparison: Comparison, result: Mapping[str, Any]) -> None:
    """The page of a comparison: tokens per pass and speed by kind of prompt, and what is lost."""
    from tokalign.cli.report import bar_plot, waterfall_plot, write_report

    drafted = [row for row in comparison.overall if row.condition.drafts]
    labels = [str(row.condition) for row in drafted]

    def by_kind(*values: str) -> dict[str, list[tuple[float, float, float]]]:
        return {
            name: [attrgetter(*values)(row) for row in rows if row.condition.drafts]
            for name, rows in comparison.sets.items()
        }

    plots = [
        bar_plot(
            "Speed in that of plain decoding by kind of prompt; lines span the middle half.",
            labels,
            by_kind("speedup", "low", "high"),
        ),
        bar_plot(
            "Tokens per pass by kind of prompt; lines span the middle half of the prompts.",
            labels,
            by_kind("tokens_per_round", "fewest", "most"),
        ),
    ]
    best = max(drafted, key=lambda row: row.speedup, default=None)
    if best is not None and best.waterfall:
        plots.append(
            waterfall_plot(
                f"From tokens to seconds with {best.condition}, all prompts together: tokens per "
                "pass would be the speed if nothing else took time; what rows, drafting and the "
                "host take leaves the speed by the clock.",
                ("rows of a pass", "drafting", "the host"),
                best.waterfall,
            )
        )
    write_report(
        path,
        title=f"Ways to draft for {result['about']['target']}",
        about=", ".join(f"{name} {value}" for name, value in result["about"].items() if value),
        verdict=[verdict_of(comparison)],
        plots=plots if drafted else [],
        head=COLUMNS,
        rows=[[cell(row[name]) for name in COLUMNS] for row in result["overall"]],
    )


def verdict_of(comparison: Comparison) -> str:
    """In two sentences, what drafting brought at best, with the middle half of the prompts."""
    from tokalign.evaluate.comparison import CONTROL

    drafted = [row for row in comparison.overall if row.condition.drafts and row.timed]
    if not drafted:
        return "No way to draft was timed."
    best = max(drafted, key=lambda row: row.speedup)
    judged = {
        "faster": "clearly faster than plain decoding",
        "slower": "clearly slower than plain decoding",
        "no difference": "not clearly different from plain decoding, measured twice",
        "": "on too few prompts to tell it from chance",
    }[best.against_plain]
    noise = "".join(
        f" Plain decoding, measured again, has {row.low:.2f} to {row.high:.2f}."
        for row in comparison.overall
        if row.name == CONTROL and row.timed
    )
    return (
        f"The fastest way to draft is {best.condition}: {best.speedup:.2f} x plain decoding "
        f"({best.low:.2f} to {best.high:.2f} for the middle half of {best.timed} prompts), "
        f"{judged}; a pass gives {best.tokens_per_round:.2f} tokens.{noise}"
    )
