"""The last hidden states of a model's passes, from which a recurrent drafter goes on.

A pass runs on a twin of the model (`twins.twin_of`) whose head notes its argument. The head is
the module that is called last with floating point numbers and gives one number for each id. Whether
the model returns its output is tried out: if the output is replaced by numbers that increase from
id to id, scaled and soft-capped logits increase as well. mlx is lazy, so no layer is computed.
Models that multiply by a weight outside of a module have no such head; `docs/models.md` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from tokalign.errors import IncompatibleError
from tokalign.runtime.mlx.twins import mixed_in, twin_of
from tokalign.runtime.mlx.weights import once_per_model, vocabulary_size
from tokalign.runtime.rounds import Array
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree


class _Calls:
    """The latest call of a twin's watched modules. instead: returned in place of their output."""

    argument: Array = None
    module: Any = None
    instead: Array = None


class _Watched:
    """Mixed into the class of a module that turns hidden states into logits."""

    _calls: _Calls
    _original: Any

    def __call__(self, x: Array, *rest: Any, **named: Any) -> Array:
        """As the module's own. An embedding's call with ids is not noted."""
        output = super().__call__(x, *rest, **named)  # type: ignore[misc]
        return self._noted(x, output) if mx.issubdtype(x.dtype, mx.floating) else output

    def as_linear(self, x: Array) -> Array:
        """As an embedding's."""
        return self._noted(x, super().as_linear(x))  # type: ignore[misc]

    def _noted(self, x: Array, output: Array) -> Array:
        calls = self._calls
        calls.argument, calls.module = x, self._original
        return output if calls.instead is None else mx.broadcast_to(calls.instead, output.shape)


class HiddenStates:
    """A model whose passes also give their last hidden states.

    model: to be called in the place of the one given; it shares its weights. head: turns hidden
    states f[..., hidden] into logits f[..., vocabulary], before the model scales or caps them.
    Raises: as `head_of`.
    """

    def __init__(self, model: Any) -> None:
        head = head_of(model)
        self._calls = _Calls()
        self.model = _watching(model, self._calls, lambda module: module is head)
        self.head = as_head(head)

    def take(self) -> Array:
        """The states f[rows, hidden] of the latest pass, lazy. They are given once, then let go."""
        states, self._calls.argument = self._calls.argument, None
        assert states is not None, "no pass since the states were taken last"
        return states[0]


def head_of(model: Any) -> Any:
    """The module that gives a model's logits. Raises: IncompatibleError where there is none."""
    head = find_head(model)
    if head is None:
        raise IncompatibleError(
            f"no module of a {getattr(model, 'model_type', 'model')} model gives its logits, so "
            "its last hidden state cannot be read; use it without --drafter, or another target"
        )
    return head


@once_per_model
def find_head(model: Any) -> Any:
    """The module that gives a model's logits; None where there is none. It is looked for once."""
    if not isinstance(model, nn.Module):
        return None
    size, calls = vocabulary_size(model), _Calls()
    token = mx.zeros((1, 1), mx.uint32)
    width = _watching(model, calls, lambda module: _gives_logits(module, size))(token).shape[-1]
    head, calls.instead = calls.module, mx.linspace(-1, 1, width)
    if head is None or as_head(head)(calls.argument).shape[-1] != width:
        return None
    logits = _watching(model, calls, lambda module: module is head)(token).reshape(-1)
    rises = bool((logits[1:] >= logits[:-1]).all()) and bool(logits[0] < logits[-1])
    return head if rises else None


def as_head(module: Any) -> Callable[[Array], Array]:
    """What turns hidden states into logits: a linear layer, or the embedding that it is tied to."""
    head: Callable[[Array], Array] = getattr(module, "as_linear", module)
    return head


def _gives_logits(module: Any, size: int) -> bool:
    weight = module.get("weight")
    return isinstance(weight, mx.array) and weight.ndim == 2 and weight.shape[0] >= size


def _watching(model: Any, calls: _Calls, wanted: Callable[[Any], bool]) -> Any:
    """A twin of `model` whose wanted modules note their calls."""

    def replace(module: Any) -> Any:
        if not wanted(module):
            return None
        return mixed_in(_Watched, module, _calls=calls, _original=module)

    return twin_of(model, replace)


class _States(NamedTuple):
    """Hidden states f[1 + tree, hidden] of one pass.

    ids: the first row has read the first `read` of them; passes that ran ahead append to the same
    list. fed: the last id i[1] that the first row has read, if the host had not seen it then; it is
    not in the list. tree: the ids of the other rows.
    """

    ids: list[int]
    read: int
    fed: Array | None
    tree: TokenTree[Any]
    hidden: Array

    def before_last(self, ids: Sequence[int]) -> Array | None:
        """The state f[1, hidden] before the last of `ids`; None if no row has it.

        Cost: comparing the ids, about 1 µs per 1,000.
        """
        new = ids[self.read : -1]
        path = self.tree.path_of(new)
        known = self.read if self.fed is None else self.read - 1
        if len(ids) <= self.read or len(path) < len(new) or list(ids[:known]) != self.ids[:known]:
            return None
        if self.fed is not None and ids[known] != self.fed.item():
            return None
        row = path[-1] + 1 if path else 0
        return self.hidden[row : row + 1]


class KeptStates:
    """The hidden states of a session's latest passes. They are not waited for.

    model: to be called in the place of the one given. Raises: as `HiddenStates`.
    """

    def __init__(self, model: Any) -> None:
        self._watched = HiddenStates(model)
        self.model = self._watched.model
        self._latest: tuple[_States, ...] = ()

    def before_last(self, ids: Sequence[int]) -> Array | None:
        """The state f[1, hidden], lazy, of the row that chose the last of `ids`.

        None if no recent pass has computed that row, as before the first pass.
        """
        rows = (states.before_last(ids) for states in self._latest)
        return next((row for row in rows if row is not None), None)

    def keep(self, ids: Sequence[int], tree: TokenTree[Any], fed: Array | None = None) -> None:
        """Keep the states of the pass's last rows, and those of the pass before it.

        ids, fed, tree: as in `_States`. A pass that ran ahead has read the last id already, so the
        row before that id is one of the pass before.
        """
        hidden = self._watched.take()[-1 - len(tree.ids) :]
        ids = ids if isinstance(ids, list) else list(ids)
        read = len(ids) if fed is None else len(ids) + 1
        self._latest = (_States(ids, read, fed, tree, hidden), *self._latest[:1])

    def keep_fed(self, token: Array) -> None:
        """Keep the state of a pass over one id i[1] that the host has not seen yet."""
        if not self._latest:
            return
        before = self._latest[0]
        if before.fed is not None:  # its round is over, so the host has seen it
            before.ids.append(int(before.fed.item()))
        before.ids.extend(before.tree.ids)
        self.keep(before.ids, EMPTY_TREE, fed=token)
