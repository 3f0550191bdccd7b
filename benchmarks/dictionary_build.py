"""What a dictionary costs to build and to use, and what it saves: the figures of the README.

    python benchmarks/dictionary_build.py cost    # time, memory, size, open, look-up
    python benchmarks/dictionary_build.py saving  # DictSpec re-created, as in docs/metrics.md

Both use the shared corpora (`--shared FOLDER`, default ../shared/data beside the project).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from tokalign.build.continuations import find_continuations
from tokalign.build.corpus import Corpus
from tokalign.build.ngrams import count_word_ngrams
from tokalign.build.pipeline import Builder, build_dictionary, build_pair, build_tables
from tokalign.bundle import open_bundle
from tokalign.cli.output import print_json
from tokalign.cli.texts import read_texts
from tokalign.registry import resolve_tokenizer
from tokalign.runtime.draft.dictionary import DictionaryDrafter
from tokalign.runtime.replay import replay
from tokalign.runtime.statistics import Statistics
from tokalign.tables import MAX_CONTEXT, Continuations
from tokalign.tokenizers import Tokenizer
from tokalign.vocab import TargetId

_SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
_MODERN = ("openstax_pl", "poquad_wiki", "sejm10", "wikisource_pages")
_P_MIN = 0.2

shared_option = click.option(
    "--shared", default=_SHARED, show_default=True, type=click.Path(path_type=Path, exists=True)
)


@click.group()
def benchmark() -> None:
    """Dictionaries: cost and saving."""


@benchmark.command()
@shared_option
@click.option("--ngrams", default=200_000, show_default=True)
def cost(shared: Path, ngrams: int) -> None:
    """Build both tables of llama3.2 x bielik from all of corpus/train; then use the dictionary."""
    target = resolve_tokenizer("bielik").tokenizer
    draft = resolve_tokenizer("llama3.2").tokenizer
    corpus = Corpus(sorted((shared / "corpus" / "train").iterdir()))
    text = _encoded(target, shared, "wiki.jsonl")

    def dictionary(corpus: Corpus, stage: Any) -> Any:
        return build_dictionary(
            target, corpus, language="pl", ngrams=ngrams, p_min=_P_MIN, stage=stage
        )

    builders: dict[str, Builder] = {
        "dictionary": dictionary,
        "alignment": lambda corpus, stage: build_pair(draft, target, corpus, stage=stage),
    }
    with tempfile.TemporaryDirectory() as folder:
        for kind, build in builders.items():
            path = Path(folder) / f"{kind}.tok"
            report = build_tables(corpus, {path: build})
            [table] = report.tables
            print_json(
                {
                    "table": kind,
                    "text_bytes": report.text_bytes,
                    "seconds": round(report.seconds, 1),
                    "megabytes_per_second": round(report.text_bytes / report.seconds / 1e6, 2),
                    "peak_memory_mb": round(report.peak_memory / 1e6),
                    "entries": table.entries,
                    "file_bytes": table.bytes,
                    "open_ms": round(_best_ms(lambda path=path: open_bundle(path)), 3),  # type: ignore[misc]
                    "verify_ms": round(
                        _best_ms(lambda path=path: open_bundle(path, verify=True)),  # type: ignore[misc]
                        3,
                    ),
                }
            )
        sections = open_bundle(Path(folder) / "dictionary.tok").sections
        print_json(_lookup_times(Continuations.from_sections(sections), text))


@benchmark.command()
@shared_option
def saving(shared: Path) -> None:
    """Emulate DictSpec on dev/wiki and dev/sejm, for two corpora and two sizes."""
    target = resolve_tokenizer("bielik").tokenizer
    texts = {name: _encoded(target, shared, name) for name in ("wiki.jsonl", "sejm.txt")}
    train = shared / "corpus" / "train"
    corpora = {
        "modern (56 MB)": [train / f"{name}.txt.zst" for name in _MODERN],
        "all of train (131 MB)": sorted(train.iterdir()),
    }
    for corpus, files in corpora.items():
        counted = count_word_ngrams(Corpus(files).lines())
        for ngrams in (200_000, 1_000_000):
            table = find_continuations(counted.most_frequent(ngrams), target, p_min=_P_MIN)
            for name, encoded in texts.items():
                figures = {"corpus": corpus, "ngrams": ngrams, "entries": len(table), "text": name}
                print_json(figures | _emulate(table, encoded))


def _encoded(
    target: Tokenizer[TargetId], shared: Path, name: str, limit: int = 200
) -> list[list[TargetId]]:
    return target.encode_batch(read_texts(shared / "corpus" / "dev" / name, limit=limit))


def _emulate(table: Continuations, texts: Iterable[Sequence[TargetId]]) -> dict[str, float]:
    statistics = Statistics()
    for ids in texts:
        for event in replay(ids, DictionaryDrafter(table)):
            statistics.observe(event)
    return {
        "speedup": round(statistics.tokens_per_round, 4),
        "coverage": round(statistics.coverage, 4),
        "mean_accepted_length": round(statistics.mean_accepted_length, 4),
    }


def _best_ms(call: Callable[[], object], repeats: int = 20) -> float:
    """The shortest of several runs, in milliseconds."""

    def once() -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    return 1e3 * min(once() for _ in range(repeats))


def _lookup_times(table: Continuations, texts: Iterable[Sequence[TargetId]]) -> dict[str, Any]:
    """Look every position of the texts up, one by one, in microseconds."""
    times = []
    for ids in texts:
        for end in range(1, len(ids)):
            suffix = ids[max(0, end - MAX_CONTEXT) : end]
            started = time.perf_counter_ns()
            table.longest_match(suffix)
            times.append(time.perf_counter_ns() - started)
    times.sort()
    return {
        "lookups": len(times),
        "p50_us": times[len(times) // 2] / 1e3,
        "p99_us": times[len(times) * 99 // 100] / 1e3,
    }


if __name__ == "__main__":
    benchmark()
