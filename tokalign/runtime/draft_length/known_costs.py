"""What is known of this machine before the first round: a measured curve, or an assumed one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import ref

from tokalign.cost.curve import CostCurve, read_curve
from tokalign.cost.store import find_curve
from tokalign.runtime.draft_length.controller import MOST
from tokalign.runtime.draft_length.estimates import Acceptance, PassTimes
from tokalign.runtime.draft_length.pace import Pace
from tokalign.runtime.mlx.machine import machine_of
from tokalign.runtime.mlx.weights import weight_bytes

_MEASURED = 4
"""Observations that a measured time is worth; it may be of another day."""

_SHIPPED = {
    "Apple M1 Max": "m1-max",
    "Apple M2": "m2",
    "Apple M2 Pro": "m2-pro",
    "Apple M2 Ultra": "m2-ultra",
}
_OTHERS = "24-percent-per-row"

_shared: deque[tuple[list[ref[Any]], Pace]] = deque(maxlen=8)


def opening_pace(
    target: Any,
    draft: Any = None,
    *,
    context: int = 128,
    note: Callable[[str], None] = lambda _: None,
) -> Pace:
    """What the gain controller begins with, for two loaded mlx-lm models.

    context: about how many ids the passes will have in front. note: told once what is assumed.
    """
    machine = machine_of(target, draft)
    curve = find_curve(machine)
    if curve is not None:
        return pace_of(curve, target, draft, context=context)
    assumed = read_curve(_SHIPPED.get(machine.device, _OTHERS))
    note(
        f"verification cost not measured on {machine.device} yet: assuming that of "
        f"{assumed.name!r} until rounds tell; tokalign calibrate measures it"
    )
    return pace_of(assumed, target, draft, context=context)


def shared_pace(
    target: Any, draft: Any = None, *, note: Callable[[str], None] = lambda _: None
) -> Pace:
    """The pace of two loaded models in this process: what one request learns serves the next.

    Of the eight pairs last begun; it holds no model. note: as in `opening_pace`.
    """
    models = [model for model in (target, draft) if model is not None]
    for known, pace in _shared:
        # Models are dictionaries of arrays: not to be compared with `==`.
        if [id(model()) for model in known] == [id(model) for model in models]:
            return pace
    pace = opening_pace(target, draft, note=note)
    _shared.append(([ref(model) for model in models], pace))
    return pace


def pace_of(curve: CostCurve, target: Any, draft: Any = None, *, context: int = 128) -> Pace:
    """The knowledge that a curve gives; only a measured one is believed to the second.

    Where the draft's time is not known, it is to the target's as the bytes that a pass reads.
    """
    measured = curve.machine is not None
    drafts = None
    if draft is not None:
        each = curve.draft_pass_at(context) if measured else None
        ratio = weight_bytes(draft) / weight_bytes(target)
        prior = [steps * (ratio if each is None else each) for steps in range(1, MOST + 1)]
        drafts = PassTimes(prior, weight=0 if each is None else _MEASURED)
    known = curve.notes.get("acceptance")
    return Pace(
        PassTimes(curve.rows_at(context), weight=_MEASURED if measured else 0),
        drafts,
        host=curve.host if measured else 0.0,
        acceptance=Acceptance(start=known[0]) if draft is not None and known else None,
    )
