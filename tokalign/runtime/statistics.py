"""Statistics of a generation, counted from its events. `docs/metrics.md` defines every figure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tokalign.runtime.rounds import TARGET, Event, Finished, Reading, Round, Started


class Statistics:
    """Counts of the events so far; every figure is right after every event. The events of several
    generations may be counted together, to average over texts."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.rounds = 0
        self.rows = 0
        self.num_spec_steps = 0
        self.num_draft_tokens = 0
        self.num_accepted_draft_tokens = 0
        self.draft_passes = 0
        self.empty_rounds = 0
        self.finish_reason: str | None = None
        self.counts: Counter[str] = Counter()
        self._accepted_lengths: Counter[int] = Counter()
        self._proposed_by: Counter[str] = Counter()
        self._accepted_by: Counter[str] = Counter()
        self._host_seconds: list[float] = []
        self._first_rounds = [0, 0.0]  # tokens, seconds: prompts are read in these
        self._later_rounds = [0, 0.0]
        self._later_parts = [0, 0.0, 0.0]  # rounds, seconds of the target's passes and of drafting
        self._first = True

    def observe(self, event: Event) -> None:
        match event:
            case Started():
                self.prompt_tokens += event.prompt_tokens
                self._first = True
            case Reading():
                self._first_rounds[1] += event.seconds
            case Round():
                self._count(event)
                self._time(event)
            case Finished():
                self.finish_reason = event.reason

    def _count(self, round_: Round) -> None:
        self.rounds += 1
        self.generation_tokens += len(round_.emitted)
        # The first round's other rows read the prompt.
        self.rows += 1 + len(round_.tree) if self._first else round_.rows
        self.draft_passes += round_.draft_passes
        self.counts += Counter(round_.counts)  # which drops what is zero
        self._proposed_by.update(round_.tree.sources)
        self._accepted_by.update(round_.sources)
        if not round_.tree:
            self.empty_rounds += round_.limit > 0  # with a limit of 0 no proposal was asked for
            return
        self.num_spec_steps += 1
        self.num_draft_tokens += len(round_.tree)
        self.num_accepted_draft_tokens += round_.accepted
        self._accepted_lengths[round_.accepted] += 1

    def _time(self, round_: Round) -> None:
        spent = self._first_rounds if self._first else self._later_rounds
        spent[0] += len(round_.emitted)
        spent[1] += round_.seconds
        if not self._first:
            self._host_seconds.append(max(0.0, round_.seconds - round_.verification))
            self._later_parts[0] += 1
            self._later_parts[1] += round_.verification
            self._later_parts[2] += round_.drafting
        self._first = False

    # -- figures ------------------------------------------------------------------------------

    @property
    def tokens_per_round(self) -> float:
        return ratio(self.generation_tokens, self.rounds)

    @property
    def accepted_per_round(self) -> float:
        """Accepted tokens per round, rounds without a proposal included."""
        return ratio(self.num_accepted_draft_tokens, self.rounds)

    @property
    def rows_per_round(self) -> float:
        """Rows that the target computed, without those that read the prompt."""
        return ratio(self.rows, self.rounds)

    @property
    def draft_passes_per_round(self) -> float:
        return ratio(self.draft_passes, self.rounds)

    @property
    def mean_accepted_length(self) -> float:
        """Accepted tokens per round that had a proposal."""
        return ratio(self.num_accepted_draft_tokens, self.num_spec_steps)

    @property
    def draft_acceptance_rate(self) -> float:
        """Share of the proposed tokens that were accepted."""
        return ratio(self.num_accepted_draft_tokens, self.num_draft_tokens)

    @property
    def coverage(self) -> float:
        return ratio(self.num_spec_steps, self.rounds)

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens per second of the first round, which reads the prompt."""
        return ratio(self.prompt_tokens, self._first_rounds[1])

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second after the first round, which reads the prompt."""
        return ratio(*self._later_rounds)

    @property
    def host_ms_per_round(self) -> dict[str, float]:
        """p50 and p99 of a round's time outside the target's pass; the first round is left out."""
        ordered = sorted(self._host_seconds) or [0.0]
        at = {"p50": 0.50, "p99": 0.99}
        return {name: round(ordered[int(q * len(ordered))] * 1e3, 4) for name, q in at.items()}

    @property
    def ms_per_round(self) -> tuple[float, float, float]:
        """Means of a whole round, of its pass and of its drafting; the first round is left out."""
        rounds, passes, drafting = self._later_parts
        whole = self._later_rounds[1]
        return (
            1e3 * ratio(whole, rounds),
            1e3 * ratio(passes, rounds),
            1e3 * ratio(drafting, rounds),
        )

    @property
    def per_source(self) -> dict[str, dict[str, int]]:
        """Proposed and accepted tokens of each source; "target" counts the tokens of its own."""
        sources = [*sorted(self._proposed_by), TARGET]
        return {
            source: {"proposed": self._proposed_by[source], "accepted": self._accepted_by[source]}
            for source in sources
        }

    def summary(self) -> dict[str, Any]:
        """All figures under their documented names."""
        longest = max(self._accepted_lengths, default=-1)
        return {
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "prompt_tokens_per_second": self.prompt_tokens_per_second,
            "tokens_per_second": self.tokens_per_second,
            "rounds": self.rounds,
            "empty_rounds": self.empty_rounds,
            "tokens_per_round": self.tokens_per_round,
            "accepted_per_round": self.accepted_per_round,
            "proposed_per_round": ratio(self.num_draft_tokens, self.rounds),
            "rows_per_round": self.rows_per_round,
            "draft_passes_per_round": self.draft_passes_per_round,
            "num_spec_steps": self.num_spec_steps,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "mean_acceptance_length": 1 + self.mean_accepted_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_histogram": [self._accepted_lengths[n] for n in range(longest + 1)],
            "finish_reason": self.finish_reason,
            "host_ms_per_round": self.host_ms_per_round,
            "per_source": self.per_source,
            "translation_counts": dict(sorted(self.counts.items())),
        }


def ratio(part: float, whole: float) -> float:
    """Return part / whole, 0 where there is no whole."""
    return part / whole if whole else 0.0
