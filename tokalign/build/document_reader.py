"""Documents are read in another process: nothing in their own could interrupt the libraries written
in C that read PDF and HTML, and a document that makes them crash takes their process with it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tokalign.build.documents import read_document
from tokalign.child_processes import end_pool, end_with_parent, safe_path, starting
from tokalign.errors import CorpusError

SECONDS = 30.0
"""What one document may take. The longest text that is read, 20 million characters, takes five."""


class DocumentReader:
    """A context manager that gives a function from a path to its text. limit: seconds for one."""

    def __init__(self, limit: float = SECONDS, read: Callable[[Path], str] = read_document) -> None:
        self.limit, self._read = limit, read
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> DocumentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, path: Path) -> str:
        """Raises: as `read_document`; CorpusError for a document that takes too long or crashes."""
        try:
            return self._started().submit(self._read, path).result(self.limit)
        except TimeoutError:
            why = f"reading it takes more than {self.limit:g} seconds"
        except BrokenProcessPool:
            why = "its reader crashed"
        self._end()
        raise CorpusError(f"{why}; the document is left out", path=str(path))

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            with safe_path():  # making a pool starts a process too, which tracks its locks
                spawn = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(1, spawn, initializer=end_with_parent)
                with starting():
                    begun = self._pool.submit(os.getpid)
                begun.result()
        return self._pool

    def _end(self) -> None:
        if self._pool is not None:
            end_pool(self._pool)
            self._pool = None
