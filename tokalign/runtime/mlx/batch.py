"""Passes that several sessions share: the weights are read once for the rows of all.

All rows are one sequence to the model. Where it attends or keeps a state, every session's rows go
to that session's own cache; so a cache is what it is in a pass of its own, of whatever kind, and
sessions may share one pass and not the next. Nothing is padded, and nothing has to be cut out.

A pass runs on a twin of the model that splits it (`batch_split.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import mlx.core as mx

from tokalign.runtime.mlx.batch_split import Segments, SharedLayer, shared_twin, way_to_share
from tokalign.runtime.mlx.layers import positions
from tokalign.runtime.mlx.session import ModelSession, PassRows
from tokalign.runtime.mlx.taps import KeptRows
from tokalign.runtime.mlx.tree_attention import tree_masks
from tokalign.runtime.rounds import Array


class SharedModel:
    """A model for passes that sessions of it share.

    watch: as of the sessions, which then all watch the same rows. Raises: as `watch`.
    """

    def __init__(self, model: Any, watch: Callable[[Any], KeptRows] | None = None) -> None:
        self._kept = None if watch is None else watch(model)
        self._segments = Segments()
        twin = model if self._kept is None else self._kept.model
        self._twin = shared_twin(
            twin, self._segments, at_attention=way_to_share(model) == "attention"
        )

    def read(self, reads: Sequence[tuple[ModelSession[Any], PassRows[Any]]]) -> list[Array]:
        """The wanted logits f[wanted, vocabulary] of every session, lazy."""
        sessions = [session for session, _ in reads]
        tokens = [session.tokens(rows.tokens) for session, rows in reads]
        with ExitStack() as stack:
            places: list[int] = []
            for session, rows in reads:
                at, count = positions(session.layers) or 0, len(rows.tokens)
                places += (
                    range(at, at + count)
                    if rows.tree is None
                    else stack.enter_context(tree_masks(session.layers, count, rows.tree))
                )
            logits, taps = self._forward(sessions, tokens, places)
        for (session, rows), tap in zip(reads, taps, strict=True):
            session.have_read(rows, tap)
        return [part[-rows.wanted :] for part, (_, rows) in zip(logits, reads, strict=True)]

    def feed(self, sessions: Sequence[ModelSession[Any]], tokens: Sequence[Array]) -> list[Array]:
        """Logits f[1, vocabulary] of every session after one more token i[1]; all are lazy."""
        for session in sessions:
            session.quantize()
        places = [positions(session.layers) or 0 for session in sessions]
        logits, taps = self._forward(sessions, tokens, places)
        for session, token, tap in zip(sessions, tokens, taps, strict=True):
            session.have_fed(token, tap)
        return logits

    def _forward(
        self, sessions: Sequence[ModelSession[Any]], tokens: Sequence[Array], places: list[int]
    ) -> tuple[list[Array], list[Array]]:
        """Logits and taps of every session's rows. places: the positions of all rows. Raises: as
        `ModelCache.reading_quantized`."""
        segments, end = self._segments, 0
        segments.ends = [end := end + part.shape[0] for part in tokens]
        segments.now = mx.array(places)
        layers = [
            SharedLayer(of, segments) for of in zip(*[s.layers for s in sessions], strict=True)
        ]
        with ExitStack() as stack:
            for session in sessions:
                stack.enter_context(session.reading_quantized())
            logits = self._twin(mx.concatenate([*tokens])[None], cache=layers)[0]
        taps: list[Array] = [None] * len(sessions)
        if self._kept is not None:
            taps = segments.split(self._kept.latest(), 0)
        return segments.split(logits, 0), taps
