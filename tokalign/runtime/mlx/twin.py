"""Twins of models: other module objects that share all weights, with some modules replaced.

A model that several sessions use at once is never changed, and no model's source is touched: what a
session needs otherwise is otherwise in its own twin.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, TypeAlias

import mlx.nn as nn

Replace: TypeAlias = Callable[[Any], Any]
"""Given a module of the original, the module in its place; None to copy it."""


def twin_of(model: Any, replace: Replace) -> Any:
    """A twin of `model`. A module met twice is replaced or copied once.

    Making one copies module objects, not arrays: 4 ms for 650 modules.
    """
    return _twin(model, replace, {})


def _twin(value: Any, replace: Replace, made: dict[int, Any]) -> Any:
    if id(value) not in made:
        if isinstance(value, nn.Module):
            replaced = replace(value)
            made[id(value)] = twin = copy(value) if replaced is None else replaced
            if replaced is None:
                for name, child in value.items():  # a module is a dict of its arrays and modules
                    twin[name] = _twin(child, replace, made)
        elif type(value) in (list, tuple):
            made[id(value)] = type(value)([_twin(child, replace, made) for child in value])
        elif isinstance(value, dict):
            made[id(value)] = {k: _twin(child, replace, made) for k, child in value.items()}
        else:
            return value
    return made[id(value)]
