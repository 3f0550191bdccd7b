"""What drafters offered at the positions of texts, and how much of it came: a trace.

A trace tells, without any text, what any draft length would have brought: `tokalign project`
replays it under any cost curve. It is exact if every drafter was asked at every position, with the
longest draft wanted (`replay --trace`, `emulate --trace`). A generation (`decode --trace`) is asked
only where its own rounds began; in between, what was left of the last offer stands in.

Format: JSON lines. First {"format", "version", "every_position", "notes"}; then for each text
{"given", "length"} (ids given as its prompt, ids in all), followed by its offers {"at", "by",
"sources", "probabilities", "offered", "path", "passes", "host"}, with "parents" for a tree.
`sources` is one name where all ids are from one; `path` the indices of the ids that came; `host`
seconds outside model passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tokalign.atomic_file import write_file
from tokalign.errors import UsageError
from tokalign.runtime.rounds import SavedRun

FORMAT, VERSION = "tokalign-trace", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A proposal and what became of it.

    sources: one per offered id. parents, probabilities: as in a `Proposal`. path: which of the ids
    the text goes on with, by index, whether they were verified or not.
    """

    sources: tuple[str, ...]
    path: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    passes: int = 0
    host: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.sources)
        if any(not 0 <= index < count for index in self.path):
            raise ValueError(f"ids {list(self.path)} of {count} are accepted")
        if any(given and len(given) != count for given in (self.parents, self.probabilities)):
            raise ValueError("a parent or a probability is missing")

    @property
    def accepted(self) -> int:
        """How many ids the text goes on with."""
        return len(self.path)

    @property
    def chain_length(self) -> int:
        """How many leading ids stand each behind the one before it."""
        return next((i for i, p in enumerate(self.parents) if p != i - 1), len(self.sources))

    def behind(self, taken: int) -> Offer | None:
        """What is left of a chain behind its first `taken` ids; None if they were not all right."""
        if self.path[:taken] != tuple(range(taken)):
            return None
        return self._picked(range(taken, self.chain_length))

    def head(self, steps: int) -> Offer:
        """What the first `steps` passes of a draft model had brought, ids spread evenly over them.

        How many ids a pass brings depends on both tokenizers and is not recorded, so between
        different tokenizers this is right on average only. What a tree has beside its first chain
        is taken to come from the first pass.
        """
        if steps >= self.passes:
            return self
        chain = self.chain_length
        count = max(1, round(chain * steps / self.passes)) if chain else 0
        beside = range(chain, len(self.sources))
        kept = [*range(count), *(i for i in beside if self.parents[i] < count)]
        return replace(self._picked(kept), passes=steps)

    def first(self, count: int) -> Offer:
        """Its first `count` ids, at what all of it has cost."""
        return self._picked(range(min(count, len(self.sources))))

    def _picked(self, kept: Sequence[int]) -> Offer:
        """The ids at some indices; those that stood behind none of them stand first."""
        place = {index: at for at, index in enumerate(kept)}
        return replace(
            self,
            sources=tuple(self.sources[index] for index in kept),
            path=tuple(place[index] for index in self.path if index in place),
            parents=tuple(place.get(self.parents[i], -1) for i in kept) if self.parents else (),
            probabilities=tuple(self.probabilities[i] for i in kept) if self.probabilities else (),
        )


