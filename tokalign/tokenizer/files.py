"""Reading a tokenizer file, whatever its kind, by the reader of that kind.

A reader undoes the spelling of its file and returns a `TokenizerSpec`. It raises VocabularyError
with a message that goes on from the file's name ("lists a merge twice; ..."), and KeyError,
TypeError or ValueError for a file that is broken. No module above this one knows which kind of file
a tokenizer came from.

Files come from strangers. This is the door: a file is read whole, once, up to a limit; nothing that
it says is followed or run; and whatever is wrong with it, the caller gets one VocabularyError.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from pathlib import Path
from typing import Any

from tokalign.errors import MissingAssetError, TokalignError, VocabularyError
from tokalign.storage import parse_json
from tokalign.tokenizer.ranks import holds_ranks, is_tekken, read_ranks, read_tekken
from tokalign.tokenizer.sentencepiece import read_sentencepiece
from tokalign.tokenizer.spec import (
    MAX_FILE_BYTES,
    Level,
    Supplement,
    TokenizerSpec,
    checked_id,
    find_roles,
    shortened,
)
from tokalign.tokenizer.tokenizer_json import (
    opening_ids,
    read_tokenizer_json,
    template_opening,
)

_CONFIG = "tokenizer_config.json"


class Kind(Enum):
    """The kinds of tokenizer files."""

    TOKENIZER_JSON = auto()
    TEKKEN = auto()
    SENTENCEPIECE = auto()
    RANKS = auto()


@dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """A tokenizer file and the tokenizer_config.json beside it, as they were when opened.

    config_data: empty without one. supplement: what the file leaves out, if an alias knows it.
    """

    path: Path
    data: bytes
    config_data: bytes = b""
    supplement: Supplement | None = None

    @cached_property
    def kind(self) -> Kind:
        """What kind of file this is, by its name and its content."""
        if self.path.suffix == ".json":
            return Kind.TEKKEN if is_tekken(self.document) else Kind.TOKENIZER_JSON
        return Kind.RANKS if holds_ranks(self.data) else Kind.SENTENCEPIECE

    @cached_property
    def document(self) -> Any:
        return json.loads(self.data)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The tokenizer_config.json. Raises: VocabularyError if it is not a JSON object."""
        if not self.config_data:
            return {}
        try:
            config = parse_json(self.config_data)
            if not isinstance(config, dict):
                raise ValueError("it is no JSON object")
        except ValueError as error:
            raise VocabularyError(
                f"has a broken {_CONFIG} beside it ({shortened(str(error), 120)}); "
                "download that file again"
            ) from error
        return config


def open_tokenizer_file(path: Path, supplement: Supplement | None = None) -> TokenizerFile:
    """Read a tokenizer file into memory, or the best one in a model's folder.

    Raises: MissingAssetError when there is none; VocabularyError when it cannot be read or is
    larger than any tokenizer.
    """
    file = find_tokenizer_file(path) if path.is_dir() else path
    if file is None:
        raise MissingAssetError(
            f"{path} holds no tokenizer.json, tekken.json, tokenizer.model or *.tiktoken; "
            "give a model's folder or a tokenizer file"
        )
    config = file.with_name(_CONFIG)
    return TokenizerFile(
        path=file,
        data=_read(file),
        config_data=_read(config) if config.is_file() else b"",
        supplement=supplement,
    )


def read_spec(file: TokenizerFile) -> TokenizerSpec:
    """What a tokenizer file says; `self_check.py` goes on from here.

    Raises: VocabularyError when it is broken, or does what is not known here.
    """
    with refusing(file.path):
        match file.kind:
            case Kind.TEKKEN:
                return read_tekken(file.document)
            case Kind.TOKENIZER_JSON:
                return read_tokenizer_json(file.document, file.config, file.data)
            case Kind.RANKS:
                return read_ranks(file.data, file.supplement)
            case Kind.SENTENCEPIECE:
                return read_sentencepiece(file.data, file.supplement, file.config)


def read_ids_only(file: TokenizerFile, why: str) -> TokenizerSpec:
    """What the library says of a tokenizer.json that is used by its ids only.

    why: what keeps it from more. Raises: VocabularyError if the library does not read the file.
    """
    with refusing(file.path):
        from tokenizers import Tokenizer as Library

        library = Library.from_buffer(file.data)
        added = {
            index: token.content for index, token in library.get_added_tokens_decoder().items()
        }
        largest = max([*library.get_vocab().values(), *added])
        roles = find_roles(added, file.config)
        return TokenizerSpec(
            tokens=(b"",) * (1 + checked_id(largest, "the last token")),
            specials=added,
            roles=roles,
            by_characters=False,
            opening=opening_ids(template_opening(file.document), file.config, roles.bos),
            level=Level.IDS_ONLY,
            why=why,
            document=file.data,
        )


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file in the body into one VocabularyError about `path`.

    Libraries raise errors of their own, and a panic in Rust is a BaseException.
    """
    try:
        yield
    except VocabularyError as error:
        raise VocabularyError(f"{path} {error}") from error
    except TokalignError:
        raise
    except RecursionError as error:
        raise VocabularyError(
            f"{path} is nested deeper than any tokenizer file; download it again"
        ) from error
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = shortened(" ".join(str(error).split()) or type(error).__name__, 120)
        missing = "no " if isinstance(error, KeyError) else ""
        raise VocabularyError(
            f"{path} is not a tokenizer file tokalign can read ({missing}{reason}); "
            "download it again"
        ) from error


def find_tokenizer_file(folder: Path) -> Path | None:
    """The best tokenizer file in a model's folder: the one that says most about the tokenizer."""
    known = [folder / name for name in ("tokenizer.json", "tekken.json", "tokenizer.model")]
    return next(filter(Path.is_file, [*known, *sorted(folder.glob("*.tiktoken"))]), None)


def _read(path: Path) -> bytes:
    """The content of a regular file. A FIFO or a device is refused before it can block."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingAssetError(
            f"{path} does not exist; give a tokenizer file or a model's folder"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise VocabularyError(
            f"{path} cannot be read ({reason}); give a file that you may read"
        ) from error
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise VocabularyError(
                f"{path} is no regular file, but a folder, a pipe or a device; give a tokenizer "
                "file or a model's folder"
            )
        try:
            data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise VocabularyError(
                f"{path} cannot be read ({error.strerror}); copy it to a sound disk"
            ) from error
    if not data:
        raise VocabularyError(f"{path} is empty; download it again")
    if len(data) > MAX_FILE_BYTES:
        raise VocabularyError(
            f"{path} has more than {MAX_FILE_BYTES:,} bytes, which no tokenizer needs; "
            "give a tokenizer file or a model's folder"
        )
    return data
