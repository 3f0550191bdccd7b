"""A generation's rounds, kept as they come: what `decode --json` saves."""

from __future__ import annotations

from tokalign.runtime.events import Emitted, Event, Proposed
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.rounds import Round


class Trace:
    """A fold over events, like `Statistics`; `rounds` is right after every event."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self._proposed = Proposed(Proposal(), 0, 0.0)

    def observe(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, Proposed):
            self._proposed = event
        elif isinstance(event, Emitted):
            self.rounds.append(_round(self._proposed, event))


def _round(proposed: Proposed, emitted: Emitted) -> Round:
    proposal = proposed.proposal
    return Round(
        limit=proposed.limit,
        proposed=proposal.ids,
        sources=proposal.sources,
        parents=proposal.parents,
        probabilities=proposal.probabilities,
        accepted=emitted.accepted,
        emitted=emitted.ids,
        draft_passes=proposal.draft_passes,
        seconds=proposed.seconds + emitted.seconds,
        model_seconds=proposal.model_seconds + emitted.model_seconds,
    )
