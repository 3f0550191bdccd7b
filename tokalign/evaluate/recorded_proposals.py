"""A trace: what drafters proposed at every position of texts, and how much of it was right.

A trace holds no text, and tells what any draft length would have brought: `project.py` replays it
under any cost curve. Every drafter was asked at every position for the longest draft of interest.

Format: JSON lines. The first is {"format", "version", "notes"}. Each text has a line {"given",
"length"} (ids of its prompt, ids in all), followed by its proposals {"at", "by", "sources",
"probabilities", "offered", "path", "passes", "host"}, with "parents" for a tree. `sources` is a
single name if all ids are from one source, `offered` counts the ids, `path` holds the indices of
those that were right, and `host` is the seconds outside model passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tokalign.arguments import finite_number, parents_of, parse_json, text_of, whole_number
from tokalign.atomic_file import write_file
from tokalign.errors import UsageError
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

FORMAT, VERSION = "tokalign-trace", 1

_MOST_OFFERED = 10_000
"""More ids than any drafter proposes at once."""

WRONG = TargetId(-1)
"""Stands for every id that the text does not go on with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProposal:
    """A proposal and how much of it was right.

    tree: in the place of each id that is right its distance from the position of the proposal (0
    for the next id of the text), in the place of every other one `WRONG`.
    passes: of a draft model. host: seconds outside model passes.
    """

    tree: TokenTree[TargetId]
    passes: int = 0
    host: float = 0.0

    @classmethod
    def of(
        cls, tree: TokenTree[TargetId], path: Sequence[int], *, passes: int = 0, host: float = 0.0
    ) -> Self:
        """Record a proposal of which the text goes on with the ids at the indices `path`.

        Raises: ValueError if that is no path of the tree.
        """
        ids = [WRONG] * len(tree)
        for depth, index in enumerate(path):
            ids[index] = TargetId(depth)
        found = cls(tree=replace(tree, ids=tuple(ids)), passes=passes, host=host)
        if found.path != list(path):
            raise ValueError(f"{list(path)} is no path through {len(tree)} ids")
        return found

    @property
    def path(self) -> list[int]:
        """Indices of the ids that the text goes on with, whether they were verified or not."""
        return self.tree.path_of([TargetId(depth) for depth in range(len(self.tree))])

    @property
    def accepted(self) -> int:
        """How many ids the text goes on with."""
        return len(self.path)

    @property
    def length(self) -> int:
        """The draft length: passes of a draft model, else ids."""
        return self.passes or len(self.tree)

    def at_most(self, length: int) -> RecordedProposal:
        """The proposal that a shorter draft length would have made.

        How many ids a pass of a draft model brings depends on both tokenizers and is not recorded.
        They are spread evenly over the passes, which is right on average only. Ids beside the first
        chain are kept where they follow the text or an id of the chain that is kept.
        """
        if length >= self.length:
            return self
        if not self.passes:
            return replace(self, tree=self.tree.head(length))
        tree, chain = self.tree, self.tree.chain_length
        count = max(1, round(chain * length / self.passes)) if chain else 0
        others = (i for i in range(chain, len(tree)) if tree.parents[i] < count)
        return replace(self, tree=tree.select([*range(count), *others]), passes=length)


