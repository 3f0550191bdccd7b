"""The check of every tokenizer that is read: up to which level does tokalign encode as the owner of
the file does?

The owner is the library whose format the file has, `tokenizers` or `sentencepiece`; rank files are
checked against the `tokenizers` library with the same vocabulary. What the readers model is
compared, on the texts of `check_texts.py`, with what the library makes of the file itself; a
tokenizer that differs is refused with the first text that does.

Loading the library's own tokenizer takes longer than reading the file. So a check that was passed
is noted in the user's cache folder, under a hash of the file and of the versions of all concerned.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tokalign.errors import VocabularyError
from tokalign.storage import cache_folder
from tokalign.tokenizer.bpe.encoder import IncrementalEncoder
from tokalign.tokenizer.check_texts import plain_texts, texts_with_specials
from tokalign.tokenizer.files import (
    Kind,
    TokenizerFile,
    open_tokenizer_file,
    read_ids_only,
    read_spec,
    refusing,
)
from tokalign.tokenizer.spec import (
    TRY_ANOTHER,
    Level,
    Supplement,
    TokenizerSpec,
    check_lengths,
    shortened,
)
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import SPACE_MARK, Id

_RULES = 3
"""Counted up whenever readers or checks change, so that older notes no longer count."""

_LIBRARIES = ("tokenizers", "sentencepiece", "protobuf", "regex", "tokalign")

_OTHER = "choose another model, and report this tokenizer to tokalign's developers"

_Encoder = Callable[[str], Sequence[int]]


def read_tokenizer(path: Path | str, supplement: Supplement | None = None) -> Tokenizer[Id]:
    """Read a tokenizer file or a model's folder, and check it against the library that owns it.

    Its level is the highest at which it encodes as the library does. What was found is noted, so
    that it is checked once by the same versions.
    Raises: MissingAssetError when there is none; VocabularyError if neither tokalign nor the
        library can use it.
    Cost: that of hashing the file if it was checked before, 20 ms for 17 MB.
    """
    return Tokenizer(_best_spec(open_tokenizer_file(Path(path), supplement)))


def _best_spec(file: TokenizerFile) -> TokenizerSpec:
    note = _note(file)
    with suppress(OSError, ValueError):
        level, _, why = note.read_text("utf-8").partition("\n")
        return _at(Level(level), file, why)
    spec = _read_best(file)
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{spec.level}\n{spec.why}", "utf-8")
    return spec


def _read_best(file: TokenizerFile) -> TokenizerSpec:
    with refusing(file.path):
        kind = file.kind
    error: VocabularyError | None = None
    for level in Level if kind is Kind.TOKENIZER_JSON else [Level.ALIGNED]:
        try:
            # Without its path and the remedy, an error is what keeps a file from a higher level.
            why = "" if error is None else str(error.__cause__ or error).partition("; ")[0]
            spec = _at(level, file, why)
            with refusing(file.path):
                check(Tokenizer(spec), file)
        except VocabularyError as failed:
            error = error or failed
        else:
            return spec
    assert error is not None, "a level was tried"
    raise error


def _at(level: Level, file: TokenizerFile, why: str) -> TokenizerSpec:
    """Read a file at this level or, where its model is not BPE, at the one below."""
    if level is Level.IDS_ONLY:
        return read_ids_only(file, why)
    spec = read_spec(file)
    if level is spec.level:
        return spec
    return replace(spec, level=Level.BY_TEXT, why=why or spec.why, document=file.data)


def check(tokenizer: Tokenizer[Any], file: TokenizerFile) -> None:
    """Check a vocabulary, then compare its tokenizer with the owner of its file.

    Raises: VocabularyError, and whatever the library does.

    Cost: 0.2 s for 32,000 tokens and 0.8 to 1.3 s for 128,000, most of it for loading the library's
    own tokenizer.
    """
    if tokenizer.level is Level.IDS_ONLY:
        tokenizer.encode("a")
        return
    if tokenizer.level is Level.ALIGNED:
        _check_tokens(tokenizer.spec)
        _check_whole_pieces(tokenizer)
    texts = [text for text in plain_texts(tokenizer.spec) if text]
    if tokenizer.spec.by_characters:  # a mark in the text is a space to the libraries
        texts = [text for text in texts if SPACE_MARK not in text]
    _check_growing(tokenizer, texts[::15])
    match file.kind:
        case Kind.TOKENIZER_JSON:
            _check_against_tokenizers(tokenizer, file.data, texts)
        case Kind.SENTENCEPIECE:
            _check_against_sentencepiece(tokenizer, file, texts)
        case Kind.TEKKEN | Kind.RANKS:
            _compare("the tokenizers library", _ours(tokenizer), tokenizer.encode, texts)


def _check_tokens(spec: TokenizerSpec) -> None:
    """Refuse a vocabulary whose encoder cannot be what its file meant.

    Raises: VocabularyError for a token that is too long, and merges of special tokens or of unclear
    rank. Cost: 0.2 s for 128,000 tokens.
    """
    check_lengths(spec.tokens)
    if len({triple[:2] for triple in spec.triples}) < len(spec.triples):
        raise VocabularyError(f"lists a merge twice, so that its rank is unclear; {TRY_ANOTHER}")
    special = next((i for triple in spec.triples for i in triple if not spec.tokens[i]), None)
    if special is not None:
        raise VocabularyError(
            f"merges ordinary text with the added token {shortened(spec.specials[special])}; "
            f"{TRY_ANOTHER}"
        )


def _check_whole_pieces(tokenizer: Tokenizer[Any]) -> None:
    """Refuse (VocabularyError) a token that may only stand for a piece where pieces are not ours.

    Without an expression texts are cut into words here, which the library does not do. That makes
    no difference to merges.
    """
    if tokenizer.spec.ignore_merges and tokenizer.splitter.merges_decide:
        for token in tokenizer.bpe.order.ids:
            if not tokenizer.bpe.validity.reachable(token):
                raise VocabularyError(
                    f"has ignore_merges, no expression that cuts texts, and a token that no merges "
                    f"make ({shortened(ascii(tokenizer.spec.tokens[token]), 40)}); {_OTHER}"
                )


def _check_against_tokenizers(tokenizer: Tokenizer[Any], data: bytes, texts: list[str]) -> None:
    from tokenizers import Tokenizer as Library

    library = Library.from_buffer(data)
    added = {index: token.content for index, token in library.get_added_tokens_decoder().items()}
    read = dict(tokenizer.spec.specials)
    wrong = sorted({(i, s) for i, s in added.items() if read.get(i, s) != s})
    wrong += sorted({(i, s) for i, s in read.items() if library.id_to_token(i) != s})
    if wrong:
        raise VocabularyError(
            f"adds tokens whose ids are not those that the tokenizers library gives them (the "
            f"first is {wrong[0][0]}, {shortened(wrong[0][1])}); download the file again"
        )

    def encode(text: str) -> list[int]:
        ids: list[int] = library.encode(text, add_special_tokens=False).ids
        return ids

    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True  # a user's words cannot forge a turn
    markup = list(read.values())
    ordinary = [text for text in texts if not any(one in text for one in markup)]
    _compare("the tokenizers library", _ours(tokenizer), encode, ordinary)
    _compare("the tokenizers library", tokenizer.encode, encode, ordinary[::7])
    library.encode_special_tokens = False
    _compare(
        "the tokenizers library",
        lambda text: tokenizer.encode(text, specials=True),
        encode,
        texts_with_specials(tokenizer.spec),
    )


def _check_against_sentencepiece(
    tokenizer: Tokenizer[Any], file: TokenizerFile, texts: list[str]
) -> None:
    from sentencepiece import SentencePieceProcessor

    library = SentencePieceProcessor()
    library.LoadFromSerializedProto(file.data)
    if file.supplement is not None and file.supplement.ranked_by_id:
        # The ranks of runs of spaces are the supplement's, and not those of the file.
        texts = [text for text in texts if "  " not in tokenizer.prepared(text)]
    _compare("sentencepiece", _ours(tokenizer), library.encode, texts)
    _compare("the tokenizers library", _ours(tokenizer), tokenizer.encode, texts[::7])


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


def _note(file: TokenizerFile) -> Path:
    """Where it is noted that a file has passed the check."""
    digest = hashlib.sha256()
    versions = [f"{name} {_version(name)}" for name in _LIBRARIES]
    for part in (str(_RULES), *versions, unicodedata.unidata_version, repr(file.supplement)):
        digest.update(part.encode() + b"\0")
    digest.update(file.path.suffix.encode() + b"\0" + file.config_data + b"\0")
    digest.update(file.data)
    return cache_folder() / "checked-tokenizers" / digest.hexdigest()[:40]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # tokalign itself, run from its sources
        return ""
