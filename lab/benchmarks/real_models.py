"""What tokalign gives where a real model answers: one command, from two folders to one table.

    python -m lab.benchmarks.real_models TARGET DRAFT --results FILE.jsonl [--temp 0.7] [--limit N]
        [--held-out] [--only REGEX] [--kind KIND] [--dictionary FILE] [--seconds N] [--table]
        [--also DRAFT]

The prompts of `lab/prompts/real/` (12 general, 12 code, 8 editing, 9 Polish) or forty that nothing
was fitted to (`--held-out`), 128 tokens of each answer, in float32. All conditions of a prompt are
run beside plain decoding, in turns of some rounds, so that what slows the machine slows all alike.
Every output is compared with the plain one, id by id.

Every generation is a line of FILE, so a killed run goes on where it was, with new estimates of the
costs; stores that are kept from prompt to prompt are read from files beside it. Every beginning of
the prompts has all kinds. Where no cost curve of this machine is stored, one is measured first for
half a minute, as `tokalign calibrate` does. On Linux, preload a BLAS (`demo/README.md` says how).

Columns: tokens per pass of the target and speed by the clock relative to plain decoding, both with
95 % intervals (bootstrap over prompts); rows of the target and passes of the draft model per pass
of the target; host time of a round outside the passes. All are of the rounds after the first, which
reads the prompt. The draft model reads it in a later round, and that counts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import click
import mlx.core as mx
import numpy as np

from lab.benchmarks.paired_lines import PLAIN, show
from lab.benchmarks.real_prompts import EVERY_KIND, KINDS, Asked, prompts
from lab.fingerprint import model_fingerprint
from tokalign.api.assemble import assemble, keep_loaded, load_models
from tokalign.cli.output import progress
from tokalign.evaluate.calibrate import measure_curve
from tokalign.runtime.cost import find_curve, store_curve
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.opening_knowledge import opening_knowledge
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.machine import machine_of
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.tables.logit_rows import LogitRows

_WARM_UP_TOKENS = 8

_TURN = 4
"""Rounds of a condition's turn; twice as many where nothing is drafted."""


class Condition(NamedTuple):
    """A way to decode. keeps: from prompt to prompt, the target's top-k logits. other: the draft
    model in place of the first one, by the name in the runner."""

    name: str
    options: DraftingOptions
    drafts: bool = False
    keeps: bool = False
    other: str = ""


def conditions(dictionaries: Sequence[Path]) -> list[Condition]:
    """All conditions but plain decoding, which is there anyway."""
    found = []
    for k in (2, 4, None):
        exact = DraftingOptions(method="draft", translation="exact", num_draft_tokens=k)
        length = "auto" if k is None else f"K = {k}"
        for name, options in (
            ("context:5", replace(exact, translation="context:5")),
            ("intersection", replace(exact, translation="intersection")),
            ("exact, chain", replace(exact, alternatives=0)),
            ("exact, tree", exact),
        ):
            found.append(Condition(f"{name}, {length}", options, drafts=True))
    free = DraftingOptions(method="hybrid")
    languages = [path.name.partition(".")[0] for path in dictionaries]
    for name, drafts in (("free sources", False), ("hybrid with the draft", True)):
        found.append(Condition(name, free, drafts))
        found.append(Condition(f"{name}, store kept", free, drafts, keeps=True))
        for language, path in zip(languages, dictionaries, strict=True):
            found.append(Condition(f"{name}, {language}", replace(free, dictionary=path), drafts))
        if dictionaries:
            every, all_of_them = replace(free, dictionary=dictionaries), " and ".join(languages)
            found.append(Condition(f"{name}, {all_of_them}", every, drafts))
            kept = f"{name}, store kept, {all_of_them}"
            found.append(Condition(kept, every, drafts, keeps=True))
    return found


