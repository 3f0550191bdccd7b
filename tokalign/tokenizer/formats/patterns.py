"""Which regular expressions a pre-tokenizer may use.

Two engines read the expression: Oniguruma in the `tokenizers` library, and `regex` here. What they
understand differently is refused, and so is what looks at the text around a piece other than the
published expressions do: a text that grows is cut again from its last settled piece on
(`bpe/pretokenizer.py`), which must not change what comes before.
"""

from __future__ import annotations

import re

import regex

from tokalign.errors import VocabularyError
from tokalign.tokenizer.formats.limits import MAX_PATTERN, shortened

_GROUPS = ("(?:", "(?i:", r"(?!\S)")
"""All that may follow `(?`: groups, and the one look-ahead of the published expressions."""

_PROPERTY = re.compile(r"\\[pP]\{\^?\w+\}")
_ESCAPES = frozenset("sSdDrntfvx\\'\"/.,;:!?-+*()[]{}|^$#&@%=<>~`_ ")
"""What may follow a backslash. Which characters are `\\w` is another matter in each engine."""

_QUANTIFIER = re.compile(r"\{\d+(,\d*)?\}(?!\+)")


def check_pattern(pattern: object) -> None:
    """Refuse an expression that is invalid, too long, or beyond what is said above.

    Raises: VocabularyError with the part that is not supported.
    """
    if not isinstance(pattern, str) or not pattern:
        raise VocabularyError(
            f"pre-tokenizes with {shortened(pattern)}, where a regular expression was expected; "
            "download the file again"
        )
    if len(pattern) > MAX_PATTERN:
        raise VocabularyError(
            f"pre-tokenizes with a regular expression of {len(pattern):,} characters, where at "
            f"most {MAX_PATTERN:,} were expected; choose another model"
        )
    found = _unsupported(pattern)
    if found is not None:
        raise VocabularyError(
            f"pre-tokenizes with a regular expression that has {shortened(found)}, which tokalign "
            f"does not model ({shortened(pattern)}); choose another model"
        )
    try:
        matches_nothing = regex.compile(pattern).match("") is not None
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise VocabularyError(
            f"pre-tokenizes with an invalid regular expression ({shortened(str(error))}); "
            "download the file again"
        ) from error
    if matches_nothing:  # after an empty match the engines go on from different places
        raise VocabularyError(
            f"pre-tokenizes with a regular expression that matches the empty text "
            f"({shortened(pattern)}), which tokalign does not model; choose another model"
        )


def _unsupported(pattern: str) -> str | None:
    """The first part of the expression that is not supported, if there is one."""
    at, in_set = 0, False
    while at < len(pattern):
        character, two = pattern[at], pattern[at : at + 2]
        if found := _PROPERTY.match(pattern, at):
            at = found.end()
            continue
        if character == "\\":
            if two[1:] not in _ESCAPES:
                return two
            at += 2
            continue
        if in_set:
            if character == "[" or two in ("&&", "--", "||", "~~"):
                return f"{character} inside a set"
            in_set = character != "]"
        elif character == "[":
            in_set = True
            at += pattern[at + 1 : at + 2] == "^"
            if pattern[at + 1 : at + 2] == "]":
                return "an empty set"
        elif character in "^$":
            return character
        elif two == "(?" and not pattern.startswith(_GROUPS, at):
            return pattern[at : at + 4]
        elif two == "(*" or (character == "{" and not _QUANTIFIER.match(pattern, at)):
            return pattern[at : at + 6]
        at += 1
    return None
