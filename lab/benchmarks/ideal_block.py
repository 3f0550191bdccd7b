"""An ideal block drafter: marginals of the target's own continuations, recorded once.

    python -m lab.benchmarks.ideal_block --target MODEL --prompts FILE --output FILE.npz \
        [--drafter FOLDER] [--limit 16] [--tokens 64] [--temps 0,0.7] [--samples 16]

At every position of what the target writes, it writes on so many times at temperature 0.8, and the
distributions of each coming position are averaged: what a block drafter would say that knows its
target perfectly, but not the ids between. So trees can be judged before a drafter is trained. With
--drafter, what a trained block drafter says there is recorded in its place, which makes replays
quick. `block_tree rows --ideal FILE.npz` drafts with what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import click
import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from tokalign.cli.texts import read_texts
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Decoding, Limits, TargetVerifier
from tokalign.runtime.mlx.dflash_session import DFlashSession, Guess, listed_rows
from tokalign.runtime.mlx.drafter_folder import named_drafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession, top_k
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.rounds import Context, Drafter, Meanwhile, Proposal, nothing
from tokalign.tokenizer.vocabulary import TargetId

_GUESSES, _KEPT, _TEMPERATURE = 7, 48, 0.8
"""Positions of a block; ids that are kept of each; temperature of the continuations."""

OPENING = 160
"""Characters of a text that are its prompt."""


def openings(prompts: Path, limit: int, model: LanguageModel[TargetId]) -> list[Sequence[TargetId]]:
    """The ids of the beginnings of the texts in a file."""
    texts = read_texts(prompts, field="text", limit=limit)
    return [model.tokenizer.encode(text[:OPENING]) for text in texts]


def plainly(
    model: Any,
    prompt: Sequence[TargetId],
    sampler: Sampling,
    tokens: int,
    network: TrainedDrafter | None = None,
) -> tuple[list[TargetId], list[tuple[NDArray[Any], NDArray[Any]]]]:
    """What plain decoding emits, and what a block drafter says before each id."""
    context = Context(prompt)
    session = TargetModelSession(model, watch=None if network is None else network.watch)
    asking = None if network is None else Asking(cast("DFlashSession", network.session(session)))
    verifier = TargetVerifier(session, sampler)
    for _ in Decoding(
        context, asking or NoDrafter(), verifier, limits=Limits(max_tokens=tokens, target=session)
    ):
        pass
    return [*context.emitted], [] if asking is None else asking.found


class Marginals(NamedTuple):
    """What a drafter says at the positions of texts: ids and log-probabilities, each
    [texts, positions, guesses, kept]."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class IdealDrafter:
    """The marginals of some texts, by temperature. wrong: the share of blocks that are of another
    text."""

    of: dict[float, Marginals]
    wrong: float = 0.0

    @classmethod
    def read(cls, file: Path, wrong: float) -> IdealDrafter:
        with np.load(file) as saved:
            temps = [float(name[4:]) for name in saved.files if name.startswith("ids-")]
            of = {t: Marginals(saved[f"ids-{t}"], saved[f"logprobs-{t}"]) for t in temps}
        return cls(of, wrong)

    def session(self, text: int, prompt: int, size: int, temperature: float) -> IdealSession:
        """Itself for one text. prompt: how many ids it begins with. size: of the vocabulary."""
        return IdealSession(self.of[temperature], self.wrong, text, prompt, size)


class IdealSession:
    """Stands in for a `DFlashSession`."""

    def __init__(
        self, marginals: Marginals, wrong: float, text: int, prompt: int, size: int
    ) -> None:
        self._marginals, self._wrong = marginals, wrong
        self._text, self._prompt, self._size = text, prompt, size
        self.passes, self.most = 0, _GUESSES

    def draft(
        self,
        ids: Sequence[TargetId],
        listed: int,
        sampler: Sampling | None = None,
        meanwhile: Meanwhile = nothing,
    ) -> Guess:
        meanwhile(ids)
        at = len(ids) - self._prompt
        if at < 1:  # like one that reads what the target has computed
            return Guess([], [])
        self.passes += 1
        texts, positions = self._marginals.ids.shape[:2]
        chance, text = Random(1000 * self._text + at), self._text
        if chance.random() < self._wrong:
            text, at = (text + chance.randrange(1, texts)) % texts, chance.randrange(1, positions)
        rows = np.full((_GUESSES, self._size), -inf, dtype=np.float32)
        np.put_along_axis(
            rows, self._marginals.ids[text, at], self._marginals.logprobs[text, at], axis=-1
        )
        logits = mx.array(rows)
        if sampler is not None:
            logits = sampler.expect(logits, range(len(ids), len(ids) + _GUESSES))
        return Guess(listed_rows(*top_k(logits, listed)), [])


