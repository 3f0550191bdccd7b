r"""The rules of a GBNF text, and how they are written in Lark's format.

Groups become rules of their own, so no nesting is left:

    root ::= ("- " item "\n")+      T0: T1{1,}
    item ::= [^\n]{3,}              T1: "- " T2 "\n"      T2: /[^\n]/{3,}

Rules that are not recursive and name no tokens are terminals, each one regular expression. They
match exactly what llama.cpp lets them match. In recursive rules, neighbours that are terminals are
one terminal, too, and each of these takes the longest text that it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

EMPTY = '""'


@dataclass(slots=True)
class Item:
    """A part of a sequence, so many times; no `most` is no bound. rule: a name, where it is one.

    lark: what it is otherwise, a regular expression between slashes or a token.
    """

    rule: str = ""
    lark: str = ""
    least: int = 1
    most: int | None = 1

    @property
    def is_token(self) -> bool:
        return self.lark.startswith("<")


@dataclass(slots=True)
class Rule:
    """A rule or a group: alternatives, each a sequence."""

    name: str
    alternatives: list[list[Item]] = field(default_factory=lambda: [[]])

    @property
    def items(self) -> Iterator[Item]:
        return (item for alternative in self.alternatives for item in alternative)


def written(rules: Mapping[str, Rule]) -> str:
    """The rules that `root` needs, in Lark's format."""
    order = _reached(rules)
    terminals = _terminals(rules, order)
    names = {name: f"{'T' if name in terminals else 'r'}{n}" for n, name in enumerate(order)}
    lines = [f"start: {names['root']}"]
    for name in order:
        sequences = [
            [_shown(item, names) for item in alternative]
            if name in terminals
            else list(_runs(alternative, names, terminals, lines))
            for alternative in rules[name].alternatives
        ]
        lines.append(f"{names[name]}: {' | '.join(' '.join(one) or EMPTY for one in sequences)}")
    return "\n".join(lines)


def _runs(
    alternative: list[Item], names: Mapping[str, str], terminals: set[str], lines: list[str]
) -> Iterator[str]:
    """A sequence in which neighbours that are terminals are one, whose line is added."""
    run: list[str] = []
    for item in [*alternative, None]:
        if item is not None and not item.is_token and (not item.rule or item.rule in terminals):
            run.append(_shown(item, names))
            continue
        if run:
            lines.append(f"J{len(lines)}: {' '.join(run)}")
            yield lines[-1].partition(":")[0]
            run = []
        if item is not None:
            yield _shown(item, names)


def _shown(item: Item, names: Mapping[str, str]) -> str:
    inner = names[item.rule] if item.rule else item.lark
    match item.least, item.most:
        case 1, 1:
            return inner
        case _, 0:
            return EMPTY
        case least, None:
            return f"{inner}{{{least},}}"
        case least, most:
            return f"{inner}{{{least},{most}}}"
    raise AssertionError


def _reached(rules: Mapping[str, Rule]) -> list[str]:
    """The rules that `root` needs, itself first."""
    order, seen = ["root"], {"root"}
    for name in order:
        for item in rules[name].items:
            if item.rule and item.rule not in seen:
                seen.add(item.rule)
                order.append(item.rule)
    return order


def _terminals(rules: Mapping[str, Rule], order: list[str]) -> set[str]:
    """The rules that are not recursive, name no token and need such rules only."""
    needs = {name: {item.rule for item in rules[name].items if item.rule} for name in order}
    users: dict[str, list[str]] = {name: [] for name in order}
    for name, others in needs.items():
        for other in others:
            users[other].append(name)
    found = set[str]()
    ready = [name for name in order if not needs[name]]
    waiting = {name: len(others) for name, others in needs.items()}
    while ready:
        name = ready.pop()
        if any(item.is_token for item in rules[name].items):
            continue
        found.add(name)
        for user in users[name]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return found
