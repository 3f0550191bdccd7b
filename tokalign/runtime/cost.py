"""What a pass costs on one machine: a measured staircase, as a value, as JSON and where it is kept.

A curve is measured by `evaluate/calibrate.py` and kept in the user's cache folder, shipped in
`runtime/curves/`, or written by hand. The decode loop and `tokalign bench --text` only read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from tokalign.errors import UsageError
from tokalign.storage import as_path, cache_folder, parse_json, require_writable, write_file

FORMAT, VERSION = "tokalign-cost-curve", 2
SHIPPED = Path(__file__).with_name("curves")

PUBLISHED: Mapping[str, Mapping[int, str]] = {
    "Apple M2 Pro": {8: "m2-pro"},
    "Apple M3 Max": {4: "m3-max"},
    "Apple M3 Ultra": {4: "m3-ultra"},
    "Apple M4 Pro": {4: "m4-pro", 8: "m4-pro-8-bit"},
    "Apple M5 Max": {4: "m5-max"},
}
"""The shipped curves of passes that verify: by mlx's name of the device, by bits of the weights.
Those of M1 Max, M2 and M2 Ultra, from steps of a recurrent drafter in float16, are upper bounds;
they serve projections that ask for them by name."""

ASSUMED_DRAFT = 0.1
"""Time of a draft pass in plain passes, where it is unknown: passes are bound by memory, so this is
a draft model with a tenth of the target's bytes."""


class Timing(NamedTuple):
    """Seconds: the median of some repetitions, and the lower and upper quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        return cls(*np.quantile(seconds, [0.5, 0.25, 0.75]).round(7).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a measured curve holds for; a change of any field makes the curve stale. target, draft:
    fingerprints of the shapes and number formats of weights; draft may be empty."""

    device: str
    mlx: str
    target: str
    draft: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """Costs of passes on one machine, after `context` ids.

    source: where the figures come from, and every assumption behind them.
    machine: None for a curve that was not measured by `tokalign calibrate`.
    unit: "seconds", or "plain passes" where only ratios are known. host: the part of C(1) that
    plain decoding hides by running ahead; C(1), C(2), ... are of rounds that do not.
    rows: C(m) by the number of rows m; some m may be missing.
    draft_pass: of the draft model or a block drafter, or a beam search of one step; None where it
    is unknown. tree_pass: of a draft model that grows a tree, where each pass goes on after several
    texts, or a further step of a beam search.
    notes: what `tokalign calibrate` found besides, see `docs/metrics.md`.
    """

    name: str
    source: str
    machine: Machine | None = None
    unit: str = "seconds"
    host: float = 0.0
    context: int = 0
    rows: Mapping[int, Timing]
    draft_pass: Timing | None = None
    tree_pass: Timing | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if 1 not in self.rows:
            raise ValueError("the time of a pass over one row is missing")
        if any(timing.median <= 0 for timing in self.rows.values()):
            raise ValueError("a pass takes no time")

    @property
    def row_times(self) -> tuple[float, ...]:
        """C(1), C(2), ... up to the most rows that were measured, those between interpolated."""
        measured = sorted(self.rows)
        every = range(1, measured[-1] + 1)
        return tuple(np.interp(every, measured, [self.rows[m].median for m in measured]).tolist())

    def without_draft(self) -> Self:
        """The same curve with the target's costs only."""
        machine = self.machine and replace(self.machine, draft="")
        return replace(self, draft_pass=None, tree_pass=None, machine=machine, notes={})

    def expectation(self, *, assumed_draft: float = 0.0) -> str:
        """Say in a sentence what the curve means for someone who wants to decode faster.

        It speaks of the fewest rows that were measured, never of interpolated ones.
        assumed_draft: a pass of the draft model in plain passes, if the curve does not know it.
        """
        device, single = self.machine.device if self.machine else self.name, self.rows[1].median
        fewest = min((count for count in self.rows if count > 1), default=None)
        if fewest is None:
            return f"on {device}, no pass over several rows was timed; give a larger --budget"
        cost = self.rows[fewest].median / single
        known = f"on {device}, verifying {fewest} rows takes {cost:.2f} plain passes"
        drafted = fewest - 1
        drafting = self.draft_pass.median / single if self.draft_pass else assumed_draft
        pays = (cost - 1) / drafted + drafting
        tokens = "one token" if drafted == 1 else f"{drafted} tokens"
        share = f"pays if more than {max(0.0, pays):.0%} are accepted"
        return f"{known}: drafting {tokens} {share if pays < 1 else 'does not pay'}"

    def to_json(self) -> dict[str, Any]:
        """Return one JSON object; a time is [median, low, high]."""
        return {"format": FORMAT, "version": VERSION, **msgspec.to_builtins(self, str_keys=True)}

    @classmethod
    def from_json(cls, saved: Any, *, name: str) -> Self:
        """Read what `to_json` wrote. Raises: UsageError, with `name`, for anything that is not a
        curve of this version."""
        try:
            if (saved["format"], saved["version"]) != (FORMAT, VERSION):
                raise ValueError(f"it has format {saved['format']} version {saved['version']}")
            return msgspec.convert(saved, cls, strict=False)  # keys of objects in JSON are texts
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{name} is not a cost curve of version {VERSION} ({type(error).__name__}: "
                f"{error}); measure one with: tokalign calibrate --target TARGET"
            ) from error


