"""A tokenizer: a vocabulary, its canonical BPE, and fast encoding of whole texts.

Two encoders that agree. `bpe` is the theory, over bytes, incremental, exact on broken UTF-8; the
decode loop uses it. `encode` and `encode_batch` run the `tokenizers` library, built from the same
specification whatever file it came from; corpora and prompts use them. Unicode normalizers (Qwen's
NFC) are left out on purpose: a text's bytes are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, cast

import regex

from tokalign.bpe.encoder import BytePairEncoding, Merges
from tokalign.bpe.pretokenizer import (
    NoSplitter,
    RegexSplitter,
    Splitter,
    WordSplitter,
    has_inner_space,
)
from tokalign.tokenizer.files import read_tokenizer_file
from tokalign.tokenizer.spec import Supplement, TokenizerSpec, byte_alphabet
from tokalign.tokenizer.vocabulary import Id, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_SPACE_MARK = "▁"


class Tokenizer(Generic[Id]):
    """A tokenizer, typed by whose ids it speaks: `Tokenizer[TargetId]` or `Tokenizer[DraftId]`."""

    def __init__(self, spec: TokenizerSpec, *, name: str = "") -> None:
        self.spec = spec
        self.name = name

    @classmethod
    def from_file(cls, path: Path | str, supplement: Supplement | None = None) -> Tokenizer[Id]:
        """Read a tokenizer file or a model's folder. Raises: see `read_tokenizer_file`."""
        return cls(read_tokenizer_file(Path(path), supplement), name=Path(path).name)

    def __getstate__(self) -> dict[str, object]:
        """What another process needs; encoders and caches are made anew there."""
        return {"spec": self.spec, "name": self.name}

    @property
    def fingerprint(self) -> str:
        return self.spec.fingerprint

    @cached_property
    def vocabulary(self) -> Vocabulary[Id]:
        spec = self.spec
        return Vocabulary(
            tokens=spec.tokens, fallback=spec.fallback, specials=spec.specials, roles=spec.roles
        )

    @cached_property
    def splitter(self) -> Splitter:
        if self.spec.pattern is not None:
            return RegexSplitter(self.spec.pattern)
        return NoSplitter() if any(map(has_inner_space, self.spec.tokens)) else WordSplitter()

    @cached_property
    def bpe(self) -> BytePairEncoding:
        """The canonical encoder. Built on first use: 0.1 s for 32,000 tokens, 0.5 s for 128,000."""
        spec, vocabulary = self.spec, self.vocabulary
        byte_ids = {t[0]: i for t, i in vocabulary.id_of.items() if len(t) == 1}
        byte_ids |= {spec.tokens[i][0]: i for i in spec.fallback}  # type: ignore[misc]
        return BytePairEncoding(
            tokens=spec.tokens,
            merges=Merges.from_triples(spec.triples),
            symbols=self._characters() if spec.by_characters else {},
            byte_ids=[byte_ids.get(byte, -1) for byte in range(256)],
            splitter=self.splitter,
            by_characters=spec.by_characters,
            whole=vocabulary.id_of if spec.ignore_merges else {},
        )

    def _characters(self) -> dict[bytes, int]:
        """Literal tokens of a single character: what SentencePiece merging starts from."""
        return {
            token: index
            for index, token in enumerate(self.spec.tokens)
            if token and index not in self.spec.fallback and len(token.decode()) == 1
        }

    def encode(self, text: str, *, specials: bool = False) -> list[Id]:
        """Encode a whole text, with the dummy prefix where the tokenizer has one, without BOS.

        `specials`: spellings of special tokens become those tokens (chat templates need it);
        otherwise they are ordinary text, so that a user's words cannot forge a turn.
        """
        if not specials or not self.spec.specials:
            return self._encode_plain(text)
        ids: list[Id] = []
        for part in self._special_pattern.split(text):
            special = self.vocabulary.special_ids.get(part)
            ids += self._encode_plain(part) if special is None else [special]
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[Id]]:
        """Encode many whole texts on all cores; the same as `encode` of each."""
        if self.spec.by_characters and any(_SPACE_MARK in text for text in texts):
            return [self._encode_plain(text) for text in texts]
        encodings = self._backend.encode_batch_fast(
            [self._prefixed(text) for text in texts], add_special_tokens=False
        )
        return [cast("list[Id]", encoding.ids) for encoding in encodings]

    def encode_parts(self, parts: Sequence[str]) -> list[list[Id]]:
        """Encode parts of texts as they stand, without a dummy prefix, on all cores."""
        if self.spec.by_characters and any(_SPACE_MARK in part for part in parts):
            return [
                cast("list[Id]", self.bpe.encode(part.encode()))
                if _SPACE_MARK in part
                else self.encode_parts([part])[0]
                for part in parts
            ]
        encodings = self._backend.encode_batch_fast(list(parts), add_special_tokens=False)
        return [cast("list[Id]", encoding.ids) for encoding in encodings]

    def decode(self, ids: Iterable[Id]) -> str:
        """The text of a whole encoding: no dummy prefix, no special tokens, stray bytes U+FFFD."""
        data = self.vocabulary.bytes_of(ids)
        if self.spec.dummy_prefix:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def text_bytes(self, text: str) -> bytes:
        """The bytes that `encode(text)` stands for: the text's own, behind the dummy prefix."""
        return self._prefixed(text).encode("utf-8", "surrogateescape")

    def _prefixed(self, text: str) -> str:
        return " " + text if self.spec.dummy_prefix and text else text

    def _encode_plain(self, text: str) -> list[Id]:
        if self.spec.by_characters and _SPACE_MARK in text:
            # To the library this character and a space are one; to the bytes they are not.
            return cast("list[Id]", self.bpe.encode(self.text_bytes(text)))
        encoding = self._backend.encode(self._prefixed(text), add_special_tokens=False)
        return cast("list[Id]", encoding.ids)

    @cached_property
    def _special_pattern(self) -> regex.Pattern[str]:
        spellings = sorted(self.spec.specials.values(), key=len, reverse=True)
        return regex.compile("(" + "|".join(map(regex.escape, spellings)) + ")")

    @cached_property
    def _backend(self) -> Backend:
        return _build_backend(self.spec, self.splitter)


