"""What a trained drafter can do for a target, told before its weights are downloaded.

Its `config.json` is read and, where it has a vocabulary of its own, the list of the ids in it: some
hundred KB of its weights. What such a drafter accepts in a language follows the share of the text
that its vocabulary covers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tokalign.errors import BundleError, shown
from tokalign.names import hub
from tokalign.names.published_drafters import AUTO, require_published
from tokalign.names.registry import resolve
from tokalign.storage import parse_json
from tokalign.tables.drafter_formats import BLOCK_FORMATS, DrafterFormat, drafter_format
from tokalign.tables.finding import DRAFTER_CONFIG
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

Config: TypeAlias = Mapping[str, Any]

Read: TypeAlias = Callable[[int, int], bytes]
"""The bytes of a weights file from one position to another."""

_WEIGHTS = "model.safetensors"
_LONGEST_HEADER = 1 << 24  # bytes, of a weights file

GOOD, FAIR = 0.95, 0.8
"""Shares of a text that can be drafted, from which on a fit is called good or fair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """What a drafter's files say.

    taps: the target's layers whose outputs it reads, from 0 on; None for its last hidden state, and
    for those that its authors read by default. layers, width, vocabulary: of its target, where
    known. ids: that it can draft; None for all.
    """

    kind: DrafterFormat
    taps: tuple[int, ...] | None = None
    layers: int | None = None
    width: int | None = None
    vocabulary: int | None = None
    ids: frozenset[int] | None = None


def drafter_facts(name: str, target: str) -> DrafterFacts:
    """What is known of a drafter: a folder, or a repository; `auto` for `target`'s. Raises:
    UsageError, MissingAssetError; BundleError for files that are not those of a drafter."""
    place, read = _files(require_published(target).repository if name == AUTO else name)
    try:
        config = parse_json((place / DRAFTER_CONFIG).read_bytes())
        if not isinstance(config, dict):
            raise ValueError("it is no object")
        return _facts(config, read)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BundleError(
            f"the drafter {name} cannot be judged: {error}; fetch it again"
        ) from error


def judge_drafter(
    facts: DrafterFacts, target: Tokenizer[TargetId], config: Config | None, lines: Iterable[str]
) -> tuple[str, dict[str, object]]:
    """A verdict on a drafter, and why. config: the target's; None where it is not here."""
    covered, count = 0, 0
    for line in lines:
        ids = target.encode(line)
        covered += len(ids) if facts.ids is None else sum(token in facts.ids for token in ids)
        count += len(ids)
    share = covered / max(1, count)
    misfit = None if config is None else _misfit(facts, config)
    taps = facts.taps if config is None else facts.taps or _usual_taps(facts.kind, config)
    about: dict[str, object] = {
        "drafter_kind": facts.kind,
        "drafter_taps": taps and list(taps),
        "drafter_coverage": round(share, 4),
        "drafter_fits": None if config is None else misfit is None,
    }
    if misfit:
        return f"It does not fit: {misfit}. Name the drafter of this target.", about
    fit = "good" if share > GOOD else "fair" if share > FAIR else "poor"
    of_state = (
        "the usual layers"
        if facts.kind is DrafterFormat.EAGLE_3
        else "the target's last hidden state"
    )
    reads = of_state if taps is None else _layers(taps)
    article = "an" if facts.kind[0] in "EM" else "a"
    size = "its size fits" if config else "the target's config is not here to compare sizes with"
    vocabulary = "" if facts.ids is None else f", as {len(facts.ids):,} ids are in its vocabulary"
    return (
        f"A {fit} fit: {article} {facts.kind} drafter that can draft {share:.1%} of this text's "
        f"tokens{vocabulary}; it reads {reads}; {size}.",
        about,
    )


