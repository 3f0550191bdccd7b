"""Texts on which two encoders that differ are likely to differ."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from random import Random

from tokalign.tokenizer.spec import TokenizerSpec
from tokalign.tokenizer.spelling import SPACE_MARK

_CONSONANTS = ("b", "c", "cz", "d", "dz", "g", "k", "ł", "m", "n", "p", "prz", "r", "sz", "ś", "ż")
_VOWELS = ("a", "ą", "e", "ę", "i", "o", "ó", "u", "y")
_SPACES = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\t\t ", "\u00a0", "\u2003")
_MARKS = ".,;:!?…-–—'\"„”()[]{}<>/\\|@#$%^&*_+=~`«»°§€"
_SCRIPTS = (
    (0x00C0, 0x017F),  # Latin with diacritics
    (0x0250, 0x02AF),  # phonetic letters
    (0x0391, 0x03C9),
    (0x0410, 0x044F),
    (0x0531, 0x0556),
    (0x05D0, 0x05EA),
    (0x0621, 0x064A),
    (0x0905, 0x0939),
    (0x0E01, 0x0E2E),
    (0x10D0, 0x10F0),
    (0x3041, 0x3096),
    (0x30A1, 0x30FA),
    (0x4E00, 0x4EFF),
    (0xAC00, 0xACFF),
    (0x10330, 0x1034A),  # Gothic, four bytes in UTF-8
    (0x1D400, 0x1D433),  # letters of mathematics
    (0x2160, 0x2188),  # numbers that are letters
    (0x0660, 0x0669),
    (0x2190, 0x21FF),
    (0x1F300, 0x1F5FF),
    (0x1F600, 0x1F64F),
)
_AWKWARD = (
    *("e\u0301", "a\u0328\u0301", "\u0301a", "z\u0307\u0323", "Ą\u030a", "ᄒ\u1161\u11ab"),
    "\u212b",
    *("ﬁ", "ª", "½", "İ", "ß", "ſ", "\u212a", "ＡＢＣ", "①", "㍿", "👩‍👩‍👧", "👍🏽", "🇵🇱"),
    *("\u200b", "\u200d", "\u00ad", "\ufeff", "\ufffd", "\ufffe", "\U0010ffff", "\u0085", "\u2028"),
    *("\x00", "\x07", "\x1b[0m", "\x7f"),
)
_CODE = (
    "def dodaj(a: int, b: int = 2) -> int:\n    return a + b  # suma\n",
    'if (x != y && !gotowe) { puts("koniec\\n"); i++; }',
    '<div class="okno"><p>Ala</p></div>',
    "SELECT nazwa, COUNT(*) FROM miasta WHERE id >= 10;",
    "x = {'klucz': [1, 2.5, -3e10], \"b\": None}",
    "https://przyklad.pl/a_b/c-d?x=1&y=%20#z",
    "jan.nowak+1@poczta.example",
)
_CONTRACTIONS = (
    "I'm he's we've they'll you'd can't 're 'RE 'Ve 'LL",
    "it's'd l'r l're 'r 're'v",
    "ABCd AbcD wieDZA XIXw. McDonald",
)


def plain_texts(spec: TokenizerSpec) -> list[str]:
    """About 500 texts without special tokens, none of them empty and none with a lone surrogate."""
    draw = Random(2)
    texts = [*_CONTRACTIONS, *_CODE, *_AWKWARD, *(f"a{odd} {odd}b" for odd in _AWKWARD)]
    texts += [_sentence(draw, words) for words in (1, 2, 3, 5, 8, 13, 21, 34) for _ in range(4)]
    texts += [_sentence(draw, 6).upper() for _ in range(3)] + [_sentence(draw, 6).title()]
    texts += [f"{a}x{b}" for a, b in product(_SPACES, repeat=2)]
    texts += [" " * n + "x" + " " * n for n in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33)]
    texts += ["\n" * 5, "\t" * 9, " " * 40, " \n \n\n  \t\n x"]
    texts += ["1234567890"[:n] for n in range(1, 10)] + ["12 345,67 zł, 8:45, 1e10, 3.14, 2²"]
    texts += list(_MARKS) + [f" {a}{b}z" for a, b in pairwise(_MARKS)]
    texts += [_run(draw, low, high, size) for low, high in _SCRIPTS for size in (1, 3, 9)]
    texts += ["".join(draw.choices(_AWKWARD + _SPACES + tuple(_MARKS), k=9)) for _ in range(24)]
    texts += ["długi" * 60, "ab" * 150, "a" * 300, "=" * 70, "-*" * 30, "😀" * 20]
    texts += _from_tokens(spec, draw)
    for step in spec.pre_tokenizer:
        texts += _from_pattern(str(step.get("pattern", {}).get("Regex", "")))
    return texts


def texts_with_specials(spec: TokenizerSpec) -> list[str]:
    """Texts with special tokens in all positions, and one with marks in place of spaces."""
    spellings = list(spec.specials.values())
    some = spellings[:12] + spellings[12 :: max(1, len(spellings) // 12)]
    texts = [f"a{SPACE_MARK}b {SPACE_MARK}c"]
    for place, special in enumerate(some):
        other = some[place - 1]
        texts += [special, f"Tak{special}nie {other} a", f"{special}{other}\n{special} b"]
        texts.append(f" x {special}  {special[:-1]}{special[1:]}y")
    return texts


def _sentence(draw: Random, words: int) -> str:
    spelled = []
    for _ in range(words):
        syllables = range(draw.randint(1, 5))
        spelled.append("".join(draw.choice(_CONSONANTS) + draw.choice(_VOWELS) for _ in syllables))
    return " ".join(spelled).capitalize() + draw.choice(".?!")


def _run(draw: Random, low: int, high: int, size: int) -> str:
    letters = [chr(draw.randint(low, high)) for _ in range(size)]
    return "".join(letters) + " " + "".join(letters[:4])


def _from_tokens(spec: TokenizerSpec, draw: Random) -> Iterator[str]:
    for index in sorted({*spec.text_tokens, *spec.marks})[:: 1 + len(spec.text_tokens) // 12]:
        spelled = spec.tokens[index].decode()
        yield from (spelled, f"{spelled}Ala{spelled}{spelled} ma", f"Ala {spelled}.")
    ordinary = [token for token in spec.tokens if token]
    if not ordinary:
        return
    merged = [token for token in ordinary if len(token) > 1] or ordinary
    some = draw.choices(merged, k=240)
    for first in range(0, len(some), 4):
        row = b"".join(some[first : first + 4]).decode("utf-8", "ignore")
        yield row
        yield "".join(draw.sample(row, len(row)))
    longest = sorted(ordinary, key=len)[-8:]
    yield from (token.decode("utf-8", "ignore") for token in (*some[:40], *longest))


def _from_pattern(pattern: str) -> Iterator[str]:
    """The expression as a text, and runs of its characters, which make bad ones backtrack."""
    if pattern:
        yield pattern
    letters = sorted({c for c in pattern if c.isalnum() or c in _MARKS})[:24]
    for letter, other in product(letters, repeat=2):
        if letter != other and (len(letters) < 9 or ord(letter) * ord(other) % 7 == 0):
            yield letter * 64 + other + letter * 8
