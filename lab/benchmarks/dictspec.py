"""DictSpec's own tables and hybrid, as its paper emulates them (Syvokon, UNLP 2026).

    python -m lab.benchmarks.dictspec readings|sweep|hybrid|storage

`readings`: what the paper leaves open about a table, built one way and another; Crimean Tatar in
both scripts, with each way to hold lines out. `sweep`: orders of n-grams, sizes and p_min, and the
best. `hybrid`: the paper's recommended deployment, the dictionary and, where it has no draft, the
prompt's n-grams; and the reverse. `storage`: bytes of the marisa trie, time of a look-up. Speed-ups
are tokens per pass of replayed held-out text. Each line of output is a JSON object.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click

from lab.baselines.prompt_lookup import PromptLookupDrafter
from lab.benchmarks.dictionary_build import MODERN, dev_texts, shared_option
from lab.dictspec.builder import Choose, EncodedNgram, find_continuations, most_probable_next_id
from lab.dictspec.table import MAX_CONTINUATION, DictSpecTable
from lab.dictspec.word_ngrams import WordNgrams, count_word_ngrams
from tokalign.build.corpus import Corpus
from tokalign.cli.output import print_json
from tokalign.evaluate.replay import replay_texts
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.runtime.rounds import Context, Drafter, Proposal
from tokalign.runtime.statistics import Statistics
from tokalign.tables.dictionary import Ids
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

PAPER = {
    ("mistral", "crh_cyr"): (1.65, 0.77, 0.84, 0.18),
    ("mistral", "crh_lat"): (1.35, 0.69, 0.50, 0.08),
    ("mistral-nemo", "crh_cyr"): (1.51, 0.73, 0.70, 0.18),
    ("mistral-nemo", "crh_lat"): (1.21, 0.61, 0.34, 0.07),
    ("llama3.2", "crh_cyr"): (1.61, 0.77, 0.79, 0.18),
    ("llama3.2", "crh_lat"): (1.22, 0.62, 0.36, 0.07),
}
"""The paper's Table 4: speed-up, coverage, mean accepted length, acceptance."""

SPLITS: dict[str, Callable[[int, int], bool]] = {
    "every tenth line": lambda number, _: number % 10 == 0,
    "runs of 100 lines": lambda number, _: number // 100 % 10 == 0,
    "last tenth": lambda number, count: number >= count * 9 // 10,
}
"""Whether a line of so many is held out."""

Texts = Sequence[Sequence[TargetId]]

