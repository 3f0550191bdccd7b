"""A reference text plays the target's output: the same loop, another verifier."""

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
    """Decode `reference` behind its first `prompt_tokens` ids; no rounds if it has no more.

    Every round emits what was accepted and one id, so tokens = rounds + accepted, exactly.
    """
    rest = max(0, len(reference) - prompt_tokens)
    context = Context(reference[:prompt_tokens])
    return decode(context, drafter, ReplayVerifier(reference), limits=Limits(max_tokens=rest))


class ReplayVerifier:
    """A reference text plays the target: it emits itself, whatever is proposed."""

    def __init__(self, reference: Sequence[TargetId]) -> None:
        self._reference = list(reference)
        self._fed_again = 0

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """Raises IndexError where the reference is at its end: bound `max_tokens` by its length."""
        at, tree = len(context.ids), proposal.tree
        ids = self._reference[at : at + len(tree) + 1]
        path = tree.path_of(ids)
        if len(path) == len(ids):
            raise IndexError("the reference text is at its end")
        rows = 1 + len(tree) + self._fed_again
        self._fed_again = tree.off_chain(path)
        return Verdict(ids=tuple(ids[: len(path) + 1]), path=tuple(path), rows=rows)
