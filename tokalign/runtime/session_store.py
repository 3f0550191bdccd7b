"""What a named session keeps in memory for drafting: its outputs, and what its target found likely.

A store belongs to one session name and one tokenizer, because ids mean nothing to another one. It
holds what was emitted, not the prompts; the logit store has up to three ids of any text before each
of its rows, as hashes. Nothing leaves the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock

from tokalign.runtime.draft.context_copy import SEPARATOR
from tokalign.runtime.draft.logit_store import LogitStore
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.tokenizer.vocabulary import TargetId

MOST_IDS = 1 << 16
"""Ids kept per session, about 35 MB. When a store is full, its older half is dropped."""


class OutputStore:
    """The outputs of one session, the oldest first, as one text with separators between them.

    Several threads may use a store. Nobody waits: what is given while another thread is adding is
    added by that thread, or with the next output.
    """

    def __init__(self, *, most_ids: int = MOST_IDS) -> None:
        self._most_ids = most_ids
        self._text = SuffixAutomaton()
        self._given: deque[Sequence[TargetId]] = deque()
        self._adding = Lock()
        self._logits: dict[int, LogitStore] = {}

    def logits(self, width: int) -> LogitStore:
        """What targets with logits of this width found likely, empty at first.

        Two models of one tokenizer may pad their vocabularies differently, and one of them must not
        be given an id that only the other has.
        """
        return self._logits.setdefault(width, LogitStore())

    def __len__(self) -> int:
        """How many ids are kept, separators included."""
        return len(self._text)

    @property
    def text(self) -> SuffixAutomaton:
        """All outputs so far. It grows in place; when old outputs are dropped, it is replaced."""
        return self._text

    def add(self, output: Sequence[TargetId]) -> None:
        """Keep one more output, or its end if it is longer than half the store.

        Cost: 2-3 µs per id.
        """
        if output:
            self._given.append(output[-self._most_ids // 2 :])
        if self._adding.acquire(blocking=False):
            try:
                while self._given:
                    self._append(self._given.popleft())
            finally:
                self._adding.release()

    def _append(self, output: Sequence[TargetId]) -> None:
        if len(self._text) + len(output) > self._most_ids:
            self._text = SuffixAutomaton(_newer_half(self._text.ids))
        self._text.extend(output)
        self._text.append(SEPARATOR)


def _newer_half(ids: Sequence[TargetId]) -> Sequence[TargetId]:
    """The second half of `ids`, without the end of an output that it begins with."""
    half = list(ids[len(ids) // 2 :])
    return half[half.index(SEPARATOR) + 1 :]


_STORES: dict[tuple[str, str], OutputStore] = {}


def session_store(name: str, fingerprint: str) -> OutputStore:
    """The store of a session and a tokenizer, empty at first."""
    return _STORES.setdefault((name, fingerprint), OutputStore())


def clear_session(name: str | None = None) -> None:
    """Drop the outputs of one session, or of all sessions by default."""
    for key in list(_STORES):
        if name in (None, key[0]):
            _STORES.pop(key, None)
