"""`tokalign train-drafter`: a recurrent drafter for a target, from a corpus.

Its two steps are `label_corpus` and `fit_drafter` of `tokalign/train/`; `estimate.py` there says
what they will take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.atomic_file import make_folder
from tokalign.cli.drafting_options import MODEL, with_options
from tokalign.cli.idle_options import refuse_idle
from tokalign.cli.option_types import PATH
from tokalign.cli.output import echo, json_option, note, print_json, progress, quiet_option, table
from tokalign.cli.training_options import (
    CORPUS,
    DRY_RUN,
    FIT,
    SHAPE,
    drafter_config,
    fit_options,
    label_options,
)
from tokalign.errors import UsageError

if TYPE_CHECKING:
    from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig
    from tokalign.train.estimate import Estimate
    from tokalign.train.options import FitOptions, LabelOptions
    from tokalign.train.training import Evaluation, Trained

_SHARE_OF_MEMORY = 2 / 3
"""Of a Mac's memory, about as much as its GPU may hold unless told otherwise."""


@click.command("train-drafter")
@with_options(*MODEL, *CORPUS)
@click.option("--output", type=PATH, metavar="FOLDER", required=True, help="The drafter's folder.")
@click.option(
    "--workspace",
    type=PATH,
    metavar="FOLDER",
    help="Labels, which later runs use again, and the state of unfinished runs. "
    "Default: OUTPUT.training.",
)
@with_options(*SHAPE, *FIT, *DRY_RUN)
@click.argument("more_corpus_files", metavar="[FILE]...", nargs=-1, type=PATH)
@json_option
@quiet_option
def command(
    *,
    target: str,
    adapter_path: Path | None,
    trust_remote_code: bool,
    dtype: str | None,
    corpus_files: tuple[Path, ...],
    more_corpus_files: tuple[Path, ...],
    field: str,
    output: Path,
    workspace: Path | None,
    dry_run: bool,
    memory: int | None,
    rows_per_second: float | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Train a recurrent drafter that continues from the target's last hidden state.

    The target labels the corpus itself, so nothing but text is needed, and quantized targets are
    trained for as they are. FILEs without an option belong to the corpus too. A killed run is
    resumed by the same command and ends with the same weights.
    """
    from tokalign.build.corpus import Corpus

    if not dry_run:
        refuse_idle(("memory", "rows_per_second"), without="--dry-run")
    if given["kind"] in ("greedy", "text"):
        refuse_idle(("label_temp",), beside=f"--labels {given['kind']}")
    if given["head"] == "tied":
        refuse_idle(("rank",), without="--head factored")
    corpus = Corpus((*corpus_files, *more_corpus_files), field=field)
    labels, fit = label_options(given), fit_options(given)
    if dry_run:
        _print_estimate(
            target, given, labels, fit, memory, rows_per_second, as_json=as_json, quiet=quiet
        )
        return
    if not corpus.listing:
        raise UsageError("there is nothing to train on; give text with --corpus FILE")
    from tokalign.assemble import load_models
    from tokalign.runtime.mlx.recurrent_drafter import TargetEnds
    from tokalign.train.labelled_corpus import label_corpus
    from tokalign.train.training import fit_drafter

    make_folder(output)
    tell = partial(note, quiet=quiet)
    [model] = load_models(
        [target], dtype=dtype, adapter=adapter_path, trust_remote_code=trust_remote_code, note=tell
    )
    ends = TargetEnds.of(model.model)
    config = drafter_config(given, ends.hidden_size, ends.vocabulary_size)
    workspace = workspace or output.with_name(f"{output.name}.training")
    tell(f"a drafter of {config.parameters:,} parameters; labels and state in {workspace}")
    show = partial(progress, quiet=quiet)
    labelled = label_corpus(
        model,
        corpus,
        workspace,
        labels,
        # The corpus is read twice, and that stage counts bytes.
        stage=lambda total, label: show(
            total, label, in_bytes=total == 2 * corpus.size, unit="positions"
        ),
    )
    found = len(labelled.training.ids)
    tell(f"{found:,} positions are labelled" + _shortfall(found, labels.positions))
    trained = fit_drafter(
        model,
        config,
        labelled,
        output,
        workspace,
        fit,
        stage=partial(show, unit="steps"),
        report=_Reporter(tell, fit.batch * fit.accumulate),
    )
    tell(f"drafter -> {output}; the labels stay in {workspace} for other runs")
    if as_json:
        print_json(_as_json(trained, output))
    else:
        echo(table(_as_json(trained, output).items()))


def _shortfall(found: int, wanted: int) -> str:
    """What to add where clearly fewer positions were labelled than asked for."""
    if found > 0.95 * wanted:
        return ""
    return f", not {wanted:,}: give more text to get as many"


class _Reporter:
    """Tells of every evaluation, with the rate and the time left."""

    def __init__(self, tell: Callable[[str], None], per_step: int) -> None:
        self._tell, self._per_step = tell, per_step
        self._began = time.monotonic()

    def __call__(self, evaluation: Evaluation) -> None:
        now = time.monotonic()
        rate = evaluation.steps_since / (now - self._began)
        left = evaluation.steps - evaluation.step
        self._began = now
        shares = " ".join(f"{share:.3f}" for share in evaluation.acceptance.by_depth)
        self._tell(
            f"step {evaluation.step} of {evaluation.steps}: loss {evaluation.loss:.3f}, "
            f"{evaluation.acceptance.per_round:.3f} accepted per round (by depth {shares})"
            f"{', the best so far' if evaluation.is_best else ''}; "
            f"{rate * self._per_step:,.0f} positions/s, {_duration(left / rate)} left"
        )


def _print_estimate(
    target: str,
    given: dict[str, Any],
    labels: LabelOptions,
    fit: FitOptions,
    memory: int | None,
    rows_per_second: float | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    from tokalign.names.registry import resolve_model
    from tokalign.train.estimate import TargetShape, Work, estimate

    place = resolve_model(target)
    note(place.description, quiet=quiet)
    shape = TargetShape.from_folder(place.folder)
    config = drafter_config(given, shape.hidden_size, shape.vocabulary_size)
    work = Work(
        positions=labels.positions + labels.held_out,
        window=labels.window,
        labelling=labels.labelling,
        epochs=fit.epochs,
        batch=fit.batch,
        candidates=fit.candidates,
        drafter_parameters=config.parameters,
        exit_width=config.exit_width,
        blocks=config.blocks,
    )
    found = _estimated(estimate(shape, work), config, memory, rows_per_second)
    if as_json:
        print_json(found)
    else:
        echo(table((name.replace("_", " "), value) for name, value in found.items()))


def _estimated(
    estimated: Estimate, config: DrafterConfig, memory: int | None, rows_per_second: float | None
) -> dict[str, Any]:
    """The estimate as named figures: gigabytes (10^9 bytes), FLOP and, where known, minutes."""
    found: dict[str, Any] = {
        "drafter_parameters": config.parameters,
        "labelling_memory_gb": round(estimated.labelling_memory / 1e9, 2),
        "training_memory_gb": round(estimated.training_memory / 1e9, 2),
        "labels_on_disk_gb": round(estimated.disk / 1e9, 2),
        "rows_of_the_target": estimated.rows,
        "labelling_tflop": round(estimated.labelling_work / 1e12, 1),
        "training_tflop": round(estimated.training_work / 1e12, 1),
    }
    if memory is not None:
        usable = memory * _SHARE_OF_MEMORY
        found["fits"] = estimated.memory <= usable
    if rows_per_second is not None:
        labelling, training = estimated.seconds(rows_per_second)
        found["labelling_minutes"] = round(labelling / 60, 1)
        found["training_minutes"] = round(training / 60, 1)
    return found


def _as_json(trained: Trained, output: Path) -> dict[str, Any]:
    return {
        "drafter": str(output),
        "parameters": trained.config.parameters,
        "positions": trained.positions,
        "steps": trained.steps,
        "stopped_early": trained.stopped_early,
        "accepted_per_round": round(trained.best, 4),
    }


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
