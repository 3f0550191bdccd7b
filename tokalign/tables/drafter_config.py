"""Configurations of trained drafters as others publish them, read without any library of models.

A key that may change what the network computes and is not known is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from msgspec import Meta, convert

from tokalign.errors import BundleError, IncompatibleError, TokalignError, in_one_line, shown
from tokalign.names.model_shape import layer_sizes
from tokalign.storage import parse_json
from tokalign.tables.drafter_formats import DrafterFormat, drafter_format
from tokalign.tables.finding import HOW_TO_TRAIN, TRAINING_RECORD

_OF_LIBRARIES = {
    *("architectures", "auto_map", "attention_dropout", "dtype", "has_no_defaults_at_init"),
    *("initializer_range", "max_window_layers"),
    *("model_type", "pretraining_tp", "torch_dtype", "transformers_version", "use_cache"),
    # of generating, which a configuration has where all of its values were written
    *("id2label", "label2id", "length_penalty", "max_length", "num_beam_groups", "num_beams"),
    *("num_return_sequences", "repetition_penalty", "return_dict", "temperature", "top_k", "top_p"),
    *("typical_p",),
    # of the target, whose configuration a drafter's may be a copy of
    *("attention_head_dim", "cla_share_factor", "decoder_sparse_step", "dense_list", "modal_type"),
    *("norm_type", "org_vocab_size", "pool_type", "router_aux_loss_coef", "target_model_type"),
    *("truncated_vocab_size", "use_qk_norm", "use_rotary_pos_emb"),
}
"""Keys of a `config.json` that do not change what a network computes, beside those of ids, such as
`image_token_id`, and those of transformers itself, such as `_attn_implementation_autoset`."""

_MASKS = {"mask_token_id", "ptd_token_id"}
"""Keys of ids that a network reads."""


FULL, SLIDING = "full_attention", "sliding_attention"

LayerType: TypeAlias = Literal["full_attention", "sliding_attention"]
Size: TypeAlias = Annotated[int, Meta(ge=1, le=10_000_000)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=10_000_000)]
Layers: TypeAlias = Annotated[int, Meta(ge=1, le=1_000)]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=1e12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """The shape of a drafter beside its target, named as in a `config.json`; mlx-lm makes layers of
    it. draft_vocab_size: ids that its head knows. target_layer_ids: the target's layers whose
    outputs it reads; None for those before the third, the middle and the third last one."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Size
    rms_norm_eps: Positive
    max_position_embeddings: int
    rope_theta: Positive
    rope_scaling: dict[str, Any] | None = None
    rope_traditional: bool = False
    attention_bias: bool = False
    quantization: dict[str, Any] | None = None
    layer_types: tuple[LayerType, ...]
    sliding_window: Count | None = None
    draft_vocab_size: Size
    target_hidden_size: Size
    num_target_layers: int | None = None
    target_layer_ids: tuple[int, ...] | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Its fields in a configuration. Raises: KeyError, TypeError, ValueError."""
        if (activation := config.get("hidden_act", "silu")) != "silu":
            raise ValueError(f"hidden_act, of which only silu is run, not {shown(activation)}")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope = rope.get(SLIDING) or rope.get(FULL) or rope  # as `speculators`: of all layers then
        neox = config.get("rope_is_neox_style", config.get("is_neox_style"))
        sizes, types = layer_sizes(config), config.get("layer_types") or []
        if {*types} <= {FULL}:
            types = [FULL] * config["num_hidden_layers"]
        theta = rope.get("rope_theta") or sizes.get("rope_theta")
        sizes |= {"rope_scaling": rope or None, "rope_traditional": neox is False}
        given = {
            "draft_vocab_size": config["vocab_size"],
            "target_hidden_size": config["hidden_size"],
            **{key: value for key, value in sizes.items() if value is not None},
            "rope_theta": 10000.0 if theta is None else theta,
            "layer_types": types,
        }
        made = convert(given, cls)
        if made.num_attention_heads % made.num_key_value_heads:
            raise ValueError(
                f"it has {made.num_attention_heads} heads for {made.num_key_value_heads} of keys"
            )
        if len(made.layer_types) != made.num_hidden_layers:
            raise ValueError(f"its {made.num_hidden_layers} layers are of types {made.layer_types}")
        if SLIDING in made.layer_types and not made.sliding_window:
            raise ValueError("it has layers with a sliding window, and no sliding_window")
        return made

    @property
    def windows(self) -> tuple[int | None, ...]:
        """How many positions each layer sees; None for all."""
        return tuple(self.sliding_window if of == SLIDING else None for of in self.layer_types)

    def taps(self, layers: int) -> tuple[int, ...]:
        """The layers of so many whose outputs it reads."""
        return self.target_layer_ids or (1, layers // 2 - 1, layers - 4)

    def require_fit(self, *, layers: int, width: int, vocabulary: int) -> None:
        """Raises: IncompatibleError for a target with other layers, of another width, or with ids
        that its tables do not have."""
        own, taps = self.num_target_layers, self.taps(layers)
        named = ", ".join(map(str, taps))
        if self.target_hidden_size != width or own not in (None, layers):
            count = "" if own is None else f" with {own} layers"
            of = f"is for a target{count} of width {self.target_hidden_size}"
        elif not all(0 <= tap < layers for tap in taps):
            of = f"reads the outputs of layers {named}"
        elif len({*taps}) < len(taps):
            of = f"would read the outputs of layers {named}, one of them twice"
        elif self.vocab_size < vocabulary:
            of = f"is for a target with {self.vocab_size} ids"
        else:
            return
        raise IncompatibleError(
            f"the drafter {of}, and this target has {layers} layers of width {width} and "
            f"{vocabulary} ids; give its own"
        )


SHAPE_KEYS = {field.name for field in fields(DrafterShape)} - {"rope_traditional"} | {
    *("hidden_act", "is_neox_style", "rope_is_neox_style", "rope_parameters")
}
"""Keys that `DrafterShape.read` reads."""


def refuse(odd: Iterable[str]) -> None:
    """Raises: ValueError if there is something that is not run."""
    if odd := sorted(odd):
        raise ValueError(f"it has {', '.join(odd)}, which this version does not run")


def refuse_unknown(config: Mapping[str, Any], known: Set[str]) -> None:
    """Refuse a key that is on and neither known nor a library's."""
    # mlx-lm writes the settings under both names.
    if config.get("quantization_config") == config.get("quantization"):
        known = known | {"quantization_config"}
    further = {key for key in config if key.endswith("_id") or key.startswith("_")} - _MASKS
    refuse(key for key in config.keys() - known - _OF_LIBRARIES - further if config[key])


