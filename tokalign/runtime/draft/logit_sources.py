"""The logit store as sources of a hybrid: one for each length of its keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokalign.runtime.draft.logit_store import LogitStore, Tail, extended, tail_of
from tokalign.tables.logit_rows import LOG_ODDS, LONGEST_KEY
from tokalign.tokenizer.vocabulary import TargetId

SOURCE = "logits"

_odds_of = LOG_ODDS.__getitem__


class LogitSource:
    """Expects what the target found likely the last time that the same `length` ids came.

    It is a source of a hybrid (`hybrid.Source`).
    """

    def __init__(self, store: LogitStore, length: int) -> None:
        self._store, self._length = store, length
        self.name = f"{SOURCE}:{length}"

    def follow(self, ids: Sequence[TargetId]) -> Tail:
        """See `hybrid.Source`."""
        return tail_of(ids[-LONGEST_KEY:])

    def advance(self, state: Tail, token: TargetId) -> Tail:
        """See `hybrid.Source`."""
        return extended(state, token)

    def expect(self, state: Tail) -> Iterable[tuple[TargetId, float]] | None:
        """See `hybrid.Source`."""
        found = self._store.after(state, self._length)
        if found is None:
            return None
        ids, codes = found
        return zip(ids, map(_odds_of, codes), strict=False)  # mostly only the first are read


def logit_sources(store: LogitStore) -> list[LogitSource]:
    """The sources of a store, the longest keys first."""
    return [LogitSource(store, length) for length in range(LONGEST_KEY, 0, -1)]
