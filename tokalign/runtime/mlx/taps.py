"""Rows that a target's passes give besides logits, for a trained drafter that starts from them.

They are the last hidden states, or the outputs of some layers (taps). A pass runs on a twin of the
model (`twins.py`) that notes them. Rows are kept by the ids that they have read, so only those of
the path that was accepted are given. Nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import mlx.core as mx

from tokalign.errors import IncompatibleError
from tokalign.runtime.mlx.hidden_states import HiddenStates
from tokalign.runtime.mlx.twins import mixed_in, twin_of
from tokalign.runtime.rounds import Array, common_prefix
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree

MOST_ROWS = 4096
"""Rows of taps kept until they are taken; of a longer context a drafter reads the latest."""


class _Pass(NamedTuple):
    """Rows f[n, width] of one pass, which have read ids[begin:read] of a text and then a tree. fed:
    the last of these ids i[1], if the host had not seen it then."""

    begin: int
    read: int
    tree: TokenTree[Any]
    rows: Array
    fed: Array | None = None

    @property
    def known(self) -> int:
        """How many ids of its text the host had seen."""
        return self.read - (self.fed is not None)

    def along(self, context: Sequence[int], shared: int) -> list[int]:
        """The rows that read `context` from `begin` on. shared: ids that agree with the text."""
        if len(context) < self.read or shared < self.known:
            return []
        if self.fed is not None and context[self.known] != self.fed.item():
            return []
        own = self.read - self.begin
        path = self.tree.path_of(context[self.read :])
        return [*range(own), *[own + index for index in path]]


class KeptRows:
    """The rows of a session's latest passes.

    model: to be called in the place of the session's; it shares the weights. latest: gives the rows
    f[n, width] of its latest call, and lets them go. most: how many are kept; 0 for those of the
    last context id and the tree, of two passes.
    """

    def __init__(self, watched: HiddenStates | LayerOutputs, most: int) -> None:
        self.model, self.latest, self._most = watched.model, watched.take, most
        self._ids: list[int] = []  # the text, as far as the host knows that it was read
        self._passes: list[_Pass] = []
        self._rows = 0  # of these passes
        self._noted: list[tuple[int, Array]] = []  # of passes whose ids are told later

    def note(self, begin: int, rows: Array = None) -> None:
        """A pass has read rows from this position on. rows: None for those of the latest call."""
        self._noted.append((begin, self.latest() if rows is None else rows))
        while len(self._noted) > 1 and sum(len(rows) for _, rows in self._noted) > self._most:
            del self._noted[0]

    def keep(self, ids: Sequence[int], tree: TokenTree[Any]) -> None:
        """Keep the rows of the latest pass, which read the end of `ids` and a tree, and those of
        passes before it, which read the beginning of `ids`."""
        *before, (begin, rows) = self._noted
        if (shared := common_prefix(self._ids, list(ids))) < len(self._ids):
            self._let_go(lambda pass_: pass_.known > shared)
        self._noted, self._ids[shared:] = [], ids[shared:]
        if not self._most:
            before, begin, rows = [], len(ids) - 1, rows[-1 - len(tree.ids) :]
        for at, earlier in before:
            end = min(at + earlier.shape[0], len(ids))
            self._add(_Pass(at, end, EMPTY_TREE, earlier[: end - at]))
        self._add(_Pass(begin, len(ids), tree, rows))

    def keep_fed(self, token: Array) -> None:
        """Keep the row of an id i[1] that the host has not seen yet, after the latest pass."""
        (*_, (_, rows)), self._noted = self._noted, []
        if not self._passes:
            return
        before = self._passes[-1]
        if before.fed is not None:  # its round is over, so the host has seen it
            self._ids.append(int(before.fed.item()))
        self._ids.extend(before.tree.ids)
        end = len(self._ids)
        self._add(_Pass(end, end + 1, EMPTY_TREE, rows, token))

    def before_last(self, ids: Sequence[int]) -> Array | None:
        """The row f[1, width] that chose the last of `ids`; None if no recent pass has computed it,
        as before the first pass."""
        return self._rows_of(ids, len(ids) - 2)[1]

    def take(self, ids: Sequence[int], first: int) -> tuple[int, Array | None]:
        """The rows of the ids from index `first` on, but for the last id, which no pass has read.

        Returns: the index of the first row, which is later than `first` where earlier ones are not
        known, and f[n, width]; None where none is known. Rows are given once, then let go.
        """
        begin, rows = self._rows_of(ids, first)
        self._let_go(lambda pass_: pass_.begin < len(ids) - 1)
        return begin, rows

    def _rows_of(self, ids: Sequence[int], first: int) -> tuple[int, Array | None]:
        shared = common_prefix(list(ids), self._ids)
        where = {
            pass_.begin + place: (number, row)
            for number, pass_ in enumerate(self._passes)
            for place, row in enumerate(pass_.along(ids, shared))
        }
        begin = end = len(ids) - 1
        while begin > first and begin - 1 in where:
            begin -= 1
        parts = []
        found = [where[position] for position in range(begin, end)]
        for number, of_pass in groupby(found, key=itemgetter(0)):
            rows = [row for _, row in of_pass]
            parts.append(self._passes[number].rows[mx.array(rows)])
        return begin, mx.concatenate(parts) if parts else None

    def _add(self, pass_: _Pass) -> None:
        self._passes.append(pass_)
        self._rows += len(pass_.rows)
        while len(self._passes) > 2 and self._rows > self._most:
            self._rows -= len(self._passes.pop(0).rows)

    def _let_go(self, is_over: Callable[[_Pass], bool]) -> None:
        self._passes = [pass_ for pass_ in self._passes if not is_over(pass_)]
        self._rows = sum(len(pass_.rows) for pass_ in self._passes)


def state_rows(model: Any, most: int = 0) -> KeptRows:
    """The last hidden states of a model. most: as of `KeptRows`. Raises: as `HiddenStates`."""
    return KeptRows(HiddenStates(model), most)


class _Tapped:
    """Mixed into the class of a layer whose outputs are noted."""

    _tap: list[Array]

    def __call__(self, *args: Any, **named: Any) -> Any:
        output = super().__call__(*args, **named)  # type: ignore[misc]
        self._tap.append(output[0] if isinstance(output, tuple) else output)
        return output


class LayerOutputs:
    """A model, which shares the weights of the one given, whose passes also give the outputs of
    some layers. Raises: IncompatibleError for a model that does not have these layers."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self._taps: list[list[Array]] = [[] for _ in layers]
        own = getattr(model, "layers", None)
        known = dict(enumerate(own if isinstance(own, list) else ()))
        taps = zip(layers, self._taps, strict=True)
        tapped = {id(known[index]): tap for index, tap in taps if index in known}

        def replace(module: Any) -> Any:
            tap = tapped.get(id(module))
            return None if tap is None else mixed_in(_Tapped, module, _tap=tap)

        self.model = twin_of(model, replace)
        self.model(mx.zeros((1, 1), mx.uint32))  # lazy: no layer is computed
        if any(len(tap) != 1 or tap[0].ndim != 3 or tap[0].shape[0] != 1 for tap in self._taps):
            raise IncompatibleError(
                f"the layers {', '.join(map(str, layers))} of a {model.model_type} model are not "
                "there, or do not give one output for each id, so a drafter cannot read them; give "
                "the target that it was trained for, or leave the drafter out"
            )
        self.take()

    def take(self) -> Array:
        """The outputs f[rows, layers * width] of the latest pass, lazy; they are let go then."""
        return self.take_all()[0]

    def take_all(self) -> Array:
        """The same f[texts, rows, layers * width] of a pass over several texts."""
        outputs = mx.concatenate([tap[-1] for tap in self._taps], axis=-1)
        for tap in self._taps:
            tap.clear()
        return outputs

    def read(self, ids: Any) -> Array:
        """The outputs f[texts, rows, layers * width] for ids i[texts, rows], as constants."""
        self.model(mx.array(ids))
        return mx.stop_gradient(self.take_all())


def taps_of(model: Any, layers: Sequence[int]) -> KeptRows:
    """The latest rows of `LayerOutputs`. Raises: as that."""
    return KeptRows(LayerOutputs(model, layers), MOST_ROWS)
