"""What a dictionary that was compiled from a pack saves, beside the one built from the corpus.

    python -m lab.benchmarks.packs make --sizes 12,5 OUTPUT   # packs of corpus/train, counted once
    python -m lab.benchmarks.packs saving --tokenizer PATH PACK...   # on dev/wiki and dev/sejm
    python -m lab.benchmarks.packs languages --tokenizer PATH PACK...   # alone and all at once

`saving` builds the native table too, and says where the compiled ones lose: by the length of the
context, and inside of words or at their beginnings. All use the shared corpora (`--shared FOLDER`).
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from lab.benchmarks.dictionary_build import Texts, dev_texts, shared_option
from tokalign.build.compile_pack import compile_pack
from tokalign.build.corpus import Corpus, Progress
from tokalign.build.counting.token_ngrams import count_corpus
from tokalign.build.counting.workers import peak_memory
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.build.pack import counting_words, pack_bundle
from tokalign.build.pipeline import write_table
from tokalign.cli.output import print_json
from tokalign.evaluate.replay import replay_texts
from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import encode_bundle, read_bundle
from tokalign.tables.dictionary import MAX_CONTEXT, Dictionaries, Dictionary
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_PATH = click.Path(path_type=Path)
_WEIGHTS = {
    **dict.fromkeys(("eltec_pol", "poldracor", "wikisource_pages", "ustawy"), 0.25),
    **dict.fromkeys(("msdocs_dynamics", "libreoffice_help_pl", "manpages_pl"), 0.5),
}
"""The weights of the shipped table."""


@click.group()
def benchmark() -> None:
    """Packs: how much of what a corpus gives they keep."""


def _training(shared: Path) -> Corpus:
    """corpus/train with the weights of the shipped dictionary."""
    files = sorted((shared / "corpus" / "train").iterdir())
    weights = {file.name: _WEIGHTS.get(file.name.split(".")[0], 1.0) for file in files}
    return Corpus(files, weights=weights)


@contextmanager
def _timed(_total: int, label: str, _unit: str = "") -> Iterator[Progress]:
    started = time.monotonic()
    yield lambda _: None
    print_json({"stage": label, "seconds": round(time.monotonic() - started, 1)})


@benchmark.command()
@shared_option
@click.option("--sizes", default="12,5", show_default=True, help="In megabytes.")
@click.argument("output", type=_PATH)
def make(shared: Path, sizes: str, output: Path) -> None:
    """Write OUTPUT/pl-SIZE.pack.tok for each size; the corpus is counted once."""
    output.mkdir(parents=True, exist_ok=True)
    corpus, options = _training(shared), BackoffOptions()
    counting = counting_words(corpus, options.min_count)
    counted = count_corpus(counting, stage=_timed)
    print_json(
        {"counted": [len(level) for level in counted.levels], "peak_mb": round(peak_memory() / 1e6)}
    )
    for size in sizes.split(","):
        sized = replace(options, max_bytes=int(float(size) * 1e6))
        bundle = pack_bundle(counted, sized, language="pl", stage=_timed)
        write_table(output / f"pl-{size}.pack.tok", bundle)
        print_json({"pack": size, "bytes": len(encode_bundle(bundle)), **bundle.statistics})


@benchmark.command()
@shared_option
@click.option("--tokenizer", "path", type=_PATH, required=True)
@click.option("--native", type=_PATH, help="Where the native table is kept, to be built once.")
@click.option("--limit", default=200, show_default=True, help="So many texts of each kind.")
@click.argument("files", nargs=-1, type=_PATH)
def saving(shared: Path, path: Path, native: Path | None, limit: int, files: list[Path]) -> None:
    """Tokens per pass with the native table and with each PACK compiled, both of 5 MB."""
    target: Tokenizer[TargetId] = read_tokenizer(path)
    texts = dev_texts(target, shared, limit)
    if native is not None and native.is_file():
        built = read_bundle(native)
    else:
        built = build_dictionary(target, _training(shared), BackoffOptions(), language="pl")
        if native is not None:
            write_table(native, built)
    reference = BackoffTable.from_bundle(built, len(target.vocabulary))
    best = {name: _tokens_per_pass(reference, some) for name, some in texts.items()}
    print_json({"tokenizer": path.name, "native": best, **built.statistics})
    for file in files:
        started = time.monotonic()
        bundle = compile_pack(target, read_bundle(file))
        seconds = time.monotonic() - started
        table = BackoffTable.from_bundle(bundle, len(target.vocabulary))
        found = {name: _tokens_per_pass(table, some) for name, some in texts.items()}
        kept = {name: round((found[name] - 1) / (best[name] - 1), 3) for name in found}
        print_json(
            {
                "pack": file.name,
                "bytes": file.stat().st_size,
                "seconds": round(seconds, 1),
                "own_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                "tokens_per_pass": found,
                "of_native": kept,
            }
        )
        for name, some in texts.items():
            print_json({"text": name, **_losses(target, reference, table, some)})


def _tokens_per_pass(table: Dictionary | Dictionaries, texts: list[list[TargetId]]) -> float:
    return round(replay_texts(texts, lambda _: DictionaryDrafter(table)).tokens_per_round, 4)


def _losses(
    target: Tokenizer[TargetId], native: BackoffTable, table: BackoffTable, texts: Texts | object
) -> dict[str, dict[str, str]]:
    """How often the first guess is right, native and compiled, per 1,000 tokens.

    By how long the native table's context is, and by whether the token begins a word.
    """
    tokens, total = target.vocabulary.tokens, 0
    right: dict[str, Counter[str]] = {"native": Counter(), "compiled": Counter()}
    assert isinstance(texts, list)
    for ids in texts:
        for end in range(1, len(ids)):
            suffix = ids[max(0, end - MAX_CONTEXT) : end]
            length = f"context of {native.match_length(suffix)}"
            word = "begins a word" if tokens[ids[end]][:1] == b" " else "inside or after"
            total += 1
            for which, one in (("native", native), ("compiled", table)):
                if one.follow(suffix, 1).ids == (ids[end],):
                    right[which][length] += 1
                    right[which][word] += 1
    return {
        kind: {
            name: f"{1000 * right['native'][name] / total:.1f} -> "
            f"{1000 * right['compiled'][name] / total:.1f}"
            for name in sorted(right["native"])
            if name.startswith("context") == (kind == "by context")
        }
        for kind in ("by context", "by place")
    }


@benchmark.command()
@shared_option
@click.option("--tokenizer", "path", type=_PATH, required=True)
@click.option("--limit", default=60, show_default=True, help="So many texts of each kind.")
@click.argument("files", nargs=-1, type=_PATH)
def languages(shared: Path, path: Path, limit: int, files: list[Path]) -> None:
    """Each PACK (or dictionary) used alone, then all at once, on Polish and English texts."""
    target: Tokenizer[TargetId] = read_tokenizer(path)
    texts = dev_texts(target, shared, limit)
    lines = (shared / "corpus" / "parallel" / "pud.en-pl.tsv").read_text("utf-8").splitlines()
    english = [
        " ".join(line.split("\t")[1] for line in lines[at : at + 10]) for at in range(0, 600, 10)
    ]
    texts["pud.en"] = target.encode_batch(english[:limit])
    tables: dict[str, Dictionary] = {}
    for file in files:
        bundle = read_bundle(file)
        if bundle.kind == "pack":
            bundle = compile_pack(target, bundle)
        tables[f"dictionary:{bundle.language}"] = BackoffTable.from_bundle(bundle)
    choices: dict[str, Dictionary | Dictionaries] = {**tables, "all": Dictionaries(tables)}
    for name, table in choices.items():
        print_json(
            {
                "dictionary": name,
                **{kind: _tokens_per_pass(table, some) for kind, some in texts.items()},
            }
        )


if __name__ == "__main__":
    benchmark()
