"""What a named session keeps in memory for drafting: its outputs, and what its target found likely.

A store belongs to one session name and one tokenizer, because ids mean nothing to another one. It
holds what was emitted, not the prompts; the logit store has up to three ids of any text before each
of its rows, as hashes. Nothing leaves the process.
"""

from __future__ import annotations

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

    text: all outputs so far. It grows in place; when old outputs are dropped, it is replaced.
    logits: what the target found likely, empty at first. Several threads may use a store.
    """

    def __init__(self, *, most_ids: int = MOST_IDS) -> None:
        self.text = SuffixAutomaton()
        self.logits = LogitStore()
        self._most_ids = most_ids
        self._adding = Lock()

    def add(self, output: Sequence[TargetId]) -> None:
        """Keep one more output, or its end if it is longer than half the store.

        Cost: 2-3 µs per id.
        """
        output = output[-self._most_ids // 2 :]
        if not output:
            return
        with self._adding:
            if len(self.text) + len(output) > self._most_ids:
                self.text = SuffixAutomaton(_newer_half(self.text.ids))
            self.text.extend(output)
            self.text.append(SEPARATOR)


def _newer_half(ids: Sequence[TargetId]) -> Sequence[TargetId]:
    """The second half of `ids`, without the end of an output that it begins with."""
    half = list(ids[len(ids) // 2 :])
    return half[half.index(SEPARATOR) + 1 :]


_STORES: dict[tuple[str, str, int], OutputStore] = {}


def session_store(name: str, fingerprint: str, width: int) -> OutputStore:
    """The store of a session, a tokenizer and targets with logits of this width, empty at first.

    Two models of one tokenizer may pad their vocabularies differently, and one of them must not be
    given an id that only the other has.
    """
    return _STORES.setdefault((name, fingerprint, width), OutputStore())


def clear_session(name: str | None = None) -> None:
    """Drop the outputs of one session, or of all sessions by default."""
    for key in list(_STORES):
        if name in (None, key[0]):
            _STORES.pop(key, None)
