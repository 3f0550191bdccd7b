"""A model's weights and its sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from weakref import ref

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE
from mlx_lm.utils import load_config, load_model, load_tokenizer

from tokalign.errors import (
    IncompatibleError,
    MissingAssetError,
    OutputError,
    UsageError,
    in_one_line,
    is_out_of_memory,
)
from tokalign.runtime.rounds import UNBOUNDED
from tokalign.storage import appearing

MODEL_ERRORS = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, AssertionError),
)
"""What mlx-lm raises for settings and weights that are missing, damaged or garbled."""

_QUANTIZED = (nn.QuantizedLinear, nn.QuantizedEmbedding)


def load_weights(
    folder: Path,
    *,
    dtype: str | None = None,
    adapter: Path | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """Load an mlx-lm model and its configuration from a local folder.

    dtype: "float32" makes passes agree on every choice, however many rows they have. adapter: a
    folder that `mlx_lm.lora` wrote. trust_remote_code: run the Python file that the configuration
    names as the model's architecture.
    Raises: MissingAssetError for a folder without what mlx-lm can read; UsageError for a model that
    has code of its own, unless that is trusted; IncompatibleError for an adapter that does not fit.
    """
    own_code = read_config(folder).get("model_file")
    if own_code is not None and not trust_remote_code:
        raise UsageError(
            f"{folder} brings its own code, {own_code}, which would run with your rights; "
            "read it, and give --trust-remote-code if you trust it"
        )
    with _loading(folder):
        model, config = load_model(folder, trust_remote_code=trust_remote_code)
    if adapter is not None:
        _lay_over(model, adapter)
    if dtype is not None:
        model.set_dtype(getattr(mx, dtype))
    mx.eval(model.state)  # what is still lazy can be computed in this thread only
    with _loading(folder):
        _require_logits(model)
    return model, config


def _require_logits(model: Any) -> None:
    """Damaged settings, such as those of rotary embeddings, are used in a pass only. Raises:
    ValueError for logits that are NaN or all the same; what the pass raises."""
    logits = model(mx.array([[0, 0]]), cache=make_prompt_cache(model))
    if not logits.min() < logits.max():
        raise ValueError("its logits tell nothing: config.json or the weights are damaged")


@contextmanager
def _loading(folder: Path) -> Iterator[None]:
    """Raises: MissingAssetError for what mlx-lm finds missing, damaged or garbled; OutputError if
    mlx cannot keep what it compiles."""
    try:
        yield
    except MODEL_ERRORS as error:
        if is_out_of_memory(error):  # the files may be sound
            raise
        told = in_one_line(error)
        if told.startswith(("filesystem error", "[Compile")):
            remedy = "set TMPDIR to a folder that you may write to, with room"
            raise OutputError(f"mlx cannot compile ({told}); {remedy}") from error
        remedy = (
            "fetch it again, or convert it with: mlx_lm.convert --hf-path REPOSITORY --mlx-path "
            "FOLDER"
        )
        if escape(str(folder)) != str(folder):
            remedy = "give it a path without [, * and ?, which mlx-lm takes for a pattern"
        raise MissingAssetError(
            f"{folder} holds no model that mlx-lm can load ({told}); {remedy}"
        ) from error


def require_adapter(adapter: Path) -> None:
    """Raises: MissingAssetError for a folder without one."""
    files = "adapter_config.json", "adapters.safetensors"
    missing = [name for name in files if not (adapter / name).is_file()]
    if missing:
        raise MissingAssetError(
            f"{adapter} lacks {', '.join(missing)}; give the folder that mlx_lm.lora wrote "
            "(its --adapter-path)"
        )


def _lay_over(model: Any, adapter: Path) -> None:
    """Raises: as `require_adapter`; IncompatibleError if it does not fit."""
    from mlx_lm.tuner.utils import load_adapters

    require_adapter(adapter)
    try:
        load_adapters(model, str(adapter))
    except (ValueError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        raise IncompatibleError(
            f"the adapter in {adapter} does not fit this model ({in_one_line(error)}); "
            "give the model that it was trained on"
        ) from error
    model.eval()


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a model's folder as mlx-lm reads it; {} if there is none. Raises:
    MissingAssetError."""
    if not (folder / "config.json").is_file():
        return {}
    with _loading(folder):
        return {**load_config(folder)}


def ends_of_mlx_lm(
    folder: Path, config: Mapping[str, Any], *, trust_remote_code: bool = False
) -> frozenset[int]:
    """The ids at which mlx-lm ends an output of the model in `folder`. config: of that model."""
    more = {"trust_remote_code": True} if trust_remote_code else None
    theirs = load_tokenizer(folder, more, eos_token_ids=config.get("eos_token_id"))
    return frozenset(theirs.eos_token_ids)


