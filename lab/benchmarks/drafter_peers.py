"""A trained drafter in other programs: the same ids, the same accepted lengths, as a chain.

    python -m lab.benchmarks.drafter_peers --target MODEL --drafter FOLDER --prompts FILE

Beside tokalign it runs `dflash` 0.1.0 and `mlx-dspark` 0.20.3 for a DFlash, and `mlx-vlm` 0.7.10
for an EAGLE-3 (`pip install --no-deps` them, then pillow and requests), which read the folder as it
is, with the target in float32, greedily. `mlx-vlm` has no models of text alone, so its rounds get
one of mlx-lm, which gives them the layers' outputs. A length is what a pass of the target emits
after its first id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

from lab.baselines.whole_beams import WholeBeams
from tokalign.cli.texts import read_texts
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.trained import BlockDrafter
from tokalign.runtime.loop import Decoding, Limits, TargetVerifier
from tokalign.runtime.mlx.beam_search import BeamShape
from tokalign.runtime.mlx.cached_drafter import CachedSession
from tokalign.runtime.mlx.dflash import DFlashDrafter
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import LayerOutputs
from tokalign.runtime.rounds import Context, Drafter, Round
from tokalign.tables.drafter_formats import BLOCK_FORMATS, drafter_format
from tokalign.tables.finding import read_drafter_json

_DEPTH = 4
"""Ids that a chain of EAGLE-3 drafts."""

Run = Callable[[list[Any], int], tuple[list[int], list[int]]]
"""Prompt and number of ids -> the ids, and how many each pass emitted."""


def ours(target: Path, folder: Path) -> Run:
    """Our chain of a DFlash."""
    model: LanguageModel[Any] = LanguageModel.from_folder(target, dtype="float32")
    network = read_drafter(folder, model.model)
    assert isinstance(network, DFlashDrafter)

    def run(prompt: list[Any], count: int) -> tuple[list[int], list[int]]:
        session = TargetModelSession(model.model, watch=network.watch)
        return _decoded(prompt, count, session, BlockDrafter(network.session(session), None))

    return run


def _decoded(
    prompt: list[Any], count: int, session: TargetModelSession, drafter: Drafter
) -> tuple[list[int], list[int]]:
    context, sampler = Context(prompt), Sampling(temperature=0.0)
    limits = Limits(max_tokens=count, target=session)
    events = [*Decoding(context, drafter, TargetVerifier(session, sampler), limits=limits)]
    rounds = [len(event.emitted) for event in events if isinstance(event, Round)]
    return [*context.emitted], rounds[1:]


def ours_of_eagle(target: Path, folder: Path) -> Run:
    """Our chain of an EAGLE-3."""
    model: LanguageModel[Any] = LanguageModel.from_folder(target, dtype="float32")
    network = read_drafter(folder, model.model)

    def run(prompt: list[Any], count: int) -> tuple[list[int], list[int]]:
        session = TargetModelSession(model.model, watch=network.watch)
        chain_ = CachedSession(network, session)
        drafter = WholeBeams(chain_, BeamShape(1, _DEPTH))
        return _decoded(prompt, count, session, drafter)

    return run


class _Tapped:
    """A model of mlx-lm as `mlx-vlm` calls its own: it gives outputs of layers, and drops rows."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self._outputs = LayerOutputs(model, layers)
        self.embed_tokens = model.model.embed_tokens
        self._layers = len(layers)

    def __call__(self, ids: Any, cache: Any, **_: Any) -> Any:
        logits = self._outputs.model(ids, cache=cache)
        states = mx.split(self._outputs.take_all(), self._layers, axis=-1)
        return SimpleNamespace(logits=logits, hidden_states=states, gdn_states=None)

    def rollback_speculative_cache(self, cache: Any, _: Any, accepted: Any, rows: int) -> None:
        trim_prompt_cache(cache, rows - 1 - int(accepted))


def of_mlx_vlm(target: Path, folder: Path) -> Run:
    """`mlx-vlm`: its network and its rounds."""
    rounds: Any = import_module("mlx_vlm.speculative.eagle3")
    load_model: Any = import_module("mlx_vlm.utils").load_model
    draft = load_model(folder)
    draft.set_dtype(mx.float32)
    model, *_ = load(str(target))
    model.set_dtype(mx.float32)
    tapped = _Tapped(model, rounds._eagle3_capture_layer_ids(draft))

    def argmax(logits: Any) -> Any:
        return mx.argmax(logits, axis=-1)

    def run(prompt: list[Any], count: int) -> tuple[list[int], list[int]]:
        cache, ids = make_prompt_cache(model), mx.array([prompt])
        read = tapped(ids, cache)
        first = int(argmax(read.logits[:, -1]).item())
        given = {"prompt_tokens": ids, "first_bonus": first, "max_tokens": count}
        how = {"sampler": argmax, "draft_block_size": _DEPTH + 1, "greedy_sampling": True}
        hidden = mx.concatenate(read.hidden_states, axis=-1)
        after = rounds._eagle3_rounds(tapped, draft, cache, hidden, **given, **how)
        emitted = [first, *(token for token, _ in after)]
        return emitted, [accepted + 1 for accepted in draft.accept_lens]

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
    of_blocks = drafter_format(read_drafter_json(drafter)) in BLOCK_FORMATS
    own = (ours if of_blocks else ours_of_eagle)(target, drafter)
    peers = {"dflash": of_dflash, "mlx-dspark": of_dspark} if of_blocks else {"mlx-vlm": of_mlx_vlm}
    expected = [own(prompt, tokens) for prompt in given]
    emitted = sum(sum(lengths) for _, lengths in expected)
    passes = sum(len(lengths) for _, lengths in expected)
    click.echo(f"tokalign: {emitted / passes:.3f} tokens per pass over {len(given)} prompts")
    for name, make in peers.items():
        run = make(target, drafter)
        for prompt, (ids, lengths) in zip(given, expected, strict=True):
            theirs, of_passes = run(prompt, tokens)
            # How many ids a program still drafts just before the end is its own business.
            assert theirs[:tokens] == ids[: len(theirs)], f"{name} emits other ids"
            assert of_passes[:-1] == lengths[: len(of_passes) - 1], f"{name} accepts other lengths"
        click.echo(f"{name}: the same ids and accepted lengths")


if __name__ == "__main__":
    main()
