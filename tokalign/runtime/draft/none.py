"""No drafting: plain decoding by the same loop."""

from __future__ import annotations

from tokalign.runtime.rounds import Context, Drafter, Proposal

_NOTHING, _NOTHING_MORE = Proposal(run_ahead=True), Proposal()


class NoDrafter(Drafter):
    """Proposes nothing, and says so in advance, so that the target runs ahead."""

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `rounds.Drafter`."""
        return _NOTHING if limit else _NOTHING_MORE  # after the last token no pass is to begin
