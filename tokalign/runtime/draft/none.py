"""No drafting: plain decoding in the same loop."""

from __future__ import annotations

from tokalign.runtime.context import Context
from tokalign.runtime.proposal import Proposal

_NOTHING, _NOTHING_MORE = Proposal(run_ahead=True), Proposal()


class NoDrafter:
    """Proposes nothing, and says that it never will, so that host and device overlap."""

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        return _NOTHING if limit else _NOTHING_MORE  # no pass is started after the last token
