"""What `bench --publish` writes, for others to read: figures and names of models and programs, no
text, no path, no host's or user's name."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from tokalign.errors import UsageError
from tokalign.evaluate.comparison import BASELINES, Comparison, Measurement, Row
from tokalign.runtime.cost import CostCurve
from tokalign.runtime.rounds import common_prefix
from tokalign.storage import as_path

_CONTEXTS = (512, 2048, 8192, 32768)
"""Bounds of the lengths of contexts, in ids, by which equal ids are counted."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a report; what it does not know is refused."""


class Software(_Part, frozen=True, kw_only=True):
    """Programs and the system that were measured with."""

    system: str
    mlx: str
    tokalign: str


class MeasuredModels(_Part, frozen=True, kw_only=True):
    """The models, by repository or folder. memory: bytes of the target's weights. bits: of most."""

    target: str
    draft: str | None
    drafter: str | None
    memory: int
    format: str
    bits: int


class MeasuredPasses(_Part, frozen=True, kw_only=True):
    """Seconds of passes of the target by their rows, after `context` ids."""

    context: int
    rows: dict[int, float]
    draft_pass: float | None


class Equality(_Part, frozen=True, kw_only=True):
    """How many ids of outputs are plain decoding's, after contexts of at most `context` ids (null:
    longer). equal: how many of the ids that were compared stood before the first that differs."""

    context: int | None
    compared: int
    equal: int


class MachineReport(_Part, frozen=True, kw_only=True, tag_field="report", tag="tokalign bench"):
    """A report. form: counted up when its fields change. memory: of the machine, bytes. results:
    of ways to draft, by kind of prompts, with what is 0 left out."""

    date: str
    device: str
    memory: int
    software: Software
    models: MeasuredModels
    language: str | None
    temperature: float
    max_tokens: int
    passes: list[MeasuredPasses]
    results: dict[str, list[Row]]
    equality: list[Equality]
    form: Literal[2] = 2


def system_name() -> str:
    """The operating system and its version, such as "macOS 15.1" or "Linux 6.1"."""
    release = platform.mac_ver()[0]
    return f"macOS {release}" if release else f"{platform.system()} {platform.release()[:12]}"


def public_name(model: str | None) -> str | None:
    """A model's name without the folders that it lies in, which may name a person."""
    if not model or not os.path.exists(path := as_path(model)):
        return model
    return os.path.basename(os.path.abspath(path))


def report_of(
    comparison: Comparison,
    measurements: Sequence[Measurement],
    curve: CostCurve | None,
    **about: Any,
) -> MachineReport:
    """The report of a run of `bench`. curve: these models' cost curve here, if there is one. about:
    the report's other fields."""
    passes = []
    if curve is not None and curve.unit == "seconds":
        rows = {m: round(timing.median, 6) for m, timing in sorted(curve.rows.items())}
        draft = None if curve.draft_pass is None else round(curve.draft_pass.median, 6)
        passes.append(MeasuredPasses(context=curve.context, rows=rows, draft_pass=draft))
    return MachineReport(
        date=datetime.now(UTC).date().isoformat(),
        passes=passes,
        results={
            name: [Row(**row.figures()) for row in rows if row.condition.drafts and row.timed]
            for name, rows in {"all": comparison.overall, **comparison.sets}.items()
        },
        equality=equality_of(measurements),
        **about,
    )


def equality_of(measurements: Sequence[Measurement]) -> list[Equality]:
    """How many ids of the outputs are plain decoding's, by the length of their contexts."""
    plain = {measured.block: measured for measured in measurements if measured.condition.is_plain}
    counts: defaultdict[int | None, list[int]] = defaultdict(lambda: [0, 0])
    for measured in measurements:
        if measured.condition in BASELINES or measured.block not in plain:
            continue
        ours, theirs = measured.token_ids, plain[measured.block].token_ids
        length = measured.prompt_tokens + len(theirs)
        bound = next((bound for bound in _CONTEXTS if length <= bound), None)
        counts[bound][0] += max(len(ours), len(theirs))
        counts[bound][1] += common_prefix(list(ours), list(theirs))
    order = [*_CONTEXTS, None]
    return [
        Equality(context=bound, compared=counts[bound][0], equal=counts[bound][1])
        for bound in sorted(counts, key=order.index)
    ]


def write(report: MachineReport) -> str:
    """The report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n"


def read(path: Path) -> MachineReport:
    """A report that somebody wrote. Raises: UsageError for a file that is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=MachineReport)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{path} is no report of a machine ({error}); write one: tokalign bench --publish FILE"
        ) from error
