"""Tokenizers that are made in milliseconds: trained on a few sentences, or of given merges."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from polish import SENTENCES
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spec import TokenizerSpec
from tokalign.tokenizer.tokenizer import Tokenizer as OurTokenizer
from tokalign.tokenizer.vocabulary import Roles


def write_tokenizer(folder: Path, *, vocabulary_size: int) -> Path:
    """Train on the test sentences and write `folder/tokenizer.json`; returns the folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@cache
def trained_tokenizer(size: int) -> OurTokenizer[Any]:
    """One of so many tokens that `write_tokenizer` writes; nobody changes it."""
    with TemporaryDirectory() as folder:
        return read_tokenizer(write_tokenizer(Path(folder), vocabulary_size=size))


def of_merges(
    letters: bytes, pairs: Iterable[tuple[bytes, bytes]], **spec: Any
) -> OurTokenizer[Any]:
    """A tokenizer of these letters and merges, first rank first; a whole text is one piece.

    spec: fields that are to be others.
    """
    ranked = list(pairs)
    made = sorted({left + right for left, right in ranked}, key=lambda token: (len(token), token))
    tokens = [*(bytes([letter]) for letter in letters), *made]
    ids = {token: i for i, token in enumerate(tokens)}
    triples = [(ids[left], ids[right], ids[left + right]) for left, right in ranked]
    usual: dict[str, Any] = {"tokens": tuple(tokens), "fallback": frozenset(), "specials": {}}
    usual |= {"roles": Roles(), "by_characters": True, "triples": triples}
    return OurTokenizer(TokenizerSpec(**(usual | spec)))


def random_merges(draw: Random) -> OurTokenizer[Any]:
    """A tokenizer whose merges come in any order, even before those that make their halves.

    In two of three cases every way to make a token is a merge, as in SentencePiece.
    """
    letters = b"abc"[: draw.randint(1, 3)]
    tokens = [bytes([letter]) for letter in letters]
    pairs = []
    for _ in range(draw.randint(3, 13)):
        left, right = draw.choice(tokens), draw.choice(tokens)
        if len(left + right) <= 8:
            tokens.append(left + right)
            pairs.append((left, right))
    if draw.random() < 2 / 3:
        whole = set(tokens)
        cuts = [(t[:i], t[i:]) for t in sorted(whole) for i in range(1, len(t))]
        pairs = [(left, right) for left, right in cuts if left in whole and right in whole]
    draw.shuffle(pairs)
    return of_merges(letters, dict.fromkeys(pairs))
