"""What is known of a machine before the first round: a measured cost curve or an assumed one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.cost import CostCurve, find_curve, published_curve, read_curve
from tokalign.runtime.draft.costs import MAX_DRAFT, Costs, LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import NO_TIME, Knowledge, ModelKnowledge
from tokalign.runtime.draft.neural import DRAFT, DRAFTER
from tokalign.runtime.mlx.machine import machine_of
from tokalign.runtime.mlx.short_head import frequent_rows
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.mlx.weights import number_format, weight_bytes
from tokalign.runtime.translation.growth import WIDTH
from tokalign.tables.finding import Detail

_MEASURED_WEIGHT = 4
"""Observations that a measured time is worth; the machine may have changed since."""

_OTHERS = "24-percent-per-row"

_shared: deque[tuple[list[ref[Any]], Knowledge]] = deque(maxlen=8)
_shared_lock = Lock()


def opening_knowledge(
    target: Any,
    *drafts: Any,
    heads: Sequence[NDArray[np.uint32] | None] = (),
    note: Callable[[str], None] = lambda _: None,
) -> Knowledge:
    """What the controller begins with, for a loaded target and what drafts for it.

    drafts: an mlx-lm model, a trained drafter of the target, both or none. heads: the ids that the
    head of each is shortened to, if it is (`Drafting.head_ids`).
    note: told once if a curve is assumed.
    """
    found = [find_curve(machine_of(target, draft)) for draft in drafts or (None,)]
    known = next(filter(None, found), None)
    if known is None:
        _, bits = number_format(target)
        device = machine_of(target).device
        known = read_curve(published_curve(device, bits) or _OTHERS)
        note(
            Detail(
                f"verification cost not measured on {device}: decoding starts from the curve "
                f"{known.name!r} and learns; tokalign calibrate measures it"
            )
        )
    curves = [curve or known.without_draft() for curve in found]
    return knowledge_from(curves, target, *drafts, heads=heads)


def shared_knowledge(target: Any, *drafts: Any, **how: Any) -> Knowledge:
    """The knowledge of loaded models in this process: one request learns for the next.

    That of the latest eight targets with their drafts is kept. No model is kept alive. drafts,
    how: as for `opening_knowledge`.
    """
    models = [target, *drafts]
    with _shared_lock:
        for known, knowledge in _shared:
            # Models are dictionaries of arrays, which `==` would compare element by element.
            if [id(model()) for model in known] == [id(model) for model in models]:
                return knowledge
        knowledge = opening_knowledge(target, *drafts, **how)
        _shared.append(([ref(model) for model in models], knowledge))
        return knowledge


def knowledge_from(
    curves: Sequence[CostCurve],
    target: Any,
    *drafts: Any,
    heads: Sequence[NDArray[np.uint32] | None] = (),
) -> Knowledge:
    """The knowledge that curves give. Only the seconds of measured ones are believed.

    curves: one for each of the drafts; of the target alone where nothing drafts.
    drafts, heads: as for `opening_knowledge`.
    """
    heads = heads or [None] * len(drafts)
    curve, known = curves[0], map(partial(_model_knowledge, target), drafts, heads, curves)
    measured = curve.machine is not None
    rows = PassTimes(curve.row_times, weight=_MEASURED_WEIGHT if measured else 0)
    costs = LearnedCosts(rows, host=curve.host if measured else 0.0)
    kinds = (DRAFTER if isinstance(draft, TrainedDrafter) else DRAFT for draft in drafts)
    return Knowledge(costs=costs, models=dict(zip(kinds, known, strict=True)))


def _model_knowledge(
    target: Any, draft: Any, ids: NDArray[np.uint32] | None, curve: CostCurve
) -> ModelKnowledge:
    """The first pass of a draft reads the text, the further ones grow a tree. Where they were not
    measured, they are assumed to take to the target's, over as many rows, as the bytes of weights
    that they read."""
    weight = 0
    if curve.machine is not None and curve.draft_pass is not None:
        weight, row = _MEASURED_WEIGHT, curve.row_times[0]
        first = curve.draft_pass.median / row
        further = (curve.tree_pass or curve.draft_pass).median / row
    elif isinstance(draft, TrainedDrafter):
        unread = 0 if draft.has_head else _unread_bytes(target, ids)
        first = further = (draft.step_bytes - unread) / weight_bytes(target)
    else:
        read = weight_bytes(draft) - _unread_bytes(draft, ids)
        first, costs = read / weight_bytes(target), Costs(rows=curve.row_times)
        further = first * costs.verify(WIDTH) / costs.verify(1)
    times = [first + passes * further for passes in range(MAX_DRAFT)]
    # Each id that it reads takes of its pass what one more of many rows takes of the target's.
    rows, half = curve.row_times, len(curve.row_times) // 2
    a_row = (rows[-1] - rows[half]) / max(1, len(rows) - 1 - half) / rows[0]
    reading = PassTimes([max(NO_TIME, first * a_row)], weight=min(1, weight))
    return ModelKnowledge(PassTimes(times, weight=weight), reading=reading)


def _unread_bytes(model: Any, ids: NDArray[np.uint32] | None) -> int:
    """Those of a model's weights that are not read where its head is shortened to `ids`."""
    short = None if ids is None else frequent_rows(model, ids)
    return 0 if short is None else weight_bytes(short.head) - weight_bytes(short.rows)
