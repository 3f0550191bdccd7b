"""What a tokenizer.json does before and after BPE: normalizers, pre-tokenizers, post-processors.

Every step changes ids, so each is modelled or refused by name; nothing is skipped. Modelled are:

    normalizer       NFC; with byte fallback also `Prepend` of a `▁`, and `Replace` of spaces by `▁`
    pre-tokenizer    ByteLevel, alone or after one isolating Split by a regular expression;
                     with byte fallback none, Metaspace, or a Split at spaces that `Replace` took
    post-processor   ByteLevel, which moves offsets only, and a template of a BOS and the text

The library's code that this follows is in `tokenizers/src/{normalizers,pre_tokenizers,processors}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tokalign.errors import VocabularyError
from tokalign.tokenizer.formats.limits import flag, shortened
from tokalign.tokenizer.spelling import SPACE_MARK

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel(use_regex=True)` means (tokenizers, `pre_tokenizers/byte_level.rs`)."""

_TAKES_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What happens to a text before BPE; the fields are those of `TokenizerSpec`.

    cuts_at_spaces: a piece ends before every space, so no token may hold one after its first byte.
    """

    pattern: str | None = None
    dummy_prefix: bool = False
    nfc: bool = False
    prefix_once: bool = False
    prefix_unless_space: bool = False
    cuts_at_spaces: bool = False


def read_pipeline(document: Mapping[str, Any], *, by_characters: bool) -> Pipeline:
    """Read the steps before BPE.

    by_characters: with byte fallback; otherwise BPE starts from bytes.
    Raises: VocabularyError that names the first step that is not modelled.
    """
    normalizers = _steps(document.get("normalizer"), "normalizers")
    steps = _steps(document.get("pre_tokenizer"), "pretokenizers")
    nfc = any(step["type"] == "NFC" for step in normalizers)
    others = [step for step in normalizers if step["type"] != "NFC"]
    if by_characters:
        return _over_characters(others, steps, nfc=nfc)
    if others:
        _refuse("normalizes", others[0], "supported are none and NFC")
    return _over_bytes(steps, nfc=nfc)


def _over_bytes(steps: list[dict[str, Any]], *, nfc: bool) -> Pipeline:
    supported = "supported are ByteLevel, and one Split by regex with ByteLevel after it"
    if not any(step["type"] == "ByteLevel" for step in steps):
        if steps:
            _refuse("pre-tokenizes", steps[0], supported)
        raise VocabularyError(
            "has BPE without byte fallback and without a ByteLevel pre-tokenizer, so that some "
            "bytes cannot be spelled; choose a model whose tokenizer spells every byte"
        )
    *splits, last = steps
    prefix = flag(last, "add_prefix_space", default=True)
    use_regex = flag(last, "use_regex", default=True)
    match splits:
        case [] if last["type"] == "ByteLevel":
            return Pipeline(
                pattern=GPT2_PATTERN if use_regex else None,
                dummy_prefix=prefix,
                prefix_unless_space=prefix,
                nfc=nfc,
            )
        case [{"type": "Split"} as split] if last["type"] == "ByteLevel":
            if prefix or use_regex:
                _refuse("pre-tokenizes", last, "after a Split it must neither add a space nor cut")
            return Pipeline(pattern=_isolating(split), nfc=nfc)
    wrong = next((s for s in steps if s["type"] not in ("Split", "ByteLevel")), steps[1])
    _refuse("pre-tokenizes", wrong, supported)


def _isolating(split: Mapping[str, Any]) -> str:
    """The regular expression of a Split whose matches are the pieces, with all between them."""
    pattern = split["pattern"].get("Regex")
    if not isinstance(pattern, str):
        _refuse("pre-tokenizes", split, "a Split by regex was expected")
    if split.get("behavior") != "Isolated" or flag(split, "invert", default=False):
        _refuse("pre-tokenizes", split, "a Split must be Isolated and not inverted")
    return pattern


def _over_characters(
    normalizers: list[dict[str, Any]], steps: list[dict[str, Any]], *, nfc: bool
) -> Pipeline:
    prepends = {"type": "Prepend", "prepend": SPACE_MARK} in normalizers
    takes_spaces = _TAKES_SPACES in normalizers
    known = [{"type": "Prepend", "prepend": SPACE_MARK}, _TAKES_SPACES]
    for at, step in enumerate(normalizers):
        if step not in known or step in normalizers[:at]:
            _refuse("normalizes", step, f"supported are NFC, Prepend {SPACE_MARK} and Replace ' '")
    match steps:
        case [{"type": "Metaspace"} as mark] if not prepends:
            return _metaspace(mark, nfc=nfc)
        case [{"type": "Split", "pattern": {"String": " "}}] if takes_spaces:
            steps = []  # Gemma: the normalizer has left no space to split at
    if steps:
        _refuse("pre-tokenizes", steps[0], "with byte fallback, supported are none and Metaspace")
    if not takes_spaces:
        raise VocabularyError(
            f"has byte fallback but leaves spaces as they are; supported is writing them as "
            f"{SPACE_MARK}, by a Replace normalizer or Metaspace"
        )
    return Pipeline(dummy_prefix=prepends, nfc=nfc)


def _metaspace(step: Mapping[str, Any], *, nfc: bool) -> Pipeline:
    if step.get("replacement") != SPACE_MARK:
        _refuse("pre-tokenizes", step, f"the replacement must be {SPACE_MARK}")
    never = step.get("add_prefix_space") is False
    scheme = step.get("prepend_scheme", "never" if never else "always")
    if scheme not in ("always", "first", "never"):
        _refuse("pre-tokenizes", step, "the prepend_scheme must be always, first or never")
    prefix = scheme != "never"
    return Pipeline(
        dummy_prefix=prefix,
        prefix_once=scheme == "first",
        prefix_unless_space=prefix,
        nfc=nfc,
        cuts_at_spaces=flag(step, "split", default=True),
    )


def template_adds(document: Mapping[str, Any]) -> list[int]:
    """The ids that the post-processor puts before a text; empty if it adds nothing.

    Raises: VocabularyError for a post-processor that puts anything after the text.
    """
    added: list[int] = []
    for step in _steps(document.get("post_processor"), "processors"):
        match step:
            case {"type": "ByteLevel"}:
                pass  # it moves offsets only
            case {
                "type": "TemplateProcessing",
                "single": [*before, {"Sequence": {"id": "A"}}],
                "special_tokens": dict(listed),
            } if not added and all("SpecialToken" in item for item in before):
                for item in before:
                    added += listed[item["SpecialToken"]["id"]]["ids"]
            case _:
                _refuse("post-processes", step, "supported is a template of a BOS and the text")
    return added


def _steps(node: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or post-processor, nested sequences flattened."""
    if node is None:
        return []
    if node["type"] == "Sequence":
        return [step for child in node[key] for step in _steps(child, key)]
    return [node]


def _refuse(verb: str, step: Mapping[str, Any], supported: str) -> NoReturn:
    options = ", ".join(f"{k}={shortened(v, 40)}" for k, v in step.items() if k != "type")
    how = f"{shortened(step['type'])}({shortened(options, 120)})"
    raise VocabularyError(
        f"{verb} with {how}, which tokalign does not model; {supported}; "
        "choose another model, or one of the same family with a supported tokenizer"
    )
