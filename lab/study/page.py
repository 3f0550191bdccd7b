"""The page of a study, and its summary for a model card or an issue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from lab.study.break_even import break_even_text
from lab.study.causes import CAUSES
from lab.study.check import control_bias
from lab.study.conditions import CONTROL, Condition, order_of
from lab.study.figures import BUCKETS, Group, Row, bucket_name
from lab.study.glossary import WORDS, meanings
from lab.study.html import Html, details, figures, page, section, table, tag
from lab.study.result import Figures, Result
from tokalign.cli.output import markdown_table

_INTERVAL = "speed-up (95\N{NO-BREAK SPACE}%)"
_SPEED = (
    "condition", "k", _INTERVAL, "tokens/s", "first token, ms", "peak, GB", "J/token", "prompts",
    "disturbed", "outputs that differ",
)  # fmt: skip
_WORK = (
    "condition", "k", "acceptance of the chain", "acceptance of the tree", "tokens/round",
    "rows/round", "tokens/row", "draft passes/round",
)  # fmt: skip
_BRIEF = ("condition", "k", "acceptance", "tokens/round", "tokens/s", _INTERVAL, "prompts")

_FEW = 1.05
"""Rows per round below which so little was proposed that its acceptance says nothing."""

_CAUSE_HEADS = {
    "length": "draft too short",
    "nothing": "nothing proposed",
    "model": "models disagree",
}
"""Causes that are no name by themselves."""


def study_page(result: Result) -> str:
    """Make one self-contained HTML document."""
    found = result.figures()
    overall = _without_first_tokens([one for one in found.groups if not one.prompt_set])
    sets = [one for one in found.groups if one.prompt_set]
    if not any(one.work.reads_prompt is not None for one in result.samples):
        sets = _without_first_tokens(sets)
    return page(
        f"Speculative decoding of {result.setting.target.name}",
        figures(_key_figures(found)),
        details("What the words and conditions mean", *_meanings(overall)),
        *(section(f"Speed: {one.name}", *_speed(one), note=_SPEEDUP) for one in overall),
        *(section(f"Work: {one.name}", _work(one), note=_WORK_NOTE) for one in overall),
        *(details(one.name, _speed_table(one), _work(one)) for one in sets),
        section("Where the time of a token goes", _waterfalls(found), note=_WATERFALL),
        *_causes(found),
        section("Acceptance by set", _by_set(found, _acceptance), note=_BY_SET),
        section("Speed-up by set", _by_set(found, _speedup), note=_BY_SET_SPEED),
        section("Break-even acceptance by set", _by_set(found, _break_even), note=_BREAK_EVEN),
        section("Speed-up by acceptance", *_buckets(found), note=_BUCKETS),
        section("The cost model of the Polish study", *_fits(found), note=_FITS),
        section("Expected and measured speed-up", *_expected(found), note=_EXPECTED),
        section("Machine and protocol", _setting(result)),
        introduction=_verdict(result, overall[0]),
    )


def study_summary(result: Result) -> str:
    """Make a Markdown summary: the machine, the verdict and a table per temperature."""
    found, setting = result.figures(), result.setting
    overall = [group for group in found.groups if not group.prompt_set]
    drafts = ", ".join(one.name for one in setting.drafts.values()) or "none"
    lines = [
        f"### {setting.target.name} on {setting.chip}\n",
        _verdict(result, overall[0]),
        "",
        f"* {setting.chip}, {setting.memory_gb:g} GB, {setting.system}, mlx {setting.mlx}, "
        f"tokalign {setting.tokalign}, {result.measured}",
        f"* target in {setting.target.bits} bits ({setting.target.dtype}), "
        f"{setting.target.bytes / 1e9:.2f} GB; drafts: {drafts}",
        f"* preset {setting.protocol.preset}, {setting.protocol.max_tokens} tokens per prompt, "
        f"prompts of {setting.prompts_of}",
        f"* {_control_in_words(result)}",
    ]
    for group in overall:
        lines += ["", f"**{group.name}**", "", markdown_table(_BRIEF, map(_brief, group.rows))]
    return "\n".join(lines) + "\n"


_SPEEDUP = (
    "Tokens per second relative to plain decoding of the same prompt: the mean over prompts, with "
    "its 95 % bootstrap interval as a line. The band is the interval of the control, which is "
    "plain decoding measured once more. Disturbed: prompts whose control stayed off by more than a "
    "tenth. Peak: the most memory held, with all models of the study loaded. The tables of each "
    "set below also have the time to the first token: the median over prompts that were not in a "
    "cache yet, because conditions share caches."
)
_WATERFALL = (
    "Plain passes of the target per token, greedy decoding. Accepted tokens save passes; rows, "
    "draft passes and the host take some of it back, as the cost curve of this machine says. What "
    "the curve does not explain is a step of its own."
)
_CAUSES_NOTE = (
    "Of all output tokens, the share that was accepted and why the others were not: every round "
    "ends with a token of the target's own. An oracle, which looks at everything the draft model "
    "says of the next token, decides whether the models disagree or the translation lost it."
)
_WORK_NOTE = (
    "Acceptance counts all tokens together, of the first chain of each proposal and of the whole "
    "tree. A dash: next to nothing was proposed. A row is one position that the target computes in "
    "a pass; tokens/row and rows/round leave out first rounds, which read the prompt."
)
_BY_SET = (
    "As Table 2 of the Polish study (arXiv 2604.16368): greedy decoding, acceptance of the chain."
)
_BY_SET_SPEED = "As its Table 3: greedy decoding, mean over prompts with the 95 % interval."
_BREAK_EVEN = (
    "As Table 5 of the Polish study: the acceptance at which the line through acceptance and "
    "speed-up of the prompts crosses 1, with its 95 % interval by the delta method, and R² of the "
    "line. More than 1: no acceptance would pay. A dash: more acceptance did not mean more speed, "
    "or there are too few prompts."
)
_BUCKETS = (
    "As Tables 6 and 8 to 10 of the Polish study: mean speed-up of the prompts with so much "
    "acceptance of the chain, and in brackets how many there are; greedy decoding."
)
_FITS = (
    "Equation 5 of the Polish study says that a round of k draft tokens takes (k + 1) r + 1 + β "
    "k² plain passes. r, the cost of a draft pass, and β, what else a longer draft costs, are "
    "fitted to the time of rounds of chains, greedily decoded; the study takes r from the sizes "
    "of the models. R²: the share of the variance of these times that the fit explains. Residual: "
    "measured less predicted speed-up. Break-even: by Equation 6, r + β k."
)
_EXPECTED = (
    "What the cost curve, measured before the study, expects of the rows and passes that each "
    "condition needed, with the host's time that it needed; greedy decoding. This checks tokalign "
    "project, which uses the same costs of passes."
)


def _bar(share: float) -> Html:
    """A lying bar that is this share of the widest one."""
    return tag("div", class_="bar", style=f"width: {12 * share:.2f}rem")


def _verdict(result: Result, overall: Group) -> str:
    """The fastest condition whose interval lies above the control's, if there is one."""
    control = next((r for r in overall.rows if r.condition.name == CONTROL), None)
    if control is None or control.interval is None:
        return "Nothing was decoded for long enough to be timed."
    faster = [r for r in overall.rows if _clears(r, control)]
    bias = control_bias(result.trials)
    if not faster:
        return "No way of drafting is faster than plain decoding here, beyond what chance explains."
    best = max(faster, key=lambda row: row.speedup or 0.0)
    return (
        f"Fastest on {result.setting.chip}: {best.condition}, with {_speedup(best)} times the "
        f"tokens per second of plain decoding. Plain decoding measured twice differs by "
        f"{abs(bias or 0.0):.1%}."
    )


