"""Reading a tokenizer file, whatever its kind, by the reader of that kind.

A reader returns a `TokenizerSpec`. It raises VocabularyError with a message that goes on from the
file's name ("lists a merge twice; ..."), and KeyError, TypeError or ValueError for a file that is
broken. Files come from strangers: one is read whole, once, up to a limit; nothing that it says is
followed or run; and whatever is wrong with it, the caller gets one VocabularyError.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import convert

from tokalign.errors import (
    MissingAssetError,
    TokalignError,
    VocabularyError,
    in_one_line,
    is_complaint,
)
from tokalign.storage import listed, open_regular, parse_json
from tokalign.tokenizer.backend import load_library
from tokalign.tokenizer.limits import MAX_FILE_BYTES, TokenId, check_lengths, shortened
from tokalign.tokenizer.ranks import holds_ranks, is_tekken, read_ranks, read_tekken
from tokalign.tokenizer.reference import Reference
from tokalign.tokenizer.roles import find_roles, is_control, openings_and_ends
from tokalign.tokenizer.sentencepiece import read_sentencepiece
from tokalign.tokenizer.spec import Level, Markup, Supplement, TokenizerSpec
from tokalign.tokenizer.tokenizer_json import read_tokenizer_json

_CONFIG = "tokenizer_config.json"

_SETTINGS = ("config.json", _CONFIG, "special_tokens_map.json", "added_tokens.json")
"""Files of a folder that decide about a tokenizer, but hold no vocabulary."""

_KNOWN = ("tokenizer.json", "tekken.json", "tokenizer.model", "*.tiktoken", "*.model", "*.model.v*")
"""The files that are read here, the one that says most first."""

_DECIDING = (*_SETTINGS, *_KNOWN, "tokenizer*.json*", "*vocab*", "merges.txt")
"""The files of a folder from which mlx-lm makes a tokenizer."""


@dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """A tokenizer file and the tokenizer_config.json beside it, as they were when opened.

    config_data: empty without one. supplement: what the file leaves out, if an alias knows it.
    files: all files of a folder from which mlx-lm makes a tokenizer, by name; none for a file.
    reference: the tokenizer whose ids count. If it is the library's, its tokenizer.json takes the
    place of the file.
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
        if self.reference is None and self.is_tokenizer_json:
            return Reference(theirs=load_library(self.data), file=self.data)
        return self.reference

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def as_folder(self) -> TokenizerFile:
        """The same as a folder that has nothing else."""
        config = {_CONFIG: self.config_data} if self.config_data else {}
        return replace(self, files={self.path.name: self.data, **config})

    @property
    def _is_library(self) -> bool:
        return self.reference is not None and self.reference.library is not None

    @cached_property
    def is_tokenizer_json(self) -> bool:
        """Whether this is the `tokenizers` library's own format."""
        return self._is_library or (self.path.suffix == ".json" and not is_tekken(self.document))

    @cached_property
    def document(self) -> Any:
        """The content of a JSON file, or the tokenizer.json of the reference."""
        if self.reference is not None and self._is_library:
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
    """Read a tokenizer file into memory, or those of a model's folder. Raises: MissingAssetError;
    VocabularyError."""
    if path.is_dir():
        files = {file.name: _read(file) for file in deciding_files(path)}
        if not files.keys() - {"config.json"}:
            raise MissingAssetError(
                f"{path} holds no tokenizer.json, tekken.json, tokenizer.model or *.tiktoken; "
                "give a model's folder or a tokenizer file"
            )
        known = next(filter(Path.is_file, listed(path, *_KNOWN)), None)
        data, config_data = files[known.name] if known else b"", files.get(_CONFIG, b"")
    else:
        files, known, config = {}, path, path.with_name(_CONFIG)
        data, config_data = _read(path), _read(config) if config.is_file() else b""
    return TokenizerFile(
        path=known or path, data=data, config_data=config_data, supplement=supplement, files=files
    )


def read_spec(file: TokenizerFile) -> TokenizerSpec:
    """What a tokenizer file says. Raises: VocabularyError if it is broken or not modelled."""
    with refusing(file.path):
        if file.is_tokenizer_json:
            return read_tokenizer_json(file.document, file.config)
        if file.path.suffix == ".json":
            return read_tekken(file.document)
        if holds_ranks(file.data):
            return read_ranks(file.data, file.supplement)
        return read_sentencepiece(file.data, file.supplement, file.config)


def read_ids_only(file: TokenizerFile) -> TokenizerSpec:
    """What the library says of a tokenizer used by its ids only. Raises: VocabularyError."""
    with refusing(file.path):
        library = file.owner.library if file.owner is not None else None
        assert library is not None, "programs are no files"
        known, added = library.model.token_to_id, library.get_added_tokens_decoder()
        largest = max([*library.get_vocab().values(), *added])
        check_lengths([token.content.encode() for token in added.values()])
        named = openings_and_ends(file.config)
        specials = {
            i: token.content
            for i, token in added.items()
            if is_control(
                token.content,
                special=token.special or token.content in named,
                in_vocabulary=known(token.content) is not None,
            )
        }
        return TokenizerSpec(
            tokens=(b"",) * (1 + convert(largest, TokenId)),
            specials=specials,
            markup=Markup.LIBRARY,
            roles=find_roles(specials, file.config),
            by_characters=False,
            level=Level.IDS_ONLY,
        )


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file in the body into one VocabularyError about `path`.
    Libraries raise errors of their own, and a panic in Rust is a BaseException."""
    try:
        yield
    except VocabularyError as error:
        raise VocabularyError(f"{path} {error}") from error
    except TokalignError:
        raise
    except BaseException as error:
        if not is_complaint(error):
            raise
        reason = shortened(in_one_line(error), 120)
        raise VocabularyError(
            f"{path} is not a tokenizer file tokalign can read ({reason}); download it again"
        ) from error


def deciding_files(folder: Path) -> list[Path]:
    """The files in a folder from which mlx-lm makes a tokenizer."""
    return sorted({*filter(Path.is_file, listed(folder, *_DECIDING))})


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder has a vocabulary, or a program, of which a tokenizer can be made."""
    names = {file.name for file in deciding_files(folder)}
    return bool(names.difference(_SETTINGS)) or any(map(Path.is_file, listed(folder, "*token*.py")))


def _read(path: Path) -> bytes:
    """The content of a regular file. Raises: MissingAssetError; VocabularyError."""
    other = "give a tokenizer file or a model's folder"
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingAssetError(f"{path} does not exist; {other}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise VocabularyError(f"{path} cannot be read ({reason}); {other} to read") from error
    if not data:
        raise VocabularyError(f"{path} is empty; download it again")
    if len(data) > MAX_FILE_BYTES:
        raise VocabularyError(
            f"{path} has more than {MAX_FILE_BYTES:,} bytes, which no tokenizer needs; {other}"
        )
    return data
