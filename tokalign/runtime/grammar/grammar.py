"""What a user asks for: a grammar, made of a schema, an expression, some texts or a grammar's text.

Read next: `constraint.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tokalign.errors import UsageError
from tokalign.runtime.grammar.gbnf import lark_of
from tokalign.runtime.grammar.matcher import first_line, invalid


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in llguidance's own format; the class methods make one of each common format."""

    definition: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, *, strict: bool = True) -> Grammar:
        """JSON of a schema (a text is read as JSON), on one line, as most models write it.

        Free white space would cost tokens and rule out most forced text, and small models lose
        themselves in it.
        strict: refuse keywords that are not enforced; they are ignored otherwise.
        Raises: UsageError.
        """
        return cls._checked("JSON schema", _json_part(schema, strict=strict))

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object, on one line."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """The whole output matches a regular expression. Raises: UsageError."""
        from llguidance import LLMatcher

        return cls._checked("regular expression", _parts(LLMatcher.grammar_from_regex(pattern))[0])

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of some texts. Raises: UsageError."""
        if not texts or not all(texts):
            raise UsageError("a choice needs at least one text, none of them empty")
        return cls.lark("start: " + " | ".join(json.dumps(t, ensure_ascii=False) for t in texts))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A grammar in Lark's format, as llguidance reads it. Raises: UsageError."""
        return cls._checked("grammar", {"lark_grammar": text})

    @classmethod
    def text(cls, text: str) -> Grammar:
        """A grammar in llama.cpp's GBNF or in Lark's format. Raises: UsageError."""
        is_lark = re.search(r"(?m)^[ \t]*(%llguidance\b|start[ \t]*:(?!:))", text) is not None
        return cls.lark(text if is_lark else lark_of(text))

    @classmethod
    def _checked(cls, kind: str, part: Mapping[str, Any]) -> Grammar:
        definition = json.dumps({"grammars": [part]})
        wrong, _ = invalid(definition)
        if wrong:
            raise UsageError(f"the {kind} cannot be used: {first_line(wrong)}")
        return cls(definition)

    def __or__(self, other: Grammar) -> Grammar:
        """What matches one of two grammars."""
        (one, parts), (two, others) = self._named(), other._named()
        return self._led(f"@{one} | @{two}", [*parts, *others])

    def after(self, opening: str) -> Grammar:
        """The same after what `opening` matches, an expression in Lark's format."""
        name, parts = self._named()
        return self._led(f"{opening} @{name}", parts)

    def _named(self) -> tuple[str, list[dict[str, Any]]]:
        """A name that no other grammar has, and the parts, the first of which has this name."""
        first, *others = _parts(self.definition)
        name = f"g{sha256(self.definition.encode()).hexdigest()[:20]}"
        return name, [{**first, "name": name}, *others]

    @staticmethod
    def _led(start: str, parts: Sequence[Mapping[str, Any]]) -> Grammar:
        once = {part["name"]: part for part in parts}
        lead = {"lark_grammar": f"start: {start}"}
        return Grammar(json.dumps({"grammars": [lead, *once.values()]}))


def json_lark(schema: Mapping[str, Any] | bool, *, strict: bool = True) -> str:
    """JSON of a schema, as a part of a rule in Lark's format."""
    return f"%json {json.dumps(_json_part(schema, strict=strict)['json_schema'])}"


def _json_part(schema: Mapping[str, Any] | bool | str, *, strict: bool) -> dict[str, Any]:
    from llguidance import LLMatcher

    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        made = LLMatcher.grammar_from_json_schema(
            text,
            overrides={
                "whitespace_flexible": False,
                "item_separator": ", ",
                "key_separator": ": ",
                "lenient": not strict,
            },
        )
    except ValueError as error:
        raise UsageError(f"the JSON schema is not a JSON object: {_line(error)}") from error
    return _parts(made)[0]


def _parts(definition: str) -> list[dict[str, Any]]:
    grammars: list[dict[str, Any]] = json.loads(definition)["grammars"]
    return grammars


def _line(error: object) -> str:
    """An error as the beginning of one line."""
    return " ".join(str(error).split())[:300]