def _clears(row: Row, control: Row) -> bool:
    if row.interval is None or control.interval is None or not row.condition.drafts:
        return False
    return row.interval[0] > max(1.0, control.interval[1]) and row.tree_acceptance > 0


def _control_in_words(result: Result) -> str:
    found = result.trials
    disturbed, bias = sum(trial.disturbed for trial in found), control_bias(found)
    off = "was not timed" if bias is None else f"is {bias:+z.1%} off plain decoding (median)"
    return f"the control {off}; {disturbed} of {len(found)} trials are disturbed"


def _surroundings_in_words(result: Result) -> str:
    """Load, heat and power of all generations."""
    found = [one.surroundings for one in result.samples]
    loads = [one.load for one in found if one.load is not None]
    load = f"load {median(loads):.1f}, at most {max(loads):.1f}" if loads else "load not reported"
    heat = ", ".join(sorted({one.thermal for one in found} - {""})) or "not reported"
    power = ", ".join(sorted({one.power for one in found} - {""})) or "not reported"
    return f"{load}; thermal pressure {heat}; power {power}"


def _key_figures(found: Figures) -> dict[str, str]:
    rows = found.groups[0].rows
    plain = next(row for row in rows if row.condition.is_plain)
    drafted = [row for row in rows if row.condition.drafts]
    best = max((row.speedup or 0.0 for row in drafted), default=0.0)
    errors = [abs(one.error) for one in found.expected]
    shown = {
        "plain tokens/s": f"{plain.tokens_per_second:.1f}",
        "best speed-up, greedy": f"{best:.2f}",
        "most tokens per round": f"{max((r.tokens_per_round for r in drafted), default=0):.2f}",
        "outputs that differ": str(sum(row.outputs_that_differ for row in rows)),
    }
    if errors:
        shown["mean error of expected speed-ups"] = f"{sum(errors) / len(errors):.0%}"
    return shown


