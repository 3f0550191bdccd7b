"""Texts for the tests: Polish sentences, and hypothesis strategies for awkward input."""

from __future__ import annotations

from hypothesis import strategies as st

SENTENCES = (
    "Zażółć gęślą jaźń, a potem odpocznij nad brzegiem rzeki.",
    "W poniedziałek o 8:45 komisja rozpatrzyła 1234 wnioski mieszkańców.",
    "Czy mógłbyś mi pomóc przy konfiguracji drukarki? Nie działa od wczoraj!",
    "„Najpierw chleb – mówiła babcia – później opowieści”.",
    "def suma(a, b):\n    return a + b  # zwraca sumę\n",
    "Temperatura spadła do −7 °C; wiatr wiał z prędkością 90 km/h…",
    "  Wcięcie,\ttabulator i  podwójne   spacje \n\n\n  na końcu  ",
    "Żółw w Łodzi zjadł śledzia 🐟, potem napisał: 日本語 i Привіт.",
)

_POLISH = "aąbcćdeęfghijklłmnńoóprsśtuwyzźż AĄŻŁ,.;:!?-–„”'\"0123456789\n\t"
_AWKWARD = "\u0301\u00a0\u2003\u0085\u200b▁Ġ😀👩‍👩‍👧한中ЖѢ\x00\x07\r<|>ªﬁßé\ud7ff"

texts = st.one_of(
    st.sampled_from(SENTENCES),
    st.text(st.sampled_from(_POLISH), max_size=40),
    st.text(st.sampled_from(_POLISH + _AWKWARD), max_size=30),
    # The libraries' tables of what is a letter differ in how many of the newest ones they have.
    st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=20),
)

byte_strings = st.one_of(
    texts.map(str.encode),
    st.binary(max_size=12),
    st.tuples(texts.map(str.encode), st.binary(max_size=3), texts.map(str.encode)).map(b"".join),
)
