"""`tokalign check`: will this pair work well? It takes two tokenizers, no weights, and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokalign.cli.command import NAME, PATH, Command, Option
from tokalign.cli.options import FIELD, TARGET_TOKENIZER
from tokalign.cli.output import note, print_figures, print_json
from tokalign.shipped import LANGUAGES, POLISH, sample_text
from tokalign.tables.dictionary import HOW_TO_BUILD

if TYPE_CHECKING:
    from tokalign.build.alignment.fit import BoundaryRates, Coverage
    from tokalign.evaluate.replay import DictionarySaving

_NOT_MEASURED = "not measured; tokalign calibrate --target TARGET --draft DRAFT does it"


_OPTIONS = (
    TARGET_TOKENIZER,
    Option("--draft", "The draft, or its tokenizer alone.", type=NAME, required=True),
    Option(
        "--language",
        f"Measure on a sample text: {', '.join(LANGUAGES)}. Default: {POLISH}.",
        metavar="CODE",
        excludes="FILE",
    ),
    FIELD,
    click.Argument(["file"], required=False, type=PATH),
)


@click.command("check", cls=Command, params=[*_OPTIONS])
def command(
    *,
    draft: str,
    target: str,
    file: Path | None,
    language: str | None,
    field: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare two tokenizers on a text, and say what to expect of the pair and of dictionaries.

    FILE is the text: .txt or .jsonl (also .gz, .zst, .xz) or .parquet; without it, a sample text.
    """
    from tokalign.build.alignment.alignment_bundle import align
    from tokalign.build.alignment.fit import measure_boundaries, measure_coverage
    from tokalign.build.corpus import Corpus
    from tokalign.cost.curve import ASSUMED_DRAFT, PUBLISHED, read_curve
    from tokalign.cost.store import find_curve_of_tokenizers
    from tokalign.evaluate.replay import measure_dictionaries
    from tokalign.names.registry import Resolved, resolve_tokenizer
    from tokalign.tables.opening import open_dictionary
    from tokalign.tokenizer.spec import Level
    from tokalign.tokenizer.vocabulary import DraftId, TargetId

    path = file or sample_text(language or POLISH)
    other = "" if file or language else ", in Polish; --language or a FILE chooses another one"
    ours: Resolved[DraftId] = resolve_tokenizer(draft)
    theirs: Resolved[TargetId] = resolve_tokenizer(target)
    for line in (ours.description, theirs.description, f"text: {path.name}{other}"):
        note(line, quiet=quiet)
    same = ours.tokenizer.fingerprint == theirs.tokenizer.fingerprint
    lines = list(_lines(Corpus([path], field=field).lines()))
    pair = (ours.tokenizer, theirs.tokenizer)
    fit: dict[str, object] = {"verdict": _IDS_ONLY}
    if all(one.level is not Level.IDS_ONLY for one in pair):
        alignment = align(ours.tokenizer.vocabulary, theirs.tokenizer.vocabulary)
        coverage = measure_coverage(*pair, alignment.intersection, lines)
        rates = measure_boundaries(*pair, lines)
        fit = {
            "intersection_pairs": alignment.intersection.pairs,
            **asdict(coverage),
            **asdict(rates),
            "verdict": _verdict(coverage, rates, same),
        }
    tables = open_dictionary(theirs.tokenizer, note=partial(note, quiet=quiet))
    saving = measure_dictionaries(theirs.tokenizer, lines, tables)
    curve = find_curve_of_tokenizers(theirs.tokenizer.fingerprint, ours.tokenizer.fingerprint)
    result = {
        "draft_tokenizer": ours.tokenizer.describe(),
        "target_tokenizer": theirs.tokenizer.describe(),
        "draft_vocabulary_size": len(ours.tokenizer.vocabulary),
        "target_vocabulary_size": len(theirs.tokenizer.vocabulary),
        "same_tokenizer": same,
        **fit,
        "found_dictionaries": saving.found,
        "own_dictionary": saving.own,
        "dictionaries": _expectation(saving, own_text=file is not None),
        "this_machine": _NOT_MEASURED if curve is None else curve.expectation(),
    }
    machines = {
        f"{device}, {bits} bits": read_curve(name).expectation(assumed_draft=ASSUMED_DRAFT)
        for device, by_bits in PUBLISHED.items()
        for bits, name in by_bits.items()
    }
    if as_json:
        print_json({"target": target, "draft": draft, **result, "machines": machines})
    else:
        print_figures(
            {name.replace("_", " "): value for name, value in result.items()} | machines,
            as_json=False,
        )


_IDS_ONLY = (
    "One of the tokenizers is used by its ids only: no draft model of another tokenizer can draft "
    "here. Dictionaries, context copy and the logit store can."
)


def _lines(lines: Iterable[str]) -> Iterator[str]:
    """The first lines, about 4 million characters; with more text the shares hardly change."""
    left = 4_000_000
    for line in lines:
        yield line
        left -= len(line)
        if left < 0:
            return


def _verdict(coverage: Coverage, rates: BoundaryRates, same: bool) -> str:
    """What the counts mean for the speed of decoding."""
    if same:
        return "Same tokenizer: every draft token is a target token, no translation is needed."
    reach = coverage.target_token_coverage
    fit = "good" if reach > 0.95 else "fair" if reach > 0.8 else "poor"
    ratio = coverage.draft_fertility / coverage.target_fertility
    return (
        f"A {fit} fit: {reach:.1%} of the target's tokens can be drafted as they are; "
        f"the draft spends {ratio:.2f} tokens per target token. After a target token "
        f"{rates.draft_tokens_ruled_out:,} draft tokens are ruled out on average, and "
        f"{rates.healed_boundaries:.1%} of the boundaries need healing "
        f"({rates.tokens_taken_back:.2f} tokens taken back)."
    )


def _expectation(saving: DictionarySaving, *, own_text: bool) -> str:
    """What dictionaries save on this text, in words."""
    if saving.found is None:
        found = "No dictionary of this target was found."
    else:
        found = f"Those found give {saving.found:.2f} tokens per pass of the target on this text."
    if saving.own is None:
        own = "Give a text of at least 200 lines to see what a dictionary of such text would give."
    else:
        own = (
            f"One of nine tenths of this text gives {saving.own:.2f} on the rest; "
            "one of more text of this kind gives more."
        )
    if own_text and saving.own is not None and saving.own > (saving.found or 1.0):
        own += f" Build it with: {HOW_TO_BUILD}"
    return f"{found} {own}"
