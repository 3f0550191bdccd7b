"""`tokalign train`: a drafter for a target, or a draft model taught by it, from a corpus.

Its steps are `write_texts`, `label_corpus` and `fit` of `tokalign/train/`; a kind of drafter adds a
learner.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, get_args

import click

from tokalign.cli.command import (
    AT_LEAST_1,
    FILE,
    FOLDER,
    FROM_0,
    NAME,
    POSITIVE,
    Command,
    Option,
    flag,
    rare,
    several,
)
from tokalign.cli.options import DRAFT, FIELD, MODEL, TARGET, declared_options
from tokalign.cli.output import note, paragraph, progress, rows, show, skipping_lines, table
from tokalign.cli.train_plan import (
    MOST_STATES_GB,
    RANK,
    RATE_OF_LAYERS,
    SMALL,
    WIDEST,
    TrainPlan,
    in_words,
    require_own_folder,
)
from tokalign.errors import BundleError, UsageError
from tokalign.storage import parents_of
from tokalign.train.options import (
    BlockShape,
    DrafterKind,
    FitOptions,
    Kind,
    Labelling,
    LabelOptions,
    Loss,
)

if TYPE_CHECKING:
    from tokalign.train.run import Evaluation

_SIZE = click.IntRange(1, 10_000_000)  # as folders may say

_OPTIONS = (
    TARGET,
    *MODEL[1:],
    DRAFT,
    Option(
        "--kind drafter_kind",
        "dflash, eagle3: in these formats. redrafter: recurrent. model: --draft, taught. Default: "
        "model with --draft, that of --begin-with, else redrafter.",
        click.Choice(get_args(DrafterKind)),
    ),
    Option("--begin-with", "Train the drafter in this folder on.", FOLDER),
    Option("--output", "The folder of what is trained.", FOLDER, required=True),
    Option("--workspace", "Labels and unfinished runs. Default: OUTPUT.training.", FOLDER),
    flag(
        "--dry-run",
        "Only say what memory, disk and work --positions would take, if FILEs have them.",
    ),
    FIELD,
    Option(
        "--from-model tokens",
        "TARGET writes this many tokens itself, at --label-temp, after pieces of the FILEs, and "
        "they are learned, too.",
        AT_LEAST_1,
    ),
    Option("--prompts", "TARGET answers the texts of this file instead.", FILE),
    Option(
        "--labels kind",
        "What follows a position: the target's greedy or sampled ids, or the text's. Default: "
        "greedy; with --from-model and without --loss, in two of five steps what TARGET wrote.",
        click.Choice(get_args(Kind)),
    ),
    *declared_options(Labelling).values(),
    *declared_options(LabelOptions).values(),
    *declared_options(BlockShape).values(),
    rare(
        "--states",
        "Where the target's layer outputs are found: on disk, or computed again in every step. "
        f"Default: on disk up to {MOST_STATES_GB:g} GB.",
        click.Choice(["disk", "again"]),
    ),
    rare("--width", f"Width. Default: the target's hidden size, at most {WIDEST}.", _SIZE),
    rare("--blocks", "Residual blocks in the drafter.", click.IntRange(0, 1_000), 2),
    several(
        "--loss losses",
        "What is learned; repeatable. marginal: the labels. kl, "
        "acceptance: the target's top-k logits. text: a draft's own tokens. Default: marginal.",
        click.Choice(get_args(Loss)),
    ),
    rare(
        "--lora",
        f"Rank of LoRA adapters; 0 trains all weights. Default: {RANK} for more than "
        f"{SMALL // 10**6} million weights or quantized ones, else 0.",
        FROM_0,
    ),
    Option(
        "--learning-rate",
        f"It falls along a cosine. Default: {FitOptions().learning_rate}; for all weights of a "
        f"draft model {RATE_OF_LAYERS}.",
        POSITIVE,
    ),
    *declared_options(FitOptions).values(),
    click.Argument(["files"], nargs=-1, type=NAME, metavar="[FILE]..."),
)


@click.command("train", cls=Command, params=[*_OPTIONS])
def command(
    *,
    target: str,
    draft: str | None,
    adapter: Path | None,
    trust_remote_code: bool,
    dtype: str | None,
    files: tuple[str, ...],
    field: str,
    output: Path,
    workspace: Path | None,
    dry_run: bool,
    **values: Any,
) -> None:
    """Train a drafter for a target: a recurrent one, one in DFlash's or EAGLE-3's format, or a
    small model with any tokenizer (--draft).

    FILEs are text of the kind that the target will write, given as to `tokalign build`. The target
    labels them itself; quantized targets are trained for as they are. A killed run is resumed by
    the same command and ends with the same weights.
    """
    from tokalign.build.corpus import Corpus
    from tokalign.build.sources import CorpusFile, find_sources

    plan = TrainPlan.of(draft, output, values)
    sources = find_sources(files, note=note)
    prompts = values["prompts"] and [values["prompts"]]
    for named in (sources, prompts or []):
        Corpus(named, field=field)  # which looks for the files before hours of work
    if dry_run:
        show({"target": target, "kind": plan.kind, **plan.estimated(target)})
        return
    if not files and not prompts:
        raise UsageError("there is nothing to train on; give FILEs of text")
    require_own_folder(output, target)
    from tokalign.api.assemble import load_models
    from tokalign.runtime.mlx.drafter_folder import require_target
    from tokalign.train.card import write_card
    from tokalign.train.from_model import write_texts
    from tokalign.train.run import fit as train

    try:
        note(in_words(plan.estimated(target)))
    except BundleError:  # a configuration that does not tell its sizes
        if plan.needs_sizes:
            raise
    click.get_current_context().with_resource(parents_of(output / "config.json"))
    [model] = load_models(
        [target], dtype=dtype, adapter=adapter, trust_remote_code=trust_remote_code, note=note
    )
    if (begun := values["begin_with"]) is not None:  # else refused after hours of labelling
        require_target(begun, model)
    beside = Path(os.path.abspath(output))  # . has no name
    workspace = workspace or beside.with_name(f"{beside.name}.training")
    written = list[Corpus]()
    with skipping_lines() as skip:
        if (writing := plan.writing) is not None:
            texts = workspace / "written.jsonl"
            labels = workspace / "held-out"
            given = Corpus(prompts or sources, field=field, report=skip)
            written = [write_texts(model, given, texts, writing, labels=labels, stage=progress)]
            sources.append(CorpusFile.of_path(texts))
        corpus = Corpus(sources, field=field, report=skip)
        labelled = plan.label(model, [corpus, *written], workspace)
        learner = plan.learner(
            model, labelled, partial(load_models, dtype=dtype, trust_remote_code=trust_remote_code)
        )
    name = model.name
    del model  # large, and a draft model is taught without it
    before = sum(learner.measure()) if plan.begins_trained else 0.0
    if plan.begins_trained:
        note(f"{before:.3f} accepted per round before training")
    report = partial(_report, before)
    trained = train(learner, output, workspace, stage=progress, report=report)
    role = "draft" if plan.kind == "model" else "drafter"
    if plan.kind != "model":
        write_card(output, plan.kind, name, trained.record)
    note(f"{role} -> {output}; the labels stay in {workspace} for other runs")
    accepted = trained.best
    result = {
        "target": target,
        "kind": plan.kind,
        role: str(output),
        "parameters": trained.parameters,
        "positions": learner.positions,
        "steps": trained.step,
        "stopped_early": trained.step < trained.steps,
        "accepted_per_round": round(accepted, 4),
    }
    verdict = f"{accepted:.2f} ids a round are accepted on text that was held out. Use it with:"
    use = join(["tokalign", "decode", "--target", target, f"--{role}", str(output)])
    if accepted < before:
        note(
            f"it accepts less than before training, {accepted:.3f} and {before:.3f}; give a lower "
            "--learning-rate, or more text"
        )
    show(result, lambda: f"{paragraph(verdict)}\n{use} ...\n\n{table(rows(result))}")


def _report(before: float, evaluation: Evaluation) -> None:
    """before: accepted per round before training."""
    shares = " ".join(f"{share:.3f}" for share in evaluation.by_depth)
    accepted = evaluation.accepted_per_round
    note(
        f"step {evaluation.step} of {evaluation.steps}: loss {evaluation.loss:.3f}, "
        f"{accepted:.3f} accepted per round (by depth {shares})"
        + ", the best so far"
        * (evaluation.is_best and accepted >= before)
    )