@dataclass(slots=True, kw_only=True)
class TracedText:
    """One text: `given` ids of prompt, `length` ids in all; offers by drafter and position."""

    given: int
    length: int
    offers: dict[str, dict[int, Offer]] = field(default_factory=dict)

    def offer(self, drafter: str, position: int) -> Offer | None:
        """What `drafter` offered at a position, or what was left there of its last offer."""
        recorded = self.offers.get(drafter, {})
        if position in recorded:
            return recorded[position]
        earlier = max((at for at in recorded if position - 64 < at < position), default=None)
        return None if earlier is None else recorded[earlier].behind(position - earlier)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferTrace:
    """Offers at the positions of some texts. notes: what was recorded, for people."""

    texts: tuple[TracedText, ...]
    every_position: bool
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def drafters(self) -> list[str]:
        """Who was asked."""
        return sorted({name for text in self.texts for name in text.offers})

    @property
    def tokens(self) -> int:
        """Ids that were played, prompts not counted."""
        return sum(text.length - text.given for text in self.texts)

    @property
    def longest(self) -> int:
        """The most ids that were offered at once, or passes that were spent."""
        offers = (
            offer for text in self.texts for by in text.offers.values() for offer in by.values()
        )
        return max((max(len(offer.sources), offer.passes) for offer in offers), default=0)

    def lines(self) -> Iterator[str]:
        """The trace as JSON lines."""
        yield json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "every_position": self.every_position,
                "notes": dict(self.notes),
            },
            ensure_ascii=False,
        )
        for text in self.texts:
            yield json.dumps({"given": text.given, "length": text.length})
            for drafter, by in text.offers.items():
                for at, offer in sorted(by.items()):
                    yield json.dumps({"at": at, "by": drafter, **_offer_to_json(offer)})

    @classmethod
    def from_lines(cls, lines: Iterable[str], *, name: str) -> Self:
        """Raises: UsageError, with `name`, for anything that is not a trace of this version."""
        number, texts = 0, list[TracedText]()
        try:
            header: dict[str, Any] = {}
            for number, line in enumerate(lines, 1):
                saved = json.loads(line)
                if number == 1:
                    header = _checked(saved)
                elif "given" in saved:
                    texts.append(TracedText(given=saved["given"], length=saved["length"]))
                else:
                    by = texts[-1].offers.setdefault(saved["by"], {})
                    by[int(saved["at"])] = _offer_from_json(saved)
            return cls(
                texts=tuple(texts),
                every_position=header["every_position"],
                notes=header.get("notes", {}),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UsageError(
                f"{name}:{number}: not a trace of version {VERSION} ({type(error).__name__}: "
                f"{error}); record one with: tokalign replay ... --trace FILE"
            ) from error


def trace_of_run(run: SavedRun) -> OfferTrace:
    """The trace of one generation. Offers are known only where a round began."""
    rounds, given = run.rounds, int(run.figures.get("prompt_tokens", 0))
    drafter = str(run.figures.get("method", "drafter"))
    text = TracedText(given=given, length=given + sum(len(one.emitted) for one in rounds))
    at, by = given, text.offers.setdefault(drafter, {})
    for one in rounds:
        known = len(one.probabilities) == len(one.sources)
        by[at] = Offer(
            sources=one.sources,
            path=tuple(one.path),
            parents=one.parents,
            probabilities=one.probabilities if known else (),
            passes=one.draft_passes,
            host=max(0.0, one.seconds - one.model_seconds),
        )
        at += len(one.emitted)
    return OfferTrace(texts=(text,), every_position=False, notes={"method": drafter})


def read_trace(path: Path) -> OfferTrace:
    """A trace, or a run that `decode --json` saved. Raises: UsageError."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read as a trace ({error}); record one with: "
            "tokalign replay ... --trace FILE"
        ) from error
    if FORMAT in text.partition("\n")[0]:
        return OfferTrace.from_lines(text.splitlines(), name=str(path))
    return _trace_in(text, path)


def _trace_in(text: str, path: Path) -> OfferTrace:
    try:
        saved = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{path} is neither a trace nor a saved run ({error}); record one with: "
            "tokalign decode ... --trace FILE"
        ) from error
    return trace_of_run(SavedRun.from_json(saved, name=str(path)))


def write_trace(trace: OfferTrace, path: Path) -> None:
    """Write a trace, whole or not at all. Raises: UsageError."""
    write_file(path, "".join(line + "\n" for line in trace.lines()))


def _checked(header: dict[str, Any]) -> dict[str, Any]:
    if (header["format"], header["version"]) != (FORMAT, VERSION):
        raise ValueError(f"it is of {header['format']} version {header['version']}")
    return header


def _offer_to_json(offer: Offer) -> dict[str, Any]:
    one = len(set(offer.sources)) == 1
    saved: dict[str, Any] = {
        "sources": offer.sources[0] if one else offer.sources,
        "probabilities": [round(p, 4) for p in offer.probabilities],
        "offered": len(offer.sources),
        "path": offer.path,
        "passes": offer.passes,
        "host": round(offer.host, 6),
    }
    return saved | ({"parents": offer.parents} if offer.parents else {})


def _offer_from_json(saved: Mapping[str, Any]) -> Offer:
    sources, count = saved["sources"], int(saved["offered"])
    found = (sources,) * count if isinstance(sources, str) else tuple(sources)
    if len(found) != count:
        raise ValueError(f"{count} offered ids with {len(found)} sources")
    return Offer(
        sources=found,
        path=tuple(saved["path"]),
        parents=tuple(saved.get("parents", ())),
        probabilities=tuple(map(float, saved["probabilities"])),
        passes=saved["passes"],
        host=saved["host"],
    )
