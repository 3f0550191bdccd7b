"""What a user asks for: a grammar, made of a schema, an expression, some texts or its text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tokalign.errors import UsageError, require_texts
from tokalign.runtime.grammar.bounds import check_choices, check_lark, check_regex, check_text
from tokalign.runtime.grammar.gbnf import lark_of
from tokalign.runtime.grammar.matcher import first_line, invalid
from tokalign.runtime.grammar.schema import check_schema, json_part

_LARK = re.compile(r"(?m)^[ \t]*(%llguidance\b|[?!]?start[ \t]*(\[[^\]\n]*\])?[ \t]*:(?!:))")
"""What tells a text in Lark's format: a directive, or the rule it begins with, root in GBNF."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in llguidance's own format. ignored: the paths of what a schema asks for and no
    grammar follows, as `properties.x.pattern`."""

    definition: str
    ignored: tuple[str, ...] = ()

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, *, strict: bool = True) -> Grammar:
        """JSON of a schema (a text is read as JSON), on one line, as most models write it.

        Free white space would cost tokens and rule out most forced text, and small models lose
        themselves in it.
        strict: refuse what cannot be enforced; it is ignored otherwise, and `ignored` names it.
        Raises: UsageError, also for a schema that is too large or nested too deeply.
        """
        made, ignored = json_part(schema, strict=strict)
        return cls(json.dumps({"grammars": [{"json_schema": made}]}), ignored)

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object, on one line."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """The whole output matches a regular expression. Raises: UsageError."""
        from llguidance import LLMatcher

        check_regex(pattern)
        (part,) = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
        return cls._checked("regular expression", part)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of some texts. Raises: UsageError."""
        require_texts("the choice", texts)
        if not texts or not all(texts):
            raise UsageError("a choice needs at least one text, none of them empty")
        check_choices(texts)
        # Alternatives of a terminal cost less than those of a rule.
        lark = f"start: TEXT\nTEXT: {' | '.join(map(lark_literal, texts))}"
        return cls._checked("choice", {"lark_grammar": lark})

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A grammar in Lark's format, as llguidance reads it. Raises: UsageError."""
        check_lark(text, check_schema)
        return cls._checked("grammar", {"lark_grammar": text})

    @classmethod
    def text(cls, text: str) -> Grammar:
        """A grammar in llama.cpp's GBNF or in Lark's format. Raises: UsageError."""
        check_text("the grammar", text)
        if _LARK.search(text):
            return cls.lark(text)
        return cls._checked("grammar", {"lark_grammar": lark_of(text)})

    @classmethod
    def _checked(cls, kind: str, part: Mapping[str, Any]) -> Grammar:
        definition = json.dumps({"grammars": [part]})
        wrong, _ = invalid(definition)
        if wrong:
            raise UsageError(f"the {kind} cannot be used: {first_line(wrong)}")
        return cls(definition)

    def __or__(self, other: Grammar) -> Grammar:
        """What matches one of two grammars."""
        (first, parts), (second, others) = self._named(), other._named()
        ignored = (*self.ignored, *other.ignored)
        return _led(f"@{first} | @{second}", [*parts, *others], ignored)

    def after(self, opening: str) -> Grammar:
        """The same after what `opening` matches, an expression in Lark's format."""
        name, parts = self._named()
        return _led(f"{opening} @{name}", parts, self.ignored)

    def _named(self) -> tuple[str, list[dict[str, Any]]]:
        """A name that no other grammar has, and the parts, the first of which has this name."""
        first, *others = json.loads(self.definition)["grammars"]
        name = f"g{sha256(self.definition.encode()).hexdigest()[:20]}"
        return name, [{**first, "name": name}, *others]


def _led(start: str, parts: Sequence[Mapping[str, Any]], ignored: tuple[str, ...]) -> Grammar:
    once = {part["name"]: part for part in parts}
    lead = {"lark_grammar": f"start: {start}"}
    return Grammar(json.dumps({"grammars": [lead, *once.values()]}), ignored)


def json_lark(schema: Mapping[str, Any] | bool, *, root: Mapping[str, Any] | None = None) -> str:
    """JSON of a schema, as a part of a rule in Lark's format; what cannot be enforced is ignored.
    Raises: as `Grammar.json_schema`. root: the schema that references lead into, if it is another
    one."""
    return f"%json {json.dumps(json_part(schema, strict=False, root=root)[0])}"


def lark_literal(text: str) -> str:
    """A text in Lark's format."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
