"""Checking a result: a sound one is accepted, and no field can be edited without being noticed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from studied import CONTEXT, CONTROL, a_model, a_result, a_setting

from lab.study.check import check_file, problems_of
from lab.study.result import Result, digest_of
from tokalign.errors import UsageError


@pytest.fixture(scope="module")
def sound() -> dict[str, Any]:
    return a_result(prompts=2).to_json()


def signed(content: dict[str, Any]) -> dict[str, Any]:
    """The content with its own digest, as someone who edits with care would leave it."""
    return content | {"digest": digest_of(content)}


def problem(content: dict[str, Any]) -> str:
    return "; ".join(problems_of(content, name="r.json"))


def test_a_sound_result_is_accepted(sound: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(sound))
    assert check_file(path) == []
    assert Result.from_json(sound, name="r.json").to_json() == sound


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with a key of it under which something is that holds nothing else."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list) and item:
            yield from leaves(item)
        else:
            yield value, key


def changed(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
    return 1


def test_any_edited_field_is_noticed(sound: dict[str, Any]) -> None:
    count = sum(1 for _ in leaves(sound))
    for at in Random(1).sample(range(count), 40):
        edited = deepcopy(sound)
        holder, key = list(leaves(edited))[at]
        holder[key] = changed(holder[key])
        assert problem(edited), key


def edited(content: dict[str, Any], path: str, edit: Any) -> dict[str, Any]:
    """A copy with another value at a path, or what a function makes of the value there."""
    content = deepcopy(content)
    holder: Any = content
    *above, last = [int(name) if name.isdecimal() else name for name in path.split(".")]
    for name in above:
        holder = holder[name]
    holder[last] = edit(holder[last]) if callable(edit) else edit
    return content


OTHER = "ffeeddccbbaa9988"


@pytest.mark.parametrize(
    ("path", "edit", "says"),
    [
        ("samples.2.tokens_per_second", lambda speed: 1.2 * speed, "but the samples give"),
        ("figures.groups.0.rows.2.speedup", lambda one: one + 0.01, "but the samples give"),
        (
            "figures.expected.0.measured",
            lambda one: one + 0.01,
            "expected[0].measured is 1.51, but the samples give 1.5",
        ),
        (
            "figures.waterfalls.0.rest",
            lambda one: one - 0.01,
            "waterfalls[0] ends at 0.656667, but the samples give 0.666667",
        ),
        ("figures.expected.0.condition.k", 99, "expected[0].prompts is 6, but the samples give 0"),
        ("samples.2.ids", OTHER, "disagree"),
        (
            "samples.2",
            lambda one: one | {"ids": OTHER, "differing": 3},
            "3 ids are not those of plain decoding",
        ),
        ("samples.2.accepted", 9, "13 tokens from 7 rounds and 9 accepted"),
        ("samples", lambda found: [found[0], *found[2:]], "its control is missing"),
        ("samples", lambda found: [*found, found[2]], "measured twice"),
        ("curves", lambda curves: {"": curves[""]}, "no cost curve for draft"),
        ("setting", lambda one: one | {"comment": "very fast"}, "'comment' was unexpected"),
        ("setting.target.weights", "the good ones", "does not match"),
        # What nothing measures is a problem and no crash.
        (
            "figures.groups.0.rows.2.speedup",
            float("nan"),
            "$.figures.groups[0].rows[2].speedup is nan, which is no measured number",
        ),
        ("samples.2.tokens_per_second", float("inf"), "$.samples[2].tokens_per_second is inf"),
        ("setting.drafts.draft.bytes", 10**400, "$.setting.drafts.draft.bytes is 1000"),
        (
            "curves.draft.rows",
            lambda one: one | {"1": [5e-324] * 3},
            "figures cannot be computed",
        ),
        ("causes.0.tokens", 0, "figures cannot be computed"),
        ("samples.2.work.rows", {"-3": 6}, "$.samples[2].work.rows: '-3' does not match"),
        ("setting.chip", "chip \ud800", "$.setting.chip holds half a character"),
        (
            "samples",
            lambda found: [one | {"block": one["block"] | {"temperature": 0.7}} for one in found],
            "nothing was decoded greedily",
        ),
    ],
)
def test_an_edit_that_is_signed_again_is_noticed(
    sound: dict[str, Any], path: str, edit: Any, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps(signed(edited(sound, path, edit))))
    assert says in "\n".join(check_file(file))


def test_a_result_stays_valid_when_tokalign_predicts_otherwise(sound: dict[str, Any]) -> None:
    """As a file of another version: other expectations, other steps, more conditions or fewer."""
    content = deepcopy(sound)
    expected, waterfalls = content["figures"]["expected"], content["figures"]["waterfalls"]
    expected[0]["expected"] *= 1.5
    expected.append(expected[0] | {"expected": 0.5})
    waterfalls[0]["host"] += 0.25
    waterfalls[0]["rest"] -= 0.25
    waterfalls.pop()
    assert problem(signed(content)) == ""


def test_a_control_that_drifts_is_refused() -> None:
    assert "at most 20% may" in problem(a_result(control=1.2).to_json())
    assert "+5.0% off" in problem(a_result(control=1.05).to_json())
    assert problem(a_result(control=1.02).to_json()) == ""


def test_in_half_precision_outputs_may_differ_but_not_the_controls() -> None:
    half = a_setting(target=replace(a_model("t", 1000), dtype="float16", bits=16))

    def with_one_differing(condition: Any) -> Result:
        result = a_result(setting=half)
        samples = [
            replace(s, ids="ffeeddccbbaa9988", differing=2) if s.condition == condition else s
            for s in result.samples
        ]
        return replace(result, samples=tuple(samples))

    assert problem(with_one_differing(CONTEXT[2]).to_json()) == ""
    assert "2 ids are not those" in problem(with_one_differing(CONTROL).to_json())


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert problems_of({"format": "tokalign-bench"}, name="x")
    assert problems_of([], name="x")
    path = tmp_path / "x.json"
    path.write_text("{")
    with pytest.raises(UsageError, match=r"study\.json"):
        check_file(path)
    with pytest.raises(UsageError, match="is not a result of version 1"):
        Result.from_json({"format": "tokalign-study", "version": 2}, name="x")


@cache
def small() -> str:
    return json.dumps(a_result(prompts=1).to_json())


@pytest.mark.slow
@given(st.randoms(use_true_random=False), st.sampled_from([0, 1, 7, 0.5, "", "x", None, [], {}]))
@settings(max_examples=60, deadline=None)
def test_whatever_stands_in_a_field_is_a_problem_and_no_crash(random: Random, value: Any) -> None:
    """Signed again, so that the digest gives nothing away; the same value may be no edit."""
    content = json.loads(small())
    for _ in range(random.randint(1, 3)):
        holder, key = random.choice(list(leaves(content)))
        holder[key] = value
    found = problems_of(signed(content), name="r.json")
    assert all(isinstance(one, str) for one in found)