class Continuations:
    """Samples what a model may write after every position of a text."""

    def __init__(self, model: Any, ids: Sequence[TargetId], samples: int) -> None:
        self._model, self._samples = model, samples
        self._cache = [KVCache() for _ in model.layers]
        self._logits = model(mx.array([[*ids]]), cache=self._cache)[0]

    def marginals(self, at: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The likeliest ids i[guesses, kept] after `at` ids, and their log-probabilities."""
        cache = [self._part(layer, at) for layer in self._cache]
        logits = self._logits[at - 1][None] / _TEMPERATURE
        rows = []
        for place in range(_GUESSES):
            rows.append(mx.softmax(logits, axis=-1).mean(axis=0))
            if place + 1 < _GUESSES:
                shape = (self._samples, 1) if place else (1, self._samples)
                drawn = mx.random.categorical(logits, num_samples=self._samples // shape[0])
                logits = self._model(drawn.reshape(-1, 1), cache=cache)[:, -1] / _TEMPERATURE
        found, values = top_k(mx.log(mx.stack(rows)), _KEPT)
        return np.array(found), np.array(values)

    def _part(self, layer: Any, at: int) -> Any:
        part = KVCache()
        keys, values = layer.keys[:, :, :at], layer.values[:, :, :at]
        part.keys = mx.repeat(keys, self._samples, axis=0)
        part.values = mx.repeat(values, self._samples, axis=0)
        part.offset = at
        return part


class Asking(Drafter):
    """Asks a block drafter after every id of plain decoding, and proposes nothing."""

    def __init__(self, session: DFlashSession) -> None:
        self._session = session
        self.found: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def propose(self, context: Context, limit: int) -> Proposal:
        positions = self._session.draft(context.ids, _KEPT).positions
        listed = np.full((2, _GUESSES, _KEPT), -inf)
        listed[0] = 0
        for place, row in enumerate(positions[:_GUESSES]):
            listed[:, place, : len(row)] = np.array(row).T
        self.found.append((listed[0], listed[1]))
        return Proposal()


@click.command()
@click.option("--target", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--drafter", type=click.Path(path_type=Path, exists=True))
@click.option("--limit", type=int, default=16, show_default=True)
@click.option("--tokens", type=int, default=64, show_default=True)
@click.option("--temps", default="0,0.7", show_default=True)
@click.option("--samples", type=int, default=16, show_default=True)
def record(
    target: Path,
    prompts: Path,
    output: Path,
    drafter: Path | None,
    limit: int,
    tokens: int,
    temps: str,
    samples: int,
) -> None:
    """Record what a block drafter says of what the target writes; without one, an ideal one."""
    model: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
    network = None if drafter is None else named_drafter(drafter, model)
    mx.random.seed(0)
    saved = {}
    for temperature in map(float, temps.split(",")):
        ids, logprobs = [], []
        texts = openings(prompts, limit, model)
        for number, prompt in track([*enumerate(texts)], console=Console(stderr=True)):
            sampler = Sampling(temperature=temperature, seed=number)
            if network is None:
                written, _ = plainly(model.model, prompt, sampler, tokens)
                found = [*_of_text(model.model, prompt, written, samples)]
            else:
                _, found = plainly(model.model, prompt, sampler, tokens, network)
            ids.append(np.stack([of for of, _ in found]))
            logprobs.append(np.stack([values for _, values in found]))
        saved[f"ids-{temperature}"] = np.stack(ids).astype(np.int32)
        saved[f"logprobs-{temperature}"] = np.stack(logprobs).astype(np.float32)
        np.savez_compressed(output, **saved)  # type: ignore[arg-type]


def _of_text(
    model: Any, prompt: Sequence[TargetId], written: Sequence[TargetId], samples: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    continuations = Continuations(model, [*prompt, *written], samples)
    for at in range(len(written)):
        yield continuations.marginals(len(prompt) + at)


if __name__ == "__main__":
    record()
