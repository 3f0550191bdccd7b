"""A draft model taught by a mixture of texts, with the embeddings of the tokens that occur.

    python -m lab.benchmarks.teach_mixture --draft MODEL --output FOLDER --seconds N
        --text 0.25=FILE [--text 0.35=FILE ...] [--rows-rate 0.3]

An experiment beside `tokalign train --draft --labels text --loss text`, with two differences. Rows
of the embeddings learn too, at `--rows-rate` of the rate: those of tokens that a batch has, with
moments of their own, so that the row of a token rests while the token does not occur. And the
softmax goes over the 8,192 most frequent tokens, those of the batch, and 3,072 drawn from the
others with a weight: a step takes half the time. The rate falls along a cosine of the clock.
"""

from __future__ import annotations

import math
from pathlib import Path
from shutil import copytree, ignore_patterns
from time import monotonic
from typing import Any

import click
import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from tokalign.api.assemble import load_models
from tokalign.cli.texts import read_texts
from tokalign.runtime.mlx.weights import vocabulary_size

WINDOW, TEXTS, FREQUENT, DRAWN, RATE = 256, 4, 8_192, 3_072, 5e-4
Ids = NDArray[np.int32]


class Mixture:
    """Windows of several kinds of text, drawn by shares."""

    def __init__(self, tokenizer: Any, texts: tuple[str, ...], size: int) -> None:
        self._rng, self._kinds = np.random.default_rng(0), list[list[Ids]]()
        shares, counts = [], np.zeros(size)
        for share, _, path in (one.partition("=") for one in texts):
            encoded = tokenizer.encode_batch(read_texts(Path(path), field="text", limit=None))
            cut = [np.array(x[i : i + WINDOW]) for x in encoded for i in range(0, len(x), WINDOW)]
            order = np.random.default_rng(1).permutation(len(cut))
            self._kinds.append([cut[i] for i in order if len(cut[i]) >= WINDOW // 4])
            shares.append(float(share))
            found = np.bincount(np.concatenate(self._kinds[-1]), minlength=size)
            counts += shares[-1] * found / found.sum()
        self._shares = np.array(shares) / sum(shares)
        order = np.argsort(-counts)
        self._frequent, self._others = order[:FREQUENT], order[FREQUENT:]
        self._at = [0] * len(shares)

    def draw(self) -> tuple[list[Ids], Ids, Ids, NDArray[np.float32]]:
        """Texts, their ids, the candidates of the softmax, and their logarithmic weights."""
        texts = []
        for kind in self._rng.choice(len(self._kinds), TEXTS, p=self._shares):
            texts.append(self._kinds[kind][self._at[kind] % len(self._kinds[kind])])
            self._at[kind] += 1
        own = np.unique(np.concatenate(texts))
        known = np.union1d(self._frequent, own)
        left = np.setdiff1d(self._others, own)
        weights = np.repeat([0, math.log(len(left) / DRAWN)], [len(known), DRAWN])
        drawn = self._rng.choice(left, DRAWN, replace=False)
        return texts, own, np.concatenate([known, drawn]), weights.astype(np.float32)


@click.command()
@click.option("--draft", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--text", "texts", multiple=True, required=True, help="SHARE=FILE")
@click.option("--seconds", default=2_160.0)
@click.option("--rows-rate", default=0.3)
def main(
    draft: Path, output: Path, texts: tuple[str, ...], seconds: float, rows_rate: float
) -> None:
    """Teach it."""
    [loaded] = load_models([str(draft)], dtype="float32")
    model, size = loaded.model, vocabulary_size(loaded.model)
    mixture = Mixture(loaded.tokenizer, texts, size)
    model.model.embed_tokens.freeze()
    weights, embeddings = model.trainable_parameters(), np.array(model.model.embed_tokens.weight)
    optimizer = optim.AdamW(RATE, betas=[0.9, 0.98], weight_decay=0.01)
    optimizer.init(weights)
    moments, seen = np.zeros((2, *embeddings.shape), np.float32), np.zeros((size, 1))

    def loss_of(weights: Any, rows: Any, columns: Ids, batch: list[Ids], more: Any) -> Any:
        model.update(weights)
        found = []
        for ids in batch:
            at = mx.array(columns[ids])
            hidden = model.model(None, input_embeddings=rows[at][None])[0, :-1]
            logits = hidden @ rows.T + more
            right = mx.take_along_axis(logits, at[1:, None], axis=-1)[:, 0]
            found.append(mx.logsumexp(logits, axis=-1) - right)
        return mx.concatenate(found).mean()

    gradients = mx.value_and_grad(loss_of, argnums=(0, 1))
    began, step = monotonic(), 0
    while (share := (monotonic() - began) / seconds) < 1:
        batch, own, candidates, more = mixture.draw()
        columns = np.full(size, -1, np.int32)
        columns[candidates] = np.arange(len(candidates))
        rows = mx.array(embeddings[candidates])
        _, (grads, of_rows) = gradients(weights, rows, columns, batch, mx.array(more))
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        step += 1
        fall = 0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2
        rate = RATE * min(fall, step / 30)
        optimizer.learning_rate = rate
        weights = optimizer.apply_gradients(grads, weights)
        mx.eval(weights, optimizer.state)
        found = np.array(of_rows)[columns[own]]
        seen[own] += 1
        moments[0, own] += 0.1 * (found - moments[0, own])
        moments[1, own] += 0.02 * (found**2 - moments[1, own])
        mean = moments[0, own] / (1 - 0.9 ** seen[own])
        square = moments[1, own] / (1 - 0.98 ** seen[own])
        embeddings[own] -= rows_rate * rate * mean / (np.sqrt(square) + 1e-8)
    model.update(weights)
    model.model.embed_tokens.weight = mx.array(embeddings)
    ignored = ignore_patterns("*.safetensors*", "training.json")
    copytree(draft, output, ignore=ignored, dirs_exist_ok=True)
    before: Any = mx.load(str(draft / "model.safetensors"))
    dtype = before["model.embed_tokens.weight"].dtype
    named = {name: one.astype(dtype) for name, one in tree_flatten(model.parameters())}
    mx.save_safetensors(str(output / "model.safetensors"), named, {"format": "mlx"})


if __name__ == "__main__":
    main()
