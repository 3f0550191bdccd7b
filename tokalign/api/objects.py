"""mlx-lm's and transformers' objects as tokalign's: models, tokenizers, prompts, caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import ref

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import greedy_sampler
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper

from tokalign.errors import (
    CacheError,
    TokalignError,
    UsageError,
    require_callable,
    require_callables,
    require_kind,
    require_text,
    shown,
)
from tokalign.names.registry import local_folder, resolve_tokenizer
from tokalign.runtime.chat import encode_prompt
from tokalign.runtime.decoder import Decoder, LanguageModel, stop_ids
from tokalign.runtime.mlx.sampling import CallableSampler, LogitsProcessor, Sampler, Sampling
from tokalign.runtime.mlx.weights import read_config
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.foreign import ForeignTokenizer
from tokalign.tokenizer.reference import encode_with
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer

AnyTokenizer = Any
"""A tokalign `Tokenizer`, a path to a model's folder, or mlx-lm's or transformers' tokenizer."""

OF_A_DRAFT_MODEL = ("draft_tokenizer", "draft_prompt", "translation", "alignment")
"""Keywords that do nothing without a draft model."""

_LOADED_WITH = "tokalign_tokenizer"
_READ_AS = "_tokalign_tokenizer"


def check_model(name: str, model: Any) -> None:
    """Raises: UsageError for what is no model, such as the pair that `mlx_lm.load` returns."""
    if not callable(model) or not hasattr(model, "layers"):
        raise UsageError(f"{name} has to be a model as mlx_lm.load returns it, not {shown(model)}")


def check_draft_model(draft_model: Any, **given: Any) -> None:
    """Raises: UsageError for a keyword that does nothing because there is no draft model."""
    for name in OF_A_DRAFT_MODEL:
        if draft_model is None and given.get(name) is not None:
            raise UsageError(
                f"{name} does nothing without draft_model; pass that too, or leave {name} out"
            )


def check_stream(stream: Any) -> None:
    """Raises: UsageError for what is neither None nor a stream or a device of mlx."""
    with suppress(TypeError, ValueError):  # the latter for a device that is not here
        if not isinstance(stream, int):  # mlx takes True for a GPU
            with nullcontext() if stream is None else mx.stream(stream):
                return
    raise UsageError(f"stream has to be a stream of mlx on this machine, not {shown(stream)}")


def remember_tokenizer(model: Any, tokenizer: AnyTokenizer) -> None:
    """Note a model's tokenizer for callers that pass the model alone."""
    setattr(model, _LOADED_WITH, tokenizer)


def tokenizer_of(model: Any) -> AnyTokenizer:
    """The tokenizer that a model was loaded with, if that was noted."""
    return getattr(model, _LOADED_WITH, None)


def language_model(model: Any, tokenizer: AnyTokenizer, role: str = "") -> LanguageModel[Any]:
    """A model and its tokenizer. An output ends at the ids at which mlx-lm ends it.

    With a path or a tokalign `Tokenizer` it ends as on the command line. role: "draft_" for a draft
    model, whose tokenizer `load` may have noted. Raises: UsageError; as `as_tokenizer`.
    """
    check_model(f"{role}model", model)
    if role and tokenizer is None and (tokenizer := tokenizer_of(model)) is None:
        raise UsageError(
            "draft_tokenizer is missing; pass the draft model's tokenizer, or "
            "draft_tokenizer=tokenizer if the two models share one"
        )
    ours, folder = as_tokenizer(tokenizer, f"{role}tokenizer"), folder_of(tokenizer)
    ends = getattr(tokenizer, "eos_token_ids", None)
    if _is_transformers(tokenizer):
        ends = {tokenizer.eos_token_id} - {None}
    elif ends is None:
        ends = stop_ids(ours, {} if folder is None else read_config(folder))
    return LanguageModel(model=model, tokenizer=ours, folder=folder, stop_ids=frozenset(ends))


def detokenizer_of(tokenizer: AnyTokenizer) -> Any:
    """What writes text as mlx-lm does, which wraps transformers' tokenizers; else None."""
    if _is_transformers(tokenizer):
        tokenizer = TokenizerWrapper(tokenizer)
    return getattr(tokenizer, "detokenizer", None)


def drops_first_space(detokenizer: Any) -> bool:
    """Whether mlx-lm's text begins without the space of its first token."""
    return bool(
        getattr(detokenizer, "trim_space", isinstance(detokenizer, BPEStreamingDetokenizer))
    )


def _is_transformers(tokenizer: AnyTokenizer) -> bool:
    return hasattr(tokenizer, "convert_ids_to_tokens") and not hasattr(tokenizer, "detokenizer")


