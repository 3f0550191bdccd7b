"""A tokenizer without the spelling of any file: what every reader returns, and the limits that it
has to keep to, whichever file it came from.

The limits are several times what the largest published vocabularies need (262,144 ids, tokens of
128 bytes). They are there so that a file cannot make a reader run out of memory or time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from tokalign.errors import VocabularyError
from tokalign.tokenizer.bpe.identity import are_implied
from tokalign.tokenizer.bpe.pretokenizer import GPT2_PATTERN
from tokalign.tokenizer.vocabulary import Roles

NO_MERGES: NDArray[np.int64] = np.empty((0, 3), dtype=np.int64)

Step = Mapping[str, Any]
"""A step of a pipeline, as a tokenizer.json spells it."""

_TURN_START = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>")
_TURN_END = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
_BOS = ("<s>", "<|begin_of_text|>", "<bos>")
_EOS = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<|eom_id|>", "<eos>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplement:
    """What a vocabulary file leaves out and a model's tokenizer.json would say.

    tiktoken's ranks lack the pre-tokenizer and the special tokens; Mistral's tokenizer.model lacks
    the tokens that Bielik added.

    pattern: cuts texts into pieces. ignore_merges: as in `TokenizerSpec`.
    ranked_by_id: pieces merge in the order of their ids, not of their scores. Mistral's runs of
        spaces have the first ids but a score of -1e9.
    specials: id -> spelling; eos: the spelling of the token that ends a text.
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

    OURS: `Tokenizer.encode`, where all of them are found by their spellings alone.
    LIBRARY: the library, where what is around them or a normalizer decides.
    NOBODY: they are text in prompts, too (`split_special_tokens`, Mistral's own tokenizers).
    """

    OURS = "ours"
    LIBRARY = "library"
    NOBODY = "nobody"


class Level(StrEnum):
    """What is known of how a tokenizer encodes text; each level has all that the one below it has.

    ALIGNED: BPE whose pieces and merges are known, so that pairs of tokens and growing texts are
        judged by theory.
    BY_TEXT: tokens are bytes and pieces are known, but only the library encodes a piece (Unigram).
    IDS_ONLY: texts are encoded and ids are decoded by the library, and nothing more is known.
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
        """The expression whose matches are the pieces, if that is all that the pre-tokenizer does.

        None for texts that are not cut. Raises: ValueError for other steps.
        """
        match [step for step in self.pre_tokenizer if cuts(step)]:
            case []:
                return None
            case [{"type": "ByteLevel"}]:
                return GPT2_PATTERN
            case [{"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated"}]:
                return pattern
        raise ValueError("more than one expression")

    @property
    def _spelled_bytes(self) -> int:
        """How many bytes have a token, so that no text needs the unknown one."""
        ids = self.fallback if self.by_characters else range(len(self.tokens))
        return len({self.tokens[i] for i in ids if len(self.tokens[i]) == 1})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides how the bytes of a text are encoded, 64 hex digits.

        It covers the ordinary tokens with their ids, added tokens in text among them, the merges,
        the normalizer and the pre-tokenizer, the dummy prefix, and what becomes of unknown
        characters. It leaves out the special tokens, so that a fine-tune that adds some keeps every
        table valid, and which texts get no dummy prefix (`prefix_once`, `prefix_unless_space`),
        because tables are about bytes. The same tokenizer has the same fingerprint whichever kind
        of file it was read from.
        """
        results = self.triples[:, 2]
        made = results[np.sort(np.unique(results, return_index=True)[1])].tolist()
        facts: list[Any] = [
            [(i, token, i in self.fallback) for i, token in enumerate(self.tokens) if token],
            made,
        ]
        try:
            facts.append([self.by_characters, self.pattern, self.dummy_prefix, self.ignore_merges])
        except ValueError:
            steps = json.dumps(self.pre_tokenizer, sort_keys=True)
            facts.append([self.by_characters, steps, self.dummy_prefix, self.ignore_merges, True])
        if self.text_tokens:
            facts.append(sorted(self.text_tokens))
        if not are_implied(self.tokens, self.triples, self.fallback | self.text_tokens):
            facts.append(["merges", self.triples.tobytes()])
        if self.normalizer:
            facts.append(["normalizer", json.dumps(self.normalizer, sort_keys=True)])
        if self.unknown is not None and self._spelled_bytes < 256:
            facts.append(["unknown", self.unknown, self.fuses_unknown])
        if self.level is not Level.ALIGNED:
            document = json.loads(self.document)
            parts = {part: document.get(part) for part in ("model", "normalizer", "pre_tokenizer")}
            added = document.get("added_tokens") or ()
            parts["added_tokens"] = [token for token in added if not token.get("special")]
            facts.append(json.dumps(parts, sort_keys=True))
        return sha256(msgpack.packb(facts)).hexdigest()


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


def find_roles(specials: Mapping[int, str], config: Mapping[str, Any]) -> Roles[int]:
    """Give special tokens their roles.

    config: `bos_token` and `eos_token` as in a tokenizer_config.json, or nothing; well-known
        spellings fill the gaps.
    """
    ids = {spelling: index for index, spelling in specials.items()}

    def first(spellings: Iterable[str]) -> int | None:
        return next((ids[s] for s in spellings if s in ids), None)

    def configured(key: str) -> list[str]:
        value = config.get(key)
        spelling = value.get("content") if isinstance(value, dict) else value
        return [spelling] if isinstance(spelling, str) else []

    turn_end = first(_TURN_END)
    ends = {ids[spelling] for spelling in (*_EOS, *configured("eos_token")) if spelling in ids}
    return Roles(
        bos=first((*configured("bos_token"), *_BOS)),
        eos=frozenset(ends if turn_end is None else {*ends, turn_end}),
        turn_start=first(_TURN_START),
        turn_end=turn_end,
    )


_HTML = frozenset(
    (
        *("a", "b", "blockquote", "br", "caption", "code", "div", "em", "i", "li", "ol", "p"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "span", "strong", "sub", "sup", "table", "tbody"),
        *("td", "tfoot", "th", "thead", "tr", "u", "ul"),
    )
)


def is_control(spelling: str, *, special: bool, in_vocabulary: bool) -> bool:
    """Whether an added token must never be made of a user's words.

    All special tokens are, and whatever is spelled as markup (`<tool_call>`, `[INST]`): the files
    of many models do not call it special. Tags of HTML that a vocabulary was trained with are not.
    """
    if special:
        return True
    if len(spelling) < 3 or spelling[0] + spelling[-1] not in ("<>", "[]"):
        return False
    return not in_vocabulary or spelling[1:-1].removeprefix("/") not in _HTML


def as_triples(merges: Sequence[tuple[int, int, int]] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Merges as `TokenizerSpec` has them."""
    return np.asarray(merges, dtype=np.int64).reshape(-1, 3)


def every_triple(
    order: Iterable[int], tokens: Sequence[bytes], literal: Mapping[bytes, int]
) -> NDArray[np.int64]:
    """Every way to make each token from two others, as (left, right, result) in order of rank.

    This is what files mean that rank tokens instead of listing merges: any two neighbours whose
    bytes form a token are merged, the best-ranked token first.
    order: the tokens in order of rank; literal: bytes -> id, without byte fallback.
    Raises: VocabularyError for a token that is too long.
    """
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


# -- limits ----------------------------------------------------------------------------------------

MAX_IDS = 1 << 21
"""How many ids a vocabulary may have."""

MAX_TOKEN_BYTES = 1024
"""How long a token may be."""

MAX_FILE_BYTES = 128 << 20
"""How large a tokenizer file may be, and the tokenizer_config.json beside it."""

MAX_PATTERN = 8192
"""How many characters the pre-tokenizer's regular expression may have."""

TRY_ANOTHER = "download the file again, or use the one that the model's authors published"
"""The remedy for a file that is not what it should be."""


def checked_id(value: Any, what: str) -> int:
    """An id as a file gives it, if it is one.

    what: whose id it is, for the message. Raises: VocabularyError.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_IDS:
        return value
    raise VocabularyError(
        f"gives {shortened(what)} the id {shortened(value)}, where an integer from 0 to "
        f"{MAX_IDS - 1:,} was expected; {TRY_ANOTHER}"
    )


def checked_ids(ids: Mapping[Any, Any]) -> None:
    """Check that every token has an id of its own: token -> id. Raises: VocabularyError.

    Cost: 5 ms for 128,000 tokens.
    """
    values = ids.values()
    if set(map(type, values)) != {int} or min(values) < 0 or max(values) >= MAX_IDS:
        for token, value in ids.items():
            checked_id(value, f"the token {shortened(token, 30)}")
    if len(set(values)) < len(ids):
        seen: set[int] = set()
        twice = next(i for i in values if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise VocabularyError(f"gives the id {twice} to two tokens; {TRY_ANOTHER}")


def flag(holder: Any, key: str, *, default: bool) -> bool:
    """A switch of a file: true or false. Raises: VocabularyError."""
    value = holder.get(key)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise VocabularyError(
        f"has {shortened(value)} for {key}, where true or false was expected; {TRY_ANOTHER}"
    )


def shortened(value: Any, limit: int = 60) -> str:
    """A value of a file in one short line that is safe to print."""
    spelled = value if isinstance(value, str) and value.isprintable() else ascii(value)
    return spelled if len(spelled) <= limit else spelled[: limit - 1] + "…"


def check_lengths(tokens: Sequence[bytes]) -> None:
    """Refuse (VocabularyError) a token that is too long: making it takes time by its square."""
    longest = max(map(len, tokens), default=0)
    if longest > MAX_TOKEN_BYTES:
        raise VocabularyError(
            f"has a token of {longest:,} bytes, where at most {MAX_TOKEN_BYTES:,} were expected; "
            f"{TRY_ANOTHER}"
        )


def checked_pattern(pattern: Any) -> str:
    """The expression of a pre-tokenizer. Raises: VocabularyError for what is none."""
    if isinstance(pattern, str) and 0 < len(pattern) <= MAX_PATTERN:
        return pattern
    raise VocabularyError(
        f"pre-tokenizes with {shortened(pattern)}, where a regular expression of at most "
        f"{MAX_PATTERN:,} characters was expected; {TRY_ANOTHER}"
    )