def default_dtype() -> str | None:
    """The number format to compute in if none is asked for; None is that of the weights. On a CPU
    float16 is slower, and in float32 choices do not depend on the rows of a pass."""
    return "float32" if mx.default_device().type == mx.cpu else None


def weights_fingerprint(model: Any) -> str:
    """A digest of what a pass's cost depends on: names, shapes and number formats of weights."""
    weights = sorted((name, w.shape, str(w.dtype)) for name, w in tree_flatten(model.parameters()))
    return sha256(repr(weights).encode()).hexdigest()[:16]


def content_fingerprint(model: Any) -> str:
    """A digest of names, shapes and up to 64 evenly spaced values of every weight.

    Values are compared in float16, so weights have the same one in another number format. Weights
    that were fine-tuned, or quantized otherwise, have another one.
    """
    digest = sha256()
    for name, weight in sorted(tree_flatten(model.parameters())):
        flat = weight.reshape(-1)
        # A copy, because CUDA would move the whole weight to the host to read a view of it.
        values = mx.contiguous(flat[:: max(1, flat.size // 64)][:64])
        if mx.issubdtype(values.dtype, mx.floating):
            values = values.astype(mx.float16)
        digest.update(repr((name, weight.shape, values.tolist())).encode())
    return digest.hexdigest()


def write_weights(path: Path, weights: dict[str, Any], notes: dict[str, str] | None = None) -> None:
    """Write a safetensors file, and the folders it lies in. Raises: UsageError or OutputError if it
    cannot be written."""
    # An open file, not a path: mlx would hide why a write failed.
    with appearing(path, parents=True) as temporary, temporary.open("wb") as file:
        mx.save_safetensors(file, weights, notes)


def weight_bytes(model: Any) -> int:
    """How many bytes of weights a pass has to read."""
    return sum(weight.nbytes for _, weight in tree_flatten(model.parameters()))


def number_format(model: Any) -> tuple[str, int]:
    """In what a model computes, such as "float16", and the bits that most of its weights have."""
    bytes_of: Counter[str] = Counter()
    for _, weight in tree_flatten(model.parameters()):
        if mx.issubdtype(weight.dtype, mx.floating):
            bytes_of[str(weight.dtype).rpartition(".")[2]] += weight.nbytes
    dtype = bytes_of.most_common(1)[0][0]
    bits = Counter(module.bits for module in model.modules() if isinstance(module, _QUANTIZED))
    return dtype, bits.most_common(1)[0][0] if bits else {"float32": 32}.get(dtype, 16)


T = TypeVar("T")


def once_per_model(find: Callable[[Any], T]) -> Callable[[Any], T]:
    """Call a function of a model once for each, and forget its result with the model."""
    known: dict[int, tuple[Any, T]] = {}

    @wraps(find)
    def found(model: Any) -> T:
        key = id(model)  # modules are dicts, so they cannot be keys
        entry = known.get(key)
        if entry is None or entry[0]() is not model:
            known[key] = entry = ref(model, lambda _: known.pop(key, None)), find(model)
        return entry[1]

    return found


def vocabulary_size(model: Any) -> int:
    """How many ids a model's embeddings have; padded models have more than their tokenizer."""
    known = _argument(model, "vocab_size")
    return int(embedding_of(model).weight.shape[0]) if known is None else known


def context_length(model: Any) -> int:
    """How many ids a model can hold; without a bound if its arguments name none."""
    return _argument(model, "max_position_embeddings") or UNBOUNDED


def even_length(model: Any) -> int:
    """Longest context whose logits do not depend on the number of rows in the pass: beyond its
    bound a dynamic rotary embedding turns all rows of a pass by where the pass ends."""
    modules = model.modules() if isinstance(model, nn.Module) else []
    ropes = (module for module in modules if isinstance(module, DynamicNTKScalingRoPE))
    return min((int(rope.max_position_embeddings) - 1 for rope in ropes), default=UNBOUNDED)


def embedding_of(model: Any) -> Any:
    """The embedding of a model's ids: as many and as wide as the arguments say, else the largest.
    Other tables are of positions, or for what gemma4's layers read besides."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.QuantizedEmbedding)]
    wanted = _argument(model, "vocab_size"), _argument(model, "hidden_size")

    def rank(table: Any) -> tuple[int, int]:
        count, width = table.weight.shape
        width = table.dims if isinstance(table, nn.QuantizedEmbedding) else width
        return (count == wanted[0]) + (width == wanted[1]), count

    return max(tables, key=rank)


def _argument(model: Any, name: str) -> int | None:
    """A number in a model's arguments, which models of several parts nest."""
    for holder in (getattr(model, "args", None), getattr(model, "config", None)):
        nested = getattr(holder, "text_config", None)
        value = getattr(holder, name, None) or getattr(nested, name, None)
        value = value or (nested.get(name) if isinstance(nested, dict) else None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
