"""A shard of a corpus as ids of tokens.

`WordEncoder` encodes every word once, then looks it up. A *word* begins at each space that comes
after something other than white space. If no piece of the tokenizer crosses such a cut
(`words_stand_alone`), a text is encoded word by word: 131 MB of Polish are 18 million words, a
million of them different. Otherwise the library encodes each text.

New words that begin with a space are encoded together, as one text, and its ids are cut where the
bytes of each word end. That takes a third of the time of as many short texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from tokalign.build.corpus import batches
from tokalign.build.counting.windows import IdArray, IdSpace
from tokalign.tokenizer.bpe.pretokenizer import Splitter, has_inner_space
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

MAX_WORDS = 1 << 20

BYTES_PER_WORD = 260
"""The memory that a remembered word takes, ids included."""

_LONGEST = 48  # characters; longer words are rare and are not remembered
_WORD = re.compile(r".[^ ]*(?:(?<=\s) +[^ ]*)*", re.DOTALL)
_AT_ONCE = 1 << 14  # characters; the library takes 200 bytes for each

# Texts before and after a cut: letters, digits, signs, and what pre-tokenizers treat specially.
_ENDS = ("a", "Ż", "7", "1234", ",", "...", "'s", "’", "–", "字", "\u0301", "\u200b", "x_", "=\t)")
_STARTS = (
    *(" a", " Ż", " 7", " 1234", " ,", " 's", " –", "  x", " \t", " \u00a0y", " ", "   ", " ▁"),
    *(" \n", " \n b"),
)


def words_stand_alone(splitter: Splitter) -> bool:
    """Whether no piece has a space after something other than white space, as probing finds."""
    return all(
        splitter.split(end + start) == splitter.split(end) + splitter.split(start)
        for end in map(str.encode, _ENDS)
        for start in map(str.encode, _STARTS)
    )


class WordEncoder:
    """Encodes shards, one after the other, and remembers up to `max_words` words."""

    def __init__(self, tokenizer: Tokenizer[TargetId], max_words: int = MAX_WORDS) -> None:
        self._tokenizer, self._max_words = tokenizer, max_words
        self.space = IdSpace(len(tokenizer.vocabulary))
        # Whether a line's encoding is that of its words, each of which the merges encode.
        self._by_words = (
            tokenizer.level is Level.ALIGNED
            and tokenizer.bpe.spells_all
            and words_stand_alone(tokenizer.splitter)
            and not any(map(has_inner_space, tokenizer.vocabulary.tokens))
        )
        self._lengths = np.array([len(token) for token in tokenizer.vocabulary.tokens])
        self._known: dict[str, bytes] = {}  # the ids of each word, as they stand in an array

    def encode(self, texts: Sequence[str]) -> IdArray:
        """The ids that `Tokenizer.encode` gives for each text, each followed by a gap. Cost: 45 ms
        per MB of Polish for words met before, and 3 us for each new word."""
        gap = np.array([self.space.gap], dtype=self.space.dtype).tobytes()
        prepared = [self._tokenizer.prepared(text) for text in texts]
        if not self._by_words:
            ids = [part + gap for part in self._ids(prepared)]
            return np.frombuffer(b"".join(ids), dtype=self.space.dtype)
        if len(self._known) > self._max_words:
            self._known = {}
        self._known[""] = gap
        words = list[str]()
        for text in prepared:
            words += _WORD.findall(text)
            words.append("")
        new = set(words) - self._known.keys()
        self._learn(new)
        ids = list(map(self._known.__getitem__, words))
        for word in new:
            if len(word) > _LONGEST:
                del self._known[word]
        return np.frombuffer(b"".join(ids), dtype=self.space.dtype)

    def _learn(self, words: Iterable[str]) -> None:
        alone, joinable = list[str](), list[str]()
        for word in words:
            (joinable if word[0] == " " and not word[-1].isspace() else alone).append(word)
        self._known.update(zip(alone, self._ids(alone), strict=True))
        for some in batches(joinable, _AT_ONCE):
            self._known.update(zip(some, self._ids_of_joined(some), strict=True))

    def _ids(self, texts: Sequence[str]) -> Iterator[bytes]:
        for some in batches(texts, _AT_ONCE):
            for ids in self._tokenizer.encode_parts(some):
                yield np.array(ids, dtype=self.space.dtype).tobytes()

    def _ids_of_joined(self, words: Sequence[str]) -> Iterator[bytes]:
        """The ids of words that are encoded as one text: those that spell each word's bytes."""
        [encoded] = self._tokenizer.encode_parts(["".join(words)])
        ids = np.array(encoded, dtype=self.space.dtype)
        ends = np.cumsum(list(map(len, map(str.encode, words))))
        cuts = np.searchsorted(np.cumsum(self._lengths[ids]), ends) + 1
        data, size = ids.tobytes(), ids.itemsize
        for start, end in pairwise([0, *(cuts * size).tolist()]):
            yield data[start:end]
