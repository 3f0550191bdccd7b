"""Rows of passes: those that are taken have read the very ids, whatever was guessed and fed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from zlib import crc32

import mlx.core as mx
import pytest

from tokalign.runtime.mlx.taps import MOST_ROWS, KeptRows
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree


def marked(*texts: Sequence[int]) -> mx.array:
    """A row for each text that was read, which no other text has."""
    return mx.array([[crc32(bytes(text)) % (1 << 24)] for text in texts])


def kept(most: int = MOST_ROWS) -> KeptRows:
    return KeptRows(SimpleNamespace(model=None, take=lambda: None), most)  # type: ignore[arg-type]


def random_tree(draw: Random) -> TokenTree[int]:
    """Up to five ids; no two that follow the same one are equal."""
    parents, ids = list[int](), list[int]()
    for index in range(draw.randint(0, 5)):
        found = draw.choice((index - 1, draw.randint(-1, index - 1))), draw.randrange(4)
        if found not in zip(parents, ids, strict=True) and found[0] < len(ids):
            parents.append(found[0])
            ids.append(found[1])
    return TokenTree(tuple(ids), tuple(parents), ("",) * len(ids))


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_the_ids(seed: int) -> None:
    draw, rows, text, first = Random(seed), kept(), [9], 0
    for _ in range(150):
        tree = random_tree(draw)
        paths = [[tree.ids[i] for i in tree.path_to(index)] for index in range(len(tree))]
        rows.note(len(text) - 1, marked(text, *[[*text, *path] for path in paths]))
        rows.keep(list(text), tree)
        text += [*draw.choice([[], *paths]), draw.randrange(4)]
        while not tree and draw.random() < 0.5:  # the next pass began before the id was known
            rows.note(1 << 30, marked(text))
            rows.keep_fed(mx.array(text[-1:]))
            text.append(draw.randrange(4))
        if draw.random() < 0.1:  # the text goes on otherwise, as after another turn
            del text[draw.randint(max(1, len(text) - 9), len(text)) :]
            first = min(first, len(text) - 1)
        assert rows.before_last([*text[:-2], 7, text[-1]]) is None, "nobody has read 7"
        if draw.random() < 0.2:
            begin, taken = rows.take(text, first)
            expected = [text[: place + 1] for place in range(begin, len(text) - 1)]
            assert begin == first
            assert (taken is None) == (not expected)
            assert not expected or taken.tolist() == marked(*expected).tolist()
            first = len(text) - 1


def test_the_rows_of_the_latest_passes_are_kept() -> None:
    """A drafter that rests takes no rows for thousands of ids."""
    rows, text = kept(most=200), [1, 2, 3]
    for place in range(500):
        rows.note(len(text) - 1, marked(text))
        rows.keep(list(text), EMPTY_TREE)
        text.append(place % 4)
    begin, taken = rows.take(text, 0)
    assert begin == len(text) - 201
    assert taken.tolist() == marked(*[text[:end] for end in range(begin + 1, len(text))]).tolist()
