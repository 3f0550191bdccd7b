"""How often a sampled draft is accepted: rejection sampling beside the coupling by noise.

    python -m lab.benchmarks.acceptance TARGET DRAFT TEXT [--positions 930]

TARGET and DRAFT are models with one vocabulary, which read TEXT. At each position the target's next
ids have probabilities p and the draft's q, and how often a drafted id is accepted follows exactly:

* rejection (Leviathan et al., arXiv 2211.17192): sum min(p, q). No way to draft accepts more. What
  is emitted then depends on the draft: a seed alone does not say it again.
* noise (what tokalign does): target and draft add the same Gumbel noise and take the best id, so
  what is emitted is what the seed makes of p alone. Both take the id i with probability
  1 / sum_j max(p_j / p_i, q_j / q_i) (Daliri et al., arXiv 2408.07978).

Can a text that depends on the seed and p alone be accepted as often as rejection accepts? No: then
the emitted id is a function of (seed, p) and the draft of (seed, q). For every such pair of
functions there are p and q whose ids agree in no more than (1 - d) / (1 + d) of the cases, where d
is their total variation distance (Bavarian et al., On the Optimality of Correlated Sampling
Strategies, arXiv 1612.01041); rejection accepts 1 - d. The noise never accepts less than that bound
(Daliri et al.), which is printed beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.cli.output import print_json
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.mlx.weights import load_weights
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_LEAST = 1e-12
"""A probability below it is none: it changes no sum here by a millionth."""


@click.command()
@click.argument("target", type=click.Path(path_type=Path, exists=True))
@click.argument("draft", type=click.Path(path_type=Path, exists=True))
@click.argument("text", type=click.Path(path_type=Path, exists=True))
@click.option("--positions", default=930, show_default=True)
@click.option("--temp", "temperatures", multiple=True, type=float, default=(0.7, 1.0))
def main(
    target: Path, draft: Path, text: Path, positions: int, temperatures: tuple[float, ...]
) -> None:
    """Print a JSON object for each temperature."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(str(target)).tokenizer
    ids = tokenizer.encode(text.read_text("utf-8"))[:positions]
    ours, theirs = (logits_of(folder, ids) for folder in (target, draft))
    width = min(ours.shape[1], theirs.shape[1])  # one of them may be padded
    for temperature in temperatures:
        found = np.array(
            [
                acceptance(softmax(p[:width], temperature), softmax(q[:width], temperature))
                for p, q in zip(ours, theirs, strict=True)
            ]
        )
        names = "rejection", "noise", "bound"
        means = {name: round(float(x), 3) for name, x in zip(names, found.mean(0), strict=True)}
        print_json({"temp": temperature, "positions": len(ids), **means})


def acceptance(p: NDArray[Any], q: NDArray[Any]) -> tuple[float, float, float]:
    """By rejection, by noise, and the bound for any coupling without communication.

    p, q: f[vocabulary], probabilities.
    """
    shared = np.minimum(p, q)
    kept = np.flatnonzero(shared > _LEAST)
    # Sorted by q / p, the first terms of sum_j max(p_j / p_i, q_j / q_i) are p's, the others q's.
    order = np.argsort(np.divide(q, p, out=np.full_like(q, np.inf), where=p > 0), kind="stable")
    below = np.concatenate([[0.0], np.cumsum(p[order])])
    above = np.concatenate([np.cumsum(q[order][::-1])[::-1], [0.0]])
    place = np.empty(len(p), dtype=np.int64)
    place[order] = np.arange(len(p))
    at = place[kept]
    noise = float((1 / (below[at] / p[kept] + above[at] / q[kept])).sum())
    overlap = float(shared.sum())
    distance = 1 - overlap
    return overlap, noise, (1 - distance) / (1 + distance)


def softmax(logits: NDArray[Any], temperature: float) -> NDArray[Any]:
    """Probabilities of logits at a temperature, in double precision."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max())
    return np.asarray(powers / powers.sum())


def logits_of(folder: Path, ids: list[Any]) -> NDArray[Any]:
    """f[positions, vocabulary] after each id, of one pass."""
    model, _ = load_weights(folder, dtype="float32")
    return np.array(model(mx.array([ids]))[0])


if __name__ == "__main__":
    main()
