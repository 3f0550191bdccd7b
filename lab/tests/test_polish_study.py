"""The tables of the Polish study (arXiv 2604.16368) recomputed from its own numbers.

`test_literature.py` has its formulas. Here is what follows from the tables, and every number that
does not: lab/polish-study.md names these, and its table is read here.
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

ACCEPTANCE = """
28.5 12.5 11.8   19.1 11.9 16.7   31.1 23.9 22.2
26.7 12.1 10.6    8.9  4.2  3.1   42.0 36.0 36.5
30.3 13.4 12.2   10.5  6.4  4.9   44.6 41.0 42.7
"""
"""Table 2, in percent: a line per draft model; conditions, and in each of them the sets."""

THROUGHPUT = """
13.72 0.93 10.80 0.74 10.68 0.73   10.32 0.70 9.69 0.66 9.72 0.66   12.85 0.87 11.92 0.81 11.02 0.75
14.03 0.95 11.24 0.77 11.02 0.75    8.96 0.60 8.82 0.60 8.77 0.60   15.67 1.06 14.22 0.97 14.39 0.98
14.17 0.96 10.96 0.75 10.79 0.73    8.87 0.60 8.54 0.58 8.47 0.58   15.68 1.06 14.44 0.98 14.76 1.00
"""
"""Table 3: tokens per second and speed-up, laid out in the same way."""

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

BUCKETS = {
    ("Wikipedia", 2): """0.78 0.79 0.73  0.88 0.92 0.89  1.03 1.04 1.03
                         1.12 1.23 1.20  - 1.59 1.43  - - -""",
    ("Wikipedia", 4): """0.48 0.43 0.34  0.54 0.50 0.48  0.61 0.57 0.59
                         0.71 0.67 0.66  0.93 0.82 0.81  - 1.10 1.08""",
    ("Synthetic", 2): """0.74 0.83 0.80  0.85 0.94 0.90  - 1.08 1.01
                         1.21 1.32 1.18  - - -  - - -""",
    ("Synthetic", 4): """0.43 0.46 0.46  0.47 0.51 0.51  0.51 0.61 0.54
                         - 0.69 0.64  0.81 0.82 0.72  - 1.06 1.06""",
    ("pl_alpaca", 2): """0.77 0.83 0.79  0.88 0.93 0.91  1.01 1.04 1.01
                         1.29 1.34 1.11  - - 1.46  - - -""",
    ("pl_alpaca", 4): """0.47 0.44 0.43  0.51 0.51 0.45  0.57 0.58 0.51
                         0.73 0.66 0.59  1.10 0.92 0.81  - - 1.01""",
}
"""Tables 8 to 10: speed-up by bucket of acceptance, then by draft model."""

TABLE_6 = """0.78 0.79 0.73  0.88 0.92 0.89  1.03 1.04 1.03
             1.12 1.23 1.20  - 1.59 1.43  - - -"""

SIX = {"Bielik-1.5B": (20.6, 3.98, 0.28), "Llama-3.2-1B": (41.7, 5.01, 0.35)}
SIX["Qwen2.5-1.5B"] = (45.0, 5.81, 0.40)
"""Table 11: acceptance, tokens per second, speed-up; the baseline is 14.38 tokens per second."""

BREAK_EVENS_AT_SIX = dict(zip(DRAFTS, (297, 147, 120), strict=True))
"""Table 11, in percent."""


def numbers(text: str) -> list[float | None]:
    return [None if word == "-" else float(word) for word in text.split()]


def known(text: str) -> list[float]:
    return [number for number in numbers(text) if number is not None]


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


def buckets(prompt_set: str, k: int, draft: str) -> list[float | None]:
    """Speed-up by bucket."""
    return numbers(BUCKETS[prompt_set, k])[DRAFTS.index(draft) :: 3]


def cut_or_rounded(ends: tuple[int, int], found: list[float]) -> bool:
    """Whether a range in the text has the ends of these numbers, rounded or cut off."""
    pairs = zip(ends, (min(found), max(found)), strict=True)
    return all(end in (int(number), int(number + 0.5)) for end, number in pairs)


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


def test_table_4_repeats_tables_2_and_3() -> None:
    acceptance = {key[:3]: key[3][0] for key in by_condition(ACCEPTANCE, 1)}
    speedup = {key[:3]: key[3][1] for key in by_condition(THROUGHPUT, 2)}
    for draft, prompt_set, share, speed, _ in pairs(2):
        key = draft, "context-aware", prompt_set
        assert (round(100 * share, 1), speed) == (acceptance[key], speedup[key])


def test_context_is_best_in_all_nine_pairs_and_gains_most_where_text_varies() -> None:
    acceptance = {key[:3]: key[3][0] for key in by_condition(ACCEPTANCE, 1)}
    for draft in DRAFTS:
        gains = []
        for prompt_set in SETS:
            none, naive, context = (acceptance[draft, c, prompt_set] for c in CONDITIONS)
            assert context > max(none, naive)
            gains.append(context - none)
        assert gains[0] < min(gains[1:])


def test_what_a_longer_draft_changes() -> None:
    shorter, longer = list(pairs(2)), list(pairs(4))
    gained = [100 * (b[2] - a[2]) for a, b in zip(shorter, longer, strict=True)]
    lost = [a[3] - b[3] for a, b in zip(shorter, longer, strict=True)]
    found = [min(gained), max(gained)]
    assert stated("acceptance gained from k = 2 to 4, points") == pytest.approx(found, abs=0.051)
    found = [min(lost), max(lost)]
    assert stated("speed-up lost from k = 2 to 4") == pytest.approx(found, abs=0.0051)


@pytest.mark.parametrize("k", [2, 4])
def test_break_evens_lie_on_the_right_side_of_the_means(k: int) -> None:
    """A line by least squares goes through the means, so a mean above it is above 1, and so on."""
    for _, _, acceptance, speedup, crossing in pairs(k):
        assert (acceptance < crossing) == (speedup < 1)


def test_the_lines_of_table_5_meet_the_buckets_of_tables_8_to_10() -> None:
    """Through the means and the break-even goes the fitted line; at a bucket's middle it should
    give the bucket's speed-up. The highest buckets hold few prompts, so only three are compared."""
    off = []
    for k in (2, 4):
        for draft, prompt_set, acceptance, speedup, crossing in pairs(k):
            if abs(crossing - acceptance) < 0.01:
                continue  # the slope between two rounded numbers says nothing
            slope = (1 - speedup) / (crossing - acceptance)
            middles = zip((0.35, 0.45, 0.55), buckets(prompt_set, k, draft)[1:4], strict=True)
            off += [1 + slope * (m - crossing) - found for m, found in middles if found]
    assert (round(min(off), 2), round(max(off), 2)) == (-0.19, 0.10)
    assert abs(fmean(off)) < 0.015


