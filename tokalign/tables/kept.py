"""What was read of table files is kept until they change, as reading takes tens of milliseconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from tokalign.errors import BundleError, MissingAssetError
from tokalign.storage import FileState, file_state
from tokalign.tables.bundle import read_header
from tokalign.tables.header import Header
from tokalign.tokenizer.tokenizer import Tokenizer

T = TypeVar("T")

_MOST_HEADERS, _MOST_TABLES = 512, 64
"""How many are kept; those of tables for each tokenizer."""


class FileCache(Generic[T]):
    """What was made of files, the latest `most` of them, or why it failed. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, tuple[FileState, T | Exception]] = OrderedDict()

    def get(self, key: Hashable, path: Path, read: Callable[[Path], T]) -> T:
        """What `read` makes of the file at `path`, which is read again only if it has changed. key:
        of what is made of it. Raises: as `read`."""
        state = file_state(path)
        known = self._known.get(key)
        if state is None:
            return read(path)
        if known is None or known[0] != state:
            try:
                known = state, read(path)
            except (BundleError, MissingAssetError) as error:
                known = state, error
            self._known[key] = known
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        if isinstance(known[1], Exception):
            raise known[1].with_traceback(None)
        return known[1]


_headers = FileCache[Header](_MOST_HEADERS)
_tables: WeakKeyDictionary[Tokenizer[Any], FileCache[object]] = WeakKeyDictionary()


def kept_header(path: Path) -> Header:
    """As `read_header`."""
    return _headers.get(path, path, read_header)


def kept_table(
    target: Tokenizer[Any], key: tuple[Hashable, ...], path: Path, read: Callable[[Path], T]
) -> T:
    """What `read` makes of a table of this tokenizer, as long as there is the tokenizer. key: what
    it is made into. Raises: as `read`."""
    tables = _tables.setdefault(target, FileCache(_MOST_TABLES))
    return tables.get((*key, path), path, read)  # type: ignore[return-value]  # by its key
