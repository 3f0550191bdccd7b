"""A dictionary of what the target wrote, beside those of equally many bytes of a corpus.

    python -m lab.benchmarks.own_dictionary TOKENIZER --written FILE.jsonl --answers FILE.jsonl
        [--kind KIND ...] [--table-bytes N] [--dictionary FILE] CORPUS...

FILEs written are those of `tokalign build --from-model --dictionary-only`. Answers are such a file
too, of other prompts, or the plain answers that `real_models.py` kept. The answers play the target,
without their prompts. Tokens per pass, rows taken to cost nothing: as a chain from the dictionary
alone, and as the tree of the hybrid, with what the answer repeats of itself. Equally many bytes are
lines of CORPUS, drawn at random. --dictionary, such as one of a whole corpus or of a pack, is also
used beside the one of the target's texts.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import click

from lab.benchmarks.paired_lines import PLAIN
from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.cli.output import print_json
from tokalign.evaluate.replay import emulate
from tokalign.runtime.drafting import Drafting
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import read_bundle
from tokalign.tables.dictionary import Dictionaries, Dictionary
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_PATH = click.Path(path_type=Path, exists=True)
_FEWEST = 8  # ids of an answer


def _lines(text: Sequence[str], most: int, seed: int = 0) -> list[str]:
    """Lines in a random order, so many bytes of them."""
    lines = list(text)
    Random(seed).shuffle(lines)
    size, kept = 0, list[str]()
    for line in lines:
        if size >= most:
            break
        kept.append(line)
        size += len(line.encode()) + 1
    return kept


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _answers(target: Tokenizer[TargetId], file: Path, kinds: Sequence[str]) -> list[list[TargetId]]:
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    plain = {
        (one["kind"], one["number"]): one["ids"]
        for one in lines
        if one.get("condition") == PLAIN and one["temp"] == 0 and one["kind"] in kinds
    }
    if plain:
        return list(plain.values())
    ids = target.encode_batch([one["text"] for one in lines])
    return [one for one in ids if len(one) >= _FEWEST]


@click.command()
@click.argument("tokenizer", type=_PATH)
@click.option("--written", type=_PATH, required=True)
@click.option("--answers", type=_PATH, required=True)
@click.option("--kind", "kinds", multiple=True, default=("polish",), show_default=True)
@click.option("--table-bytes", default=500_000, show_default=True)
@click.option("--dictionary", "given", type=_PATH)
@click.argument("corpus", nargs=-1, type=_PATH)
def main(
    tokenizer: Path,
    written: Path,
    answers: Path,
    kinds: Sequence[str],
    table_bytes: int,
    given: Path | None,
    corpus: Sequence[Path],
) -> None:
    """Print a line for each dictionary."""
    target: Tokenizer[TargetId] = read_tokenizer(tokenizer)
    own = list(Corpus([written]).lines())
    size = _size(own)
    # Enough lines of a large corpus, from everywhere in it.
    every = Corpus(sorted(corpus))
    total, random = sum(_size([line]) for line in every.lines()), Random(1)
    share = min(1.0, 6 * size / total)
    other = [line for line in every.lines() if random.random() < share]
    texts = _answers(target, answers, kinds)
    print_json({"answers": len(texts), "tokens": sum(map(len, texts)), "written_bytes": size})

    def table(lines: Sequence[str]) -> Dictionary:
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write("\n".join(lines))
            file.flush()
            options = BackoffOptions(max_bytes=table_bytes)
            built = build_dictionary(target, Corpus([Path(file.name)]), options, language="own")
        return BackoffTable.from_bundle(built, len(target.vocabulary))

    def show(name: str, some: Dictionary | None, text_bytes: int) -> None:
        methods = {"dictionary": False, "hybrid": True}
        found = {
            method: round(
                emulate(Drafting(method=method, dictionary=some), texts).tokens_per_round, 4
            )
            for method, always in methods.items()
            if always or some is not None
        }
        print_json({"counted": name, "bytes": text_bytes, **found})

    show("nothing", None, 0)
    half = _lines(own, size // 2) + _lines(other, size // 2)
    mine = table(own)
    for name, lines in (
        ("corpus", _lines(other, size)),
        ("half of each", half),
        ("corpus, twice as much", _lines(other, 2 * size)),
        ("both", own + _lines(other, size)),
        ("corpus, four times", _lines(other, 4 * size)),
    ):
        show(name, table(lines), _size(lines))
    show("written by the target", mine, size)
    if given is not None:
        whole = BackoffTable.from_bundle(read_bundle(given), len(target.vocabulary))
        show(given.name, whole, 0)
        show(f"{given.name} and own", Dictionaries({"dictionary:a": whole, "b": mine}), size)


if __name__ == "__main__":
    main()
