"""A tokenizer without the spelling of any file: what every reader returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.tokenizer.bpe.expressions import GPT2_PATTERN
from tokalign.tokenizer.limits import check_lengths
from tokalign.tokenizer.vocabulary import Roles

NO_MERGES: NDArray[np.int64] = np.empty((0, 3), dtype=np.int64)

Step = Mapping[str, Any]
"""A step of a pipeline, as a tokenizer.json spells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplement:
    """What a vocabulary file leaves out and a model's tokenizer.json would say.

    pattern: cuts texts into pieces. ranked_by_id: pieces merge in the order of their ids, not of
    their scores, as Mistral's runs of spaces have. specials: id -> spelling. eos: a spelling.
    nfc: texts are put into the Unicode normal form C.
    """

    pattern: str | None = None
    ignore_merges: bool = False
    ranked_by_id: bool = False
    specials: Mapping[int, str] = field(default_factory=dict)
    eos: str | None = None
    nfc: bool = False


class Markup(StrEnum):
    """Who finds special tokens in a prompt.

    OURS: `Tokenizer.encode`, by their spellings alone. LIBRARY: the library, where what is around
    them or a normalizer decides. NOBODY: they are text, too (Mistral's own tokenizers).
    """

    OURS = "ours"
    LIBRARY = "library"
    NOBODY = "nobody"


class Level(StrEnum):
    """What is known of how a tokenizer encodes text; each level has all that the one below it has.

    ALIGNED: BPE whose pieces and merges are known. BY_TEXT: tokens are bytes and pieces are known,
    but only the library encodes a piece (Unigram). IDS_ONLY: the library encodes and decodes.
    """

    ALIGNED = "aligned"
    BY_TEXT = "by text"
    IDS_ONLY = "ids only"


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenizerSpec:
    """A tokenizer, without the spelling of any file.

    tokens: id -> bytes; `b""` for special tokens and for holes in the numbering.
    triples: the merges as (left, right, result), in order of rank, i64[merges, 3].
    fallback: ids that spell a single byte (SentencePiece's `<0xNN>`).
    specials: id -> spelling of the special tokens. markup: who finds them in a prompt.
    by_characters: encoding starts from characters (SentencePiece), not bytes.
    normalizer, pre_tokenizer: the steps before the model, as a tokenizer.json spells them, but for
        those that only mark spaces or cut nothing. Normalizers work on whole texts where they come
        in; bytes are never changed.
    text_tokens: added tokens that are found in ordinary text before anything else.
    marks: id -> spelling of added tokens of SentencePiece's space marks. Nobody writes these, but a
        prompt that has them has the tokens; elsewhere the tokens are merged from spaces.
    unknown: the id of a character that no token spells; None if it is dropped. fuses_unknown:
        whether several in a row become one.
    dummy_prefix: a space is put before the text, and before each text between special tokens.
    ignore_merges: a piece that is a token becomes that token without merging (Llama 3).
    opening, closing: the ids that the tokenizer puts before and after every prompt (BOS, EOS).
    prefix_once: the dummy prefix is put before the text only, not after special tokens.
    prefix_unless_space: there is no dummy prefix before a text that begins with a space.
    level: see `Level`; why: what keeps the tokenizer from a higher one.
    document: the tokenizer.json, where only the library knows what to do with it.
    """

    tokens: tuple[bytes, ...]
    triples: NDArray[np.int64] = field(default_factory=lambda: NO_MERGES)
    fallback: frozenset[int] = frozenset()
    specials: Mapping[int, str] = field(default_factory=dict)
    markup: Markup = Markup.OURS
    roles: Roles[int] = field(default_factory=Roles)
    by_characters: bool
    normalizer: tuple[Step, ...] = ()
    pre_tokenizer: tuple[Step, ...] = ()
    text_tokens: frozenset[int] = frozenset()
    marks: Mapping[int, str] = field(default_factory=dict)
    unknown: int | None = None
    fuses_unknown: bool = False
    dummy_prefix: bool = False
    ignore_merges: bool = False
    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    prefix_once: bool = False
    prefix_unless_space: bool = False
    level: Level = Level.ALIGNED
    why: str = ""
    document: bytes = b""

    def __post_init__(self) -> None:
        object.__setattr__(self, "triples", as_triples(self.triples))

    @property
    def pattern(self) -> str | None:
        """The expression whose matches are the pieces; None for texts that are not cut. Raises:
        ValueError for other steps."""
        match [step for step in self.pre_tokenizer if cuts(step)]:
            case []:
                return None
            case [{"type": "ByteLevel"}]:
                return GPT2_PATTERN
            case [{"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated"}]:
                return pattern
        raise ValueError("more than one expression")

    @property
    def spells_every_byte(self) -> bool:
        """Whether every text has an encoding without unknown or lost characters."""
        ids = self.fallback if self.by_characters else range(len(self.tokens))
        return len({self.tokens[i] for i in ids if len(self.tokens[i]) == 1}) == 256

    @property
    def joins_words(self) -> bool:
        """Whether more than merges decides about a text that is not cut: a Unigram model, or lost
        characters, beside which merges go on as if these were not there."""
        by_model = self.level is not Level.ALIGNED and not len(self.triples)
        return by_model or (self.unknown is None and not self.spells_every_byte)


def cuts(step: Step) -> bool:
    """Whether a step of a pre-tokenizer does more than to spell bytes in the byte alphabet."""
    return step["type"] != "ByteLevel" or bool(step.get("use_regex", True))


def byte_level(pattern: str | None) -> tuple[Step, ...]:
    """The pre-tokenizer of byte-level BPE after cutting by an expression."""
    alphabet = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    alphabet["trim_offsets"] = False
    if pattern is None:
        return (alphabet,)
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return (cut, alphabet)


def as_triples(merges: Sequence[tuple[int, int, int]] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Merges as `TokenizerSpec` has them."""
    return np.asarray(merges, dtype=np.int64).reshape(-1, 3)


def every_triple(
    order: Iterable[int], tokens: Sequence[bytes], literal: Mapping[bytes, int]
) -> NDArray[np.int64]:
    """Every way to make each token from two others, which files mean that rank tokens. order: by
    rank. literal: bytes -> id, without byte fallback. Raises: VocabularyError."""
    check_lengths(tokens)
    triples: list[tuple[int, int, int]] = []
    for result in order:
        token = tokens[result]
        halves = [
            (left, right)
            for cut in range(1, len(token))
            if (left := literal.get(token[:cut])) is not None
            and (right := literal.get(token[cut:])) is not None
        ]
        triples += [(left, right, result) for left, right in sorted(halves)]
    return as_triples(triples)
