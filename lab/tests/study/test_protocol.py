"""What a study measures."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT
from studied import a_block

from lab.study.conditions import BASELINES
from lab.study.protocol import PRESETS, Drafts, arms, is_disturbed, is_measured, only, windows
from tokalign.errors import UsageError

BOTH = Drafts(models=(("near", True), ("far", False)), methods=("dictionary",))


def test_paper_has_the_protocol_of_the_polish_study() -> None:
    protocol = PRESETS["paper"]
    assert (protocol.prompts, protocol.max_tokens) == (50, 128)
    assert (protocol.window, protocol.stride) == (1024, 512)
    found = arms(protocol, BOTH)
    measured = {(a.condition.name, a.condition.chain, a.condition.k): a for a in found}
    for name in ("raw", "naive", "context:5", "exact"):
        assert {(name, False, 2), (name, False, 4)} <= measured.keys()
    assert {("intersection", True, 2), ("intersection", True, 4)} <= measured.keys()
    assert {("exact", True, 2), ("none", False, 6), ("exact", False, "auto")} <= measured.keys()
    assert measured["context:5", False, 6].sets == ("instructions",)
    assert {name for name, _, _ in measured} >= {"dictionary", "copy", "hybrid"}


def test_prompts_are_our_own_and_tasks_those_of_spec_bench() -> None:
    protocol = PRESETS["tasks"]
    folder = ROOT / "lab" / "prompts" / "tasks"
    assert len(protocol.sets) == 7
    assert {path.stem for path in folder.glob("*.txt")} == set(protocol.sets)
    for path in folder.glob("*.txt"):
        lines = path.read_text("utf-8").splitlines()
        assert len(set(lines)) == protocol.prompts
        assert unicodedata.is_normalized("NFC", "".join(lines))
    for name in ("instructions", "questions"):
        files = [ROOT / "prompts" / f"{name}.txt", folder.parent / "more" / f"{name}.txt"]
        lines = [line for path in files for line in path.read_text("utf-8").splitlines()]
        assert len(lines) == len(set(lines)) == PRESETS["paper"].prompts
        assert unicodedata.is_normalized("NFC", "".join(lines))
    names = {arm.condition.name for arm in arms(protocol, BOTH)}
    assert names >= {"unispec", "copy", "hybrid", "exact", "none"}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_condition_once_and_the_baselines_everywhere(preset: str) -> None:
    protocol = PRESETS[preset]
    found = arms(protocol, BOTH)
    conditions = [arm.condition for arm in found]
    assert len(set(conditions)) == len(conditions)
    assert tuple(conditions[:2]) == BASELINES
    for arm in found:
        for prompt_set in protocol.sets:
            for temperature in protocol.temperatures:
                block = a_block(prompt_set=prompt_set, temperature=temperature)
                measured = is_measured(arm, block, protocol)
                assert measured or not (arm.sampled and not arm.sets)
                assert not measured or arm.sampled or temperature == 0
    assert sum(arm.sampled for arm in found) >= 6


def test_a_study_needs_no_draft_model() -> None:
    names = {arm.condition.name for arm in arms(PRESETS["quick"], Drafts())}
    assert names == {"plain", "plain again", "copy", "hybrid"}


def test_conditions_can_be_chosen() -> None:
    found = arms(PRESETS["quick"], BOTH)
    chosen = only(found, ["exact"])
    assert {arm.condition.name for arm in chosen} == {"plain", "plain again", "exact"}
    assert only(found, []) == found
    window = only(found, ["context:9"])
    assert [arm.condition for arm in window[2:]] == [
        replace(arm.condition, name="context:9") for arm in only(found, ["context:5"])[2:]
    ]
    with pytest.raises(UsageError, match="no translation 'context:0'"):
        only(found, ["context:0"])
    with pytest.raises(UsageError, match="no condition 'exakt'"):
        only(found, ["exakt"])


@given(st.integers(0, 200), st.integers(1, 60), st.integers(1, 60))
def test_windows_slide_over_the_whole_text(length: int, size: int, stride: int) -> None:
    found = list(windows(range(length), size=size, stride=stride))
    assert found[0] == (0, min(size, length))
    assert all(end - start == min(size, length) for start, end in found)
    assert [start for start, _ in found] == list(range(0, len(found) * stride, stride))
    assert length - found[-1][0] < size + stride or length <= size


def test_a_control_may_differ_by_a_tenth() -> None:
    assert not is_disturbed(10.0, 10.9)
    assert not is_disturbed(10.0, 9.1)
    assert is_disturbed(10.0, 11.1)
    assert is_disturbed(10.0, 8.9)
    assert not is_disturbed(0.0, 8.9)
    assert not is_disturbed(10.0, 0.0)
