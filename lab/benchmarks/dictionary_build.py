"""What a dictionary costs to build and to use, and what it saves.

    python -m lab.benchmarks.dictionary_build cost     # time, memory and size; opening, look-ups
    python -m lab.benchmarks.dictionary_build saving   # both kinds of two corpora, on dev texts
    python -m lab.benchmarks.dictionary_build heldout
        # both kinds, on lines held out of each corpus
    python -m lab.benchmarks.dictionary_build shipped  # a table file, on dev texts

All use the shared corpora (`--shared FOLDER`, default ../shared/data next to the project). The dev
texts are dev/wiki and dev/sejm.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from lab.dictspec.builder import find_continuations
from lab.dictspec.word_ngrams import count_word_ngrams
from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.build.pipeline import Builder, build_pair, build_tables
from tokalign.cli.bench_options import read_texts
from tokalign.cli.output import print_json
from tokalign.evaluate.replay import replay
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.runtime.statistics import Statistics
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import read_bundle, read_header
from tokalign.tables.dictionary import MAX_CONTEXT, Dictionary
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
_MODERN = ("openstax_pl", "poquad_wiki", "sejm10", "wikisource_pages")
_PUBLISHED_P_MIN = 0.2
_WEIGHTS = {
    **dict.fromkeys(("eltec_pol", "poldracor", "wikisource_pages", "ustawy"), 0.25),
    **dict.fromkeys(("msdocs_dynamics", "libreoffice_help_pl", "manpages_pl"), 0.5),
}
"""The weights of the shipped table."""
_HELD_OUT_TOKENS = 30_000

Texts = dict[str, list[list[TargetId]]]

shared_option = click.option(
    "--shared", default=_SHARED, show_default=True, type=click.Path(path_type=Path, exists=True)
)


@click.group()
def benchmark() -> None:
    """Dictionaries: what they cost and what they save."""


@benchmark.command()
@shared_option
@click.option("--alignment/--no-alignment", default=True, help="Also the pair's tables.")
def cost(shared: Path, alignment: bool) -> None:
    """Build the tables of llama3.2 and bielik from all of corpus/train, and use the dictionary."""
    target: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
    corpus = Corpus(sorted((shared / "corpus" / "train").iterdir()))
    options = BackoffOptions()
    builders: dict[str, Builder] = {
        "dictionary": lambda corpus, stage: build_dictionary(
            target, corpus, options, language="pl", stage=stage
        )
    }
    if alignment:
        draft: Tokenizer[DraftId] = resolve_tokenizer("llama3.2").tokenizer
        builders["alignment"] = lambda corpus, stage: build_pair(draft, target, corpus, stage=stage)
    with tempfile.TemporaryDirectory() as folder:
        for name, build in builders.items():
            path = Path(folder) / f"{name}.tok"
            report = build_tables(corpus, {path: build})
            [table] = report.tables
            print_json(
                {
                    "table": name,
                    "text_bytes": report.text_bytes,
                    "seconds": round(report.seconds, 1),
                    "megabytes_per_second": round(report.text_bytes / report.seconds / 1e6, 2),
                    "peak_memory_mb": round(report.peak_memory / 1e6),
                    "entries": table.entries,
                    "file_bytes": table.bytes,
                    "bytes_per_entry": round(table.bytes / table.entries, 2),
                    **_opening(path),
                }
            )
        _print_use(target, Path(folder) / "dictionary.tok", shared)


@benchmark.command()
@shared_option
def saving(shared: Path) -> None:
    """Emulate both kinds on dev/wiki and dev/sejm, for two corpora."""
    target: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
    texts = _dev_texts(target, shared)
    train = shared / "corpus" / "train"
    corpora = {
        "modern (56 MB)": [train / f"{name}.txt.zst" for name in _MODERN],
        "all of train (131 MB)": sorted(train.iterdir()),
    }
    for name, files in corpora.items():
        counted = count_word_ngrams(Corpus(files).lines())
        for ngrams in (200_000, 500_000, 1_000_000):
            kept = counted.most_frequent(ngrams)
            published = find_continuations(kept, target, p_min=_PUBLISHED_P_MIN)
            kind = f"dictspec, {ngrams} n-grams"
            _print_saving(published, texts, corpus=name, kind=kind)
        del counted
        built = build_dictionary(target, Corpus(files), BackoffOptions(), language="pl")
        _print_saving(BackoffTable.from_bundle(built), texts, corpus=name, kind="backoff, 5 MB")


@benchmark.command()
@shared_option
def heldout(shared: Path) -> None:
    """Hold out every 50th line of each corpus, and decode it with dictionaries of the rest."""
    target: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
    texts: Texts = {}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for path in sorted((shared / "corpus" / "train").iterdir()):
            name = path.name.split(".")[0]
            lines = list(Corpus([path]).lines())
            texts[name] = _first_tokens(target.encode_batch(lines[::50]), _HELD_OUT_TOKENS)
            files.append(Path(folder) / f"{name}.txt")
            files[-1].write_text(
                "\n".join(line for number, line in enumerate(lines) if number % 50),
                encoding="utf-8",
            )
        counted = count_word_ngrams(Corpus(files).lines())
        kept = counted.most_frequent(200_000)
        _print_saving(
            find_continuations(kept, target, p_min=_PUBLISHED_P_MIN), texts, kind="dictspec"
        )
        del counted
        weights = {f"{name}.txt": weight for name, weight in _WEIGHTS.items()}
        built = build_dictionary(
            target, Corpus(files, weights=weights), BackoffOptions(), language="pl"
        )
        _print_saving(BackoffTable.from_bundle(built), texts, kind="backoff")


def _first_tokens(texts: list[list[TargetId]], tokens: int) -> list[list[TargetId]]:
    """The first texts, as many as have so many tokens together."""
    total, chosen = 0, []
    for ids in texts:
        if total >= tokens:
            break
        chosen.append(ids)
        total += len(ids)
    return chosen


@benchmark.command()
@shared_option
@click.option("--dictionary", "file", type=click.Path(path_type=Path), required=True)
@click.option("--p-min", "thresholds", type=float, multiple=True, help="Also with these p_min.")
def shipped(shared: Path, file: Path, thresholds: tuple[float, ...]) -> None:
    """A table file on dev/wiki and dev/sejm, and its look-up times."""
    target: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
    table = open_dictionary(target, files=[file])
    assert table is not None
    texts = _dev_texts(target, shared)
    for p_min in (None, *thresholds):
        _print_saving(table, texts, p_min=p_min, file=file.name)
    _print_use(target, file, shared)


def _dev_texts(target: Tokenizer[TargetId], shared: Path, limit: int = 200) -> Texts:
    dev = shared / "corpus" / "dev"
    return {
        name: target.encode_batch(read_texts(dev / name, limit=limit))
        for name in ("wiki.jsonl", "sejm.txt")
    }


def _print_saving(
    table: Dictionary, texts: Texts, *, p_min: float | None = None, **about: Any
) -> None:
    for name, encoded in texts.items():
        statistics = Statistics()
        for ids in encoded:
            for event in replay(ids, DictionaryDrafter(table, p_min=p_min)):
                statistics.observe(event)
        print_json(
            {
                **about,
                "entries": len(table),
                "p_min": p_min or "default",
                "text": name,
                "speedup": round(statistics.tokens_per_round, 4),
                "coverage": round(statistics.coverage, 4),
                "mean_accepted_length": round(statistics.mean_accepted_length, 4),
                "verified_rows_per_step": round(
                    1 + statistics.num_draft_tokens / statistics.rounds, 3
                ),
            }
        )


def _print_use(target: Tokenizer[TargetId], path: Path, shared: Path) -> None:
    """The memory and the time of look-ups, one by one, on dev/wiki."""
    texts = _dev_texts(target, shared)["wiki.jsonl"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = BackoffTable.from_bundle(read_bundle(path))
    opened = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print_json({"opening_adds_kb": opened - before, **_lookup_times(table, texts)})


def _opening(path: Path) -> dict[str, float]:
    return {
        "open_ms": round(_best_ms(lambda: read_header(path)), 3),
        "verify_ms": round(_best_ms(lambda: read_bundle(path)), 3),
    }


def _best_ms(call: Callable[[], object], repeats: int = 20) -> float:
    """The shortest of several runs, in milliseconds."""

    def once() -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    return 1e3 * min(once() for _ in range(repeats))


def _lookup_times(table: Dictionary, texts: Iterable[Sequence[TargetId]]) -> dict[str, Any]:
    """Microseconds of looking up the next token at every position of the texts, one by one."""
    times = []
    for ids in texts:
        for end in range(1, len(ids)):
            suffix = ids[max(0, end - MAX_CONTEXT) : end]
            started = time.perf_counter_ns()
            table.follow(suffix, 1)
            times.append(time.perf_counter_ns() - started)
    times.sort()
    return {
        "lookups": len(times),
        "p50_us": times[len(times) // 2] / 1e3,
        "p99_us": times[len(times) * 99 // 100] / 1e3,
    }


if __name__ == "__main__":
    benchmark()
