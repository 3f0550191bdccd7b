"""A tokenizer: a vocabulary, its canonical BPE, and fast encoding of whole texts.

It has two encoders that agree. `bpe` works on bytes and can answer questions about them (`bpe/`);
decoding uses it. `encode` and `encode_batch` run the `tokenizers` library, set up from the same
specification whichever file that came from; corpora and prompts use them. A tokenizer that puts
texts into the normal form C (Qwen's) does so where a text comes in; bytes are never changed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, cast

import regex

from tokalign.bpe.encoder import BytePairEncoding
from tokalign.bpe.merges import Merges
from tokalign.bpe.pretokenizer import (
    NoSplitter,
    RegexSplitter,
    Splitter,
    WordSplitter,
    has_inner_space,
)
from tokalign.tokenizer.files import TokenizerFile, open_tokenizer_file, read_spec
from tokalign.tokenizer.spec import Supplement, TokenizerSpec
from tokalign.tokenizer.spelling import SPACE_MARK, write_byte_level, write_pieces
from tokalign.tokenizer.vocabulary import Id, Roles, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


class Tokenizer(Generic[Id]):
    """A tokenizer. Its type says whose ids it has: `Tokenizer[TargetId]`, `Tokenizer[DraftId]`."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self.spec = spec

    @classmethod
    def from_file(cls, path: Path | str, supplement: Supplement | None = None) -> Tokenizer[Id]:
        """Read a tokenizer file or a model's folder, and check it against the library that owns it.

        Raises: MissingAssetError when there is none; VocabularyError when it is broken, not BPE, or
        encodes otherwise than the library does.
        """
        from tokalign.tokenizer.self_check import check_once  # it imports this module

        file = open_tokenizer_file(Path(path), supplement)
        tokenizer = cls.from_opened(file)
        check_once(tokenizer, file)
        return tokenizer

    @classmethod
    def from_opened(cls, file: TokenizerFile) -> Tokenizer[Id]:
        """Read a file that is open, without the check. Raises: VocabularyError."""
        return cls(read_spec(file))

    def __getstate__(self) -> dict[str, object]:
        """What another process needs to make its own encoders and caches."""
        return {"spec": self.spec}

    @property
    def fingerprint(self) -> str:
        """See `TokenizerSpec.fingerprint`."""
        return self.spec.fingerprint

    @cached_property
    def vocabulary(self) -> Vocabulary[Id]:
        """The tokens as bytes, and the special tokens with their roles."""
        spec = self.spec
        return Vocabulary(
            tokens=spec.tokens,
            fallback=cast("frozenset[Id]", spec.fallback),
            specials=cast("Mapping[Id, str]", spec.specials),
            roles=cast("Roles[Id]", spec.roles),
        )

    @cached_property
    def splitter(self) -> Splitter:
        """The pre-tokenizer."""
        if self.spec.pattern is not None:
            return RegexSplitter(self.spec.pattern)
        return NoSplitter() if any(map(has_inner_space, self.spec.tokens)) else WordSplitter()

    @cached_property
    def bpe(self) -> BytePairEncoding[Id]:
        """The canonical encoder. Built on first use: 0.1 s for 32,000 tokens, 0.5 s for 128,000."""
        spec, vocabulary = self.spec, self.vocabulary
        byte_ids = {token[0]: i for token, i in vocabulary.id_of.items() if len(token) == 1}
        byte_ids |= {spec.tokens[i][0]: i for i in vocabulary.fallback}
        no_id = cast("Id", -1)
        return BytePairEncoding(
            tokens=spec.tokens,
            merges=Merges.from_triples(spec.triples),
            symbols=self._characters() if spec.by_characters else {},
            byte_ids=[byte_ids.get(byte, no_id) for byte in range(256)],
            splitter=self.splitter,
            by_characters=spec.by_characters,
            whole=vocabulary.id_of if spec.ignore_merges else {},
        )

    def _characters(self) -> dict[bytes, Id]:
        """Literal tokens of a single character, which SentencePiece merging starts from."""
        tokens = cast("Iterable[tuple[Id, bytes]]", enumerate(self.spec.tokens))
        return {
            token: index
            for index, token in tokens
            if token and index not in self.spec.fallback and len(token.decode()) == 1
        }

    def encode(self, text: str, *, specials: bool = False) -> list[Id]:
        """Encode a whole text: with the dummy prefix if the tokenizer has one, but without BOS.

        specials: whether spellings of special tokens become those tokens, as chat templates need.
            Otherwise they are ordinary text, so that a user's words cannot forge a turn.
        """
        if not specials or not self.spec.specials:
            return self._encode_plain(self.prepared(text))
        ids: list[Id] = []
        for place, part in enumerate(self._special_pattern.split(text)):
            special = self.vocabulary.special_ids.get(part)
            if special is not None:
                ids.append(special)
            elif place and self.spec.prefix_once:
                ids += self._encode_plain(self._composed(part))
            else:
                ids += self._encode_plain(self.prepared(part))
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[Id]]:
        """Encode many whole texts on all cores; the same as `encode` of each."""
        if any(map(self._needs_bpe, texts)):
            return [self.encode(text) for text in texts]
        encodings = self._backend.encode_batch_fast(
            [self.prepared(text) for text in texts], add_special_tokens=False
        )
        return [cast("list[Id]", encoding.ids) for encoding in encodings]

    def encode_parts(self, parts: Sequence[str]) -> list[list[Id]]:
        """Encode parts of texts as they are, without adding a dummy prefix, on all cores."""
        if any(map(self._needs_bpe, parts)):
            return [self._encode_plain(part) for part in parts]
        encodings = self._backend.encode_batch_fast(list(parts), add_special_tokens=False)
        return [cast("list[Id]", encoding.ids) for encoding in encodings]

    def decode(self, ids: Iterable[Id]) -> str:
        """The text of a whole encoding, without dummy prefix and special tokens.

        Bytes that are not valid UTF-8 become U+FFFD.
        """
        data = self.vocabulary.bytes_of(ids)
        if self.spec.dummy_prefix:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def text_bytes(self, text: str) -> bytes:
        """The bytes that `encode(text)` stands for: the dummy prefix, then those of the text.

        They are the bytes of the text's normal form C if the tokenizer asks for that (`spec.nfc`).
        """
        return self.prepared(text).encode("utf-8", "surrogateescape")

    def prepared(self, text: str) -> str:
        """The text that BPE gets of a whole text: composed (`spec.nfc`), after the dummy prefix."""
        text, spec = self._composed(text), self.spec
        if not spec.dummy_prefix or not text:
            return text
        return text if spec.prefix_unless_space and text[0] == " " else " " + text

    def _composed(self, text: str) -> str:
        if not self.spec.nfc or text.isascii() or unicodedata.is_normalized("NFC", text):
            return text
        from tokenizers import normalizers

        # The library's own tables, because versions of Unicode differ.
        return str(normalizers.NFC().normalize_str(text))

    def _encode_plain(self, text: str) -> list[Id]:
        if self._needs_bpe(text):
            return self.bpe.encode(text.encode("utf-8", "surrogateescape"))
        encoding = self._backend.encode(text, add_special_tokens=False)
        return cast("list[Id]", encoding.ids)

    def _needs_bpe(self, text: str) -> bool:
        """Whether `text` is not for the library.

        It would take a space mark for a space, whose bytes are different; and it panics where an
        expression backtracks for too long, which only those that are not known can do.
        """
        if self.spec.by_characters:
            return SPACE_MARK in text
        return isinstance(self.splitter, RegexSplitter) and not self.splitter.is_known

    @cached_property
    def _special_pattern(self) -> regex.Pattern[str]:
        spellings = sorted(self.spec.specials.values(), key=len, reverse=True)
        return regex.compile("(" + "|".join(map(regex.escape, spellings)) + ")")

    @cached_property
    def _backend(self) -> Backend:
        return _build_backend(self.spec, self.splitter)


def _build_backend(spec: TokenizerSpec, splitter: Splitter) -> Backend:
    """A tokenizer of the `tokenizers` library for `spec`, without special tokens and dummy prefix.

    The model gets every piece by itself, so that the library's cache of words works for
    SentencePiece too. Cost: 0.2 s for 32,000 tokens, 0.8 s for 128,000.
    """
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Library

    spellings = (
        write_pieces(spec.tokens, spec.fallback)
        if spec.by_characters
        else write_byte_level(spec.tokens)
    )
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
        backend.normalizer = normalizers.Replace(" ", SPACE_MARK)
        if isinstance(splitter, WordSplitter):
            words = Regex(f"{SPACE_MARK}*[^{SPACE_MARK}]+|{SPACE_MARK}+")
            backend.pre_tokenizer = pre_tokenizers.Split(words, "isolated")
    else:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        split = pre_tokenizers.Split(Regex(spec.pattern), "isolated") if spec.pattern else None
        backend.pre_tokenizer = (
            pre_tokenizers.Sequence([split, byte_level]) if split is not None else byte_level
        )
    return backend
