"""A corpus: text files read as one stream of paragraphs, and stamped.

A corpus is never whole in memory. While it streams, the bytes of each file are hashed, so that a
table can say exactly which text it was built from. How one file is read: `text_files.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokalign.build.text_files import (
    KINDS,
    FileStamp,
    Report,
    TextFile,
    refuse,
    require_regular,
)
from tokalign.errors import CorpusError

Progress = Callable[[int], None]
"""Called with the number of bytes read from disk since the last call."""


class Corpus:
    """Text files read as one stream of paragraphs, in the order of their names.

    `lines` may be read several times; `stamp` tells what the last complete reading saw.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        field: str = "text",
        report: Report = refuse,
        weights: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Name the files; nothing is read yet.

        field, report: see `TextFile`.
        weights: file name -> how many times each occurrence in the file counts; over 0, at most
            three decimals, 1 for files that are not named.
        Raises: CorpusError for a file that is missing, not a regular file, of an unknown kind or
            named twice, and for a weight that is wrong or of no file.
        """
        self._paths = sorted(paths, key=lambda path: path.name)
        self._field, self._report = field, report
        self._stamps: list[FileStamp] = []
        for path in self._paths:
            _check_file(path)
        names = [path.name for path in self._paths]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise CorpusError(
                "two corpus files have this name, so a stamp cannot tell them apart; rename one",
                path=twice,
            )
        for name, weight in weights.items():
            _check_weight(name, weight, names)
        self._weights = {name: weights.get(name, 1.0) for name in names}

    @property
    def size(self) -> int:
        """Bytes on disk, of all files together. Raises: CorpusError for one that is gone."""
        return sum(require_regular(path).st_size for path in self._paths)

    @property
    def listing(self) -> list[list[Any]]:
        """Name and bytes on disk of each file, known without reading it."""
        return [[path.name, require_regular(path).st_size] for path in self._paths]

    @property
    def stamp(self) -> dict[str, Any]:
        """What was read, for a bundle's header; empty before the first complete reading."""
        return {"files": [asdict(stamp) for stamp in self._stamps]} if self._stamps else {}

    @property
    def text_bytes(self) -> int:
        """Bytes of text, decompressed, in the last complete reading."""
        return sum(stamp.text_bytes for stamp in self._stamps)

    @property
    def skipped(self) -> int:
        """Lines left out of the last complete reading."""
        return sum(stamp.skipped for stamp in self._stamps)

    def lines(self, progress: Progress = lambda _: None) -> Iterator[str]:
        """All paragraphs, without line ends; empty ones are left out.

        Raises: CorpusError as `TextFile.texts` does, and at the end if there was no text at all.
        """
        for _, lines in self.files(progress):
            yield from lines

    def files(self, progress: Progress = lambda _: None) -> Iterator[tuple[float, Iterator[str]]]:
        """For each file its weight and its paragraphs, to be read in this order. See `lines`."""
        stamps: list[FileStamp] = []
        for path in self._paths:
            file = TextFile(path, field=self._field, report=self._report, progress=progress)
            weight = self._weights[path.name]
            yield weight, file.paragraphs()
            stamps.append(file.stamp(weight))
        if not sum(stamp.lines for stamp in stamps):
            skipped = sum(stamp.skipped for stamp in stamps)
            but = f" but {skipped:,} lines that cannot be read" if skipped else ""
            raise CorpusError(
                f"the corpus is empty{but}; give at least one file with text",
                path=", ".join(path.name for path in self._paths) or None,
            )
        self._stamps = stamps


def _check_file(path: Path) -> None:
    if not any(path.name.endswith(kind) for kind in KINDS):
        raise CorpusError(
            f"not a kind of corpus file; give one of {', '.join(sorted(KINDS))}", path=str(path)
        )
    require_regular(path)


def _check_weight(name: str, weight: float, names: Sequence[str]) -> None:
    if name not in names:
        raise CorpusError(
            f"a weight is given for this file, but the corpus has only {', '.join(names)}",
            path=name,
        )
    if weight <= 0 or round(weight, 3) != weight:
        raise CorpusError(
            f"a weight has to be over 0, with at most three decimals, not {weight}", path=name
        )
