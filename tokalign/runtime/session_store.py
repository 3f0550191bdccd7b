"""Earlier outputs, to copy from: off unless a session is named, kept in memory, cleared at will.

A session belongs to one name and one tokenizer, as ids mean nothing to another. It holds what was
emitted, not what was asked; nothing leaves the process.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.runtime.draft.context_copy import SEPARATOR
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.tokenizer.vocabulary import TargetId

MOST_IDS = 1 << 16
"""About 35 MB. Beyond it the older half is forgotten."""


class OutputStore:
    """The outputs of one session, the oldest first, as a text with separators between them."""

    def __init__(self, *, most_ids: int = MOST_IDS) -> None:
        self._most_ids = most_ids
        self._text = SuffixAutomaton()

    def __len__(self) -> int:
        """How many ids are kept, separators included."""
        return len(self._text)

    @property
    def text(self) -> SuffixAutomaton:
        """All outputs so far. It grows with them, until outputs are forgotten: another one then."""
        return self._text

    def add(self, output: Sequence[TargetId]) -> None:
        """Keep one more output; the end of it where it is longer than the store. 2-3 µs per id."""
        if not output:
            return
        kept = output[-self._most_ids // 2 :]
        if len(self._text) + len(kept) > self._most_ids:
            self._text = SuffixAutomaton(_newer_half(self._text.ids))
        self._text.extend(kept)
        self._text.append(SEPARATOR)


def _newer_half(ids: Sequence[TargetId]) -> Sequence[TargetId]:
    """The second half, from the beginning of an output on."""
    half = list(ids[len(ids) // 2 :])
    return half[half.index(SEPARATOR) + 1 :]


_STORES: dict[tuple[str, str], OutputStore] = {}


def session_store(name: str, fingerprint: str) -> OutputStore:
    """The store of a session and a tokenizer, empty at first."""
    return _STORES.setdefault((name, fingerprint), OutputStore())


def clear_session(name: str | None = None) -> None:
    """Forget the outputs of one session, of all by default."""
    for key in [key for key in _STORES if name in (None, key[0])]:
        del _STORES[key]
