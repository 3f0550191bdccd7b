"""The check of every tokenizer that is read: up to which level does it encode as its reference?

The reference is what mlx-lm loads for a folder, or the library that owns a file's format; rank
files are checked against the `tokenizers` library with the same vocabulary. At a level that
differs, the first text that does is the reason why a lower one is tried. A check that was passed
is noted in the user's cache folder, as loading the reference takes longer than reading the file.
"""

from __future__ import annotations

import gc
import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tokalign.errors import MissingAssetError, TokalignError, UsageError, VocabularyError
from tokalign.storage import cache_folder
from tokalign.tokenizer.backend import build_library
from tokalign.tokenizer.bpe.encoder import IncrementalEncoder
from tokalign.tokenizer.check_texts import plain_texts, texts_with_specials
from tokalign.tokenizer.files import (
    TokenizerFile,
    open_tokenizer_file,
    read_ids_only,
    read_spec,
    refusing,
)
from tokalign.tokenizer.foreign import ForeignTokenizer
from tokalign.tokenizer.limits import AGAIN, TRY_ANOTHER, check_lengths, shortened
from tokalign.tokenizer.note import read_note, write_note
from tokalign.tokenizer.reference import Reference, reference_of_folder
from tokalign.tokenizer.roles import is_control
from tokalign.tokenizer.spec import Level, Markup, Supplement
from tokalign.tokenizer.spelling import SPACE_MARK
from tokalign.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_RULES = 14
"""Counted up whenever readers or checks change, so that older notes no longer count."""

_LIBRARIES = (
    *("tokenizers", "sentencepiece", "protobuf", "regex", "tokalign"),
    *("transformers", "mlx-lm", "mistral-common"),
)

_OTHER = "choose another model, and report this tokenizer to tokalign's developers"

_Encoder = Callable[[str], Sequence[int]]


def read_tokenizer(
    path: Path | str, supplement: Supplement | None = None, *, trust_remote_code: bool = False
) -> Tokenizer[Any]:
    """Read a tokenizer file or a model's folder, and check it against its reference.

    The level is the highest at which tokalign gives the reference's ids; a folder's tokenizer that
    is a program is used by its ids. trust_remote_code: run programs in the folder, as in mlx-lm.
    Raises: MissingAssetError when there is none, or a package is missing; UsageError for a program
    that is not trusted; VocabularyError if neither tokalign nor the reference can use it.
    Cost: that of hashing the files if they were checked before, 20 ms for 17 MB.
    """
    file = open_tokenizer_file(Path(path), supplement)
    note = _note(file, trust_remote_code=trust_remote_code)
    with _without_collection():
        if (kept := read_note(note)) is not None:
            return kept
        tokenizer = _read_best(file, trust_remote_code=trust_remote_code)
        if not isinstance(tokenizer, ForeignTokenizer):
            write_note(note, tokenizer)
    return tokenizer


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the collector from going through a vocabulary that grows, which doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_best(file: TokenizerFile, *, trust_remote_code: bool) -> Tokenizer[Any]:
    """The highest level at which a tokenizer is what its reference is. Raises: VocabularyError
    about the highest level; as `reference_of_folder`."""
    refused: TokalignError | None = None
    if file.files:
        try:
            reference = reference_of_folder(
                file.folder, file.files, trust_remote_code=trust_remote_code
            )
            file = replace(file, reference=reference)
        except (VocabularyError, MissingAssetError, UsageError) as error:
            refused = error
    first: VocabularyError | None = None
    why = ""
    for level in _levels(file):
        try:
            return _at(level, file, why)
        except VocabularyError as failed:
            first = first or failed
            # Without its path and the remedy, an error is what keeps a file from a higher level.
            why = str(first.__cause__ or first).partition("; ")[0]
    if file.reference is not None:
        return ForeignTokenizer(file.reference.theirs, why)
    if file.data and not (file.files or file.supplement or file.is_tokenizer_json):
        with suppress(TokalignError):  # the error about the file says more
            return _read_best(file.as_folder(), trust_remote_code=trust_remote_code)
    if first is None or (refused is not None and not isinstance(refused, VocabularyError)):
        raise refused or AssertionError("a level was tried")
    raise first


def _levels(file: TokenizerFile) -> list[Level]:
    if not file.data and (file.reference is None or file.reference.library is None):
        return []
    with refusing(file.path):
        return list(Level) if file.is_tokenizer_json else [Level.ALIGNED]


