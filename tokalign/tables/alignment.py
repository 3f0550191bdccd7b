"""The tables of one (draft, target) pair: which tokens are equal, and where the target merges.

Read-only lookups over a bundle's sections. Built by `tokalign.build.alignment`, used by
the decode loop; the section layout is in `docs/table-format.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import marisa_trie
import numpy as np
from numpy.typing import NDArray

from tokalign.bpe.sorted_vocabulary import TokenOrder
from tokalign.errors import BundleError
from tokalign.tables.sections import Sections, array_bytes, read_array, read_trie
from tokalign.tokenizer.vocabulary import DraftId, Id, Roles, TargetId

OtherId = TypeVar("OtherId", bound=int)
"""The ids of a second tokenizer."""

NO_TOKEN = -1
"""Stands in an id array where there is no id."""


@dataclass(frozen=True)
class Intersection:
    """Tokens of two vocabularies that stand for the same bytes.

    draft_to_target: i32[draft vocabulary]; target_to_draft: i32[target vocabulary]; -1 for none.
    Bytes that one side spells twice (literally and by byte fallback) map to the literal id.
    Special tokens are never in here: they are matched by role (`match_roles`).
    """

    draft_to_target: NDArray[np.int32]
    target_to_draft: NDArray[np.int32]

    @cached_property
    def pairs(self) -> int:
        """How many different byte strings are tokens on both sides."""
        mapped = self.draft_to_target
        return len(np.unique(mapped[mapped != NO_TOKEN]))

    def target_of(self, draft_id: DraftId) -> TargetId | None:
        """The target token with the same bytes."""
        found = int(self.draft_to_target[draft_id])
        return None if found == NO_TOKEN else TargetId(found)

    def draft_of(self, target_id: TargetId) -> DraftId | None:
        """The draft token with the same bytes."""
        found = int(self.target_to_draft[target_id])
        return None if found == NO_TOKEN else DraftId(found)

    def to_sections(self) -> dict[str, bytes]:
        return {
            "intersection.draft_to_target": array_bytes(self.draft_to_target),
            "intersection.target_to_draft": array_bytes(self.target_to_draft),
        }

    @classmethod
    def from_sections(cls, sections: Sections) -> Intersection:
        return cls(
            read_array(sections, "intersection.draft_to_target", "<i4"),
            read_array(sections, "intersection.target_to_draft", "<i4"),
        )


def match_roles(draft: Roles[Id], target: Roles[OtherId]) -> dict[Id, OtherId]:
    """Special tokens of the two vocabularies that mean the same thing.

    The end of a turn is matched first: any token with which the draft ends its turn proposes the
    target's way of ending one.
    """
    matched: dict[Id, OtherId] = {}
    end = target.turn_end if target.turn_end is not None else min(target.eos, default=None)
    if end is not None:
        matched |= dict.fromkeys(sorted(draft.eos), end)
    for role in ("bos", "turn_start", "turn_end"):
        ours, theirs = getattr(draft, role), getattr(target, role)
        if ours is not None and theirs is not None:
            matched[ours] = theirs
    return matched


class HealingTrie:
    """A draft vocabulary by bytes: which tokens go on from some pending bytes.

    A sorted vocabulary is a trie laid flat: the tokens that begin with a prefix are one range.
    order: u32[n], ids of the ordinary tokens sorted by their bytes. tokens: id -> bytes.
    """

    def __init__(self, order: NDArray[np.uint32], tokens: Sequence[bytes]) -> None:
        self._order = order
        self._tokens = tokens
        self.extending = lru_cache(maxsize=4096)(self._extending)

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> HealingTrie:
        """Sort a vocabulary. Cost: 0.1 s for 128,000 tokens."""
        ordinary = TokenOrder.of(tokens, (i for i, token in enumerate(tokens) if token))
        return cls(np.array(ordinary.ids, dtype=np.uint32), tokens)

    def _extending(self, pending: bytes) -> NDArray[np.uint32]:
        """Ids of the tokens that begin with `pending` and are longer, sorted by bytes.

        Cost: 2 µs, the first time 10 ms; the most recent 4,096 answers are remembered.
        """
        first, last = self._sorted.extending(pending)
        return self._order[first:last]

    @cached_property
    def _sorted(self) -> TokenOrder[int]:
        return TokenOrder(self._tokens, self._order.tolist())

    def to_sections(self) -> dict[str, bytes]:
        return {"healing.order": array_bytes(self._order)}

    @classmethod
    def from_sections(cls, sections: Sections, tokens: Sequence[bytes]) -> HealingTrie:
        return cls(read_array(sections, "healing.order", "<u4"), tokens)


CROWDED = 16
"""Merge sites are stored where more tokens than this begin with the bytes."""


class MergeSites:
    """After which target token which next bytes would be merged into it.

    `(t, p)` is a merge site when no canonical piece has its boundary behind `t` and goes on with
    the bytes `p`: a proposal that starts with `p` contradicts where the target ended its token.
    Stored are those that take long to work out: the shortest `p` with which more than CROWDED
    tokens begin. `Absorption` asks the merges about the rest; tokens with the same sites share a
    row.
    rows: u32[target vocabulary], the row of each token; row 0 is empty.
    trie: keys are the row as three big-endian bytes, followed by the bytes `p`.
    """

    def __init__(self, rows: NDArray[np.uint32], trie: marisa_trie.BinaryTrie) -> None:
        self.rows = rows
        self._trie = trie

    def __len__(self) -> int:
        """How many (row, bytes) entries are stored."""
        return len(self._trie)

    def absorbs(self, last: int, following: bytes) -> bool:
        """Whether `following` starts with a site of `last` that is stored. Cost: 1 µs."""
        row = int(self.rows[last])
        if not row:
            return False
        return bool(self._trie.prefixes(row_key(row) + following))

    def after(self, last: int) -> list[bytes]:
        """The sites of one token that are stored, sorted."""
        row = int(self.rows[last])
        if not row:
            return []
        return sorted(key[3:] for key in self._trie.keys(row_key(row)))

    def to_sections(self) -> dict[str, bytes]:
        return {
            "merge_sites.rows": array_bytes(self.rows),
            "merge_sites.crowded": self._trie.tobytes(),
        }

    @classmethod
    def from_sections(cls, sections: Sections) -> MergeSites:
        rows = read_array(sections, "merge_sites.rows", "<u4")
        return cls(rows, read_trie(sections, "merge_sites.crowded"))


def row_key(row: int) -> bytes:
    """A row number as the first three bytes of its keys."""
    return row.to_bytes(3, "big")


@dataclass(frozen=True, slots=True)
class Alignment:
    """All tables of one (draft, target) pair.

    merge_sites: None where they were not built; the boundary then asks the merges each time.
    """

    intersection: Intersection
    healing: HealingTrie
    merge_sites: MergeSites | None = None

    def to_sections(self) -> dict[str, bytes]:
        sites = self.merge_sites.to_sections() if self.merge_sites is not None else {}
        return self.intersection.to_sections() | self.healing.to_sections() | sites

    @classmethod
    def from_sections(cls, sections: Sections, draft: Sequence[bytes]) -> Alignment:
        """The tables in these sections, in place; their content is trusted.

        draft: the draft's tokens, id -> bytes. Raises: BundleError for a section that is missing.
        """
        intersection = Intersection.from_sections(sections)
        merge_sites = MergeSites.from_sections(sections)
        known = len(intersection.target_to_draft)
        if len(merge_sites.rows) != known:
            raise BundleError(
                f"the alignment has {len(merge_sites.rows)} rows of merge sites for {known} target "
                "tokens; rebuild the table with: tokalign build"
            )
        return cls(intersection, HealingTrie.from_sections(sections, draft), merge_sites)
