"""The one value for guessed ids, which sources answer with and the target verifies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, Self

from tokalign.tokenizer.vocabulary import Id


@dataclass(frozen=True, slots=True)
class TokenTree(Generic[Id]):
    """Ids that may follow a text, each with the id it would follow; false if there are none.

    ids: parents come before their children, the most probable chain first.
    parents: for each id the index of the id that it follows, -1 for the text itself.
    sources: for each id the name of the drafter that guessed it.
    probabilities: for each id, that it is right if its ancestors are; empty where unknown.
    Example: ids (7, 8, 9) and parents (-1, 0, -1): the text goes on with 7 and 8, or with 9.
    """

    ids: tuple[Id, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.ids)
        if len(self.parents) != count or len(self.sources) != count:
            raise ValueError(
                f"{count} ids with {len(self.parents)} parents and {len(self.sources)} sources"
            )
        if self.probabilities and len(self.probabilities) != count:
            raise ValueError(f"{count} ids with {len(self.probabilities)} probabilities")

    @classmethod
    def chain(cls, ids: Sequence[Id], source: str, probabilities: Sequence[float] = ()) -> Self:
        count = len(ids)
        return cls(tuple(ids), tuple(range(-1, count - 1)), (source,) * count, tuple(probabilities))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def chain_length(self) -> int:
        """How many leading ids form a chain, each the child of the one before it."""
        for index, parent in enumerate(self.parents):
            if parent != index - 1:
                return index
        return len(self.ids)

    @property
    def first_chain(self) -> Self:
        return self.head(self.chain_length)

    def head(self, count: int) -> Self:
        if count >= len(self.ids):
            return self
        return type(self)(
            self.ids[:count], self.parents[:count], self.sources[:count], self.probabilities[:count]
        )

    def below(self, size: int, ends: Set[Id] = frozenset()) -> Self:
        """The part without ids from `size` on, and without what follows those or one of `ends`."""
        if not self.ids or (max(self.ids) < size and ends.isdisjoint(self.ids)):
            return self
        kept: list[int] = []
        for index, (token, parent) in enumerate(zip(self.ids, self.parents, strict=True)):
            goes_on = parent < 0 or (parent in kept and self.ids[parent] not in ends)
            if token < size and goes_on:
                kept.append(index)
        return self.select(kept)

    def select(self, kept: Sequence[int]) -> Self:
        """The ids at these indices, parents first; one whose parent is not kept is a root."""
        place = {index: new for new, index in enumerate(kept)}
        return type(self)(
            tuple([self.ids[i] for i in kept]),
            tuple([place.get(self.parents[i], -1) for i in kept]),
            tuple([self.sources[i] for i in kept]),
            tuple([self.probabilities[i] for i in kept]) if self.probabilities else (),
        )

    def most_probable(self, count: int, *, least: float, depth: int, chain: int = 0) -> Self:
        """The first `chain` ids of the leading chain, and those most probably reached.

        count: of ids at most. least, depth: other ids that are less likely, and all deeper ones,
        are left out in any case. An id is never likelier than its parent, so this is a tree too.
        """
        size = len(self.ids)
        if least <= 0 and count >= size and (depth >= size or depth >= max(self.depths)):
            return self
        reached, depths = self.reached, self.depths
        leading = min(chain, count, depth, self.chain_length)
        order = sorted(range(leading, len(reached)), key=lambda i: (-reached[i], i))
        others = [i for i in order if depths[i] <= depth and reached[i] >= least]
        return self.select([*range(leading), *sorted(others[: count - leading])])

    @property
    def depths(self) -> list[int]:
        """How many ids lead to each id, itself included: 1 for a root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    @property
    def reached(self) -> list[float]:
        """How likely each id is reached: that it and all that lead to it are right."""
        reached: list[float] = []
        for probability, parent in zip(self.probabilities, self.parents, strict=True):
            reached.append(probability * (reached[parent] if parent >= 0 else 1.0))
        return reached

    def path_to(self, index: int) -> list[int]:
        """Indices from a root to the id at `index`, itself included; none for -1."""
        path = []
        while index >= 0:
            path.append(index)
            index = self.parents[index]
        return path[::-1]

    def path_of(self, ids: Sequence[Id]) -> list[int]:
        """The indices along which `ids` runs through the tree, as far as it does."""
        path: list[int] = []
        last = -1
        for index, parent in enumerate(self.parents):
            if len(path) == len(ids):
                break
            if parent == last and self.ids[index] == ids[len(path)]:
                path.append(index)
                last = index
        return path

    def child_of(self, index: int, token: int) -> int | None:
        """The index of the id `token` after that at `index`, or after the text for -1; or None."""
        found = zip(self.parents, self.ids, strict=True)
        return next((i for i, pair in enumerate(found) if pair == (index, token)), None)

    def agreed_path(self, chosen: Sequence[int] | Mapping[int, int]) -> list[int]:
        """The indices that a target agrees with, by its choice after the text and after each id."""
        path: list[int] = []
        ids, last = self.ids, -1
        for index, parent in enumerate(self.parents):
            if parent == last and ids[index] == chosen[last + 1]:
                path.append(index)
                last = index
        return path


EMPTY_TREE: TokenTree[Any] = TokenTree()


def chain_first(parents: Sequence[int], order: Iterable[int]) -> tuple[list[int], list[int]]:
    """The indices of the chain that the first root in an order begins, and the others.

    order: of some ids, parents before their children. The chain goes on with the first child of its
    last id.
    """
    chain: list[int] = []
    others: list[int] = []
    last = -1
    for index in order:
        if parents[index] == last:
            chain.append(index)
            last = index
        else:
            others.append(index)
    return chain, others
