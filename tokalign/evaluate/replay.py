"""Decode with a reference text in the place of the target: the same loop, another verifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokalign.runtime.context import Context
from tokalign.runtime.events import Event
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.proposal import Proposal, Verdict
from tokalign.tokenizer.vocabulary import TargetId


def replay(
    reference: Sequence[TargetId], drafter: Drafter, *, prompt_tokens: int = 0
) -> Iterator[Event]:
    """Decode what follows the first `prompt_tokens` ids of `reference`; no rounds if nothing does.

    Every round emits the accepted ids and one more, so tokens = rounds + accepted, exactly.
    """
    rest = max(0, len(reference) - prompt_tokens)
    context = Context(reference[:prompt_tokens])
    return decode(context, drafter, ReplayVerifier(reference), limits=Limits(max_tokens=rest))


class ReplayVerifier:
    """A reference text plays the target: it goes on as it does, whatever is proposed.

    rows: counted as a target with a cache computes them, accepted alternatives once more.
    """

    def __init__(self, reference: Sequence[TargetId]) -> None:
        self._reference = list(reference)
        self._fed_again = 0

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `interfaces.Verifier`. Raises: IndexError at the end of the reference.

        Limit `max_tokens` by its length.
        """
        at, tree = len(context.ids), proposal.tree
        ids = self._reference[at : at + len(tree) + 1]
        path = tree.path_of(ids)
        if len(path) == len(ids):
            raise IndexError("the reference text is at its end")
        rows = 1 + len(tree) + self._fed_again
        self._fed_again = tree.off_chain(path)
        return Verdict(ids=tuple(ids[: len(path) + 1]), path=tuple(path), rows=rows)
