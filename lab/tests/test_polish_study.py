"""The tables of the Polish study (arXiv 2604.16368) recomputed from its own numbers.

`test_literature.py` has its formulas. Here is every number that does not follow from the others:
lab/polish-study.md names these, and its table is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from places import ROOT

SETS = ("Wikipedia", "pl_alpaca", "Synthetic")
DRAFTS = ("Bielik-1.5B", "Llama-3.2-1B", "Qwen2.5-1.5B")
CONDITIONS = ("no translation", "naive", "context-aware")
BASELINE = dict(zip(SETS, (14.83, 14.70, 14.72), strict=True))
R, BETA = 0.071, 0.19

THROUGHPUT = """
13.72 0.93 10.80 0.74 10.68 0.73   10.32 0.70 9.69 0.66 9.72 0.66   12.85 0.87 11.92 0.81 11.02 0.75
14.03 0.95 11.24 0.77 11.02 0.75    8.96 0.60 8.82 0.60 8.77 0.60   15.67 1.06 14.22 0.97 14.39 0.98
14.17 0.96 10.96 0.75 10.79 0.73    8.87 0.60 8.54 0.58 8.47 0.58   15.68 1.06 14.44 0.98 14.76 1.00
"""
"""Table 3, a line per draft model: tokens per second and speed-up by condition, then by set."""

LENGTHS = {
    2: "31.1 0.87 23.9 0.81 22.2 0.75 42.0 1.06 36.0 0.97 36.5 0.98 44.6 1.06 41.0 0.98 42.7 1.00",
    4: "38.5 0.59 29.5 0.51 29.1 0.46 49.7 0.66 43.7 0.59 44.5 0.61 53.8 0.70 49.7 0.59 51.6 0.61",
}
"""Table 4: acceptance and speed-up by k, then draft model, then set."""

BREAK_EVENS = {
    2: "44.0 40.2 52.8  38.3 38.1 38.0  40.8 42.2 42.5",
    4: "90.1 89.9 139.4  81.2 82.0 85.2  77.7 81.3 92.3",
}
"""Table 5, in the same order."""

SIX = {"Bielik-1.5B": (20.6, 3.98, 0.28), "Llama-3.2-1B": (41.7, 5.01, 0.35)}
SIX["Qwen2.5-1.5B"] = (45.0, 5.81, 0.40)
"""Table 11: acceptance, tokens per second, speed-up; the baseline is 14.38 tokens per second."""

BREAK_EVENS_AT_SIX = dict(zip(DRAFTS, (297, 147, 120), strict=True))
"""Table 11, in percent."""


def known(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def by_condition(text: str, width: int) -> Iterator[tuple[str, str, str, list[float]]]:
    """Draft model, condition, set and its `width` numbers."""
    cells = iter(known(text))
    for draft in DRAFTS:
        for condition in CONDITIONS:
            for prompt_set in SETS:
                yield draft, condition, prompt_set, [next(cells) for _ in range(width)]


def pairs(k: int) -> Iterator[tuple[str, str, float, float, float]]:
    """Draft model, set, acceptance, speed-up and break-even, all as shares."""
    figures, crossings = iter(known(LENGTHS[k])), iter(known(BREAK_EVENS[k]))
    for draft in DRAFTS:
        for prompt_set in SETS:
            acceptance, speedup = next(figures) / 100, next(figures)
            yield draft, prompt_set, acceptance, speedup, next(crossings) / 100


def implied_beta(k: int, acceptance: float, speedup: float) -> float:
    """Equation 5 solved for β."""
    return ((1 + acceptance * k) / speedup - 1 - (k + 1) * R) / k**2


def differences() -> dict[str, tuple[str, str]]:
    """What lab/polish-study.md says of each number that does not follow: printed, recomputed."""
    found, rows = {}, (ROOT / "lab" / "polish-study.md").read_text("utf-8").splitlines()
    for line in rows[rows.index("## Numbers that do not follow") :]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3:
            found[cells[0]] = cells[1], cells[2]
    return found


def stated(what: str) -> list[float]:
    """The numbers of the last column of a difference."""
    return [float(n) for n in re.findall(r"\d+(?:\.\d+)?", differences()[what][1])]


def test_table_3_is_its_own_ratio_in_25_of_27_cells() -> None:
    wrong = []
    for draft, condition, prompt_set, (per_second, speedup) in by_condition(THROUGHPUT, 2):
        ratio = per_second / BASELINE[prompt_set]
        assert ratio == pytest.approx(speedup, abs=0.0056)
        if round(ratio, 2) != speedup:
            wrong.append((draft, condition, prompt_set, round(ratio, 2)))
    assert wrong == [
        ("Bielik-1.5B", "no translation", "pl_alpaca", 0.73),
        ("Llama-3.2-1B", "no translation", "pl_alpaca", 0.76),
    ]
    assert stated("Table 3, no translation on pl_alpaca, Bielik and Llama") == [0.73, 0.76]


def test_what_a_longer_draft_changes() -> None:
    shorter, longer = list(pairs(2)), list(pairs(4))
    gained = [100 * (b[2] - a[2]) for a, b in zip(shorter, longer, strict=True)]
    lost = [a[3] - b[3] for a, b in zip(shorter, longer, strict=True)]
    found = [min(gained), max(gained)]
    assert stated("acceptance gained from k = 2 to 4, points") == pytest.approx(found, abs=0.051)
    found = [min(lost), max(lost)]
    assert stated("speed-up lost from k = 2 to 4") == pytest.approx(found, abs=0.0051)


def test_break_evens_at_k_6() -> None:
    """A mean speed-up below 1 lies below the break-even; the text leaves one of them out."""
    for draft, (acceptance, _, speedup) in SIX.items():
        assert speedup < 1
        assert acceptance < 100 < BREAK_EVENS_AT_SIX[draft]
    ends = [min(BREAK_EVENS_AT_SIX.values()), max(BREAK_EVENS_AT_SIX.values())]
    assert stated("break-even at k = 6, section 6.2, %") == ends


def test_the_highest_acceptance_is_not_at_k_6() -> None:
    everywhere = [100 * share for k in (2, 4) for _, _, share, *_ in pairs(k)]
    everywhere += [acceptance for acceptance, *_ in SIX.values()]
    highest = pytest.approx(max(everywhere))
    assert stated("highest mean acceptance at any k, section 6.2, %") == [highest]
    assert max(acceptance for acceptance, *_ in SIX.values()) == 45


def test_ranges_of_break_evens_in_the_text() -> None:
    found = [100 * crossing for *_, crossing in pairs(4)]
    ends = [pytest.approx(min(found)), pytest.approx(max(found))]
    assert stated("break-even at k = 4, section 5.3, %") == ends


def test_plain_decoding_in_the_text() -> None:
    ends = [min(14.38, *BASELINE.values()), max(14.38, *BASELINE.values())]
    assert stated("plain decoding, section 5, tokens per second") == ends


def test_ranges_given_in_the_text() -> None:
    alpaca = {k: [s for _, name, _, s, _ in pairs(k) if name == "pl_alpaca"] for k in (2, 4)}
    assert stated("speed-up on pl_alpaca at k = 2, section 6.2") == [min(alpaca[2]), max(alpaca[2])]
    assert stated("speed-up on pl_alpaca at k = 4, section 6.2") == [min(alpaca[4]), max(alpaca[4])]


def test_beta_from_the_means() -> None:
    """Equation 5 solved for β gives no constant: it grows with k."""
    found = {k: [implied_beta(k, a, s) for _, _, a, s, _ in pairs(k)] for k in (2, 4)}
    found[6] = [implied_beta(6, a / 100, s) for a, _, s in SIX.values()]
    means = [fmean(found[k]) for k in (2, 4, 6)]
    assert stated("β at k = 2, 4 and 6, from the mean acceptances") == pytest.approx(
        means, abs=0.00051
    )
    assert max(found[2]) < BETA
    assert sum(beta > BETA for beta in found[4]) == 7


def test_beta_from_the_break_evens() -> None:
    """Equation 6 solved for β at the two points that it is said to be fitted to."""
    found = [pytest.approx((0.40 - R) / 2, abs=0.00051), pytest.approx((0.77 - R) / 4, abs=0.00051)]
    assert stated("β from the break-evens of 40 % and 77 %, Equation 6") == found


def test_the_overhead_at_k_4() -> None:
    assert stated("quadratic overhead at k = 4") == [round(BETA * 4**2, 2)]


def test_the_time_of_a_pass() -> None:
    streamed, plain = 11.32 / 200 * 1e3, 1e3 / 15
    found = [round(streamed), round(plain - streamed)]
    assert stated("time to read the target's weights, and the rest of 67 ms") == found


def test_energy_of_the_campaign() -> None:
    reported = len(list(by_condition(THROUGHPUT, 2))) + len(BASELINE) + len(list(pairs(4)))
    assert stated("conditions reported, baselines included") == [reported + len(SIX) + 1]
    system, nvidia = (90 * 50 * 128 * joules / 3600 for joules in (2.7, 7.5))
    assert stated("energy of 90 conditions on the M2 Pro system, Wh") == [round(system)]
    assert stated("energy of 90 conditions on an RTX 4090 system, Wh") == [round(nvidia)]
    assert stated("energy of an RTX 4090 system over that of the M2 Pro system") == [
        pytest.approx(nvidia / system, abs=0.051)
    ]
    assert stated("energy of the L4 over that of the M2 Pro chip") == [
        pytest.approx(3.3 / 2.0, abs=0.051)
    ]


def test_every_difference_is_recomputed_here() -> None:
    """No row of the document is without a test that reads it."""
    source = Path(__file__).read_text("utf-8")
    assert [what for what in differences() if f'stated("{what}")' not in source] == ["what"]
