"""What a draft model should learn: several labels and losses, at equal positions and steps.

    python -m lab.benchmarks.teach_draft --target MODEL --draft MODEL --corpus FILE \\
        --workspace FOLDER [--only NAME] [--positions N]

Each variant is written to FOLDER/NAME, unless it is there. What it is worth on other texts says
`lab.benchmarks.alignment --draft-model FOLDER/NAME --only exact`. Labels of one kind are made once.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from tokalign.api.assemble import load_models
from tokalign.build.corpus import Corpus
from tokalign.cli.output import echo, note, progress
from tokalign.runtime.translation.base import Pair
from tokalign.train.labelled_corpus import label_corpus
from tokalign.train.labellers import NextIds
from tokalign.train.options import FitOptions, Kind, Labelling, LabelOptions, Loss
from tokalign.train.run import Evaluation, fit
from tokalign.train.teaching import DraftLearner

VARIANTS: dict[str, tuple[Kind, tuple[Loss, ...]]] = {
    "text": ("greedy", ("text",)),
    "marginal": ("greedy", ("marginal",)),
    "acceptance": ("greedy", ("acceptance",)),
    "kl": ("greedy", ("kl",)),
    "mixture": ("greedy", ("marginal", "acceptance")),
}
"""The labels that a variant learns from, and its losses; "text" needs no labels."""


@click.command()
@click.option("--target", required=True)
@click.option("--draft", required=True)
@click.option(
    "--corpus", type=click.Path(path_type=Path, exists=True), multiple=True, required=True
)
@click.option("--workspace", type=click.Path(path_type=Path), required=True)
@click.option("--only", type=click.Choice(list(VARIANTS)), multiple=True, default=list(VARIANTS))
@click.option("--positions", default=81_920)
@click.option("--held-out", default=1_024)
@click.option("--batch", default=1_024)
@click.option("--learning-rate", default=1e-3)
@click.option("--lora", type=int)
def main(
    target: str,
    draft: str,
    corpus: tuple[Path, ...],
    workspace: Path,
    only: tuple[str, ...],
    positions: int,
    held_out: int,
    batch: int,
    learning_rate: float,
    lora: int | None,
) -> None:
    """Teach a draft model in each way."""
    for name in only:
        if (workspace / name / "model.safetensors").is_file():
            continue
        kind, losses = VARIANTS[name]
        teacher, taught = load_models([target, draft])
        options = LabelOptions(
            positions=positions, held_out=held_out, labelling=Labelling(kind=kind)
        )
        place, stage = workspace / f"labels-{kind}", progress
        labels = label_corpus(
            teacher, Corpus(corpus), place, options, labeller=NextIds, stage=stage
        )
        how = FitOptions(
            epochs=1,
            batch=batch,
            learning_rate=learning_rate,
            evaluations=2,
            patience=None,
            losses=losses,
            lora=lora,
        )
        pair = Pair(teacher.tokenizer, taught.tokenizer)
        learner = DraftLearner(taught, pair, labels, how, options.window)
        trained = fit(learner, workspace / name, place, stage=stage, report=partial(tell, name))
        echo(f"{name}: {trained.best:.3f} of the first guesses are right")


def tell(name: str, one: Evaluation) -> None:
    """Tell of an evaluation."""
    share = one.accepted_per_round
    note(f"{name}, step {one.step}: loss {one.loss:.3f}, {share:.3f} right")


if __name__ == "__main__":
    main()
