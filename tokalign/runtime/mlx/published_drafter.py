"""Trained drafters as others publish them: reading their folders, and the parts that formats share.

A folder has a `config.json` and safetensors files. A key that may change what the network computes
and is not known is refused; the names of weights have to be exactly those of the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias, cast

import mlx.core as mx
import mlx.nn as nn
from msgspec import Meta, convert

from tokalign.errors import BundleError, IncompatibleError, TokalignError, shown
from tokalign.names.model_shape import layer_sizes
from tokalign.runtime.mlx.recurrent_drafter import TargetEnds
from tokalign.runtime.mlx.taps import KeptRows, taps_of
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.rounds import Array
from tokalign.storage import parse_json

_OF_LIBRARIES = {
    *("architectures", "auto_map", "attention_dropout", "dtype", "has_no_defaults_at_init"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "max_window_layers"),
    *("model_type", "pretraining_tp", "torch_dtype", "transformers_version", "use_cache"),
    # of generating, which a configuration has where all of its values were written
    *("_name_or_path", "id2label", "label2id", "length_penalty", "max_length", "num_beam_groups"),
    *("num_beams", "num_return_sequences", "repetition_penalty", "return_dict", "temperature"),
    *("top_k", "top_p", "typical_p"),
}
"""Keys of a `config.json` that do not change what a network computes."""


Size: TypeAlias = Annotated[int, Meta(ge=1, le=10_000_000)]
Layers: TypeAlias = Annotated[int, Meta(ge=1, le=1_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """The shape of a drafter beside its target, named as in a `config.json`; mlx-lm makes layers of
    it. draft_vocab_size: ids that its head knows."""

    rope_traditional: ClassVar[bool] = False

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Size
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: dict[str, Any] | None = None
    attention_bias: bool = False
    quantization: dict[str, Any] | None = None
    draft_vocab_size: Size
    target_hidden_size: Size
    num_target_layers: int | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Its fields in a configuration. Raises: KeyError, TypeError, ValueError."""
        if (activation := config.get("hidden_act", "silu")) != "silu":
            raise ValueError(f"hidden_act, of which only silu is run, not {shown(activation)}")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        sizes = layer_sizes(config) | {"rope_scaling": rope or None}
        given = {
            "draft_vocab_size": config["vocab_size"],
            "target_hidden_size": config["hidden_size"],
            "rope_theta": rope.get("rope_theta", 10000.0),
            **{key: value for key, value in sizes.items() if value is not None},
        }
        return convert(given, cls)


SHAPE_KEYS = {field.name for field in fields(DrafterShape)} | {"hidden_act", "rope_parameters"}
"""Keys that `DrafterShape.read` reads."""


def refuse(odd: Iterable[str]) -> None:
    """Raises: ValueError if there is something that is not run."""
    if odd := sorted(odd):
        raise ValueError(f"it has {', '.join(odd)}, which this version does not run")


def refuse_unknown(config: Mapping[str, Any], known: Set[str]) -> None:
    """Refuse a key that is on and neither known nor a library's."""
    refuse(key for key in config.keys() - known - _OF_LIBRARIES if config[key])


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raises: BundleError, with `name`, for what the body finds missing or cannot run."""
    try:
        yield
    except TokalignError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise BundleError(
            f"{name}: its config lacks or garbles {error}; fetch the drafter again"
        ) from error
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise BundleError(
            f"{name} cannot be run: {reason}; use another drafter, or leave --drafter out"
        ) from error


def read_drafter_json(folder: Path) -> dict[str, Any]:
    """The `config.json` of a folder. Raises: BundleError."""
    try:
        config = parse_json((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise BundleError(f"{folder}/config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise BundleError(f"{folder}/config.json is no object; give the folder of a drafter")
    return config


def read_weights(folder: Path) -> dict[str, Array]:
    """All weights of a folder, lazy. Raises: BundleError."""
    weights: dict[str, Array] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_arrays(file)
    if not weights:
        raise BundleError(f"{folder} has no safetensors files; fetch a version that has them")
    return weights


def load_arrays(file: Path) -> dict[str, Array]:
    """The arrays of a safetensors file, lazy. Raises: BundleError."""
    try:
        return cast("dict[str, Array]", mx.load(str(file)))
    except (RuntimeError, ValueError) as error:
        raise BundleError(f"{file}: {' '.join(str(error).split())}; fetch it again") from error


def target_ids(offsets: Array | None, count: int, size: int) -> Array | None:
    """The target's ids that a head of `count` ids knows, i + d2t[i]; None for all `size` of them.

    Raises: ValueError.
    """
    if offsets is None:
        if count == size:
            return None
        raise ValueError(f"its head knows {count} of {size} ids, and no d2t says which")
    ids = mx.arange(count) + offsets.astype(mx.int32) if offsets.shape == (count,) else None
    if ids is None or not 0 <= ids.min().item() <= ids.max().item() < size:
        raise ValueError("its d2t names ids that the target does not have")
    return ids


def places_of(ids: Array, size: int) -> Array:
    """For each id of a target, its place in the drafter's vocabulary; the one after it if none."""
    places = mx.full((size,), len(ids), mx.int32)
    places[ids] = mx.arange(len(ids), dtype=mx.int32)
    return places


