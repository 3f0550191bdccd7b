"""A trained drafter in one tree with the free sources: what each adds, at equal rows.

    python -m lab.benchmarks.block_tree rows --target MODEL --drafter FOLDER --prompts FILE \
        [--rows 4,8,16] [--limit 20] [--tokens 96] [--temp 0]

`tokalign train` makes drafters, of any kind. `rows` gives tokens per pass of the drafter's best
chain, as its authors verify it; of the best tree of its distributions, which is DDTree (Ringel and
Romano) for a block drafter; of the free sources alone; and of all in one tree. The target decodes
its own output; every output is compared with plain decoding's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from tokalign.cli.texts import read_texts
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.controller import Controller, Knowledge
from tokalign.runtime.draft.lookup import LogitStore, dictionary_sources, logit_sources
from tokalign.runtime.draft.mixing import Mixing, Source
from tokalign.runtime.draft.trained import BeamDrafter, BlockDrafter
from tokalign.runtime.draft.tree import FREE_ROWS, TreeDrafter
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits, TargetVerifier, decode
from tokalign.runtime.mlx.beam_search import BeamShape
from tokalign.runtime.mlx.dflash_session import DFlashSession
from tokalign.runtime.mlx.drafter_folder import named_drafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.rounds import Context, Drafter, Round
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.vocabulary import TargetId

_LONGEST = 4
"""Ids of a draft by beams, as they were trained."""

_PATH = click.Path(path_type=Path, exists=True)


@click.group()
def benchmark() -> None:
    """Measure a trained drafter."""


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
    network = named_drafter(drafter, ours)
    dictionary = open_dictionary(ours.tokenizer, languages=[language], model_folder=target)
    texts = [text[:160] for text in read_texts(prompts, field="text", limit=limit)]
    ids = [ours.tokenizer.encode(text) for text in texts]
    counts = [int(row) for row in rows.split(",")]
    click.echo(f"| | {' | '.join(f'{count} rows' for count in counts)} |")
    click.echo(f"|---|{'---|' * len(counts)}")
    plain = dict[int, list[int]]()
    for name in ("chain", "its tree", "free", "all"):
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
    network: TrainedDrafter,
    sampler: Sampling,
    dictionary: Any,
    store: LogitStore,
    mixing: Mixing,
) -> Drafter:
    drawn = sampler if sampler.temperature > 0 else None
    own, chain = network.session(session), name == "chain"
    block: BlockDrafter | BeamDrafter
    if isinstance(own, DFlashSession):
        block = BlockDrafter(own, most if chain else None, sampler=drawn)
    else:
        shape = BeamShape(1 if chain else 4, min(most, _LONGEST))
        block = BeamDrafter(own, sampler=drawn, shape=shape, branches=not chain, whole=chain)
    if chain:
        return block
    sources: list[Source] = []
    if name != "its tree":
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
