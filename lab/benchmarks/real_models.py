"""What tokalign gives where a real model answers: one command, from two folders to one table.

    python -m lab.benchmarks.real_models TARGET DRAFT --results FILE.jsonl [--temp 0.7] [--limit N]
        [--held-out] [--only REGEX] [--kind KIND] [--dictionary FILE] [--seconds N] [--table]

Forty prompts (`lab/prompts/real/`: 12 general, 12 code, 8 editing, 8 Polish) or 32 that nothing was
fitted to (`--held-out`), 128 tokens of each answer, in float32. All conditions are run on one
prompt before the next, in an order that rotates, and plain decoding before every second of them: so
each stands beside a plain run of its own, and the row `plain` compares two of these. Every output
is compared with the plain one, id by id.

Every generation is a line of FILE, so a killed run goes on where it was, with new estimates of the
costs; stores that are kept from prompt to prompt are read from files beside it. Every beginning of
the prompts has all kinds. Where no cost curve of this machine is stored, one is measured first
for some seconds, as `tokalign chat` does. On Linux, preload a BLAS (`demo/README.md` says how).

Columns: tokens per pass of the target and speed by the clock relative to plain decoding, both with
95 % intervals (bootstrap over prompts); rows of the target and passes of the draft model per pass
of the target; host time of a round outside the passes. All are of the rounds after the first, which
reads the prompt. The draft model reads it in a later round, and that counts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import click
import numpy as np

from lab.benchmarks.paired_lines import PLAIN, show
from lab.benchmarks.real_prompts import KINDS, Asked, prompts
from lab.fingerprint import model_fingerprint
from tokalign.api.assemble import assemble, keep_loaded, load_models
from tokalign.cli.output import progress
from tokalign.evaluate.calibrate import measure_briefly
from tokalign.runtime.cost import find_curve, store_curve
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.opening_knowledge import opening_knowledge
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.weights import machine_of
from tokalign.runtime.options import DraftingOptions
from tokalign.tables.logit_rows import LogitRows

_PER_PLAIN, _WARM_UP_TOKENS = 2, 8


class Condition(NamedTuple):
    """A way to decode. keeps: from prompt to prompt, the target's top-k logits."""

    name: str
    options: DraftingOptions
    drafts: bool = False
    keeps: bool = False


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


@dataclass
class Runner:
    """Runs conditions with loaded models. results: the file; stores that are kept lie beside it."""

    target: LanguageModel[Any]
    draft: LanguageModel[Any]
    temp: float
    tokens: int
    results: Path
    _decoders: dict[str, Decoder] = field(default_factory=dict)

    def run(self, asked: Asked, condition: Condition) -> dict[str, Any]:
        """Decode an answer. Returns: the line that is kept of it."""
        name = condition.name
        if name not in self._decoders:
            self._decoders[name] = self.decoder(condition)
            self._generate(name, "Hello", _WARM_UP_TOKENS)  # kernels are compiled now
        generation = self._generate(name, asked.text, self.tokens)
        self.keep_store(name, self._decoders[name])
        rounds = [
            (len(one.emitted), one.rows, one.draft_passes, one.seconds, one.verification)
            for one in generation.rounds[1:]
        ]
        tokens, rows, passes, seconds, verifying = (list(of) for of in zip(*rounds, strict=True))
        host = [round(1e3 * max(0.0, a - b), 3) for a, b in zip(seconds, verifying, strict=True)]
        return {
            "kind": asked.kind,
            "number": asked.number,
            "temp": self.temp,
            "condition": name,
            "load": round(os.getloadavg()[0], 2),
            "seconds": round(sum(seconds), 4),
            "ids": list(generation.context.emitted),
            "tokens": tokens,
            "rows": rows,
            "draft_passes": passes,
            "host_ms": host,
        }

    def _generate(self, name: str, text: str, tokens: int) -> Generation:
        decoder = self._decoders[name]
        generation = Generation(decoder, decoder.prompt(text), max_tokens=tokens)
        for _ in generation:
            pass
        return generation

    def decoder(self, condition: Condition) -> Decoder:
        """A decoder with its own estimates of costs, and without tables that merely lie about."""
        draft = self.draft if condition.drafts else None
        sampler = Sampling(temperature=self.temp)
        decoder = assemble(self.target, draft, condition.options, sampler=sampler)
        drafting = decoder.drafting
        if drafting.knowledge is not None:
            own = opening_knowledge(self.target.model, *decoder.drafting_models)
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


def schedule(
    asked: Sequence[Asked], chosen: Sequence[Condition], done: set[tuple[str, int, str]]
) -> Iterator[tuple[Asked, Condition]]:
    """What is left to run, with plain decoding before every second condition."""
    plain = Condition(PLAIN, DraftingOptions(method=PLAIN))
    for turn, one in enumerate(asked):
        first = turn % max(1, len(chosen))
        rotated = [*chosen[first:], *chosen[:first]]
        left = [c for c in rotated if (one.kind, one.number, c.name) not in done]
        for at, condition in enumerate(left):
            if at % _PER_PLAIN == 0:
                yield one, plain
            yield one, condition


def run_left(
    runner: Runner, left: Sequence[tuple[Asked, Condition]], seconds: float
) -> list[dict[str, Any]]:
    """Run what is left and write its lines to the runner's file. Returns: them.

    seconds: nothing is begun that would end later, if it takes as long as the longest before it.
    """
    began, longest, lines = perf_counter(), 0.0, []
    with progress(len(left), "decoding") as advance, runner.results.open("a") as file:
        for asked, condition in left:
            now = perf_counter()
            if now + longest > began + seconds:
                break
            lines.append(runner.run(asked, condition))
            print(json.dumps(lines[-1]), file=file, flush=True)
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
    click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), default=KINDS),
    click.option("--dictionary", "dictionaries", multiple=True, type=click.Path(path_type=Path)),
    click.option("--held-out", is_flag=True, help="Prompts that nothing was fitted to."),
    click.option("--table", "shown", is_flag=True, help="Run nothing; show what is in the file."),
)


@click.command()
@model_options
@click.option("--seconds", default=inf, help="Stop before; the next call goes on.")
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
) -> None:
    """Measure what is not in the file yet, and show the table."""
    about = {"models": [model_fingerprint(target), model_fingerprint(draft)], "tokens": tokens}
    lines = opened(results, about)
    if not shown:
        chosen = [c for c in conditions(dictionaries) if re.search(only, c.name)]
        done = {
            (one["kind"], one["number"], one["condition"]) for one in lines if one["temp"] == temp
        }
        asked = [one for one in prompts(held_out=held_out)[:limit] if one.kind in kinds]
        left = list(schedule(asked, chosen, done))
        ours, theirs = load_models([str(target), str(draft)], dtype="float32")
        machine = machine_of(ours.model, theirs.model)
        if left and find_curve(machine) is None:
            store_curve(measure_briefly(ours.model, theirs.model))
        keep_loaded()
        runner = Runner(ours, theirs, temp, tokens, results)
        lines += run_left(runner, left, seconds)
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
