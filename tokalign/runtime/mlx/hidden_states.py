"""The last hidden states of a model's passes, from which a recurrent drafter goes on.

A pass runs on a twin of the model (`twins.twin_of`) whose head notes its argument. The head is
the module that is called last with floating point numbers and gives one number for each id. Whether
the model returns its output is tried out: if the output is replaced by numbers that increase from
id to id, scaled and soft-capped logits increase as well. mlx is lazy, so no layer is computed.
Models that multiply by a weight outside of a module have no such head; `docs/models.md` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from tokalign.errors import IncompatibleError
from tokalign.runtime.mlx.twins import mixed_in, twin_of
from tokalign.runtime.mlx.weights import once_per_model, vocabulary_size
from tokalign.runtime.rounds import Array


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
        return self._noted(x, super().as_linear(x))  # type: ignore[misc]

    def _noted(self, x: Array, output: Array) -> Array:
        calls = self._calls
        calls.argument, calls.module = x, self._original
        return output if calls.instead is None else mx.broadcast_to(calls.instead, output.shape)


class HiddenStates:
    """A model whose passes also give their last hidden states.

    model: to be called in the place of the one given; it shares its weights. Raises: as `head_of`.
    """

    def __init__(self, model: Any) -> None:
        head = head_of(model)
        self._calls = _Calls()
        self.model = _watching(model, self._calls, lambda module: module is head)

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
            "its last hidden state cannot be read; use it without a drafter, or another target"
        )
    return head


@once_per_model
def find_head(model: Any) -> Any:
    """The module that gives a model's logits; None where there is none. It is looked for once."""
    if not isinstance(model, nn.Module):
        return None
    size, calls = vocabulary_size(model), _Calls()
    token = mx.zeros((1, 1), mx.uint32)

    def gives_logits(module: Any) -> bool:
        weight = module.get("weight")
        return isinstance(weight, mx.array) and weight.ndim == 2 and weight.shape[0] >= size

    width = _watching(model, calls, gives_logits)(token).shape[-1]
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


def body_and_head(model: Any) -> tuple[Any, Any] | None:
    """All before a model's head, and the head, whose rows times hidden states are the logits, so
    that those of some ids can be computed; None for a model where a trial shows that they are not.
    """
    head, body = find_head(model), getattr(model, "model", None)
    if head is None or body is None or {"scales", "bias"} & {*head}:
        return None
    if sum(isinstance(module, nn.Embedding) for module in model.modules()) != 1:
        return None
    tokens = mx.array([[3, 1, 2]])
    theirs = model(tokens)[..., 1:4].astype(mx.float32)
    try:
        ours = (body(tokens) @ head.weight[1:4].T).astype(mx.float32)
        return (body, head) if bool(mx.allclose(theirs, ours, 1e-3, 1e-3)) else None
    except (TypeError, ValueError):  # the body takes other arguments, or gives other shapes
        return None


def _watching(model: Any, calls: _Calls, wanted: Callable[[Any], bool]) -> Any:
    """A twin of `model` whose wanted modules note their calls."""

    def replace(module: Any) -> Any:
        if not wanted(module):
            return None
        return mixed_in(_Watched, module, _calls=calls, _original=module)

    return twin_of(model, replace)
