"""What a dictionary of one's own domain adds to a general one, on held-out documents.

    python -m lab.benchmarks.domains --data DATA [--domain msdocs] [--general 8]

DATA is the folder of the shared data. For each domain, the last tenth of its corpus is held out (as
whole blocks of lines, twelve lines to a text), and its dictionary is built from the rest, with the
settings of `tokalign learn`. The general dictionary is built from all other corpora, of each at
most `--general` megabytes; of the same size, so that none has more room. The held-out texts play
the target; the first 64 of up to 300 tokens of each are the prompt.
"""

from __future__ import annotations

from pathlib import Path

import click

from lab.benchmarks.languages import Texts, build, cut, measure, split
from tokalign.build.corpus import Corpus
from tokalign.cost.expected_gain import Costs
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.hybrid import FREE_ROWS
from tokalign.runtime.drafting import ASSUMED_COSTS, Drafting
from tokalign.tables.dictionary import Dictionaries, Dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

DOMAINS = {
    "msdocs": ("msdocs_dynamics",),
    "manpages": ("manpages_pl",),
    "law": ("ustawy",),
}
"""A domain's own corpora; they are not in the general dictionary that it is compared with."""

LINES = 40_000
"""The most lines of a domain: what one person or team has."""


def corpora(folder: Path) -> dict[str, Path]:
    """The training corpora by name."""
    return {path.name.split(".")[0]: path for path in sorted(folder.glob("*.txt.zst"))}


def general_lines(files: list[Path], most_bytes: int) -> list[str]:
    """The first megabytes of each corpus."""
    lines = []
    for file in files:
        left = most_bytes
        for line in Corpus([file]).lines():
            left -= len(line)
            if left < 0:
                break
            lines.append(line)
    return lines


def row(texts: Texts, table: Dictionary | None, method: str) -> str:
    """Tokens per pass if rows are free, and per time of a plain pass at 5 % per row."""

    def tokens(costs: Costs) -> tuple[float, float]:
        statistics, rate = measure(texts, Drafting(method=method, dictionary=table), costs)
        return statistics.tokens_per_round, rate

    return f"{tokens(FREE_ROWS)[0]:.3f}, {tokens(ASSUMED_COSTS)[1]:.3f}"


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--target", default="bielik", show_default=True)
@click.option("--general", type=click.FloatRange(min=0.1), default=8.0, show_default=True)
@click.option("--domain", "domains", type=click.Choice(list(DOMAINS)), multiple=True)
def main(data: Path, target: str, general: float, domains: tuple[str, ...]) -> None:
    """Print a table for each domain."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    files = corpora(data / "corpus" / "train")
    for domain in domains or DOMAINS:
        own = DOMAINS[domain]
        rest, held = split(files[own[0]], most_lines=LINES)
        texts = cut(tokenizer, held)
        others = [path for name, path in files.items() if name not in own]
        tables = {
            "general": build(tokenizer, general_lines(others, int(general * 1e6))),
            "domain": build(tokenizer, rest),
        }
        choices: dict[str, Dictionary | None] = {
            "none": None,
            **tables,
            "both": Dictionaries({f"dictionary:{name}": one for name, one in tables.items()}),
        }
        size = sum(len(line.encode()) for line in rest) / 1e6
        print(f"\n{domain}: {size:.1f} MB of its own text, {len(texts)} held-out texts")
        print("| dictionaries | hybrid | dictionary method |\n|---|---|---|")
        for name, table in choices.items():
            alone = "" if table is None else row(texts, table, "dictionary")
            print(f"| {name} | {row(texts, table, 'hybrid')} | {alone} |", flush=True)


if __name__ == "__main__":
    main()
