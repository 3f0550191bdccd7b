"""Tokenizer fertility on parallel text, and its correlation with what dictionaries save.

    python benchmarks/fertility.py parallel --data FOLDER
    python benchmarks/fertility.py saving --data FOLDER [--packages TEXTS] [--characters N]

Fertility is tokens per word, where white space separates words. Languages that cut text into words
differently are compared by parity, the tokens of a text over those of its translation (Petrov et
al., "Language model tokenizers introduce unfairness between languages", 2023).

FOLDER has `parallel/` (PUD English-Polish, UDHR) and the corpora `crh/`, `train/` and `dev/`. For
`saving`, the tables of all languages are built from the same number of characters, so that only
fertility differs and not the size of the corpus. The languages are Crimean Tatar in two scripts,
with every tenth line held out, and Polish, with texts from `dev/wiki.jsonl`; with TEXTS, the output
of `package_texts.py`, also Ukrainian and Czech, with runs of 100 lines held out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import correlation

import click
from crimean_tatar import hold_out

from tokalign.build.corpus import Corpus
from tokalign.cli.texts import read_texts
from tokalign.evaluate.replay import emulate
from tokalign.evaluate.sweep import Variant
from tokalign.evaluate.variants import VariantBuilder
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.drafting import Drafting
from tokalign.tables.opening import read_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

NAMES = ("mistral", "mistral-nemo", "llama3.2", "qwen2.5")
VARIANTS = (Variant("dictspec", 3, 200_000, 0.2), Variant("backoff", 8, 5_000_000, 0.05))


@dataclass(frozen=True, slots=True)
class Fertility:
    """What a tokenizer makes of some texts, counted over all of them."""

    tokens: int
    words: int
    bytes: int

    @classmethod
    def of(cls, tokenizer: Tokenizer[TargetId], texts: Sequence[str]) -> Fertility:
        """Count tokens, words and bytes of the texts."""
        return cls(
            tokens=sum(map(len, tokenizer.encode_batch(list(texts)))),
            words=sum(len(text.split()) for text in texts),
            bytes=sum(len(text.encode()) for text in texts),
        )

    @property
    def tokens_per_word(self) -> float:
        """The fertility itself."""
        return self.tokens / self.words

    @property
    def bytes_per_token(self) -> float:
        """Mean length of a token in bytes."""
        return self.bytes / self.tokens


data_option = click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
names_option = click.option(
    "--tokenizer", "names", multiple=True, default=NAMES, help="Name or folder; repeatable."
)


@click.group()
def main() -> None:
    """Tokenizer fertility."""


@main.command()
@data_option
@names_option
def parallel(data: Path, names: tuple[str, ...]) -> None:
    """Print tokens per word, and parity: the tokens of a text over those of the English text."""
    folder = data / "parallel"
    rows = [line.split("\t") for line in read_texts(folder / "pud.en-pl.tsv")]
    texts = {
        "PUD": {"English": [row[1] for row in rows], "Polish": [row[2] for row in rows]},
        "UDHR": {
            language: read_texts(folder / f"udhr.{code}.txt")
            for language, code in (("English", "eng"), ("Polish", "pol"), ("Ukrainian", "ukr"))
        },
    }
    print("| text | tokenizer | language | tokens per word | bytes per token | parity |")
    print("|---|---|---|---|---|---|")
    for name in names:
        tokenizer: Tokenizer[TargetId] = resolve_tokenizer(name).tokenizer
        for corpus, languages in texts.items():
            found = {k: Fertility.of(tokenizer, v) for k, v in languages.items()}
            for language, one in found.items():
                print(
                    f"| {corpus} | {Path(name).name} | {language} | {one.tokens_per_word:.2f} "
                    f"| {one.bytes_per_token:.2f} | {one.tokens / found['English'].tokens:.2f} |"
                )


@main.command()
@data_option
@names_option
@click.option("--packages", type=click.Path(path_type=Path, exists=True))
@click.option("--only", multiple=True, help="Only this language; repeatable.")
@click.option("--characters", default=1_500_000, show_default=True, help="Of each corpus.")
@click.option("--texts", default=400, show_default=True, help="Held-out lines of each language.")
def saving(
    data: Path,
    names: tuple[str, ...],
    packages: Path | None,
    only: tuple[str, ...],
    characters: int,
    texts: int,
) -> None:
    """Print a row per language and tokenizer, then Pearson's r over all rows and by language."""
    kinds = [variant.kind for variant in VARIANTS]
    points: list[tuple[str, float, list[float]]] = []
    print(
        f"| language | tokenizer | tokens per word | {' | '.join(kinds)} |\n|---|---|---|---|---|"
    )
    for language, (corpus, held) in languages(data, packages, characters, texts).items():
        if only and language not in only:
            continue
        for name in names:
            target: Tokenizer[TargetId] = resolve_tokenizer(name).tokenizer
            fertility = Fertility.of(target, held).tokens_per_word
            speedups = emulate_all(target, corpus, held)
            points.append((language, fertility, speedups))
            shown = " | ".join(f"{speedup:.3f}" for speedup in speedups)
            print(f"| {language} | {Path(name).name} | {fertility:.2f} | {shown} |", flush=True)
    print()
    for chosen in (None, *dict.fromkeys(language for language, _, _ in points)):
        of_it = [(x, ys) for language, x, ys in points if chosen in (None, language)]
        for place, kind in enumerate(kinds):
            if len(of_it) < 2:
                continue
            r = correlation([x for x, _ in of_it], [ys[place] for _, ys in of_it])
            print(f"Pearson r, {chosen or 'all'}, {kind}: {r:.2f} ({len(of_it)} points)")


def languages(
    data: Path, packages: Path | None, characters: int, texts: int
) -> dict[str, tuple[list[str], list[str]]]:
    """The corpus and the held-out lines of each language."""
    found = {}
    for folder in sorted(packages.iterdir()) if packages is not None else ():
        lines = Corpus(sorted(folder.glob("*.txt"))).lines()
        rest, held = hold_out(lines, "blocks", count=texts)
        every = max(1, sum(map(len, rest)) // characters)  # some of every package
        found[folder.name] = up_to(rest[::every], characters), held
    for script in ("crh_cyr", "crh_lat"):
        lines = Corpus([data / "crh" / f"{script}.txt.zst"]).lines()
        rest, held = hold_out(lines, "every tenth line", count=texts)
        found[script] = up_to(rest, characters), held
    polish = Corpus([data / "train" / "poquad_wiki.txt.zst"]).lines()
    articles = read_texts(data / "dev" / "wiki.jsonl")
    held = [line for article in articles for line in article.split("\n") if line.strip()]
    found["pl"] = up_to(islice(polish, 1_000_000), characters), held[:: max(1, len(held) // texts)]
    return found


def up_to(lines: Sequence[str] | islice[str], characters: int) -> list[str]:
    """The first lines, as many as have so many characters."""
    kept, length = [], 0
    for line in lines:
        if length >= characters:
            break
        kept.append(line)
        length += len(line)
    return kept


def emulate_all(
    target: Tokenizer[TargetId], corpus: Sequence[str], held: Sequence[str]
) -> list[float]:
    """Tokens per step with each kind of table."""
    encoded = target.encode_batch(list(held))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.txt"
        path.write_text("\n".join(corpus), encoding="utf-8")
        builder = VariantBuilder(target, Corpus([path]))
        tables = [read_dictionary(builder.build(variant)) for variant in VARIANTS]
    draftings = [Drafting(method="dictionary", dictionary=table) for table in tables]
    return [emulate(drafting, encoded).tokens_per_round for drafting in draftings]


if __name__ == "__main__":
    main()
