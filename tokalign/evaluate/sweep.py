"""A sweep: dictionaries of many kinds and sizes, what each saves, in a file that resumes.

The file is CSV, one line per table and text, appended as they come. Every line names its *basis*:
what was swept on what. Lines of a table that was not written to its end are taken away when the
file is opened again, so a killed sweep goes on where it stopped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Self

from tokalign.errors import IncompatibleError, UsageError
from tokalign.tables.bundle import Bundle, encode_bundle

LONGEST = {"backoff": 8, "dictspec": 3}
"""The highest order of each kind: ids of a context, words of an n-gram."""


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """One table of a sweep.

    order: ids of the longest context (backoff), words of the longest n-gram (dictspec).
    size: bytes of the file at most (backoff), n-grams kept (dictspec).
    """

    kind: str
    order: int
    size: int
    p_min: float


def variants(
    sizes: Mapping[str, Sequence[int]], orders: Sequence[int], p_mins: Sequence[float]
) -> list[Variant]:
    """Every combination; orders that a kind does not have are left out. sizes: by kind."""
    return sorted(
        Variant(kind, order, size, p_min)
        for kind, own in sizes.items()
        for order, size, p_min in product(orders, own, p_mins)
        if order <= LONGEST[kind]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
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
        return Variant(self.kind, self.order, self.size, self.p_min)

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Self:
        """Raises: KeyError or ValueError for anything else."""
        types: dict[str, Any] = {"str": str, "int": int, "float": float}
        return cls(**{f.name: types[str(f.type)](row[f.name]) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class SweepFile:
    """Outcomes kept in a CSV file. basis: what they hold for, twelve digits. texts: how many."""

    path: Path
    basis: str
    texts: int

    def open(self) -> list[Outcome]:
        """What is there already; begins the file where there is none.

        Raises: IncompatibleError for outcomes on another basis; UsageError for another file.
        """
        if not self.path.exists() or not self.path.stat().st_size:
            self._append([_NAMES])
            return []
        content = self.path.read_bytes()
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        outcomes = read_outcomes(self.path, b"".join(lines))
        if any(outcome.basis != self.basis for outcome in outcomes):
            raise IncompatibleError(
                f"{self.path} was swept on another corpus, text or target "
                f"({outcomes[0].basis}, not {self.basis}); give another file with --results"
            )
        whole = len(outcomes) // self.texts * self.texts
        with self.path.open("r+b") as file:
            file.truncate(sum(map(len, lines[: 1 + whole])))
        return outcomes[:whole]

    def append(self, outcomes: Iterable[Outcome]) -> None:
        """Write more; they are on disk when this returns."""
        self._append([list(asdict(outcome).values()) for outcome in outcomes])

    def _append(self, rows: Iterable[Sequence[Any]]) -> None:
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written ({error.strerror})") from error


def sweep(
    missing: Iterable[Variant],
    file: SweepFile,
    *,
    build: Callable[[Variant], Bundle],
    measure: Callable[[Bundle], Mapping[str, Mapping[str, float]]],
) -> Iterator[list[Outcome]]:
    """Build and measure what is missing; the outcomes of each table, once they are in the file.

    measure: gives for each text the figures of `tokalign emulate`.
    """
    for variant in missing:
        bundle = build(variant)
        outcomes = [
            Outcome(
                **asdict(variant),
                entries=int(bundle.statistics["entries"]),
                bytes=len(encode_bundle(bundle)),
                text=text,
                basis=file.basis,
                speedup=figures["speedup"],
                coverage=figures["coverage"],
                mean_accepted_length=figures["mean_accepted_length"],
                draft_acceptance_rate=figures["draft_acceptance_rate"],
                rows_per_step=figures["rows_per_step"],
            )
            for text, figures in measure(bundle).items()
        ]
        file.append(outcomes)
        yield outcomes


def read_outcomes(path: Path, content: bytes | None = None) -> list[Outcome]:
    """The outcomes in a sweep's file. Raises: UsageError for any other file."""
    text = (path.read_bytes() if content is None else content).decode("utf-8", "replace")
    reader = csv.DictReader(io.StringIO(text))
    try:
        if reader.fieldnames is None or list(reader.fieldnames) != list(_NAMES):
            raise ValueError("its columns are others")
        return [Outcome.from_row(row) for row in reader]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not a sweep's file ({error}); give another file with --results"
        ) from error


def by_line(outcomes: Iterable[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
    """The lines of a plot: outcomes that differ in nothing but size, the smaller first."""
    lines: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: (o.variant, o.bytes)):
        name = f"{outcome.kind}, order {outcome.order}, p_min {outcome.p_min:g}"
        lines.setdefault(name, []).append(outcome)
    yield from lines.items()


_NAMES = tuple(field.name for field in fields(Outcome))
