r"""The rules of a GBNF text, and how they are written in Lark's format.

Groups become rules of their own, so no nesting is left:

    root ::= ("- " item "\n")+      T0: T1{1,}
    item ::= [^\n]{3,}              T1: "- " T2 "\n"      T2: /[^\n]/{3,}

Rules that are not recursive and name no tokens are terminals, each one regular expression; so are
the expressions of recursive rules. llguidance takes the longest text of a terminal, where llama.cpp
takes any. What could go on with a character that comes after it is therefore written as a rule
whose terminals are single characters (a mask costs 1 to 4 ms then, not 0.3):

    root ::= word "\n" root?        r0: r1 J0 r0{0,1}     J0: /\n/
    word ::= [a-z] [ \n]*           r1: /[a-z]/ /[ \n]/{0,}
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from tokalign.runtime.grammar.matcher import matches_nothing

EMPTY = '""'
_MOST_TERMINALS, _MOST_COMPARED = 500, 64
"""Terminals that are compared with all others, and those that are so one by one, for 2 ms each."""
_ANY = r"[\x{0}-\x{10ffff}]"
_MOST_PARTS = 100
"""Parts of a set of characters; more of them are any, or thousands of rules would take minutes."""


@dataclass(slots=True)
class Item:
    """A part of a sequence, repeated from `least` to `most` times; None is no bound. rule: the name
    of a rule. lark: without one, a regular expression between slashes or a token. followers: the
    characters that may come after all of it, as parts of a set."""

    rule: str = ""
    lark: str = ""
    least: int = 1
    most: int | None = 1
    followers: frozenset[str] = frozenset()

    @property
    def is_token(self) -> bool:
        return self.lark.startswith("<")

    @property
    def characters(self) -> list[str]:
        """Its characters, one after another, each as a part of a set."""
        if self.lark.startswith("/["):
            return [self.lark[1:-1]]
        return re.findall(r"\\x\{\w+\}|\w", self.lark)

    @property
    def first(self) -> frozenset[str]:
        """The characters that it may begin with. What is no special token may be any."""
        if self.is_token:
            return frozenset([_ANY] if "^" in self.lark else [])
        return frozenset(self.characters[:1])


@dataclass(slots=True)
class GbnfRule:
    """A rule or a group: alternatives, each a sequence. first, followers: the characters that it
    may begin with, and that may come after it. may_be_empty: whether it takes an empty text."""

    name: str
    alternatives: list[list[Item]] = field(default_factory=lambda: [[]])
    first: frozenset[str] = frozenset()
    followers: frozenset[str] = frozenset()
    may_be_empty: bool = False

    @property
    def items(self) -> Iterator[Item]:
        return (item for alternative in self.alternatives for item in alternative)

    @property
    def needs(self) -> list[str]:
        """The rules that it names."""
        return [item.rule for item in self.items if item.rule]


def written(rules: Mapping[str, GbnfRule]) -> str:
    """The rules that `root` needs, in Lark's format."""
    order, seen = ["root"], {"root"}
    for name in order:
        order += dict.fromkeys(other for other in rules[name].needs if other not in seen)
        seen.update(rules[name].needs)
    needed = {name: rules[name] for name in order}
    _find_followers(needed)
    writer, most = _Writer(needed), _MOST_COMPARED
    while ambiguous := writer.ambiguous(most):
        writer.spell(ambiguous)
        most //= 2  # so that few are compared in all
    return writer.text


