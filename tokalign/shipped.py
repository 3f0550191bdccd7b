"""What comes with tokalign besides its code: tables, a small corpus, sample texts and prompts.

In the repository they are folders at the top level. A wheel has them in the package, under `data`,
with the same relative names (see `pyproject.toml`).
"""

from __future__ import annotations

from pathlib import Path

from tokalign.arguments import shown_path
from tokalign.errors import MissingAssetError, UsageError

CORPORA = "corpora"
TABLES = "tables"
PROMPTS = "prompts"

ENGLISH, POLISH = "en", "pl"
LANGUAGES = ("cs", ENGLISH, "hu", "lt", POLISH, "sk", "uk")
"""Those that a sample text and prompts come in."""

_PACKAGE = Path(__file__).parent
_INSTALLED = _PACKAGE / "data"


def shipped(name: str) -> Path:
    """The path of a file or folder that comes with tokalign, such as `TABLES`.

    It is part of the installation, so only read it. Raises: MissingAssetError.
    """
    path = (_INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent) / name
    if not path.exists():
        raise MissingAssetError(
            f"{path}, which comes with tokalign, is missing; "
            "install again with: pip install --force-reinstall and the folder or wheel of tokalign"
        )
    return path


def sample_text(language: str, *, remedy: str = "give a FILE of your own") -> Path:
    """Paragraphs of many kinds in a language, one per line: a small corpus in Polish, 24 in others.

    remedy: what the user of the running command can do for a language that none comes in.
    Raises: UsageError for such a language.
    """
    _require(language, "sample text", remedy)
    return shipped(f"{CORPORA}/{language}-mini.txt")


def prompts(language: str, *, instead: str = "FILE arguments") -> Path:
    """A folder with `encyclopedic.txt`, `instructions.txt` and `questions.txt` in a language.

    instead: what the running command offers otherwise. Raises: UsageError for a language that none
    come in.
    """
    _require(language, "prompts", f"give your own with {instead}")
    return shipped(PROMPTS if language == POLISH else f"{PROMPTS}/{language}")


def _require(language: str, what: str, remedy: str) -> None:
    if language not in LANGUAGES:
        raise UsageError(
            f"no {what} in language {shown_path(language)} comes with tokalign, only in "
            f"{', '.join(LANGUAGES)}; {remedy}"
        )
