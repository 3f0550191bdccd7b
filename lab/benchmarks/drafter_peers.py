"""A trained block drafter in three programs: the same ids, the same accepted lengths, as a chain.

    python -m lab.benchmarks.drafter_peers --target MODEL --drafter FOLDER --prompts FILE

Beside tokalign it runs `dflash` 0.1.0 and `mlx-dspark` 0.20.3 (`pip install --no-deps` both and
mlx-vlm, then pillow and requests), which read the folder as it is, with the target in float32,
greedily. A length is what a pass of the target emits after its first id.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import click
import mlx.core as mx
from mlx_lm import load

from tokalign.cli.texts import read_texts
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.trained import BlockDrafter
from tokalign.runtime.loop import Limits, TargetVerifier, decode
from tokalign.runtime.mlx.dflash import load_dflash
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.rounds import Context, Round

Run = Callable[[list[Any], int], tuple[list[int], list[int]]]
"""Prompt and number of ids -> the ids, and how many each pass emitted."""


def ours(target: Path, folder: Path) -> Run:
    """Our chain."""
    model: LanguageModel[Any] = LanguageModel.from_folder(target, dtype="float32")
    network = load_dflash(folder, model.model)

    def run(prompt: list[Any], count: int) -> tuple[list[int], list[int]]:
        session = TargetModelSession(model.model, watch=network.watch)
        context, sampler = Context(prompt), Sampling(temperature=0.0)
        drafter = BlockDrafter(network.session(session), None)
        limits = Limits(max_tokens=count, target=session)
        events = [*decode(context, drafter, TargetVerifier(session, sampler), limits=limits)]
        rounds = [len(event.emitted) for event in events if isinstance(event, Round)]
        return [*context.emitted], rounds[1:]

    return run


def of_dflash(target: Path, folder: Path) -> Run:
    """The authors' program for MLX, which takes local folders in place of repositories."""
    model_mlx: Any = import_module("dflash.model_mlx")
    model_mlx.snapshot_download = lambda name, **_: name
    model, tokenizer, *_ = load(str(target))
    model.set_dtype(mx.float32)
    draft = model_mlx.load_draft(str(folder))

    def run(prompt: list[Any], count: int) -> tuple[list[int], list[int]]:
        parts = [
            response.tokens
            for response in model_mlx.stream_generate(
                model, draft, tokenizer, mx.array(prompt), max_tokens=count
            )
        ]
        return [*chain.from_iterable(parts)], [len(part) for part in parts[1:] if part]

    return run


def of_dspark(target: Path, folder: Path) -> Run:
    """mlx-dspark, whole blocks verified."""
    generate: Any = import_module("mlx_dspark.generate")
    loading: Any = import_module("mlx_dspark.load")
    model, tokenizer = loading.load_target(str(target), require_tap=True)
    model.model.set_dtype(mx.float32)
    drafter, _ = loading.load_dflash(str(folder), quantize=False)

    def run(prompt: list[Any], count: int) -> tuple[list[int], list[int]]:
        result = generate.dflash_generate(
            model, tokenizer, drafter, prompt_ids=prompt, max_new_tokens=count
        )
        return result.token_ids, result.accept_lengths

    return run


@click.command()
@click.option("--target", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--drafter", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--limit", default=4, show_default=True)
@click.option("--tokens", default=48, show_default=True)
def main(target: Path, drafter: Path, prompts: Path, limit: int, tokens: int) -> None:
    """Print tokens per pass of each, and stop where one differs."""
    model: LanguageModel[Any] = LanguageModel.from_folder(target, dtype="float32")
    texts = [text[:160] for text in read_texts(prompts, limit=limit)]
    given = [model.tokenizer.encode(text) for text in texts]
    expected = [ours(target, drafter)(prompt, tokens) for prompt in given]
    emitted = sum(sum(lengths) for _, lengths in expected)
    passes = sum(len(lengths) for _, lengths in expected)
    click.echo(f"tokalign: {emitted / passes:.3f} tokens per pass over {len(given)} prompts")
    for name, make in (("dflash", of_dflash), ("mlx-dspark", of_dspark)):
        run = make(target, drafter)
        for prompt, (ids, lengths) in zip(given, expected, strict=True):
            theirs, of_passes = run(prompt, tokens)
            # How many ids a program still drafts just before the end is its own business.
            assert theirs[:tokens] == ids[: len(theirs)], f"{name} emits other ids"
            assert of_passes[:-1] == lengths[: len(of_passes) - 1], f"{name} accepts other lengths"
        click.echo(f"{name}: the same ids and accepted lengths")


if __name__ == "__main__":
    main()
