"""Statistics of a generation, folded from its events. `docs/metrics.md` defines every figure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tokalign.runtime.events import Emitted, Event, Finished, Proposed, Started
from tokalign.runtime.proposal import TARGET, Proposal


class Statistics:
    """Counts as the events come; every figure is right after every event.

    Several generations may be folded into one, which is how texts are averaged.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.rounds = 0
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
        self._translation_seconds: list[float] = []
        self._first_rounds = [0, 0.0]  # tokens, seconds: prompts are read in these
        self._later_rounds = [0, 0.0]
        self._first = True
        self._proposed = Proposed(Proposal(), 0, 0.0)

    def observe(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case Started():
                self.prompt_tokens += event.prompt_tokens
                self._first = True
            case Proposed():
                self._proposed = event
            case Emitted():
                self._count(self._proposed, event)
                self._time(self._proposed, event)
            case Finished():
                self.finish_reason = event.reason

    def _count(self, proposed: Proposed, emitted: Emitted) -> None:
        proposal = proposed.proposal
        self.rounds += 1
        self.generation_tokens += len(emitted.ids)
        self.draft_passes += proposal.draft_passes
        self.counts.update(proposal.counts)
        self._proposed_by.update(proposal.sources)
        self._accepted_by.update(emitted.sources)
        if not proposal.ids:
            self.empty_rounds += proposed.limit > 0  # else nothing was asked for
            return
        self.num_spec_steps += 1
        self.num_draft_tokens += len(proposal.ids)
        self.num_accepted_draft_tokens += emitted.accepted
        self._accepted_lengths[emitted.accepted] += 1

    def _time(self, proposed: Proposed, emitted: Emitted) -> None:
        seconds = proposed.seconds + emitted.seconds
        spent = self._first_rounds if self._first else self._later_rounds
        spent[0] += len(emitted.ids)
        spent[1] += seconds
        if not self._first:
            in_models = proposed.proposal.model_seconds + emitted.model_seconds
            self._host_seconds.append(max(0.0, seconds - in_models))
            if proposed.proposal.draft_passes:
                self._translation_seconds.append(proposed.proposal.translation_seconds)
        self._first = False

    # -- figures ------------------------------------------------------------------------------

    @property
    def tokens_per_round(self) -> float:
        return ratio(self.generation_tokens, self.rounds)

    @property
    def accepted_per_round(self) -> float:
        return ratio(self.num_accepted_draft_tokens, self.rounds)

    @property
    def proposed_per_round(self) -> float:
        return ratio(self.num_draft_tokens, self.rounds)

    @property
    def draft_passes_per_round(self) -> float:
        return ratio(self.draft_passes, self.rounds)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round that had a proposal, the target's own included."""
        return 1 + self.mean_accepted_length

    @property
    def mean_accepted_length(self) -> float:
        """Accepted tokens per round that had a proposal."""
        return ratio(self.num_accepted_draft_tokens, self.num_spec_steps)

    @property
    def draft_acceptance_rate(self) -> float:
        return ratio(self.num_accepted_draft_tokens, self.num_draft_tokens)

    @property
    def coverage(self) -> float:
        """Share of rounds that had a proposal."""
        return ratio(self.num_spec_steps, self.rounds)

    @property
    def acceptance_histogram(self) -> list[int]:
        """Entry i: how many proposals had exactly i tokens accepted."""
        longest = max(self._accepted_lengths, default=-1)
        return [self._accepted_lengths[length] for length in range(longest + 1)]

    @property
    def prompt_tokens_per_second(self) -> float:
        return ratio(self.prompt_tokens, self._first_rounds[1])

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second behind the first round, which reads the prompt."""
        return ratio(*self._later_rounds)

    @property
    def host_ms_per_round(self) -> dict[str, float]:
        """p50 and p99 of the time a round spends outside model passes, the first left out."""
        return _quantiles_ms(self._host_seconds)

    @property
    def translation_ms_per_round(self) -> dict[str, float]:
        """The part of it that lies between a draft model's passes and target ids."""
        return _quantiles_ms(self._translation_seconds)

    @property
    def per_source(self) -> dict[str, dict[str, int]]:
        """Tokens each source proposed and got accepted; "target" emitted its own."""
        sources = [*sorted(self._proposed_by), TARGET]
        return {
            source: {"proposed": self._proposed_by[source], "accepted": self._accepted_by[source]}
            for source in sources
        }

    def summary(self) -> dict[str, Any]:
        """All figures under their documented names."""
        return {name: getattr(self, name) for name in _SUMMARY} | {
            "host_ms_per_round": self.host_ms_per_round,
            "translation_ms_per_round": self.translation_ms_per_round,
            "per_source": self.per_source,
            "translation_counts": dict(sorted(self.counts.items())),
        }


_SUMMARY = (
    "prompt_tokens",
    "generation_tokens",
    "prompt_tokens_per_second",
    "tokens_per_second",
    "rounds",
    "empty_rounds",
    "tokens_per_round",
    "accepted_per_round",
    "proposed_per_round",
    "draft_passes_per_round",
    "num_spec_steps",
    "num_draft_tokens",
    "num_accepted_draft_tokens",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "finish_reason",
)
_QUANTILES = {"p50": 0.50, "p99": 0.99}


def ratio(part: float, whole: float) -> float:
    """Return part / whole, 0 where there is no whole."""
    return part / whole if whole else 0.0


def _quantiles_ms(seconds: list[float]) -> dict[str, float]:
    return {name: round(_quantile(seconds, q) * 1e3, 4) for name, q in _QUANTILES.items()}


def _quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
