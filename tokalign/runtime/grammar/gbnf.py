"""llama.cpp's grammars (GBNF, grammars/README.md), read in one pass."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NoReturn

from tokalign.errors import UsageError, shown
from tokalign.runtime.grammar.bounds import at_most
from tokalign.runtime.grammar.gbnf_rules import EMPTY, GbnfRule, Item, written

_TOKENS = re.compile(
    r"""(?P<space>[ \t]+|\#[^\r\n]*)
    | (?P<line>\r\n|\r|\n)
    | (?P<define>::=)
    | (?P<name>[A-Za-z0-9_-]+)
    | "(?P<text>(?:[^"\\]|\\.)*)"
    | \[(?P<set>(?:[^\]\\]|\\.)*)\]
    | (?P<any>\.)
    | (?P<token>!?<[^>\r\n]+>)
    | (?P<repeat>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    | (?P<mark>[()|])""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|[^\\]"
_RANGE = re.compile(f"({_CHARACTER})(?:-({_CHARACTER}))?", re.DOTALL)
"""A character or two around a dash; a dash at either end of a set is a dash."""
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"} | {sign: sign for sign in '\\"[]-'}
_LAST = 0x10FFFF
_NAMED = re.compile(
    r'"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)*/|<(?P<negated>\^?)gbnf:(?P<spelling>(?:[0-9a-f]{2})+)>',
    re.DOTALL,
)
"""A token that is named by its spelling; or a text or an expression, which may be spelled so."""
_MOST_TIMES = 10_000
_MOST_ITEMS = 50_000


@lru_cache(maxsize=16)
def lark_of(text: str) -> str:
    """A grammar in GBNF as one in Lark's format. Cost: 0.01 s for some rules that recur, 0.3 s for
    fifty. Raises: UsageError for one that cannot be read."""
    rules = _Reader(text).rules()
    if "root" not in rules:
        raise UsageError("the grammar has no rule named root, which is where a text begins")
    for rule in rules.values():
        for name in rule.needs:
            if name not in rules:
                raise UsageError(f"the grammar has no rule named {shown(name)}")
    return written(rules)


def with_ids(definition: str, ids: Mapping[bytes, int]) -> str:
    """A grammar whose tokens are named by their ids. ids: of spellings. Raises: UsageError for a
    token that the tokenizer does not have."""

    def numbered(match: re.Match[str]) -> str:
        if match["spelling"] is None:
            return match[0]
        spelling = bytes.fromhex(match["spelling"])
        if spelling not in ids:
            raise UsageError(
                f"the grammar names {shown(spelling.decode(errors='replace'))}, which is no token "
                "of this tokenizer; write it as a text between quotes"
            )
        return f"<[{match['negated']}{ids[spelling]}]>"

    if "gbnf:" not in definition:
        return definition
    whole = json.loads(definition)
    for part in whole["grammars"]:
        if lark := part.get("lark_grammar"):
            part["lark_grammar"] = _NAMED.sub(numbered, lark)
    return json.dumps(whole)


class _Reader:
    """Reads rules, token by token. Groups that are open are on a stack."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._items = text, 0, 0
        self._rules: dict[str, GbnfRule] = {}
        self._open: list[GbnfRule] = []

    def rules(self) -> dict[str, GbnfRule]:
        name = ""
        ends_line = False  # whether a line end ends the rule
        has_ended = False  # unless the next line begins with |, as xgrammar's may
        for kind, value in self._scanned():
            if has_ended and kind != "line":
                has_ended = False
                if (kind, value) != ("mark", "|"):
                    self._open.clear()
            rule = self._open[-1] if self._open else None
            if kind == "define" and name:
                self._begin(name)
                name, ends_line = "", False
            elif name:
                self._fail("::= is missing after the name of a rule")
            elif kind == "line":
                has_ended = len(self._open) == 1 and ends_line
            elif kind == "name" and rule is None:
                name = value
            elif rule is None:
                self._fail("a rule has to begin with its name and ::=")
            else:
                self._add(rule, kind, value)
                ends_line = value != "|" or kind != "mark"
        if name or len(self._open) > 1:
            self._fail("the grammar ends inside a rule")
        return self._rules

    def _scanned(self) -> Iterator[tuple[str, str]]:
        while self._at < len(self._text):
            match = _TOKENS.match(self._text, self._at)
            if match is None or match.lastgroup is None:
                self._fail(f"{shown(self._text[self._at : self._at + 20])} cannot be read")
            if match.lastgroup != "space":
                yield match.lastgroup, match[match.lastgroup]
            self._at = match.end()

    def _fail(self, why: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        raise UsageError(f"the grammar is not valid GBNF: line {line}, column {column}: {why}")

    def _begin(self, name: str) -> GbnfRule:
        rule = self._rules[name] = GbnfRule(name)  # as in llama.cpp, the last one of a name counts
        at_most("the grammar", "rules and groups", len(self._rules))
        self._open.append(rule)
        return rule

    def _add(self, rule: GbnfRule, kind: str, value: str) -> None:
        sequence = rule.alternatives[-1]
        self._items += 1
        at_most("the grammar", "parts of rules", self._items, _MOST_ITEMS)
        match kind, value:
            case "mark", "|":
                rule.alternatives.append([])
            case "mark", "(":
                self._begin(f"({len(self._rules)}")
            case "mark", ")":
                if len(self._open) == 1:
                    self._fail("nothing is open that ) could close")
                self._open.pop()
                self._open[-1].alternatives[-1].append(Item(rule=rule.name))
            case "name", _:
                sequence.append(Item(rule=value))
            case "text", _:
                characters = map(self._character, re.findall(_CHARACTER, value, re.DOTALL))
                sequence.append(Item(lark=_text(characters)))
            case "set", _:
                sequence.append(Item(lark=self._set(value)))
            case "any", _:
                sequence.append(Item(lark=_class([(0, _LAST)])))
            case "token", _:
                sequence.append(Item(lark=_token(value)))
            case "repeat", _:
                self._repeat(sequence, value)
            case _:
                self._fail(f"{shown(value)} cannot stand here")

    def _repeat(self, sequence: list[Item], value: str) -> None:
        if not sequence:
            self._fail(f"nothing stands before {value}")
        item = sequence[-1]
        if (item.least, item.most) != (1, 1):  # repeated twice
            inner = self._begin(f"({len(self._rules)}")
            self._open.pop()
            inner.alternatives[-1].append(item)
            item = sequence[-1] = Item(rule=inner.name)
        item.least, item.most = _times(value)
        for times in (item.least, item.most or 0):
            at_most("the grammar", "repetitions of a part", times, _MOST_TIMES)
        if item.most is not None and item.least > item.most:
            self._fail(f"{value} has a larger number first")

    def _character(self, spelled: str) -> int:
        sign, digits = spelled[1:2], spelled[2:]
        if digits:
            code = int(digits, 16)
            if code > _LAST or 0xD800 <= code <= 0xDFFF:
                self._fail(f"{spelled} is no character")
            return code
        if sign and sign not in _ESCAPES:
            self._fail(f"the escape {spelled} is unknown")
        return ord(_ESCAPES[sign] if sign else spelled)

    def _set(self, text: str) -> str:
        pairs = _RANGE.findall(text.removeprefix("^"))
        ranges = [(self._character(one), self._character(other or one)) for one, other in pairs]
        return _class(ranges, negated=text.startswith("^"))


def _times(value: str) -> tuple[int, int | None]:
    if value in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[value]
    numbers = [number.strip() for number in value[1:-1].split(",")]
    least = int(numbers[0][:9])
    return least, int(numbers[-1][:9]) if numbers[-1] else None


def _token(value: str) -> str:
    """`<[7]>`, or `<word>`, whose id is not known before a tokenizer is; ! negates."""
    negated, name = ("^" if value[0] == "!" else ""), value.lstrip("!")
    if re.fullmatch(r"<\[\d{1,9}\]>", name):
        return f"<[{negated}{name[2:-2]}]>"
    return f"<{negated}gbnf:{name.encode().hex()}>"


def _text(codes: Iterable[int]) -> str:
    text = "".join(c if (c := chr(code)).isalnum() else f"\\x{{{code:x}}}" for code in codes)
    return f"/{text}/" if text else EMPTY


def _class(ranges: Iterable[tuple[int, int]], *, negated: bool = False) -> str:
    parts = [f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges if first <= last]
    if not parts:  # an empty set has no spelling
        parts, negated = [f"\\x{{0}}-\\x{{{_LAST:x}}}"], not negated
    return f"/[{'^' * negated}{''.join(parts)}]/"
