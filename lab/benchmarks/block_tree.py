"""A block drafter in one tree with the free sources: what each adds, at equal rows.

    python -m lab.benchmarks.block_tree train --target MODEL --output FOLDER TEXT ... [--minutes 10]
    python -m lab.benchmarks.block_tree rows --target MODEL --drafter FOLDER --prompts FILE \
        [--rows 4,8,16] [--limit 20] [--tokens 96] [--temp 0]

`train` makes a small DFlash drafter, so that there is one to measure with: it reads texts with the
target and learns the ids of blocks at random places by cross-entropy. `rows` gives tokens per pass
of the drafter's best chain, as its authors verify it; of DDTree, the best tree by the product of a
block's distributions (Ringel and Romano); of the free sources alone; and of all in one tree. The
target decodes its own output; every output is compared with plain decoding's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import click
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten
from rich.console import Console
from rich.progress import track

from tokalign.build.corpus import Corpus
from tokalign.cli.texts import read_texts
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.controller import Controller, Knowledge
from tokalign.runtime.draft.lookup import LogitStore, dictionary_sources, logit_sources
from tokalign.runtime.draft.mixing import Mixing, Source
from tokalign.runtime.draft.trained import BlockDrafter
from tokalign.runtime.draft.tree import FREE_ROWS, TreeDrafter
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits, TargetVerifier, decode
from tokalign.runtime.mlx.dflash import DFlashDrafter, load_dflash
from tokalign.runtime.mlx.dflash_config import DFlashConfig
from tokalign.runtime.mlx.dflash_session import DFlashSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import taps_of
from tokalign.runtime.mlx.weights import embedding_of, vocabulary_size
from tokalign.runtime.rounds import Array, Context, Drafter, Round
from tokalign.tables.opening import open_dictionary
from tokalign.tables.token_tree import EMPTY_TREE
from tokalign.tokenizer.vocabulary import TargetId

BLOCK, ANCHORS, LENGTH = 8, 24, 256
_PATH = click.Path(path_type=Path, exists=True)


@click.group()
def benchmark() -> None:
    """Train a small block drafter, or measure one."""


# -- training --------------------------------------------------------------------------------------


def block_logits(drafter: DFlashDrafter, taps: Array, ids: Array, anchors: Array) -> Array:
    """Logits f[anchors, BLOCK - 1, vocabulary] of the blocks that begin at these places of a text.

    taps: f[length, layers * width]. ids: i[length]. anchors: i[anchors], 1 or more.
    """
    context = drafter.context(taps)
    masks = mx.full((len(anchors), BLOCK - 1), drafter.config.mask_token_id, dtype=mx.uint32)
    block = drafter.embedded(mx.concatenate([ids[anchors][:, None], masks], axis=1))
    length = context.shape[1]
    before = mx.arange(length)[None] < anchors[:, None]  # [anchors, length]
    own = mx.ones((len(anchors), BLOCK), dtype=mx.bool_)
    mask = mx.concatenate([before, own], axis=1)[:, None, None]
    for layer in drafter.layers:
        attention, x = layer.self_attn, layer.input_layernorm(block)
        shared = attention._split(attention.k_norm, attention.k_proj(context), attention._shared)
        keys = drafter._rope(shared, offset=0)
        values = attention._split(None, attention.v_proj(context), attention._shared)
        queries = attention._split(attention.q_norm, attention.q_proj(x), attention._heads)
        of_block = attention._split(attention.k_norm, attention.k_proj(x), attention._shared)
        own_values = attention._split(None, attention.v_proj(x), attention._shared)
        count = len(anchors)
        keys = mx.concatenate(
            [mx.repeat(keys, count, axis=0), drafter._rope(of_block, offset=anchors)], axis=2
        )
        values = mx.concatenate([mx.repeat(values, count, axis=0), own_values], axis=2)
        output = mx.fast.scaled_dot_product_attention(
            drafter._rope(queries, offset=anchors), keys, values, scale=attention._scale, mask=mask
        )
        block = block + attention.o_proj(output.swapaxes(1, 2).reshape(count, BLOCK, -1))
        block = block + layer.mlp(layer.post_attention_layernorm(block))
    return drafter._ends.unembed(drafter.norm(block[:, 1:]))


def pieces(target: LanguageModel[TargetId], texts: Sequence[Path], seed: int) -> Iterator[Array]:
    """Runs of `LENGTH` ids of the texts, over and over, in random order."""
    lines = [*Corpus([*texts]).lines()]
    random, ids = Random(seed), list[TargetId]()
    while True:
        ids += target.tokenizer.encode(random.choice(lines) + "\n")
        if len(ids) >= LENGTH:
            yield mx.array(ids[:LENGTH], dtype=mx.uint32)
            del ids[:LENGTH]


@benchmark.command()
@click.argument("texts", nargs=-1, type=_PATH, required=True)
@click.option("--target", type=_PATH, required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--minutes", type=float, default=10, show_default=True)
@click.option("--layers", type=int, default=2, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def train(
    texts: tuple[Path, ...], target: Path, output: Path, minutes: float, layers: int, seed: int
) -> None:
    """Train a drafter and write it in the published layout."""
    ours: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
    config = _config(ours.model, layers)
    mx.random.seed(seed)
    drafter = DFlashDrafter(DFlashConfig.from_json(config, name=str(output)), ours.model)
    taps = taps_of(ours.model, drafter.config.target_layer_ids)
    random = np.random.default_rng(seed)
    weights = mx.array(0.8 ** np.arange(BLOCK - 1), dtype=mx.float32)

    def loss(net: DFlashDrafter, features: Array, ids: Array, anchors: Array) -> Array:
        logits = block_logits(net, features, ids, anchors)
        wanted = ids[anchors[:, None] + mx.arange(1, BLOCK)[None]]
        losses = nn.losses.cross_entropy(logits, wanted)
        return (losses * weights).sum() / (weights.sum() * losses.shape[0])

    optimizer = optim.AdamW(learning_rate=2e-3)
    step = nn.value_and_grad(drafter, loss)
    began, steps, recent = monotonic(), 0, list[float]()
    for ids in pieces(ours, texts, seed):
        share = (monotonic() - began) / (60 * minutes)
        if share >= 1:
            break
        optimizer.learning_rate = 2e-3 * min(1.0, steps / 50) * (1 - share)
        taps.model(ids[None])
        taps.note(0)
        taps.keep(ids.tolist(), EMPTY_TREE)
        _, features = taps.take([*ids.tolist(), TargetId(0)], 0)
        places = np.sort(random.integers(1, LENGTH - BLOCK, ANCHORS))
        value, gradients = step(drafter, features, ids, mx.array(places))
        optimizer.update(drafter, gradients)
        mx.eval(drafter.parameters(), optimizer.state)
        steps += 1
        recent = [*recent[-49:], float(value)]
        if steps % 200 == 0:
            click.echo(f"{steps} steps, loss {sum(recent) / len(recent):.3f}", err=True)
    output.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(output / "model.safetensors"), dict(tree_flatten(drafter.parameters())))
    (output / "config.json").write_text(json.dumps(config, indent=1))
    click.echo(f"{steps} steps in {minutes:g} minutes, loss {sum(recent) / len(recent):.3f}")


def _config(model: Any, layers: int) -> dict[str, Any]:
    width = int(embedding_of(model)(mx.array([0])).shape[-1])
    depth = len(model.layers)
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_attention_heads": max(1, width // 64),
        "num_key_value_heads": max(1, width // 64),
        "head_dim": 64,
        "vocab_size": vocabulary_size(model),
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "num_hidden_layers": layers,
        "num_target_layers": depth,
        "block_size": BLOCK,
        "dflash_config": {"target_layer_ids": [1, depth // 2, depth - 1], "mask_token_id": 3},
    }


# -- measuring -------------------------------------------------------------------------------------

Make = Callable[[TargetModelSession, Sampling], Drafter]


@benchmark.command()
@click.option("--target", type=_PATH, required=True)
@click.option("--drafter", type=_PATH, required=True)
@click.option("--prompts", type=_PATH, required=True)
@click.option("--rows", default="4,8,16", show_default=True)
@click.option("--limit", type=int, default=20, show_default=True)
@click.option("--tokens", type=int, default=96, show_default=True)
@click.option("--temp", type=float, default=0.0, show_default=True)
@click.option("--language", default="pl", show_default=True)
def rows(
    target: Path,
    drafter: Path,
    prompts: Path,
    rows: str,
    limit: int,
    tokens: int,
    temp: float,
    language: str,
) -> None:
    """Tokens per pass, by rows; a proposal has one id less than its pass has rows."""
    ours: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
    network = load_dflash(drafter, ours.model)
    dictionary = open_dictionary(ours.tokenizer, languages=[language], model_folder=target)
    texts = [text[:160] for text in read_texts(prompts, field="text", limit=limit)]
    ids = [ours.tokenizer.encode(text) for text in texts]
    counts = [int(row) for row in rows.split(",")]
    click.echo(f"| | {' | '.join(f'{count} rows' for count in counts)} |")
    click.echo(f"|---|{'---|' * len(counts)}")
    plain = dict[int, list[int]]()
    for name in ("chain", "DDTree", "free", "all"):
        cells = []
        for count in counts:
            mixing, store = Mixing(), LogitStore()
            emitted = passes = 0
            for number, prompt in track([*enumerate(ids)], console=Console(stderr=True)):
                sampler = Sampling(temperature=temp, seed=number)
                session = TargetModelSession(
                    ours.model, watch=None if name == "free" else network.watch
                )
                made = _drafter(
                    name, count - 1, session, network, sampler, dictionary, store, mixing
                )
                found, used = _decoded(session, made, sampler, prompt, tokens, store)
                if number not in plain:
                    own = TargetModelSession(ours.model)
                    plain[number] = _decoded(own, NoDrafter(), sampler, prompt, tokens, None)[0]
                assert found == plain[number], "an output differs"
                emitted, passes = emitted + len(found), passes + used
            cells.append(f"{emitted / passes:.3f}")
        click.echo(f"| {name} | {' | '.join(cells)} |")


def _drafter(
    name: str,
    most: int,
    session: TargetModelSession,
    network: DFlashDrafter,
    sampler: Sampling,
    dictionary: Any,
    store: LogitStore,
    mixing: Mixing,
) -> Drafter:
    drawn = sampler if sampler.temperature > 0 else None
    length = most if name == "chain" else None
    block = BlockDrafter(DFlashSession(network, session), length, sampler=drawn)
    if name == "chain":
        return block
    sources: list[Source] = []
    if name != "DDTree":
        sources += [ContextCopy(), *logit_sources(store)]
        sources += [] if dictionary is None else dictionary_sources(dictionary)
    noise = sampler.noise_ahead(session.vocabulary_size) if drawn is not None else None
    free = TreeDrafter(sources, rows=most, mixing=mixing, noise=noise)
    if name == "free":
        return free
    return Controller(Knowledge.given(FREE_ROWS), free, block, steps=block.steps, timed=False)


def _decoded(
    session: TargetModelSession,
    drafter: Drafter,
    sampler: Sampling,
    prompt: Sequence[TargetId],
    tokens: int,
    store: LogitStore | None,
) -> tuple[list[int], int]:
    """The ids that are emitted, and in how many passes."""
    context = Context(prompt)
    verifier = TargetVerifier(session, sampler, store)
    limits = Limits(max_tokens=tokens, target=session)
    events = [*decode(context, drafter, verifier, limits=limits)]
    return [*context.emitted], sum(isinstance(event, Round) for event in events)


if __name__ == "__main__":
    benchmark()