def _build_backend(spec: TokenizerSpec, splitter: Splitter) -> Backend:
    """The `tokenizers` library's form of `spec`, without special tokens and dummy prefix.

    Each piece is handed to the model on its own, so that the library's cache of words works for
    SentencePiece too. Cost: 0.2 s for 32,000 tokens, 0.8 s for 128,000.
    """
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Library

    spellings = _spell(spec)
    backend = Library(
        models.BPE(
            vocab={spelling: i for i, spelling in enumerate(spellings) if spelling},
            merges=[(spellings[left], spellings[right]) for left, right, _ in spec.triples],
            byte_fallback=spec.by_characters,
            ignore_merges=spec.ignore_merges,
            fuse_unk=True,
        )
    )
    if spec.by_characters:
        backend.normalizer = normalizers.Replace(" ", _SPACE_MARK)
        if isinstance(splitter, WordSplitter):
            words = Regex(f"{_SPACE_MARK}*[^{_SPACE_MARK}]+|{_SPACE_MARK}+")
            backend.pre_tokenizer = pre_tokenizers.Split(words, "isolated")
    else:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        split = pre_tokenizers.Split(Regex(spec.pattern), "isolated") if spec.pattern else None
        backend.pre_tokenizer = (
            pre_tokenizers.Sequence([split, byte_level]) if split is not None else byte_level
        )
    return backend


def _spell(spec: TokenizerSpec) -> list[str]:
    """Tokens as the library wants them spelled; "" for special tokens."""
    if spec.by_characters:
        return [
            f"<0x{token[0]:02X}>"
            if i in spec.fallback
            else token.decode().replace(" ", _SPACE_MARK)
            for i, token in enumerate(spec.tokens)
        ]
    alphabet = byte_alphabet()
    return ["".join([alphabet[byte] for byte in token]) for token in spec.tokens]
