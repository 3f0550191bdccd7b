"""The tables of one (draft, target) pair: which tokens are equal, where the target merges, and
which of the draft's ids texts have. They are read-only views of a bundle's sections
(`docs/table-format.md`), made by `build.alignment`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.bundle import Bundle, array_bytes
from tokalign.tokenizer.bpe.encoder import TokenOrder
from tokalign.tokenizer.vocabulary import DraftId, Id, Roles, TargetId

OtherId = TypeVar("OtherId", bound=int)

_TO_TARGET, _TO_DRAFT = "intersection.draft_to_target", "intersection.target_to_draft"
_FREQUENT = "frequent.bits"

NO_TOKEN = -1
"""In an array of ids: there is none."""

MOST_DOUBLES = 8
"""The most draft ids with the same bytes; two where a byte is a literal and a fallback."""


@dataclass(frozen=True)
class Intersection:
    """Tokens of two vocabularies that stand for the same bytes.

    draft_to_target: i32[draft vocabulary]; target_to_draft: i32[target vocabulary]; NO_TOKEN for
    none. A literal counts before a byte fallback; `match_roles` has the special tokens.
    """

    draft_to_target: NDArray[np.int32]
    target_to_draft: NDArray[np.int32]

    @cached_property
    def first_ids(self) -> FirstIds:
        """Those of the draft tokens that the target has; no others."""
        return FirstIds(self.draft_to_target, np.ones_like(self.draft_to_target))

    @cached_property
    def pairs(self) -> int:
        """How many byte strings are tokens on both sides."""
        mapped = self.draft_to_target
        return len(np.unique(mapped[mapped != NO_TOKEN]))

    def target_of(self, draft_id: DraftId) -> TargetId | None:
        target_id = int(self.draft_to_target[draft_id])
        return None if target_id == NO_TOKEN else TargetId(target_id)

    def draft_of(self, target_id: TargetId) -> DraftId | None:
        draft_id = int(self.target_to_draft[target_id])
        return None if draft_id == NO_TOKEN else DraftId(draft_id)

    def to_sections(self) -> dict[str, bytes]:
        return {
            _TO_TARGET: array_bytes(self.draft_to_target),
            _TO_DRAFT: array_bytes(self.target_to_draft),
        }

    @classmethod
    def from_bundle(
        cls, bundle: Bundle, draft_size: int | None = None, target_size: int | None = None
    ) -> Intersection:
        """The table in a bundle, every id of which is checked. Raises: BundleError."""
        to_target = bundle.array(_TO_TARGET, "<i4", length=draft_size)
        to_draft = bundle.array(_TO_DRAFT, "<i4", length=target_size)
        bundle.check_ids(to_target, len(to_draft), _TO_TARGET, least=NO_TOKEN)
        bundle.check_ids(to_draft, len(to_target), _TO_DRAFT, least=NO_TOKEN)
        if np.bincount(to_target + 1)[1:].max(initial=0) > MOST_DOUBLES:
            raise bundle.wrong(
                f"more than {MOST_DOUBLES} draft ids stand for one target id in the section "
                f"{_TO_TARGET}"
            )
        return cls(to_target, to_draft)


@dataclass(frozen=True, eq=False, slots=True)
class FirstIds:
    """What the tokens of a draft are in the target's ids, each encoded by itself.

    first: i32[draft vocabulary], the first target id, NO_TOKEN for none. counts: i32[draft
    vocabulary], how many there are, 1 or more.
    Example (Llama drafts for Bielik): ` computer` is ` comp|uter`, so its first is ` comp` of 2.
    """

    first: NDArray[np.int32]
    counts: NDArray[np.int32]


def match_roles(draft: Roles[Id], target: Roles[OtherId]) -> dict[Id, OtherId]:
    """Special tokens of two vocabularies with the same meaning: draft id -> target id. Every end of
    a draft's turn is the target's."""
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
    """The draft's tokens (id -> bytes) sorted by their bytes, to find those that extend pending
    bytes. A marisa trie takes 141 ms where 57,874 match, this 59 µs (`lab/results/tries.md`)."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self.extending = lru_cache(maxsize=4096)(self._extending)

    def _extending(self, pending: bytes) -> NDArray[np.uint32]:
        """Ids of the tokens that begin with `pending` and are longer, u32[], sorted by bytes. Cost:
        2 µs, the first time 0.2 s for 128,000 tokens; the latest 4,096 answers are cached."""
        order, ids = self._sorted
        first, last = order.extending(pending)
        return ids[first:last]

    @cached_property
    def _sorted(self) -> tuple[TokenOrder[int], NDArray[np.uint32]]:
        order = TokenOrder.of(self._tokens, (i for i, token in enumerate(self._tokens) if token))
        return order, np.array(order.ids, dtype=np.uint32)


