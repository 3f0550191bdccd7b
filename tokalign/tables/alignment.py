"""The tables of one (draft, target) pair: which tokens are equal, and where the target merges.

They are read-only views of a bundle's sections; `docs/table-format.md` has the layout.
`build.alignment` makes them, `runtime.translation` uses them.
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
"""In an array of ids: there is none."""


@dataclass(frozen=True)
class Intersection:
    """Tokens of two vocabularies that stand for the same bytes.

    draft_to_target: i32[draft vocabulary]; target_to_draft: i32[target vocabulary]; -1 for none.
    A byte string with two ids on one side, literal and byte fallback, maps to the literal one.
    Special tokens are left out; `match_roles` matches them by role.
    """

    draft_to_target: NDArray[np.int32]
    target_to_draft: NDArray[np.int32]

    @cached_property
    def pairs(self) -> int:
        """The number of different byte strings that are tokens on both sides."""
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
        """The sections of a bundle that hold this table."""
        return {
            "intersection.draft_to_target": array_bytes(self.draft_to_target),
            "intersection.target_to_draft": array_bytes(self.target_to_draft),
        }

    @classmethod
    def from_sections(cls, sections: Sections) -> Intersection:
        """The table in these sections, in place. Raises: BundleError if one is missing."""
        return cls(
            read_array(sections, "intersection.draft_to_target", "<i4"),
            read_array(sections, "intersection.target_to_draft", "<i4"),
        )


def match_roles(draft: Roles[Id], target: Roles[OtherId]) -> dict[Id, OtherId]:
    """Special tokens of two vocabularies with the same meaning: draft id -> target id.

    Every token with which the draft ends its turn is matched with the target's end of a turn.
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
    """The draft's tokens sorted by their bytes, to find those that extend pending bytes.

    Sorted, the vocabulary serves as a trie: the tokens that begin with a prefix are one range.
    order: u32[n], the ids of the ordinary tokens. tokens: id -> bytes.
    """

    def __init__(self, order: NDArray[np.uint32], tokens: Sequence[bytes]) -> None:
        self._order = order
        self._tokens = tokens
        self.extending = lru_cache(maxsize=4096)(self._extending)

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> HealingTrie:
        """Sort a vocabulary, given as id -> bytes. Cost: 0.1 s for 128,000 tokens."""
        ordinary = TokenOrder.of(tokens, (i for i, token in enumerate(tokens) if token))
        return cls(np.array(ordinary.ids, dtype=np.uint32), tokens)

    def _extending(self, pending: bytes) -> NDArray[np.uint32]:
        """Ids of the tokens that begin with `pending` and are longer, u32[], sorted by bytes.

        Cost: 2 µs, the first time 10 ms; the latest 4,096 answers are cached.
        """
        first, last = self._sorted.extending(pending)
        return self._order[first:last]

    @cached_property
    def _sorted(self) -> TokenOrder[int]:
        return TokenOrder(self._tokens, self._order.tolist())

    def to_sections(self) -> dict[str, bytes]:
        """The sections of a bundle that hold this table; the tokens are not in them."""
        return {"healing.order": array_bytes(self._order)}

    @classmethod
    def from_sections(cls, sections: Sections, tokens: Sequence[bytes]) -> HealingTrie:
        """The table in these sections, in place. Raises: BundleError if one is missing."""
        return cls(read_array(sections, "healing.order", "<u4"), tokens)


CROWDED = 16
"""Merge sites are stored for bytes with which more tokens than this begin."""


class MergeSites:
    """For each target token, the next bytes that it absorbs.

    `(t, p)` is a merge site if no canonical piece has the token `t` followed by the bytes `p`; a
    proposal that begins with `p` then contradicts where the target ended its token.
    Example (Bielik): ` nie` has the site b"d", because no token that begins with "d" may follow it;
    "niedziela" is ` n|ied|z|iel|a`.
    The table has the sites that take long to derive: the shortest `p` with which more than CROWDED
    tokens begin. `Absorption` derives the others from the merges.
    rows: u32[target vocabulary], the row of each token. Tokens with the same sites share a row; row
    0 has none.
    trie: its keys are a row as three big-endian bytes, followed by the bytes `p`.
    """

    def __init__(self, rows: NDArray[np.uint32], trie: marisa_trie.BinaryTrie) -> None:
        self.rows = rows
        self._trie = trie

    def __len__(self) -> int:
        """The number of stored (row, bytes) entries."""
        return len(self._trie)

    def absorbs(self, last: TargetId, following: bytes) -> bool:
        """Whether `following` begins with a stored site of `last`. Cost: 1 µs."""
        row = int(self.rows[last])
        if not row:
            return False
        return bool(self._trie.prefixes(row_key(row) + following))

    def after(self, last: TargetId) -> list[bytes]:
        """The stored sites of one token, sorted."""
        row = int(self.rows[last])
        if not row:
            return []
        return sorted(key[3:] for key in self._trie.keys(row_key(row)))

    def to_sections(self) -> dict[str, bytes]:
        """The sections of a bundle that hold this table."""
        return {
            "merge_sites.rows": array_bytes(self.rows),
            "merge_sites.crowded": self._trie.tobytes(),
        }

    @classmethod
    def from_sections(cls, sections: Sections) -> MergeSites:
        """The table in these sections, in place. Raises: BundleError if one is missing."""
        rows = read_array(sections, "merge_sites.rows", "<u4")
        return cls(rows, read_trie(sections, "merge_sites.crowded"))


def row_key(row: int) -> bytes:
    """The first three bytes of the keys of a row."""
    return row.to_bytes(3, "big")


@dataclass(frozen=True, slots=True)
class Alignment:
    """All tables of one (draft, target) pair.

    merge_sites: None where they were not built; `Boundary.absorbs` then answers less strictly.
    """

    intersection: Intersection
    healing: HealingTrie
    merge_sites: MergeSites | None = None

    def to_sections(self) -> dict[str, bytes]:
        """The sections of a bundle that hold these tables."""
        sites = self.merge_sites.to_sections() if self.merge_sites is not None else {}
        return self.intersection.to_sections() | self.healing.to_sections() | sites

    @classmethod
    def from_sections(cls, sections: Sections, draft: Sequence[bytes]) -> Alignment:
        """The tables in these sections, in place. Verify the file first: content is not checked.

        draft: the draft's tokens, id -> bytes. Raises: BundleError if a section is missing, or if
        sections contradict each other.
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
