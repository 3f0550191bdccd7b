"""Where the target tokenizer would merge across a boundary, found from the merges alone.

Two steps. First, for every token the tokens that may not follow it: its right spine (see `bpe.py`)
meets the left spines of all others, turned around so that every merge is looked at once. Then the
byte strings under which *nothing* may follow: those are the merge sites.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

import marisa_trie
import numpy as np
from numpy.typing import NDArray

from tokalign.alignment_tables import MergeSites, row_key
from tokalign.bpe import BytePairEncoding
from tokalign.tokenizers import Tokenizer
from tokalign.vocab import TargetId

Ids = NDArray[np.int64]

Signature = tuple[tuple[int, int], ...]
"""(token of a right spine, how many of the tokens it is merged with count)."""


def find_merge_sites(
    target: Tokenizer[TargetId], *, progress: Callable[[int], None] = lambda _: None
) -> MergeSites:
    """Find, for every target token, the next bytes that would be merged into it.

    Example: with ` komputer` a token, `p` is a merge site of ` kom`: no canonical encoding has a
    boundary there. Exact and complete for SentencePiece BPE; where the target has a pre-tokenizer,
    for letters that certainly continue the token's piece (see `_continues_a_word`).
    progress: called with the number of tokens done since the last call.
    Cost: 10 s for 32,000 tokens. Source: rust-gems bpe README, corollary IIIa.
    """
    prefixes = _Prefixes.of(target)
    followers = _Followers(target.bpe, prefixes.tokens)
    search = _SiteSearch(target, prefixes, followers)
    rows = np.zeros(len(target.vocabulary), dtype=np.uint32)
    numbers: dict[tuple[bytes, ...], int] = {(): 0}
    for count, token in enumerate(prefixes.tokens.tolist(), 1):
        rows[token] = numbers.setdefault(search.sites(token), len(numbers))
        if count % 256 == 0:
            progress(256)
    keys = [row_key(row) + site for sites, row in numbers.items() for site in sites]
    return MergeSites(rows, marisa_trie.BinaryTrie(keys))


class _Followers:
    """Which tokens may not follow which."""

    def __init__(self, bpe: BytePairEncoding, tokens: Ids) -> None:
        self._bpe = bpe
        self.signature = cache(self._signature)
        # For each token b, the tokens that have b on their left spine, with the rank that ends b.
        starting_with: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for token in tokens.tolist():
            for b, _, used, _ in bpe.left_spine(token):
                starting_with[b].append((used, token))
        self._earliest = {
            a: _earliest_crossing(crossings, starting_with)
            for a, crossings in _crossings_by_left(bpe).items()
        }

    def _signature(self, token: int) -> Signature:
        """What decides which tokens are forbidden behind `token`; many tokens share one."""
        cuts = []
        for a, _, used, _ in self._bpe.right_spine(token):
            found = self._earliest.get(a)
            if found is not None:
                cut = int(np.searchsorted(found[0], used, side="left"))
                cuts += [(a, cut)] if cut else []
        return tuple(cuts)

    def forbidden(self, signature: Signature) -> Ids:
        """The tokens that `bpe.may_follow` refuses behind a token; unsorted, some twice."""
        parts = [self._earliest[a][1][:cut] for a, cut in signature]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _crossings_by_left(bpe: BytePairEncoding) -> dict[int, list[tuple[int, int]]]:
    """left id -> (right id, rank) of every merge it is the left half of."""
    crossings: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for pair, (rank, _) in bpe.merges.ranks.items():
        crossings[pair >> 32].append((pair & 0xFFFFFFFF, rank))
    return crossings


def _earliest_crossing(
    crossings: list[tuple[int, int]], starting_with: dict[int, list[tuple[int, int]]]
) -> tuple[Ids, Ids]:
    """(ranks ascending, tokens): when each token is first merged with this left half."""
    earliest: dict[int, int] = {}
    for b, rank in sorted(crossings, key=lambda crossing: crossing[1]):
        for used, token in starting_with.get(b, ()):
            if rank <= used:
                earliest.setdefault(token, rank)
    order = sorted((rank, token) for token, rank in earliest.items())
    return (
        np.array([rank for rank, _ in order], dtype=np.int64),
        np.array([token for _, token in order], dtype=np.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefixes:
    """The byte prefixes of all tokens that can occur, as ranges of the sorted vocabulary.

    tokens: i64[n], ids sorted by their bytes. position: i64[vocabulary], the inverse, -1 for none.
    node: i32[n, depth], the prefix of each length (in bytes) of each token; -1 past its end.
    size: i64[nodes], how many tokens start with the prefix.
    longer: each prefix -> the prefixes that are one byte longer.
    """

    tokens: Ids
    position: Ids
    node: NDArray[np.int32]
    size: Ids
    text: list[bytes]
    number: dict[bytes, int]
    longer: dict[bytes, list[bytes]]

    @classmethod
    def of(cls, target: Tokenizer[TargetId]) -> _Prefixes:
        spelled, fallback = target.vocabulary.tokens, target.vocabulary.fallback
        # Byte fallback never spells what a literal token does; `_falls_back` sees to the rest.
        occurring = [
            i
            for i, token in enumerate(spelled)
            if token and i not in fallback and target.bpe.reachable(i)
        ]
        tokens = np.array(sorted(occurring, key=lambda i: spelled[i]), dtype=np.int64)
        depth = max(len(spelled[i]) for i in occurring)
        node = np.full((len(tokens), depth), -1, dtype=np.int32)
        number: dict[bytes, int] = {}
        for row, token in enumerate(tokens.tolist()):
            data = spelled[token]
            for length in range(1, len(data) + 1):
                node[row, length - 1] = number.setdefault(data[:length], len(number))
        position = np.full(len(spelled), -1, dtype=np.int64)
        position[tokens] = np.arange(len(tokens))
        size = np.bincount(node[node >= 0], minlength=len(number))
        longer: dict[bytes, list[bytes]] = {prefix: [] for prefix in number}
        for prefix in number:
            if len(prefix) > 1:
                longer[prefix[:-1]].append(prefix)
        return cls(
            tokens=tokens,
            position=position,
            node=node,
            size=size,
            text=list(number),
            number=number,
            longer=longer,
        )


class _SiteSearch:
    """Finds the shortest byte strings that nothing canonical can begin with.

    All of it depends on a token only through its signature, and is remembered by it.
    """

    def __init__(
        self, target: Tokenizer[TargetId], prefixes: _Prefixes, followers: _Followers
    ) -> None:
        self._by_characters = target.spec.by_characters
        self._in_pieces = target.spec.pattern is not None
        self._spelled = target.vocabulary.tokens
        self._ids = target.vocabulary.id_of
        self._prefixes = prefixes
        self._followers = followers
        self._literal = {
            token for i, token in enumerate(self._spelled) if i not in target.vocabulary.fallback
        }
        self._symbols_by_lead = Counter(t[0] for t in self._literal if len(t) == 2 and t[0] >= 0xC2)
        self.refused = lru_cache(maxsize=4096)(self._refused)
        self.ways = cache(self._ways)
        self.is_open = cache(self._is_open)
        self.find = cache(self._find)

    def sites(self, token: int) -> tuple[bytes, ...]:
        """The merge sites of `token`, sorted."""
        if self._in_pieces and not _continues_a_word(self._spelled[token]):
            return ()
        return self.find(self._followers.signature(token))

    def _find(self, signature: Signature) -> tuple[bytes, ...]:
        found: list[bytes] = []
        candidates = self._blocked(signature)
        while candidates:
            data = candidates.pop()
            if self._in_pieces and not _starts_with_letter(data):
                continue
            if self._open_by_shorter(signature, data):
                candidates += self._prefixes.longer[data]  # one byte more may close it
            else:
                found.append(data)
        return tuple(sorted(found))

    def _blocked(self, signature: Signature) -> list[bytes]:
        """The shortest prefixes all of whose tokens are forbidden."""
        prefixes = self._prefixes
        rows = np.unique(prefixes.position[self._followers.forbidden(signature)])
        rows = rows[rows >= 0]
        blocked: list[bytes] = []
        for depth in range(prefixes.node.shape[1]):
            if not len(rows):
                break
            nodes, inverse, counts = np.unique(
                prefixes.node[rows, depth], return_inverse=True, return_counts=True
            )
            full = (counts == prefixes.size[nodes]) & (nodes >= 0)
            blocked += [prefixes.text[node] for node in nodes[full].tolist()]
            rows = rows[~full[inverse] & (nodes[inverse] >= 0)]
        return blocked

    def _open_by_shorter(self, signature: Signature, data: bytes) -> bool:
        """Whether `data` can follow as a shorter token, not refused, with the rest behind it."""
        refused = self.refused(signature)
        return any(first not in refused for first in self.ways(data)) or self._falls_back(data)

    def _ways(self, data: bytes) -> tuple[int, ...]:
        """The shorter tokens that `data` can begin with, the rest of it standing behind them."""
        found = (self._ids.get(data[:cut]) for cut in range(1, len(data)))
        return tuple(
            first
            for first in found
            if first is not None
            and self._prefixes.position[first] >= 0
            and self.is_open(self._followers.signature(first), data[len(self._spelled[first]) :])
        )

    def _is_open(self, signature: Signature, data: bytes) -> bool:
        """Whether a canonical encoding can go on with `data` behind a token with this signature."""
        return self._some_token_follows(signature, data) or self._open_by_shorter(signature, data)

    def _refused(self, signature: Signature) -> frozenset[int]:
        return frozenset(self._followers.forbidden(signature).tolist())

    def _some_token_follows(self, signature: Signature, data: bytes) -> bool:
        """Whether a token that starts with `data` may follow."""
        node = self._prefixes.number.get(data)
        if node is None:
            return False
        size = int(self._prefixes.size[node])
        tokens, refused = self._prefixes.tokens, self.refused(signature)
        start = _bisect(tokens, self._spelled, data)
        return any(t not in refused for t in tokens[start : start + size].tolist())

    def _falls_back(self, data: bytes) -> bool:
        """Whether `data` starts a character that is spelled in bytes, which nothing absorbs."""
        if not self._by_characters:
            return False
        needed = _character_length(data[0])
        if len(data) >= needed:
            return data[:needed] not in self._literal
        # The beginning of a character: of two bytes all may be symbols, of more they never are.
        return needed > 2 or self._symbols_by_lead[data[0]] < 64


def _continues_a_word(token: bytes) -> bool:
    """Whether a letter behind `token` certainly belongs to the same piece.

    So it is for pre-tokenizers of the GPT-4 family behind three letters, which no contraction (`'s`
    or `'ll`) can be. Digits come in groups whose phase is not known here, and what becomes of white
    space depends on what follows it: those boundaries are left to the encoder.
    """
    word = token.decode("utf-8", "replace").lstrip()
    return len(word) >= 3 and word.isalpha()


def _starts_with_letter(data: bytes) -> bool:
    return data.decode("utf-8", "ignore")[:1].isalpha()


def _bisect(tokens: Ids, spelled: tuple[bytes, ...], data: bytes) -> int:
    """The first index in `tokens` (sorted by bytes) whose bytes are not before `data`."""
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if spelled[int(tokens[middle])] < data:
            low = middle + 1
        else:
            high = middle
    return low


def _character_length(lead: int) -> int:
    """Bytes of the UTF-8 character that begins with `lead`; 1 for a stray byte."""
    return 1 if lead < 0xC2 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
