"""Check a result that someone contributed: by its schema, its digest, and by computing it again.

This finds mistakes and edited fields. It cannot find a result that was made up with care.

What a check depends on is fixed by the version of the schema, not by the version of tokalign.
Statistics of what the file holds (`groups`, `fits`, `causes`) are computed again. `expected` and
`waterfalls` set predictions of the tokalign that wrote the file beside what was measured; of these
only what was measured is compared, so a file stays valid when tokalign predicts better.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lab.study.conditions import BASELINES, CONTROL, Condition
from lab.study.result import Result, digest_of, load_json
from lab.study.samples import Sample, Trial, timed_greedily
from lab.study.waterfall import measured_ends
from tokalign.errors import MissingAssetError, TokalignError
from tokalign.installation import install_line

SCHEMA = Path(__file__).with_name("schema.json")

_TOLERANCE = 2e-6
"""By which a figure may differ when it is computed again; figures have six places."""

_TOLERANCE_OF_SUMS = 1e-5
"""The same for the sum of a waterfall's steps."""

_STATISTICS = ("groups", "fits", "causes")
"""Figures without predictions."""

_STEPS = ("saved", "rows", "drafting", "host", "rest")
"""Waterfall steps, in order."""

_MOST_DISTURBED = 0.2
_MOST_BIAS = 0.03
"""How many trials may be disturbed, and by how much the control's median may be off."""

_LARGEST = 1e15
"""The largest number; bytes of models and tokens come closest."""

_LONGEST = 80
"""Characters that are shown of a value that is not what it should be."""


def problems_of(saved: Any, *, name: str) -> list[str]:
    """Everything that is wrong with a result, each in one sentence; nothing if it is sound.

    Raises: MissingAssetError without jsonschema.
    """
    found = list(_of_values(saved)) or list(_of_schema(saved))
    if found:
        return found
    try:
        result = Result.from_json(saved, name=name)
    except TokalignError as error:
        return [str(error)]
    checks = (_of_digest(saved), _of_samples(result), _of_blocks(result), _of_ids(result))
    found = list(chain.from_iterable(checks))
    try:
        return found or [*_of_control(result), *_of_figures(saved, result)]
    except ArithmeticError as error:
        return [f"its figures cannot be computed ({type(error).__name__}: {error})"]


def check_file(path: Path) -> list[str]:
    """As `problems_of`, for a file. Raises: UsageError for one that is not JSON."""
    return problems_of(load_json(path), name=str(path))


