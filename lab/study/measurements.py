"""Generations measured one by one, in a JSON-lines file from which a killed study resumes.

The first line says what was measured and on what machine; every other line is one generation of one
prompt under one condition. Besides what `tokalign bench` measures, a study keeps what the models
computed and what the machine was like.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from lab.study.conditions import Condition, PromptBlock
from tokalign.errors import IncompatibleError, UsageError
from tokalign.evaluate.comparison import Measurement
from tokalign.runtime.rounds import Round
from tokalign.storage import parse_json, unwritable

FORMAT, VERSION = "tokalign-bench", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the models computed in one generation.

    rows: how many of the rounds after the first, which reads the prompt, had so many rows.
    first_tokens, first_seconds: of the first round. reads_prompt: whether that round read the whole
    prompt, a chat template's beginning aside, or found it in caches that another condition had
    filled; None in files that were written before this was kept.
    later_passes: of the draft model, after the first round.
    chain_proposed, chain_accepted: ids of the first chain of each proposal, and those of them that
    were accepted; without trees these are `proposed` and `accepted` of the measurement.
    """

    rows: Mapping[int, int] = field(default_factory=dict)
    first_tokens: int = 0
    first_seconds: float = 0.0
    reads_prompt: bool | None = None
    later_passes: int = 0
    chain_proposed: int = 0
    chain_accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the machine was like during one generation; None or empty where it cannot be told.

    load: processes that wanted to run, averaged over the last minute. thermal: the pressure that
    the system reports, such as "nominal". power: "AC" or "battery". joules: of the whole chip.
    peak_gb: the most memory that mlx held, in 10⁹ bytes.
    """

    load: float | None = None
    thermal: str = ""
    power: str = ""
    joules: float | None = None
    peak_gb: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyMeasurement(Measurement):
    """One generation, with its work and its surroundings. sources: accepted tokens by source."""

    block: PromptBlock
    condition: Condition
    finish_reason: str
    sources: Mapping[str, int]
    work: Work = field(default_factory=Work)
    surroundings: Surroundings = field(default_factory=Surroundings)

    @classmethod
    def of(cls, measured: Measurement, **more: Any) -> Self:
        """A measurement of `tokalign.evaluate`, with what a study adds to it."""
        return cls(**{one.name: getattr(measured, one.name) for one in fields(measured)}, **more)

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Self:
        """Read what `to_json` wrote. Raises: KeyError or TypeError for anything else."""
        work = dict(saved.get("work", {}))
        rows = {int(m): count for m, count in work.pop("rows", {}).items()}
        return cls(
            **saved
            | {
                "block": PromptBlock(**saved["block"]),
                "condition": Condition(**saved["condition"]),
                "token_ids": tuple(saved["token_ids"]),
                "work": Work(rows=rows, **work),
                "surroundings": Surroundings(**saved.get("surroundings", {})),
            }
        )


@dataclass(frozen=True, slots=True)
class MeasurementFile:
    """Measurements kept in a file, appended as they come.

    about: weights, settings and machine. Measurements may be compared where these are equal, and a
    file with other ones is refused. remedy: what to do then.
    """

    path: Path
    about: Mapping[str, Any]
    remedy: str

    def open(self) -> list[StudyMeasurement]:
        """Return the measurements in the file, or create it.

        A last line that was not written completely is removed.
        Raises: IncompatibleError for measurements of something else; UsageError for any other file.
        """
        header = json.dumps({"format": FORMAT, "version": VERSION, "about": self.about})
        content = self.path.read_bytes() if self.path.exists() else b""
        if not header.encode().startswith(content):  # else it was killed while writing this line
            whole = content.rpartition(b"\n")[0]
            found, measurements = read_measurements(self.path, whole, remedy=self.remedy)
            if measurements:
                self._require_same(found)
                self._cut(content, len(whole) + 1)
                return measurements
        self._cut(content, 0)
        self._append(header)
        return []

    def _cut(self, content: bytes, length: int) -> None:
        """Cut the file, which has this content, to a length.

        A file that is whole is left alone: its time is that of the last measurement.
        """
        if len(content) > length:
            with self.path.open("r+b") as file:
                file.truncate(length)

    def append(self, measurement: StudyMeasurement) -> None:
        """Append one measurement; it outlives this process when this returns.

        Raises: UsageError, OutputError.
        """
        self._append(json.dumps(measurement.to_json(), ensure_ascii=False))

    def _append(self, line: str) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _require_same(self, found: Mapping[str, Any]) -> None:
        wanted = json.loads(json.dumps(self.about))
        for name in {**wanted, **found}:
            old, new = found.get(name), wanted.get(name)
            if old != new:
                several = isinstance(old or new, dict | list)
                how = f"other {name}" if several else f"{name} {old}, not {new}"
                raise IncompatibleError(f"{self.path} holds measurements with {how}; {self.remedy}")


def read_measurements(
    path: Path, content: bytes | None = None, *, remedy: str
) -> tuple[Mapping[str, Any], list[StudyMeasurement]]:
    """Read what a file is about, and its measurements. Raises: UsageError for any other file."""
    lines = (path.read_bytes() if content is None else content).splitlines()
    try:
        header = parse_json(lines[0])
        if (header["format"], header["version"]) != (FORMAT, VERSION):
            raise ValueError(f"{header['format']} version {header['version']}")
        return header["about"], [StudyMeasurement.from_json(parse_json(line)) for line in lines[1:]]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} holds no measurements of version {VERSION} ({type(error).__name__}: {error}); "
            f"{remedy}"
        ) from error


def work_of(rounds: Sequence[Round]) -> Work:
    """What the models computed in the rounds of one generation."""
    chains = [one.tree.chain_length for one in rounds]
    along = [
        sum(index == depth for depth, index in enumerate(one.path[:length]))
        for one, length in zip(rounds, chains, strict=True)
    ]
    first, later = rounds[:1], rounds[1:]
    return Work(
        rows=dict(sorted(Counter(one.rows for one in later).items())),
        first_tokens=sum(len(one.emitted) for one in first),
        first_seconds=sum(one.seconds for one in first),
        later_passes=sum(one.draft_passes for one in later),
        chain_proposed=sum(chains),
        chain_accepted=sum(along),
    )
