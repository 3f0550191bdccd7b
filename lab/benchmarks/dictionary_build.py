"""What DictSpec's dictionaries and tokalign's save, built from the same corpora, on other texts.

    python -m lab.benchmarks.dictionary_build

It uses the shared corpora (`--shared FOLDER`, default ../shared/data next to the project), and the
texts of dev/wiki and dev/sejm. What a table that exists saves says `tokalign bench --text FILE`.
"""

from __future__ import annotations

from pathlib import Path

import click

from lab.dictspec.builder import find_continuations
from lab.dictspec.word_ngrams import count_word_ngrams
from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.cli.output import print_json
from tokalign.cli.texts import read_texts
from tokalign.evaluate.replay import replay_texts
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import Dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
MODERN = ("openstax_pl", "poquad_wiki", "sejm10", "wikisource_pages")
_PUBLISHED_P_MIN = 0.2

Texts = dict[str, list[list[TargetId]]]

shared_option = click.option(
    "--shared", default=_SHARED, show_default=True, type=click.Path(path_type=Path, exists=True)
)


@click.command()
@shared_option
def benchmark(shared: Path) -> None:
    """Print a line for each dictionary and each of the two sets of texts, for two corpora."""
    target: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
    texts = dev_texts(target, shared)
    train = shared / "corpus" / "train"
    corpora = {
        "modern (56 MB)": [train / f"{name}.txt.zst" for name in MODERN],
        "all of train (131 MB)": sorted(train.iterdir()),
    }
    for name, files in corpora.items():
        counted = count_word_ngrams(Corpus(files).lines())
        for ngrams in (200_000, 500_000, 1_000_000):
            kept = counted.most_frequent(ngrams)
            published = find_continuations(kept, target, p_min=_PUBLISHED_P_MIN)
            _print_saving(published, texts, corpus=name, kind=f"dictspec, {ngrams} n-grams")
        del counted
        built = build_dictionary(target, Corpus(files), BackoffOptions(), language="pl")
        _print_saving(BackoffTable.from_bundle(built), texts, corpus=name, kind="backoff, 5 MB")


def dev_texts(target: Tokenizer[TargetId], shared: Path, limit: int = 200) -> Texts:
    """The first texts of both sets, encoded."""
    dev = shared / "corpus" / "dev"
    return {
        name: target.encode_batch(read_texts(dev / name, limit=limit))
        for name in ("wiki.jsonl", "sejm.txt")
    }


def _print_saving(table: Dictionary, texts: Texts, **about: str) -> None:
    for name, encoded in texts.items():
        statistics = replay_texts(encoded, lambda _: DictionaryDrafter(table))
        print_json(
            {
                **about,
                "entries": len(table),
                "text": name,
                "speedup": round(statistics.tokens_per_round, 4),
                "coverage": round(statistics.coverage, 4),
                "mean_accepted_length": round(statistics.mean_accepted_length, 4),
                "verified_rows_per_step": round(
                    1 + statistics.num_draft_tokens / statistics.rounds, 3
                ),
            }
        )


if __name__ == "__main__":
    benchmark()