def _usual_taps(kind: DrafterFormat, config: Config) -> tuple[int, ...] | None:
    """What EAGLE-3 reads by default: what the third, the middle and the third last layer get."""
    count = (config.get("text_config") or config).get("num_hidden_layers")
    return (1, count // 2 - 1, count - 4) if kind is DrafterFormat.EAGLE_3 and count else None


def _layers(taps: tuple[int, ...]) -> str:
    return f"the outputs of layers {', '.join(map(str, taps))}"


def _misfit(facts: DrafterFacts, config: Config) -> str | None:
    """Why a drafter does not fit a target's `config.json`; None if it does."""
    inner = config.get("text_config") or config
    layers = inner.get("num_hidden_layers")
    for what, made, there in (
        ("layers", facts.layers, layers),
        ("dimensions", facts.width, inner.get("hidden_size")),
        ("ids", facts.vocabulary, inner.get("vocab_size")),
    ):
        if made is not None and there is not None and made != there:
            return f"it is for a target of {made} {what}, and this one has {there}"
    if facts.taps and layers is not None and max(facts.taps) >= layers:
        return f"it reads {_layers(facts.taps)}, and this target has {layers}"
    return None


# -- its files -------------------------------------------------------------------------------------


def _files(name: str) -> tuple[Path, Read]:
    """The folder of a drafter's `config.json`, and what reads its weights, wherever they are."""
    place = resolve(name, hub.CONFIG)
    here = place.folder / _WEIGHTS

    def read(begin: int, end: int) -> bytes:
        if place.source and not here.is_file():
            return hub.read_part(place.source, _WEIGHTS, begin, end)
        with here.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    return place.folder, read


def _facts(config: Config, read: Read) -> DrafterFacts:
    kind = drafter_format(config)
    if kind is None:
        named = config.get("speculators_model_type") or " ".join(config.get("architectures") or ())
        raise ValueError(f"its {DRAFTER_CONFIG} is of no known format ({shown(named)})")
    if kind is DrafterFormat.MTP and not _holds_mtp(config):
        raise ValueError(f"its {DRAFTER_CONFIG} names no MTP layer")
    if kind in _OF_LAST_STATE:
        return DrafterFacts(kind=kind)
    inner = config.get("transformer_layer_config") or config  # `speculators` nests it
    own = config.get("dflash_config") or config
    taps = own.get("target_layer_ids") or (config.get("eagle_config") or {}).get(_EAGLE)
    if inputs := config.get("aux_hidden_state_layer_ids") or config.get(_EAGLE):
        taps = [layer - 1 for layer in inputs]  # `speculators` names the layers that follow
    drafts = config.get("draft_vocab_size")
    reduced = drafts is not None and drafts != inner["vocab_size"]
    return DrafterFacts(
        kind=kind,
        taps=taps and tuple(map(int, taps)),
        layers=config.get("num_target_layers"),
        width=config.get("target_hidden_size") or inner["hidden_size"],
        vocabulary=inner["vocab_size"],
        ids=_own_ids(read) if reduced else None,
    )


_EAGLE = "eagle_aux_hidden_state_layer_ids"
_OF_LAST_STATE = frozenset(DrafterFormat) - BLOCK_FORMATS - {DrafterFormat.EAGLE_3}
"""Formats of drafters that read the last hidden state and know all ids."""


def _holds_mtp(config: Config) -> bool:
    inner = config.get("text_config") or config
    layers = inner.get("mtp_num_hidden_layers") or inner.get("num_nextn_predict_layers")
    return bool(layers) or str(config.get("model_type")).endswith("_mtp")


def _own_ids(read: Read) -> frozenset[int]:
    """The target's ids in a drafter's own vocabulary, of which `d2t` has the distances."""
    length = int.from_bytes(read(0, 8), "little")
    if not 0 < length <= _LONGEST_HEADER:
        raise ValueError(f"{_WEIGHTS} is no safetensors file")
    found = parse_json(read(8, 8 + length))["d2t"]
    begin, end = (8 + length + offset for offset in found["data_offsets"])
    distances = np.frombuffer(read(begin, end), {"I64": "<i8", "I32": "<i4"}[found["dtype"]])
    return frozenset((np.arange(len(distances)) + distances).tolist())