def among_all(logits: Array, places: Array | None) -> Array:
    """f[..., draft vocabulary] -> f[..., vocabulary of the target], -inf for ids it does not know.

    places: from `places_of`; None where both are the same.
    """
    if places is None:
        return logits
    last = [(0, 0)] * (logits.ndim - 1)
    return mx.take(mx.pad(logits, [*last, (0, 1)], constant_values=-mx.inf), places, axis=-1)


class TapsDrafter(TrainedDrafter):
    """A drafter that reads the outputs of some of the target's layers. Its embedding and its head
    are the target's, or its own. Raises: IncompatibleError for a target of another size."""

    def __init__(self, config: DrafterShape, taps: Sequence[int], target: Any) -> None:
        super().__init__()
        self._shape, self._taps, self._ends = config, taps, TargetEnds.of(target)
        self._places: Array = None
        reads, layers = config.target_hidden_size, config.num_target_layers or len(target.layers)
        if (reads, layers) != (self._ends.hidden_size, len(target.layers)):
            raise IncompatibleError(
                f"the drafter is for a target with {layers} layers of width {reads}, and this one "
                f"has {len(target.layers)} of {self._ends.hidden_size}; give its own target"
            )
        self.watch(target)
        self.fc = nn.Linear(len(taps) * reads, config.hidden_size, bias=False)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def watch(self, model: Any) -> KeptRows:
        """See `TrainedDrafter`: the outputs of some layers."""
        return taps_of(model, self._taps)

    def own(self, *, embedding: bool = False, head: bool = False, ids: Array = None) -> None:
        """Give it an embedding or a head in the place of the target's. ids: i[draft vocabulary],
        the target's ids that its head knows; None for all in their order.

        Raises: IncompatibleError for one that would need the target's at another width.
        """
        shape, ends = self._shape, self._ends
        if not (embedding and head) and shape.hidden_size != ends.hidden_size:
            raise IncompatibleError(
                f"the drafter has the width {shape.hidden_size}, and its embedding or its head is "
                f"that of a target with {ends.hidden_size}; give its own target"
            )
        if embedding:
            self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        if head:
            self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)
        self._places = None if ids is None else places_of(ids, ends.vocabulary_size)

    def filled(self, weights: Mapping[str, Array], *, name: str) -> Self:
        """With the weights of a folder. Raises: BundleError, with `name`; as `own`."""
        parameters = {
            key: weight
            for key, weight in weights.items()
            if key not in ("d2t", "t2d") and not key.startswith("verifier_")
        }
        size, drafts = self._ends.vocabulary_size, self._shape.draft_vocab_size
        with reading(name):
            ids = target_ids(weights.get("d2t"), drafts, size)
        self.own(
            embedding="embed_tokens.weight" in weights, head="lm_head.weight" in weights, ids=ids
        )
        fill(self, parameters, self._shape.quantization, name=name)
        return self

    def embedded(self, ids: Array) -> Array:
        """i[...] -> f[..., width]."""
        return (self.embed_tokens if "embed_tokens" in self else self._ends.embed)(ids)

    def among_all(self, logits: Array) -> Array:
        """f[..., draft vocabulary] -> f[..., vocabulary of the target], -inf for ids that its head
        does not know."""
        return among_all(logits, self._places)


def fill(
    drafter: TrainedDrafter,
    weights: Mapping[str, Array],
    quantization: Mapping[str, Any] | None,
    *,
    name: str,
) -> None:
    """Give a drafter its weights, in the number format of its target unless they are quantized.

    Raises: BundleError, with `name`, for weights of another network.
    """
    if quantization:
        nn.quantize(
            drafter,
            group_size=int(quantization.get("group_size", 64)),
            bits=int(quantization.get("bits", 4)),
            mode=str(quantization.get("mode", "affine")),
            class_predicate=lambda path, _: f"{path}.scales" in weights,
        )
    with reading(name):
        drafter.load_weights([*weights.items()])
    drafter.eval()
    if not quantization:
        drafter.set_dtype(drafter.dtype)
    mx.eval(drafter.parameters())


def by_head(x: Array, dim: int) -> Array:
    """f[n, length, heads * dim] -> f[n, heads, length, dim]."""
    return x.reshape(*x.shape[:2], -1, dim).swapaxes(1, 2)