def _speedups(group: Group) -> Html:
    timed = [row for row in group.rows if row.condition.drafts and row.speedup is not None]
    longest = max((row.speedup or 0.0 for row in timed), default=1.0)
    rows = (
        (
            str(row.condition),
            _bar((row.speedup or 0.0) / longest),
            f"{row.speedup:.2f}",
            "–" if row.interval is None else f"{row.interval[0]:.2f}–{row.interval[1]:.2f}",
        )
        for row in timed
    )
    return table(("condition", "", "speed-up", "interval"), rows, text_columns=2)


def _waterfalls(found: Figures) -> Html:
    """A row per condition: plain decoding takes 1, then what every step adds."""
    rows = [
        (str(one.condition), *(f"{step:+.2f}" for step in one.steps.values()), f"{one.total:.2f}")
        for one in found.waterfalls
    ]
    steps = found.waterfalls[0].steps if found.waterfalls else ()
    return table(("condition", *steps, "measured"), rows)


def _causes(found: Figures) -> list[Html]:
    if not found.causes:
        return []
    head = ("condition", "accepted", *(_CAUSE_HEADS.get(cause, cause) for cause in CAUSES))
    rows = [
        (name, *(f"{shares[cause]:.1%}" for cause in ("accepted", *CAUSES)))
        for name, shares in found.causes.items()
    ]
    meant = [(_CAUSE_HEADS.get(cause, cause), meaning) for cause, meaning in CAUSES.items()]
    meaning = details("What the causes mean", table(("cause", "meaning"), meant, text_columns=2))
    return [section("Why rounds ended", table(head, rows), meaning, note=_CAUSES_NOTE)]


def _meanings(groups: Sequence[Group]) -> list[Html]:
    conditions = dict.fromkeys(row.condition for group in groups for row in group.rows)
    return [
        table(("word", "meaning"), WORDS.items(), text_columns=2),
        table(("condition", "meaning"), meanings(conditions).items(), text_columns=2),
    ]


def _speed(group: Group) -> list[Html]:
    return [_speedups(group), _speed_table(group)]


def _speed_table(group: Group) -> Html:
    return _table(_SPEED, group.rows)


def _work(group: Group) -> Html:
    return _table(_WORK, [row for row in group.rows if row.condition.drafts])


def _table(head: Sequence[str], rows: Sequence[Row]) -> Html:
    """The columns of `head`, without those of times and energy that were not measured."""
    absent = set[str]()
    if all(row.joules_per_token is None for row in rows):
        absent.add("J/token")
    if all(row.first_ms is None for row in rows):
        absent.add("first token, ms")
    shown = [name for name in head if name not in absent]
    return table(shown, ([_cells(row)[name] for name in shown] for row in rows), text_columns=2)


def _without_first_tokens(groups: Sequence[Group]) -> list[Group]:
    """Where they cannot be compared.

    Each condition reads other prompts than the next one, so the prompts have to be of one length,
    as those of one set are. And some results do not say which prompts were in a cache already.
    """
    return [
        replace(group, rows=tuple(replace(row, first_ms=None) for row in group.rows))
        for group in groups
    ]


def _cells(row: Row) -> dict[str, str]:
    """Every column of `_SPEED` and `_WORK`."""
    return {
        "condition": row.condition.label,
        "k": _k(row.condition),
        "acceptance of the chain": _share(row, row.chain_acceptance),
        "acceptance of the tree": _share(row, row.tree_acceptance),
        "tokens/round": f"{row.tokens_per_round:.3f}",
        "rows/round": f"{row.rows_per_round:.2f}",
        "tokens/row": f"{row.tokens_per_row:.3f}",
        "draft passes/round": f"{row.passes_per_round:.2f}",
        "tokens/s": f"{row.tokens_per_second:.1f}" if row.tokens_per_second else "–",
        _INTERVAL: _speedup(row),
        "first token, ms": "–" if row.first_ms is None else f"{row.first_ms:.0f}",
        "peak, GB": f"{row.peak_gb:.2f}",
        "J/token": "–" if row.joules_per_token is None else f"{row.joules_per_token:.2f}",
        "prompts": str(row.prompts),
        "disturbed": str(row.disturbed),
        "outputs that differ": str(row.outputs_that_differ),
    }


def _brief(row: Row) -> tuple[str, ...]:
    cells = _cells(row)
    cells["acceptance"] = cells["acceptance of the chain"]
    return tuple(cells[name] for name in _BRIEF)


def _share(row: Row, acceptance: float) -> str:
    return f"{acceptance:.1%}" if row.rows_per_round >= _FEW else "–"


