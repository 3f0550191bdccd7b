"""The options of `tokalign train-drafter`, and what labelling and training take of them.

given: in all functions, what click has parsed, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.option_types import PATH, FiniteRange, Size
from tokalign.cli.texts import field_option
from tokalign.errors import UsageError
from tokalign.train.options import MOST_SEED

if TYPE_CHECKING:
    from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig
    from tokalign.train.options import FitOptions, LabelOptions

_WIDEST = 2_048

CORPUS = (
    click.option(
        "--corpus",
        "corpus_files",
        metavar="FILE",
        multiple=True,
        type=PATH,
        help="Text of the kind that the target will write: .txt or .jsonl (also .gz, .zst, .xz) or "
        ".parquet; repeatable.",
    ),
    field_option,
    click.option(
        "--labels",
        "kind",
        type=click.Choice(["greedy", "sampled", "generated", "text"]),
        default="greedy",
        help="What follows a position of the corpus: the target's own ids, greedy or sampled, or "
        "the text's. generated: positions of texts that the target writes itself, sampled, after "
        "openings of the corpus.",
    ),
    click.option(
        "--label-temp",
        type=FiniteRange(0, min_open=True),
        default=0.7,
        help="The temperature of sampled and generated labels.",
    ),
    click.option(
        "--positions",
        type=click.IntRange(min=1),
        default=1_000_000,
        help="About how many positions to train on.",
    ),
    click.option(
        "--held-out",
        type=click.IntRange(min=1),
        default=8_192,
        help="Positions to measure acceptance on.",
    ),
    click.option(
        "--future",
        type=click.IntRange(min=2),
        default=5,
        help="Ids that follow each position; the drafter learns to guess all but the first.",
    ),
    click.option(
        "--window", type=click.IntRange(min=16), default=256, help="Ids of text read at once."
    ),
)

SHAPE = (
    click.option(
        "--width",
        type=click.IntRange(min=1),
        help="The width of the drafter's layers. Default: the target's hidden size, at most "
        f"{_WIDEST}.",
    ),
    click.option(
        "--blocks", type=click.IntRange(min=0), default=2, help="Residual blocks in the drafter."
    ),
    click.option(
        "--head",
        type=click.Choice(["tied", "factored"]),
        default="tied",
        help="The output head. tied: that of the target. factored: one of its own, of low rank.",
    ),
    click.option(
        "--rank", type=click.IntRange(min=1), default=512, help="The rank of a factored head."
    ),
)

FIT = (
    click.option(
        "--epochs",
        type=FiniteRange(0, min_open=True),
        default=2.0,
        help="How often each position is seen.",
    ),
    click.option("--batch", type=click.IntRange(min=1), default=256, help="Positions of a batch."),
    click.option(
        "--accumulate",
        type=click.IntRange(min=1),
        default=1,
        help="Batches whose gradients are averaged for one step.",
    ),
    click.option(
        "--candidates",
        type=click.IntRange(min=0),
        default=4_096,
        help="Ids that the softmax of a batch goes over; 0 is the whole vocabulary.",
    ),
    click.option(
        "--learning-rate",
        type=FiniteRange(0, min_open=True),
        default=1e-3,
        help="The largest learning rate; it falls along a cosine.",
    ),
    click.option(
        "--train-dtype",
        type=click.Choice(["float32", "bfloat16"]),
        default="float32",
        help="The number format of the drafter's passes; its weights are trained in float32.",
    ),
    click.option(
        "--evaluations",
        type=click.IntRange(min=1),
        default=20,
        help="How often acceptance is measured and the state saved.",
    ),
    click.option(
        "--patience",
        type=click.IntRange(min=0),
        default=4,
        help="Stop after so many evaluations without a better one; 0 is never.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, MOST_SEED),
        default=0,
        help="Seed of everything that is drawn.",
    ),
)

DRY_RUN = (
    click.option(
        "--dry-run", is_flag=True, help="Only say how much memory, disk and work it would take."
    ),
    click.option(
        "--memory", type=Size(), help="--dry-run: memory of the machine that will train, as 32G."
    ),
    click.option(
        "--rows-per-second",
        type=FiniteRange(0, min_open=True),
        help="--dry-run: prompt tokens per second that the target reads there; mlx_lm.generate "
        "prints them.",
    ),
)


def label_options(given: dict[str, Any]) -> LabelOptions:
    """Raises: UsageError for a window that has not as many ids as follow a position."""
    from tokalign.train.options import Labelling, LabelOptions

    if given["window"] <= given["future"]:
        raise UsageError(
            f"a window of {given['window']} ids has no position that {given['future']} ids follow; "
            f"give --window {given['future'] + 1} or more"
        )
    labelling = Labelling(
        kind=given["kind"],
        future=given["future"],
        temperature=given["label_temp"],
        seed=given["seed"],
    )
    return LabelOptions(
        positions=given["positions"],
        held_out=given["held_out"],
        window=given["window"],
        seed=given["seed"],
        labelling=labelling,
    )


def fit_options(given: dict[str, Any]) -> FitOptions:
    """Raises: UsageError for candidates that may be too few for one batch."""
    from tokalign.train.options import FitOptions

    most = given["batch"] * (given["future"] - 1)
    if 0 < given["candidates"] <= most:
        raise UsageError(
            f"--candidates {given['candidates']} may be too few for the {most} ids that a batch "
            f"asks for; give more than {most}, or 0 for the whole vocabulary"
        )
    return FitOptions(
        epochs=given["epochs"],
        batch=given["batch"],
        accumulate=given["accumulate"],
        candidates=given["candidates"] or None,
        learning_rate=given["learning_rate"],
        dtype=given["train_dtype"],
        evaluations=given["evaluations"],
        patience=given["patience"] or None,
        seed=given["seed"],
    )


def drafter_config(given: dict[str, Any], hidden_size: int, vocabulary_size: int) -> DrafterConfig:
    """The shape of the drafter for a target of this hidden size and vocabulary."""
    from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig

    width = given["width"] or min(hidden_size, _WIDEST)
    return DrafterConfig(
        hidden_size=hidden_size,
        vocabulary_size=vocabulary_size,
        width=width,
        exit_width=width,
        blocks=given["blocks"],
        head=given["head"],
        rank=given["rank"] if given["head"] == "factored" else None,
    )
