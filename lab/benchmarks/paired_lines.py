"""Generations beside plain ones of the same prompts, one JSON object each, as one table.

A line has the prompt's kind and number, the temperature, the condition, the load of the machine,
the seconds and ids of the output, and of every round its tokens, rows, draft passes and host time.
It is compared with the latest plain line of the same prompt before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

PLAIN = "plain"
_RESAMPLES = 2000

Line: TypeAlias = dict[str, Any]


class Compared(NamedTuple):
    """A line beside the plain one before it: a prompt under a condition."""

    line: Line
    plain: Line


def compare(lines: Sequence[Line]) -> dict[str, list[Compared]]:
    """By condition, every line with the latest plain one of the same prompt before it."""
    found: dict[str, list[Compared]] = {}
    latest: dict[tuple[str, int], Line] = {}
    for line in lines:
        prompt = line["kind"], line["number"]
        if plain := latest.get(prompt):
            found.setdefault(line["condition"], []).append(Compared(line, plain))
        if line["condition"] == PLAIN:
            latest[prompt] = line
    return found


def cells(name: str, compared: Sequence[Compared]) -> list[str]:
    """A row of the table."""
    of = [one.line for one in compared]
    tokens = tokens_of(of)
    seconds = np.array([line["seconds"] for line in of])
    plain = [one.plain["seconds"] / sum(one.plain["tokens"]) for one in compared]
    host = np.concatenate([line["host_ms"] for line in of])
    pairs = [pair for one in compared for pair in zip_longest(one.line["ids"], one.plain["ids"])]
    return [
        name,
        *counts(of),
        "{:.2f} / {:.2f}".format(*np.quantile(host, [0.5, 0.99])),
        interval(tokens * plain, seconds),
        f"{sum(a != b for a, b in pairs)} of {len(pairs):,}",
    ]


def tokens_of(lines: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """How many tokens the rounds of each line gave."""
    return np.array([sum(line["tokens"]) for line in lines], dtype=float)


def counts(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Cells: prompts, tokens per pass, rows and draft passes per pass."""
    passes = np.array([len(line["tokens"]) for line in lines], dtype=float)
    rows, drafted = (sum(sum(line[what]) for line in lines) for what in ("rows", "draft_passes"))
    return [
        str(len(lines)),
        interval(tokens_of(lines), passes),
        f"{rows / passes.sum():.2f}",
        f"{drafted / passes.sum():.2f}",
    ]


def interval(parts: NDArray[np.float64], wholes: NDArray[np.float64]) -> str:
    """The ratio of two sums over prompts, with its interval."""
    low, high = bounds(parts, wholes)
    return f"{parts.sum() / wholes.sum():.2f} ({low:.2f}-{high:.2f})"


def bounds(parts: ArrayLike, wholes: ArrayLike) -> tuple[float, float]:
    """The 95 % interval of the ratio of two sums: a bootstrap over prompts or texts."""
    parts, wholes = np.asarray(parts), np.asarray(wholes)
    drawn = np.random.RandomState(0).randint(len(parts), size=(_RESAMPLES, len(parts)))
    ratios = parts[drawn].sum(axis=1) / wholes[drawn].sum(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(lines: Sequence[Line]) -> None:
    """Print a table for every temperature."""
    head = ["condition", "prompts", "tokens per pass", "rows", "draft passes", "host ms p50 / p99"]
    head += ["speed by the clock", "differing ids"]
    for temp in sorted({line["temp"] for line in lines}):
        own = [line for line in lines if line["temp"] == temp]
        loads = [line["load"] for line in own]
        print(f"\nT = {temp}, {len(own)} generations, load {min(loads)} to {max(loads)}\n")
        print(table(head, [cells(*one) for one in compare(own).items()]))