class MergeSites:
    """For each target token, the next bytes that it absorbs.

    `(t, p)` is a merge site if no canonical piece has the token `t` followed by the bytes `p`; a
    proposal that begins with `p` then contradicts where the target ended its token.
    Example (Bielik): ` nie` has the site b"d", because no token that begins with "d" may follow it;
    "niedziela" is ` n|ied|z|iel|a`.
    The table has the shortest `p` with which more than `absorption.MIN_FANOUT` tokens begin;
    `Absorption` derives the others from the merges.
    rows: u32[target vocabulary]; tokens with the same sites share a row, and row 0 has none.
    sites: for each row its sites, sorted. No site begins with another one of its row.
    """

    def __init__(self, rows: NDArray[np.uint32], sites: Sequence[Sequence[bytes]]) -> None:
        self.rows = rows
        self.sites = sites

    def __len__(self) -> int:
        """The number of stored (row, bytes) entries."""
        return sum(map(len, self.sites))

    def absorbs(self, last: TargetId, following: bytes) -> bool:
        """Whether `following` begins with a stored site of `last`. Cost: 0.5 µs."""
        sites = self.sites[self.rows[last]]
        at = bisect_right(sites, following)
        return at > 0 and following.startswith(sites[at - 1])

    def to_sections(self) -> dict[str, bytes]:
        all_sites = [site for sites in self.sites for site in sites]
        return {
            "merge_sites.rows": array_bytes(self.rows),
            "merge_sites.row_lengths": np.array([*map(len, self.sites)], dtype="<u4").tobytes(),
            "merge_sites.site_lengths": bytes(map(len, all_sites)),
            "merge_sites.bytes": b"".join(all_sites),
        }

    @classmethod
    def from_bundle(cls, bundle: Bundle, vocabulary_size: int) -> MergeSites:
        """The table in a bundle. Raises: BundleError."""
        # Lengths of 0 would let a small file ask for any amount of memory.
        row_lengths = bundle.array("merge_sites.row_lengths", "<u4")
        site_lengths = bundle.array("merge_sites.site_lengths", "u1")
        if len(row_lengths) > vocabulary_size + 1 or not site_lengths.all():
            raise bundle.wrong("there are empty merge sites, or too many rows of them")
        data = bytes(bundle.array("merge_sites.bytes", "u1"))
        parts = bundle.parts("merge_sites.site_lengths", "u1", of=len(data))
        sites = [data[begin:end] for begin, end in parts]
        parts = bundle.parts("merge_sites.row_lengths", "<u4", of=len(sites))
        by_row = [sites[begin:end] for begin, end in parts]
        rows = bundle.array("merge_sites.rows", "<u4", length=vocabulary_size)
        bundle.check_ids(rows, len(by_row), "merge_sites.rows")
        if any(by_row[:1]) or any(sorted(set(row)) != row for row in by_row):
            raise bundle.wrong("merge sites are not sorted, or row 0 has some")
        return cls(rows, by_row)


@dataclass(frozen=True, slots=True)
class Alignment:
    """All tables of one (draft, target) pair.

    frequent: u32[n], the draft's ids that texts have (`build.frequent_ids`). merge_sites, frequent:
    None where they were not built.
    """

    intersection: Intersection
    healing: HealingTrie
    merge_sites: MergeSites | None = None
    frequent: NDArray[np.uint32] | None = None

    def to_sections(self) -> dict[str, bytes]:
        sections = self.intersection.to_sections()
        if self.merge_sites is not None:
            sections |= self.merge_sites.to_sections()
        if self.frequent is not None:
            bits = np.zeros(len(self.intersection.draft_to_target), np.bool_)
            bits[self.frequent] = True
            sections[_FREQUENT] = np.packbits(bits).tobytes()
        return sections

    @classmethod
    def from_bundle(
        cls, bundle: Bundle, *, draft: Sequence[bytes] | None = None, target_size: int | None = None
    ) -> Alignment:
        """The tables in a bundle, every id of which is checked. Raises: BundleError. draft: the
        draft's tokens, id -> bytes; without them (`verify`) nothing can be healed."""
        intersection = Intersection.from_bundle(
            bundle, None if draft is None else len(draft), target_size
        )
        merge_sites = MergeSites.from_bundle(bundle, len(intersection.target_to_draft))
        frequent = None
        if _FREQUENT in bundle.sections:
            size = len(intersection.draft_to_target)
            bits = np.unpackbits(bundle.array(_FREQUENT, "u1", length=-(-size // 8)))
            if bits[size:].any():
                raise bundle.wrong(f"the section {_FREQUENT} has ids that the draft does not have")
            frequent = np.flatnonzero(bits).astype(np.uint32)
        return cls(intersection, HealingTrie(draft or ()), merge_sites, frequent)
