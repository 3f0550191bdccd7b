"""When to draft although it is not expected to pay best: only drafts tell what drafts bring."""

from __future__ import annotations

_FIRST_WAIT, _LONGEST_WAIT = 16, 1024


class ModelTrials:
    """When a draft model that does not pay is tried again: after 16 rounds, then 32, ..., 1024."""

    def __init__(self) -> None:
        self._wait, self._rounds_left = _FIRST_WAIT, 0

    @property
    def is_due(self) -> bool:
        """Whether the model has waited long enough."""
        return self._rounds_left <= 0

    @property
    def is_overdue(self) -> bool:
        """Whether it has waited so long that even a hopeless model is tried.

        The costs that make it hopeless may be mistaken.
        """
        return self._rounds_left <= -_LONGEST_WAIT

    def count_round(self) -> None:
        """A round begins."""
        self._rounds_left -= 1

    def tried(self, *, pays: bool) -> None:
        """The model drafts. If it is not expected to pay, the next trial waits twice as long."""
        self._rounds_left = 0 if pays else self._wait
        self._wait = _FIRST_WAIT if pays else min(2 * self._wait, _LONGEST_WAIT)


class LongDrafts:
    """Which drafts are made longer than expected to be best: the 8th, 16th, 32nd, ...

    Only longer drafts tell what longer drafts cost and bring.
    """

    def __init__(self) -> None:
        self._drafts, self._next = 0, 8

    @property
    def is_due(self) -> bool:
        """Whether the next draft is to be a longer one."""
        return self._drafts + 1 >= self._next

    def count_draft(self) -> None:
        """A draft is made."""
        self._drafts += 1
        if self._drafts >= self._next:
            self._next = self._drafts + min(self._drafts, _LONGEST_WAIT)
