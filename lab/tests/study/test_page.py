"""The page and the summary of a study."""

from __future__ import annotations

from dataclasses import replace

import pytest
from markup import Document, assert_self_contained
from studied import CONTEXT, a_model, a_result, a_sample, a_setting

from lab.study.conditions import BASELINES, Condition
from lab.study.glossary import meanings
from lab.study.measurements import Surroundings, Work
from lab.study.page import study_page, study_summary
from lab.study.protocol import PRESETS, Drafts, arms


@pytest.fixture(scope="module")
def page() -> str:
    return study_page(a_result())


def test_the_page_is_one_document(page: str) -> None:
    assert_self_contained(page)
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page


def test_the_page_says_what_was_measured(page: str) -> None:
    text = " ".join(Document(page).pieces)
    assert "Fastest on a chip: context:5 · draft, k = 2, with 1.50 (1.50–1.50) times" in text
    assert "measured twice differs by 0.0%." in text
    for said in (
        "plain again", "1.50 (1.50–1.50)", "42.9%", "0.667", "Equation 5", "further rows",
        "38.5%", "a chip, 16 GB", "0 of 27 trials are disturbed", "load 0.5, at most 0.5","40%–50%",
    ):  # fmt: skip
        assert said in text, said


def test_every_condition_of_every_preset_is_explained() -> None:
    drafts = Drafts(
        models=(("ours", True), ("theirs", False)), drafters=("d",), methods=("dictionary",)
    )
    for protocol in PRESETS.values():
        conditions = [a.condition for a in arms(protocol, drafts)]
        found = meanings(conditions)
        kinds = {c.name.partition(":")[0] for c in conditions}
        assert kinds <= {name.partition(":")[0] for name in found}
        assert "… · NAME" in found
    assert "context:P" in meanings([CONTEXT[2]])
    assert "…, a chain" not in meanings([CONTEXT[2]])


def test_acceptance_is_not_shown_of_next_to_nothing() -> None:
    """Two accepted of three proposed ids in 100 rounds say nothing."""
    few = Work(rows={1: 97, 2: 3}, first_tokens=1, chain_proposed=3, chain_accepted=2)
    auto = Condition("copy", "auto")
    samples = [a_sample(c) for c in (*BASELINES, CONTEXT[2])] + [a_sample(auto, work=few)]
    made = " ".join(study_summary(a_result(samples=tuple(samples), causes=())).split())
    assert "| copy | auto | – |" in made
    assert "| context:5 · draft | 2 | 42.9% |" in made


def test_energy_has_a_column_where_it_was_measured(page: str) -> None:
    assert "J/token" not in page
    samples = [
        replace(a_sample(c), surroundings=Surroundings(joules=26.0, peak_gb=0.1))
        for c in (*BASELINES, CONTEXT[2])
    ]
    text = Document(study_page(a_result(samples=tuple(samples), causes=()))).pieces
    assert "J/token" in text
    assert "2.00" in text


def test_times_to_the_first_token_are_shown_where_prompts_are_known_to_have_been_read(
    page: str,
) -> None:
    assert "first token, ms" not in page
    samples = [
        replace(one, work=replace(one.work, reads_prompt=True))
        for one in (a_sample(c) for c in (*BASELINES, CONTEXT[2]))
    ]
    made = study_page(a_result(samples=tuple(samples), causes=()))
    assert {"first token, ms", "250"} <= set(Document(made).pieces)
    assert "first token, ms" not in made.partition("<details")[0], "lengths differ between sets"


def test_names_are_escaped() -> None:
    result = a_result(setting=a_setting(target=a_model("<b>x</b>", 1000)))
    assert "<b>x" not in study_page(result)


def test_a_condition_of_a_later_version_is_shown_and_said_to_be_unknown() -> None:
    later = Condition("oracle without luck", 4)
    samples = [a_sample(c) for c in (*BASELINES, later)]
    made = study_page(a_result(samples=tuple(samples), causes=()))
    assert "a condition that this version of tokalign does not know" in made


def test_the_page_says_whose_prompts_were_given_and_in_which_language() -> None:
    theirs, ours = a_setting(own_prompts=False), a_setting(prompt_language="uk")
    assert "prompts of the contributor" in study_summary(a_result(setting=theirs))
    assert "prompts of tokalign, uk" in study_summary(a_result(setting=ours))


def test_the_summary_is_markdown_with_a_table_per_temperature() -> None:
    result = a_result(prompts=2)
    sampled = [replace(s, block=replace(s.block, temperature=0.7)) for s in result.samples]
    made = study_summary(replace(result, samples=(*result.samples, *sampled)))
    summary = " ".join(made.split())
    assert made.startswith("### a target on a chip\n")
    assert summary.count("| condition | k | acceptance |") == 2
    assert "**all prompts, T = 0.7**" in summary
    assert "| context:5 · draft | 2 | 42.9% | 1.857 |" in summary


def test_what_the_control_does_not_clear_is_not_called_faster() -> None:
    noisy = a_result(control=1.6)
    assert study_summary(noisy).splitlines()[2].startswith("No way of drafting is faster")


def test_outputs_that_end_in_their_first_round_have_no_speed() -> None:
    conditions = (*BASELINES, CONTEXT[2])
    samples = [a_sample(c, speed=0.0, work=replace(a_sample(c).work, rows={})) for c in conditions]
    result = a_result(samples=tuple(samples), causes=())
    assert_self_contained(study_page(result))
    assert "Nothing was decoded for long enough" in study_summary(result)
