"""Reading tokenizer.json, the file of Hugging Face's `tokenizers` library.

The library's own objects do what its normalizers and pre-tokenizers say. What is read here of these
steps is what only a growing text asks for: which spaces are put in front of texts, how a space is
spelled, and which steps cut nothing. A file that does more than is known here raises
VocabularyError, and is then used by its ids only.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import add
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, convert
from numpy.typing import NDArray

from tokalign.errors import VocabularyError
from tokalign.tokenizer.library import library_of
from tokalign.tokenizer.limits import (
    AGAIN,
    TRY_ANOTHER,
    TokenId,
    check_ids,
    check_lengths,
    shortened,
)
from tokalign.tokenizer.roles import find_roles, is_control, openings_and_ends
from tokalign.tokenizer.spec import NO_MERGES, Level, Markup, Step, TokenizerSpec
from tokalign.tokenizer.spelling import SPACE_MARK, read_byte_level, read_pieces


class _Added(Struct, frozen=True):
    """An added token."""

    id: TokenId
    content: Annotated[str, Meta(min_length=1)]
    special: bool = False
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @property
    def looks_around(self) -> bool:
        """Whether the text before and after it decides where it is found."""
        return self.lstrip or self.rstrip or self.single_word

    def is_text(self, vocab: Mapping[str, int]) -> bool:
        """Whether it is found in ordinary text by its spelling alone."""
        known = self.content in vocab
        is_markup = is_control(self.content, special=self.special, in_vocabulary=known)
        return not is_markup and not self.looks_around

    def is_stable(self, normalizers: Sequence[Step]) -> bool:
        """Whether a normalized text has it just where the library finds it."""
        if not normalizers:
            return True
        if self.normalized:  # it is found after the normalizers
            library = library_of(normalizer={"type": "Sequence", "normalizers": list(normalizers)})
            assert library.normalizer is not None, "one was given"
            return bool(library.normalizer.normalize_str(self.content) == self.content)
        canonical = all(step["type"] in ("NFC", "NFD") for step in normalizers)
        return canonical and _ALONE.fullmatch(self.content) is not None


_ALONE = re.compile(r"[\x00-\x7f]*[\x00-;?@\[-`{-\x7f]")
"""Texts that are in both canonical forms, whatever comes before and after them: they end with none
of the characters that combine with a mark."""


class _Model(Struct):
    """The model. vocab: a Unigram model lists its tokens in order, with their scores."""

    vocab: dict[str, int] | list[tuple[str, float]]
    type: str = "BPE"
    merges: list[str | tuple[str, str]] | None = None
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    unk_token: str | None = None
    fuse_unk: bool | None = None
    byte_fallback: bool | None = None
    ignore_merges: bool | None = None

    def require_bytes(self) -> None:
        """Raises: VocabularyError for a model whose tokens are not the bytes of a text."""
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if value := getattr(self, key):
                raise VocabularyError(
                    f"has {key} {shortened(value)}, so that the bytes of a text do not decide "
                    f"alone about its tokens; "
                    f"{'set it to null in the file' if key == 'dropout' else TRY_ANOTHER}"
                )

    def ids(self) -> dict[str, int]:
        """The spellings of the tokens with their ids. Raises: VocabularyError."""
        vocab = self.vocab
        if isinstance(vocab, list):
            vocab = {spelling: index for index, (spelling, _) in enumerate(vocab)}
        if not vocab:
            raise VocabularyError(f"has no vocabulary of tokens and ids; {AGAIN}")
        check_ids(vocab)
        return vocab


def read_tokenizer_json(document: Any, config: Mapping[str, Any]) -> TokenizerSpec:
    """Raises: VocabularyError for what is not known here; KeyError, TypeError or ValueError for a
    broken file."""
    model = convert(document["model"], _Model)
    model.require_bytes()
    is_bpe, vocab = model.type == "BPE", model.ids()
    added = _read_added(document, vocab)
    spellings = [""] * (1 + max(max(vocab.values()), max(added, default=0)))
    for spelling, index in vocab.items():
        spellings[index] = spelling
    for index in added:
        spellings[index] = ""
    by_characters = "ByteLevel" not in str(document.get("pre_tokenizer"))
    if not by_characters:
        tokens, fallback = read_byte_level(spellings), frozenset[int]()
    else:
        tokens, fallback = read_pieces(spellings, fallback=bool(model.byte_fallback))
    # No text can give what the byte alphabet does not spell: it is a hole in the numbering.
    spelled = [token or b"" for token in tokens]
    pipeline = _read_pipeline(document, spelled, by_characters=by_characters)
    if fallback and SPACE_MARK not in vocab:
        raise VocabularyError(f"has no token {SPACE_MARK}, so that bytes spell it; {AGAIN}")
    # What happens to a text before the pre-tokenizer, but for marks in place of spaces.
    steps = _read_steps(document.get("normalizer"), "normalizers")
    normalizers = [step for step in steps if step != _TAKES_SPACES]
    named = openings_and_ends(config)
    written = {
        i: token.content
        for i, token in added.items()
        if token.content not in named and token.is_text(vocab) and token.is_stable(normalizers)
    }
    marks = {i: text for i, text in written.items() if by_characters and SPACE_MARK in text}
    if pipeline["dummy_prefix"]:  # which the library puts after an added token, too, or not before
        written = marks
    specials = {i: token.content for i, token in added.items() if i not in written}
    if not by_characters:
        _check_alphabet(written.values(), specials.values(), vocab)
    for index, text in written.items():
        spelled[index] = (text.replace(SPACE_MARK, " ") if index in marks else text).encode()
    unknown = model.unk_token if is_bpe else None
    later = {i for i in written if added[i].normalized}
    # The first of two that overlap is found by either order.
    if _begins_in([written[i] for i in written.keys() - later], [written[i] for i in later]):
        raise VocabularyError(f"looks for some added tokens before others that overlap; {AGAIN}")
    by_library = _overlap(specials.values(), written.values()) or any(
        added[i].looks_around or (added[i].normalized and normalizers) for i in specials
    )
    return TokenizerSpec(
        tokens=tuple(spelled),
        triples=_listed_triples(model.merges, vocab) if is_bpe else NO_MERGES,
        fallback=fallback,
        specials=specials,
        markup=Markup.LIBRARY if by_library else Markup.OURS,
        roles=find_roles(specials, config),
        by_characters=by_characters,
        text_tokens=frozenset(written.keys() - marks),
        marks=marks,
        unknown=None if unknown is None else vocab.get(unknown),
        fuses_unknown=bool(model.fuse_unk),
        ignore_merges=bool(model.ignore_merges),
        level=Level.ALIGNED if is_bpe else Level.BY_TEXT,
        why="" if is_bpe else f"the model is {model.type}, not BPE",
        **pipeline,
    )


def _read_added(document: Mapping[str, Any], vocab: Mapping[str, int]) -> dict[int, _Added]:
    """The added tokens by id. Raises: VocabularyError where the file contradicts itself."""
    listed = convert(document.get("added_tokens") or [], list[_Added])
    check_lengths([token.content.encode() for token in listed])
    added: dict[int, _Added] = {}
    for token in listed:
        if added.setdefault(token.id, token).content != token.content:
            raise VocabularyError(f"adds the id {token.id} twice; {AGAIN}")
    ids = {token.content: index for index, token in added.items()}
    of_vocab = {index: spelling for spelling, index in vocab.items() if index in added}
    for spelling, index in ids.items():
        if vocab.get(spelling, index) != index or of_vocab.get(index, spelling) != spelling:
            raise VocabularyError(
                f"gives the added token {shortened(spelling)} the id {index}, but its vocabulary "
                f"says otherwise; {AGAIN}"
            )
    return added


def _check_alphabet(
    texts: Iterable[str], specials: Iterable[str], vocab: Mapping[str, int]
) -> None:
    """Refuse (VocabularyError) an added token with the id of other bytes: ą also spells the byte 5
    in GPT-2's alphabet. A special token of several bytes is made by merges alone."""
    known = [text for text in texts if text in vocab]
    known += [text for text in specials if len(text) == 1 and text in vocab]
    for text, data in zip(known, read_byte_level(known), strict=True):
        if data not in (None, text.encode()):
            raise VocabularyError(
                f"gives the added token {shortened(text)} the id of the bytes that its vocabulary "
                f"spells so; {AGAIN}"
            )


