"""What `decode` and `chat` share: from options to a decoder, coloured tokens, and statistics."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import randbits
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from tokalign.cli.markdown import for_terminal
from tokalign.cli.output import RESET, flags, for_stdout, note, table, to_stderr, write
from tokalign.errors import UsageError
from tokalign.runtime.options import CacheOptions, DraftingOptions, take
from tokalign.runtime.rounds import UNBOUNDED, Outcome, Reading, Round

if TYPE_CHECKING:
    from tokalign.runtime.chat import Message, Prompt
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """What `STOP` and `TEMPLATE` of `options.py` ask for."""

    stop: tuple[str, ...]
    system_prompt: str | None
    ignore_chat_template: bool
    chat_template_config: Mapping[str, object]
    prefill_response: str | None

    def prompt(self, decoder: Decoder, messages: Sequence[Message]) -> Prompt:
        """What the models read of a conversation, with the beginning of the answer."""
        from tokalign.conversation.rendering import rendered

        if self.prefill_response is not None:
            messages = [*messages, {"role": "assistant", "content": self.prefill_response}]
        return decoder.prompt(
            messages,
            use_template=not self.ignore_chat_template,
            variables=self.chat_template_config,
            render=rendered,
        )


def load(
    values: dict[str, Any], *, measures: bool = False, details: bool = False
) -> tuple[Decoder, Sampling]:
    """Load what is named. Returns: a decoder, and how its ids are to be chosen.

    values: of `MODEL`, `DRAFTING`, `SAMPLING`, `ENDS` and `CACHE` by name, which are taken out.
    measures: what passes cost is measured if it is not known. details: where files are is noted.
    Raises: as `load_decoder`.
    """
    from tokalign.api.assemble import LOADING, keep_loaded, load_decoder
    from tokalign.cli.calibrate import measure_unless_known
    from tokalign.tables.finding import Detail

    if values["target"] is None:
        raise UsageError(
            "no model is named; give its NAME, such as one that `tokalign models` lists"
        )
    cache, drafting = take(CacheOptions, values), take(DraftingOptions, values)
    name = values.pop("target")
    named = iter([f"{Path(name).name or name}: "])  # the first line says who it is about

    def note_what_decides(line: str) -> None:
        if not isinstance(line, Detail):
            note(next(named, "") + line)

    decoder = load_decoder(
        name,
        values.pop("draft"),
        drafting,
        **{name: values.pop(name) for name in LOADING},
        cache=cache,
        before_costs=measure_unless_known if measures else lambda *_: None,
        note=note if details else note_what_decides,
    )
    sampling = _sampling(values, decoder.target)
    if cache.max_kv_size is not None:
        note(_about_max_kv_size(decoder))
    keep_loaded()
    return decoder, sampling


def _sampling(values: dict[str, Any], target: LanguageModel[TargetId]) -> Sampling:
    from tokalign.runtime.mlx.sampling import Sampling

    seed, sampling = values.pop("seed"), take(Sampling, values)
    return replace(
        sampling,
        seed=randbits(32) if seed is None else seed,
        xtc_exempt=target.xtc_exempt if sampling.xtc_probability else (),
    )


def _about_max_kv_size(decoder: Decoder) -> str:
    rewindable = decoder.open_target().rewindable
    if rewindable == UNBOUNDED:
        return "--max-kv-size has no effect, as in mlx-lm: this model makes a cache of its own kind"
    return (
        f"--max-kv-size: drafting stops when the context has {rewindable} tokens, because a full "
        "rotating cache cannot be rewound"
    )


OUTCOMES = {
    Outcome.ACCEPTED: "accepted draft",
    Outcome.CORRECTED: "rejected and corrected",
    Outcome.BONUS: "bonus",
    Outcome.UNDRAFTED: "no draft",
}

STYLES = {  # magenta is underlined too, for readers who cannot tell it from green
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
    style = STYLES[outcome]
    return f"{style}{text}{RESET}" if style else text


class Printer:
    """Prints a text as it is generated, in colours or as Markdown; nothing with --json."""

    def __init__(self, *, color: bool, markdown: bool = False) -> None:
        self._color, self._is_reading = color, False
        self._markdown = for_terminal() if markdown and not color else None

    def reading(self, reading: Reading | None) -> None:
        """Say on a terminal how far a long prompt has been read, until there is a text."""
        if reading is None or flags.quiet or not sys.stderr.isatty():
            return
        self._is_reading = True
        to_stderr(f"\r\x1b[Kreading {reading.done:,} of {reading.total:,}", end="")

    def write(self, text: str, outcome: Outcome | None = None) -> None:
        """Print a piece of the text, or what can be rendered by now."""
        if self._is_reading:
            self._is_reading = False
            to_stderr("\r\x1b[K", end="")
        shown = for_stdout(text)
        if self._markdown is not None:
            shown = self._markdown.push(shown)
        elif self._color and shown and outcome is not None:
            shown = styled(shown, outcome)
        if not flags.as_json:
            write(shown)

    def end(self) -> None:
        if not flags.as_json:
            write(("" if self._markdown is None else self._markdown.finish()) + "\n")


_FEWEST_PLAIN = 8
"""Plain rounds of an answer from which its speed is compared with theirs."""


def times_plain(rounds: Sequence[Round]) -> tuple[float, float] | None:
    """The speed of an answer in that of plain decoding, from a lower to an upper estimate.

    The answer's own plain rounds say what plain decoding takes, with their quartiles; None if there
    are few of them, or no others. The first round reads the prompt and does not count.
    """
    timed = rounds[1:]
    plain = [round_.seconds for round_ in timed if not round_.tree]
    if len(plain) < _FEWEST_PLAIN or len(plain) == len(timed):
        return None
    low, _, high = quantiles(plain, n=4)
    rate = sum(len(round_.emitted) for round_ in timed) / sum(round_.seconds for round_ in timed)
    return rate * low, rate * high


def _speeds(summary: Mapping[str, Any], rounds: Sequence[Round]) -> list[str]:
    """The speed in words; nothing after so few rounds that it would be chance."""
    rate = summary["tokens_per_second"]
    if not rate or summary["rounds"] < 8:
        return []
    compared = times_plain(rounds)
    if compared is None:
        return [f"{rate:.1f} tokens/s"]
    low, high = compared
    factor = f"{low:.2f} to {high:.2f} x plain decoding"
    if high < 1:
        factor += " (the first 40 tokens measure what drafts cost, and other programs slow passes)"
    return [f"{rate:.1f} tokens/s", factor]


def closing_line(
    summary: Mapping[str, Any], rounds: Sequence[Round] = (), *, max_tokens: int | None = None
) -> str:
    """One line about an answer: its length and speed, and what cut it off. summary: as of
    `Generation.summary`."""
    count = summary["generation_tokens"]
    parts = [f"{count} token{'s' * (count != 1)}", *_speeds(summary, rounds)]
    match summary["finish_reason"]:
        case "interrupted":
            parts.append("interrupted")
        case "length" if count == max_tokens:
            parts.append("cut off by max_tokens")
        case "length":
            parts.append("cut off by the end of the context")
    return f"[{', '.join(parts)}]"


def as_text(
    summary: Mapping[str, Any], rounds: Sequence[Round] = (), *, host_times: bool = False
) -> str:
    """The statistics as a table. host_times: also the time of a round beside the target's pass."""
    emitted, drafted = summary["generation_tokens"], summary["num_accepted_draft_tokens"]
    host = "{p50:.2f} ms (p99 {p99:.2f} ms)".format(**summary["host_ms_per_round"])
    sources = [
        f"{source} {counts['accepted']}" + (f"/{counts['proposed']}" if counts["proposed"] else "")
        for source, counts in summary["per_source"].items()
    ]
    return table(
        [
            ("prompt", _prompt(summary)),
            ("generation", ", ".join([f"{emitted} tokens", *_speeds(summary, rounds)])),
            ("tokens per pass", f"{summary['tokens_per_round']:.3f} (plain decoding: 1)"),
            ("drafted", f"{drafted / max(1, emitted):.0%} of the output"),
            ("by source", ", ".join(sources)),
            *([("beside the passes", host)] if host_times else []),
            ("peak memory", f"{summary['peak_memory_gb']:.2f} GB"),
            ("finished", summary["finish_reason"]),
        ]
    )


def _prompt(summary: Mapping[str, Any]) -> str:
    """Its length; the rate is that of the tokens that were read for this answer, if enough were."""
    tokens, cached = summary["prompt_tokens"], summary.get("cached_tokens", 0)
    read = tokens - cached
    speed = summary["prompt_tokens_per_second"] * read / max(1, tokens)
    new = f", {read} of them new" if cached else ""
    return f"{tokens} tokens{new}" + (f", {speed:.1f} tokens/s" if read >= 16 else "")
