"""What is known of a machine before the first round: a measured cost curve or an assumed one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import ref

from tokalign.cost.curve import MACHINES, CostCurve, read_curve
from tokalign.cost.store import find_curve
from tokalign.runtime.draft_length.acceptance import Acceptance
from tokalign.runtime.draft_length.decision import MAX_DRAFT
from tokalign.runtime.draft_length.knowledge import Knowledge, ModelWorth
from tokalign.runtime.draft_length.learned_costs import LearnedCosts, PassTimes
from tokalign.runtime.mlx.machine import machine_of
from tokalign.runtime.mlx.weights import weight_bytes

_MEASURED_WEIGHT = 4
"""Observations that a measured time is worth; the machine may have changed since."""

_CONTEXT = 128
"""About how many ids precede the passes."""

_OTHERS = "24-percent-per-row"

_shared: deque[tuple[list[ref[Any]], Knowledge]] = deque(maxlen=8)
_shared_lock = Lock()


def opening_knowledge(
    target: Any, draft: Any = None, *, note: Callable[[str], None] = lambda _: None
) -> Knowledge:
    """What the draft length controller begins with, for two loaded mlx-lm models.

    note: told once if a curve is assumed.
    """
    machine = machine_of(target, draft)
    curve = find_curve(machine)
    if curve is not None:
        return knowledge_from(curve, target, draft)
    assumed = read_curve(MACHINES.get(machine.device, _OTHERS))
    note(
        f"verification cost not measured on {machine.device}: decoding starts from the curve "
        f"{assumed.name!r} and learns; tokalign calibrate measures it"
    )
    return knowledge_from(assumed, target, draft)


def shared_knowledge(
    target: Any, draft: Any = None, *, note: Callable[[str], None] = lambda _: None
) -> Knowledge:
    """The knowledge of two loaded models in this process: one request learns for the next.

    The last eight pairs are kept. No model is kept alive. note: as for `opening_knowledge`.
    """
    models = [model for model in (target, draft) if model is not None]
    with _shared_lock:
        for known, knowledge in _shared:
            # Models are dictionaries of arrays, which `==` would compare element by element.
            if [id(model()) for model in known] == [id(model) for model in models]:
                return knowledge
        knowledge = opening_knowledge(target, draft, note=note)
        _shared.append(([ref(model) for model in models], knowledge))
        return knowledge


def knowledge_from(curve: CostCurve, target: Any, draft: Any = None) -> Knowledge:
    """The knowledge that a curve gives. Only the seconds of a measured one are believed.

    Where the time of a draft pass is not known, it is assumed to be to the target's as the bytes
    of the two models' weights.
    """
    measured = curve.machine is not None
    drafts = None
    if draft is not None:
        known_pass = curve.draft_pass_at(_CONTEXT) if measured else None
        each = weight_bytes(draft) / weight_bytes(target) if known_pass is None else known_pass
        prior = [passes * each for passes in range(1, MAX_DRAFT + 1)]
        drafts = PassTimes(prior, weight=0 if known_pass is None else _MEASURED_WEIGHT)
    rows = PassTimes(curve.rows_at(_CONTEXT), weight=_MEASURED_WEIGHT if measured else 0)
    acceptance = curve.notes.get("acceptance") if draft is not None else None
    return Knowledge(
        costs=LearnedCosts(rows, drafts, host=curve.host if measured else 0.0),
        model=ModelWorth(Acceptance(start=acceptance[0]) if acceptance else None),
    )
