"""tokalign inside mlx-lm's own programs: its command line, chat and server.

import tokalign
tokalign.patch_mlx_lm()
from mlx_lm.server import main
main()
"""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from inspect import signature
from typing import Any

from tokalign.api import text
from tokalign.api.objects import remember_tokenizer

_PROGRAMS = ("mlx_lm.generate", "mlx_lm.chat", "mlx_lm.cache_prompt", "mlx_lm.server")
"""The modules of mlx-lm that import `load` and `stream_generate` under their own names."""


class _AnySize(int):
    """A vocabulary size that equals every other, as two tokenizers need not agree any more."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _agree_with_any(tokenizer: Any) -> None:
    """Have mlx-lm's check that a draft model's vocabulary is of the target's size pass."""
    size = property(lambda self: _AnySize(self._tokenizer.vocab_size))
    tokenizer.__class__ = type(type(tokenizer).__name__, (type(tokenizer),), {"vocab_size": size})


def patch_mlx_lm(**options: Any) -> None:
    """Have mlx-lm's own programs generate with tokalign, with draft models of any tokenizer.

    options: keywords of `tokalign.stream_generate` for every generation, such as `dictionary`.
    mlx-lm's functions are replaced in its modules for the rest of the process. Calling this again
    replaces the options.
    Raises: TypeError for what is no keyword of `tokalign.stream_generate`.
    """
    signature(text.stream_generate).bind_partial(**options)

    @wraps(text.stream_generate)
    def stream_generate(*args: Any, **given: Any) -> Any:
        return text.stream_generate(*args, **{**options, **given})

    @wraps(text.load)
    def load(*args: Any, **given: Any) -> Any:
        loaded = mlx_lm_load(*args, **given)
        remember_tokenizer(loaded[0], loaded[1])
        _agree_with_any(loaded[1])
        return loaded

    utils = import_module("mlx_lm.utils")
    mlx_lm_load = getattr(utils.load, "__wrapped__", utils.load)
    load.__wrapped__ = mlx_lm_load
    package = import_module("mlx_lm")
    for module in (package, utils, *map(import_module, _PROGRAMS)):
        for name, function in (("load", load), ("stream_generate", stream_generate)):
            if hasattr(module, name):
                setattr(module, name, function)
