"""No drafting: plain decoding in the same loop."""

from __future__ import annotations

from tokalign.runtime.context import Context
from tokalign.runtime.proposal import Proposal

_NOTHING = Proposal(run_ahead=True)


class NoDrafter:
    """Proposes nothing, and says that it never will, so that host and device overlap."""

    def propose(self, context: Context, limit: int) -> Proposal:
        return _NOTHING
