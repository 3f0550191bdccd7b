"""Writes docs/machines.md from the reports in lab/results/machines/.

python docs/machines_reference.py > docs/machines.md
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokalign.evaluate.comparison import Row
from tokalign.evaluate.machine_report import MachineReport, read

REPORTS = Path(__file__).resolve().parents[1] / "lab" / "results" / "machines"

HEAD = """# Machines

Written by `python docs/machines_reference.py` from the reports in
[lab/results/machines](../lab/results/machines). Yours is welcome:
`tokalign bench --target NAME --publish FILE` writes one. It has no text and nothing personal in it,
and is shown before it is written. Speed is relative to plain decoding: the median over prompts, and
the middle half of them. **Bold** is clearly faster than plain decoding measured twice, *italics*
clearly slower.
"""


def page() -> str:
    """The whole page."""
    reports = [read(path) for path in sorted(REPORTS.glob("*.json"))]
    return "\n".join([HEAD, *(text for report in reports for text in section(report))])


def section(report: MachineReport) -> Iterator[str]:
    """The lines about one machine with its models."""
    models = report.models
    pair = " with ".join(filter(None, (models.target, models.draft, models.drafter)))
    yield f"## {report.device}: {pair}\n"
    yield (
        f"{report.memory / 1e9:.0f} GB of memory, {report.software.system}, mlx "
        f"{report.software.mlx}, tokalign {report.software.tokalign}, {report.date}. The target's "
        f"weights: {models.memory / 1e9:.2f} GB, {models.format}, {models.bits} bits. Temperature "
        f"{report.temperature:g}, {report.max_tokens} tokens of each answer"
        + (f", prompts in {report.language}.\n" if report.language else ".\n")
    )
    for passes in report.passes:
        one = passes.rows.get(1)
        costs = ", ".join(
            f"{rows}: {seconds / one:.2f}" if one else f"{rows}: {1e3 * seconds:.1f} ms"
            for rows, seconds in passes.rows.items()
        )
        first = "" if one is None else f"one row takes {1e3 * one:.1f} ms; in such passes, "
        yield f"After {passes.context} ids {first}by rows {costs}.\n"
    yield "| prompts | method | k | tokens per pass | speed | middle half | of prompts |"
    yield "|---|---|---|---|---|---|---|"
    yield from (line(name, row) for name, rows in report.results.items() for row in rows)
    yield ""
    for equality in report.equality:
        bound = "more" if equality.context is None else f"up to {equality.context}"
        yield (
            f"Contexts of {bound} ids: {equality.equal:,} of {equality.compared:,} ids stood "
            "before the first that differs from plain decoding.\n"
        )


def line(prompts: str, row: Row) -> str:
    """A line of the table."""
    speed = f"{row.speedup:.2f}"
    speed = {"faster": f"**{speed}**", "slower": f"*{speed}*"}.get(row.against_plain, speed)
    return (
        f"| {prompts} | {row.condition.name} | {row.k} | {row.tokens_per_round:.2f} | "
        f"{speed} | {row.low:.2f}–{row.high:.2f} | {row.timed} |"
    )


if __name__ == "__main__":
    print(page(), end="")
