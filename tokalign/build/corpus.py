"""A corpus: text files (`text_files.py`) read as one stream of paragraphs, hashed and stamped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice, pairwise
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Protocol, cast

import msgpack  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from tokalign.build.sources import CorpusFile
from tokalign.build.text_files import Report, TextFile, refuse
from tokalign.errors import CorpusError
from tokalign.tables.header import FileStamp
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Id

Progress = Callable[[int], None]
"""Called with the number of units done since the last call: bytes on disk for a corpus."""


class Stage(Protocol):
    """Opens a step, such as a progress bar. total: its number of units. unit: what these are, such
    as bytes, where a rate of them says something."""

    def __call__(
        self, total: int, label: str, unit: str = "", /
    ) -> AbstractContextManager[Progress]: ...


@contextmanager
def silent(_total: int, _label: str, _unit: str = "") -> Iterator[Progress]:
    """The stage that shows nothing."""
    yield lambda _: None


HEAVIEST = 10_000
"""The largest weight of a file: counts in thousandths then fit into 64 bits."""

_SHOWN = 10


class Corpus:
    """Text files read as one stream of paragraphs, in the order of their names.

    `lines` may be read several times; `stamp` is that of the last complete reading. `readings`
    reads a part of the files; who reads all parts gives their stamps to `finish`.
    """

    def __init__(
        self,
        files: Sequence[Path | CorpusFile],
        *,
        field: str = "text",
        report: Report = refuse,
        weights: Mapping[str, float] = MappingProxyType({}),
        private: bool = False,
    ) -> None:
        """Name the files; only their first lines are read, so that one in another encoding is
        refused before hours of counting the others. field, report: see `TextFile`.

        weights: by file name, how many times each occurrence counts; at most `HEAVIEST`.
        private: whether what is built from it must not be shared.
        Raises: CorpusError for a missing, irregular or unknown file, one named twice, a wrong
        weight, or a local file whose first lines `TextFile.texts` refuses.
        """
        sources = [
            file if isinstance(file, CorpusFile) else CorpusFile.of_path(file) for file in files
        ]
        self._sources = sorted(sources, key=lambda source: source.name)
        self._field, self._report, self._private = field, report, private
        self._stamps: list[FileStamp] = []
        for source in self._sources:
            source.require()
        names = [source.name for source in self._sources]
        for name, following in pairwise(names):
            if name == following:
                raise CorpusError(
                    "two corpus files have this name, so a stamp cannot tell them apart; rename "
                    "one, or give the folder that both are in",
                    path=name,
                )
        for name, weight in weights.items():
            if name not in names:
                raise CorpusError(
                    f"a weight is given for this file, but the corpus has only {', '.join(names)}",
                    path=name,
                )
            if not 0 < weight <= HEAVIEST or round(weight, 3) != weight:
                raise CorpusError(
                    f"a weight has to be over 0 and at most {HEAVIEST:,}, with at most three "
                    f"decimals, not {weight}",
                    path=name,
                )
        self.weights = {name: float(weights.get(name, 1)) for name in names}
        for source in self._sources:
            if not source.is_remote and source.kind != ".parquet":  # whose reading hashes all of it
                begin = TextFile(source, field=field, report=lambda _: None, only_begin=True)
                for _ in begin.texts():
                    pass

    @property
    def size(self) -> int:
        return sum(source.require() for source in self._sources)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides what is read: the names and weights of the files, and the field."""
        return {"files": dict(self.weights), "field": self._field}

    @property
    def identity(self) -> list[list[Any]]:
        """What a text or labels that are kept were made of: of each file its name, its bytes on
        disk, the field, and its digest where it is local."""
        return [[of.name, of.require(), self._field, of.digest()] for of in self._sources]

    def require_room(self, most_bytes: int) -> None:
        """Raises: CorpusError, before hours of reading, if a stamp of all files is too large."""
        least = [TextFile(source).stamp() for source in self._sources]
        size = len(msgpack.packb(least))
        if size > most_bytes:
            raise CorpusError(
                f"a table names each file that it was counted from, and {len(least):,} files take "
                f"{size:,} bytes of at most {most_bytes:,} for that; join them into fewer"
            )

    @property
    def stamp(self) -> dict[str, Any]:
        """What was read, for a bundle's header; empty before the first complete reading."""
        return {"files": self._stamps} if self._stamps else {}

    @property
    def text_bytes(self) -> int:
        return sum(stamp["text_bytes"] for stamp in self._stamps)

    @property
    def skipped(self) -> int:
        return sum(stamp["skipped"] for stamp in self._stamps)

    def lines(self, progress: Progress = lambda _: None, *, whole: bool = False) -> Iterator[str]:
        """All paragraphs, without line ends and empty ones, or all texts that are not empty.
        Raises: CorpusError as `TextFile.texts`, or at the end without any text."""
        stamps = []
        for reading in self.readings(progress):
            yield from reading.paragraphs(whole=whole)
            stamps.append(reading.stamp())
        self.finish(stamps)

    def readings(
        self, progress: Progress = lambda _: None, *, start: int = 0, step: int = 1
    ) -> Iterator[TextFile]:
        """One reading of each file, or of every `step`th from number `start` on."""
        for source in self._sources[start::step]:
            yield TextFile(
                source,
                field=self._field,
                weight=self.weights[source.name],
                report=self._report,
                progress=progress,
            )

    def finish(self, stamps: Iterable[FileStamp]) -> None:
        """Take the stamps of a complete reading. Raises: CorpusError if there was no text."""
        read = sorted(stamps, key=lambda stamp: stamp["name"])
        if not sum(stamp["lines"] for stamp in read):
            skipped = sum(stamp["skipped"] for stamp in read)
            only = f", only lines that cannot be read ({skipped:,})" if skipped else ""
            raise CorpusError(
                f"there is no text in the corpus{only}; give at least one file with text",
                path=", ".join(source.shown for source in self._sources[:_SHOWN]) or None,
            )
        self._stamps = [stamp | {"private": True} for stamp in read] if self._private else read


