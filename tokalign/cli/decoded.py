"""What `decode` and `chat` print: tokens coloured by outcome, and the statistics of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokalign.cli.output import table
from tokalign.report.tokens import OUTCOMES
from tokalign.runtime.rounds import Outcome

_RESET = "\x1b[0m"
_STYLES = {  # magenta is underlined too, for readers who cannot tell it from green
    Outcome.ACCEPTED: "\x1b[32m",
    Outcome.CORRECTED: "\x1b[4;35m",
    Outcome.BONUS: "\x1b[36m",
    Outcome.UNDRAFTED: "",
}


def legend() -> str:
    """The names of all outcomes, each in its style."""
    return ", ".join(styled(text, outcome) for outcome, text in OUTCOMES.items())


def styled(text: str, outcome: Outcome) -> str:
    """`text` in the style of its outcome."""
    style = _STYLES[outcome]
    return f"{style}{text}{_RESET}" if style else text


def as_text(
    summary: Mapping[str, Any], *, plain_seconds: float | None = None, host_times: bool = False
) -> str:
    """The statistics as a table; `summary` as of `Generation.summary`.

    plain_seconds: per token of plain decoding; None if that is not known.
    host_times: also what the host did between the passes, for those who work on the code.
    """
    emitted, drafted = summary["generation_tokens"], summary["num_accepted_draft_tokens"]
    rate = summary["tokens_per_second"]
    speed = (
        [] if plain_seconds is None else [("speed", f"{rate * plain_seconds:.2f} x plain decoding")]
    )
    times = [
        ("host per round", _milliseconds(summary["host_ms_per_round"])),
        ("translation", _milliseconds(summary["translation_ms_per_round"])),
    ]
    sources = [
        f"{source} {counts['accepted']}" + (f"/{counts['proposed']}" if counts["proposed"] else "")
        for source, counts in summary["per_source"].items()
    ]
    return table(
        [
            ("prompt", _rate(summary["prompt_tokens"], summary["prompt_tokens_per_second"])),
            ("generation", _rate(summary["generation_tokens"], summary["tokens_per_second"])),
            ("tokens per pass", f"{summary['tokens_per_round']:.3f} (plain decoding: 1)"),
            ("drafted", f"{drafted / emitted if emitted else 0.0:.0%} of the output"),
            *speed,
            ("by source", ", ".join(sources)),
            *(times if host_times else []),
            ("peak memory", f"{summary['peak_memory_gb']:.2f} GB"),
            ("finished", summary["finish_reason"]),
        ]
    )


def _milliseconds(quantiles: Mapping[str, float]) -> str:
    return f"{quantiles['p50']:.2f} ms (p99 {quantiles['p99']:.2f} ms)"


def _rate(tokens: int, per_second: float) -> str:
    return f"{tokens} tokens, {per_second:.1f} tokens/s"
