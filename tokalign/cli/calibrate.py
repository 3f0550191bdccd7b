"""`tokalign calibrate`: measure what passes cost on this machine, and keep it for later runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.command import Command, Option, flag
from tokalign.cli.options import DRAFT, DRAFTER, DTYPE, HTML, TARGET, TRUST
from tokalign.cli.output import note, paragraph, progress, rows, show, table
from tokalign.errors import DisturbedError, OutputError, UsageError
from tokalign.runtime.options import DEFAULT_DRAFT_TOKENS, DraftingOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokalign.runtime.cost import CostCurve
    from tokalign.runtime.decoder import Decoder

_SHOWN = (2, 3, 5, 9, 17, 33)

_OPTIONS = (
    TARGET,
    DRAFT,
    DRAFTER,
    flag("--refresh", "Measure again, even if nothing has changed."),
    Option("--budget", "Seconds after which measuring ends.", click.FloatRange(min=1), 30.0),
    DTYPE,
    TRUST,
    HTML,
)


@click.command("calibrate", cls=Command, params=[*_OPTIONS])
def command(
    *,
    target: str,
    draft: str | None,
    drafter: Path | None,
    refresh: bool,
    budget: float,
    dtype: str | None,
    trust_remote_code: bool,
    html: Path | None,
) -> None:
    """Measure how long passes take, by how many tokens they check; later commands use the result.

    With a draft model its passes are timed, with a trained drafter its beam searches. All is
    measured again if the chip, mlx, or the weights' shapes or formats have changed.
    """
    from tokalign.api.assemble import load_decoder
    from tokalign.runtime.cost import find_curve, require_place, store_curve
    from tokalign.runtime.mlx.machine import machine_of

    length = DEFAULT_DRAFT_TOKENS  # a given one needs no costs
    options = DraftingOptions(method="hybrid", drafter=drafter, num_draft_tokens=length)
    decoder = load_decoder(
        target, draft, options, dtype=dtype, trust_remote_code=trust_remote_code, note=note
    )
    machine = machine_of(decoder.target.model, *decoder.drafting_models)
    curve = None if refresh else find_curve(machine)
    # A curve of the target alone is found too, and one of a brief measurement names no tokenizers.
    is_known = curve is not None and curve.machine == machine and "tokenizers" in curve.notes
    if curve is None or not is_known:
        require_place(machine)
        curve = _measured(decoder, budget)
        note(f"cost curve -> {store_curve(curve)}")
    else:
        note("nothing has changed since the last calibration; --refresh measures again")
    if html is not None:
        from tokalign.cli.report import curve_plot, write_report

        write_report(
            html,
            title=f"What passes of {target} cost here",
            about=f"{curve.name}; {curve.source}",
            verdict=[_verdict(curve)],
            plots=[curve_plot(curve)],
            rows=rows(_summary(curve)),
        )
    show(
        {"target": target, "draft": draft, **curve.to_json()},
        lambda: f"{paragraph(_verdict(curve))}\n\n{table(rows(_summary(curve)))}",
    )


def measure_unless_known(target: Any, drafts: Any, ids: NDArray[np.uint32] | None) -> None:
    """Measure what passes cost, unless that is known of these two. target, drafts, ids: as for
    `measure_curve`."""
    from tokalign.evaluate.calibrate import measure_briefly, require_sound
    from tokalign.runtime.cost import find_curve, require_place, store_curve
    from tokalign.runtime.mlx.machine import machine_of

    machine = machine_of(target, drafts)
    known = find_curve(machine)
    if known is not None and known.machine == machine:  # else it is of the target's passes alone
        return
    try:
        require_place(machine)
        with progress(1, "measuring once what passes cost; Ctrl-C leaves it out") as advance:
            store_curve(require_sound(measure_briefly(target, drafts, ids, advance=advance)))
    except KeyboardInterrupt:
        note("left out this time")
    except (DisturbedError, OutputError, UsageError) as error:  # no reason not to talk
        note(str(error))


def measure_shape(name: str) -> CostCurve:
    """The cost curve of a model's shape, of which the configuration is read alone; it is kept.
    Raises: UsageError if it does not fit into memory; as `resolve`, `model_of_shape`,
    `require_sound`."""
    from tokalign.api.assemble import choose_dtype
    from tokalign.evaluate.calibrate import measure_curve, require_sound
    from tokalign.names import hub
    from tokalign.names.memory import require_bytes
    from tokalign.names.registry import resolve
    from tokalign.runtime.cost import require_place, store_curve
    from tokalign.runtime.mlx.machine import machine_of
    from tokalign.runtime.mlx.shape import fill, model_of_shape
    from tokalign.runtime.mlx.weights import read_config, weight_bytes

    folder = resolve(name, hub.CONFIG).folder
    model = model_of_shape(read_config(folder), dtype=choose_dtype(None, note=note))
    require_place(machine_of(model))
    require_bytes(weight_bytes(model))
    note(f"random weights in the shape of {name}: {weight_bytes(model) / 1e9:.2f} GB")
    fill(model)
    with progress(1, "measuring") as advance:
        curve = require_sound(measure_curve(model, advance=advance))
    note(f"cost curve -> {store_curve(curve)}")
    return curve


def _measured(decoder: Decoder, budget: float) -> CostCurve:
    """Raises: DisturbedError."""
    from tokalign.evaluate.calibrate import measure_curve, require_sound

    (drafter,) = decoder.drafting_models or (None,)
    (ids,) = decoder.heads or (None,)
    target = decoder.target
    with progress(1, "measuring the passes") as advance:
        curve = measure_curve(target.model, drafter, ids, budget=budget, advance=advance)
    theirs = "" if decoder.draft is None else decoder.draft.tokenizer.fingerprint
    tokenizers = [target.tokenizer.fingerprint, theirs]
    return replace(require_sound(curve), notes={**curve.notes, "tokenizers": tokenizers})


def _verdict(curve: CostCurve) -> str:
    expectation = curve.expectation()
    return f"{expectation[0].upper()}{expectation[1:]}."


def _summary(curve: CostCurve) -> dict[str, object]:
    """What a person wants to know of a curve; times in those of a pass over one row."""
    shown: dict[str, object] = {"curve": curve.name, "source": curve.source}
    plain = curve.rows[1].median
    timed = {f"{count} rows": curve.rows[count] for count in _SHOWN if count in curve.rows}
    if curve.draft_pass is not None:
        timed["a draft pass"] = curve.draft_pass
    ratios = (f"{what} {timing.median / plain:.2f}" for what, timing in timed.items())
    shown[f"after {curve.context} ids"] = f"1 row {1e3 * plain:.2f} ms; {', '.join(ratios)}"
    shown["host work that running ahead hides"] = f"{curve.host * 1e3:.2f} ms a round"
    return shown
