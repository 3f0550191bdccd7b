"""What a trained drafter can do for a target, told before its weights are downloaded.

Its `config.json` is read and, where it has a vocabulary of its own, the list of the ids in it: some
hundred KB of its weights. What such a drafter accepts in a language follows the share of the text
that its vocabulary covers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from msgspec import Struct, convert, field

from tokalign.errors import IncompatibleError, shown
from tokalign.names import hub
from tokalign.names.memory import LONGEST_HEADER
from tokalign.names.published_drafters import AUTO, require_published
from tokalign.names.registry import resolve
from tokalign.storage import listed, parse_json
from tokalign.tables.dflash_config import DFlashConfig
from tokalign.tables.drafter_config import (
    DrafterShape,
    Layers,
    Size,
    StateShape,
    known_format,
    reading,
    trained_for,
)
from tokalign.tables.drafter_formats import BLOCK_FORMATS, TARGETS, DrafterFormat
from tokalign.tables.eagle3_config import Eagle3Config
from tokalign.tables.finding import DRAFTER_CONFIG, read_drafter_json
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

Config: TypeAlias = Mapping[str, Any]

Read: TypeAlias = Callable[[int, int], bytes]
"""The bytes of a weights file from one position to another."""

_WEIGHTS = "model.safetensors"


def fit_in_a_word(share: float) -> str:
    """How good a fit is, by the share of a text that can be drafted."""
    return "good" if share > 0.95 else "fair" if share > 0.8 else "poor"


class _Facts(NamedTuple):
    """What a drafter's files say.

    ids: that it can draft; None for all. tokenizer: the fingerprint of its target's, where it is
    written down.
    """

    kind: DrafterFormat
    shape: DrafterShape | StateShape
    ids: frozenset[int] | None
    tokenizer: str | None


def judge_drafter(
    name: str,
    target_name: str,
    target: Tokenizer[TargetId],
    config: Config | None,
    lines: Iterable[str],
) -> tuple[str, dict[str, object]]:
    """A verdict on a drafter, and why.

    name: a folder, or a repository; `auto` for the one published for the target. config: the
    target's; None where it is not here.
    Raises: UsageError, MissingAssetError; BundleError for files that are not those of a drafter.
    """
    folder, parts = _files(require_published(target_name).repository if name == AUTO else name)
    with reading(f"the drafter {name}"):
        facts = _facts(folder, parts, f"the drafter {name}")
    covered, count = 0, 0
    for line in lines:
        ids = target.encode(line)
        covered += len(ids) if facts.ids is None else sum(token in facts.ids for token in ids)
        count += len(ids)
    share = covered / max(1, count)
    sizes = None if config is None else _Sizes.of(config)
    misfit = _misfit(facts, target, (config or {}).get("model_type"), sizes)
    taps, reads = None, "the target's last hidden state"
    if isinstance(facts.shape, DrafterShape):
        taps = facts.shape.taps(sizes.layers) if sizes else facts.shape.target_layer_ids
        reads = f"the outputs of layers {', '.join(map(str, taps))}" if taps else "the usual layers"
    about: dict[str, object] = {
        "drafter_kind": facts.kind,
        "drafter_taps": taps and list(taps),
        "drafter_coverage": round(share, 4),
        "drafter_fits": None if sizes is None and misfit is None else misfit is None,
    }
    if misfit:
        return f"It does not fit: {misfit}.", about
    fit = fit_in_a_word(share)
    size = "its size fits" if sizes else "the target's config is not here to compare sizes with"
    article = "an" if facts.kind[0] in "EM" else "a"
    vocabulary = "" if facts.ids is None else f", as {len(facts.ids):,} ids are in its vocabulary"
    return (
        f"A {fit} fit: {article} {facts.kind} drafter that can draft {share:.1%} of this text's "
        f"tokens{vocabulary}; it reads {reads}; {size}.",
        about,
    )


class _Sizes(Struct):
    """What a drafter has to fit of its target."""

    layers: Layers = field(name="num_hidden_layers")
    width: Size = field(name="hidden_size")
    vocabulary: Size = field(name="vocab_size")

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """None for a configuration that calls them something else, or garbles them."""
        inner = config.get("text_config") or config
        try:
            return convert(inner, cls)
        except ValueError:
            return None


def _misfit(
    facts: _Facts, target: Tokenizer[TargetId], model_type: object, sizes: _Sizes | None
) -> str | None:
    """Why decoding with it would be refused, as far as files tell; None if nothing is known.
    model_type: the target's."""
    if facts.tokenizer not in (None, target.fingerprint):
        return "the drafter was trained for another tokenizer; give its own target"
    if facts.kind in TARGETS and model_type not in (None, *TARGETS[facts.kind]):
        return f"it is none for a {shown(model_type)} model; give its own target"
    if sizes is None:
        return None
    shape, count = facts.shape, sizes.vocabulary
    try:
        shape.require_fit(layers=sizes.layers, width=sizes.width, vocabulary=count)
    except IncompatibleError as error:
        return str(error)
    if isinstance(shape, DrafterShape) and facts.ids is None and shape.draft_vocab_size != count:
        return f"the drafter knows {shape.draft_vocab_size} ids, and this target has {count}"
    if facts.ids is not None and not 0 <= min(facts.ids) <= max(facts.ids) < count:
        return f"the drafter knows ids that this target, which has {count}, does not have"
    return None


