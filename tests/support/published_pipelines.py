"""The pipelines that families of models publish, as steps of a tokenizer.json, written from memory
of what they do; no file of theirs is here.
"""

from __future__ import annotations

from typing import Any

from tokalign.tokenizer.bpe.pretokenizer import GPT2_PATTERN, KNOWN_PATTERNS
from tokalign.tokenizer.spec import byte_level

Step = dict[str, Any]


def isolated(pattern: str) -> Step:
    """A Split whose matches are pieces."""
    cut = {"Regex": pattern}
    return {"type": "Split", "pattern": cut, "behavior": "Isolated", "invert": False}


def digits(*, individual: bool) -> Step:
    """A Digits step."""
    return {"type": "Digits", "individual_digits": individual}


BYTE_LEVEL: Step = byte_level(None)[0]  # type: ignore[assignment]
GPT2: Step = {**BYTE_LEVEL, "use_regex": True}
PUNCTUATION: Step = {"type": "Punctuation", "behavior": "Contiguous"}
_MARKS = r"!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"
_LAST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O_PATTERN = max(KNOWN_PATTERNS, key=len)

PIPELINES: dict[str, tuple[Step, ...]] = {
    "SmolLM2": (digits(individual=True), GPT2),
    "DeepSeek V3": (
        isolated(r"\p{N}{1,3}"),
        isolated("[一-龥぀-ゟ゠-ヿ]+"),
        isolated(
            rf"[{_MARKS}][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
            rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LAST}"
        ),
        BYTE_LEVEL,
    ),
    "DeepSeek Coder": (
        isolated(r"[\r\n]"),
        isolated(r"\s?\p{L}+"),
        isolated(r"\s?\p{P}+"),
        isolated("[一-龥ࠀ-一가-퟿]+"),
        digits(individual=True),
        BYTE_LEVEL,
    ),
    "Falcon": (
        PUNCTUATION,
        GPT2,
        digits(individual=False),
        isolated("[0-9][0-9][0-9]"),
    ),
    "GPT-4o as converted": (
        {**isolated(GPT4O_PATTERN), "behavior": "Removed", "invert": True},
        BYTE_LEVEL,
    ),
    "BLOOM": (isolated(r" ?[^(\s|[.,!?…。，、।۔،])]+"), BYTE_LEVEL),
    "Kimi K2": (
        isolated(
            r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|[^\r\n\p{L}\p{N}]?"
            r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LAST}"
        ),
        BYTE_LEVEL,
    ),
    "digits in threes from the right": (
        isolated(r"(?=(?:\d{3})+(?!\d))\d{1,3}|\d{1,3}"),
        isolated(GPT2_PATTERN),
        BYTE_LEVEL,
    ),
}
"""Over bytes: the steps by family."""