def _speedup(row: Row) -> str:
    if row.speedup is None or row.interval is None or row.condition.is_plain:
        return "–"
    return f"{row.speedup:.2f} ({row.interval[0]:.2f}–{row.interval[1]:.2f})"


def _acceptance(row: Row) -> str:
    return _share(row, row.chain_acceptance)


def _break_even(row: Row) -> str:
    shown, fit = break_even_text(row.break_even), row.break_even
    return shown if fit is None or shown == "–" else f"{shown}, R² {fit.r_squared:.2f}"


def _k(condition: Condition) -> str:
    return "" if condition.k is None else str(condition.k)


def _by_set(found: Figures, cell: Callable[[Row], str]) -> Html:
    """A column per set, greedy decoding; no row for plain decoding."""
    groups = [g for g in found.groups if g.prompt_set and not g.temperature]
    by_condition: dict[Condition, dict[str, Row]] = {}
    for group in groups:
        for row in group.rows:
            by_condition.setdefault(row.condition, {})[group.prompt_set] = row
    rows = [
        (
            condition.label,
            _k(condition),
            *(cell(of_sets[g.prompt_set]) if g.prompt_set in of_sets else "–" for g in groups),
        )
        for condition, of_sets in sorted(by_condition.items(), key=lambda item: order_of(item[0]))
    ]
    rows = [row for row in rows if {*row[2:]} != {"–"}]
    head = ("condition", "k", *(group.prompt_set for group in groups))
    return table(head, rows, text_columns=2)


def _buckets(found: Figures) -> list[Html]:
    head = ("condition", "k", *map(bucket_name, BUCKETS))
    parts = []
    for group in found.groups:
        rows = [
            (
                row.condition.label,
                _k(row.condition),
                *("–" if one is None else f"{one[0]:.2f} ({one[1]})" for one in row.buckets),
            )
            for row in group.rows
            if row.buckets
        ]
        if rows and not group.temperature:
            shown = table(head, rows, text_columns=2)
            parts.append(details(group.name, shown) if group.prompt_set else shown)
    return parts


def _fits(found: Figures) -> list[Html]:
    head = ("condition", "r", "r by size", "β", "R²")
    fits = [
        (
            one.condition.label,
            f"{one.r:.3f}",
            f"{one.size_ratio:.3f}",
            f"{one.beta:z.3f}",
            f"{one.r_squared:.2f}",
        )
        for one in found.fits
    ]
    columns = (
        "condition", "k", "acceptance", "measured", "by Equation 5", "residual", "break-even",
        "prompts",
    )  # fmt: skip
    rows = [
        (
            one.condition.label,
            str(p.k),
            f"{p.acceptance:.1%}",
            f"{p.speedup:.2f}",
            f"{p.predicted:.2f}",
            f"{p.residual:+z.2f}",
            f"{p.break_even:.0%}",
            str(p.prompts),
        )
        for one in found.fits
        for p in one.predictions
    ]
    return [table(head, fits), table(columns, rows, text_columns=2)]


def _expected(found: Figures) -> list[Html]:
    head = ("condition", "k", "expected", "measured", "error", "prompts")
    rows = [
        (
            one.condition.label,
            _k(one.condition),
            f"{one.expected:.2f}",
            f"{one.measured:.2f}",
            f"{one.error:+z.0%}",
            str(one.prompts),
        )
        for one in found.expected
    ]
    return [table(head, rows, text_columns=2)]


def _setting(result: Result) -> Html:
    setting, protocol = result.setting, result.setting.protocol
    rows = [
        ("chip, memory", f"{setting.chip}, {setting.memory_gb:g} GB"),
        ("system", setting.system),
        ("versions", f"mlx {setting.mlx}, mlx-lm {setting.mlx_lm}, tokalign {setting.tokalign}"),
        ("while measuring", _surroundings_in_words(result)),
        ("energy", "measured" if setting.energy else "not measured"),
        ("measured", result.measured),
        ("control", _control_in_words(result)),
        ("preset", protocol.preset),
        ("prompts", ", ".join(f"{name} {digest}" for name, digest in setting.prompts.items())),
        ("encyclopedic windows", f"{protocol.window:,} tokens, every {protocol.stride}"),
        ("tokens per prompt", str(protocol.max_tokens)),
        ("dictionaries", ", ".join(setting.dictionaries) or "none"),
    ]
    models = {"target": setting.target, **{f"draft {n}": d for n, d in setting.drafts.items()}}
    rows += [
        (what, f"{m.name}, {m.bits} bits, {m.bytes / 1e9:.3f} GB, weights {m.weights}")
        for what, m in models.items()
    ]
    rows += [
        (f"cost curve {name or 'of the target'}", c.source) for name, c in result.curves.items()
    ]
    return table(("setting", "value"), rows, text_columns=2)
