"""Context copy against prompt lookup on generations that repeat their prompt.

    python -m lab.benchmarks.context_copy --text FILE [--text FILE ...] [--limit N]
    python -m lab.benchmarks.context_copy --text FILE passes [--rows 15]
    python -m lab.benchmarks.context_copy --text FILE machines [--curve m4-pro ...]
    python -m lab.benchmarks.context_copy priors FILE ...

The prompt is one line of instruction and a text. The outputs are known, because a script makes
them from that text as an assistant would: it replaces words (edit), leaves sentences out (shorten),
keeps every third sentence up to its first comma (summary), or lists the shorter half of the
sentences by length (list).

Both copy at most 10 tokens. `prompt lookup` works as published: it takes the longest n-gram of the
last 3 ids that occurred before, at its first occurrence. A row is a verified position after the
first of a round. `passes` gives tokens per pass of the hybrid's trees, whose store of logits is
empty because no target computes any; the prediction is the text of the prompt. `machines` gives the
speed-up of the hybrid under cost curves, with the planner, which knows the curve,
and a clock that only passes move.

`priors` counts in texts of any language how often a copy was right, in passages of 1,500 tokens,
and says what the priors counted in Polish lose there, alone and shifted by what has been seen.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import log
from pathlib import Path
from random import Random

import click

from lab.baselines.prompt_lookup import PromptLookupDrafter
from lab.benchmarks.draft_free import MACHINES
from tokalign.build.corpus import Corpus
from tokalign.cli.bench_options import read_texts
from tokalign.cost.curve import read_curve
from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.project import SimulatedClock, TimedVerifier
from tokalign.evaluate.replay import ReplayVerifier, replay
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.context_copy import (
    AGREED,
    LATEST,
    ONLY,
    PRIORS,
    CopyReliability,
    Occurrence,
    SuffixAutomaton,
)
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.draft_length.learned_costs import LearnedCosts, PassTimes
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.rounds import Context, Drafter
from tokalign.runtime.statistics import Statistics
from tokalign.tables.dictionary import Dictionary
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

CHARACTERS = 2500
"""Taken of each text; texts shorter than half of this are left out."""

PASSAGE_IDS = 1024
"""About the length of a prompt with such a text, for which costs are taken."""

_SENTENCE_END = re.compile(r"(?<=[.!?…]) +(?=[A-ZĄĆĘŁŃÓŚŹŻ„])")


def expected_text(prompt: Sequence[TargetId], ids: Sequence[TargetId]) -> SuffixAutomaton:
    """A text that may come after `prompt`, with the end of the prompt before it."""
    return SuffixAutomaton([*prompt[-8:], *ids])


def edit(text: str, random: Random) -> str:
    """Replace every sixteenth word by another one of the text."""
    words = text.split(" ")
    return " ".join(random.choice(words) if random.random() < 1 / 16 else w for w in words)


def shorten(text: str, random: Random) -> str:
    """Leave out four sentences in ten."""
    return " ".join(s for s in sentences(text) if random.random() < 0.6)


def summarize(text: str, random: Random) -> str:
    """Every third sentence, up to its first comma, colon or bracket."""
    return " ".join(re.split(r"[,;:(]", s)[0].rstrip(". ") + "." for s in sentences(text)[::3])


def enumerate_shortest(text: str, random: Random) -> str:
    """The shorter half of the sentences as a list."""
    found = sorted(sentences(text), key=len)
    return "\n".join(f"- {s}" for s in found[: max(3, len(found) // 2)])


TASKS: dict[str, tuple[str, Callable[[str, Random], str]]] = {
    "edit": ("Popraw styl tego tekstu.", edit),
    "shorten": ("Skróć ten tekst.", shorten),
    "summary": ("Streść ten tekst w kilku zdaniach.", summarize),
    "list": ("Wypisz w punktach najkrótsze zdania.", enumerate_shortest),
}


def sentences(text: str) -> list[str]:
    """The sentences of a text, cut where a capital letter follows a full stop and a space."""
    return [s for s in _SENTENCE_END.split(text.replace("\n", " ")) if s.strip()]


@dataclass(frozen=True)
class Generation:
    """Prompt and output as ids; the first `given` are the prompt. passage: the text in it."""

    ids: Sequence[TargetId]
    given: int
    passage: Sequence[TargetId] = ()


def generations(
    task: str, texts: Iterable[str], target: Tokenizer[TargetId], seed: int = 0
) -> list[Generation]:
    """One generation of a task for each text."""
    instruction, answer = TASKS[task]
    random, made = Random(seed), []
    for text in texts:
        passage = text[:CHARACTERS]
        prompt = f"{instruction}\n\n{passage}\n\n"
        alone, ids = target.encode(prompt), target.encode(prompt + answer(passage, random))
        same = takewhile(lambda pair: pair[0] == pair[1], zip(alone, ids, strict=False))
        given = sum(1 for _ in same)
        made.append(Generation(ids, given, target.encode(passage)))
    return made


def measure(
    made: Iterable[Generation], drafting: Drafting | None, *, predicts: bool = False
) -> Statistics:
    """Replay generations with a method; the statistics of all together.

    drafting: None for prompt lookup. predicts: whether the text of the prompt is given as the
    predicted output.
    """
    statistics = Statistics()
    for one in made:
        if drafting is None:
            drafter: Drafter = PromptLookupDrafter()
        else:
            outputs = [expected_text(one.ids[: one.given], one.passage)] if predicts else []
            drafter = make_drafter(replace(drafting, outputs=outputs), None)
        for event in replay(one.ids, drafter, prompt_tokens=one.given):
            statistics.observe(event)
    return statistics


METHODS = {
    "prompt lookup": None,
    "copy, rows free": Drafting(method="copy", num_draft_tokens=10, costs=Costs(rows=(1.0,))),
    "copy, 2 % a row": Drafting(method="copy", num_draft_tokens=10, costs=Costs(rows=(1.0, 1.02))),
    "copy, 5 % a row": Drafting(method="copy", num_draft_tokens=10, costs=Costs(rows=(1.0, 1.05))),
}


@click.group(invoke_without_command=True)
@click.option("--target", default="bielik", show_default=True)
@click.option("--text", "files", type=click.Path(path_type=Path, exists=True), multiple=True)
@click.option("--field", "text_field", default="text", show_default=True)
@click.option("--limit", default=30, show_default=True, help="Texts of each file.")
@click.pass_context
def main(
    context: click.Context, *, target: str, files: tuple[Path, ...], text_field: str, limit: int
) -> None:
    """Print one row per task and method."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    texts = [text for file in files for text in long_texts(file, text_field, limit)]
    made = {task: generations(task, texts, tokenizer) for task in TASKS}
    if context.invoked_subcommand:
        context.obj = made
        return
    print(f"{len(texts)} texts\n\n| task | method | accepted per row | accepted per round | rows |")
    print("|---|---|---|---|---|")
    for task, of_task in made.items():
        for name, drafting in METHODS.items():
            found = measure(of_task, drafting)
            print(
                f"| {task} | {name} | {found.draft_acceptance_rate:.3f} "
                f"| {found.accepted_per_round:.3f} | {found.proposed_per_round:.2f} |",
                flush=True,
            )