def as_tokenizer(tokenizer: AnyTokenizer, argument: str = "tokenizer") -> Tokenizer[Any]:
    """The tokalign tokenizer that an object is, wraps or names; `argument` is its name for errors.

    It is read from the file that it was loaded from. One that exists in memory only, or has more
    tokens than the file, is saved to a temporary folder and read from there. What only encodes and
    decodes is used by its ids. Raises: UsageError; as `resolve_tokenizer`.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(tokenizer, str | Path) and str(tokenizer) not in ("", "."):
        return _resolve(str(tokenizer))
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    known: tuple[int | None, Tokenizer[Any]] | None = getattr(tokenizer, _READ_AS, None)
    if known is None or known[0] != size:
        known = size, _read_object(tokenizer, argument)
        setattr(tokenizer, _READ_AS, known)
    return known[1]


def _read_object(tokenizer: Any, argument: str) -> Tokenizer[Any]:
    name = getattr(tokenizer, "name_or_path", None)
    if name:
        try:
            found = _resolve(str(name))
        except TokalignError:
            if not hasattr(tokenizer, "encode"):
                raise
        else:
            if not hasattr(tokenizer, "__len__") or len(tokenizer) <= len(found.vocabulary):
                return found
    if hasattr(tokenizer, "save_pretrained"):
        with TemporaryDirectory() as folder, suppress(TokalignError):
            tokenizer.save_pretrained(folder)
            return read_tokenizer(folder)
    if callable(getattr(tokenizer, "encode", None)) and hasattr(tokenizer, "decode"):
        return ForeignTokenizer(tokenizer)
    raise UsageError(
        f"{argument}: cannot tell which tokenizer {shown(tokenizer)} is; "
        "pass a path to the model's folder, a tokalign Tokenizer, or what has encode and decode"
    )


def folder_of(tokenizer: AnyTokenizer) -> Path | None:
    """The folder that a tokenizer was loaded from, if it is one on this machine."""
    named = isinstance(tokenizer, str | Path)
    name = str(tokenizer if named else getattr(tokenizer, "name_or_path", None) or "")
    return local_folder(name) if name else None


@lru_cache(maxsize=8)
def _resolve(name: str) -> Tokenizer[Any]:
    return resolve_tokenizer(name).tokenizer


def encode(name: str, tokenizer: AnyTokenizer, prompt: str | Sequence[int]) -> list[Any]:
    """The ids of a prompt: a text, ids, or an array of ids. A text is encoded by the object that
    was given, as in mlx-lm: it may have options that its file has not. Raises: UsageError."""
    if not isinstance(prompt, str):
        return read_ids(name, prompt)
    require_text(name, prompt)
    if isinstance(tokenizer, Tokenizer | str) or not hasattr(tokenizer, "encode"):
        return encode_prompt(as_tokenizer(tokenizer), prompt)
    bos = getattr(tokenizer, "bos_token", None)
    return encode_with(tokenizer, prompt, around=bos is None or not prompt.startswith(bos))


def read_ids(name: str, given: Any) -> list[int]:
    """The ids in a list, or in an array of mlx or numpy. Raises: UsageError."""
    values = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UsageError(f"{name} has to be a text or a list of ids, not {shown(given)}")
    ids = list(values)
    for place, value in enumerate(ids):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise UsageError(f"{name}[{place}] has to be an id, not {shown(value)}")
    return [int(i) for i in ids]


def split_cache(prompt_cache: Any, decoder: Decoder) -> tuple[list[Any] | None, list[Any] | None]:
    """The target's layers of a prompt cache, and the draft's, which follow them as in mlx-lm. A
    generation that was left at a token, and uses them, ends. Raises: UsageError; CacheError."""
    if prompt_cache is None:
        return None, None
    count = len(make_prompt_cache(decoder.target.model))  # some layers share one, or have none
    is_cache = isinstance(prompt_cache, list) and all(
        hasattr(layer, "is_trimmable") for layer in prompt_cache
    )
    if not is_cache or len(prompt_cache) < count:
        more = "" if decoder.draft is None else ", and then the draft model's"
        raise UsageError(
            f"prompt_cache has to be a list of {count} caches{more}, as make_prompt_cache of "
            "mlx-lm returns them"
        )
    if (user := getattr(prompt_cache[0], _USER, None)) is not None:
        if (call := user()) is not None:
            call.end_use(prompt_cache)
        if hasattr(prompt_cache[0], _USER):
            raise CacheError(
                "prompt_cache was copied or left while a generation used it; close that one first, "
                "or make a new cache and give the whole text"
            )
    return prompt_cache[:count], prompt_cache[count:] or None


_USER = "tokalign_user"
"""On the first layer of a prompt cache: a weak reference to the `Call` that uses it."""


def note_user(prompt_cache: list[Any], call: Any | None) -> None:
    """Note who uses a prompt cache; None for nobody any more."""
    if call is None:
        vars(prompt_cache[0]).pop(_USER, None)
    else:
        setattr(prompt_cache[0], _USER, ref(call))


def make_sampler(
    sampling: Sampling | None,
    sampler: Callable[[Array], Array] | None,
    processors: Sequence[LogitsProcessor] | None,
) -> Sampler:
    """The target's choice, from `Sampling` or one of mlx-lm's samplers. Raises: UsageError."""
    require_kind("sampling", sampling, Sampling)
    processors = () if processors is None else processors
    require_callables("logits_processors", processors)
    if sampler is None or (sampler is greedy_sampler and sampling is None):
        sampling = sampling or Sampling()
        return replace(sampling, processors=(*sampling.processors, *processors))
    require_callable("sampler", sampler)
    if sampling is not None:
        raise UsageError("sampler and sampling exclude each other; pass one of them")
    return CallableSampler(sampler, tuple(processors))
