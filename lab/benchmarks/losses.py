"""Losses and labels of block drafters, compared in one table at equal time.

    python -m lab.benchmarks.losses --target MODEL --work FOLDER FILE [...] [--seconds 100]

Every row is a DFlash drafter that begins in the same way and is trained for the same seconds of
this process, on labels of one target, which took about equal time, too: text labels have five times
the positions of greedy and sampled ones. Measured are leading guesses that are right at places that
were held out: where the target goes on greedily, where it goes on at T = 0.7, and in text that it
wrote at T = 0.7. Labels, text and results are kept in FOLDER, so a killed run goes on. The target
has to take trees.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from tokalign.build.corpus import Corpus
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.storage import write_file
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.blocks import BlockLearner
from tokalign.train.drafters import WindowBatches
from tokalign.train.from_model import write_texts
from tokalign.train.labelled_corpus import LabelledCorpus, Labeller, label_corpus
from tokalign.train.labels import Labels
from tokalign.train.options import BlockShape, FitOptions, Labelling, LabelOptions, Loss, Writing
from tokalign.train.run import Training

_WINDOW, _BLOCK, _TEMPERATURE = 64, 6, 0.7
_PATH = click.Path(path_type=Path)


class Row(NamedTuple):
    """What is trained. labels: whose; "both" takes greedy ones and the target's own text in turn,
    as the product does with `--from-model`."""

    labels: str
    losses: tuple[Loss, ...] = ("marginal",)
    decay: float = 0.8
    causal: bool = False

    def __str__(self) -> str:
        causal = " | yes" if self.causal else " | no"
        return f"{self.labels} | {' + '.join(self.losses)} | {self.decay}{causal}"


_JOINT: tuple[Loss, ...] = ("marginal", "kl")
ROWS = (
    *(Row("greedy", decay=decay) for decay in (0.6, 0.8, 1.0)),
    Row("greedy", causal=True),
    Row("greedy", ("kl",)),
    Row("greedy", ("kl",), causal=True),  # JetSpec
    Row("greedy", _JOINT),
    Row("greedy", ("acceptance",)),
    Row("sampled"),
    Row("sampled", ("kl",)),
    Row("sampled", ("acceptance",)),
    Row("own text"),
    Row("own text", ("kl",)),
    Row("own text", ("acceptance",)),
    Row("text"),
    Row("both"),
)


class Data(NamedTuple):
    """All labels. places: those held out, by what follows them, and how each was labelled."""

    training: Mapping[str, LabelledCorpus]
    places: Mapping[str, tuple[Labels, Labelling]]


def labelled(
    target: LanguageModel[TargetId], corpus: Corpus, work: Path, positions: int, held_out: int
) -> Data:
    """Label everything, or find it."""
    shape = BlockShape(layers=2, block=_BLOCK)
    taps = shape.read_of(len(target.model.layers))
    how = Labelling(future=_BLOCK, taps=taps, probable=8, temperature=_TEMPERATURE)
    given = LabelOptions(positions=positions, held_out=held_out, window=_WINDOW, labelling=how)
    of_text = replace(how, kind="text")
    many = replace(given, positions=5 * positions, labelling=of_text)
    written = Writing(tokens=5 * positions + held_out, temperature=_TEMPERATURE)
    own = write_texts(target, corpus, work / "own.jsonl", written)
    drawn = {
        "greedy": (corpus, given),
        "sampled": (corpus, replace(given, labelling=replace(how, kind="sampled"))),
        "text": (corpus, many),
        "own text": (own, many),
    }
    training = {
        name: label_corpus(target, source, work / name.replace(" ", "-"), options)
        for name, (source, options) in drawn.items()
    }
    training["both"] = replace(training["greedy"], own=training["own text"])
    sampled = replace(how, kind="sampled", seed=1)
    held = {"greedy": training["greedy"], "own text": training["own text"]}
    windows: dict[str, Any] = {
        name: one.held_out.ids[:, 0].reshape(-1, _WINDOW).tolist() for name, one in held.items()
    }
    places = {
        "greedy": (held["greedy"].held_out, replace(how, kind="greedy")),
        "T = 0.7": (_labels(target, windows["greedy"], sampled), sampled),
        "own text": (_labels(target, windows["own text"], of_text), of_text),
    }
    return Data(training, places)


def _labels(
    target: LanguageModel[TargetId], windows: Sequence[list[TargetId]], how: Labelling
) -> Labels:
    labeller = Labeller(target.model, how)
    found = [labeller.label(window, number) for number, window in enumerate(windows)]
    return Labels(
        np.concatenate([labels.values for labels in found]),
        np.concatenate([labels.ids for labels in found]),
    )


def trained(
    target: LanguageModel[TargetId], data: Data, row: Row, seconds: float, batch: int
) -> dict[str, float]:
    """Accepted guesses at each kind of place after so many seconds, and how many steps it took."""
    options = FitOptions(
        batch=batch, candidates=2048, losses=row.losses, decay=row.decay, patience=None
    )
    shape = BlockShape(layers=2, block=_BLOCK, causal=row.causal)

    def begun() -> BlockLearner:
        return BlockLearner(target, shape, data.training[row.labels], options)

    probe, few = Training(begun(), 100), 6
    probe.advance()
    begin = time.process_time()
    for _ in range(few):
        probe.advance()
    steps = max(1, round(seconds * few / (time.process_time() - begin)))
    learner = begun()
    training = Training(learner, steps)
    while not training.is_over:
        training.advance()
    found: dict[str, float] = {"steps": steps}
    measured = partial(WindowBatches, window=_WINDOW, vocabulary_size=vocabulary_size(target.model))
    for name, (labels, how) in data.places.items():
        whole = replace(options, batch=1, candidates=None)
        learner._held_out = measured(labels, how, whole)
        found[name] = sum(learner.measure())
    return found


@click.command()
@click.option("--target", type=_PATH, required=True)
@click.option("--work", type=_PATH, required=True)
@click.option("--seconds", default=100.0, show_default=True, help="Of this process, for each row.")
@click.option("--positions", default=12_000, show_default=True, help="With greedy labels.")
@click.option("--held-out", default=6_400, show_default=True, help="Positions; a draft for four.")
@click.option("--batch", default=32, show_default=True)
@click.argument("files", nargs=-1, required=True, type=_PATH)
def main(
    *,
    target: Path,
    work: Path,
    seconds: float,
    positions: int,
    held_out: int,
    batch: int,
    files: tuple[Path, ...],
) -> None:
    """Print the table."""
    model: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
    data = labelled(model, Corpus([*files]), work, positions, held_out)
    path = work / f"measured-{seconds:g}s-{batch}.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    places = ["steps", *data.places]
    click.echo(f"| labels | loss | decay | causal | {' | '.join(places)} |")
    click.echo("|---" * (4 + len(places)) + "|")
    for row in ROWS:
        if str(row) not in found:
            found[str(row)] = trained(model, data, row, seconds, batch)
            write_file(path, json.dumps(found, indent=1))
        values = found[str(row)]
        cells = [str(values["steps"]), *(f"{values[place]:.3f}" for place in data.places)]
        click.echo(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
