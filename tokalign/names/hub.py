"""Files of Hub repositories: snapshots in the Hub's cache, downloads elsewhere, and uploads.

An interrupted download leaves a snapshot with some of its files. Such a snapshot does not count as
found: it is completed from the Hub, or else the error says what it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tokalign.errors import MissingAssetError, UsageError
from tokalign.storage import listed, parse_json
from tokalign.tokenizer.files import holds_tokenizer


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of a repository: files like these `patterns`; `missing` are those that a
    folder lacks. instead: a way without the Hub. packaged: the fields of an `Alias` that name a
    file in a distribution with all of it. locally: whether a local path has to be complete, too;
    those who read tokenizers and drafters know more kinds of files, and say more."""

    patterns: tuple[str, ...]
    missing: Callable[[Path], list[str]]
    instead: str
    packaged: tuple[str, ...] = ()
    locally: bool = False


def missing_from_model(folder: Path) -> list[str]:
    """The files that a model's folder lacks: configuration, tokenizer, weights or parts of them."""
    return _missing_config(folder) + _missing_weights(folder) + missing_from_tokenizer(folder)


def missing_from_tokenizer(folder: Path) -> list[str]:
    """`tokenizer.json` for a folder without any tokenizer that mlx-lm opens."""
    return [] if holds_tokenizer(folder) else ["tokenizer.json"]


def _missing_weights(folder: Path) -> list[str]:
    return [name for name in weights_files(folder) if not (folder / name).is_file()]


def weights_files(folder: Path) -> list[str]:
    """The weight files that belong into a folder: those of the index, else by the numbers of those
    present. mlx-lm ignores the index, which may be left over from before a conversion."""
    present = sorted(file.name for file in folder.glob("model*.safetensors"))
    indexed = list[str]()
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        index = parse_json((folder / "model.safetensors.index.json").read_bytes())
        indexed = sorted({*map(str, index["weight_map"].values())})
    if indexed and (not present or set(present) & set(indexed)):
        return indexed
    parts = [re.fullmatch(r"(model.*)-\d{5}-of-(\d{5})\.safetensors", name) for name in present]
    numbered = [
        f"{stem}-{number:05}-of-{count}.safetensors"
        for stem, count in sorted({(part[1], part[2]) for part in parts if part})
        for number in range(1, int(count) + 1)
    ]
    return numbered or present or ["model.safetensors"]


_FILES = ("*.json", "*.model", "*.model.v*", "*.tiktoken", "*.jinja", "*.txt", "*.jsonl", "*.py")
"""What mlx-lm downloads besides the weights, from which it makes a tokenizer."""

_WEIGHTS = ("model*.safetensors", "*drafter/*.safetensors", "mtp*.safetensors")


def _missing_config(folder: Path) -> list[str]:
    return [] if (folder / "config.json").is_file() else ["config.json"]


def missing_from_drafter(folder: Path) -> list[str]:
    """The files that a drafter's folder lacks, whose weights may have any name."""
    named = "its weights (*.safetensors, which safetensors.torch.save_file makes of a .bin)"
    weights = [] if listed(folder, "*.safetensors") else [named]
    if any(folder.glob("model*.safetensors*")):
        weights = _missing_weights(folder)
    return _missing_config(folder) + weights


TOKENIZER = Wanted(
    _FILES,
    missing_from_tokenizer,
    "a local path to the model's folder or its tokenizer.json",
    ("weights", "vocabulary"),
)
CONFIG = Wanted(
    ("config.json",), _missing_config, "a folder with its config.json", ("weights",), locally=True
)
DRAFTER = Wanted(("*.json", "*.safetensors"), missing_from_drafter, "the drafter's folder")
MODEL = Wanted(
    (*_FILES, *_WEIGHTS, "*.tok"),
    missing_from_model,
    "the complete local folder of an MLX model",
    ("weights",),
    locally=True,
)


def find_cached(
    repositories: Sequence[str], revision: str, wanted: Wanted
) -> tuple[str, Path] | None:
    """The first repository with a complete snapshot in the Hub's cache, and the snapshot."""
    for repository in repositories:
        folder = _cached(repository, revision)
        if folder is not None and not wanted.missing(folder):
            return repository, folder
    return None


