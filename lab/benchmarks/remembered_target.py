"""A target whose rows are remembered, so that many ways of drafting can be measured on one text.

What the target says after some ids does not depend on who drafted them. So a row that one condition
has computed is remembered for the others, and across runs where a file is given. The text is the
target's own output, or a given text that plays it.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.lookup import KEPT
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Decoding, Limits, TargetVerifier
from tokalign.runtime.mlx.noise import NoiseAhead
from tokalign.runtime.mlx.sampling import Sampler, Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.rounds import Context, Proposal, RowStore, Verdict
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

MOST_DEPTH = 64
"""No proposal is deeper; texts go on for so many ids after the ones that are measured."""

Key: TypeAlias = tuple[int, tuple[TargetId, ...]]
"""The length of the text that a row follows, and the ids after it that differ from the text."""


class Rows:
    """What the target says after some ids: its choice, and its most probable ids with
    logarithms."""

    def __init__(self) -> None:
        self._places: dict[Key, int] = {}
        self._choices: list[TargetId] = []
        self._likely = np.empty((0, KEPT), dtype=np.int32)
        self._logprobs = np.empty((0, KEPT), dtype=np.float32)

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def add(self, keys: Sequence[Key], choices: Sequence[TargetId], last: LastPass) -> None:
        """Remember rows of one pass."""
        for row, key in enumerate(keys):
            if key not in self._places:
                place = self._places[key] = len(self._choices)
                self._choices.append(choices[row])
                if place >= len(self._likely):
                    more = np.zeros((place + 1024, KEPT))
                    self._likely = np.concatenate([self._likely, more.astype(np.int32)])
                    self._logprobs = np.concatenate([self._logprobs, more.astype(np.float32)])
                self._likely[place] = last.likely[row]
                self._logprobs[place] = last.logprobs[row]

    def choices(self, keys: Sequence[Key]) -> list[TargetId]:
        """The target's choice at each of these rows."""
        return [self._choices[self._places[key]] for key in keys]

    def likely(self, keys: Sequence[Key], width: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The most probable ids of these rows, the most probable first, and their
        log-probabilities."""
        places = [self._places[key] for key in keys]
        return self._likely[places, :width], self._logprobs[places, :width]


@dataclass(eq=False)
class Text:
    """A prompt and what the target emits after it. given: the length of the prompt."""

    ids: list[TargetId]
    given: int
    sampler: Sampler
    rows: Rows = field(default_factory=Rows)

    @property
    def output(self) -> list[TargetId]:
        """What is to be decoded."""
        return self.ids[self.given : -MOST_DEPTH]

    def noise(self, vocabulary: int) -> NoiseAhead | None:
        """The noise that its ids are chosen with; None for a given text."""
        sampler = self.sampler
        return sampler.noise_ahead(vocabulary) if isinstance(sampler, Sampling) else None


class TextSampler:
    """Chooses what a given text goes on with, whatever the target's logits are."""

    needs_history, needs_order = False, False

    def __init__(self, ids: Sequence[TargetId]) -> None:
        self._ids = list(ids)

    @property
    def draft_sampler(self) -> None:
        """It draws nothing."""

    def choose(
        self,
        logits: Any,
        positions: Sequence[int],
        *,
        ids: Sequence[TargetId] = (),
        mask: Any = None,
    ) -> tuple[Any, Any]:
        chosen = mx.array([self._ids[position] for position in positions])
        return chosen, logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def sampled_text(
    target: LanguageModel[TargetId], prompt: Sequence[TargetId], tokens: int, sampling: Sampling
) -> Text:
    """The target's own output after a prompt."""
    context = Context(prompt)
    verifier = TargetVerifier(TargetModelSession(target.model), sampling)
    limits = Limits(max_tokens=tokens + MOST_DEPTH)
    for _ in Decoding(context, NoDrafter(), verifier, limits=limits):
        pass
    return Text(list(context.ids), len(prompt), sampling)


def given_text(ids: Sequence[TargetId], given: int) -> Text:
    """A text that plays the target's output after its first `given` ids."""
    padded = [*ids, *[ids[-1]] * MOST_DEPTH]
    return Text(padded, given, TextSampler(padded))  # type: ignore[arg-type]


class LastPass:
    """A store of rows that keeps one pass only."""

    width = KEPT

    def learn(
        self,
        ids: Sequence[TargetId],
        tree: TokenTree[TargetId],
        likely: NDArray[Any],
        logprobs: NDArray[Any],
    ) -> None:
        order = np.argsort(-logprobs, axis=-1, kind="stable")
        self.likely = np.take_along_axis(likely, order, axis=-1)
        self.logprobs = np.take_along_axis(logprobs, order, axis=-1)


class RememberingVerifier:
    """A verifier that computes only the rows of a proposal that were not computed before.

    store: is told the target's top-k logits, as by `TargetVerifier`; None where nobody asks.
    """

    def __init__(self, session: TargetModelSession, text: Text, store: RowStore | None) -> None:
        self._pass = LastPass()
        self._verifier = ChoosingVerifier(session, text.sampler, self._pass)
        self._store, self._text, self._rows = store, text.ids, text.rows

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `rounds.Verifier`."""
        tree = proposal.tree
        paths: list[tuple[TargetId, ...]] = [()]
        for token, parent in zip(tree.ids, tree.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        keys = [self._key(len(context.ids), path) for path in paths]
        missing = {index - 1 for index, key in enumerate(keys) if key not in self._rows}
        if missing:
            needed = sorted({i for index in missing for i in tree.path_to(index)})
            choices = self._verifier.by_row(context, replace(proposal, tree=tree.select(needed)))
            self._rows.add([keys[i + 1] for i in (-1, *needed)], choices, self._pass)
        choices = self._rows.choices(keys)
        if self._store is not None:
            likely = self._rows.likely(keys, self._store.width)
            self._store.learn(context.ids, tree, *likely)
        path = tree.agreed_path(choices)
        ids = tuple([choices[index] for index in (0, *[i + 1 for i in path])])
        return Verdict(ids=ids, path=tuple(path), rows=1 + len(tree))

    def _key(self, length: int, path: Sequence[TargetId]) -> Key:
        right = 0
        while right < len(path) and self._text[length + right] == path[right]:
            right += 1
        return length + right, tuple(path[right:])


class ChoosingVerifier(TargetVerifier):
    """A verifier that tells the target's choice after every row, accepted or not."""

    def by_row(self, context: Context, proposal: Proposal) -> list[TargetId]:
        """The choices of one pass, in the order of its rows."""
        ids, tree = context.ids, proposal.tree
        reads = self.session.reads([*ids], tree)
        computed = self.choices(ids, tree, self.session.run(reads), len(reads.tokens))
        if self._store is not None:
            self._store.learn(ids, tree, *map(np.array, computed.likely))
        assert not isinstance(computed.chosen, Mapping), "its sampler has no state"
        return self.session.read(computed.chosen)


def load_texts(cache: Path | None) -> list[Text] | None:
    """The texts of an earlier run with their rows; None if there are none."""
    if cache is None or not cache.exists():
        return None
    found: list[Text] = pickle.loads(cache.read_bytes())
    return found


def save_texts(texts: Sequence[Text], cache: Path | None) -> None:
    """Keep texts and rows for another run."""
    if cache is not None:
        cache.write_bytes(pickle.dumps(list(texts)))
