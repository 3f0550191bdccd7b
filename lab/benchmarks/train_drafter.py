"""What the target's own labels are worth in training a recurrent drafter.

    python -m lab.benchmarks.train_drafter --target MODEL --corpus FILE --dev FILE \\
        --workspace FOLDER

A drafter is trained on each kind of labels, on as many positions of the same corpus. All are
measured on what the target would write at positions of other texts, greedily and at T = 0.7; the
interval of a difference is a bootstrap over blocks of neighbouring positions.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from tokalign.build.corpus import Corpus
from tokalign.cli.output import echo, note, progress
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import load_drafter
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, TargetEnds
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.future_ids import Labeller
from tokalign.train.labelled_corpus import draw_windows, label_corpus
from tokalign.train.labels import Labels, open_labels, write_labels
from tokalign.train.options import FitOptions, Kind, Labelling, LabelOptions
from tokalign.train.run import Evaluation
from tokalign.train.training import accepted_counts, fit_drafter

WINDOW = 256
BLOCK = 32
"""Neighbouring positions share most of their text, so they are drawn together."""
RESAMPLES = 10_000
KINDS: tuple[Kind, ...] = ("greedy", "generated", "text")
OWN: tuple[Kind, ...] = ("greedy", "sampled")

target_option = click.option("--target", type=click.Path(path_type=Path), required=True)
corpus_option = click.option(
    "--corpus", type=click.Path(path_type=Path), multiple=True, required=True
)


@click.command()
@target_option
@corpus_option
@click.option("--dev", type=click.Path(path_type=Path), multiple=True, required=True)
@click.option("--workspace", type=click.Path(path_type=Path), required=True)
@click.option("--positions", default=100_000)
@click.option("--dev-positions", default=4_096)
@click.option("--width", default=320)
@click.option("--blocks", default=4)
@click.option("--epochs", default=2.0)
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, default=KINDS)
@click.option("--seed", default=1)
def compare_labels(
    target: Path,
    corpus: tuple[Path, ...],
    dev: tuple[Path, ...],
    workspace: Path,
    positions: int,
    dev_positions: int,
    width: int,
    blocks: int,
    epochs: float,
    kinds: tuple[Kind, ...],
    seed: int,
) -> None:
    """The target's own labels against those of the text; drafters that are there are kept."""
    model: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
    ends = TargetEnds.of(model.model)
    config = DrafterConfig(
        hidden_size=ends.hidden_size,
        vocabulary_size=ends.vocabulary_size,
        width=width,
        exit_width=width,
        blocks=blocks,
    )
    fit = FitOptions(epochs=epochs, batch=128, candidates=2048, learning_rate=2e-3, evaluations=5)
    drafters = {}
    for kind in kinds:
        labelling = Labelling(kind=kind, seed=seed)
        options = LabelOptions(positions=positions, held_out=256, seed=seed, labelling=labelling)
        place = workspace / kind
        if not (place / "drafter").exists():
            labels = label_corpus(model, Corpus(corpus), place, options, stage=partial(progress))
            fit_drafter(model, config, labels, place / "drafter", place, fit, report=tell)
        drafters[kind] = load_drafter(place / "drafter", model)
    for own in OWN:
        measured = label_dev(model, Corpus(dev), own, dev_positions, workspace / f"dev-{own}")
        counts = {kind: accepted_counts(drafter, measured) for kind, drafter in drafters.items()}
        for kind, found in counts.items():
            by_depth = " | ".join(f"{(found >= depth).mean():.3f}" for depth in range(1, 5))
            low, high = difference(found, counts.get("text", found))
            interval = f"{low:+.3f} to {high:+.3f}"
            echo(f"| {own} | {kind} | {found.mean():.3f} | {by_depth} | {interval} |")


def label_dev(
    target: LanguageModel[TargetId], dev: Corpus, kind: Kind, positions: int, folder: Path
) -> Labels:
    """What the target would write at positions of texts that nobody trains on."""
    windows = draw_windows(dev, target.tokenizer, length=WINDOW, positions=positions, seed=0)
    labeller = Labeller(target.model, Labelling(kind=kind))
    for _ in write_labels(folder, {"positions": positions}, windows, labeller.label):
        pass
    return open_labels(folder)


def tell(evaluation: Evaluation) -> None:
    """One line for an evaluation."""
    shares = " ".join(f"{share:.3f}" for share in evaluation.by_depth)
    note(f"step {evaluation.step} of {evaluation.steps}: {evaluation.loss:.3f}, {shares}")


def difference(ours: NDArray[np.intp], theirs: NDArray[np.intp]) -> tuple[float, float]:
    """The 95 % interval of the mean difference: a bootstrap over blocks of positions."""
    blocks = (ours - theirs)[: len(ours) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(axis=1)
    draws = np.random.default_rng(0).choice(blocks, (RESAMPLES, len(blocks))).mean(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


if __name__ == "__main__":
    compare_labels()
