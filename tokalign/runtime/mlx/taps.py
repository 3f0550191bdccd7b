"""Taps: the outputs of some of a target's layers, for the ids of a context, for a trained drafter.

A pass runs on a twin of the model (`twins.twin_of`) whose tapped layers note their output; the
model itself is never changed. Rows are kept until a drafter takes them, only those of the path that
was accepted, and of a long context only the latest. Nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import mlx.core as mx

from tokalign.errors import IncompatibleError
from tokalign.runtime.mlx.twins import mixed_in, twin_of
from tokalign.runtime.rounds import Array
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree

MOST_ROWS = 4096
"""Rows that are kept until they are taken. Of a longer context a drafter reads the latest."""


class _Tapped:
    """Mixed into the class of a layer whose outputs are noted."""

    _tap: list[Array]

    def __call__(self, *args: Any, **named: Any) -> Any:
        output = super().__call__(*args, **named)  # type: ignore[misc]
        self._tap.append(output[0] if isinstance(output, tuple) else output)
        return output


class _Pass(NamedTuple):
    """Rows f[n, width] of one pass.

    begin: the position of the first. ids: of the rows that read the context; one that the host had
    not seen yet is an array i[1]. tree: the ids of the rows after them.
    """

    begin: int
    ids: Sequence[Any]
    tree: TokenTree[Any]
    rows: Array

    def on(self, context: Sequence[int]) -> list[int]:
        """The indices of the rows that read `context` from position `begin` on, one after another;
        none if the pass read something else."""
        ids = [token if isinstance(token, int) else int(token.item()) for token in self.ids]
        end = self.begin + len(ids)
        if list(context[self.begin : end]) != ids:
            return []
        return [*range(len(ids)), *[len(ids) + index for index in self.tree.path_of(context[end:])]]


class Taps:
    """What a session's passes give of some layers.

    model: to be called in the place of the one given; it shares its weights. layers: indices of the
    layers whose outputs are noted, side by side.
    Raises: IncompatibleError for a model that does not have them.
    """

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        own = getattr(model, "layers", None)
        if not isinstance(own, list) or not all(0 <= index < len(own) for index in layers):
            raise IncompatibleError(
                f"the drafter reads the outputs of layers {', '.join(map(str, layers))}, which a "
                f"{getattr(model, 'model_type', 'model')} model with "
                f"{len(own) if isinstance(own, list) else 'no'} layers does not have; give the "
                "target that it was trained for"
            )
        self._noted: list[list[Array]] = [[] for _ in layers]
        tapped = {id(own[index]): tap for index, tap in zip(layers, self._noted, strict=True)}

        def replace(module: Any) -> Any:
            tap = tapped.get(id(module))
            return None if tap is None else mixed_in(_Tapped, module, _tap=tap)

        self.model = twin_of(model, replace)
        self.model(mx.zeros((1, 1), mx.uint32))  # lazy: no layer is computed
        if any(len(tap) != 1 or tap[0].ndim != 3 or tap[0].shape[0] != 1 for tap in self._noted):
            raise IncompatibleError(
                f"the layers of a {model.model_type} model do not give one output for each id, "
                "so a drafter cannot read them; leave --drafter out"
            )
        for tap in self._noted:
            tap.clear()
        self._passes: list[_Pass] = []
        self._read: list[tuple[int, Array]] = []  # by passes whose ids are told later

    def note(self, begin: int) -> None:
        """A pass has read rows from this position on."""
        self._read.append((begin, mx.concatenate([tap.pop()[0] for tap in self._noted], axis=-1)))

    def keep(self, ids: Sequence[int], tree: TokenTree[Any]) -> None:
        """Keep the rows of the latest pass, which read the end of `ids` and a tree, and those of
        passes before it, which read the beginning of `ids`."""
        *before, (begin, rows) = self._read
        self._read = []
        for at, earlier in before:
            read = ids[at : at + earlier.shape[0]]
            self._passes.append(_Pass(at, read, EMPTY_TREE, earlier[: len(read)]))
        self._passes.append(_Pass(begin, ids[begin:], tree, rows))
        held = sum(one.rows.shape[0] for one in self._passes)
        while held > MOST_ROWS and len(self._passes) > 1:
            held -= self._passes.pop(0).rows.shape[0]

    def keep_fed(self, token: Array) -> None:
        """Keep the row of an id i[1] that the host has not seen yet, after the latest pass."""
        (*_, (_, rows)), self._read = self._read, []
        if self._passes:
            last = self._passes[-1]
            end = last.begin + len(last.ids) + len(last.tree)
            self._passes.append(_Pass(end, [token], EMPTY_TREE, rows))

    def take(self, ids: Sequence[int], first: int) -> tuple[int, Array | None]:
        """The rows of the ids from index `first` on, but for the last id, which no pass has read.

        Returns: the index of the first row, which is later than `first` where earlier ones are not
        known, and f[n, width]; None where none is known. Rows are given once, then let go.
        """
        where = {
            one.begin + place: (number, row)
            for number, one in enumerate(self._passes)
            for place, row in enumerate(one.on(ids))
        }
        begin = end = len(ids) - 1
        while begin > first and begin - 1 in where:
            begin -= 1
        parts = []
        found = [where[position] for position in range(begin, end)]
        for number, of_pass in groupby(found, key=itemgetter(0)):
            rows = [row for _, row in of_pass]
            parts.append(self._passes[number].rows[mx.array(rows)])
        self._passes = [one for one in self._passes if one.begin >= end]
        return begin, mx.concatenate(parts) if parts else None
