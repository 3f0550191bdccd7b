"""`tokalign check`: what can draft for a target, and how well? It takes tokenizers and seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.calibrate import measure_shape
from tokalign.cli.command import MODEL_NAME, NAME, Command, Option, flag
from tokalign.cli.options import FIELD, HTML, TRUST
from tokalign.cli.output import note, paragraph, rows, show, skipping_lines, table
from tokalign.cli.texts import language_of_model
from tokalign.errors import DisturbedError
from tokalign.storage import LANGUAGES, parse_json, sample_text
from tokalign.tables.dictionary import HOW_TO_BUILD

if TYPE_CHECKING:
    from tokalign.evaluate.replay import DictionarySaving
    from tokalign.runtime.cost import CostCurve
    from tokalign.tokenizer.tokenizer import Tokenizer
    from tokalign.tokenizer.vocabulary import DraftId, TargetId

_OPTIONS = (
    Option("--target", "The target, or its tokenizer alone.", MODEL_NAME, required=True),
    Option("--draft", "A draft model to judge, or its tokenizer alone.", MODEL_NAME),
    Option("--drafter", "A trained drafter to judge, before its weights are downloaded.", NAME),
    Option(
        "--language",
        f"Language of the sample: {', '.join(LANGUAGES)}. Default: that of the model, else en.",
        NAME,
        metavar="CODE",
    ),
    flag(
        "--measure",
        "Time passes of a model of the target's shape, with random weights and without a download.",
    ),
    FIELD,
    TRUST,
    HTML,
    click.Argument(["file"], required=False, type=NAME, metavar="[FILE]"),
)

_NOT_MEASURED = (
    "What passes cost here was not measured: --measure times a model of the target's shape, "
    "tokalign calibrate the models."
)


@click.command("check", cls=Command, params=[*_OPTIONS])
def command(
    *,
    draft: str | None,
    drafter: str | None,
    target: str,
    file: str | None,
    language: str | None,
    measure: bool,
    field: str,
    trust_remote_code: bool,
    html: Path | None,
) -> None:
    """Say what to expect of dictionaries, of a pair of tokenizers (--draft), of a --drafter.

    FILE is the text to measure on, given as to `tokalign build`; without it, a sample text.
    """
    from tokalign.build.corpus import Corpus
    from tokalign.build.dictionary.dictionary_bundle import dictionary_of_lines
    from tokalign.build.sources import find_sources
    from tokalign.evaluate.drafter_fit import judge_drafter
    from tokalign.evaluate.replay import measure_dictionaries
    from tokalign.names.published_drafters import published_for
    from tokalign.names.registry import Resolved, resolve_tokenizer
    from tokalign.runtime.cost import ASSUMED_DRAFT, PUBLISHED, find_curve_of_tokenizers, read_curve
    from tokalign.tables.finding import find_packs, packs_to_compile
    from tokalign.tables.opening import open_dictionary

    def read(name: str) -> Resolved[Any]:
        resolved: Resolved[Any] = resolve_tokenizer(name, trust_remote_code=trust_remote_code)
        note(resolved.description)
        return resolved

    ours = None if draft is None else read(draft).tokenizer
    decoding = read(target)
    theirs = decoding.tokenizer
    chosen = language or language_of_model(theirs.fingerprint, decoding.folder)
    if file is None and language is None:
        note(f"text -> the sample in {chosen}; --language or a FILE chooses another one")
    # With more text the shares hardly change.
    sources = find_sources([str(file or sample_text(chosen))])
    with skipping_lines() as skip:
        lines = list(islice(Corpus(sources, field=field, report=skip).lines(), 20_000))
    own: dict[str, Any] = {"model_folder": decoding.folder}
    tables = open_dictionary(theirs, **own, note=note)
    packs = packs_to_compile(theirs.fingerprint, find_packs(**own), **own)
    if pack := packs.get(chosen):
        note(
            f"the pack of {chosen} is left out until it is compiled for this tokenizer: "
            f"tokalign build --from-pack {quote(str(pack))} --target {quote(target)}"
        )
    saving = measure_dictionaries(theirs, lines, tables, dictionary_of_lines)
    known_of = theirs.fingerprint, "" if ours is None else ours.fingerprint
    curve, unknown = find_curve_of_tokenizers(*known_of), _NOT_MEASURED
    if measure:
        try:
            curve = measure_shape(target)
        except DisturbedError as error:
            unknown = str(error)
    if drafter is None:
        verdict, fit = _fit(ours, theirs, lines)
    else:
        config = None if decoding.folder is None else _config(decoding.folder)
        verdict, fit = judge_drafter(drafter, target, theirs, config, lines)
    published = published_for(target)
    assumed = 0.0 if ours is None else ASSUMED_DRAFT
    result = {
        "target": target,
        "draft": draft,
        "verdict": verdict,
        "dictionaries": _expectation(saving, own_text=file is not None),
        "this_machine": curve.expectation(assumed_draft=assumed) if curve else unknown,
        **({} if drafter is None else {"drafter": drafter}),
        "published_drafter": published and str(published),
        "target_tokenizer": theirs.describe(),
        "target_vocabulary_size": len(theirs.vocabulary),
        **fit,
        "found_dictionaries": saving.found,
        "own_dictionary": saving.own,
        "machines": {
            f"{device}, {bits} bits": read_curve(name).expectation(assumed_draft=assumed)
            for device, by_bits in PUBLISHED.items()
            for bits, name in by_bits.items()
        },
    }
    if html is not None:
        _write_page(html, result, curve, str(file or f"the sample in {chosen}"))
    show(result, lambda: _in_words(result))


_VERDICTS = ("verdict", "dictionaries", "this_machine")


def _write_page(path: Path, result: Mapping[str, Any], curve: CostCurve | None, text: str) -> None:
    """Write a result as a page. text: what was measured on. Raises: as `write_report`."""
    from tokalign.cli.report import bar_plot, curve_plot, write_report

    tables = {
        "dictionaries that were found": result["found_dictionaries"],
        "one of this text": result["own_dictionary"],
    }
    saved = {name: value for name, value in tables.items() if value is not None}
    savings = bar_plot(
        "Tokens per pass of the target on this text; plain decoding has 1.",
        [*saved],
        {"tokens per pass": [*saved.values()]},
    )
    write_report(
        path,
        title=f"What can draft for {result['target']}",
        about=f"Measured on {text}, with tokenizers alone.",
        verdict=[str(result[name]) for name in _VERDICTS],
        plots=[*([savings] if saved else []), curve_plot(curve)],
        rows=rows(result),
    )


def _in_words(result: Mapping[str, object]) -> str:
    verdicts = [str(result[name]) for name in _VERDICTS]
    figures = {name: value for name, value in result.items() if result[name] not in verdicts}
    return "\n\n".join([*map(paragraph, verdicts), table(rows(figures))])


def _config(folder: Path) -> dict[str, object] | None:
    try:
        config = parse_json((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _fit(
    draft: Tokenizer[DraftId] | None, target: Tokenizer[TargetId], lines: Sequence[str]
) -> tuple[str, dict[str, object]]:
    from tokalign.build.alignment import intersect, measure_coverage
    from tokalign.evaluate.drafter_fit import fit_in_a_word
    from tokalign.tokenizer.spec import Level

    if draft is None:
        words = sum(len(line.split()) for line in lines)
        fertility = round(sum(len(target.encode(line)) for line in lines) / max(1, words), 4)
        return (
            "No draft model is given (--draft NAME judges one): dictionaries and the text itself "
            f"draft. The target writes a word of this text in {fertility:.2f} tokens.",
            {"target_fertility": fertility},
        )
    same = draft.fingerprint == target.fingerprint
    about: dict[str, object] = {
        "draft_tokenizer": draft.describe(),
        "draft_vocabulary_size": len(draft.vocabulary),
        "same_tokenizer": same,
    }
    same_verdict = "Same tokenizer: every draft token is a target token, no translation is needed."
    if Level.IDS_ONLY in (draft.level, target.level):
        other_verdict = (
            "One of the tokenizers is used by its ids only: no draft model of another tokenizer "
            "can draft here. Dictionaries, context copy and the logit store can."
        )
        return same_verdict if same else other_verdict, about
    intersection = intersect(draft.vocabulary, target.vocabulary)
    coverage = measure_coverage(draft, target, intersection, lines)
    about |= {"intersection_pairs": intersection.pairs, **asdict(coverage)}
    if same:
        return same_verdict, about
    reach = coverage.target_token_coverage
    fit = fit_in_a_word(reach)
    ratio = coverage.draft_fertility / coverage.target_fertility
    return (
        f"A {fit} fit: {reach:.1%} of the target's tokens can be drafted as they are; "
        f"the draft spends {ratio:.2f} tokens per target token.",
        about,
    )


def _expectation(saving: DictionarySaving, *, own_text: bool) -> str:
    if saving.found is None:
        found = "No dictionary of this target was found."
    else:
        found = (
            f"Dictionaries that are here give {saving.found:.2f} tokens per pass on this text, and "
            "less on other text if they were made from it."
        )
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
