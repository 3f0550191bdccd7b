"""A tokenizer: a vocabulary, its canonical encoding of bytes, and fast encoding of whole texts.

It has two encoders that agree. `encoder` works on bytes and can answer questions about them
(`bpe/`); decoding and prompts use it. Corpora are encoded by the `tokenizers` library. What a
tokenizer does to whole texts is done where a text comes in; bytes are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np

from tokalign.errors import IncompatibleError, VocabularyError
from tokalign.tokenizer.backend import build_library, load_library, merged_last, take_bytes
from tokalign.tokenizer.bpe.encoder import BytePairEncoding, PieceEncoder
from tokalign.tokenizer.bpe.expressions import KNOWN_PATTERNS, RegexSplitter
from tokalign.tokenizer.bpe.pretokenizer import (
    AddedTokenSplitter,
    Splitter,
    WholeSplitter,
    WordSplitter,
    has_inner_space,
)
from tokalign.tokenizer.bpe.validity import Merges
from tokalign.tokenizer.check_texts import plain_texts
from tokalign.tokenizer.fingerprint import fingerprint_of
from tokalign.tokenizer.library import (
    LibraryEncoder,
    LibrarySplitter,
    MetaspaceSplitter,
    as_read,
    giving_up,
    library_of,
)
from tokalign.tokenizer.spec import Level, Markup, TokenizerSpec
from tokalign.tokenizer.spelling import SPACE_MARK, found_in, spelled_in
from tokalign.tokenizer.unigram import UnigramEncoder
from tokalign.tokenizer.vocabulary import Id, Roles, Vocabulary, token_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


_FEW = 1 << 17
"""How many characters are encoded before the library is loaded, which encodes faster."""


class Tokenizer(Generic[Id]):
    """A tokenizer. Its type says whose ids it has: `Tokenizer[TargetId]`, `Tokenizer[DraftId]`.
    library: that of `spec`, if it is loaded already."""

    _kept = ("spec", "fingerprint")  # in another process; the rest is made again
    _loaded: Library | None = None
    _encoded = 0

    def __init__(self, spec: TokenizerSpec, library: Library | None = None) -> None:
        self.spec = spec
        self._loaded = library

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name in self._kept}

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(self.spec)

    @cached_property
    def vocabulary(self) -> Vocabulary[Id]:
        spec = self.spec
        return Vocabulary(
            tokens=spec.tokens,
            fallback=cast("frozenset[Id]", spec.fallback),
            specials=cast("Mapping[Id, str]", spec.specials),
            roles=cast("Roles[Id]", spec.roles),
        )

    @property
    def level(self) -> Level:
        return self.spec.level

    def describe(self) -> str:
        """One line: how it is used, and what keeps it from being aligned."""
        return f"{self.level} ({self.spec.why})" if self.spec.why else str(self.level)

    def require(self, level: Level) -> None:
        """Raises: IncompatibleError where less is known of the tokenizer."""
        levels = list(Level)
        if levels.index(self.level) > levels.index(level):
            raise IncompatibleError(
                f"this needs a tokenizer of the level {str(level)!r}, and here is one of the level "
                f"{str(self.level)!r} ({self.spec.why}); dictionaries, context copy and the logit "
                "store work with every tokenizer"
            )

    def opens_segment(self, prompt: Sequence[Id]) -> bool:
        """Whether the text after `prompt` begins a segment, before which a dummy prefix is put."""
        if self.level is Level.IDS_ONLY:
            return not prompt
        tokens = self.vocabulary.tokens
        if self.spec.prefix_once:
            return not any(token_bytes(tokens, token) for token in prompt)
        return not prompt or not token_bytes(tokens, prompt[-1])

    # -- encoders ----------------------------------------------------------------------------------

    @cached_property
    def splitter(self) -> Splitter:
        rest = self._pre_tokenizer()
        return AddedTokenSplitter([*self._added], rest) if self._added else rest

    def _pre_tokenizer(self) -> Splitter:
        try:
            pattern = self.spec.pattern
        except ValueError:
            kinds = [step["type"] for step in self.spec.pre_tokenizer]
            kind = MetaspaceSplitter if kinds == ["Metaspace"] else LibrarySplitter
            return kind(self.spec.pre_tokenizer)
        if pattern is None and self.spec.joins_words:
            return WholeSplitter()
        if pattern is None:
            tokens = self.spec.tokens
            return WordSplitter([t for t in tokens if b" " in t[1:] and has_inner_space(t)])
        if pattern in KNOWN_PATTERNS:
            return RegexSplitter(pattern, as_read)
        return LibrarySplitter(self.spec.pre_tokenizer)

    @cached_property
    def encoder(self) -> PieceEncoder[Id]:
        """The canonical encoder of bytes. Raises: IncompatibleError for a tokenizer of ids only."""
        if self.level is Level.ALIGNED:
            return self.bpe
        self.require(Level.BY_TEXT)
        model = self._library.model
        kind = UnigramEncoder if type(model).__name__ == "Unigram" else LibraryEncoder
        return kind(
            model,
            self.vocabulary,
            self.splitter,
            by_characters=self.spec.by_characters,
            added=self._added,
            cut=self.cut_markup,
        )

    @cached_property
    def bpe(self) -> BytePairEncoding[Id]:
        """The canonical encoder with its merges. Cost: 0.1 s for 32,000 tokens, 0.5 s for 128,000.
        Raises: IncompatibleError where the merges are not known."""
        self.require(Level.ALIGNED)
        spec, vocabulary = self.spec, self.vocabulary
        if spec.by_characters:
            byte_ids = {spec.tokens[i][0]: i for i in vocabulary.fallback}
        else:
            byte_ids = {token[0]: i for token, i in vocabulary.id_of.items() if len(token) == 1}
        no_id = cast("Id", -1)
        return BytePairEncoding(
            tokens=spec.tokens,
            merges=Merges.from_triples(spec.triples),
            symbols=self._characters() if spec.by_characters else {},
            byte_ids=[byte_ids.get(byte, no_id) for byte in range(256)],
            splitter=self.splitter,
            by_characters=spec.by_characters,
            whole=vocabulary.id_of if spec.ignore_merges else {},
            added=self._added,
            unknown=cast("Id | None", spec.unknown),
            fuses_unknown=spec.fuses_unknown,
        )

    @cached_property
    def _added(self) -> dict[bytes, Id]:
        return {self.spec.tokens[i]: cast("Id", i) for i in self.spec.text_tokens}

    def _characters(self) -> dict[bytes, Id]:
        """Literal tokens of a single character, which SentencePiece merging starts from."""
        tokens, fallback = self.spec.tokens, self.spec.fallback
        short = np.array([0 < len(token) <= 4 for token in tokens])
        return {
            tokens[index]: cast("Id", index)
            for index in merged_last(self.spec, short)
            if index not in fallback and len(tokens[index].decode()) == 1
        }

    @cached_property
    def _whole(self) -> Library:
        return self._loaded or load_library(self.spec.document)

    @cached_property
    def _library(self) -> Library:
        """For parts of texts. Raises: VocabularyError if it was built here and encodes otherwise
        than `encoder`."""
        if self.level is not Level.ALIGNED:
            library = load_library(self.spec.document)
            library.encode_special_tokens = True
            if self.level is Level.BY_TEXT:
                take_bytes(library, self.spec, self.splitter)
            return library
        library = build_library(self.spec, self.splitter)
        for text in map(self.prepared, plain_texts(self.spec)[::9]):
            if self.encoder.encode(text.encode()) != library.encode(text).ids:
                raise VocabularyError(
                    f"the tokenizers library encodes {ascii(text)[:80]} otherwise than tokalign; "
                    "choose another model, and report this tokenizer to tokalign's developers"
                )
        return library

    # -- texts -------------------------------------------------------------------------------------

    def encode(self, text: str, *, specials: bool = False) -> list[Id]:
        """Encode a whole text: with the dummy prefix if the tokenizer has one, but without BOS.

        specials: whether spellings of special tokens become those tokens, as chat templates need.
        Otherwise they are ordinary text, so that a user's words cannot forge a turn.
        """
        spec = self.spec
        if not specials or spec.markup is Markup.NOBODY or not (self._markup or spec.document):
            return self.encode_parts([self.prepared(text)])[0]
        if spec.markup is Markup.LIBRARY:
            whole = self._whole
            with giving_up():
                return cast("list[Id]", whole.encode(text, add_special_tokens=False).ids)
        ids: list[Id] = []
        for place, part in enumerate(spelled_in(text, self._markup).split(text)):
            if place % 2:
                ids.append(self._markup[part])
            else:
                inside = place and spec.prefix_once
                text = self.normalized(part) if inside else self.prepared(part)
                ids += self.encode_parts([text])[0]
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[Id]]:
        """Encode many whole texts on all cores; the same as `encode` of each."""
        return self.encode_parts([self.prepared(text) for text in texts])

    def encode_parts(self, parts: Sequence[str]) -> list[list[Id]]:
        """Encode parts of texts as they are, without adding a dummy prefix, on all cores.

        A prompt of an aligned tokenizer is encoded without the library: loading its vocabulary
        takes longer than encoding 100,000 characters. Raises: VocabularyError if the library gives
        up.
        """
        if self.level is Level.ALIGNED:
            self._encoded += sum(map(len, parts))
            if self._encoded < _FEW:
                return [self.encoder.encode(part.encode()) for part in parts]
        cut = [[part] if self.level is Level.ALIGNED else self.cut_markup(part) for part in parts]
        library, texts = self._library, [*chain.from_iterable(cut)]
        with giving_up():
            encodings = library.encode_batch_fast(texts, add_special_tokens=False)
        ids = (cast("list[Id]", encoding.ids) for encoding in encodings)
        return [list(chain.from_iterable(islice(ids, len(pieces)))) for pieces in cut]

    def cut_markup(self, text: str) -> list[str]:
        """Divide a text so that no part of it is spelled as a special token, which some models find
        in any text."""
        if next(found_in(text, self._markup), None) is None:  # searching takes longer
            return [text]
        markup = spelled_in(text, self._markup).finditer(text, overlapped=True)
        cuts = {match.start() + 1 for match in markup}
        ends = [*sorted(cuts - {len(text)}), len(text)]
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    @cached_property
    def _markup(self) -> dict[str, Id]:
        """What becomes one token in a prompt: special tokens, and added ones of space marks."""
        marks = {spelling: cast("Id", i) for i, spelling in self.spec.marks.items()}
        return {**self.vocabulary.special_ids, **marks}

    def decode_whole(self, ids: Iterable[Id]) -> str:
        """What the library makes of `ids`, special tokens spelled. Raises: as the library."""
        return str(self._whole.decode(list(ids), skip_special_tokens=False))

    def decode(self, ids: Iterable[Id]) -> str:
        """The text of a whole encoding, without dummy prefix and special tokens."""
        if self.level is Level.IDS_ONLY:
            return str(self._whole.decode(list(ids)))
        data = self.vocabulary.bytes_of(ids)
        if self.spec.dummy_prefix:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def text_bytes(self, text: str) -> bytes:
        """The bytes that `encode(text)` stands for: the dummy prefix and the normalized text."""
        return self.prepared(text).encode("utf-8", "surrogateescape")

    def prepared(self, text: str) -> str:
        """The text that is cut into pieces: normalized, after the dummy prefix."""
        text, spec = self.normalized(text), self.spec
        if not spec.dummy_prefix or not text:
            return text
        return text if spec.prefix_unless_space and text[0] == " " else " " + text

    def normalized(self, text: str) -> str:
        """What the normalizers make of a text, spaces as spaces. They are the library's own."""
        if self._normalizer is not None and text:
            text = self._normalizer.normalize_str(text)
        return text.replace(SPACE_MARK, " ") if self.spec.by_characters else text

    @cached_property
    def _normalizer(self) -> Any:
        steps = self.spec.normalizer
        if not steps:
            return None
        sequence = {"type": "Sequence", "normalizers": list(steps)}
        return library_of(normalizer=sequence).normalizer