def _overlap(some: Iterable[str], others: Iterable[str]) -> bool:
    """Whether one of `some` and one of `others` can share characters of a text."""
    some, others = [*some], [*others]
    return _begins_in(some, others) or _begins_in(others, some)


def _begins_in(some: Iterable[str], others: Iterable[str]) -> bool:
    """Whether one of `some` can begin at a character of one of `others` in a text."""
    begun = sorted(some)
    known, sizes, firsts = {*begun}, {*map(len, begun)}, {text[0] for text in begun}
    for rest in (text[i:] for text in others for i, c in enumerate(text) if c in firsts):
        at = bisect_left(begun, rest)
        if at < len(begun) and begun[at].startswith(rest):
            return True
        if any(rest[:size] in known for size in sizes):
            return True
    return False


def _listed_triples(
    merges: Sequence[str | tuple[str, str]] | None, vocab: Mapping[str, int]
) -> NDArray[np.int64]:
    if merges is None:
        raise VocabularyError(f"has no list of merges; {AGAIN}")
    if not merges:
        return NO_MERGES
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    lefts, rights = zip(*pairs, strict=True)
    id_of = vocab.__getitem__
    try:
        columns = [
            [*map(id_of, lefts)],
            [*map(id_of, rights)],
            [*map(id_of, map(add, lefts, rights))],
        ]
    except KeyError as error:
        raise VocabularyError(
            f"has no token {shortened(error.args[0])}, which its merges name; {AGAIN}"
        ) from error
    return np.array(columns, dtype=np.int64).T