class _Writer:
    """The rules as they are written. used: the rules and expressions that are terminals of rules,
    and their names. ends: which characters may come after a terminal. spelled: the rules and
    expressions that are no terminals, but have one for each character."""

    def __init__(self, rules: Mapping[str, GbnfRule]) -> None:
        regular = _terminals(rules)
        self._rules = rules
        self._names = {name: f"r{n}" for n, name in enumerate(rules)}
        self._terminals = {name: f"T{n}" for n, name in enumerate(rules) if name in regular}
        self._regular = [
            _line(name, rules[rule], lambda i: _repeated(i, self._terminals.get(i.rule, i.lark)))
            for rule, name in self._terminals.items()
        ]
        self._spelled = set[str]()
        self._write()

    @property
    def text(self) -> str:
        return "\n".join([f"start: {self._root}", *self._lines, *self._expressions])

    @property
    def _expressions(self) -> list[str]:
        own = [f"{name}: {lark}" for lark, name in self._used.items() if lark not in self._rules]
        return [*self._regular, *own]

    def ambiguous(self, most: int) -> list[str]:
        """The rules and expressions that take the text of a terminal and go on with a character
        that may come after it. If there are more than `most`, all of them are."""
        shorter = [
            f"({name} & /(?s:.+)/) /[{''.join(sorted(followers))}]/ /(?s:.*)/"
            for name, followers in self._ends.items()
            if followers
        ]

        def go_on(names: Iterable[str]) -> bool:
            both = f"X: ({' | '.join(names)}) & ({' | '.join(shorter)})"
            return not matches_nothing("\n".join(["start: X", both, *self._expressions]))

        if len(self._used) > _MOST_TERMINALS:
            return [*self._used]
        if not (shorter and self._used and go_on(self._used.values())):
            return []
        few = len(self._used) <= most
        return [part for part, name in self._used.items() if not few or go_on([name])]

    def spell(self, parts: Iterable[str]) -> None:
        """Write rules and expressions, and what they need, with a terminal for each character."""
        pending = [*parts]
        while pending:
            part = pending.pop()
            if part not in self._spelled:
                self._spelled.add(part)
                pending += self._rules[part].needs if part in self._rules else []
        self._write()

    def _write(self) -> None:
        self._used: dict[str, str] = {}
        self._ends: defaultdict[str, set[str]] = defaultdict(set)
        self._root = self._part(Item("root"))
        self._lines = [
            _line(self._names[name], rule, self._spelt if name in self._spelled else self._part)
            for name, rule in self._rules.items()
            if name not in self._terminals or name in self._spelled
        ]

    def _part(self, item: Item) -> str:
        """An item of a rule that has terminals."""
        if item.rule and (item.rule not in self._terminals or item.rule in self._spelled):
            return _repeated(item, self._names[item.rule])
        if item.rule:
            name = self._used[item.rule] = self._terminals[item.rule]
            self._ends[name] |= self._after(item)
            return _repeated(item, name)
        lark = _repeated(item, item.lark)
        if item.is_token or lark.startswith(EMPTY):
            return lark
        if lark in self._spelled:
            return self._spelt(item)
        name = self._used.setdefault(lark, f"J{len(self._used)}")
        self._ends[name] |= item.followers
        return name

    def _spelt(self, item: Item) -> str:
        """An item of a rule that has a terminal for each character."""
        if item.rule or item.is_token or item.lark == EMPTY:
            return self._part(item)
        sets = item.characters
        names = [f"/[{characters}]/" for characters in sets]
        for name, then in zip(names, [*({s} for s in sets[1:]), self._after(item)], strict=True):
            self._ends[name] |= then
        return _repeated(item, names[0] if len(names) == 1 else f"({' '.join(names)})")

    def _after(self, item: Item) -> frozenset[str]:
        """The characters that may come after an item once, which it may do again."""
        first = self._rules[item.rule].first if item.rule else item.first
        return item.followers if item.most == 1 else item.followers | first


def _line(name: str, rule: GbnfRule, part: Callable[[Item], str]) -> str:
    sequences = [" ".join(map(part, sequence)) or EMPTY for sequence in rule.alternatives]
    return f"{name}: {' | '.join(sequences)}"


def _repeated(item: Item, inner: str) -> str:
    if item.most == 0:
        return EMPTY
    if (item.least, item.most) == (1, 1):
        return inner
    return f"{inner}{{{item.least},{'' if item.most is None else item.most}}}"


def _find_followers(rules: Mapping[str, GbnfRule]) -> None:
    """Note what rules begin with, and what may come after rules and items."""
    users: dict[str, set[str]] = {name: set() for name in rules}
    for rule in rules.values():
        for name in rule.needs:
            users[name].add(rule.name)
    order, pending = [*rules.values()], set(rules)
    while pending:
        order.reverse()  # what rules begin with goes one way, what comes after them the other
        for rule in (rule for rule in order if rule.name in pending):
            pending.discard(rule.name)
            first, may_be_empty = frozenset[str](), False
            for alternative in rule.alternatives:
                begin, is_empty = frozenset[str](), True
                for item in reversed(alternative):
                    item.followers = _either(begin, rule.followers) if is_empty else begin
                    inner = rules.get(item.rule)
                    own = item.first if inner is None else inner.first
                    skips = item.lark == EMPTY if inner is None else inner.may_be_empty
                    followers = item.followers if item.most == 1 else _either(item.followers, own)
                    if inner is not None and not followers <= inner.followers:
                        inner.followers = _either(inner.followers, followers)
                        pending.add(inner.name)
                    skips = skips or item.least == 0
                    begin, is_empty = _either(own, begin) if skips else own, is_empty and skips
                first, may_be_empty = _either(first, begin), may_be_empty or is_empty
            if (first, may_be_empty) != (rule.first, rule.may_be_empty):
                rule.first, rule.may_be_empty = first, may_be_empty
                pending |= users[rule.name]


def _either(some: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """The characters of two sets."""
    both = some | others
    return frozenset([_ANY]) if _ANY in both or len(both) > _MOST_PARTS else both


def _terminals(rules: Mapping[str, GbnfRule]) -> set[str]:
    """The rules that are not recursive, name no token and need such rules only."""
    terminals = set[str]()
    sorter = TopologicalSorter({name: set(rule.needs) for name, rule in rules.items()})
    with suppress(CycleError):  # what recursion does not need is sorted all the same
        sorter.prepare()
    while ready := sorter.get_ready():
        plain = [n for n in ready if not any(item.is_token for item in rules[n].items)]
        terminals.update(plain)
        sorter.done(*plain)
    return terminals
