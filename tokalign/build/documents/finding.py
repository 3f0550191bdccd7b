"""Which files of a folder are documents to read, and which are left alone.

Only kinds of files that are known to hold prose are read. What is hidden, belongs to programs or is
named like a secret is left out, and links are not followed, so that nothing outside the folders is
read.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import normalize

from tokalign.errors import MissingAssetError, UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

KINDS = (".txt", ".text", ".md", ".markdown", ".rst", ".html", ".htm", ".xhtml", ".pdf")
"""How the names of documents end, in any case."""

LARGEST_FILE = 50 << 20
"""Bytes of the largest document that is read by default."""

OF_PROGRAMS = (
    "node_modules/",
    "site-packages/",
    "__pycache__/",
    "venv/",
    "*.app/",
    "Library/",
    "AppData/",
    "requirements*.txt",
    "CMakeLists.txt",
    "robots.txt",
)
"""What programs keep beside the documents of a person, as patterns of a .gitignore file."""

SECRETS = (
    ".*",
    "*password*",
    "*passwd*",
    "*passphrase*",
    "*secret*",
    "*credential*",
    "*private*key*",
    "*api*key*",
    "*recovery*code*",
    "*recovery*key*",
    "*seed*phrase*",
    "*hasla*",
    "*haslo*",
    "*hasel*",
    "*hasł*",
    "*haseł*",
    "*парол*",
    "*hesl*",
    "*hesel*",
    "*hesiel*",
    "*slaptažod*",
    "*slaptazod*",
    "*jelsz*",
    "id_rsa*",
    "id_ed25519*",
    "*.pem.*",
    "*.key.*",
)
"""Names of secrets, in any case, and everything that is hidden: .env, .ssh, .netrc. Passwords are
named in English, Polish, Ukrainian (and Cyrillic Crimean Tatar), Czech, Slovak, Lithuanian and
Hungarian."""


@dataclass(frozen=True, slots=True, order=True)
class FoundFile:
    """A document to read. path: absolute. bytes, modified: its size and its time in nanoseconds."""

    path: str
    bytes: int
    modified: int


@dataclass(slots=True)
class Skipped:
    """What was left alone: how many files for each reason, and the folders that cannot be read."""

    counts: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is left out besides what `OF_PROGRAMS` and `SECRETS` name.

    exclude: patterns as in a .gitignore file. largest_file: in bytes.
    """

    exclude: tuple[str, ...] = ()
    largest_file: int = LARGEST_FILE


def find_documents(folders: Sequence[Path], rules: Rules) -> tuple[list[FoundFile], Skipped]:
    """The documents in these folders and in the folders in them, sorted by path, each once.

    Raises: MissingAssetError for a folder that is not there; UsageError for a file in its place, a
        pattern that means nothing, or missing libraries.
    """
    spec = _spec((*OF_PROGRAMS, *SECRETS, *map(_folded, rules.exclude)))
    skipped, found = Skipped(), set[FoundFile]()
    for folder in folders:
        _check_folder(folder)
        root = os.path.abspath(folder)
        for path in _walk(root, spec, skipped):
            file = _consider(path, rules, skipped)
            if file is not None:
                found.add(file)
    return sorted(found), skipped


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise MissingAssetError(
            f"{folder} is not there; connect its disk, or name the folders to learn from again "
            "(documents of the others are forgotten)"
        )
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give the folder that it is in")


def _spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    try:
        from pathspec import GitIgnoreSpec
    except ModuleNotFoundError as error:
        raise missing_libraries() from error
    try:
        return GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise UsageError(
            f"a pattern to exclude means nothing ({error}); write it as in a .gitignore file"
        ) from error


def missing_libraries() -> MissingAssetError:
    """The error that says how to get what reads documents."""
    return MissingAssetError(
        "reading documents needs libraries that are not installed; "
        "install them with: pip install 'tokalign[documents]'"
    )


def _folded(name: str) -> str:
    """A name or a pattern as they are compared: in any case, its accents in one way.

    macOS writes the accents of many names as characters of their own, and no keyboard does.
    """
    return normalize("NFC", name).lower()


def _walk(root: str, spec: GitIgnoreSpec, skipped: Skipped) -> Iterator[str]:
    """The paths of all files that no pattern excludes."""

    def report(error: OSError) -> None:
        skipped.unreadable.append(str(error.filename))

    for folder, inner, files in os.walk(root, onerror=report):
        kept = []
        for name in inner:
            path = os.path.join(folder, name)
            if spec.match_file(_folded(os.path.relpath(path, root)) + "/"):
                skipped.counts["excluded folders"] += 1
            elif os.path.islink(path):
                skipped.counts["links"] += 1
            else:
                kept.append(name)
        inner[:] = kept
        for name in files:
            path = os.path.join(folder, name)
            if spec.match_file(_folded(os.path.relpath(path, root))):
                skipped.counts["excluded files"] += 1
            else:
                yield path


def _consider(path: str, rules: Rules, skipped: Skipped) -> FoundFile | None:
    """The file at a path, if it is a document of a size to be read."""
    if not path.lower().endswith(KINDS):
        skipped.counts["other kinds"] += 1
        return None
    try:
        facts = os.lstat(path)
    except OSError:
        skipped.unreadable.append(path)
        return None
    if stat.S_ISLNK(facts.st_mode):
        skipped.counts["links"] += 1
    elif not stat.S_ISREG(facts.st_mode):
        skipped.counts["other kinds"] += 1
    elif facts.st_size > rules.largest_file:
        skipped.counts["too large"] += 1
    else:
        return FoundFile(path, facts.st_size, facts.st_mtime_ns)
    return None
