"""How a long step tells how far it is, without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Stage = Callable[[int, str], AbstractContextManager[Callable[[int], None]]]
"""Opens a step of `total` units under a label; gives what is called with the units done."""


@contextmanager
def silent(_total: int, _label: str) -> Iterator[Callable[[int], None]]:
    """The stage that shows nothing."""
    yield lambda _: None