def batches(lines: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Whole lines; a batch ends after the line that reaches `characters`."""
    batch: list[str] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_COUNTED = 16_000_000  # characters


def count_ids(corpus: Corpus, tokenizer: Tokenizer[Id], size: int) -> NDArray[np.int64]:
    """How often each id of `size` occurs in a corpus, its line ends included, or in as much of the
    beginning of each file as makes 16 million characters. Ids of the tokenizer beyond them are left
    out. Raises: CorpusError as `TextFile.texts`."""
    seen, files = np.zeros(size, np.int64), [*corpus.readings()]
    for file in files:
        left = _COUNTED // len(files)
        # Many texts at once: a line is short beside a vocabulary.
        for texts in batches(file.paragraphs(whole=True), min(left, 100_000)):
            ids = [token for text in texts for token in tokenizer.encode(text + "\n")]
            seen += np.bincount(np.array(ids, np.int64), minlength=size)[:size]
            left -= sum(map(len, texts))
            if left < 0:
                break
    return seen


_BYTES_DRAWN_PER_TOKEN = 6.5
"""Bytes of text. Tokenizers in use have 3 to 5 bytes in a token, so enough is drawn."""


def draw_windows(
    corpus: Corpus,
    tokenizer: Tokenizer[Id],
    *,
    length: int,
    positions: int,
    seed: int,
    stage: Stage = silent,
) -> list[list[Id]]:
    """Draw texts from everywhere in a corpus, their line ends included, and cut them into windows.

    length: ids in a window, BOS included if the tokenizer adds one. positions: about how many ids
    to draw, all windows together; fewer if the corpus has fewer.
    The corpus is read twice: to learn its size, and to draw; again where few of some long texts
    were drawn. Raises: CorpusError as `Corpus.lines`, and for a corpus without a window.
    """
    random, opening = Random(seed), cast("tuple[Id, ...]", tokenizer.spec.opening)

    def cut(texts: Iterable[str], share: float) -> list[list[Id]]:
        """Windows of a share of the texts, in another order; fewer if it has fewer positions."""
        drawn = [text for text in texts if random.random() < share]
        random.shuffle(drawn)
        ids = chain.from_iterable(tokenizer.encode(text + "\n") for text in drawn)
        windows: list[list[Id]] = []
        while len(windows) * length < positions:
            window = [*opening, *islice(ids, length - len(opening))]
            if len(window) < length:
                break
            windows.append(window)
        return windows

    with stage(2 * corpus.size, "reading the corpus", "bytes") as progress:
        for _ in corpus.lines(progress):
            pass
        share = positions * _BYTES_DRAWN_PER_TOKEN / corpus.text_bytes
        windows = cut(corpus.lines(progress, whole=True), share)
    while len(windows) * length < positions and share < 1:
        share *= 4
        windows = cut(corpus.lines(whole=True), share)
    if not windows:
        raise CorpusError(f"the corpus has fewer than {length} tokens; give more text")
    return windows