# -- its files -------------------------------------------------------------------------------------


def _files(name: str) -> tuple[Path, list[Read]]:
    """The folder of a drafter's `config.json`, and what reads its weights files, wherever they
    are."""
    place = resolve(name, hub.CONFIG)
    here = listed(place.folder, "*.safetensors")
    if place.source and not here:
        return place.folder, [partial(hub.read_part, place.source, _WEIGHTS)]
    return place.folder, [partial(_read_part, file) for file in here]


def _read_part(file: Path, begin: int, end: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(begin)
        return opened.read(end - begin)


def drafter_shape(config: Config, name: str) -> tuple[DrafterFormat, Any]:
    """The format of a drafter with this `config.json`, and what it says of its layers, or of its
    target. Raises: BundleError, with `name`, for one that is not run."""
    kind = known_format(config, name)
    with reading(name):
        return kind, _SHAPES.get(kind, StateShape).from_json(config)


def _facts(folder: Path, parts: Iterable[Read], name: str) -> _Facts:
    config = read_drafter_json(folder)
    kind, shape = drafter_shape(config, name)
    if kind is DrafterFormat.MTP and not _holds_mtp(config):
        raise ValueError(f"its {DRAFTER_CONFIG} names no MTP layer")
    ids, tokenizer = None, trained_for(folder, kind).get("tokenizer")
    if isinstance(shape, DrafterShape) and shape.draft_vocab_size != shape.vocab_size:
        ids = _own_ids(parts, shape.draft_vocab_size)
    return _Facts(kind, shape, ids, tokenizer)


_SHAPES: Mapping[DrafterFormat, type[DFlashConfig | Eagle3Config | StateShape]] = {
    **dict.fromkeys(BLOCK_FORMATS, DFlashConfig),
    DrafterFormat.EAGLE_3: Eagle3Config,
}


def _holds_mtp(config: Config) -> bool:
    inner = config.get("text_config") or config
    layers = inner.get("mtp_num_hidden_layers") or inner.get("num_nextn_predict_layers")
    return bool(layers) or str(config.get("model_type")).endswith("_mtp")


def _own_ids(parts: Iterable[Read], count: int) -> frozenset[int]:
    """The target's ids in a drafter's own vocabulary, of which `d2t` has the `count` distances.
    parts: what reads each of its weights files."""
    for read in parts:
        length = int.from_bytes(read(0, 8), "little")
        if not 0 < length <= LONGEST_HEADER:
            raise ValueError("it has a file that is no safetensors file")
        if found := parse_json(read(8, 8 + length)).get("d2t"):
            begin, end = (8 + length + offset for offset in found["data_offsets"])
            kinds = {"I64": "<i8", "I32": "<i4"}
            distances = np.frombuffer(read(begin, end), kinds[found["dtype"]])
            if len(distances) != count:
                raise ValueError(f"its d2t has {len(distances)} ids, and its head {count}")
            return frozenset((np.arange(len(distances)) + distances).tolist())
    raise ValueError(f"its head knows {count} ids, and no d2t in its weights says which")