def test_table_6_is_the_left_half_of_table_8() -> None:
    assert numbers(TABLE_6) == numbers(BUCKETS["Wikipedia", 2])


@pytest.mark.parametrize("k", [2, 4])
def test_mean_speedups_lie_within_their_buckets_which_rise(k: int) -> None:
    for draft, prompt_set, _, speedup, _ in pairs(k):
        found = [one for one in buckets(prompt_set, k, draft) if one is not None]
        assert min(found) <= speedup <= max(found)
        assert found == sorted(found)


def test_break_even_falls_into_the_bucket_named() -> None:
    """At k = 2 all buckets from 40 % are at or above 1, all below are under it."""
    for draft, prompt_set, *_ in pairs(2):
        found = buckets(prompt_set, 2, draft)
        assert all(one < 1 for one in found[:2] if one)
        assert all(one > 1 for one in found[2:] if one)


def test_a_longer_draft_is_slower_in_every_bucket() -> None:
    for prompt_set in SETS:
        for draft in DRAFTS:
            both = zip(buckets(prompt_set, 2, draft), buckets(prompt_set, 4, draft), strict=True)
            assert all(a > b for a, b in both if a and b)


def test_table_11_is_its_own_ratio() -> None:
    for _, per_second, speedup in SIX.values():
        assert round(per_second / 14.38, 2) == speedup


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


def test_ranges_of_acceptance_in_the_text() -> None:
    found = {key[:3]: key[3][0] for key in by_condition(ACCEPTANCE, 1)}
    large = DRAFTS[1:]  # Llama and Qwen
    assert cut_or_rounded((3, 10), [found[d, "naive", s] for d in large for s in SETS])
    assert cut_or_rounded((26, 30), [found[d, "no translation", SETS[0]] for d in DRAFTS])
    others = [found[d, "no translation", s] for d in DRAFTS for s in SETS[1:]]
    assert cut_or_rounded((10, 13), others)
    both = [found[d, "context-aware", s] for d in large for s in (SETS[0], SETS[2])]
    assert cut_or_rounded((36, 45), both)
    longer = [100 * share for name, _, share, *_ in pairs(4) if name == DRAFTS[2]]
    assert cut_or_rounded((50, 54), longer)
    for draft in DRAFTS:  # Wikipedia is the easiest set for every draft model and translation
        for condition in CONDITIONS:
            values = [found[draft, condition, prompt_set] for prompt_set in SETS]
            assert values[0] == max(values)


