"""The reference: the tokenizer that mlx-lm runs for a folder, which decides every id of a prompt.

mlx-lm loads a folder with transformers' `AutoTokenizer`. Which class that chooses, what the class
makes of the files, and which tokens other files add, is asked of the object that it gives, and
modelled nowhere. Where transformers is not installed, and for a single file, the reference of a
tokenizer.json is the `tokenizers` library.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tokalign.errors import (
    MissingAssetError,
    OutputError,
    TokalignError,
    UsageError,
    VocabularyError,
)
from tokalign.installation import install_line
from tokalign.tokenizer.library import giving_up
from tokalign.tokenizer.limits import AGAIN, shortened

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A tokenizer whose ids are right by definition.

    theirs: of transformers, of the `tokenizers` library, or whatever has an `encode`.
    file: the bytes of a tokenizer.json, if it is the library's tokenizer of just this file.
    """

    theirs: Any
    file: bytes = b""

    @cached_property
    def library(self) -> Library | None:
        """The object of the `tokenizers` library that does the work; None for other programs."""
        from tokenizers import Tokenizer as Library

        found = getattr(self.theirs, "_tokenizer", self.theirs)
        return found if isinstance(found, Library) else None

    def encode(self, text: str) -> list[int]:
        """The ids of a text in a prompt, without what is put before and after it."""
        return encode_with(self.theirs, text, around=False)

    @cached_property
    def around(self) -> tuple[Ids, Ids]:
        """The ids before and after the text of every prompt (BOS, EOS). Raises: VocabularyError if
        it encodes no short text."""
        encodes, refused = False, None
        for text in chain(("a", "0", " ", "."), self._characters()):
            try:
                inside = tuple(encode_with(self.theirs, text, around=False))
                whole = tuple(encode_with(self.theirs, text, around=True))
            except VocabularyError as error:  # some programs know few characters
                refused = error
                continue
            encodes = True
            for start in range(len(whole) - len(inside) + 1) if inside else ():
                end = start + len(inside)
                if whole[start:end] == inside:
                    return whole[:start], whole[end:]
        if refused and not encodes:
            raise refused
        return (), ()

    def _characters(self) -> Iterator[str]:
        """A few that it has tokens for. A large vocabulary takes long to list, so only if asked."""
        vocabulary: Mapping[str, int] = getattr(self.theirs, "get_vocab", dict)()
        yield from islice((token for token in vocabulary if len(token) == 1), 16)

    @property
    def splits_markup(self) -> bool:
        return bool(getattr(self.theirs, "split_special_tokens", False))

    @cached_property
    def settings(self) -> dict[str, str]:
        """Its `bos_token` and `eos_token`, as in a tokenizer_config.json."""
        tokens = {key: getattr(self.theirs, key, None) for key in ("bos_token", "eos_token")}
        return {key: str(token) for key, token in tokens.items() if token is not None}

    @cached_property
    def document(self) -> dict[str, Any]:
        """Its tokenizer.json, parsed."""
        return dict(json.loads(self.data))

    @cached_property
    def data(self) -> bytes:
        assert self.library is not None, "only the library's tokenizers are documents"
        return self.file or self.library.to_str().encode()


def reference_of_folder(
    folder: Path, files: Mapping[str, bytes], *, trust_remote_code: bool = False
) -> Reference | None:
    """What mlx-lm loads for a folder; None if transformers is not installed.

    files: those that decide, by name. transformers gets a copy of them; with `trust_remote_code` it
    gets the folder itself. Raises: VocabularyError; MissingAssetError for a package that is
    missing, and UsageError for a program that is not trusted.
    """
    try:
        with _quiet():
            from transformers import AutoTokenizer
    except ImportError:
        return None
    if b"NewlineTokenizer" in files.get("tokenizer_config.json", b""):
        import mlx_lm.tokenizer_utils  # noqa: F401  # which registers this class

    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    with TemporaryDirectory() as copy, _quiet():
        try:
            for name, data in files.items():
                Path(copy, name).write_bytes(data)
        except OSError as error:  # never a UsageError, after which there is no comparison
            reason = f"{copy} cannot be written ({error.strerror or error})"
            raise OutputError(
                f"{reason}; make room there, or set TMPDIR to a folder on another disk"
            ) from error
        try:
            theirs = AutoTokenizer.from_pretrained(folder if trust_remote_code else copy, **options)
        except Exception as error:  # programs raise what they like
            raise _refusal(folder, error) from error
    return Reference(theirs=theirs)


def _refusal(folder: Path, error: Exception) -> TokalignError:
    reason = " ".join(str(error).split()) or type(error).__name__
    named = re.search(r"pip install ([\w.-]+)", reason)
    module = (error.name or "") if isinstance(error, ImportError) else ""
    if "." in module:  # its package is installed, in another version
        return VocabularyError(
            f"the tokenizer in {folder} imports {module}, which the installed version of "
            f"{module.partition('.')[0]} does not have; download a newer version of its program"
        )
    if package := named[1] if named else module:
        return MissingAssetError(
            f"the tokenizer in {folder} needs a package that is not installed; install it with: "
            + install_line(package)
        )
    if "trust_remote_code" in reason:
        return UsageError(
            f"the tokenizer in {folder} is a program; read it, and give --trust-remote-code "
            "to run it"
        )
    return VocabularyError(
        f"{folder} holds no tokenizer that transformers opens ({shortened(reason, 160)}); {AGAIN}"
    )


def encode_with(theirs: Any, text: str, *, around: bool) -> list[int]:
    """The ids of a text; around: with what is put before and after it. Raises: VocabularyError."""
    with giving_up():
        try:
            ids = theirs.encode(text, add_special_tokens=around)
        except TypeError:  # it is no tokenizer of transformers
            ids = theirs.encode(text)
    return list(getattr(ids, "ids", ids))


@contextmanager
def _quiet() -> Iterator[None]:
    """Have transformers warn of nothing: neither of missing frameworks nor of unusual settings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
