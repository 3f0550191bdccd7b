"""The host time of `exact` per round: in the decode loop, and without the model.

    python -m lab.benchmarks.host_time --draft-model MODEL --target NAME --text FILE [-k 4] \
        [--limit N]

First reference texts play the target's output and the draft model drafts, as in `alignment.py`.
That gives the host time of the decode loop, which is all time outside the passes, and the part of
it that is translation, healing and masking. The model's answers are recorded and replayed twice
without the model: at once (by itself), and with a wait in place of each pass (cold caches, no
computing). The tokenizers' caches of words are emptied before each replay. Figures are over all
rounds of all texts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pickle import dumps, loads
from time import perf_counter
from typing import Any

import click

from lab.benchmarks.reference_texts import ReferenceTexts, reference_texts
from tokalign.assemble import keep_loaded
from tokalign.bpe.absorption import shared_absorption
from tokalign.runtime.interfaces import GreedyDraft, Pending, PendingShortlists, Shortlist
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.vocabulary import DraftId


@dataclass
class Kept:
    """A result that is added to `answers` when it is read."""

    pending: Pending[Any]
    answers: list[Any]

    def read(self) -> Any:
        """See `interfaces.Pending`."""
        self.answers.append(self.pending.read())
        return self.answers[-1]


@dataclass
class KeptShortlists:
    """Shortlists that are added to `answers` when they are read."""

    pending: PendingShortlists
    answers: list[Any]

    def among(self, allowed: Any, count: int) -> Pending[list[Shortlist]]:
        """See `interfaces.PendingShortlists`."""
        return Kept(self.pending.among(allowed, count), self.answers)


class Recording(DraftModelSession):
    """A session whose answers are kept, in the order in which they are read."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.answers: list[Any] = []

    def start_shortlists(self, ids: Sequence[DraftId], back: int) -> PendingShortlists:
        """See `interfaces.DraftSession`."""
        return KeptShortlists(super().start_shortlists(ids, back), self.answers)

    def draft(self, ids: Sequence[DraftId], steps: int, shared: Any = None) -> Pending[GreedyDraft]:
        """See `interfaces.DraftSession`."""
        return Kept(super().draft(ids, steps, shared), self.answers)

    def branch(self, *args: Any) -> Pending[list[Shortlist]]:
        """See `interfaces.DraftSession`."""
        return Kept(super().branch(*args), self.answers)


@dataclass
class Recorded:
    """Gives recorded answers, each `wait` seconds after it was asked for.

    As in a session, the host's work during the wait takes no time of its own.
    """

    answers: deque[bytes]
    wait: float
    passes: int = 0
    seconds: float = 0.0
    can_branch: bool = True

    def start_shortlists(self, ids: Sequence[DraftId], back: int) -> RecordedAnswer:
        """See `interfaces.DraftSession`."""
        return self._ask()

    def draft(self, ids: Sequence[DraftId], steps: int) -> RecordedAnswer:
        """See `interfaces.DraftSession`."""
        return self._ask()

    def branch(self, *args: Any) -> RecordedAnswer:
        """See `interfaces.DraftSession`."""
        return self._ask()

    def _ask(self) -> RecordedAnswer:
        self.passes += 1
        return RecordedAnswer(self, perf_counter())


@dataclass
class RecordedAnswer:
    """One of them, asked for at a time."""

    session: Recorded
    asked: float

    def among(self, allowed: Any, count: int) -> RecordedAnswer:
        """See `interfaces.PendingShortlists`."""
        return self

    def read(self) -> Any:
        """See `interfaces.Pending`."""
        session = self.session
        began = self.asked if session.wait else perf_counter()
        if session.wait:
            time.sleep(max(0.0, began + session.wait - perf_counter()))
        answer = loads(session.answers.popleft())  # made anew, as what comes from a device
        session.seconds += perf_counter() - began
        return answer


def forget(pair: Pair) -> None:
    """Empty the caches of the tokenizers, so that every word is new again."""
    shared_absorption.cache_clear()
    for bpe in (pair.target.bpe, pair.draft.bpe):
        valid = bpe.validity
        for known in (bpe.encode_piece, valid.derivation, valid.left_spine, valid.right_spine):
            known.cache_clear()  # type: ignore[union-attr]


@click.command()
@reference_texts(steps=4, limit=8)
@click.option("--wait", default=10.0, show_default=True, help="Milliseconds.")
def main(given: ReferenceTexts, *, wait: float) -> None:
    """Three rows: in the loop, by itself, after waits."""

    def row(name: str, session: Any) -> str:
        statistics = Statistics()
        for ids in given.texts:
            translation = given.translation("exact", ids)
            for event in given.play(ids, session, translation, alternatives=DEFAULT_ALTERNATIVES):
                statistics.observe(event)
        cells = [
            f"{found[quantile]:.3f}"
            for found in (statistics.host_ms_per_round, statistics.translation_ms_per_round)
            for quantile in ("p50", "p99")
        ]
        return f"| {name} | {' | '.join(cells)} |"

    recording = Recording(given.model.model)
    print(f"{given}\n\n| | host ms, p50 | p99 | translation, p50 | p99 |\n|---|---|---|---|---|")
    keep_loaded()
    print(row("in the loop", recording), flush=True)
    for name, seconds in (("by itself", 0.0), (f"after waits of {wait:g} ms", wait / 1e3)):
        forget(given.pair)
        print(row(name, Recorded(deque(map(dumps, recording.answers)), seconds)), flush=True)


if __name__ == "__main__":
    main()
