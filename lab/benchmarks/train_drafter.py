"""Training a recurrent drafter: what it takes, what the target's own labels are worth, resuming.

    python -m lab.benchmarks.train_drafter estimate
    python -m lab.benchmarks.train_drafter labels --target MODEL --corpus FILE --dev FILE \\
        --workspace FOLDER
    python -m lab.benchmarks.train_drafter killed --target demo/target --corpus corpora/pl-mini.txt

`estimate` is arithmetic for Bielik 11B v3 in 4 and 8 bits. `labels` trains a drafter on each kind
of labels, on as many positions of the same corpus. All are measured on what the target would write
at positions of other texts, greedily and at T = 0.7; the interval of a difference is a bootstrap
over blocks of neighbouring positions. `killed` ends a process at three points, lets the same
command finish, and compares the bytes with those of a run that was not killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from tokalign.build.corpus import Corpus
from tokalign.cli.output import echo, note, progress, table
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import load_drafter
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, TargetEnds
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.estimate import TargetShape, Work, estimate
from tokalign.train.future_ids import Labeller
from tokalign.train.labelled_corpus import label_corpus
from tokalign.train.labels import Labels, open_labels, write_labels
from tokalign.train.options import FitOptions, Kind, Labelling, LabelOptions
from tokalign.train.training import Evaluation, accepted_counts, fit_drafter
from tokalign.train.windows import draw_windows

BIELIK: Mapping[str, Any] = {
    "hidden_size": 4096,
    "vocab_size": 32_128,
    "num_hidden_layers": 50,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
}
"""Bielik 11B v3, from its published configuration."""
PARAMETERS = 11.17e9
SHARE_OF_MEMORY = 2 / 3
WINDOW = 256
BLOCK = 32
"""Neighbouring positions share most of their text, so they are drawn together."""
RESAMPLES = 10_000
KINDS: tuple[Kind, ...] = ("greedy", "generated", "text")
OWN: tuple[Kind, ...] = ("greedy", "sampled")
KILL_AFTER = ("step 4 ", "step 12 ", "step 20 ")

target_option = click.option("--target", type=click.Path(path_type=Path), required=True)
corpus_option = click.option(
    "--corpus", type=click.Path(path_type=Path), multiple=True, required=True
)


@click.group()
def main() -> None:
    """Measure what training a drafter takes and brings."""


@main.command("estimate")
@click.option("--positions", default=1_000_000)
@click.option("--rows-per-second", default=300.0, help="prompt tokens per second")
def print_estimate(positions: int, rows_per_second: float) -> None:
    """Memory, disk and time for Bielik 11B, by bits, labels and drafter."""
    kinds = KINDS[:2]
    for bits, kind, config in product((4, 8), kinds, drafters()):
        found = estimate(bielik(bits), work_of(config, kind, positions))
        labelling, training = found.seconds(rows_per_second)
        usable = {size: size * 2**30 * SHARE_OF_MEMORY for size in (16, 32, 64)}
        fits = [f"{size} GB" for size, limit in usable.items() if found.memory <= limit]
        echo(
            f"| {bits} | {kind} | {config.head}, {config.width} | "
            f"{found.labelling_memory / 1e9:.1f} | {found.training_memory / 1e9:.1f} | "
            f"{', '.join(fits)} | {found.disk / 1e9:.1f} | {labelling / 3600:.1f} | "
            f"{training / 60:.0f} |"
        )


def drafters() -> list[DrafterConfig]:
    """Two shapes for Bielik 11B: as `tokalign train` makes it, and a factored one half as wide."""
    shape = bielik(4)
    make = partial(
        DrafterConfig, hidden_size=shape.hidden_size, vocabulary_size=shape.vocabulary_size
    )
    return [
        make(width=2048, exit_width=2048),
        make(width=1024, exit_width=1024, head="factored", rank=512),
    ]


def bielik(bits: int) -> TargetShape:
    """Bielik 11B, quantized in groups of 64."""
    config = {**BIELIK, "quantization": {"bits": bits, "group_size": 64}}
    return TargetShape.from_config(config, weight_bytes=PARAMETERS * (bits + 0.5) / 8)


def work_of(config: DrafterConfig, kind: Kind, positions: int) -> Work:
    """What `tokalign train` does by default."""
    labels, fit = LabelOptions(), FitOptions()
    return Work(
        positions=positions,
        window=labels.window,
        labelling=replace(labels.labelling, kind=kind),
        epochs=fit.epochs,
        batch=fit.batch,
        candidates=fit.candidates,
        drafter_parameters=config.parameters,
        exit_width=config.exit_width,
        blocks=config.blocks,
    )


@main.command("labels")
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


@main.command("killed")
@target_option
@corpus_option
def kill_and_resume(target: Path, corpus: Sequence[Path]) -> None:
    """End a training process three times; compare its drafter with that of an uninterrupted run."""
    with TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("whole", "killed")]
        finish(target, corpus, outputs[0])
        for line in KILL_AFTER:
            finish(target, corpus, outputs[1], kill_after=line)
        finish(target, corpus, outputs[1])
        digests = [
            json.loads((out / "config.json").read_text("utf-8"))["sha256"] for out in outputs
        ]
    echo(table([("uninterrupted", digests[0]), ("killed three times", digests[1])]))
    if digests[0] != digests[1]:
        raise SystemExit(1)


def finish(
    target: Path, corpus: Sequence[Path], output: Path, kill_after: str | None = None
) -> None:
    """Run `tokalign train`; kill it when it prints a line that begins like this."""
    options = "--positions 1500 --held-out 256 --window 64 --batch 64 --candidates 1000 --width 64"
    files = map(str, corpus)
    given = ["--target", str(target), *files, "--output", str(output), *options.split()]
    program = [sys.executable, "-m", "tokalign", "train", *given, "--evaluations", "12"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            click.echo(line, err=True, nl=False)
            if kill_after is not None and line.startswith(kill_after):
                process.kill()
    if kill_after is None and process.returncode:
        raise SystemExit(process.returncode)


if __name__ == "__main__":
    main()