@dataclass(slots=True, kw_only=True)
class TracedText:
    """One text of `length` ids, the first `given` of them its prompt.

    proposals: by drafter and by position, the number of ids before the proposal.
    """

    given: int
    length: int
    proposals: dict[str, dict[int, RecordedProposal]] = field(default_factory=dict)

    def proposal(self, drafter: str, position: int) -> RecordedProposal | None:
        """What `drafter` proposed at a position, if it was asked there."""
        return self.proposals.get(drafter, {}).get(position)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalTrace:
    """The proposals of drafters at the positions of some texts.

    notes: what was recorded, for readers.
    """

    texts: tuple[TracedText, ...]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def drafters(self) -> list[str]:
        """Names of the drafters that were asked."""
        return sorted({name for text in self.texts for name in text.proposals})

    def of(self, drafter: str) -> ProposalTrace:
        """What one drafter proposed."""
        texts = (replace(one, proposals={drafter: one.proposals[drafter]}) for one in self.texts)
        return replace(self, texts=tuple(texts))

    @property
    def tokens(self) -> int:
        """How many ids the texts have after their prompts."""
        return sum(text.length - text.given for text in self.texts)

    @property
    def proposals(self) -> Iterator[RecordedProposal]:
        """Every proposal of every drafter."""
        for text in self.texts:
            for recorded in text.proposals.values():
                yield from recorded.values()

    @property
    def longest(self) -> int:
        """The longest draft length."""
        return max((one.length for one in self.proposals), default=0)

    def lines(self) -> Iterator[str]:
        """The trace as JSON lines."""
        about = {"format": FORMAT, "version": VERSION, "notes": dict(self.notes)}
        yield json.dumps(about, ensure_ascii=False)
        for text in self.texts:
            yield json.dumps({"given": text.given, "length": text.length})
            for drafter, recorded in text.proposals.items():
                for at, one in sorted(recorded.items()):
                    yield json.dumps({"at": at, "by": drafter, **_to_json(one)})

    @classmethod
    def from_lines(cls, lines: Iterable[str], *, name: str) -> Self:
        """Raises: UsageError, with `name`, for anything that is not a trace of this version."""
        number, texts = 0, list[TracedText]()
        try:
            header: dict[str, Any] = {}
            for number, line in enumerate(lines, 1):
                saved = parse_json(line)
                if number == 1:
                    header = saved
                    if (header["format"], header["version"]) != (FORMAT, VERSION):
                        raise ValueError(f"it is of {header['format']} version {header['version']}")
                elif "given" in saved:
                    length = whole_number(saved["length"])
                    given = whole_number(saved["given"], most=length)
                    texts.append(TracedText(given=given, length=length))
                else:
                    recorded = texts[-1].proposals.setdefault(text_of(saved["by"]), {})
                    recorded[whole_number(saved["at"])] = _from_json(saved)
            return cls(texts=tuple(texts), notes=header.get("notes", {}))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UsageError(
                f"{name}:{number}: not a trace of version {VERSION} ({type(error).__name__}: "
                f"{error}); record one with: tokalign bench --text --trace FILE.jsonl"
            ) from error


def read_trace(path: Path) -> ProposalTrace:
    """Raises: UsageError for anything that is no trace, and where no token follows a prompt."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}); record a trace with: "
            "tokalign bench --text --trace FILE.jsonl"
        ) from error
    # Not `splitlines`: a name in the notes may hold other separators of lines.
    trace = ProposalTrace.from_lines(text.removesuffix("\n").split("\n"), name=str(path))
    if not trace.tokens:
        raise UsageError(
            f"{path} holds no token after a prompt, so nothing can be said of it; record a longer "
            "text with: tokalign bench --text --trace FILE.jsonl"
        )
    return trace


def write_trace(trace: ProposalTrace, path: Path) -> None:
    """Write a trace, whole or not at all. Raises: UsageError."""
    write_file(path, "".join(line + "\n" for line in trace.lines()))


def _to_json(one: RecordedProposal) -> dict[str, Any]:
    tree = one.tree
    saved: dict[str, Any] = {
        "sources": tree.sources[0] if len(set(tree.sources)) == 1 else tree.sources,
        "probabilities": [round(p, 4) for p in tree.probabilities],
        "offered": len(tree),
        "path": one.path,
        "passes": one.passes,
        "host": round(one.host, 6),
    }
    return saved | ({} if tree.chain_length == len(tree) else {"parents": tree.parents})


def _from_json(saved: Mapping[str, Any]) -> RecordedProposal:
    sources, count = saved["sources"], whole_number(saved["offered"], most=_MOST_OFFERED)
    tree = TokenTree(
        (WRONG,) * count,
        parents_of(saved.get("parents") or range(-1, count - 1)),
        (sources,) * count if isinstance(sources, str) else tuple(map(text_of, sources)),
        tuple(map(finite_number, saved["probabilities"])),
    )
    return RecordedProposal.of(
        tree,
        [whole_number(index) for index in saved["path"]],
        passes=whole_number(saved["passes"], most=_MOST_OFFERED),
        host=finite_number(saved["host"]),
    )
