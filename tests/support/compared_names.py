"""Names that note how often they are compared, so that a search through all of them is seen."""

from __future__ import annotations

from collections.abc import Iterable


def compared_names(texts: Iterable[object]) -> tuple[list[str], list[object]]:
    """These texts as names, and what any of them is compared with from now on."""
    compared: list[object] = []

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

    return [Name(text) for text in texts], compared
