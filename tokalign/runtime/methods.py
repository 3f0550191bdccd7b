"""Names of methods and translations: what there is, what each needs, which one is meant.

It imports neither models nor mlx, so that the command line can parse its options without them.
Read next: `options.py`, which has everything that a caller may ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokalign.errors import MissingAssetError, UsageError
from tokalign.tables.dictionary import HOW_TO_BUILD

if TYPE_CHECKING:
    from tokalign.tokenizer.tokenizer import Tokenizer
    from tokalign.tokenizer.vocabulary import DraftId, TargetId

AUTO = "auto"
"""Asks for the method that fits what there is; see `choose_method`."""

METHODS = ("plain", "dictionary", "copy", "draft", "drafter", "hybrid")

MODEL_METHODS = ("draft", "hybrid")
"""Methods that draft with a model. The hybrid also works without one."""

DRAFTER_METHODS = ("drafter", "hybrid")
"""Methods that draft with a recurrent drafter. The hybrid also works without one."""

TABLE_METHODS = ("dictionary", "hybrid")
"""Methods that use a dictionary. The hybrid also works without one."""

TRANSLATIONS = ("none", "context:P", "intersection", "exact")

NO_DICTIONARY = (
    "no dictionary fits the target's tokenizer; give --dictionary FILE, or build one with: "
    f"{HOW_TO_BUILD}"
)

DEFAULT_DRAFT_TOKENS = 2
"""How many ids a draft model proposes in a round, as in mlx-lm's speculative_generate_step."""

DEFAULT_ALTERNATIVES = 4
"""How many ids a draft model proposes besides one for each of its passes."""


def choose_method(asked: str, *, draft: bool, dictionary: bool, drafter: bool) -> str:
    """The method that `asked` stands for, by what there is.

    draft, dictionary, drafter: whether there is a draft model, a dictionary, a recurrent drafter.

    `auto` stands for the hybrid of all sources that there are, ranked by expected gain.
    Raises: UsageError or MissingAssetError for a method that is unknown or lacks what it needs.
    """
    if asked not in (AUTO, *METHODS):
        raise UsageError(f"there is no method {asked!r}; choose one of auto, {', '.join(METHODS)}")
    if asked == AUTO:
        return "hybrid"
    if asked == "draft" and not draft:
        raise UsageError("--method draft needs a draft model; give --draft NAME")
    if asked == "drafter" and not drafter:
        raise MissingAssetError(
            "--method drafter needs a recurrent drafter of this target, and none is named or found "
            "beside it; give --drafter FOLDER, or train one with: tokalign train"
        )
    if asked == "dictionary" and not dictionary:
        raise MissingAssetError(NO_DICTIONARY)
    return asked


def check_draft_tokens(count: int | None) -> None:
    """Raises: UsageError for a number of draft tokens below 1; None leaves the choice open."""
    if count is not None and count < 1:
        raise UsageError(f"--num-draft-tokens {count} drafts nothing; use --method plain for that")


def read_draft_tokens(given: str) -> int | None:
    """The number of draft tokens as typed; None for `auto`. Raises: UsageError."""
    if given == AUTO:
        return None
    if not given.isdecimal():
        raise UsageError(f"--num-draft-tokens {given} is not a count; give a number, or auto")
    check_draft_tokens(int(given))
    return int(given)


def choose_translation(
    asked: str | None, target: Tokenizer[TargetId], draft: Tokenizer[DraftId]
) -> str:
    """The translation asked for; by default `none` for one tokenizer and `exact` for two."""
    if asked is not None:
        return asked
    return "none" if target.fingerprint == draft.fingerprint else "exact"


def check_translation(name: str | None) -> None:
    """Raises: UsageError for a name of no translation; None leaves the choice open."""
    if name is None or (name in TRANSLATIONS and ":" not in name):
        return
    kind, _, window = name.partition(":")
    if kind != "context" or not window.isdecimal() or not int(window):
        known = ", ".join(TRANSLATIONS)
        raise UsageError(f"there is no translation {name!r}; choose one of {known}")