SCRIPTS = ("crh_cyr", "crh_lat")
VOCABULARIES = ("mistral", "mistral-nemo", "llama3.2")
ORDERS = (1, 2, 3)
SIZES = (10_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
P_MINS = (0.2, 0.5, 0.8, 0.9, 1.0)


class Reading(NamedTuple):
    """How a table is built and used. most: ids of a draft."""

    choose: Choose
    p_min: float
    most: int = MAX_CONTINUATION


def most_probable_rest(ngrams: Iterable[EncodedNgram], length: int) -> tuple[Ids, float]:
    """The most probable rest as a whole, and its share among the n-grams of one order."""
    orders: Counter[int] = Counter()
    rests: Counter[tuple[int, Ids]] = Counter()
    for ids, order, occurrences in ngrams:
        orders[order] += occurrences
        rests[order, ids[length : length + MAX_CONTINUATION]] += occurrences
    shares = {(order, rest): count / orders[order] for (order, rest), count in rests.items()}
    best = max(shares, key=lambda found: (shares[found], len(found[1]), found))
    return best[1], shares[best]


def pooled(ngrams: Iterable[EncodedNgram], length: int) -> tuple[Ids, float]:
    """As `most_probable_next_id`, with the id's share among the n-grams of all orders."""
    return most_probable_next_id((ngram._replace(order=1) for ngram in ngrams), length)


READINGS = {
    "next id": Reading(most_probable_next_id, 0.2),
    "whole rest": Reading(most_probable_rest, 0.2),
    "whole rest, no p_min": Reading(most_probable_rest, 0.0),
    "next id, orders pooled": Reading(pooled, 0.2),
    "deployed": Reading(most_probable_next_id, 0.8, most=4),
}


class Fallback(Drafter):
    """The first of some drafters that has a draft, as the paper's hybrid asks them."""

    def __init__(self, *drafters: Drafter) -> None:
        self._drafters = drafters

    def propose(self, context: Context, limit: int) -> Proposal:
        offers = [drafter.propose(context, limit) for drafter in self._drafters]
        return next((offer for offer in offers if len(offer.tree)), Proposal())


def held_out(shared: Path, script: str, split: str, lines: int) -> tuple[list[str], list[str]]:
    """The lines to count, and texts of 20 held-out lines, of about `lines` in all.

    In a text of one line the first word has no space before it, and is encoded unlike in running
    text by all vocabularies but SentencePiece's.
    """
    whole = list(Corpus([shared / "corpus" / "crh" / f"{script}.txt.zst"]).lines())
    marks = [SPLITS[split](number, len(whole)) for number in range(len(whole))]
    counted = [line for line, held in zip(whole, marks, strict=True) if not held]
    held = [line for line, mark in zip(whole, marks, strict=True) if mark]
    sample = held[:: max(1, len(held) // lines)]
    return counted, [" ".join(sample[at : at + 20]) for at in range(0, len(sample), 20)]


def crimean_tatar(
    shared: Path, split: str, scripts: Sequence[str] = SCRIPTS
) -> Iterator[tuple[str, str, WordNgrams, list[str]]]:
    """For each cell of the paper's table: vocabulary, script, n-grams and held-out texts."""
    for script in scripts:
        lines, texts = held_out(shared, script, split, 300)
        counted = count_word_ngrams(lines)
        for vocabulary, written in PAPER:
            if written == script:
                yield vocabulary, script, counted, texts


def figures(statistics: Statistics) -> dict[str, float]:
    """The four columns of the paper's Table 4."""
    return {
        "speedup": round(statistics.tokens_per_round, 3),
        "coverage": round(statistics.coverage, 3),
        "mean_accepted_length": round(statistics.mean_accepted_length, 3),
        "acceptance": round(statistics.draft_acceptance_rate, 3),
    }


def emulate(texts: Texts, table: DictSpecTable, most: int = MAX_CONTINUATION) -> dict[str, float]:
    """The columns for one table. most: ids of a draft."""
    return measured(texts, lambda: DictionaryDrafter(table, max_tokens=most))


def measured(texts: Texts, make: Callable[[], Drafter]) -> dict[str, float]:
    """The columns for a drafter, which is made for each text."""
    return figures(replay_texts(texts, lambda _: make()))


@click.group()
def benchmark() -> None:
    """See the module."""


@benchmark.command()
@shared_option
@click.option("--split", type=click.Choice([*SPLITS]), multiple=True, default=[*SPLITS])
def readings(shared: Path, split: Sequence[str]) -> None:
    """200,000 n-grams; every reading on every tenth line, the paper's own on the other splits."""
    for held in split:
        wanted = READINGS if held == "every tenth line" else ("next id", "deployed")
        for vocabulary, script, counted, texts in crimean_tatar(shared, held):
            tokenizer: Tokenizer[TargetId] = resolve_tokenizer(vocabulary).tokenizer
            encoded = tokenizer.encode_batch(texts)
            about = {"script": script, "vocabulary": vocabulary, "split": held}
            for name in wanted:
                choose, p_min, most = READINGS[name]
                kept = counted.most_frequent(200_000)
                table = find_continuations(kept, tokenizer, p_min=p_min, choose=choose)
                found = {"prefixes": len(table), **emulate(encoded, table, most)}
                print_json(about | {"reading": name} | found | {"paper": PAPER[vocabulary, script]})


@benchmark.command()
@shared_option
@click.option("--script", "scripts", type=click.Choice(SCRIPTS), multiple=True, default=SCRIPTS)
@click.option(
    "--vocabulary", "chosen", type=click.Choice(VOCABULARIES), multiple=True, default=VOCABULARIES
)
def sweep(shared: Path, scripts: Sequence[str], chosen: Sequence[str]) -> None:
    """The paper's grid; for each cell the best of it, beside the paper's."""
    for vocabulary, script, counted, texts in crimean_tatar(shared, "every tenth line", scripts):
        if vocabulary not in chosen:
            continue
        tokenizer: Tokenizer[TargetId] = resolve_tokenizer(vocabulary).tokenizer
        encoded = tokenizer.encode_batch(texts)
        found: dict[tuple[int, int, float], dict[str, float]] = {}
        for order in ORDERS:
            short = replace(counted, packed=counted.packed[:order], counts=counted.counts[:order])
            smaller = [size for size in SIZES if size < sum(map(len, short.counts))]
            for size in SIZES[: len(smaller) + 1]:  # more n-grams than there are change nothing
                table = find_continuations(short.most_frequent(size), tokenizer, p_min=P_MINS[0])
                for p_min in P_MINS:
                    found[order, size, p_min] = emulate(encoded, table.at_least(p_min))
        best = max(found, key=lambda setting: found[setting]["speedup"])
        print_json(
            {
                "script": script,
                "vocabulary": vocabulary,
                "best": dict(zip(("order", "size", "p_min"), best, strict=True)) | found[best],
                "by_order": _best_by(found, 0),
                "by_size": _best_by(found, 1),
                "by_p_min": _best_by(found, 2),
                "paper": PAPER[vocabulary, script],
            }
        )


def _best_by(found: dict[tuple[int, int, float], dict[str, float]], place: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for setting, measured in found.items():
        value = str(setting[place])
        best[value] = max(best.get(value, 0.0), measured["speedup"])
    return best


@benchmark.command()
@shared_option
def hybrid(shared: Path) -> None:
    """Polish, Bielik's vocabulary, as in the paper's sweep and as in its deployment."""
    target, counted = _polish(shared)
    texts = dev_texts(target, shared)
    for p_min, most in ((0.2, 8), (0.8, 4)):
        table = find_continuations(counted.most_frequent(200_000), target, p_min=p_min)

        def dictionary() -> Drafter:
            return DictionaryDrafter(table, max_tokens=most)  # noqa: B023

        def ngrams() -> Drafter:
            return PromptLookupDrafter(max_tokens=most)  # noqa: B023

        ways = {
            "dictionary": dictionary,
            "n-grams": ngrams,
            "dictionary, then n-grams": lambda: Fallback(dictionary(), ngrams()),
            "n-grams, then dictionary": lambda: Fallback(ngrams(), dictionary()),
        }
        for name, encoded in texts.items():
            for way, make in ways.items():
                found = measured(encoded, make)
                print_json({"text": name, "p_min": p_min, "most": most, "drafter": way} | found)


@benchmark.command()
@shared_option
def storage(shared: Path) -> None:
    """Polish, Bielik's vocabulary: sizes that the paper gives, look-ups at places of dev texts."""
    target, counted = _polish(shared)
    wiki = dev_texts(target, shared)["wiki.jsonl"]
    places = [ids[at - 8 : at] for ids in wiki for at in range(8, len(ids), 5)]
    for size, p_min in ((200_000, 0.8), (200_000, 0.2), (1_000_000, 0.2)):
        table = find_continuations(counted.most_frequent(size), target, p_min=p_min)
        microseconds = []
        for place in places:
            started = time.perf_counter()
            table.longest_match(place)
            microseconds.append((time.perf_counter() - started) * 1e6)
        print_json(
            {
                "ngrams": size,
                "p_min": p_min,
                "entries": len(table),
                "trie_bytes": table.size,
                "lookup_us": round(median(microseconds), 1),
            }
        )


def _polish(shared: Path) -> tuple[Tokenizer[TargetId], WordNgrams]:
    corpus = Corpus([shared / "corpus" / "train" / f"{name}.txt.zst" for name in MODERN])
    return resolve_tokenizer("bielik").tokenizer, count_word_ngrams(corpus.lines())


if __name__ == "__main__":
    benchmark()
