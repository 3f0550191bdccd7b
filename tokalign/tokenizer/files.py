"""Reading a tokenizer file, whatever its kind: one reader per kind in `formats/`.

A reader undoes the spelling of its file and returns a `TokenizerSpec`. No module above this one
knows which kind of file a tokenizer came from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokalign.errors import MissingAssetError, VocabularyError
from tokalign.tokenizer.formats.sentencepiece import read_sentencepiece
from tokalign.tokenizer.formats.tekken import is_tekken, read_tekken
from tokalign.tokenizer.formats.tiktoken import holds_ranks, read_ranks
from tokalign.tokenizer.formats.tokenizer_json import read_tokenizer_json
from tokalign.tokenizer.spec import Supplement, TokenizerSpec


def read_tokenizer_file(path: Path, supplement: Supplement | None = None) -> TokenizerSpec:
    """Read a tokenizer file, or the best one in a model's folder.

    Raises: MissingAssetError when there is none; VocabularyError when it is broken or not BPE.
    """
    file = find_tokenizer_file(path) if path.is_dir() else path
    if file is None:
        raise MissingAssetError(
            f"{path} holds no tokenizer.json, tekken.json, tokenizer.model or *.tiktoken; "
            "give a model's folder or a tokenizer file"
        )
    if not file.is_file():
        raise MissingAssetError(f"{path} does not exist; give a tokenizer file or a model's folder")
    try:
        return _read(file, supplement)
    except VocabularyError as error:
        raise VocabularyError(f"{file} {error}") from error
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, OSError) as error:
        raise VocabularyError(
            f"{file} is not a tokenizer file tokalign can read ({error}); download it again"
        ) from error


def find_tokenizer_file(folder: Path) -> Path | None:
    """The best tokenizer file in a model's folder: the one that says most about the tokenizer."""
    known = [folder / name for name in ("tokenizer.json", "tekken.json", "tokenizer.model")]
    return next(filter(Path.is_file, [*known, *sorted(folder.glob("*.tiktoken"))]), None)


def _read(file: Path, supplement: Supplement | None) -> TokenizerSpec:
    if file.suffix == ".json":
        document = json.loads(file.read_bytes())
        if is_tekken(document):
            return read_tekken(document)
        return read_tokenizer_json(document, _config_beside(file))
    if holds_ranks(file):
        return read_ranks(file, supplement)
    return read_sentencepiece(file, supplement, _config_beside(file))


def _config_beside(file: Path) -> dict[str, Any]:
    config = file.with_name("tokenizer_config.json")
    return json.loads(config.read_bytes()) if config.is_file() else {}
