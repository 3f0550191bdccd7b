"""`tokalign convert-drafter`: a drafter published with the ReDrafter paper, for `--drafter`."""

from __future__ import annotations

from pathlib import Path

import click

from tokalign.cli.drafting_options import (
    dtype_option,
    target_model_option,
)
from tokalign.cli.output import echo, json_option, note, print_json, quiet_option, table
from tokalign.cli.path_types import PATH


@click.command("convert-drafter")
@click.argument("checkpoint", type=PATH)
@click.argument("output", type=PATH)
@target_model_option
@dtype_option
@json_option
@quiet_option
def command(
    *, checkpoint: Path, output: Path, target: str, dtype: str | None, as_json: bool, quiet: bool
) -> None:
    """Convert CHECKPOINT, a folder in the layout of Apple's recurrent_drafting, to OUTPUT.

    TARGET is the model that the drafter was trained on, or a quantization of it: OUTPUT belongs to
    exactly this one. Read the checkpoint's licence first: a converted drafter is under the same.
    """
    from tokalign.assemble import load_models
    from tokalign.runtime.mlx.drafter_folder import save_drafter, target_fingerprints
    from tokalign.runtime.mlx.hidden_state import HiddenStates
    from tokalign.runtime.mlx.published_drafter import read_published

    [model] = load_models([target], dtype=dtype, note=lambda line: note(line, quiet=quiet))
    HiddenStates(model.model)
    drafter = read_published(checkpoint, model.model)
    training = {"converted_from": checkpoint.resolve().name}
    save_drafter(output, drafter, target_fingerprints(model), training)
    written = {"folder": str(output), "parameters": drafter.config.parameters}
    if as_json:
        print_json(written)
    else:
        echo(table((name, value) for name, value in written.items()))
