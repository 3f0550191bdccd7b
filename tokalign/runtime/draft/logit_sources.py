"""The logit store as sources of a hybrid: one for each length of its keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokalign.runtime.draft.logit_store import LOG_ODDS, LONGEST_KEY, LogitStore
from tokalign.tokenizer.vocabulary import TargetId

Tail = tuple[TargetId, ...]

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
        return tuple(ids[-self._length :])

    def advance(self, state: Tail, token: TargetId) -> Tail:
        """See `hybrid.Source`."""
        return (*state, token)[-self._length :]

    def expect(self, state: Tail) -> Iterable[tuple[TargetId, float]] | None:
        """See `hybrid.Source`."""
        found = self._store.after(state)
        if found is None:
            return None
        ids, codes = found
        return zip(ids, map(_odds_of, codes), strict=False)  # mostly only the first are looked at


def logit_sources(store: LogitStore) -> list[LogitSource]:
    """The sources of a store, the longest keys first."""
    return [LogitSource(store, length) for length in range(LONGEST_KEY, 0, -1)]
