"""Documents are read in another process, which is ended where one of them takes too long.

The libraries that read PDF and HTML are written in C: nothing in their own process can interrupt
them, and a document that makes them crash takes their process with it.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from tokalign.build.documents import read_document
from tokalign.child_processes import end_with_parent, safe_path
from tokalign.errors import CorpusError, TokalignError

SECONDS = 30.0
"""What one document may take. The longest text that is read, 20 million characters, takes five."""

Read = Callable[[Path], str]


class DocumentReader:
    """Called with a path, returns the text of the document; a context manager.

    limit: in seconds, for one document.
    """

    def __init__(self, limit: float = SECONDS, read: Read = read_document) -> None:
        self.limit, self._read = limit, read
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> DocumentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, path: Path) -> str:
        """Raises: as `read_document`; CorpusError for a document that takes too long or crashes."""
        try:
            answer = self._answer(path)
        except (EOFError, ConnectionError):
            answer = CorpusError("its reader crashed; the document is left out", path=str(path))
            self._end()
        if isinstance(answer, TokalignError):
            raise answer
        return answer

    def _answer(self, path: Path) -> str | TokalignError:
        """Raises: EOFError or ConnectionError if the process ends."""
        pipe = self._pipe or self._start()
        pipe.send(path)
        if pipe.poll(self.limit):
            answer: str | TokalignError = pipe.recv()
            return answer
        self._end()
        why = f"reading it takes more than {self.limit:g} seconds; the document is left out"
        return CorpusError(why, path=str(path))

    def _start(self) -> Connection:
        """Returns the pipe to a process that is ready to read."""
        context = multiprocessing.get_context("spawn")
        self._pipe, its = context.Pipe()
        self._process = context.Process(target=_serve, args=(its, self._read), daemon=True)
        with safe_path():
            self._process.start()
        its.close()
        self._pipe.recv()
        return self._pipe

    def _end(self) -> None:
        if self._process and self._pipe:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = self._pipe = None


def _serve(pipe: Connection, read: Read) -> None:
    """Send an empty text when all is imported, then the text of each path."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the other one ends this
    pipe.send("")
    with suppress(EOFError):  # the one that asks has gone
        while True:
            path = pipe.recv()
            try:
                pipe.send(read(path))
            except TokalignError as error:
                pipe.send(error)
