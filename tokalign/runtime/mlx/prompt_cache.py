"""Prompt caches in files, in mlx-lm's format, and what a file has to fit.

A file holds the key-value cache of a prompt. What `write_prompt_cache` adds to mlx-lm's metadata
says which weights and which tokenizer it belongs to and which ids it holds, so that a prompt can be
continued by its content, and no file is used where it does not belong. It may also hold what the
target found likely after each id of the prompt, to draft from. mlx-lm reads these files,
and files of `mlx_lm.cache_prompt` are read here: they name their model, but not their ids.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    QuantizedKVCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)

from tokalign.arguments import as_path
from tokalign.atomic_file import appearing
from tokalign.errors import (
    BundleError,
    FingerprintError,
    IncompatibleError,
    MissingAssetError,
    UsageError,
)
from tokalign.runtime.draft.logit_store import LogitStore
from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.held_ids import positions, remember
from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.mlx.model_arguments import vocabulary_size
from tokalign.runtime.mlx.weights import content_fingerprint
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.decoder import LanguageModel

_SUFFIX = ".safetensors"
_REMEDY = "write it again with: tokalign cache-prompt"
_PREFIX = "tokalign_"
_WEIGHTS, _TOKENIZER, _IDS, _OPEN, _LOGITS, _DIGEST = (
    _PREFIX + name for name in ("weights", "tokenizer", "ids", "open", "logits", "digest")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCache:
    """A cache read from a file.

    layers: as mlx-lm's functions take them. model: the name that the file gives for its model.
    ids: what the cache holds, None if the file does not say.
    is_open: whether it ends in a message of the user, which may go on. logits: what the target
    found likely after each id of the prompt, None if the file does not say.
    """

    layers: list[Any]
    model: str
    ids: tuple[TargetId, ...] | None
    is_open: bool
    logits: LogitStore | None = None

    @property
    def kv_bits(self) -> tuple[int, int] | None:
        """Bits and group size if it is quantized, else None."""
        for layer in leaves_of(self.layers):
            if isinstance(layer, QuantizedKVCache):
                return int(layer.bits), int(layer.group_size)
        return None

    def fitting(self, asked: CacheOptions) -> CacheOptions:
        """The options with which it can be continued: a quantized cache stays quantized.

        Raises: UsageError if it is to be quantized in another way.
        """
        if self.kv_bits is None:
            return asked
        bits, group_size = self.kv_bits
        if asked.kv_bits is not None and self.kv_bits != (asked.kv_bits, asked.kv_group_size):
            raise UsageError(
                f"the prompt cache is quantized to {bits} bits in groups of {group_size}, and not "
                f"to {asked.kv_bits} in groups of {asked.kv_group_size}; leave --kv-bits out, or "
                f"{_REMEDY}"
            )
        return replace(asked, kv_bits=bits, kv_group_size=group_size, quantized_kv_start=0)


def write_prompt_cache(
    path: Path,
    layers: list[Any],
    ids: Sequence[TargetId],
    model: LanguageModel[TargetId],
    *,
    is_open: bool = True,
    logits: LogitStore | None = None,
) -> None:
    """Write the cache of `ids`, whole or not at all.

    path: its name ends in .safetensors. is_open, logits: as of `PromptCache`.
    Raises: UsageError for another name, and if the file cannot be written.
    """
    require_suffix(path)
    told = {
        "model": "" if model.folder is None else _name_of(model.folder),
        "tokenizer_config": "{}",
        _WEIGHTS: content_fingerprint(model.model),
        _TOKENIZER: model.tokenizer.fingerprint,
        _IDS: json.dumps([int(i) for i in ids]),
        _OPEN: json.dumps(is_open),
    }
    if logits is not None:
        told[_LOGITS] = b64encode(logits.to_bytes()).decode()
    told[_DIGEST] = _digest(layers, told)
    # An open file, not a path: mlx would hide why a write failed.
    with appearing(path) as temporary, temporary.open("wb") as file:
        save_prompt_cache(file, layers, told)


def read_prompt_cache(path: Path, model: LanguageModel[TargetId]) -> PromptCache:
    """Read a file for this model.

    Raises: MissingAssetError if there is none; BundleError for one that is damaged or no prompt
    cache; FingerprintError for one of another tokenizer, IncompatibleError for one of another
    model; UsageError for a name that mlx-lm cannot read either.
    """
    require_suffix(path)
    if not path.is_file():
        raise MissingAssetError(f"there is no prompt cache {path}; {_REMEDY}")
    try:
        layers, told = load_prompt_cache(str(path), return_metadata=True)
        ours = any(name.startswith(_PREFIX) for name in told)
        ids = tuple(json.loads(told[_IDS])) if ours else None
        is_open = bool(json.loads(told[_OPEN])) if ours else True
        mx.eval([layer.state for layer in layers])
        sound = ids is None or _is_as_written(layers, told, len(ids))
    except Exception as error:  # in a damaged file anything may fail inside mlx and mlx-lm
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BundleError(f"{path} cannot be read as a prompt cache ({reason}); {_REMEDY}") from (
            error
        )
    if not sound:
        raise BundleError(f"{path} is damaged: it does not hold what was written; {_REMEDY}")
    _require_same_model(path, len(layers), told, model)
    if ids is not None:
        remember(layers, ids)
    return PromptCache(
        layers=layers,
        model=told["model"],
        ids=ids,
        is_open=is_open,
        logits=_logits_of(path, told, model),
    )


def _logits_of(
    path: Path, told: Mapping[str, str], model: LanguageModel[TargetId]
) -> LogitStore | None:
    if _LOGITS not in told:
        return None
    size = vocabulary_size(model.model)
    try:
        return LogitStore.from_bytes(b64decode(told[_LOGITS]), vocabulary_size=size)
    except ValueError as error:
        raise BundleError(f"{path} cannot be read as a prompt cache ({error}); {_REMEDY}") from None


def require_suffix(path: Path) -> None:
    """Raises: UsageError for a name that mlx-lm does not take for a prompt cache."""
    if path.suffix != _SUFFIX:
        raise UsageError(
            f"{path} is no name for a prompt cache; give one that ends in {_SUFFIX}, as for mlx-lm"
        )


def _is_as_written(layers: list[Any], told: Mapping[str, str], count: int) -> bool:
    said = {name: text for name, text in told.items() if name != _DIGEST}
    return told[_DIGEST] == _digest(layers, said) and positions(layers) in (None, count)


def _digest(layers: list[Any], told: Mapping[str, str]) -> str:
    """Of everything in a file: what is told of the cache, and the state of its layers."""
    digest = sha256(json.dumps([sorted(told.items()), [type(c).__name__ for c in layers]]).encode())
    for name, value in tree_flatten([layer.state for layer in layers]):
        digest.update(name.encode())
        if isinstance(value, mx.array):
            digest.update(repr((value.shape, str(value.dtype))).encode())
            digest.update(np.array(mx.contiguous(value).view(mx.uint8)).tobytes())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


def _require_same_model(
    path: Path, layers: int, told: Mapping[str, str], model: LanguageModel[TargetId]
) -> None:
    """By fingerprints where the file has them, else by the model's name and layers."""
    if _TOKENIZER in told and told[_TOKENIZER] != model.tokenizer.fingerprint:
        raise FingerprintError(
            f"the prompt cache {path}",
            expected=told[_TOKENIZER],
            found=model.tokenizer.fingerprint,
            remedy="tokalign cache-prompt",
        )
    if _WEIGHTS in told:
        if told[_WEIGHTS] != content_fingerprint(model.model):
            raise IncompatibleError(
                f"the prompt cache {path} was computed with other weights, those of "
                f"{told['model']} in the number format that was chosen for it; give the same "
                f"--target, --adapter-path and --dtype, or {_REMEDY}"
            )
    elif model.folder is not None and not _is_name_of(model.folder, told["model"]):
        raise IncompatibleError(
            f"the prompt cache {path} is of the model {told['model']}, and not of {model.folder}; "
            f"give that model, or {_REMEDY}"
        )
    own = len(make_prompt_cache(model.model))
    if layers != own:
        raise IncompatibleError(
            f"the prompt cache {path} has {layers} layers, but the model has {own}; {_REMEDY}"
        )


def _name_of(folder: Path) -> str:
    """The name by which mlx-lm finds a model: its Hub repository or its folder."""
    for part in folder.parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)
    return str(folder.resolve())


def _is_name_of(folder: Path, name: str) -> bool:
    """Whether mlx-lm would find this folder under `name`."""
    return name == _name_of(folder) or as_path(name).resolve() == folder.resolve()