class Running:
    """An answer under way that others of the same prompt take turns with."""

    def __init__(self, generation: Generation) -> None:
        self.generation, self._rounds = generation, generation.by_round()
        self._waited = 0.0

    def take_turn(self) -> bool:
        """Go on for some rounds. Returns: whether it goes on after them.

        A turn ends after a draft, if there is one: a pass that runs ahead would be timed as none.
        """
        for taken, _ in enumerate(self._rounds, start=1):
            ends = self.generation.rounds and self.generation.rounds[-1].tree
            if (taken >= _TURN and ends) or taken >= 2 * _TURN:
                began = perf_counter()
                mx.synchronize()
                self._waited += perf_counter() - began
                return True
        return False

    def figures(self) -> dict[str, Any]:
        """What is kept of the rounds after the first, which reads the prompt."""
        rounds = self.generation.rounds[1:]
        host = [round(1e3 * max(0.0, one.seconds - one.verification), 3) for one in rounds]
        return {
            "load": round(os.getloadavg()[0], 2),
            "seconds": round(sum(one.seconds for one in rounds) + self._waited, 4),
            "ids": list(self.generation.context.emitted),
            "tokens": [len(one.emitted) for one in rounds],
            "rows": [one.rows for one in rounds],
            "draft_passes": [one.draft_passes for one in rounds],
            "host_ms": host,
        }


@dataclass
class Runner:
    """Runs conditions with loaded models. results: the file; stores that are kept lie beside it.
    others: more draft models."""

    target: LanguageModel[Any]
    draft: LanguageModel[Any]
    temp: float
    tokens: int
    results: Path
    others: Mapping[str, LanguageModel[Any]] = field(default_factory=dict)
    _decoders: dict[str, Decoder] = field(default_factory=dict)

    def run(self, asked: Asked, *conditions: Condition) -> list[dict[str, Any]]:
        """Decode an answer under all conditions, which take turns. Returns: a line for each."""
        for condition in conditions:
            if condition.name not in self._decoders:
                self._decoders[condition.name] = self.decoder(condition)
                for _ in self._begin(condition.name, "Hello", _WARM_UP_TOKENS).generation:
                    pass  # kernels are compiled now
        running = [self._begin(one.name, asked.text, self.tokens) for one in conditions]
        going = running
        while going:
            going = [one for one in going if one.take_turn()]
        lines = []
        for condition, one in zip(conditions, running, strict=True):
            self.keep_store(condition.name, self._decoders[condition.name])
            about = {"kind": asked.kind, "number": asked.number, "temp": self.temp}
            lines.append({**about, "condition": condition.name, **one.figures()})
        return lines

    def _begin(self, name: str, text: str, tokens: int) -> Running:
        decoder = self._decoders[name]
        sampler = Sampling(temperature=self.temp)
        request = Request(decoder.prompt(text), max_tokens=tokens, sampler=sampler)
        return Running(Generation(decoder, request))

    def decoder(self, condition: Condition) -> Decoder:
        """A decoder with its own estimates of costs, and without tables that merely lie about."""
        draft = self.others.get(condition.other, self.draft)
        decoder = assemble(self.target, draft if condition.drafts else None, condition.options)
        drafting = decoder.drafting
        if drafting.knowledge is not None:
            models, heads = decoder.drafting_models, decoder.heads
            own = opening_knowledge(self.target.model, *models, heads=heads)
            drafting = replace(drafting, knowledge=own)
        if condition.options.dictionary is None:
            drafting = replace(drafting, dictionary=None, packs=None)
        if condition.keeps:
            drafting = replace(drafting, logits=self._kept(condition.name))
        return replace(decoder, drafting=drafting)

    def keep_store(self, name: str, decoder: Decoder) -> None:
        """Write the store of a condition that keeps one."""
        if (store := decoder.drafting.logits) is not None:
            kept = store.rows
            np.savez(self._path_of(name), keys=kept.keys, ids=kept.ids, codes=kept.codes)

    def _kept(self, name: str) -> LogitStore:
        path = self._path_of(name)
        if not path.exists():
            return LogitStore()
        rows = np.load(path)
        return LogitStore(LogitRows(rows["keys"], rows["ids"], rows["codes"]))

    def _path_of(self, name: str) -> Path:
        name = re.sub("[^a-z0-9]+", "-", name)
        return self.results.with_suffix(f".{name}.{self.temp}.npz")


