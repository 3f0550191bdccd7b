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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from pathlib import Path
from typing import Any

from tokalign.errors import MissingAssetError, TokalignError, VocabularyError
from tokalign.storage import parse_json
from tokalign.tokenizer.ranks import holds_ranks, is_tekken, read_ranks, read_tekken
from tokalign.tokenizer.reference import Reference, reference_of_file
from tokalign.tokenizer.sentencepiece import read_sentencepiece
from tokalign.tokenizer.spec import (
    MAX_FILE_BYTES,
    Level,
    Markup,
    Supplement,
    TokenizerSpec,
    checked_id,
    find_roles,
    shortened,
)
from tokalign.tokenizer.tokenizer_json import read_tokenizer_json

_CONFIG = "tokenizer_config.json"

_KNOWN = ("tokenizer.json", "tekken.json", "tokenizer.model", "*.tiktoken")
"""The files that are read here, the one that says most first."""

_DECIDING = (
    *("config.json", "tokenizer*.json*", "special_tokens_map.json", "added_tokens.json"),
    *("*vocab*", "merges.txt", "tekken.json", "*.model", "*.model.v*", "*.tiktoken"),
)
"""The files of a folder from which mlx-lm makes a tokenizer."""


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
    files: all files of a folder from which mlx-lm makes a tokenizer, by name; none for a file.
    reference: the tokenizer whose ids count, if there is one besides the file's own library. If it
    is the library's, its tokenizer.json takes the place of the file.
    """

    path: Path
    data: bytes
    config_data: bytes = b""
    supplement: Supplement | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    reference: Reference | None = None

    @cached_property
    def owner(self) -> Reference | None:
        """The reference, or the library of a tokenizer.json. Raises what the library raises."""
        if self.reference is None and self.kind is Kind.TOKENIZER_JSON:
            return reference_of_file(self.data, self.document)
        return self.reference

    @property
    def folder(self) -> Path:
        """Where the file is."""
        return self.path if self.path.is_dir() else self.path.parent

    def as_folder(self) -> TokenizerFile:
        """The same as a folder that has nothing else."""
        files = {self.path.name: self.data} | (
            {_CONFIG: self.config_data} if self.config_data else {}
        )
        return replace(self, files=files)

    @cached_property
    def kind(self) -> Kind:
        """What kind of file this is, by its name and its content."""
        if self.reference is not None and self.reference.library is not None:
            return Kind.TOKENIZER_JSON
        if self.path.suffix == ".json":
            return Kind.TEKKEN if is_tekken(self.document) else Kind.TOKENIZER_JSON
        return Kind.RANKS if holds_ranks(self.data) else Kind.SENTENCEPIECE

    @cached_property
    def document(self) -> Any:
        """The content of a JSON file, or the tokenizer.json of the reference."""
        if self.reference is not None and self.reference.library is not None:
            return self.reference.document
        return json.loads(self.data)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The tokenizer_config.json. Raises: VocabularyError if it is not a JSON object."""
        if self.reference is not None:
            return dict(self.reference.settings)
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
    """Read a tokenizer file into memory, or those of a model's folder.

    Raises: MissingAssetError when there is none; VocabularyError when one cannot be read or is
    larger than any tokenizer.
    """
    if path.is_dir():
        files = {file.name: _read(file) for file in deciding_files(path)}
        if not files.keys() - {"config.json"}:
            raise MissingAssetError(
                f"{path} holds no tokenizer.json, tekken.json, tokenizer.model or *.tiktoken; "
                "give a model's folder or a tokenizer file"
            )
        file = find_tokenizer_file(path)
        return TokenizerFile(
            path=file or path,
            data=files[file.name] if file else b"",
            config_data=files.get(_CONFIG, b""),
            supplement=supplement,
            files=files,
        )
    config = path.with_name(_CONFIG)
    return TokenizerFile(
        path=path,
        data=_read(path),
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
                return read_tokenizer_json(file.document, file.config)
            case Kind.RANKS:
                return read_ranks(file.data, file.supplement)
            case Kind.SENTENCEPIECE:
                return read_sentencepiece(file.data, file.supplement, file.config)


def read_ids_only(file: TokenizerFile) -> TokenizerSpec:
    """What the library says of a tokenizer that is used by its ids only.

    Raises: VocabularyError if the library does not read the file.
    """
    with refusing(file.path):
        library = file.owner.library if file.owner is not None else None
        assert library is not None, "programs are no files"
        added = {
            index: token.content for index, token in library.get_added_tokens_decoder().items()
        }
        largest = max([*library.get_vocab().values(), *added])
        return TokenizerSpec(
            tokens=(b"",) * (1 + checked_id(largest, "the last token")),
            specials=added,
            markup=Markup.LIBRARY,
            roles=find_roles(added, file.config),
            by_characters=False,
            level=Level.IDS_ONLY,
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
    """The file in a model's folder that says most about the tokenizer, of those read here."""
    return next((file for name in _KNOWN for file in _files(folder, name)), None)


def deciding_files(folder: Path) -> list[Path]:
    """The files in a folder from which mlx-lm makes a tokenizer."""
    return sorted({file for name in _DECIDING for file in _files(folder, name)})


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(filter(Path.is_file, folder.glob(pattern)))


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