def known_format(config: Mapping[str, Any], name: str) -> DrafterFormat:
    """The format of a drafter. Raises: BundleError, with `name`, for one that is not run."""
    if (found := drafter_format(config)) is not None:
        return found
    of = config.get("speculators_model_type") or config.get("architectures") or config.get("format")
    of = " ".join(map(str, of)) if isinstance(of, list) else of
    says = f" (its config.json says {shown(of)})" if of else ""
    raise BundleError(
        f"{name} is no drafter of a known format{says}; give another one, or a draft model, or "
        f"train one with: {HOW_TO_TRAIN}"
    )


def trained_for(folder: Path, kind: DrafterFormat) -> Mapping[str, Any]:
    """What a drafter's folder says of its target, such as the `tokenizer`; nothing if others made
    it."""
    record = None
    if kind is not DrafterFormat.MTP:  # it lies in a model's folder, with a record of that model
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = parse_json((folder / TRAINING_RECORD).read_bytes())["target"]
    return record if isinstance(record, Mapping) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """What a drafter that reads the last hidden state has to find in its target; None for any."""

    target_hidden_size: Size | None = None
    vocab_size: Size | None = None

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Read a `config.json`. Raises: as `reading` expects, for one that cannot be run."""
        kind = drafter_format(config)
        if kind in _STATE_KEYS:
            refuse_unknown(config, _STATE_KEYS[kind])
        if kind is DrafterFormat.REDRAFTER and not config.get("rnn"):
            raise ValueError("it is a drafter without recurrence")
        sizes = config.get("text_config") or config
        width = config.get("backbone_hidden_size") or sizes.get("hidden_size")
        return convert({"target_hidden_size": width, "vocab_size": sizes.get("vocab_size")}, cls)

    def require_fit(self, *, layers: int, width: int, vocabulary: int) -> None:
        """Raises: IncompatibleError for a target of another width, or with other ids."""
        own = self.target_hidden_size or width, self.vocab_size or vocabulary
        if own != (width, vocabulary):
            raise IncompatibleError(
                f"the drafter is for a target of width {own[0]} with {own[1]} ids, and this one "
                f"has the width {width} and {vocabulary} ids; give its own target"
            )


_STATE_KEYS = {
    DrafterFormat.REDRAFTER: frozenset(
        {"vocab_size", "hidden_size", "exit_dim", "num_draft_layers", "rnn", "width", "head"}
    ),
    DrafterFormat.GEMMA_4: frozenset(
        {"backbone_hidden_size", "block_size", "quantization", "text_config", "tie_word_embeddings"}
        | {"centroid_intermediate_top_k", "num_centroids", "use_ordered_embeddings"}
    ),
}


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raises: BundleError, with `name`, for what the body finds missing or cannot run."""
    try:
        yield
    except TokalignError:
        raise
    except (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
        raise BundleError(
            f"{name}: its config lacks or garbles {in_one_line(error)}; fetch the drafter again"
        ) from error
    except (OSError, ValueError) as error:
        raise BundleError(
            f"{name} cannot be run: {in_one_line(error)}; fetch it again, use another drafter, or "
            "leave the drafter out"
        ) from error
