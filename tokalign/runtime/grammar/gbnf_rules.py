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
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

EMPTY = '""'


@dataclass(slots=True)
class Item:
    """A part of a sequence, repeated from `least` to `most` times; None is no bound. rule: the name
    of a rule. lark: without one, a regular expression between slashes or a token."""

    rule: str = ""
    lark: str = ""
    least: int = 1
    most: int | None = 1

    @property
    def is_token(self) -> bool:
        return self.lark.startswith("<")


@dataclass(slots=True)
class GbnfRule:
    """A rule or a group: alternatives, each a sequence."""

    name: str
    alternatives: list[list[Item]] = field(default_factory=lambda: [[]])

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
    terminals = _terminals(rules, order)
    names = {name: f"{'T' if name in terminals else 'r'}{n}" for n, name in enumerate(order)}
    lines = [f"start: {names['root']}"]
    for name in order:
        sequences = [
            [_repeated(item, names) for item in alternative]
            if name in terminals
            else list(_joined(alternative, names, terminals, lines))
            for alternative in rules[name].alternatives
        ]
        lines.append(f"{names[name]}: {' | '.join(' '.join(s) or EMPTY for s in sequences)}")
    return "\n".join(lines)


def _joined(
    alternative: list[Item], names: Mapping[str, str], terminals: set[str], lines: list[str]
) -> Iterator[str]:
    """A sequence whose neighbouring terminals are one terminal, for which a line is added."""
    run: list[str] = []
    for item in [*alternative, None]:
        if item is not None and not item.is_token and (not item.rule or item.rule in terminals):
            run.append(_repeated(item, names))
            continue
        if run:
            lines.append(f"J{len(lines)}: {' '.join(run)}")
            yield lines[-1].partition(":")[0]
            run = []
        if item is not None:
            yield _repeated(item, names)


def _repeated(item: Item, names: Mapping[str, str]) -> str:
    inner = names[item.rule] if item.rule else item.lark
    if item.most == 0:
        return EMPTY
    if (item.least, item.most) == (1, 1):
        return inner
    return f"{inner}{{{item.least},{'' if item.most is None else item.most}}}"


def _terminals(rules: Mapping[str, GbnfRule], order: list[str]) -> set[str]:
    """The rules that are not recursive, name no token and need such rules only."""
    terminals = set[str]()
    sorter = TopologicalSorter({name: set(rules[name].needs) for name in order})
    with suppress(CycleError):  # what recursion does not need is sorted all the same
        sorter.prepare()
    while ready := sorter.get_ready():
        plain = [n for n in ready if not any(item.is_token for item in rules[n].items)]
        terminals.update(plain)
        sorter.done(*plain)
    return terminals