_PREPENDS = {"type": "Prepend", "prepend": SPACE_MARK}
_TAKES_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
_KEEPS_PREFIX = {"type": "Replace", "pattern": {"Regex": r"\A▁"}, "content": "▁▁"}
"""They mark the beginning of a text and its spaces, which bytes do as spaces. The last one has
Metaspace put its mark before a text that begins with a space, too (converted SentencePiece)."""

_MARKING = (_PREPENDS, _TAKES_SPACES, _KEEPS_PREFIX)


def _read_pipeline(
    document: Mapping[str, Any], tokens: Sequence[bytes], *, by_characters: bool
) -> dict[str, Any]:
    """What happens to a text before the model, as fields of `TokenizerSpec`. Raises:
    VocabularyError for steps that spell neither bytes nor the spaces of a text."""
    normalizer = _read_steps(document.get("normalizer"), "normalizers")
    steps = _read_steps(document.get("pre_tokenizer"), "pretokenizers")
    marking = _MARKING if by_characters else ()
    marks = [step for step in steps if step["type"] == "Metaspace"]
    scheme = _prefix_scheme(marks[0]) if marks else "never"
    spells = any(step["type"] == "ByteLevel" for step in steps) or _TAKES_SPACES in normalizer
    if not (marks or spells) or [mark["replacement"] for mark in marks] not in ([], [SPACE_MARK]):
        raise VocabularyError(
            "spells neither bytes nor the spaces of a text, so that its tokens are not the bytes "
            f"of a text; {AGAIN}"
        )
    before = {step["type"] for step in steps[: steps.index(marks[0])]} if marks else set()
    if scheme == "always" and before - {"WhitespaceSplit"}:
        raise VocabularyError(f"puts a space before every piece of a text; {AGAIN}")
    first = steps and steps[0]["type"] == "ByteLevel" and steps[0].get("add_prefix_space", True)
    prefixes, runs_of_spaces = scheme != "never" or bool(first), any(b" " in t[1:] for t in tokens)
    # Unigram decides between equally probable encodings of a piece by where the piece begins.
    by_pieces = document["model"].get("type", "BPE") != "BPE"

    def cuts(step: Step) -> bool:
        match step:
            case {"type": "Metaspace"}:
                return (runs_of_spaces or by_pieces) and bool(step.get("split", True))
            case {"type": "Split", "pattern": {"String": " "}}:
                # Gemma: the normalizer has left no space to split at
                return by_pieces and _TAKES_SPACES not in normalizer
            case {"type": "WhitespaceSplit"}:
                return runs_of_spaces  # before Metaspace, which spells the space again
        return True

    return {
        "normalizer": tuple(step for step in normalizer if step not in marking),
        "pre_tokenizer": tuple(filter(cuts, steps)),
        "dummy_prefix": prefixes or (by_characters and _PREPENDS in normalizer),
        "prefix_once": scheme == "first",
        "prefix_unless_space": prefixes and _KEEPS_PREFIX not in normalizer,
    }


def _prefix_scheme(mark: Step) -> str:
    never = mark.get("add_prefix_space") is False
    scheme = mark.get("prepend_scheme", "never" if never else "always")
    if scheme not in ("always", "first", "never"):
        raise VocabularyError(
            f"has {shortened(scheme)} for prepend_scheme, where always, first or never was "
            f"expected; {AGAIN}"
        )
    return str(scheme)


def _read_steps(node: Mapping[str, Any] | None, key: str) -> list[Step]:
    if node is None:
        return []
    if node["type"] == "Sequence":
        return [step for child in node[key] for step in _read_steps(child, key)]
    return [node]