def _at(level: Level, file: TokenizerFile, why: str) -> Tokenizer[Any]:
    """A checked tokenizer of this level or, where the model is not BPE, of the one below. Raises:
    VocabularyError."""
    spec = read_ids_only(file) if level is Level.IDS_ONLY else read_spec(file)
    if spec.level is Level.ALIGNED:
        spec = replace(spec, level=level)
    spec = replace(spec, why=why or spec.why)
    with refusing(file.path):
        reference = file.owner
        if reference is not None:
            opening, closing = reference.around
            spec = replace(spec, opening=opening, closing=closing)
        tokenizer = Tokenizer[Any](spec, None if reference is None else reference.library)
        if reference is not None:
            _find_markup(tokenizer, reference)
        check_texts(tokenizer, file)
    return tokenizer


def _find_markup(tokenizer: Tokenizer[Any], reference: Reference) -> None:
    """Have special tokens found in prompts as the reference does. Raises: VocabularyError."""
    ways = [tokenizer.spec.markup, Markup.LIBRARY, Markup.NOBODY]
    if reference.splits_markup:
        ways = [Markup.NOBODY]
    elif reference.library is None:
        ways = [Markup.OURS, Markup.NOBODY]
    differs: VocabularyError | None = None
    for markup in ways:
        by_library = tokenizer.level is not Level.ALIGNED or markup is Markup.LIBRARY
        document = reference.data if by_library and reference.library is not None else b""
        tokenizer.spec = replace(tokenizer.spec, markup=markup, document=document)
        try:
            check_prompts(tokenizer, reference)
            return
        except VocabularyError as error:
            differs = error
    assert differs is not None, "a way was tried"
    raise differs


def check_prompts(tokenizer: Tokenizer[Any], reference: Reference) -> None:
    """Refuse (VocabularyError) a tokenizer that finds other special tokens in a prompt."""

    def ours(text: str) -> list[int]:
        return tokenizer.encode(text, specials=True)

    _compare("mlx-lm", ours, reference.encode, texts_with_specials(tokenizer.spec))


def check_texts(tokenizer: Tokenizer[Any], file: TokenizerFile) -> None:
    """Check a vocabulary, then ordinary texts. Raises: VocabularyError, and what the reference
    does. Cost: 0.3 s, up to 1.3 s with 256,000 tokens."""
    spec = tokenizer.spec
    if tokenizer.level is Level.ALIGNED:
        _check_tokens(tokenizer)
        _check_whole_pieces(tokenizer)
    texts = [text for text in plain_texts(spec) if text]
    if spec.by_characters:  # a mark in the text is a space to the libraries
        texts = [text for text in texts if SPACE_MARK not in text]
    if tokenizer.level is not Level.IDS_ONLY:
        _check_growing(tokenizer, texts[::15])
    if (reference := file.owner) is not None:
        _check_against_reference(tokenizer, reference, texts)
        return
    if spec.by_characters:
        from sentencepiece import SentencePieceProcessor

        if file.supplement is not None and file.supplement.ranked_by_id:
            # The ranks of runs of spaces are the supplement's, and not those of the file.
            texts = [text for text in texts if "  " not in tokenizer.prepared(text)]
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(file.data)
        _compare("sentencepiece", _ours(tokenizer), processor.encode, texts)
    library = build_library(spec, tokenizer.splitter)

    def by_library(text: str) -> list[int]:
        return library.encode(tokenizer.prepared(text)).ids

    _compare("the tokenizers library", _ours(tokenizer), by_library, texts)


def _check_tokens(tokenizer: Tokenizer[Any]) -> None:
    """Refuse (VocabularyError) too long tokens, and merges of special tokens or of unclear rank."""
    spec = tokenizer.spec
    check_lengths(spec.tokens)
    if len(tokenizer.bpe.merges.rules) < len(spec.triples):
        raise VocabularyError(f"lists a merge twice, so that its rank is unclear; {TRY_ANOTHER}")
    merged = np.zeros(len(spec.tokens), dtype=bool)
    merged[spec.triples] = True
    special = next((i for i in np.flatnonzero(merged).tolist() if not spec.tokens[i]), None)
    if special is not None:
        raise VocabularyError(
            f"merges ordinary text with the added token {shortened(spec.specials[special])}; "
            f"{TRY_ANOTHER}"
        )


def _check_whole_pieces(tokenizer: Tokenizer[Any]) -> None:
    """Refuse (VocabularyError) a token that may only stand for a piece where texts are cut into
    words instead, which makes no difference to merges alone."""
    if tokenizer.spec.ignore_merges and tokenizer.splitter.merges_decide:
        for token in tokenizer.bpe.order.ids:
            if not tokenizer.bpe.validity.reachable(token):
                raise VocabularyError(
                    f"has ignore_merges, no expression that cuts texts, and a token that no merges "
                    f"make ({shortened(ascii(tokenizer.spec.tokens[token]), 40)}); {_OTHER}"
                )


