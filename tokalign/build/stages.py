"""How a long step reports its progress without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Stage = Callable[[int, str], AbstractContextManager[Callable[[int], None]]]
"""Opens a step of so many units under a label. The step calls what it is given with the units done
since the last call."""


@contextmanager
def silent(_total: int, _label: str) -> Iterator[Callable[[int], None]]:
    """The stage that shows nothing."""
    yield lambda _: None
