"""Which of tokalign's own texts suit a model: those in its language, if that can be told."""

from __future__ import annotations

import re
from pathlib import Path

from tokalign.storage import ENGLISH, LANGUAGES

_DECLARED = re.compile(r"^language:(.*(?:\n *- .*)*)", re.MULTILINE)


def language_of_model(target: str, folder: Path | None) -> str:
    """The one that the model's page declares, else that of its dictionaries, else English.

    A page or dictionaries in several of `LANGUAGES` do not tell. target: fingerprint of the
    tokenizer. folder: of the model, where its page is `README.md`.
    """
    from tokalign.tables.finding import find_tables

    found = find_tables("dictionary", target=target, model_folder=folder)
    for told in (_declared(folder), {header.language for _, header in found}):
        fitting = told.intersection(LANGUAGES)
        if len(fitting) == 1:
            return fitting.pop()
    return ENGLISH


def _declared(folder: Path | None) -> set[str]:
    """The languages in the front matter of a model's page, as the Hub reads it."""
    try:
        page = "" if folder is None else (folder / "README.md").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return set()
    matter = page.split("\n---", 1)[0] if page.startswith("---") else ""
    found = _DECLARED.search(matter)
    return set(re.findall(r"[a-z]{2,3}", found[1])) if found else set()
