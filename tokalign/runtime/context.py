"""The one mutable thing of a generation: what has been committed so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokalign.tokenizer.vocabulary import TargetId


class Context:
    """Prompt and committed output as target ids. It only grows; committed ids never change.

    Everything else (caches, the draft's view of the text, lookup tables) follows it: whoever needs
    it compares it with what they hold.
    """

    def __init__(self, prompt: Iterable[TargetId]) -> None:
        self._ids = list(prompt)
        self._prompt_length = len(self._ids)

    @property
    def ids(self) -> Sequence[TargetId]:
        """Prompt and output. Not a copy: it grows with the context."""
        return self._ids

    @property
    def prompt(self) -> Sequence[TargetId]:
        return self._ids[: self._prompt_length]

    @property
    def emitted(self) -> Sequence[TargetId]:
        """The output so far."""
        return self._ids[self._prompt_length :]

    @property
    def emitted_count(self) -> int:
        return len(self._ids) - self._prompt_length

    def extend(self, ids: Iterable[TargetId]) -> None:
        """Commit `ids`."""
        self._ids.extend(ids)
