"""What a second dictionary costs where it is the wrong one, and what it saves where it is right.

    python -m lab.benchmarks.languages --data DATA

DATA is the folder of the shared data. The first dictionary is the shipped Polish one. The second is
built from nine tenths of the Crimean Tatar corpus in Latin script; the held-out runs of 100 lines
are its texts. The texts play the target's output, and the first 64 of up to 300 tokens of each are
the prompt. In the last set the prompt is in the other language than what is to be generated.
`--domain` compares two dictionaries of one language instead: one of encyclopedia articles and one
of acts of law, both built from nine tenths of a corpus.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.cli.texts import read_texts
from tokalign.evaluate.replay import replay
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.costs import Costs
from tokalign.runtime.draft.tree import FREE_ROWS
from tokalign.runtime.drafting import ASSUMED_COSTS, Drafting, make_drafter
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Round
from tokalign.runtime.statistics import Statistics
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import SOURCE, Dictionaries, Dictionary
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

PROMPT_TOKENS, LONGEST, SHORTEST = 64, 300, 200
TEXTS = 30

Texts = list[list[TargetId]]


def split(file: Path, most_lines: int | None = None) -> tuple[list[str], list[str]]:
    """The lines of a corpus to build from, and the held-out ones, twelve to a text."""
    lines = list(Corpus([file]).lines())[:most_lines]
    rest, held = list[str](), list[str]()
    for number, line in enumerate(lines):
        (rest if number // 100 % 10 else held).append(line)
    return rest, [" ".join(held[i : i + 12]) for i in range(0, len(held), 12)]


def build(target: Tokenizer[TargetId], lines: Iterable[str]) -> Dictionary:
    """A back-off table of at most 5 MB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        corpus = Corpus([path])
        return BackoffTable.from_bundle(
            build_dictionary(target, corpus, BackoffOptions(), language="xx")
        )


def cut(target: Tokenizer[TargetId], texts: Sequence[str]) -> Texts:
    """The beginnings of texts that are long enough, spread over all of them."""
    encoded = [ids[:LONGEST] for ids in target.encode_batch(list(texts)) if len(ids) >= SHORTEST]
    return encoded[:: max(1, len(encoded) // TEXTS)][:TEXTS]


def measure(texts: Texts, drafting: Drafting, costs: Costs) -> tuple[Statistics, float]:
    """The statistics of all texts, and tokens per time of a plain pass."""
    statistics, spent = Statistics(), 0.0
    for ids in texts:
        drafter = make_drafter(replace(drafting, costs=costs))
        for event in replay(ids, drafter, prompt_tokens=PROMPT_TOKENS):
            statistics.observe(event)
            spent += costs.verify(event.rows) if isinstance(event, Round) else 0.0
    return statistics, statistics.generation_tokens / spent


def print_table(sets: dict[str, Texts], tables: dict[str, Dictionaries | None]) -> None:
    """Print a row for each choice of dictionaries, for both methods where they have one."""
    heads = "".join(f" {name} |" for name in sets)
    print(f"| method, dictionaries |{heads} host ms per round |\n|---|{'---|' * len(sets)}---|")
    for method in ("hybrid", "dictionary"):
        for name, table in tables.items():
            if method == "dictionary" and table is None:
                continue
            cells, host = [], []
            for texts in sets.values():
                drafting = Drafting(options=DraftingOptions(method=method), dictionary=table)
                free, _ = measure(texts, drafting, FREE_ROWS)
                _, priced = measure(texts, drafting, ASSUMED_COSTS)
                cells.append(f" {free.tokens_per_round:.3f}, {priced:.3f} |")
                host.append(free.host_ms_per_round["p50"])
            print(f"| {method}, {name} |{''.join(cells)} {max(host):.3f} |", flush=True)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--target", default="bielik", show_default=True)
@click.option("--domain", is_flag=True, help="Two dictionaries of one language.")
def main(data: Path, target: str, domain: bool) -> None:
    """Print tokens per round if rows are free, then per time of a plain pass at 5 % per row."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    train, dev = data / "corpus" / "train", data / "corpus" / "dev"
    if domain:
        names = ("wiki", "law")
        wiki, held_wiki = split(train / "poquad_wiki.txt.zst")
        law, held_law = split(train / "ustawy.txt.zst", most_lines=100_000)
        one, other = build(tokenizer, wiki), build(tokenizer, law)
        sets = {"articles": cut(tokenizer, held_wiki), "acts": cut(tokenizer, held_law)}
    else:
        names = ("pl", "crh")
        rest, held = split(data / "corpus" / "crh" / "crh_lat.txt.zst")
        shipped = open_dictionary(tokenizer, languages=["pl"])
        assert shipped is not None
        [one], other = shipped.by_source.values(), build(tokenizer, rest)
        sets = {
            "dev/wiki": cut(tokenizer, read_texts(dev / "wiki.jsonl")),
            "dev/sejm": cut(tokenizer, read_texts(dev / "sejm.txt")),
            "Crimean Tatar": cut(tokenizer, held),
        }
        pairs = zip(sets["Crimean Tatar"], sets["dev/wiki"], strict=False)
        sets["prompt crh, text pl"] = [a[:PROMPT_TOKENS] + b[:SHORTEST] for a, b in pairs]
    both = Dictionaries({f"dictionary:{names[0]}": one, f"dictionary:{names[1]}": other})
    alone = {
        name: Dictionaries({SOURCE: table}) for name, table in zip(names, (one, other), strict=True)
    }
    print_table(sets, {"none": None, **alone, "both": both})


if __name__ == "__main__":
    main()
