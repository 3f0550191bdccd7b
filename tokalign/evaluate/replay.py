"""Texts play the target: what drafters save on them, and what they propose at every position.

The loop is the real one, with another verifier. `tokalign bench --text` measures drafters in this
way, and `tokalign check` dictionaries: those that exist, and one that is built from nine tenths of
the text and decodes the rest. That is a lower bound: more text makes a better table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.rounds import Context, Drafter, Proposal, Verdict
from tokalign.runtime.statistics import Statistics
from tokalign.tables.dictionary import Dictionaries, Dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

MakeDrafter: TypeAlias = Callable[[Sequence[TargetId]], Drafter]
"""Gives the drafter for a text, which is a request of its own."""


class ReplayVerifier:
    """A reference text plays the target, whatever is proposed."""

    def __init__(self, reference: Sequence[TargetId]) -> None:
        self._reference = list(reference)

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """Raises: IndexError at the end of the reference."""
        at, tree = len(context.ids), proposal.tree
        ids = self._reference[at : at + len(tree) + 1]
        path = tree.path_of(ids)
        if len(path) == len(ids):
            raise IndexError("the reference text is at its end")
        accepted = tuple(ids[: len(path) + 1])
        return Verdict(ids=accepted, path=tuple(path), rows=1 + len(tree))


def replay(reference: Sequence[TargetId], drafter: Drafter, *, prompt_tokens: int = 0) -> Decoding:
    """Decode what follows the first `prompt_tokens` ids of `reference`, which may be nothing."""
    rest = max(0, len(reference) - prompt_tokens)
    context = Context(reference[:prompt_tokens])
    return Decoding(context, drafter, ReplayVerifier(reference), limits=Limits(max_tokens=rest))


def replay_texts(
    texts: Iterable[Sequence[TargetId]],
    make: MakeDrafter,
    *,
    prompt_tokens: int = 0,
    progress: Callable[[int], object] = lambda _: None,
) -> Statistics:
    """Statistics of all texts together, each with its first `prompt_tokens` ids as its prompt."""
    statistics = Statistics()
    for ids in texts:
        for event in replay(ids, make(ids), prompt_tokens=prompt_tokens):
            statistics.observe(event)
        progress(1)
    return statistics


_MOST_TOKENS, _LEAST_LINES = 20_000, 200
_RUN = 20
"""Lines are held out in runs of this length, so that few neighbours of theirs are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionarySaving:
    """Tokens per pass of the target when it writes this text, if a verified row cost nothing.
    found: with the target's dictionaries. own: with one of nine tenths of the text, on the rest."""

    found: float | None
    own: float | None


def measure_dictionaries(
    target: Tokenizer[TargetId],
    lines: Sequence[str],
    found: Dictionaries | None,
    build: Callable[[Tokenizer[TargetId], Sequence[str]], Dictionary],
) -> DictionarySaving:
    """What `found`, and a dictionary that `build` makes of the text, save. Cost: 2 s per MB."""
    held = [line for number, line in enumerate(lines) if number // _RUN % 10 == 0]
    rest = [line for number, line in enumerate(lines) if number // _RUN % 10]
    return DictionarySaving(
        found=None if found is None else _saving(target, held, found),
        own=_saving(target, held, build(target, rest)) if len(lines) >= _LEAST_LINES else None,
    )


def _saving(
    target: Tokenizer[TargetId], lines: Sequence[str], table: Dictionary | Dictionaries
) -> float:
    texts, remaining = list[list[TargetId]](), _MOST_TOKENS
    for line in lines:
        texts.append(target.encode(line)[:remaining])
        remaining -= len(texts[-1])
        if remaining <= 0:
            break
    return replay_texts(texts, lambda _: DictionaryDrafter(table)).tokens_per_round
