"""prototype"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any, NamedTuple

from tokalign.runtime.draft.trust import Trust
from tokalign.tokenizer.vocabulary import TargetId

W = {
    "dictionary": (0.7, 0.0, -0.7),
    "logits:3": (0.5, 0.0, -1.2),
    "logits:2": (0.4, 0.0, -0.8),
    "logits:1": (0.3, 0.0, -0.4),
    "copy": (0.7, 0.0, -0.5),
    "session": (0.7, 0.0, -0.5),
    "draft": (0.8, 0.0, -1.0),
}
FLOOR = -4.5
DUMP: list = []
DUMPING = False


class Candidate(NamedTuple):
    token: Any
    probability: float
    name: str
    situation: Any
    start: float
    raw: Any


class Mixing:
    def __init__(self) -> None:
        self.trust = Trust(rate=0.02)

    def learn(self, candidates: Sequence[Candidate], came: TargetId) -> None:
        if DUMPING:
            for one in candidates:
                DUMP.append((one.raw, one.token == came))
        learn = self.trust.learn
        for one in candidates:
            learn(one.probability, one.situation, right=one.token == came)


class Mixer:
    def __init__(self, mixing: Mixing, sources: Sequence[Any]) -> None:
        self._mixing = mixing
        self._sources = tuple(sources)
        self._w = [(1 << i, s, s.name, *W[s.name]) for i, s in enumerate(self._sources)]

    def candidates(self, states: Sequence[Any]) -> list[Candidate]:
        votes: dict[Any, list[Any]] = {}
        present = 0
        missing = 0.0
        for (bit, source, name, w, b, m), state in zip(self._w, states, strict=True):
            if state is None:
                continue
            expected = source.expect(state)
            if not expected:
                continue
            present |= bit
            missing += m
            for token, x in expected:
                vote = votes.get(token)
                if vote is None:
                    votes[token] = [bit, w * x + b - m, x, name, [(name, x)]]
                else:
                    vote[0] |= bit
                    vote[1] += w * x + b - m
                    vote[4].append((name, x))
                    if x > vote[2]:
                        vote[2], vote[3] = x, name
        found = []
        for token, (mask, z, _, name, raw) in votes.items():
            z += missing
            if z < FLOOR:
                continue
            bucket = int(z) if z < 3 else 3
            situation = (mask, present, bucket)
            p = self._mixing.trust.calibrated(1 / (1 + exp(-z)), situation)
            found.append(Candidate(token, p, name, situation, 1.0, (raw, present) if DUMPING else None))
        return found