def run_left(
    runner: Runner,
    asked: Sequence[Asked],
    chosen: Sequence[Condition],
    done: set[tuple[str, int, str]],
    seconds: float,
) -> list[dict[str, Any]]:
    """Run what is not done and write its lines to the runner's file. Returns: them.

    Plain decoding is run with the conditions that are left of a prompt.
    seconds: no prompt is begun that would end later, if it takes as long as the longest before it.
    """
    plain = Condition(PLAIN, DraftingOptions(method=PLAIN))
    began, longest, lines = perf_counter(), 0.0, []
    with progress(len(asked), "decoding") as advance, runner.results.open("a") as file:
        for one in asked:
            left = [c for c in chosen if (one.kind, one.number, c.name) not in done]
            now = perf_counter()
            if now + longest > began + seconds:
                break
            for line in runner.run(one, plain, *left) if left else ():
                lines.append(line)
                print(json.dumps(line), file=file, flush=True)
            longest = max(longest, perf_counter() - now)
            advance(1)
    return lines


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the models, the file of results, and what to run of the conditions."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.argument("target", type=click.Path(path_type=Path, exists=True)),
    click.argument("draft", type=click.Path(path_type=Path, exists=True)),
    click.option("--results", type=click.Path(path_type=Path), required=True),
    click.option("--temp", default=0.0, show_default=True),
    click.option("--tokens", default=128, show_default=True),
    click.option("--limit", type=int, help="Only the first so many prompts."),
    click.option("--only", metavar="REGEX", default="", help="Only conditions whose names match."),
    click.option("--kind", "kinds", multiple=True, type=click.Choice(EVERY_KIND), default=KINDS),
    click.option("--dictionary", "dictionaries", multiple=True, type=click.Path(path_type=Path)),
    click.option("--held-out", is_flag=True, help="Prompts that nothing was fitted to."),
    click.option("--table", "shown", is_flag=True, help="Run nothing; show what is in the file."),
)


@click.command()
@model_options
@click.option("--seconds", default=inf, help="Stop before; the next call goes on.")
@click.option(
    "--also",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="One more draft model for hybrids, beside the same plain answers.",
)
def main(
    target: Path,
    draft: Path,
    results: Path,
    temp: float,
    tokens: int,
    limit: int | None,
    only: str,
    kinds: Sequence[str],
    dictionaries: Sequence[Path],
    held_out: bool,
    shown: bool,
    seconds: float,
    also: Sequence[Path],
) -> None:
    """Measure what is not in the file yet, and show the table."""
    about = {"models": [*map(model_fingerprint, (target, draft, *also))], "tokens": tokens}
    lines = opened(results, about)
    if not shown:
        every = conditions(dictionaries)
        every += [
            c._replace(name=c.name.replace("the draft", path.name), other=path.name)
            for path in also
            for c in every
            if "the draft" in c.name
        ]
        chosen = [c for c in every if re.search(only, c.name)]
        done = {
            (one["kind"], one["number"], one["condition"]) for one in lines if one["temp"] == temp
        }
        asked = prompts(held_out=held_out, kinds=kinds)[:limit]
        ours, theirs, *others = load_models(
            [str(path) for path in (target, draft, *also)], dtype="float32"
        )
        for one in (theirs, *others):
            if find_curve(machine_of(ours.model, one.model)) is None:
                store_curve(measure_curve(ours.model, one.model))
        keep_loaded()
        named = {path.name: one for path, one in zip(also, others, strict=True)}
        runner = Runner(ours, theirs, temp, tokens, results, named)
        lines += run_left(runner, asked, chosen, done, seconds)
    show([line for line in lines if line["kind"] in kinds])


def opened(path: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a file, which is created if it is missing; one that was cut off is removed."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    whole = whole or json.dumps(about)
    path.write_text(whole + "\n")
    head, *lines = map(json.loads, whole.splitlines())
    if head != about:
        raise click.UsageError(f"{path} is about {head}, not {about}; give another file")
    return lines


if __name__ == "__main__":
    main()
