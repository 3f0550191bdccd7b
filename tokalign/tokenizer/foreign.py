"""Tokenizers that are programs (remote code), used by their ids: whatever encodes and decodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Any, cast

from tokalign.errors import VocabularyError
from tokalign.tokenizer.reference import Reference
from tokalign.tokenizer.roles import find_roles
from tokalign.tokenizer.spec import Level, TokenizerSpec
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Id


class ForeignTokenizer(Tokenizer[Id]):
    """A tokenizer of transformers, mlx-lm or anybody, used by its ids.

    theirs: has `encode(text)` and `decode(ids)`; `len`, `get_added_vocab`, `bos_token` and
    `eos_token` are used where it has them. why: what keeps it from a higher level.
    """

    _kept = ("spec", "_theirs")

    def __init__(self, theirs: Any, why: str = "") -> None:
        self._theirs = theirs
        reference = Reference(theirs=theirs)
        added = {i: str(s) for s, i in getattr(theirs, "get_added_vocab", dict)().items()}
        size = max([len(theirs) if hasattr(theirs, "__len__") else 0, *(i + 1 for i in added)])
        opening, closing = reference.around
        super().__init__(
            TokenizerSpec(
                tokens=(b"",) * size,
                specials=added,
                roles=find_roles(added, reference.settings),
                by_characters=False,
                opening=opening,
                closing=closing,
                level=Level.IDS_ONLY,
                why=why or f"it is a {type(theirs).__name__}, and no file that the library reads",
            )
        )

    @cached_property
    def fingerprint(self) -> str:
        vocabulary = sorted(getattr(self._theirs, "get_vocab", dict)().items())
        texts, some = ("Zażółć gęślą jaźń", " 12\n\n\tfoo's  bar"), list[list[Id]]()
        for text in texts:
            with suppress(VocabularyError):  # it need not know every character
                some += self.encode_batch([text])
        if not (vocabulary or some):
            self.encode_batch(texts)  # which raises: of others it could not be told apart
        return sha256(repr((type(self._theirs).__name__, vocabulary, some)).encode()).hexdigest()

    def encode(self, text: str, *, specials: bool = False) -> list[Id]:
        """Markup in ordinary text is cut, so that no program finds it."""
        encode = Reference(theirs=self._theirs).encode
        ids = cast("list[Id]", encode(text))
        if specials or self.spec.specials.keys().isdisjoint(ids):
            return ids
        return cast("list[Id]", [*chain.from_iterable(map(encode, self.cut_markup(text)))])

    def encode_parts(self, parts: Sequence[str]) -> list[list[Id]]:
        return [self.encode(part) for part in parts]

    def decode(self, ids: Iterable[Id]) -> str:
        """Without `clean_up_tokenization_spaces`, which removes spaces before what comes later: a
        text that is written as it grows would lose letters."""
        cleans = getattr(self._theirs, "clean_up_tokenization_spaces", False)
        as_it_is = {"clean_up_tokenization_spaces": False} if cleans else {}
        return str(self._theirs.decode(list(ids), **as_it_is))

    decode_whole = decode


class _AnyIds:
    """Ids of which nothing is known but how many there are."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def encode(self, _text: str) -> list[int]:
        return []

    def decode(self, _ids: Sequence[int]) -> str:
        return ""


def any_ids(size: int) -> Tokenizer[Any]:
    """A tokenizer of `size` ids, of which nothing else is known."""
    return ForeignTokenizer(_AnyIds(size))
