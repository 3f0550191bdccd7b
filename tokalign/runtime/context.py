"""The context of a generation: the one value of the runtime that changes while it decodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokalign.tokenizer.vocabulary import TargetId

UNBOUNDED = 1 << 30
"""A number of ids that no context holds."""


class Context:
    """Prompt and committed output as target ids. It only grows; committed ids never change.

    Caches and the draft's view of the text follow it: their owners compare the context with what
    they hold and trim or extend that.
    """

    def __init__(self, prompt: Iterable[TargetId]) -> None:
        self._ids = list(prompt)
        self._prompt_length = len(self._ids)

    @property
    def ids(self) -> Sequence[TargetId]:
        """Prompt and output. This is no copy: it grows with the context."""
        return self._ids

    @property
    def prompt(self) -> Sequence[TargetId]:
        """The ids that were given."""
        return self._ids[: self._prompt_length]

    @property
    def emitted(self) -> Sequence[TargetId]:
        """The output so far."""
        return self._ids[self._prompt_length :]

    @property
    def emitted_count(self) -> int:
        """How many ids the output has so far; no copy is made."""
        return len(self._ids) - self._prompt_length

    def extend(self, ids: Iterable[TargetId]) -> None:
        """Commit `ids`."""
        self._ids.extend(ids)
