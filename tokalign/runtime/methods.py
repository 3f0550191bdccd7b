"""The names of methods and translations, and what they stand for; needs neither models nor mlx."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokalign.errors import MissingAssetError, UsageError

if TYPE_CHECKING:
    from tokalign.tokenizer.tokenizer import Tokenizer
    from tokalign.tokenizer.vocabulary import DraftId, TargetId

METHODS = ("plain", "dictionary", "copy", "prompt-lookup", "draft", "hybrid", "hybrid-fixed")
MODEL_METHODS = ("draft", "hybrid", "hybrid-fixed")
"""They draft with a model; the hybrids do without if there is none."""

LOOKUP_METHODS = ("dictionary", "copy", "prompt-lookup", "hybrid", "hybrid-fixed")
"""They do without any model, and can be emulated on a text."""

TABLE_METHODS = ("dictionary", "hybrid", "hybrid-fixed")
"""They use a dictionary; the hybrids do without if there is none."""

TRANSLATIONS = ("none", "naive", "context:P", "intersection", "exact")

DEFAULT_DRAFT_TOKENS = 2
"""Of a draft model; the default of mlx-lm's speculative_generate_step too."""

ORDERED = ("dictionary", "copy", "prompt-lookup", "draft")
"""What `hybrid-fixed` may ask."""

DEFAULT_ALTERNATIVES = 2
"""Beside the first id that a draft model proposes: its second and third guess."""

HYBRID_ORDER = ("dictionary", "prompt-lookup", "draft")
"""`hybrid-fixed` asks in this order; what costs nothing comes first, as in DictSpec's hybrid."""


def choose_method(asked: str, *, draft: bool, dictionary: bool) -> str:
    """The method that `asked` stands for, given whether there is a draft model and a dictionary.

    `auto` is the hybrid of what there is, ranked by gain.
    Raises: UsageError or MissingAssetError for a method that lacks what it needs.
    """
    if asked == "auto":
        return "hybrid"
    if asked == "draft" and not draft:
        raise UsageError("--method draft needs a draft model; give --draft NAME")
    if asked == "dictionary" and not dictionary:
        raise MissingAssetError(
            "no dictionary fits the target's tokenizer; give --dictionary FILE, or build one with: "
            "tokalign build --dictionary-only --target TARGET CORPUS"
        )
    return asked


def read_order(order: str) -> tuple[str, ...]:
    """The sources of `hybrid-fixed`, separated by commas. Raises: UsageError for unknown ones."""
    names = tuple(name.strip() for name in order.split(","))
    if unknown := [name for name in names if name not in ORDERED]:
        raise UsageError(f"there is no source {unknown[0]!r}; choose of {', '.join(ORDERED)}")
    return names


def check_draft_tokens(count: int | None) -> None:
    """Raises: UsageError for a number of draft tokens that drafts nothing; None is the default."""
    if count is not None and count < 1:
        raise UsageError(f"--num-draft-tokens {count} drafts nothing; use --method plain for that")


def read_draft_tokens(given: str) -> int | None:
    """A number of draft tokens as typed; None for `auto`. Raises: UsageError."""
    if given == "auto":
        return None
    if not given.isdecimal():
        raise UsageError(f"--num-draft-tokens {given} is no number; give one, or auto")
    check_draft_tokens(int(given))
    return int(given)


def choose_translation(
    asked: str | None, target: Tokenizer[TargetId], draft: Tokenizer[DraftId]
) -> str:
    """The translation asked for; by default `none` if both have the same tokenizer."""
    if asked is not None:
        return asked
    return "none" if target.fingerprint == draft.fingerprint else "exact"


def check_translation(name: str) -> str:
    """`name` if it names a translation. Raises: UsageError."""
    kind, _, window = name.partition(":")
    if name in TRANSLATIONS and not window:
        return name
    if kind == "context" and window.isdigit() and int(window) > 0:
        return name
    raise UsageError(f"there is no translation {name!r}; choose one of {', '.join(TRANSLATIONS)}")
