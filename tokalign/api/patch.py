"""tokalign inside mlx-lm's own programs: its command line, chat and server.

import tokalign
tokalign.patch_mlx_lm()
from mlx_lm.server import main
main()
"""

from __future__ import annotations

import sys
from functools import wraps
from importlib import import_module
from inspect import signature
from typing import Any

from tokalign.api import text
from tokalign.api.objects import OF_A_DRAFT_MODEL, remember_tokenizer, tokenizer_of
from tokalign.errors import BundleError, MissingAssetError, UsageError

_PROGRAMS = ("mlx_lm.generate", "mlx_lm.chat", "mlx_lm.cache_prompt", "mlx_lm.server")
"""The modules of mlx-lm that import `load` and `stream_generate` under their own names."""


class _AnySize(int):
    """A vocabulary size that equals every other, as two tokenizers need not agree."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _agree_with_any(tokenizer: Any) -> None:
    """Let a draft model's vocabulary pass mlx-lm's check that it has the target's size."""
    size = property(lambda self: _AnySize(self._tokenizer.vocab_size))
    tokenizer.__class__ = type(type(tokenizer).__name__, (type(tokenizer),), {"vocab_size": size})


def _own_draft_model(keywords: dict[str, Any]) -> dict[str, Any]:
    """Arguments without a draft model whose tokenizer mlx-lm would have refused."""
    draft = keywords.get("draft_model")
    size = getattr(None if draft is None else tokenizer_of(draft), "vocab_size", None)
    if size is not None and int(size) == int(keywords["tokenizer"].vocab_size):
        return keywords
    return {**keywords, "draft_model": None}


def patch_mlx_lm(**options: Any) -> None:
    """Have mlx-lm's own programs generate with tokalign, with draft models of any tokenizer.

    What tokalign cannot generate, mlx-lm generates as before; a line on stderr says so.
    mlx-lm's server then serves one request at a time, as its batches know no drafts.

    options: keywords of `tokalign.stream_generate` for every generation, whatever the program says,
    such as its `--num-draft-tokens` of 3. Another call replaces them. Raises: TypeError for what is
    no such keyword.
    """
    signature(text.stream_generate).bind_partial(**options)
    printed = set[str]()

    def instead(error: Exception, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Generate with mlx-lm after an error that is not the caller's."""
        if options and isinstance(error, UsageError | MissingAssetError | BundleError):
            raise error
        keywords = signature(mlx_lm_generate).bind(*args, **given).arguments
        keywords.update(keywords.pop("kwargs", {}))
        line = f"tokalign: mlx-lm decodes this alone, as before: {error or type(error).__name__}"
        if line not in printed:
            printed.add(line)
            print(line, file=sys.stderr)
        return mlx_lm_generate(**_own_draft_model(keywords))

    @wraps(text.stream_generate)
    def stream_generate(*args: Any, **given: Any) -> Any:
        known = signature(mlx_lm_generate).bind_partial(*args, **given).arguments
        has_draft = {**known, **known.get("kwargs", {})}.get("draft_model") is not None
        more = {n: v for n, v in options.items() if has_draft or n not in OF_A_DRAFT_MODEL}
        responses = None
        try:
            responses = text.stream_generate(*args, **{**given, **more})
            first = next(responses, None)
        except Exception as error:
            if responses is not None and given.get("prompt_cache") is not None:
                raise  # the caller's cache may have been touched
            yield from instead(error, args, given)
            return
        if first is not None:
            yield first
        yield from responses

    @wraps(text.load)
    def load(*args: Any, **given: Any) -> Any:
        loaded = mlx_lm_load(*args, **given)
        remember_tokenizer(loaded[0], loaded[1])
        _agree_with_any(loaded[1])
        return loaded

    utils = import_module("mlx_lm.utils")
    generation = import_module("mlx_lm.generate")
    mlx_lm_load = getattr(utils.load, "__wrapped__", utils.load)
    mlx_lm_generate = getattr(generation.stream_generate, "_mlx_lm", generation.stream_generate)
    stream_generate._mlx_lm = mlx_lm_generate  # type: ignore[attr-defined]
    load.__wrapped__ = mlx_lm_load
    # mlx-lm's server sets this for each model that it loads.
    provider = import_module("mlx_lm.server").ModelProvider
    provider.is_batchable = property(lambda _self: False, lambda _self, _value: None)
    package = import_module("mlx_lm")
    for module in (package, utils, *map(import_module, _PROGRAMS)):
        for name, function in (("load", load), ("stream_generate", stream_generate)):
            if hasattr(module, name):
                setattr(module, name, function)
