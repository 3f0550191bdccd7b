"""The page of a study, and its summary for a model card or an issue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from tokalign.evaluate.measurements import CONTROL, PLAIN, Condition
from tokalign.evaluate.study.causes import CAUSES
from tokalign.evaluate.study.check import control_bias
from tokalign.evaluate.study.figures import BUCKETS, Group, Row, bucket_name
from tokalign.evaluate.study.result import Figures, Result
from tokalign.report.charts import Axis, Bar, bars, waterfall
from tokalign.report.page import Html, details, figures, grid, join, page, section, table, tag
from tokalign.report.tables import break_even_text, markdown_rows

_HEAD = (
    "condition", "k", "acceptance of the chain", "of the tree", "tokens/round", "rows/round",
    "tokens/row", "passes/round", "tokens/s", "speed-up (95\N{NO-BREAK SPACE}%)",
    "first token, ms", "peak, GB", "J/token", "prompts", "disturbed", "outputs that differ",
)  # fmt: skip
_BRIEF = ("condition", "k", "acceptance", "tokens/round", "tokens/s", _HEAD[9], "prompts")


def study_page(result: Result) -> str:
    """Make one self-contained HTML document."""
    found = result.figures()
    overall = [group for group in found.groups if not group.prompt_set]
    sets = [group for group in found.groups if group.prompt_set]
    lengths = [f"k = {k}" for k in _lengths([row for group in overall for row in group.rows])]
    return page(
        f"Speculative decoding of {result.setting.target.name}",
        figures(_key_figures(result, found)),
        *(
            section(f"Speed-up: {one.name}", _speedups(one, lengths), note=_SPEEDUP)
            for one in overall
        ),
        section("Where the time of a token goes", _waterfalls(found), note=_WATERFALL),
        *_causes(found),
        *(section(one.name[0].upper() + one.name[1:], _table(one), note=_TABLE) for one in overall),
        *(details(one.name, _table(one)) for one in sets),
        section("Acceptance by set", _by_set(found, _acceptance), note=_BY_SET),
        section("Speed-up by set", _by_set(found, _speedup)),
        section("Break-even acceptance by set", _by_set(found, _break_even), note=_BREAK_EVEN),
        section("Speed-up by acceptance", *_buckets(found), note=_BUCKETS),
        section("The study's cost model", *_fits(found), note=_FITS),
        section("Expected and measured speed-up", _expected(found), note=_EXPECTED),
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
        f"{'prompts of tokalign' if setting.own_prompts else 'own prompts'}",
        f"* {_control_in_words(result)}",
    ]
    for group in overall:
        lines += ["", f"**{group.name}**", "", *markdown_rows(_BRIEF, map(_brief, group.rows))]
    return "\n".join(lines) + "\n"


_SPEEDUP = (
    "Tokens per second relative to plain decoding of the same prompt: the mean over prompts, with "
    "its 95 % bootstrap interval as a line. The band is the interval of the control, which is "
    "plain decoding measured once more."
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
_TABLE = (
    "Acceptance counts all tokens together, of the first chain of each proposal and of the whole "
    "tree. A row is one position that the target computes in a pass."
)
_BY_SET = "As the Polish study's Tables 2 and 3: greedy decoding, acceptance of the chain."
_BREAK_EVEN = (
    "As its Table 5: the acceptance at which the line through acceptance and speed-up of the "
    "prompts crosses 1, with its 95 % interval by the delta method, and R² of the line. A dash: "
    "more acceptance did not mean more speed, or there are too few prompts."
)
_BUCKETS = "Mean speed-up of the prompts with so much acceptance, and how many there are; greedy."
_FITS = (
    "Equation 5 of the Polish study says that a round of k draft tokens takes (k + 1) r + 1 + β k² "
    "plain passes. r and β are fitted to the time of rounds; the study takes r from the sizes of "
    "the models. Break-even: by Equation 6, r + β k."
)
_EXPECTED = (
    "What the cost curve, measured before the study, expects of the rows and passes that each "
    "condition needed. This checks tokalign project, which uses the same costs."
)


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
    found = f"Here {best.condition} is fastest: {best.speedup:.2f} times plain decoding"
    return f"{found}; the control is {bias or 0.0:+.1%} off."


def _clears(row: Row, control: Row) -> bool:
    if row.interval is None or control.interval is None or not row.condition.drafts:
        return False
    return row.interval[0] > max(1.0, control.interval[1]) and row.tree_acceptance > 0


def _control_in_words(result: Result) -> str:
    found = result.trials
    disturbed, bias = sum(trial.disturbed for trial in found), control_bias(found)
    off = "was not timed" if bias is None else f"is {bias:+.1%} off plain decoding (median)"
    return f"the control {off}; {disturbed} of {len(found)} trials are disturbed"


def _surroundings_in_words(result: Result) -> str:
    """Load, heat and power of all generations."""
    found = [one.surroundings for one in result.samples]
    loads = [one.load for one in found if one.load is not None]
    load = f"load {median(loads):.1f}, at most {max(loads):.1f}" if loads else "load not reported"
    heat = ", ".join(sorted({one.thermal for one in found} - {""})) or "not reported"
    power = ", ".join(sorted({one.power for one in found} - {""})) or "not reported"
    return f"{load}; thermal pressure {heat}; power {power}"


def _key_figures(result: Result, found: Figures) -> dict[str, str]:
    rows = found.groups[0].rows
    plain = next(row for row in rows if row.condition.name == PLAIN)
    drafted = [row for row in rows if row.condition.drafts]
    best = max((row.speedup or 0.0 for row in drafted), default=0.0)
    errors = [abs(one.error) for one in found.expected]
    shown = {
        "chip": result.setting.chip,
        "plain tokens/s": f"{plain.tokens_per_second:.1f}",
        "best speed-up, greedy": f"{best:.2f}",
        "most tokens per round": f"{max((r.tokens_per_round for r in drafted), default=0):.2f}",
        "outputs that differ": str(sum(row.outputs_that_differ for row in rows)),
    }
    if errors:
        shown["mean error of expected speed-ups"] = f"{sum(errors) / len(errors):.0%}"
    return shown


def _speedups(group: Group, lengths: Sequence[str]) -> Html:
    """lengths: of the whole study, so that each has the same colour in every chart."""
    by_label: dict[str, dict[str, Bar]] = {}
    for row in group.rows:
        if row.condition.drafts and row.speedup is not None and row.interval is not None:
            bar = Bar(row.speedup, *row.interval)
            by_label.setdefault(row.condition.label, {})[f"k = {row.condition.k}"] = bar
    control = next((r.interval for r in group.rows if r.condition.name == CONTROL), None)
    return bars(
        by_label,
        lengths,
        x=Axis(label="speed-up (×)", form=".2f"),
        title=f"Mean speed-up of every condition, {group.name}",
        level=(1, "plain decoding"),
        band=control,
    )


def _lengths(rows: Sequence[Row]) -> list[int | str]:
    found = {row.condition.k for row in rows if row.condition.k is not None}
    return sorted(found, key=lambda k: (isinstance(k, str), k))


def _waterfalls(found: Figures) -> Html:
    charts = {
        str(one.condition): waterfall(
            one.steps,
            total="measured",
            x=Axis(label="passes per token", form=".2f"),
            title=f"Time of a token under {one.condition}, in plain passes",
        )
        for one in found.waterfalls
    }
    return grid(charts)


def _causes(found: Figures) -> list[Html]:
    if not found.causes:
        return []
    head = ("condition", "accepted", *CAUSES)
    rows = [
        (name, *(f"{shares[cause]:.1%}" for cause in ("accepted", *CAUSES)))
        for name, shares in found.causes.items()
    ]
    legend = tag("dl", *(tag("div", tag("dt", c), tag("dd", t)) for c, t in CAUSES.items()))
    meaning = details("What the causes mean", legend)
    return [section("Why rounds ended", table(head, rows), meaning, note=_CAUSES_NOTE)]


def _table(group: Group) -> Html:
    return table(_HEAD, map(_cells, group.rows), text_columns=2)


def _cells(row: Row) -> tuple[str, ...]:
    drafts = row.condition.drafts
    return (
        row.condition.label,
        _k(row.condition),
        f"{row.chain_acceptance:.1%}" if drafts else "–",
        f"{row.tree_acceptance:.1%}" if drafts else "–",
        f"{row.tokens_per_round:.3f}",
        f"{row.rows_per_round:.2f}",
        f"{row.tokens_per_row:.3f}",
        f"{row.passes_per_round:.2f}",
        f"{row.tokens_per_second:.1f}" if row.tokens_per_second else "–",
        _speedup(row),
        f"{row.first_ms:.0f}",
        f"{row.peak_gb:.2f}",
        "–" if row.joules_per_token is None else f"{row.joules_per_token:.2f}",
        str(row.prompts),
        str(row.disturbed),
        str(row.outputs_that_differ),
    )


def _brief(row: Row) -> tuple[str, ...]:
    cells = dict(zip(_HEAD, _cells(row), strict=True))
    return tuple(cells["acceptance of the chain" if n == "acceptance" else n] for n in _BRIEF)


def _speedup(row: Row) -> str:
    if row.speedup is None or row.interval is None or row.condition.name == PLAIN:
        return "–"
    return f"{row.speedup:.2f} ({row.interval[0]:.2f}–{row.interval[1]:.2f})"


def _acceptance(row: Row) -> str:
    return f"{row.chain_acceptance:.1%}" if row.condition.drafts else "–"


def _break_even(row: Row) -> str:
    fit = row.break_even
    return "–" if fit is None else f"{break_even_text(fit)}, R² {fit.r_squared:.2f}"


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
        for condition, of_sets in by_condition.items()
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
            f"{one.beta:.3f}",
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
            f"{p.residual:+.2f}",
            f"{p.break_even:.0%}",
            str(p.prompts),
        )
        for one in found.fits
        for p in one.predictions
    ]
    return [table(head, fits), table(columns, rows, text_columns=2)]


def _expected(found: Figures) -> Html:
    head = ("condition", "k", "expected", "measured", "error", "prompts")
    rows = [
        (
            one.condition.label,
            _k(one.condition),
            f"{one.expected:.2f}",
            f"{one.measured:.2f}",
            f"{one.error:+.0%}",
            str(one.prompts),
        )
        for one in found.expected
    ]
    return table(head, rows, text_columns=2)


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
        ("windows", f"{protocol.window} tokens, every {protocol.stride}"),
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
    return join([table(("setting", "value"), rows, text_columns=2)])
