"""What a tokenizer.json does before and after its model: normalizers, pre-tokenizers, templates.

The library's own objects do what the steps say (`library.py`, `Tokenizer.prepared`). What
is read here is what only a growing text asks for: which spaces are put in front of texts, how a
space is spelled, and which steps cut nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokalign.errors import VocabularyError
from tokalign.tokenizer.formats.limits import shortened
from tokalign.tokenizer.spec import Step
from tokalign.tokenizer.spelling import SPACE_MARK


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What happens to a text before the model; the fields are those of `TokenizerSpec`."""

    normalizer: tuple[Step, ...]
    pre_tokenizer: tuple[Step, ...]
    dummy_prefix: bool
    prefix_once: bool
    prefix_unless_space: bool


def read_pipeline(document: Mapping[str, Any], tokens: Sequence[bytes]) -> Pipeline | None:
    """The steps before the model, or None if they spell neither bytes nor the spaces of a text.

    tokens: as bytes; a step that cuts where no token lies across cuts nothing.
    Raises: VocabularyError for a step with a switch that is none.
    """
    normalizer = read_steps(document.get("normalizer"), "normalizers")
    steps = read_steps(document.get("pre_tokenizer"), "pretokenizers")
    marks = [step for step in steps if step["type"] == "Metaspace"]
    levels = [step for step in steps if step["type"] == "ByteLevel"]
    if not levels and not marks and _TAKES_SPACES not in normalizer:
        return None
    scheme = _prefix_scheme(*marks[:1]) if marks else "never"
    first = steps and steps[0]["type"] == "ByteLevel" and steps[0].get("add_prefix_space", True)
    if len(marks) > 1 or any(mark["replacement"] != SPACE_MARK for mark in marks):
        return None
    return Pipeline(
        normalizer=tuple(step for step in normalizer if not _spells_spaces(step)),
        pre_tokenizer=tuple(_that_cut(steps, tokens)),
        dummy_prefix=_PREPENDS in normalizer or scheme != "never" or bool(first),
        prefix_once=scheme == "first",
        prefix_unless_space=scheme != "never" or bool(first),
    )


def _that_cut(steps: list[Step], tokens: Sequence[bytes]) -> list[Step]:
    """The steps without those that cut only where no token lies across."""
    runs_of_spaces = any(b" " in token[1:] for token in tokens)

    def cuts(step: Step) -> bool:
        match step:
            case {"type": "Metaspace"}:
                return runs_of_spaces and bool(step.get("split", True))
            case {"type": "Split", "pattern": {"String": " "}}:
                return False  # Gemma: the normalizer has left no space to split at
            case {"type": "WhitespaceSplit"}:
                return runs_of_spaces  # before Metaspace, which spells the space again
        return True

    return [step for step in steps if cuts(step)]


_PREPENDS = {"type": "Prepend", "prepend": SPACE_MARK}
_TAKES_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}


def _spells_spaces(step: Step) -> bool:
    """Whether a step only marks spaces, or the beginning of a text, which bytes do as spaces."""
    return step in (_PREPENDS, _TAKES_SPACES)


def _prefix_scheme(mark: Step) -> str:
    never = mark.get("add_prefix_space") is False
    scheme = mark.get("prepend_scheme", "never" if never else "always")
    if scheme not in ("always", "first", "never"):
        raise VocabularyError(
            f"has {shortened(scheme)} for prepend_scheme, where always, first or never was "
            "expected; download the file again"
        )
    return str(scheme)


def template_opening(document: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that the post-processor puts before a text; those after it end no prompt."""
    opening: list[int] = []
    for step in read_steps(document.get("post_processor"), "processors"):
        match step:
            case {"type": "TemplateProcessing", "single": list(items), "special_tokens": listed}:
                for item in items:
                    if "Sequence" in item:
                        break
                    opening += listed[item["SpecialToken"]["id"]]["ids"]
            case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, int(first)]}:
                opening.append(first)
    return tuple(opening)


def read_steps(node: Mapping[str, Any] | None, key: str) -> list[Step]:
    """The steps of a normalizer, pre-tokenizer or post-processor, nested sequences flattened."""
    if node is None:
        return []
    if node["type"] == "Sequence":
        return [step for child in node[key] for step in read_steps(child, key)]
    return [node]