def shipped_names() -> list[str]:
    """List the names of the curves that come with tokalign."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def published_curve(device: str, bits: int) -> str | None:
    """The name of the shipped curve of a device; of several, that of the nearest bits. None for a
    device of which none was published."""
    of_device = PUBLISHED.get(device, {})
    nearest = min(of_device, key=lambda known: abs(known - bits), default=None)
    return None if nearest is None else of_device[nearest]


def read_curve(name: str) -> CostCurve:
    """Read a shipped curve by its name, or a curve from a file. Raises: UsageError."""
    shipped = SHIPPED / f"{name}.json"
    path = shipped if name in shipped_names() else as_path(name)
    try:
        saved = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise UsageError(
            f"{name} is not a cost curve ({reason}); give a file that `tokalign calibrate` wrote, "
            f"or one of: {', '.join(shipped_names())}"
        ) from error
    return CostCurve.from_json(saved, name=name)


# -- the cache -------------------------------------------------------------------------------------


def find_curve(machine: Machine) -> CostCurve | None:
    """The stored curve; None if there is none for this machine and version. The target's part of
    one with another draft model, or with none, is used: it does not depend on the draft."""
    found = None
    for curve in _stored():
        if curve.machine == machine:
            return curve
        if curve.machine and replace(curve.machine, draft=machine.draft) == machine:
            found = found or curve.without_draft()
    return found


def find_curve_of_tokenizers(target: str, draft: str) -> CostCurve | None:
    """Find a curve of models with these tokenizers (by fingerprint), or of the target alone."""
    found = None
    for curve in _stored():
        of = curve.notes.get("tokenizers")
        if of == [target, draft]:
            return curve
        if of and of[0] == target:
            found = curve.without_draft()
    return found


def store_curve(curve: CostCurve) -> Path:
    """Write a measured curve to its place in the cache. Returns: where it is. Raises: UsageError
    if it cannot be written."""
    assert curve.machine is not None, "only a measured curve has a place in the cache"
    path, content = _place(curve.machine), json.dumps(curve.to_json(), ensure_ascii=False) + "\n"
    write_file(path, content, parents=True, remedy=_CACHE_REMEDY)
    return path


def require_place(machine: Machine) -> None:
    """Check before measuring that the cache can keep the curve. Raises: UsageError."""
    require_writable(_place(machine), parents=True, remedy=_CACHE_REMEDY)


_CACHE_REMEDY = "set TOKALIGN_CACHE to a folder that you may write to"


def _place(machine: Machine) -> Path:
    """The cache has a curve for each target and draft on a device."""
    of = machine.device, machine.target, machine.draft
    key = sha256("\n".join(of).encode()).hexdigest()[:20]
    return cache_folder() / "curves" / f"{key}.json"


def _stored() -> Iterator[CostCurve]:
    """Every curve in the cache. A damaged or outdated file counts as none and is measured again."""
    for path in sorted((cache_folder() / "curves").glob("*.json")):
        with suppress(OSError, ValueError):
            yield CostCurve.from_json(parse_json(path.read_text("utf-8")), name=str(path))
