"""Train the demo pair: two small vocabularies, then two tiny Llama models that read the same text.

    python demo/train.py vocabulary draft --corpus corpora/pl-mini.txt --out demo/draft
    python demo/train.py model draft --corpus corpora/pl-mini.txt --out demo/draft

The first command makes the tokenizer of a model folder, the second the model; `target` likewise.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import numpy.typing as npt
from documents import Source, draw, mix, pack, read_lines
from mlx_lm.models.llama import Model, ModelArgs
from model_folder import Shape, make_config, read_weights, write_model
from tokenizers import Tokenizer
from vocabularies import train_pieces, write_tokenizer

from tokalign.tokenizer.self_check import read_tokenizer

ROW = 256
HELD_OUT_ROWS = 48
TEXT_SEED = 7
REPORT_STEPS = 50
CHECKPOINT_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All in which the two models differ apart from the text that is given to them."""

    n_pieces: int
    longest_piece: int
    seed: int
    shape: Shape
    learning_rate: float


# Shorter pieces for the draft, and another mix of text for its vocabulary (see the README): pieces
# that are merely fewer of the same would leave little to align.
RECIPES = {
    "target": Recipe(
        n_pieces=4000,
        longest_piece=16,
        seed=1,
        shape=Shape(layers=4, width=192, hidden=512, heads=3),
        learning_rate=4e-3,
    ),
    "draft": Recipe(
        n_pieces=3000,
        longest_piece=10,
        seed=2,
        shape=Shape(layers=2, width=128, hidden=352, heads=2),
        learning_rate=5e-3,
    ),
}


def mean_loss(model: Model, rows: mx.array) -> mx.array:
    """Return the mean cross-entropy in nats per token; rows is i32[batch, length + 1]."""
    loss: mx.array = nn.losses.cross_entropy(model(rows[:, :-1]), rows[:, 1:], reduction="mean")
    return loss


def learning_rate(peak: float, progress: float) -> float:
    """Return the rate after a share of the time: a rise over 3 %, then a cosine to 2 % of the peak.

    It follows the clock and not a count of steps, so that a run on a busy machine still ends well.
    """
    fall = 0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2
    return peak * min(fall, (progress + 0.001) / 0.03)


def make_step(model: Model, optimizer: optim.Optimizer) -> Callable[[mx.array], mx.array]:
    """Return the compiled training step: rows in, loss out, model and optimizer updated."""
    state = [model.state, optimizer.state]
    gradients = nn.value_and_grad(model, mean_loss)

    @partial(mx.compile, inputs=state, outputs=state)
    def step(rows: mx.array) -> mx.array:
        loss: mx.array
        loss, grads = gradients(model, rows)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        optimizer.update(model, grads)
        return loss

    return step


def iterate_batches(rows: npt.NDArray[np.int32], batch: int, seed: int) -> Iterator[mx.array]:
    """Yield batches i32[batch, length + 1] for ever; each row once before any comes again."""
    rng = np.random.default_rng(seed)
    while True:
        for part in rng.permutation(len(rows))[: len(rows) // batch * batch].reshape(-1, batch):
            yield mx.array(rows[part])


def fit(
    model: Model,
    batches: Iterator[mx.array],
    peak: float,
    minutes: float,
    save: Callable[[], None],
) -> dict[str, int | float]:
    """Train until the time is up; report to stderr and save now and then.

    Return how it went; `last_loss` is the mean of the last steps, in nats per token.
    """
    optimizer = optim.AdamW(peak, betas=[0.9, 0.98], weight_decay=0.05)
    step, started, tokens, losses = make_step(model, optimizer), time.monotonic(), 0, list[float]()
    while (seconds := time.monotonic() - started) < 60 * minutes:
        optimizer.learning_rate = learning_rate(peak, seconds / (60 * minutes))
        batch = next(batches)
        loss = step(batch)
        mx.eval(model.state, optimizer.state, loss)
        losses.append(float(np.asarray(loss)))
        tokens += batch[:, 1:].size
        if len(losses) % REPORT_STEPS == 0:
            mean = np.mean(losses[-REPORT_STEPS:])
            speed = tokens / (time.monotonic() - started)
            click.echo(f"step {len(losses)}: loss {mean:.3f}, {speed:.0f} tokens/s", err=True)
        if len(losses) % CHECKPOINT_STEPS == 0:
            save()
    save()
    return {
        "tokens_trained": tokens,
        "seconds": round(time.monotonic() - started),
        "last_loss": round(float(np.mean(losses[-REPORT_STEPS:])), 3),
    }


def evaluate(model: Model, rows: npt.NDArray[np.int32]) -> float:
    """Return the mean loss in nats per token over rows i32[n, length + 1]."""
    parts = [mx.array(part) for part in np.array_split(rows, 8) if len(part)]
    return float(np.mean([mean_loss(model, part).item() for part in parts]))


which = click.argument("name", type=click.Choice(sorted(RECIPES)))
corpus_option = click.option(
    "--corpus", multiple=True, required=True, help="FILE or FILE:REPEATS, .txt or .txt.zst"
)
out_option = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="model folder"
)