def test_ranges_of_break_evens_in_the_text() -> None:
    found = {k: [100 * crossing for *_, crossing in pairs(k)] for k in (2, 4)}
    assert cut_or_rounded((38, 53), found[2])
    wikipedia = [100 * crossing for _, name, *_, crossing in pairs(2) if name == SETS[0]]
    assert cut_or_rounded((38, 44), wikipedia)
    ends = [pytest.approx(min(found[4])), pytest.approx(max(found[4]))]
    assert stated("break-even at k = 4, section 5.3, %") == ends
    assert cut_or_rounded((77, 92), [crossing for crossing in found[4] if crossing < 100])


def test_claims_about_speed_in_the_text() -> None:
    found = {key[:3]: key[3] for key in by_condition(THROUGHPUT, 2)}
    none = [found[d, "no translation", SETS[0]][1] for d in DRAFTS]
    assert (min(none), max(none)) == (0.93, 0.96)
    for draft in DRAFTS:  # naive is the slowest everywhere
        for prompt_set in SETS:
            naive, *others = (found[draft, c, prompt_set][0] for c in ("naive", *CONDITIONS[::2]))
            assert naive < min(others)
    assert all(speedup < 1 for (name, *_), (_, speedup) in found.items() if name == DRAFTS[0])
    assert all(speedup < 1 for *_, speedup, _ in pairs(4))
    wikipedia = {k: [b for d in DRAFTS if (b := buckets(SETS[0], k, d)[4])] for k in (2, 4)}
    assert (min(wikipedia[2]), max(wikipedia[2])) == (1.43, 1.59)
    assert (min(wikipedia[4]), max(wikipedia[4])) == (0.81, 0.93)
    ends = [min(14.38, *BASELINE.values()), max(14.38, *BASELINE.values())]
    assert stated("plain decoding, section 5, tokens per second") == ends
    highest = max(one for key in BUCKETS for one in known(BUCKETS[key]))
    assert highest == 1.59


def test_ranges_given_in_the_text() -> None:
    naive = [row[3] for row in by_condition(THROUGHPUT, 2) if row[1] == "naive"]
    assert (min(s for _, s in naive), max(s for _, s in naive)) == (0.58, 0.70)
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


def test_beyond_k_6_no_acceptance_pays() -> None:
    """Table 7: above 100 % at k = 6 and 8, by Equation 6."""
    assert all(R + BETA * k > 1 for k in (6, 8))


def test_the_overhead_at_k_4() -> None:
    assert stated("quadratic overhead at k = 4") == [round(BETA * 4**2, 2)]


def test_the_time_of_a_pass() -> None:
    streamed, plain = 11.32 / 200 * 1e3, 1e3 / 15
    assert round(plain) == 67
    found = [round(streamed), round(plain - streamed)]
    assert stated("time to read the target's weights, and the rest of 67 ms") == found
    assert pytest.approx(4) == 0.8 / 200 * 1e3
    assert (4 + 1) * 4 == 20
    assert pytest.approx(R, abs=0.0006) == 0.8 / 11.32
    assert pytest.approx(0.014, abs=0.0005) == 1 / 70


def test_energy_of_the_campaign() -> None:
    joules = 50 * 128 * 2.0
    assert joules == 12_800
    assert joules / 3600 == pytest.approx(3.6, abs=0.051)
    assert 3 * 10 * 3 == 90
    reported = len(list(by_condition(THROUGHPUT, 2))) + len(BASELINE) + len(list(pairs(4)))
    assert stated("conditions reported, baselines included") == [reported + len(SIX) + 1]
    assert 90 * joules / 3600 == pytest.approx(320)  # with the chip's 2.0 J per token
    system, nvidia = (90 * 50 * 128 * j / 3600 for j in (2.7, 7.5))
    assert stated("energy of 90 conditions on the M2 Pro system, Wh") == [round(system)]
    assert stated("energy of 90 conditions on an RTX 4090 system, Wh") == [round(nvidia)]
    assert stated("energy of an RTX 4090 system over that of the M2 Pro system") == [
        pytest.approx(nvidia / system, abs=0.051)
    ]


def test_comparisons_in_table_12() -> None:
    assert pytest.approx(2.8) == 5.6 / 2.0
    assert pytest.approx(3, abs=0.25) == 7.5 / 2.7
    assert pytest.approx(5, abs=0.4) == 80 / 15
    assert (pytest.approx(8, abs=0.3), 10) == (1555 / 200, 2000 / 200)  # the bandwidth of an A100
    assert pytest.approx(2.4) == 72 / 30  # what the text says of joules follows from watts
    assert stated("energy of the L4 over that of the M2 Pro chip") == [
        pytest.approx(3.3 / 2.0, abs=0.051)
    ]


def test_every_difference_is_recomputed_here() -> None:
    """No row of the document is without a test that reads it."""
    source = Path(__file__).read_text("utf-8")
    assert [what for what in differences() if f'stated("{what}")' not in source] == ["what"]
