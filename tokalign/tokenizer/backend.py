"""The `tokenizers` library's tokenizer, loaded from a file or built from a specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from tokalign.tokenizer.bpe.pretokenizer import Splitter
from tokalign.tokenizer.library import LibrarySplitter
from tokalign.tokenizer.spec import TokenizerSpec
from tokalign.tokenizer.spelling import SPACE_MARK, write_byte_level, write_pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


def load_library(document: bytes) -> Library:
    """The tokenizer of a tokenizer.json, without truncation and padding. Raises as the library."""
    from tokenizers import Tokenizer as Library

    library = Library.from_buffer(document)
    library.no_truncation()
    library.no_padding()
    return library


def build_library(spec: TokenizerSpec, splitter: Splitter) -> Library:
    """A tokenizer for an aligned `spec`, without special tokens and dummy prefix. Cost: 0.2 s for
    32,000 tokens, 0.8 s for 128,000."""
    from tokenizers import AddedToken, models
    from tokenizers import Tokenizer as Library

    spellings = (
        write_pieces(spec.tokens, spec.fallback)
        if spec.by_characters
        else write_byte_level(spec.tokens)
    )
    for index in spec.text_tokens:
        spellings[index] = spec.tokens[index].decode()
    unknown = None if spec.unknown is None else spec.specials.get(spec.unknown)
    if unknown is not None:
        spellings[cast("int", spec.unknown)] = unknown
    named = np.array([*map(bool, spellings)])
    triples = spec.triples.tolist()
    library = Library(
        models.BPE(
            vocab={spellings[i]: i for i in merged_last(spec, named)},
            merges=[(spellings[left], spellings[right]) for left, right, _ in triples],
            byte_fallback=bool(spec.fallback),
            ignore_merges=spec.ignore_merges,
            unk_token=unknown,
            fuse_unk=spec.fuses_unknown,
        )
    )
    take_bytes(library, spec, splitter)
    library.add_tokens(
        [AddedToken(spellings[i], normalized=False) for i in sorted(spec.text_tokens)]
    )
    return library


def take_bytes(library: Library, spec: TokenizerSpec, splitter: Splitter) -> None:
    """Have the library leave out what is done to whole texts, and get every piece by itself."""
    from tokenizers import Regex, pre_tokenizers

    steps = []
    if spec.pre_tokenizer:
        steps.append(LibrarySplitter(spec.pre_tokenizer).pre_tokenizer)
    elif splitter.cuts_at_spaces:
        steps.append(pre_tokenizers.Split(Regex(" *[^ ]+| +"), "isolated"))
    if spec.by_characters:  # last, for the others may ask for spaces
        steps.append(pre_tokenizers.Metaspace(SPACE_MARK, "never", split=False))
    library.normalizer = None
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)


def merged_last(spec: TokenizerSpec, chosen: NDArray[np.bool_]) -> list[int]:
    """Ids, so that of several tokens of the same bytes (Yi) the one that merges know comes last,
    else the lowest."""
    merged = np.zeros(len(spec.tokens), dtype=bool)
    merged[spec.triples] = True
    known, others = (np.flatnonzero(chosen & some)[::-1] for some in (merged, ~merged))
    return [*others.tolist(), *known.tolist()]
