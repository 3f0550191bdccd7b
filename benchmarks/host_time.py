"""What `exact` costs the host per round: in the loop, and by itself.

    python benchmarks/host_time.py --draft-model MODEL --target NAME --text FILE [-k 4] [--limit N]

First a reference text plays the target's output and the draft model drafts, as in `alignment.py`:
that is the figure of the decode loop, everything outside the passes, and the part of it that is
translation, healing and masking. What the model answered is recorded and given again without it, at
once (by itself), and after a wait in the place of each pass (cold caches, no computing). New words
are met in all three. Figures are of all rounds of all texts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pickle import dumps, loads
from time import perf_counter
from typing import Any

import click
from reference_texts import ReferenceTexts, reference_texts

from tokalign.cli.loading import keep_loaded
from tokalign.runtime.interfaces import Waiting
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.translation.published import Pair
from tokalign.tables.absorption import shared_absorption


class Recording(ModelSession):
    """A session whose answers are kept, in the order in which they are read."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.answers: list[Any] = []

    def shortlist(self, *asked: Any) -> Waiting[Any]:
        return self._kept(super().shortlist(*asked))

    def draft(self, *asked: Any) -> Waiting[Any]:
        return self._kept(super().draft(*asked))

    def _kept(self, waiting: Waiting[Any]) -> Waiting[Any]:
        def wait() -> Any:
            self.answers.append(waiting())
            return self.answers[-1]

        return wait


@dataclass
class Recorded:
    """Gives recorded answers, each `wait` seconds after it was asked for.

    As in a session, what the host does meanwhile takes no time of its own.
    """

    answers: deque[bytes]
    wait: float
    passes: int = 0
    seconds: float = 0.0

    def shortlist(self, _: Any, __: int, allowed: Callable[[], Any], *___: Any) -> Waiting[Any]:
        return self._waiting(allowed)

    def draft(self, *_: Any) -> Waiting[Any]:
        return self._waiting()

    def _waiting(self, *beside: Callable[[], Any]) -> Waiting[Any]:
        self.passes += 1
        asked = perf_counter()
        for work in beside:
            work()

        def wait() -> Any:
            began = asked if self.wait else perf_counter()
            if self.wait:
                time.sleep(max(0.0, began + self.wait - perf_counter()))
            answer = loads(self.answers.popleft())  # made anew, as what comes from a device
            self.seconds += perf_counter() - began
            return answer

        return wait


def forget(pair: Pair) -> None:
    """Empty what the tokenizers have remembered, so that every word is new again."""
    shared_absorption.cache_clear()
    for bpe in (pair.target.bpe, pair.draft.bpe):
        for known in (bpe.encode_piece, bpe.derivation, bpe.left_spine, bpe.right_spine):
            known.cache_clear()


@click.command()
@reference_texts(steps=4, limit=8)
@click.option("--wait", default=10.0, show_default=True, help="Milliseconds.")
def main(given: ReferenceTexts, *, wait: float) -> None:
    """Three rows: in the loop, by itself, behind waits."""

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
    for name, seconds in (("by itself", 0.0), (f"behind waits of {wait:g} ms", wait / 1e3)):
        forget(given.pair)
        print(row(name, Recorded(deque(map(dumps, recording.answers)), seconds)), flush=True)


if __name__ == "__main__":
    main()