def _check_growing(tokenizer: Tokenizer[Any], texts: Iterable[str]) -> None:
    """Refuse (VocabularyError) a tokenizer whose growing texts are not cut as whole ones."""
    for text in texts:
        data = tokenizer.text_bytes(text)[:160]
        encoder = IncrementalEncoder(tokenizer.encoder)
        for at in range(0, len(data), 2):
            encoder.push(data[at : at + 2])
        if encoder.ids != tokenizer.encoder.encode(data):
            raise VocabularyError(
                f"cuts a text that grows otherwise than a whole one "
                f"(the first such text is {shortened(ascii(text), 80)}); {_OTHER}"
            )


def _check_against_reference(
    tokenizer: Tokenizer[Any], reference: Reference, texts: list[str]
) -> None:
    spec, library, unknown = tokenizer.spec, reference.library, _unknown(reference)
    markup = dict(spec.specials)
    if library is not None:
        markup |= _check_added_tokens(tokenizer, library, unknown)
    found = markup.keys() - {spec.unknown, unknown}
    whole = "\0".join(texts)
    spelled = [spelling for spelling in markup.values() if spelling in whole]  # few of thousands
    plain = [text for text in texts if not any(spelling in text for spelling in spelled)]
    right = {text: ids for text in plain if found.isdisjoint(ids := reference.encode(text))}
    if tokenizer.level is not Level.IDS_ONLY:
        _compare("mlx-lm", _ours(tokenizer), right.__getitem__, right)
    _compare("mlx-lm", tokenizer.encode, right.__getitem__, [*right][::7])


def _check_added_tokens(
    tokenizer: Tokenizer[Any], library: Library, unknown: int | None
) -> dict[int, str]:
    """Refuse (VocabularyError) special tokens of other ids, and those but the unknown one that
    words can forge. Returns: the tokens that no text has, id -> spelling."""
    added = library.get_added_tokens_decoder()
    read = tokenizer.spec.specials
    theirs = {i: library.id_to_token(i) for i in read} | {i: t.content for i, t in added.items()}
    wrong = min(((i, read[i]) for i in read if theirs[i] != read[i]), default=None)
    if wrong is not None:
        raise VocabularyError(
            f"adds tokens whose ids are not those that the tokenizers library gives them (the "
            f"first is {wrong[0]}, {shortened(wrong[1])}); {AGAIN}"
        )
    known = library.model.token_to_id
    control = {
        i: token.content
        for i, token in added.items()
        if i in read
        or is_control(
            token.content, special=token.special, in_vocabulary=known(token.content) is not None
        )
    }
    spelled = list(control.items())
    for some in (spelled[start : start + 64] for start in range(0, len(spelled), 64)):
        ids = {*tokenizer.encode("a" + "b a".join(spelling for _, spelling in some) + "b")}
        forged = next((s for i, s in some if i in ids and i != unknown), None)
        if forged is not None:
            raise VocabularyError(
                f"makes the special token {shortened(forged, 30)} of a user's words; {_OTHER}"
            )
    return control


def _unknown(reference: Reference) -> int | None:
    """The id that any text may have whose characters the model does not know."""
    if (library := reference.library) is None:
        return None
    if type(library.model).__name__ == "Unigram":  # the library's object does not tell
        return cast("int | None", reference.document["model"].get("unk_id"))
    spelling = getattr(library.model, "unk_token", None)
    return None if spelling is None else library.token_to_id(spelling)


def _ours(tokenizer: Tokenizer[Any]) -> _Encoder:
    """The canonical encoder that decoding uses, on a whole text."""
    return lambda text: tokenizer.encoder.encode(tokenizer.text_bytes(text))


def _compare(library: str, ours: _Encoder, theirs: _Encoder, texts: Iterable[str]) -> None:
    for text in texts:
        mine, other = list(ours(text)), list(theirs(text))
        if mine != other:
            raise VocabularyError(
                f"is encoded otherwise by {library} (the first text "
                f"is {shortened(ascii(text), 80)}: {shortened(str(mine), 60)} here, "
                f"{shortened(str(other), 60)} there); {_OTHER}"
            )


def _note(file: TokenizerFile, *, trust_remote_code: bool) -> Path:
    digest = hashlib.sha256()
    versions = [f"{name} {_version(name)}" for name in _LIBRARIES]
    facts = (str(_RULES), *versions, unicodedata.unidata_version, repr(file.supplement))
    for part in (*facts, str(trust_remote_code), file.path.suffix):
        digest.update(part.encode() + b"\0")
    files = file.files or {"": file.config_data, file.path.name: file.data}
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return cache_folder() / "checked-tokenizers" / digest.hexdigest()[:40]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # tokalign itself, run from its sources
        return ""
