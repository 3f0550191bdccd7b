"""Tables as an attacker makes them: every checksum is right, the content is not."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
from small_tables import dictionary_bundle

from tokalign.build.alignment import align
from tokalign.tables.alignment import Alignment, MergeSites
from tokalign.tables.bundle import FORMAT_VERSION, MAGIC, Bundle
from tokalign.tables.logit_rows import ID_BITS, KEPT, KIND, LogitRows
from tokalign.tokenizer.tokenizer import Tokenizer


def backoff_bundle(
    target: Tokenizer[Any], answers: Mapping[int, tuple[int, float]], p_min: float = 0.0
) -> Bundle:
    """A back-off dictionary that expects `answers[id]`, an id with its probability, after an id."""
    entries = {(token,): ((found,), probability) for token, (found, probability) in answers.items()}
    size = len(target.vocabulary)
    return dictionary_bundle(entries, size, target.fingerprint, p_min=p_min)


def logits_bundle(target: Tokenizer[Any], rows: Mapping[tuple[int, ...], Sequence[int]]) -> Bundle:
    """A table of logits in which these ids are likely after these."""
    keys = [
        sum(token << ID_BITS * place for place, token in enumerate(reversed(ids))) << 2 | len(ids)
        for ids in rows
    ]
    likely = [[*ids, *[0] * (KEPT - len(ids))] for ids in rows.values()]
    table = LogitRows(
        np.array(keys, dtype=np.uint64),
        np.array(likely, dtype=np.uint32),
        np.full((len(keys), KEPT), 128, dtype=np.uint8),
    )
    return Bundle(
        kind=KIND,
        fingerprints={"target": target.fingerprint},
        parameters={"language": "pl", "vocabulary_size": len(target.vocabulary)},
        statistics={"rows": len(table)},
        sections=table.to_sections(),
    )


def alignment_bundle(
    draft: Tokenizer[Any], target: Tokenizer[Any], sites: Mapping[int, Iterable[bytes]]
) -> Bundle:
    """The alignment of a pair, with merge sites of these target tokens."""
    right = align(draft.vocabulary, target.vocabulary)
    rows = np.zeros(len(target.vocabulary), dtype=np.uint32)
    rows[list(sites)] = np.arange(1, len(sites) + 1)
    by_row = [[], *[sorted(some) for some in sites.values()]]
    made = Alignment(right.intersection, right.healing, MergeSites(rows, by_row))
    return Bundle(
        kind="alignment",
        fingerprints={"target": target.fingerprint, "draft": draft.fingerprint},
        sections=made.to_sections(),
    )


class Packed(bytes):
    """A value of a header that is msgpack already."""


def pack_pairs(pairs: Iterable[tuple[Any, Any]]) -> Packed:
    """A msgpack map of these keys and values, in this order, with duplicates."""
    items = list(pairs)
    data = msgpack.Packer().pack_map_header(len(items))
    for pair in items:
        data += b"".join(x if isinstance(x, Packed) else msgpack.packb(x) for x in pair)
    return Packed(data)


def split_file(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a table file, and its sections."""
    (length,) = struct.unpack_from("<I", data, 12)
    return msgpack.unpackb(data[16 : 16 + length]), data[48 + length : -32]


def forge_file(
    header: bytes,
    body: bytes = b"",
    *,
    version: int = FORMAT_VERSION,
    reserved: int = 0,
    length: int | None = None,
) -> bytes:
    """A table file of this header, with right checksums of whatever it says."""
    stated = len(header) if length is None else length
    data = struct.pack("<8sHHI", MAGIC, version, reserved, stated) + header
    data += hashlib.sha256(data[: 16 + stated]).digest()
    data += body
    return data + hashlib.sha256(data).digest()