def _of_values(saved: Any) -> Iterator[str]:
    """Numbers that nothing measures, and text that no page can hold; a schema lets them pass."""
    waiting: list[tuple[str, Any]] = [("$", saved)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += ((f"a name in {path}", name) for name in value)
            waiting += ((f"{path}.{name}", item) for name, item in value.items())
        elif isinstance(value, list):
            waiting += ((f"{path}[{index}]", item) for index, item in enumerate(value))
        elif isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
            yield f"{path} is {_short(value)}, which is no measured number"
        elif isinstance(value, str) and any("\ud800" <= one <= "\udfff" for one in value):
            yield f"{path} holds half a character"


def _of_schema(saved: Any) -> Iterator[str]:
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise MissingAssetError(
            f"checking a result needs jsonschema; install it with: {install_line(extra='lab')}"
        ) from error
    schema = json.loads(SCHEMA.read_text("utf-8"))
    for wrong in Draft202012Validator(schema).iter_errors(saved):
        yield f"{wrong.json_path}: {wrong.message[:200]}"


def _of_digest(saved: Mapping[str, Any]) -> Iterator[str]:
    if saved["digest"] != digest_of(saved):
        yield "the digest is not that of the content: the file was changed after it was written"


def _of_samples(result: Result) -> Iterator[str]:
    """What holds of every generation, whatever the machine."""
    for one in result.samples:
        where = f"{one.block.prompt_set} {one.block.number}, {one.condition}"
        full = one.rounds + one.accepted
        # The limit, or a stop id inside an accepted path, may cut the last round short.
        if not full - 1 <= one.tokens <= full:
            found = f"{one.rounds} rounds and {one.accepted} accepted"
            yield f"{where}: {one.tokens} tokens from {found}"
        if not one.work.chain_accepted <= one.accepted <= one.proposed:
            yield f"{where}: more was accepted than proposed"
        if one.later_rounds != max(0, one.rounds - 1):
            yield f"{where}: rows of {one.later_rounds} rounds, but there are {one.rounds} rounds"
        if bool(one.tokens_per_second) != bool(one.later_rounds):
            yield f"{where}: a speed needs rounds after the first, and such rounds have one"
        if one.condition in BASELINES and (one.proposed or one.draft_passes):
            yield f"{where}: plain decoding drafted something"
        if one.tokens > result.setting.protocol.max_tokens:
            yield f"{where}: {one.tokens} tokens are more than the protocol's limit"
        if one.condition.draft and one.condition.draft not in result.setting.drafts:
            yield f"{where}: the setting has no draft model {one.condition.draft}"


def _of_blocks(result: Result) -> Iterator[str]:
    """Every block has plain decoding and its control, and no condition twice; some are greedy."""
    seen: dict[Any, list[Sample]] = {}
    for one in result.samples:
        seen.setdefault(one.block, []).append(one)
    for block, samples in seen.items():
        names = [one.condition for one in samples]
        if len(set(names)) < len(names):
            yield f"{block.prompt_set} {block.number}: a condition was measured twice"
        if not set(BASELINES) <= set(names):
            yield f"{block.prompt_set} {block.number}: plain decoding or its control is missing"
    if all(one.temperature for one in result.samples):
        yield "nothing was decoded greedily, which is how machines are compared"
    if missing := {one.condition.draft for one in result.samples} - set(result.curves):
        yield f"no cost curve for {', '.join(sorted(missing)) or 'the target alone'}"


def _of_ids(result: Result) -> Iterator[str]:
    """Outputs are those of plain decoding; in half precision only the control's has to be."""
    plain = {one.block: one for one in result.samples if one.condition.is_plain}
    for one in result.samples:
        usual = plain.get(one.block)
        if usual is None:
            continue
        where = f"{one.block.prompt_set} {one.block.number}, {one.condition}"
        if (one.ids == usual.ids) != (one.differing == 0):
            yield f"{where}: the digest of its ids and the count of those that differ disagree"
        has_to_be_equal = result.setting.lossless or one.condition.name == CONTROL
        if has_to_be_equal and one.differing:
            yield f"{where}: {one.differing} ids are not those of plain decoding"


def _of_control(result: Result) -> Iterator[str]:
    """Plain decoding measured twice gives the same speed, within bounds."""
    found = result.trials
    disturbed = sum(trial.disturbed for trial in found)
    if disturbed > _MOST_DISTURBED * len(found):
        yield (
            f"the control drifts in {disturbed} of {len(found)} trials, and at most "
            f"{_MOST_DISTURBED:.0%} may: measure again on a quiet machine"
        )
    if (bias := control_bias(found)) is not None and abs(bias) > _MOST_BIAS:
        yield f"the control is {bias:+.1%} off plain decoding; at most {_MOST_BIAS:.0%} is allowed"


def control_bias(found: Sequence[Trial]) -> float | None:
    """Median of the control's speed over that of plain decoding, less 1; None where untimed."""
    ratios = [s for trial in found if (s := trial.speedup(BASELINES[1])) is not None]
    return median(ratios) - 1 if ratios else None


def _of_figures(saved: Mapping[str, Any], result: Result) -> Iterator[str]:
    """The figures in the file are those that its samples give; predictions are left alone."""
    ours, theirs = result.figures().to_json(), saved["figures"]
    for name in _STATISTICS:
        yield from _edited(f"figures.{name}", ours[name], theirs[name])
    for name in ("expected", "waterfalls"):
        for index, one in enumerate(theirs[name]):
            timed = list(timed_greedily(Condition(**one["condition"]), result.trials))
            yield from _beside_predictions(f"figures.{name}[{index}]", one, timed)


def _beside_predictions(
    path: str, figure: Mapping[str, Any], timed: Sequence[tuple[Sample, float]]
) -> Iterator[str]:
    """What a figure with predictions says of the measurements."""
    yield from _edited(f"{path}.prompts", len(timed), figure["prompts"])
    if timed and "measured" in figure:
        measured = fmean(speedup for _, speedup in timed)
        yield from _edited(f"{path}.measured", measured, float(figure["measured"]))
    elif timed:
        saved, total = measured_ends(timed)
        yield from _edited(f"{path}.saved", saved, float(figure["saved"]))
        end = 1 + sum(figure[step] for step in _STEPS)
        if abs(end - total) > _TOLERANCE_OF_SUMS:
            yield f"{path} ends at {end:.6f}, but the samples give {total:.6f}"


def _edited(path: str, ours: Any, theirs: Any) -> Iterator[str]:
    for where, own, other in _differences(path, ours, theirs):
        yield f"{where} is {_short(other)}, but the samples give {_short(own)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _differences(path: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in {**ours, **theirs}:
            yield from _differences(f"{path}.{name}", ours.get(name), theirs.get(name))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (own, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _differences(f"{path}[{index}]", own, other)
    elif isinstance(ours, float) and isinstance(theirs, float):
        if abs(ours - theirs) > _TOLERANCE * max(1.0, abs(ours)):
            yield path, ours, theirs
    elif ours != theirs:
        yield path, ours, theirs