def long_texts(file: Path, text_field: str, limit: int) -> list[str]:
    """The first `limit` texts of a file that are long enough."""
    found = read_texts(file, field=text_field)
    return [text for text in found if len(text) >= CHARACTERS // 2][:limit]


@main.command()
@click.option("--rows", default=15, show_default=True, help="Ids proposed in a round.")
@click.pass_obj
def passes(made: dict[str, list[Generation]], *, rows: int) -> None:
    """Tokens per pass and ids proposed: copies, and the hybrid without and with a prediction."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
    dictionary = open_dictionary(tokenizer, files=[])
    free = Drafting(dictionary=dictionary, costs=Costs(rows=(1.0,)), num_draft_tokens=rows)
    print("| task | prompt lookup | copy | hybrid | hybrid, prediction |\n" + "|---" * 5 + "|")
    for task, of_task in made.items():
        found = [
            measure(of_task, None),
            measure(of_task, replace(free, method="copy")),
            measure(of_task, replace(free, method="hybrid", draft_rows=rows)),
            measure(of_task, replace(free, method="hybrid", draft_rows=rows), predicts=True),
        ]
        cells = [f"{one.tokens_per_round:.2f}, {one.proposed_per_round:.1f}" for one in found]
        print(f"| {task} | {' | '.join(cells)} |", flush=True)


@main.command()
@click.option("--curve", "curves", multiple=True, default=MACHINES)
@click.pass_obj
def machines(made: dict[str, list[Generation]], *, curves: Sequence[str]) -> None:
    """Speed-ups of the hybrid with the planner, by task."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
    dictionary = open_dictionary(tokenizer, files=[])
    print(f"| | {' | '.join(made)} |\n" + "|---" * (1 + len(made)) + "|")
    for name in curves:
        known = read_curve(name).rows_at(PASSAGE_IDS)
        costs = Costs(rows=tuple(time / known[0] for time in known))
        cells = [controlled(of_task, dictionary, costs) for of_task in made.values()]
        print(f"| {name} | {' | '.join(f'{cell:.2f}' for cell in cells)} |", flush=True)


def controlled(made: Sequence[Generation], dictionary: Dictionary | None, costs: Costs) -> float:
    """The speed-up over plain decoding of all generations, one after another."""
    clock = SimulatedClock()
    knowledge = Knowledge(costs=LearnedCosts(PassTimes(costs.rows, weight=4)))
    drafting = Drafting(method="hybrid", dictionary=dictionary, knowledge=knowledge)
    tokens = 0
    for one in made:
        timed = TimedVerifier(ReplayVerifier(one.ids), costs, clock)
        planner = make_drafter(drafting, clock=clock)
        context = Context(one.ids[: one.given])
        limits = Limits(max_tokens=len(one.ids) - one.given)
        for _ in decode(context, planner, timed, limits=limits):
            pass
        tokens += len(context.emitted)
    return tokens * costs.verify(1) / clock.now


class Unmoved(CopyReliability):
    """The prior alone."""

    def learn(
        self, text: Sequence[TargetId], occurrence: Occurrence | None, token: TargetId
    ) -> None:
        """Learn nothing."""


def judge(text: Sequence[TargetId], occurrence: Occurrence, token: TargetId) -> tuple[int, bool]:
    """The kind of a match, and whether its latest occurrence went on like the text."""
    _, first, latest = occurrence
    kind = ONLY if first == latest else AGREED if text[first] == text[latest] else LATEST
    return kind, text[latest] == token


PASSAGE = 1500
"""Tokens in which `PRIORS` was counted."""


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--target", default="bielik", show_default=True)
@click.option("--tokens", default=60_000, show_default=True, help="Of each file at most.")
def priors(files: tuple[Path, ...], target: str, tokens: int) -> None:
    """How often copies are right after matches of 1, 2, 4 and 8 tokens, and log-losses in nats."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    kinds, lengths = {"once": ONLY, "agreed": AGREED, "latest": LATEST}, (1, 2, 4, 8)
    columns = [f"{name}, {length}" for name in kinds for length in lengths]
    print(f"| text | {' | '.join(columns)} | prior alone | shifted |\n|---{'|---' * 14}|")
    known = [
        PRIORS[kind][min(n, len(PRIORS[kind])) - 1] for kind in kinds.values() for n in lengths
    ]
    print(f"| priors | {' | '.join(f'{one:.2f}' for one in known)} | | |")
    for file in files:
        lines = Corpus([file]).lines()
        ids = list(islice((id_ for line in lines for id_ in tokenizer.encode(line + "\n")), tokens))
        passages = [Generation(ids[at : at + PASSAGE], 0) for at in range(0, len(ids), PASSAGE)]
        found = reliabilities(passages)
        rates = [found.get((kind, n), (0, 0)) for kind in kinds.values() for n in lengths]
        cells = [f"{right / seen:.2f}" if seen >= 100 else "" for right, seen in rates]
        cells += [f"{log_loss(passages, kind):.3f}" for kind in (Unmoved, CopyReliability)]
        print(f"| {file.name}, {len(ids)} | {' | '.join(cells)} |", flush=True)


def reliabilities(made: Iterable[Generation]) -> dict[tuple[int, int], tuple[int, int]]:
    """By kind and length of the match: how often the latest occurrence was right, and how often
    there was one."""
    found: defaultdict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for one in made:
        automaton = SuffixAutomaton()
        for token in one.ids:
            occurrence = automaton.occurrence(automaton.longest_repeat())
            if occurrence is not None:
                kind, is_right = judge(automaton.ids, occurrence, token)
                right, seen = found[kind, occurrence.length]
                found[kind, occurrence.length] = right + is_right, seen + 1
            automaton.append(token)
    return found


def log_loss(made: Iterable[Generation], make: Callable[[], CopyReliability]) -> float:
    """The mean log-loss in nats over all tokens of the outputs that had a match before them."""
    losses = []
    for one in made:
        automaton, reliability = SuffixAutomaton(), make()
        for place, token in enumerate(one.ids):
            occurrence = automaton.occurrence(automaton.longest_repeat())
            if occurrence is not None and place >= one.given:
                kind, right = judge(automaton.ids, occurrence, token)
                said = reliability.probability(kind, occurrence.length)
                losses.append(-log(said if right else 1 - said))
            reliability.learn(automaton.ids, occurrence, token)
            automaton.append(token)
    return sum(losses) / len(losses)


if __name__ == "__main__":
    main()
