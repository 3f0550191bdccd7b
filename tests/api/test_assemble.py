"""Assembling: the command line and the API give the same decoder for equal options."""

from __future__ import annotations

import re
from ast import literal_eval
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from click.testing import CliRunner
from random_models import random_model, write_model
from small_tables import write_alignment, write_dictionary

import tokalign
from tokalign.api.assemble import assemble, choose_dtype, load_decoder, load_models
from tokalign.cli.decode import command
from tokalign.errors import CacheError, MissingAssetError, UsageError
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft import opening_knowledge
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.mlx import weights
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import CacheOptions, DraftingOptions, several
from tokalign.runtime.request import Request
from tokalign.tables import bundle
from tokalign.tables.dictionary import Dictionaries

PROMPT = "Zażółć gęślą"


@dataclass(frozen=True)
class Files:
    """Models and tables; `bare` is the target again, without tables in its folder."""

    target: Path
    bare: Path
    draft: Path
    dictionary: Path
    own: Path
    alignment: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("models")
    target = write_model(folder / "target", vocabulary_size=420)
    bare = write_model(folder / "bare", vocabulary_size=420)
    draft = write_model(folder / "draft", vocabulary_size=340, seed=1)
    ours, theirs = (model.tokenizer for model in load_models([str(target), str(draft)]))
    write_dictionary(target / "pl.dictionary.tok", ours)
    write_alignment(target / "draft.alignment.tok", theirs, ours)
    return Files(
        target=target,
        bare=bare,
        draft=draft,
        dictionary=write_dictionary(folder / "other.dictionary.tok", ours, " Zażółć gęślą jaźń"),
        own=write_dictionary(folder / "own.dictionary.tok", ours, " jaźń gęślą", language="me"),
        alignment=write_alignment(folder / "a.alignment.tok", theirs, ours),
    )


