"""A sweep: dictionaries of many kinds and sizes, what each saves, in a file from which it resumes.

The file is CSV, one line per table and text, appended as they come. Every line names its *basis*:
target, corpus, texts and settings. Lines of a table that is not complete are removed when the file
is opened again, so a killed sweep resumes where it stopped. `variants.py` builds the tables.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tokalign.atomic_file import unwritable
from tokalign.errors import IncompatibleError, UsageError

if TYPE_CHECKING:
    from tokalign.tables.bundle import Bundle

LONGEST = {"backoff": 8, "dictspec": 3}
"""The highest order of each kind: ids of a context (backoff), words of an n-gram (dictspec)."""


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """One table of a sweep.

    order: ids of the longest context (backoff), words of the longest n-gram (dictspec).
    size: most bytes of the file (backoff), n-grams kept (dictspec).
    """

    kind: str
    order: int
    size: int
    p_min: float


def variants(
    sizes: Mapping[str, Sequence[int]], orders: Sequence[int], p_mins: Sequence[float]
) -> list[Variant]:
    """List every combination; orders that a kind does not have are left out. sizes: by kind."""
    return sorted(
        Variant(kind, order, size, p_min)
        for kind, own in sizes.items()
        for order, size, p_min in product(orders, own, p_mins)
        if order <= LONGEST[kind]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What one table saves on one text; the figures are those of `tokalign emulate`."""

    kind: str
    order: int
    size: int
    p_min: float
    entries: int
    bytes: int
    text: str
    speedup: float
    coverage: float
    mean_accepted_length: float
    draft_acceptance_rate: float
    rows_per_step: float
    basis: str

    @property
    def variant(self) -> Variant:
        """Which table it was."""
        return Variant(self.kind, self.order, self.size, self.p_min)

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Self:
        """Read one line of the file. Raises: KeyError or ValueError for anything else."""
        types: dict[str, Any] = {"str": str, "int": int, "float": float}
        return cls(**{f.name: types[str(f.type)](row[f.name]) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class SweepFile:
    """Results kept in a CSV file. basis: twelve digits of what they hold for. texts: how many."""

    path: Path
    basis: str
    texts: int

    def open(self) -> list[SweepResult]:
        """Return the results in the file, or create it.

        Raises: IncompatibleError for results on another basis; UsageError for any other file.
        """
        if not self.path.exists() or not self.path.stat().st_size:
            self._append([_NAMES])
            return []
        content = self.path.read_bytes()
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        results = read_results(self.path, b"".join(lines))
        if any(result.basis != self.basis for result in results):
            raise IncompatibleError(
                f"{self.path} was swept on another corpus, text or target "
                f"({results[0].basis}, not {self.basis}); give another file with --results"
            )
        whole = len(results) // self.texts * self.texts
        with self.path.open("r+b") as file:
            file.truncate(sum(map(len, lines[: 1 + whole])))
        return results[:whole]

    def append(self, results: Iterable[SweepResult]) -> None:
        """Append results; they are on disk when this returns. Raises: UsageError, OutputError."""
        self._append([list(asdict(result).values()) for result in results])

    def _append(self, rows: Iterable[Sequence[Any]]) -> None:
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
        except OSError as error:
            raise unwritable(self.path, error) from error


def sweep(
    missing: Iterable[Variant],
    file: SweepFile,
    *,
    build: Callable[[Variant], Bundle],
    measure: Callable[[Bundle], Mapping[str, Mapping[str, Any]]],
) -> Iterator[list[SweepResult]]:
    """Build and measure what is missing; yields the results of each table once they are on disk.

    measure: returns the figures of `tokalign emulate` for each text.
    """
    from tokalign.tables.bundle import encode_bundle

    for variant in missing:
        bundle = build(variant)
        results = [
            SweepResult(
                **asdict(variant),
                entries=int(bundle.statistics["entries"]),
                bytes=len(encode_bundle(bundle)),
                text=text,
                basis=file.basis,
                **{name: figures[name] for name in _FIGURES},
            )
            for text, figures in measure(bundle).items()
        ]
        file.append(results)
        yield results


def read_results(path: Path, content: bytes | None = None) -> list[SweepResult]:
    """Read the results in a sweep's file. Raises: UsageError for any other file."""
    text = (path.read_bytes() if content is None else content).decode("utf-8", "replace")
    reader = csv.DictReader(io.StringIO(text))
    try:
        if reader.fieldnames is None or list(reader.fieldnames) != list(_NAMES):
            raise ValueError("it has other columns")
        return [SweepResult.from_row(row) for row in reader]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not a sweep's file ({error}); give another file with --results"
        ) from error


def by_line(results: Iterable[SweepResult]) -> Iterator[tuple[str, list[SweepResult]]]:
    """Yield the lines of a plot, named: results that differ only in size, the smallest first."""
    lines: dict[str, list[SweepResult]] = {}
    for result in sorted(results, key=lambda one: (one.variant, one.bytes)):
        name = f"{result.kind}, order {result.order}, p_min {result.p_min:g}"
        lines.setdefault(name, []).append(result)
    yield from lines.items()


_NAMES = tuple(field.name for field in fields(SweepResult))
_FIGURES = _NAMES[_NAMES.index("speedup") : _NAMES.index("basis")]
