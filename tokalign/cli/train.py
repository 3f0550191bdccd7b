"""`tokalign train`: a recurrent drafter for a target, or a draft model taught by it, from a corpus.

Its two steps are `label_corpus` and `fit` of `tokalign/train/`.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tokalign.cli.command import (
    AT_LEAST_1,
    FOLDER,
    FROM_0,
    PATH,
    POSITIVE,
    Command,
    Option,
    flag,
    rare,
    several,
)
from tokalign.cli.options import DRAFT, FIELD, MODEL
from tokalign.cli.output import note, progress, show
from tokalign.errors import UsageError
from tokalign.runtime.options import take
from tokalign.storage import make_folder
from tokalign.train.options import (
    MOST_SEED,
    FitOptions,
    Kind,
    Labelling,
    LabelOptions,
    Loss,
    ModelShape,
    estimate,
    estimate_teaching,
)

if TYPE_CHECKING:
    from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig
    from tokalign.train.run import Evaluation

_WIDEST = 2_048
_RANK, _SMALL, _RATE_OF_LAYERS = 16, 500_000_000, 0.0003

_LABELLING, _LABELS, _FIT = Labelling(), LabelOptions(), FitOptions()
"""Their fields have the defaults."""

_OPTIONS = (
    *MODEL,
    DRAFT,
    Option("--output", "The folder of what is trained.", FOLDER, required=True),
    Option("--workspace", "Labels and unfinished runs. Default: OUTPUT.training.", FOLDER),
    flag("--dry-run", "Only say what memory, disk and work it would take."),
    FIELD,
    Option(
        "--labels kind",
        "What follows a position: the target's greedy or sampled ids, or the text's.",
        click.Choice(get_args(Kind)),
        _LABELLING.kind,
    ),
    rare(
        "--label-temp temperature",
        "Temperature of sampled labels.",
        POSITIVE,
        _LABELLING.temperature,
    ),
    Option("--positions", "Positions to train on, about.", AT_LEAST_1, _LABELS.positions),
    Option("--held-out", "Positions to measure acceptance on.", AT_LEAST_1, _LABELS.held_out),
    rare("--window", "Ids of text read at once.", click.IntRange(min=16), _LABELS.window),
    Option("--width", f"Width. Default: the target's hidden size, at most {_WIDEST}.", AT_LEAST_1),
    Option("--blocks", "Residual blocks in the drafter.", FROM_0, 2),
    rare(
        "--head",
        "tied: the target's output head. factored: one of its own, of low rank.",
        click.Choice(["tied", "factored"]),
        "tied",
    ),
    rare("--rank", "The rank of a factored head.", AT_LEAST_1, 512),
    several(
        "--loss losses",
        "What a draft model learns; repeatable. marginal: the labels. kl, acceptance: "
        "the target's top-k logits. text: its own tokens. Default: marginal.",
        click.Choice(get_args(Loss)),
    ),
    Option(
        "--lora",
        f"Rank of LoRA adapters; 0 trains all weights. Default: {_RANK} for more than "
        f"{_SMALL // 10**6} million weights or quantized ones, else 0.",
        FROM_0,
    ),
    Option(
        "--keep",
        "Share of the old weights in the mean that is written; helps after a short training.",
        click.FloatRange(0, 1, max_open=True),
        _FIT.keep,
    ),
    Option("--epochs", "How often each position is seen.", POSITIVE, _FIT.epochs),
    Option("--batch", "Positions of a batch.", AT_LEAST_1, _FIT.batch),
    rare(
        "--candidates",
        "Frequent ids in the softmax, besides those of the batch; 0 is the vocabulary.",
        FROM_0,
        _FIT.candidates,
    ),
    Option(
        "--learning-rate",
        f"It falls along a cosine. Default: {_FIT.learning_rate}; for all weights of a draft model "
        f"{_RATE_OF_LAYERS}.",
        POSITIVE,
    ),
    rare("--evaluations", "How often the state is saved.", AT_LEAST_1, _FIT.evaluations),
    Option("--seed", "Seed of what is drawn.", click.IntRange(0, MOST_SEED), _FIT.seed),
    click.Argument(["files"], nargs=-1, type=PATH, metavar="[FILE]..."),
)


@click.command("train", cls=Command, params=[*_OPTIONS])
def command(
    *,
    target: str,
    draft: str | None,
    adapter_path: Path | None,
    trust_remote_code: bool,
    dtype: str | None,
    files: tuple[Path, ...],
    field: str,
    output: Path,
    workspace: Path | None,
    dry_run: bool,
    **values: Any,
) -> None:
    """Train a drafter for a target: a recurrent one, or a small model with any tokenizer (--draft).

    FILEs are text of the kind that the target will write: .txt or .jsonl (also .gz, .zst, .xz) or
    .parquet. The target labels them itself, and quantized targets are trained for as they are. A
    killed run is resumed by the same command and ends with the same weights.
    """
    from tokalign.build.corpus import Corpus

    corpus = Corpus(files, field=field)
    shape = None if draft is None else _draft_shape(draft, output)
    labels = take(LabelOptions, values | {"labelling": take(Labelling, {**values})})
    fit = _fit_options(values, shape, labels.labelling)
    if dry_run:
        show({"target": target, **_estimated(target, values, labels, fit, shape)})
        return
    if not corpus.listing:
        raise UsageError("there is nothing to train on; give FILEs of text")
    from tokalign.api.assemble import load_models
    from tokalign.runtime.mlx.recurrent_drafter import TargetEnds
    from tokalign.runtime.translation.base import Pair
    from tokalign.train.labelled_corpus import FutureIds, NextIds, label_corpus
    from tokalign.train.run import Learner
    from tokalign.train.run import fit as train
    from tokalign.train.teaching import DraftLearner
    from tokalign.train.training import RecurrentLearner

    make_folder(output)
    [model] = load_models(
        [target], dtype=dtype, adapter=adapter_path, trust_remote_code=trust_remote_code, note=note
    )
    workspace = workspace or output.with_name(f"{output.name}.training")
    labelled = label_corpus(
        model,
        corpus,
        workspace,
        labels,
        labeller=FutureIds if draft is None else NextIds,
        # The corpus is read twice, and that stage counts bytes.
        stage=lambda total, label: progress(
            total, label, in_bytes=total == 2 * corpus.size, unit="positions"
        ),
    )
    count, wanted = len(labelled.training.ids), labels.positions
    few = "" if count > 0.95 * wanted else f", not {wanted:,}: give more text to get as many"
    note(f"{count:,} positions are labelled{few}; labels and state in {workspace}")
    learner: Learner
    if draft is None:
        ends = TargetEnds.of(model.model)
        config = _drafter_config(values, ends.hidden_size, ends.vocabulary_size)
        learner = RecurrentLearner(model, config, labelled, fit)
    else:
        theirs = model.tokenizer
        del model  # large, and not needed any more
        [taught] = load_models([draft], dtype=dtype, trust_remote_code=trust_remote_code)
        pair = Pair(theirs, taught.tokenizer)
        learner = DraftLearner(taught, pair, labelled, fit, window=labels.window)
        note(f"{sum(learner.measure()):.3f} accepted per round before training")
    trained = train(
        learner, output, workspace, stage=partial(progress, unit="steps"), report=_report
    )
    kind = "drafter" if draft is None else "draft"
    note(f"{kind} -> {output}; the labels stay in {workspace} for other runs")
    result = {
        "target": target,
        kind: str(output),
        "parameters": trained.parameters,
        "positions": trained.positions,
        "steps": trained.steps,
        "stopped_early": trained.stopped_early,
        "accepted_per_round": round(trained.best, 4),
    }
    show(result)


def _draft_shape(draft: str, output: Path) -> ModelShape:
    """The sizes of the draft model; nothing is loaded. Raises: UsageError for its own folder."""
    from tokalign.names.registry import resolve_model

    folder = resolve_model(draft).folder
    if output.resolve() == folder.resolve():
        raise UsageError(f"{output} is the draft model's own folder; give another --output")
    return ModelShape.from_folder(folder)


def _fit_options(
    values: dict[str, Any], draft: ModelShape | None, labelling: Labelling
) -> FitOptions:
    """Raises: UsageError for a loss that the labels do not have, and for quantized weights.

    draft: of the draft model that is taught, if one is.
    """
    values["losses"] = values["losses"] or _FIT.losses
    rate = _FIT.learning_rate
    if draft is not None:
        is_small = draft.parameters <= _SMALL and not draft.is_quantized
        rank = values["lora"] if values["lora"] is not None else (0 if is_small else _RANK)
        values["lora"] = rank or None
        rate = rate if rank else _RATE_OF_LAYERS
        if draft.is_quantized and not rank:
            raise UsageError("quantized weights cannot be trained; leave out --lora 0")
        soft = [one for one in values["losses"] if one not in ("text", "marginal")]
        if soft and labelling.kind == "text":
            raise UsageError(
                f"--loss {soft[0]} learns what the target finds probable, and --labels text does "
                "not ask it; give other --labels"
            )
    values["learning_rate"] = values["learning_rate"] or rate
    values["candidates"] = values["candidates"] or None
    return take(FitOptions, values)


def _drafter_config(
    values: dict[str, Any], hidden_size: int, vocabulary_size: int
) -> DrafterConfig:
    """The shape of the drafter for a target of this hidden size and vocabulary."""
    from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig

    width = values["width"] or min(hidden_size, _WIDEST)
    return DrafterConfig(
        hidden_size=hidden_size,
        vocabulary_size=vocabulary_size,
        width=width,
        exit_width=width,
        blocks=values["blocks"],
        head=values["head"],
        rank=values["rank"] if values["head"] == "factored" else None,
    )


def _report(evaluation: Evaluation) -> None:
    shares = " ".join(f"{share:.3f}" for share in evaluation.by_depth)
    note(
        f"step {evaluation.step} of {evaluation.steps}: loss {evaluation.loss:.3f}, "
        f"{evaluation.accepted_per_round:.3f} accepted per round (by depth {shares})"
        + ", the best so far"
        * evaluation.is_best
    )


def _estimated(
    target: str,
    values: dict[str, Any],
    labels: LabelOptions,
    fit: FitOptions,
    draft: ModelShape | None,
) -> dict[str, Any]:
    """What a run takes; nothing is loaded."""
    from tokalign.names.registry import resolve_model

    location = resolve_model(target)
    note(location.description)
    shape = ModelShape.from_folder(location.folder)
    if draft is None:
        config = _drafter_config(values, shape.hidden_size, shape.vocabulary_size)
        taken, parameters = estimate(shape, config, labels, fit), config.parameters
    else:
        taken = estimate_teaching(shape, draft, labels, fit)
        parameters = round(draft.trained(fit.lora))
    rounded = {name: round(value, 2) for name, value in asdict(taken).items()}
    return {"trained_parameters": parameters, **rounded}