class Assembled(BaseException):
    """Ends a generation where its decoder would begin."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Decoder, Request]]:
    """Every decoder that is about to run, with its request; none of them does."""
    seen: list[tuple[Decoder, Request]] = []

    def begin(decoder: Decoder, request: Request, **_: Any) -> None:
        seen.append((decoder, request))
        raise Assembled

    monkeypatch.setattr(Decoder, "begin", begin)
    return seen


OPTION_SETS = {
    "nothing": "",
    "plain": "--method plain",
    "a draft model": "--draft DRAFT",
    "no tables beside the target": "--target BARE --draft DRAFT",
    "the target as its own draft": "--draft TARGET",
    "method draft": "--draft DRAFT --method draft --translation context:4 --num-draft-tokens 5",
    "tables by name": "--target BARE --draft DRAFT --dictionary DICTIONARY --alignment ALIGNMENT",
    "several dictionaries": "--dictionary DICTIONARY --dictionary OWN --language pl",
    "only a dictionary": "--method dictionary",
    "a draft model without use": "--draft DRAFT --method copy",
    "sampling": "--temp 0.7 --top-p 0.9 --top-k 5 --min-p 0.1 --seed 3",
    "a cache": "--kv-bits 8 --kv-group-size 32 --quantized-kv-start 7 --prefill-step-size 9",
}


def as_keywords(words: list[str]) -> dict[str, Any]:
    """What the API is given where these options are typed."""
    found: dict[str, Any] = {}
    for option, typed in zip(words[::2], words[1::2], strict=True):
        name = option[2:].replace("-", "_")
        value = literal_eval(typed) if re.fullmatch(r"[0-9.]+", typed) else typed
        found[name] = [*found.get(name, ()), value] if name == "dictionary" else value
    names = {"temp": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}
    chosen = {names.get(name, name): found.pop(name) for name in (*names, "seed") if name in found}
    return found | ({"sampling": Sampling(**chosen)} if chosen else {})


def sections(table: Any) -> Any:
    """The content of a table, to be compared; None for no table."""
    if isinstance(table, Dictionaries):
        return {name: sections(one) for name, one in table.by_source.items()}
    return table if table is None else {k: bytes(v) for k, v in table.to_sections().items()}


def as_texts(options: DraftingOptions) -> dict[str, list[str]]:
    """The options, in which one value and a list of one are alike, and so are paths and texts."""
    return {f.name: [*map(str, several(getattr(options, f.name)))] for f in fields(options)}


def shown(decoder: Decoder) -> Any:
    """Models, options and tables, to be compared. What only one request learns is its own."""
    drafting, models = decoder.drafting, (decoder.target, decoder.draft)
    own = {"options", "dictionary", "alignment", "knowledge", "model_worth", "mixing"}
    return (
        [one and (one.tokenizer.fingerprint, one.stop_ids) for one in models],
        as_texts(drafting.options),
        {f.name: getattr(drafting, f.name) for f in fields(Drafting) if f.name not in own},
        sections(drafting.dictionary),
        drafting.knowledge is None,
        decoder.draft and sections(drafting.alignment()),
        decoder.cache,
    )


@pytest.mark.parametrize("name", OPTION_SETS)
def test_command_line_and_api_assemble_the_same_decoder(
    name: str, files: Files, begun: list[tuple[Decoder, Request]]
) -> None:
    words = OPTION_SETS[name].split()
    arguments = [str(getattr(files, w.lower())) if w.isupper() else w for w in words]
    if "--target" not in arguments:
        arguments += ["--target", str(files.target)]
    with pytest.raises(Assembled):
        CliRunner().invoke(command, [*arguments, "-p", PROMPT], catch_exceptions=False)

    how = as_keywords(arguments)
    model, tokenizer = mlx_lm.load(how.pop("target"))
    if draft := how.pop("draft", None):
        how["draft_model"], how["draft_tokenizer"] = mlx_lm.load(draft)
    notes: list[str] = []
    with pytest.raises(Assembled):
        tokalign.stream_generate(model, tokenizer, PROMPT, note=notes.append, **how)

    (by_command, ours), (by_api, theirs) = begun
    assert shown(by_command) == shown(by_api)
    if "sampling" in how:
        assert ours.sampler == theirs.sampler
    else:
        assert isinstance(ours.sampler, Sampling)
        assert ours.sampler.temperature == Sampling().temperature == 0
    if name in ("nothing", "a draft model", "only a dictionary"):
        assert f"dictionary -> {files.target / 'pl.dictionary.tok'}" in notes


def test_tables_beside_the_model_come_before_a_computed_one(files: Files) -> None:
    notes: list[str] = []
    options = DraftingOptions(method="draft", num_draft_tokens=2)
    beside = load_decoder(str(files.target), str(files.draft), options, note=notes.append)
    assert not any(line.startswith("alignment") for line in notes), "opened before it is needed"
    assert beside.drafting.alignment() is beside.drafting.alignment()
    assert notes[-1] == f"alignment -> {files.target / 'draft.alignment.tok'}"
    bare = load_decoder(str(files.bare), str(files.draft), options, note=notes.append)
    bare.drafting.alignment()
    assert notes[-1].startswith("alignment -> computed now")
    load_decoder(str(files.bare), None, DraftingOptions(), note=notes.append)
    assert any("tokalign build" in line and "tokalign tables pull" in line for line in notes)


def test_a_draft_model_without_use_is_named_once_and_not_loaded(files: Files) -> None:
    notes: list[str] = []
    options = DraftingOptions(method="copy", num_draft_tokens=2)
    decoder = load_decoder(str(files.target), "no/such-model", options, note=notes.append)
    assert decoder.draft is None
    assert [line for line in notes if "draft model is not used" in line] == [notes[0]]
    assemble(decoder.target, decoder.target, options, note=notes.append)
    assert notes[-1] == notes[0]


def test_a_method_without_what_it_needs_is_refused(files: Files) -> None:
    with pytest.raises(UsageError, match="needs a draft model"):
        load_decoder("no/such-model", None, DraftingOptions(method="draft"))
    with pytest.raises(UsageError, match="draft_rows is of the hybrid"):
        DraftingOptions(method="drafter", draft_rows=15)
    for name in ("dictionary", "alignment"):  # before the model is looked for
        with pytest.raises(MissingAssetError, match=r"nowhere\.tok"):
            load_decoder("no/such-model", None, DraftingOptions(**{name: "nowhere.tok"}))  # type: ignore[arg-type]
    with pytest.raises(MissingAssetError, match="tokalign build"):
        load_decoder(str(files.bare), None, DraftingOptions(method="dictionary"))


def test_the_costs_that_are_assumed_are_told_once_per_pair(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path))
    monkeypatch.setattr(opening_knowledge, "_shared", opening_knowledge._shared.copy())
    notes: list[str] = []
    [target] = load_models([str(files.bare)])
    first, second = (assemble(target, None, DraftingOptions(), note=notes.append) for _ in range(2))
    assert first.drafting.knowledge is second.drafting.knowledge is not None
    assert sum("verification cost not measured" in line for line in notes) == 1


def test_a_later_call_opens_no_table(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, really = list[str](), bundle._opened

    def counted(path: Path, name: str) -> Any:
        opened.append(name)
        return really(path, name)

    monkeypatch.setattr(bundle, "_opened", counted)
    model, tokenizer = tokalign.load(str(files.target))
    notes = list[list[str]]()
    for call in range(3):
        notes.append([])
        more = {"note": notes[-1].append, "max_tokens": 1}
        assert list(tokalign.stream_generate(model, tokenizer, PROMPT, **more))
        assert not (call and opened)
        opened.clear()
    assert any("pl.dictionary.tok" in line for line in notes[2])


def test_weights_are_float32_where_that_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(weights, "default_dtype", lambda: "float32")
    assert choose_dtype(None, note=notes.append) == "float32"
    assert "float32, the default" in notes.pop()
    assert choose_dtype("float16", note=notes.append) == "float16"
    monkeypatch.setattr(weights, "default_dtype", lambda: None)
    assert choose_dtype(None, note=notes.append) is None
    assert notes == []


@pytest.mark.parametrize("window", [None, 24])
def test_a_draft_model_whose_cache_cannot_be_quantized_is_refused_before_it_is_asked(
    files: Files, window: int | None
) -> None:
    """A draft model is asked when the clock says that it pays: a request must not fail by that."""
    target, draft = load_models([str(files.bare), str(files.draft)])
    size = len(draft.tokenizer.vocabulary)
    draft = replace(draft, model=random_model(2, vocabulary=size, heads=1, sliding_window=window))
    cache = CacheOptions(kv_bits=8, kv_group_size=32)
    assemble(target, draft, DraftingOptions())
    assemble(target, draft, DraftingOptions(method="copy"), cache=cache)
    said = r"this llama model cannot be quantized to 8 .* \(it has a window\); leave kv_bits out"
    refused = nullcontext() if window is None else pytest.raises(CacheError, match=said)
    for options in (DraftingOptions(), DraftingOptions(method="hybrid", num_draft_tokens=2)):
        with refused:
            assemble(target, draft, options, cache=cache)
