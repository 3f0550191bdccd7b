"""DictSpec's own languages: what dictionaries save on Crimean Tatar, by script and vocabulary.

    python benchmarks/crimean_tatar.py --data DATA

DATA holds corpus/crh/crh_cyr.txt.zst and crh_lat.txt.zst. Every tenth line is held out and decoded
by the dictionaries of the other nine. "blocks" holds out runs of 100 lines instead, so that a
held-out line rarely has its neighbours in the dictionary.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import (
    BackoffOptions,
    DictspecOptions,
    build_dictionary,
)
from tokalign.cli.output import print_json
from tokalign.evaluate.replay import replay
from tokalign.runtime.draft.dictionary import DictionaryDrafter
from tokalign.runtime.statistics import Statistics
from tokalign.tables.opening import read_dictionary
from tokalign.tokenizer.registry import resolve_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

PAPER = {
    ("mistral", "crh_cyr"): 1.65,
    ("mistral", "crh_lat"): 1.35,
    ("mistral-nemo", "crh_cyr"): 1.51,
    ("mistral-nemo", "crh_lat"): 1.21,
    ("llama3.2", "crh_cyr"): 1.61,
    ("llama3.2", "crh_lat"): 1.22,
}
"""DictSpec, Table 4: speed-up by vocabulary and script."""

_SPLITS: dict[str, Callable[[int], bool]] = {
    "every tenth line": lambda number: number % 10 == 0,
    "blocks": lambda number: number // 100 % 10 == 0,
}


@click.command()
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--vocabulary",
    "names",
    multiple=True,
    default=("mistral", "llama3.2", "qwen2.5", "mistral-nemo"),
)
@click.option("--split", type=click.Choice(list(_SPLITS)), default="every tenth line")
@click.option("--texts", default=1500, show_default=True, help="Held-out lines that are decoded.")
def benchmark(data: Path, names: tuple[str, ...], split: str, texts: int) -> None:
    """One JSON line per vocabulary and script."""
    for script in ("crh_cyr", "crh_lat"):
        lines = list(Corpus([data / "corpus" / "crh" / f"{script}.txt.zst"]).lines())
        held = [line for number, line in enumerate(lines) if _SPLITS[split](number)]
        rest = [line for number, line in enumerate(lines) if not _SPLITS[split](number)]
        sample = held[:: max(1, len(held) // texts)]
        for name in names:
            figures = {"split": split, "script": script, "vocabulary": name}
            print_json(figures | _measure(name, rest, sample, PAPER.get((name, script))))


def _measure(name: str, rest: list[str], sample: list[str], paper: float | None) -> dict[str, Any]:
    target: Tokenizer[TargetId] = resolve_tokenizer(name).tokenizer
    encoded = target.encode_batch(sample)
    words = sum(len(text.split()) for text in sample)
    figures: dict[str, Any] = {"tokens_per_word": round(sum(map(len, encoded)) / words, 2)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rest.txt"
        path.write_text("\n".join(rest), encoding="utf-8")
        for kind, options in (("dictspec", DictspecOptions()), ("backoff", BackoffOptions())):
            built = build_dictionary(target, Corpus([path]), options, language="crh")
            drafter, statistics = DictionaryDrafter(read_dictionary(built)), Statistics()
            for ids in encoded:
                for event in replay(ids, drafter):
                    statistics.observe(event)
            figures[kind] = round(statistics.tokens_per_round, 3)
    return figures | {"paper": paper}


if __name__ == "__main__":
    benchmark()