def _cached(repository: str, revision: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        # No files are listed, because `Wanted.missing` decides what a complete snapshot is.
        folder = snapshot_download(
            repository, revision=revision, allow_patterns=[], local_files_only=True
        )
    except (OSError, HFValidationError):
        return None
    return Path(folder)


def download(repositories: Sequence[str], revision: str, wanted: Wanted) -> tuple[str, Path]:
    """Download or complete the snapshot of the first repository from which that is possible.
    Raises: MissingAssetError about the first one."""
    failures = []
    for repository in repositories:
        why = _download(repository, revision, wanted.patterns)
        why = why or "the Hub did not provide it; try again"
        folder = _cached(repository, revision)
        if folder is None:
            failures.append(f"{repository} is not in the Hub cache, and {why}")
        elif missing := ", ".join(wanted.missing(folder)):
            failures.append(f"{repository} in the Hub cache lacks {missing}, and {why}")
        else:
            return repository, folder
    raise MissingAssetError(failures[0])


def download_to(
    folder: Path, repositories: Sequence[str], revision: str, patterns: Sequence[str]
) -> tuple[str, Path]:
    """Download the files like `patterns` of the first repository that has some.

    folder: an empty one outside the Hub's cache, where such a snapshot would replace the model's.
    Returns: the repository, and the folder of its files.
    Raises: MissingAssetError about the first repository if none was downloaded and one failed.
    """
    failures = []
    for number, repository in enumerate(repositories):
        own = folder / str(number)
        why = _download(repository, revision, patterns, own)
        if why is not None:
            failures.append(f"{repository} was not downloaded: {why}")
        elif any(found for pattern in patterns for found in own.rglob(pattern)):
            return repository, own
    if failures:
        raise MissingAssetError(failures[0])
    return repositories[0], folder


def read_part(repository: str, file: str, begin: int, end: int) -> bytes:
    """The bytes of a file on the Hub from one position to another. Raises: MissingAssetError."""
    from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers = {**build_hf_headers(), "Range": f"bytes={begin}-{end - 1}"}
    address = hf_hub_url(repository, file)
    try:
        with get_session().stream("GET", address, headers=headers, follow_redirects=True) as answer:
            hf_raise_for_status(answer)
            if answer.status_code != 206:
                raise OSError("the server gives whole files only")
            return bytes(answer.read())
    except _errors() as error:
        why = _reason(error, repository)
        raise MissingAssetError(f"{file} of {repository} cannot be read: {why}") from error


def upload(repository: str, files: Mapping[str, bytes], *, message: str) -> None:
    """Add files (content by path) to a Hub repository in one commit, all of them or none. Raises:
    MissingAssetError if it cannot be reached; UsageError if the Hub refuses the commit."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    try:
        HfApi().create_commit(repository, operations, commit_message=message)
    except _errors() as error:
        why = _reason(error, repository)
        if isinstance(error, RepositoryNotFoundError):
            why += f"; you may have to create it with: hf repo create {repository}, or to log in"
        elif isinstance(error, HfHubHTTPError):
            raise UsageError(
                f"the Hub refused the upload to {repository} ({_first_line(error)}); "
                "log in with a token that may write to it: hf auth login (or set HF_TOKEN)"
            ) from error
        raise MissingAssetError(f"nothing was uploaded to {repository}: {why}") from error


def _download(
    repository: str, revision: str, patterns: Sequence[str], folder: Path | None = None
) -> str | None:
    """Download files into the Hub's cache or a folder; returns why not all arrived."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            repository, revision=revision, allow_patterns=list(patterns), local_dir=folder
        )
    except _errors() as error:
        return _reason(error, repository)
    return None


def _errors() -> tuple[type[Exception], ...]:
    """What a failed transfer raises. The Hub's errors inherit from those of its HTTP library."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    theirs = (base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    return (OSError, HFValidationError, *theirs)


def _reason(error: Exception, repository: str) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    match error:
        case GatedRepoError():
            return (
                f"its terms have to be accepted first: on https://huggingface.co/{repository}, "
                "then with: hf auth login"
            )
        case RepositoryNotFoundError() | HFValidationError():
            return "the Hub has no public repository of this name; check the name"
        case LocalEntryNotFoundError() | OfflineModeIsEnabled():
            return "the Hub is out of reach; try again once online"
    return f"the transfer failed ({_first_line(error)}); try again"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