megabytes_option = click.option(
    "--megabytes", default=2.5, show_default=True, help="at most so much of each corpus"
)


@click.group()
def main() -> None:
    """Train the tiny target and draft models of the demo."""


@main.command()
@which
@corpus_option
@out_option
@megabytes_option
def vocabulary(name: str, corpus: tuple[str, ...], out: Path, megabytes: float) -> None:
    """Train a vocabulary and check its two file formats against each other."""
    recipe = RECIPES[name]
    texts = [read_lines(Source.parse(spec).path) for spec in corpus]
    lines = [line for text in texts for line in draw(text, megabytes, recipe.seed)]
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(train_pieces(lines, recipe.n_pieces, recipe.longest_piece), out)
    # Each file is checked against its own library as it is read.
    if (
        len({read_tokenizer(out / f"tokenizer.{kind}").fingerprint for kind in ("model", "json")})
        > 1
    ):
        raise SystemExit(f"{out}: the two files are not one tokenizer")
    click.echo(f"{out}: {recipe.n_pieces} pieces")


@main.command()
@which
@corpus_option
@out_option
@click.option("--questions", multiple=True, help='FILE or FILE:REPEATS of "question? answer" lines')
@click.option("--vocabulary", type=click.Path(path_type=Path), help="tokenizer folder [--out]")
@megabytes_option
@click.option("--resume", is_flag=True, help="start from the weights in --out")
@click.option("--minutes", default=25.0, show_default=True, help="how long to train")
@click.option("--batch", default=8, show_default=True, help=f"rows of {ROW} tokens per step")
def model(
    name: str,
    corpus: tuple[str, ...],
    out: Path,
    questions: tuple[str, ...],
    vocabulary: Path | None,
    megabytes: float,
    resume: bool,
    minutes: float,
    batch: int,
) -> None:
    """Train a model: with --resume from its last weights, else from scratch."""
    recipe = RECIPES[name]
    tokenizer_from = vocabulary or out
    tokenizer = Tokenizer.from_file(str(tokenizer_from / "tokenizer.json"))
    sources = [Source.parse(spec) for spec in corpus]
    documents = mix(sources, [Source.parse(spec) for spec in questions], megabytes, TEXT_SEED)
    rows = pack(documents, tokenizer, ROW)
    mx.random.seed(recipe.seed)
    config = make_config(recipe.shape, tokenizer.get_vocab_size())
    llama = Model(ModelArgs.from_dict(config))
    if resume:
        read_weights(llama, out)
    batches = iterate_batches(rows[HELD_OUT_ROWS:], batch, recipe.seed)
    run = fit(
        llama,
        batches,
        recipe.learning_rate,
        minutes,
        save=lambda: write_model(llama, config, tokenizer_from, out),
    )
    held_out_loss = round(evaluate(llama, rows[:HELD_OUT_ROWS]), 3)
    click.echo(json.dumps({"model": name, **run, "held_out_loss": held_out_loss}))


if __name__ == "__main__":
    main()
