"""What a round of the decode loop calls: modules entered, calls between modules, and all calls.

    python -m lab.benchmarks.round_calls [--target MODEL] [--draft MODEL] [--method hybrid]
        [--translation exact] [--num-draft-tokens 3] [--temp 0] [--most]

A tracer counts the functions of tokalign that are called from one piece of text to the next, in
rounds that verify a tree with branches; text and statistics are included, the models' own layers
are not. There is no dictionary, so that what is on a machine changes nothing. A *crossing* is a
call from one module into another, or the return to it from a library that called back. Medians over
the rounds are printed. Equal arguments give equal counts: nothing is timed. With --most, the
functions that are called most often follow.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from types import FrameType

import click

import tokalign
from tokalign.build.alignment import align
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.tables.opening import open_alignment
from tokalign.tokenizer.vocabulary import DraftId, TargetId

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(Path(tokalign.__file__).parent)
_PATH = click.Path(path_type=Path, exists=True)


@dataclass
class RoundCalls:
    """Counts of one round: calls by function (file, name), and crossings by (caller, called)."""

    functions: Counter[tuple[str, str]] = field(default_factory=Counter)
    crossings: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def modules(self) -> set[str]:
        return {module for module, _ in self.functions}

    @contextmanager
    def counting(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        called = frame.f_code.co_filename
        if event != "call" or not called.startswith(PACKAGE):
            return
        self.functions[called, frame.f_code.co_qualname] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != called:
            self.crossings[caller.f_code.co_filename, called] += 1


def calls_of_rounds(generation: Generation) -> list[RoundCalls]:
    """Count every round that verifies a tree with branches, but the first, which reads the
    prompt."""
    rounds, counted = generation.by_round(), list[RoundCalls]()
    while True:
        calls = RoundCalls()
        with calls.counting():
            pieces = next(rounds, None)
        if pieces is None:
            return counted[1:]
        tree = generation.rounds[-1].tree
        if tree.chain_length < len(tree):
            counted.append(calls)


@click.command()
@click.option("--target", type=_PATH, default=ROOT / "demo" / "target")
@click.option("--draft", type=_PATH, default=ROOT / "demo" / "draft")
@click.option("--method", default="hybrid", show_default=True)
@click.option("--translation", default="exact", show_default=True)
@click.option("--num-draft-tokens", type=click.IntRange(1), default=3, show_default=True)
@click.option("--temp", type=float, default=0.0, show_default=True)
@click.option("--max-tokens", type=int, default=96, show_default=True)
@click.option("--most", is_flag=True)
def benchmark(
    target: Path,
    draft: Path,
    method: str,
    translation: str,
    num_draft_tokens: int,
    temp: float,
    max_tokens: int,
    most: bool,
) -> None:
    """Print one line, and the functions that are called most often."""
    ours: LanguageModel[TargetId] = LanguageModel.from_folder(target)
    theirs: LanguageModel[DraftId] = LanguageModel.from_folder(draft)
    ours = replace(ours, stop_ids=frozenset())
    drafting = Drafting(
        options=DraftingOptions(
            method=method, translation=translation, num_draft_tokens=num_draft_tokens
        ),
        alignment=cache(lambda: open_alignment(ours.tokenizer, theirs.tokenizer, otherwise=align)),
    )
    sampler = Sampling(temperature=temp, seed=7)
    decoder = Decoder(target=ours, draft=theirs, drafting=drafting)
    prompt = decoder.prompt("Wisła jest", use_template=False)
    generation = Generation(decoder, Request(prompt, max_tokens=max_tokens, sampler=sampler))
    rounds = calls_of_rounds(generation)
    if not rounds:
        raise click.ClickException("no round had a tree; give more --max-tokens")
    modules = median(len(calls.modules) for calls in rounds)
    crossings = median(calls.crossings.total() for calls in rounds)
    functions = median(calls.functions.total() for calls in rounds)
    trees = [one.tree for one in generation.rounds if one.tree.chain_length < len(one.tree)]
    ids = median(map(len, trees))
    click.echo(
        f"{len(rounds)} rounds with trees of {ids:g} ids: {modules:g} modules, "
        f"{crossings:g} crossings, {functions:g} calls"
    )
    if most:
        pairs, called = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for calls in rounds:
            pairs += calls.crossings
            called += calls.functions
        for (caller, module), count in pairs.most_common(25):
            click.echo(f"{count / len(rounds):7.1f}  {_short(caller)} -> {_short(module)}")
        click.echo("")
        for (module, name), count in called.most_common(40):
            click.echo(f"{count / len(rounds):7.1f}  {_short(module)} {name}")


def _short(file: str) -> str:
    return str(Path(file).relative_to(PACKAGE))


if __name__ == "__main__":
    benchmark()
