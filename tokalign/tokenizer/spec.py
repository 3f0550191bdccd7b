"""A BPE tokenizer free of any file's spelling: read by `tokenizer_files`, used by all the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import msgpack  # type: ignore[import-untyped]

from tokalign.tokenizer.vocabulary import Roles

_TURN_START = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>")
_TURN_END = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
_BOS = ("<s>", "<|begin_of_text|>", "<bos>")
_EOS = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<|eom_id|>", "<eos>")
_PAD = ("<pad>", "<|finetune_right_pad_id|>", "<|endoftext|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplement:
    """What a vocabulary file leaves out and a model's tokenizer.json would say.

    Ranks lack the pre-tokenizer and the special tokens; Mistral's tokenizer.model lacks the tokens
    that Bielik added. `specials` maps ids to spellings. `ranked_by_id`: pieces merge in the order
    of their ids, whatever their scores (Mistral's runs of spaces: the first ids, score -1e9).
    """

    pattern: str | None = None
    ignore_merges: bool = False
    ranked_by_id: bool = False
    specials: Mapping[int, str] = field(default_factory=dict)
    eos: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """A BPE tokenizer, free of any file's spelling.

    tokens: id -> bytes; `b""` for special tokens and for holes in the numbering.
    triples: (left, right, result), first rank first.
    by_characters: merging starts from characters with byte fallback (SentencePiece), not bytes.
    pattern: the pre-tokenizer's regular expression; `None` without one.
    dummy_prefix: a space is put before the text, and before each text between special tokens.
    adds_bos: the tokenizer itself begins every encoding with `roles.bos`.
    """

    tokens: tuple[bytes, ...]
    triples: Sequence[tuple[int, int, int]]
    fallback: frozenset[int]
    specials: Mapping[int, str]
    roles: Roles
    by_characters: bool
    pattern: str | None = None
    dummy_prefix: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all that decides how text is encoded; 64 hex digits.

        Ordinary tokens with their ids, the order in which the merges make them, pre-tokenizer and
        dummy prefix. Not the special tokens: a fine-tune that adds some keeps every table valid.
        The same tokenizer has one fingerprint whichever kind of file it was read from.
        """
        made = list(dict.fromkeys(result for _, _, result in self.triples))
        facts = [
            [(i, token, i in self.fallback) for i, token in enumerate(self.tokens) if token],
            made,
            [self.by_characters, self.pattern, self.dummy_prefix, self.ignore_merges],
        ]
        return sha256(msgpack.packb(facts)).hexdigest()


def byte_alphabet() -> tuple[str, ...]:
    """GPT-2's printable stand-in for each byte (openai/gpt-2, `encoder.py`, bytes_to_unicode).

    Printable Latin-1 characters stand for themselves; the 68 others take U+0100 and up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return tuple(chr(b) if b in printable else chr(next(stand_ins)) for b in range(256))


def find_roles(specials: Mapping[int, str], config: Mapping[str, Any]) -> Roles:
    """Give special tokens their roles, from the model's configuration and well-known spellings."""
    ids = {spelling: index for index, spelling in specials.items()}

    def configured(key: str) -> int | None:
        value = config.get(key)
        return ids.get(value["content"] if isinstance(value, dict) else value or "")

    def first(spellings: Iterable[str]) -> int | None:
        return next((ids[s] for s in spellings if s in ids), None)

    turn_end, eos = first(_TURN_END), configured("eos_token")
    bos = configured("bos_token")
    bos = bos if bos is not None else first(_BOS)
    unk, pad = configured("unk_token"), configured("pad_token")
    ends = {ids[s] for s in _EOS if s in ids} | {i for i in (turn_end, eos) if i is not None}
    return Roles(
        bos=bos,
        eos=frozenset(ends),
        turn_start=first(_TURN_START),
        turn_end=turn_end,
        pad=pad if pad is not None else first(_PAD),
        unk=unk if unk is not None else ids.get("<unk>"),
        control=frozenset(specials) - ends,
    )


def every_triple(
    order: Iterable[int], tokens: Sequence[bytes], literal: Mapping[bytes, int]
) -> list[tuple[int, int, int]]:
    """Every way to make each token of two others, in the order in which tokens are made.

    Files with scores or ranks instead of merges mean this: any two neighbours whose bytes form a
    token are merged, the best-ranked token first.
    """
    triples = []
    for result in order:
        token = tokens[result]
        halves = [
            (left, right)
            for cut in range(1, len(token))
            if (left := literal.get(token[:cut])) is not None
            and (right := literal.get(token[cut:])) is not None
        ]
        triples += [(left, right, result) for left, right in sorted(halves)]
    return triples
