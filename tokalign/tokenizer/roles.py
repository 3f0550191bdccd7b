"""What special tokens are for, and which added tokens must never be made of a user's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokalign.tokenizer.vocabulary import Roles

_TURN_START = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>")
_TURN_END = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
_BOS = ("<s>", "<|begin_of_text|>", "<bos>")
_EOS = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<|eom_id|>", "<eos>")

_HTML = frozenset(
    (
        *("a", "b", "blockquote", "br", "caption", "code", "div", "em", "i", "li", "ol", "p"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "s", "span", "strong", "sub", "sup", "table"),
        *("tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul"),
    )
)


def find_roles(specials: Mapping[int, str], config: Mapping[str, Any]) -> Roles[int]:
    """Give special tokens their roles. config: as a tokenizer_config.json; well-known spellings
    fill the gaps."""
    ids = {spelling: index for index, spelling in specials.items()}

    def first(spellings: Iterable[str]) -> int | None:
        return next((ids[s] for s in spellings if s in ids), None)

    turn_end = first(_TURN_END)
    named = (*_EOS, *_configured(config, "eos_token"))
    ends = {ids[spelling] for spelling in named if spelling in ids}
    return Roles(
        bos=first((*_configured(config, "bos_token"), *_BOS)),
        eos=frozenset(ends if turn_end is None else {*ends, turn_end}),
        turn_start=first(_TURN_START),
        turn_end=turn_end,
    )


def openings_and_ends(config: Mapping[str, Any]) -> list[str]:
    """What a tokenizer_config.json names as BOS and EOS, which no text has, whatever its form."""
    return [*_configured(config, "bos_token"), *_configured(config, "eos_token")]


def _configured(config: Mapping[str, Any], key: str) -> list[str]:
    value = config.get(key)
    spelling = value.get("content") if isinstance(value, dict) else value
    return [spelling] if isinstance(spelling, str) else []


def is_control(spelling: str, *, special: bool, in_vocabulary: bool) -> bool:
    """Whether an added token must never be made of a user's words: special ones, and those spelled
    as markup (`<tool_call>`, `[INST]`), but not tags of HTML."""
    if special:
        return True
    if len(spelling) < 3 or spelling[0] + spelling[-1] not in ("<>", "[]"):
        return False
    return not in_vocabulary or spelling[1:-1].removeprefix("/") not in _HTML
