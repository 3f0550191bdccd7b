"""What `exact` costs the host per round: in the loop, and by itself.

    python benchmarks/host_time.py --draft-model MODEL --target NAME --text FILE [-k 4] [--limit N]

First a reference text plays the target's output and the draft model drafts, as in `alignment.py`:
that is the figure of the decode loop, everything outside the passes. What the model answered is
recorded and given again without it, at once (by itself), and after a wait in the place of each pass
(cold caches, no computing). New words are met in all three. Figures are of all rounds of all texts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from tokalign.absorption import share
from tokalign.build.alignment import align
from tokalign.cli.loading import keep_loaded
from tokalign.cli.texts import read_texts
from tokalign.lookup import open_alignment
from tokalign.registry import resolve_model, resolve_tokenizer
from tokalign.runtime.assembly import LanguageModel, Prompt, make_translation
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.interfaces import Waiting
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.replay import replay
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.translation.published import Pair


@dataclass
class Recording:
    """A session whose answers are kept, in the order in which they are read."""

    session: ModelSession
    answers: deque[Any] = field(default_factory=deque)

    def shortlist(self, ids: Sequence[int], allowed: Any, count: int) -> Waiting[Any]:
        return self._kept(self.session.shortlist(ids, allowed, count))

    def draft(self, ids: Sequence[int], steps: int, mask: Any = None) -> Waiting[Any]:
        return self._kept(self.session.draft(ids, steps, mask))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def _kept(self, waiting: Waiting[Any]) -> Waiting[Any]:
        def wait() -> Any:
            self.answers.append(waiting())
            return self.answers[-1]

        return wait


@dataclass
class Recorded:
    """Gives recorded answers, each after a wait in seconds."""

    answers: deque[Any]
    wait: float
    passes: int = 0
    seconds: float = 0.0

    def shortlist(self, *_: Any) -> Waiting[Any]:
        return self._next

    draft = shortlist

    def _next(self) -> Any:
        began = perf_counter()
        if self.wait:
            time.sleep(self.wait)
        answer = self.answers.popleft()
        self.seconds += perf_counter() - began
        return answer


def forget(pair: Pair) -> None:
    """Empty what the tokenizers have remembered, so that every word is new again."""
    share.cache_clear()
    for bpe in (pair.target.bpe, pair.draft.bpe):
        for known in (bpe.encode_piece, bpe.derivation, bpe.left_spine, bpe.right_spine):
            known.cache_clear()


@click.command()
@click.option("--draft-model", required=True)
@click.option("--target", default="bielik", show_default=True)
@click.option("--text", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--field", "text_field", default="text", show_default=True)
@click.option("-k", "--num-draft-tokens", "steps", default=4, show_default=True)
@click.option("--prompt-tokens", default=12, show_default=True)
@click.option("--tokens", default=200, show_default=True, help="At most so many of each text.")
@click.option("--limit", type=int, default=8, show_default=True, help="Texts.")
@click.option("--wait", default=10.0, show_default=True, help="Milliseconds.")
def main(
    *,
    draft_model: str,
    target: str,
    text: Path,
    text_field: str,
    steps: int,
    prompt_tokens: int,
    tokens: int,
    limit: int,
    wait: float,
) -> None:
    """Three rows: in the loop, by itself, behind waits."""
    model = LanguageModel.from_folder(resolve_model(draft_model).folder, dtype="float32")
    pair = Pair(resolve_tokenizer(target).tokenizer, model.tokenizer)
    tables = open_alignment(pair.target, pair.draft, otherwise=align)
    texts = read_texts(text, field=text_field, limit=limit)
    references = [ids[:tokens] for ids in pair.target.encode_batch(texts)]

    def host(session: Any) -> str:
        statistics = Statistics()
        for ids in references:
            prompt = Prompt(target=ids[:prompt_tokens])
            translation = make_translation("exact", pair, prompt, lambda: tables)
            drafter = NeuralDrafter(session, translation, num_draft_tokens=steps)
            for event in replay(ids, drafter, prompt_tokens=prompt_tokens):
                statistics.observe(event)
        found = statistics.host_ms_per_round
        return f"{found['p50']:.3f} | {found['p99']:.3f} |"

    keep_loaded()
    recording = Recording(ModelSession(model.model))
    print(f"{text.name}, {len(texts)} texts, K = {steps}\n\n| | p50 ms | p99 ms |\n|---|---|---|")
    print(f"| in the loop | {host(recording)}", flush=True)
    for name, seconds in (("by itself", 0.0), (f"behind waits of {wait:g} ms", wait / 1e3)):
        forget(pair)
        print(f"| {name} | {host(Recorded(recording.answers.copy(), seconds))}", flush=True)


if __name__ == "__main__":
    main()
