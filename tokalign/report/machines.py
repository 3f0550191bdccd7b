"""The page that compares machines: what studies measured on each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokalign.evaluate.comparison import order_of
from tokalign.evaluate.measurements import PLAIN
from tokalign.evaluate.study.figures import Group, Row
from tokalign.evaluate.study.result import Result
from tokalign.report.charts import Axis, Bar, bars
from tokalign.report.glossary import WORDS, meanings
from tokalign.report.page import Html, details, figures, page, section, table

_HEAD = (
    "result", "chip", "target", "bits", "fastest", "speed-up (95\N{NO-BREAK SPACE}%)",
    "plain tokens/s", "memory, GB", "J/token", "preset", "prompts of", "mlx", "date",
)  # fmt: skip
_TEXT = 5


def machines_page(results: Mapping[str, Result]) -> str:
    """Make one self-contained HTML document. results: by the names of their files."""
    groups = {name: _greedy(result) for name, result in results.items()}
    chips = {result.setting.chip for result in results.values()}
    targets = {result.setting.target.weights for result in results.values()}
    counts = {"results": len(results), "chips": len(chips), "targets": len(targets)}
    rows = [_cells(name, results[name], group) for name, group in groups.items()]
    return page(
        "Speculative decoding on the machines of its users",
        figures({name: str(count) for name, count in counts.items()}),
        section("Every result", table(_HEAD, rows, text_columns=_TEXT), note=_TABLE),
        details("What the words and conditions mean", *_meanings(groups.values())),
        *(
            section(f"{target}: speed-up by machine", _chart(of_target), note=_CHART)
            for target, of_target in _by_target(results, groups).items()
        ),
        introduction="Greedy decoding, all prompts; every result was checked with "
        "tokalign study --check.",
    )


_TABLE = (
    "Fastest: the condition with the highest mean speed-up over plain decoding of the same prompt. "
    "Its name ends with the draft model, if one drafted. "
    "A model that was measured in several quantizations has a row for each. Compare speeds only "
    "between results with the same prompts."
)
_CHART = "Mean over prompts, with the 95 % bootstrap interval."


def _meanings(groups: Iterable[Group]) -> list[Html]:
    conditions = dict.fromkeys(row.condition for group in groups for row in group.rows)
    found = meanings(sorted(conditions, key=order_of))
    return [table(("word or condition", "meaning"), (WORDS | found).items(), text_columns=2)]


def _greedy(result: Result) -> Group:
    return next(g for g in result.figures().groups if not g.prompt_set and not g.temperature)


def _cells(name: str, result: Result, group: Group) -> tuple[str, ...]:
    setting, best = result.setting, _best(group)
    plain = next(row for row in group.rows if row.condition.name == PLAIN)
    interval = best.interval if best is not None else None
    joules = plain.joules_per_token
    return (
        name,
        setting.chip,
        setting.target.name,
        str(setting.target.bits),
        "–" if best is None else str(best.condition),
        "–"
        if best is None or interval is None
        else f"{best.speedup:.2f} ({interval[0]:.2f}–{interval[1]:.2f})",
        f"{plain.tokens_per_second:.1f}",
        f"{setting.memory_gb:g}",
        "–" if joules is None else f"{joules:.2f}",
        setting.protocol.preset,
        setting.prompts_of,
        setting.mlx,
        result.measured,
    )


def _best(group: Group) -> Row | None:
    timed = [row for row in group.rows if row.condition.drafts and row.speedup is not None]
    return max(timed, key=lambda row: row.speedup or 0.0, default=None)


def _by_target(
    results: Mapping[str, Result], groups: Mapping[str, Group]
) -> dict[str, dict[str, Group]]:
    """The groups of each target, by machine and quantization."""
    found: dict[str, dict[str, Group]] = {}
    for name, result in results.items():
        setting = result.setting
        where = f"{setting.chip}, {setting.target.bits} bits ({name})"
        found.setdefault(setting.target.name, {})[where] = groups[name]
    return found


def _chart(groups: Mapping[str, Group]) -> Html:
    """A bar per machine, for each condition."""
    by_condition: dict[str, dict[str, Bar]] = {}
    for where, group in groups.items():
        for row in group.rows:
            if row.condition.drafts and row.speedup is not None and row.interval is not None:
                bar = Bar(row.speedup, *row.interval)
                by_condition.setdefault(str(row.condition), {})[where] = bar
    return bars(
        by_condition,
        list(groups),
        x=Axis(label="speed-up (×)", form=".2f"),
        title="Mean speed-up of every condition by machine",
        level=(1, "plain decoding"),
    )
