"""A token tree against brute force: its paths, its parts, and what it refuses."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

few_ids = st.lists(st.integers(0, 3).map(TargetId), max_size=6)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree[TargetId]:
    """Any tree whose siblings have different ids, with or without probabilities."""
    children: dict[int, set[int]] = {-1: set()}
    ids: list[TargetId] = []
    parents: list[int] = []
    for index in range(draw(st.integers(0, 8))):
        parent = draw(st.integers(-1, index - 1))
        free = sorted(set(range(9)) - children[parent])
        token = draw(st.sampled_from(free))
        children[parent].add(token)
        children[index] = set()
        ids.append(TargetId(token))
        parents.append(parent)
    stated = ids if draw(st.booleans()) else []
    return TokenTree(
        tuple(ids),
        tuple(parents),
        tuple(draw(st.sampled_from(["draft", "copy"])) for _ in ids),
        tuple(draw(st.floats(0, 1)) for _ in stated),
    )


def text_to(tree: TokenTree, index: int) -> list[TargetId]:
    """The ids from a root to the one at `index`, by going up."""
    return [] if index < 0 else [*text_to(tree, tree.parents[index]), tree.ids[index]]


def child(tree: TokenTree, parent: int, token: int) -> int | None:
    """The index of the child with this id."""
    found = [i for i, p in enumerate(tree.parents) if p == parent and tree.ids[i] == token]
    return found[0] if found else None


@given(few_ids, st.booleans())
def test_a_chain_is_a_tree_of_one_branch(ids: list[TargetId], stated: bool) -> None:
    likely = [0.5] * len(ids) if stated else []
    chain = TokenTree.chain(ids, "draft", likely)
    count = len(ids)
    assert chain == TokenTree(
        tuple(ids), tuple(range(-1, count - 1)), ("draft",) * count, tuple(likely)
    )
    assert chain.chain_length == len(chain) == count
    assert chain.first_chain == chain
    assert bool(chain) == bool(ids)
    for length in range(count + 2):
        assert chain.head(length) == TokenTree.chain(ids[:length], "draft", likely[:length])


@given(trees())
def test_the_first_chain_is_where_every_id_follows_the_one_before(
    tree: TokenTree[TargetId],
) -> None:
    length = tree.chain_length
    assert tree.first_chain == TokenTree(
        tree.ids[:length],
        tuple(range(-1, length - 1)),
        tree.sources[:length],
        tree.probabilities[:length],
    )
    assert length == len(tree) or tree.parents[length] != length - 1


@given(trees(), st.data())
def test_parts_keep_the_paths_to_their_ids(tree: TokenTree, data: st.DataObject) -> None:
    """Any ids with their ancestors, in any number of steps."""
    chosen = data.draw(st.sets(st.integers(0, len(tree) - 1))) if tree else set()
    kept = sorted({i for index in chosen for i in tree.path_to(index)})
    part = tree.select(kept)
    assert [text_to(part, i) for i in range(len(part))] == [text_to(tree, i) for i in kept]
    assert part.sources == tuple(tree.sources[i] for i in kept)
    assert part.probabilities == tuple(tree.probabilities[i] for i in kept if tree.probabilities)
    count = data.draw(st.integers(0, len(part)))
    assert part.head(count) == tree.select(kept[:count])


@given(trees(), st.data())
def test_an_id_without_its_parent_becomes_a_root(tree: TokenTree, data: st.DataObject) -> None:
    kept = sorted(data.draw(st.sets(st.integers(0, len(tree) - 1)))) if tree else []
    part = tree.select(kept)
    for new, old in enumerate(kept):
        parent = tree.parents[old]
        assert part.parents[new] == (kept.index(parent) if parent in kept else -1)


@given(trees(), few_ids, st.data())
def test_the_path_of_ids_is_that_of_brute_force(
    tree: TokenTree, more: list[TargetId], data: st.DataObject
) -> None:
    """The ids are a path of the tree, which may be empty, and any ids after it."""
    texts = {tuple(text_to(tree, i)): i for i in range(-1, len(tree))}
    for text, index in texts.items():
        assert tuple(tree.ids[i] for i in tree.path_to(index)) == text
    ids = [*data.draw(st.sampled_from([*texts])), *more]
    length = max(n for n in range(len(ids) + 1) if tuple(ids[:n]) in texts)
    assert tree.path_of(ids) == tree.path_to(texts[tuple(ids[:length])])


@given(trees(), st.data())
def test_the_agreed_path_goes_where_the_target_goes(tree: TokenTree, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, 8), min_size=len(tree) + 1, max_size=12))
    path: list[int] = []
    at: int | None = -1
    while at is not None:
        at = child(tree, at, chosen[at + 1])
        path += [] if at is None else [at]
    assert tree.agreed_path(chosen) == path


@pytest.mark.parametrize(
    ("parents", "sources", "probabilities", "said"),
    [
        ((-1,), ("a", "a"), (), "1 parents"),
        ((-1, 0), ("a",), (), "1 sources"),
        ((-1, 0), ("a", "a"), (0.5,), "1 probabilities"),
    ],
)
def test_lengths_that_differ_are_refused(
    parents: tuple[int, ...], sources: tuple[str, ...], probabilities: tuple[float, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^2 ids with .*{said}"):
        TokenTree((TargetId(1), TargetId(2)), parents, sources, probabilities)


@given(trees(), st.integers(0, 9), st.floats(0, 0.3), st.integers(1, 5), st.integers(0, 4))
def test_the_most_probable_part_is_that_of_brute_force(
    tree: TokenTree, count: int, least: float, depth: int, chain: int
) -> None:
    """The chain, and of ids no deeper than asked and likely enough those most probably reached."""
    if not tree.probabilities:
        return
    paths = [tree.path_to(index) for index in range(len(tree))]
    reached = [prod(tree.probabilities[i] for i in path) for path in paths]
    leading = range(min(chain, count, depth, tree.chain_length))
    order = sorted(range(len(leading), len(tree)), key=lambda i: (-reached[i], i))
    fitting = [i for i in order if len(paths[i]) <= depth and reached[i] >= least]
    kept = [*leading, *sorted(fitting[: count - len(leading)])]
    part = tree.most_probable(count, least=least, depth=depth, chain=chain)
    assert [text_to(part, i) for i in range(len(part))] == [text_to(tree, i) for i in kept]
    assert max(part.depths, default=0) <= depth


@given(trees(), st.integers(0, 9), st.frozensets(st.integers(0, 9)))
def test_below_a_size_no_path_has_a_larger_id_or_goes_on_after_an_end(
    tree: TokenTree, size: int, ends: frozenset[int]
) -> None:
    part = tree.below(size, ends)
    paths = [text_to(tree, i) for i in range(len(tree))]
    kept = [i for i, p in enumerate(paths) if max(p) < size and ends.isdisjoint(p[:-1])]
    assert [text_to(part, i) for i in range(len(part))] == [text_to(tree, i) for i in kept]
