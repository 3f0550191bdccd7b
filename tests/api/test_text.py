"""The Python API: mlx-lm's responses and mlx-lm's output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from random_models import random_model
from small_tables import dictionary_bundle

import tokalign
from tokalign.build.alignment import build_alignment
from tokalign.errors import MissingAssetError, UsageError
from tokalign.runtime.draft.opening_knowledge import shared_knowledge
from tokalign.tables.bundle import write_bundle

PROMPT = "Zażółć gęślą"
PLAIN: dict[str, Any] = {"max_tokens": 8, "method": "plain"}


def plain(pair: dict[str, Any], count: int) -> list[int]:
    """mlx-lm's own greedy output."""
    prompt = mx.array(pair["tokenizer"].encode(PROMPT))
    return [token for token, _ in generate_step(prompt, pair["model"], max_tokens=count)]


@pytest.mark.parametrize("steps", [3, None])
@pytest.mark.parametrize("translation", ["context:5", "intersection", "exact"])
def test_stream_generate_gives_mlx_lms_output(
    pair: dict[str, Any], translation: str, steps: int | None
) -> None:
    responses = list(
        tokalign.stream_generate(
            prompt=PROMPT, max_tokens=24, translation=translation, num_draft_tokens=steps, **pair
        )
    )
    found = [r.token for r in responses]
    expected = plain(pair, 24)
    assert found == expected[: len(found)]
    assert "".join(r.text for r in responses) == pair["tokenizer"].vocabulary.bytes_of(
        found
    ).decode("utf-8", "replace")
    assert [r.finish_reason for r in responses[:-1]] == [None] * (len(found) - 1)
    assert responses[-1].finish_reason == ("length" if len(found) == 24 else "stop")
    assert responses[-1].generation_tokens == len(found)
    assert responses[0].prompt_tokens == len(pair["tokenizer"].encode(PROMPT))
    for r in responses:
        assert r.from_draft == (r.source != "target")
        assert int(mx.argmax(r.logprobs).item()) == r.token


def test_what_is_learned_of_two_models_serves_their_next_request(pair: dict[str, Any]) -> None:
    knowledge = shared_knowledge(pair["model"], pair["draft_model"])
    for _ in tokalign.stream_generate(prompt=PROMPT, max_tokens=24, **pair):
        pass
    assert knowledge.budget.rounds > 0
    assert shared_knowledge(pair["model"], pair["draft_model"]) is knowledge
    assert shared_knowledge(pair["model"]) is not knowledge


def test_tokenizers_are_taken_from_folders_and_wrappers(
    pair: dict[str, Any], target_folder: Path
) -> None:
    class Wrapper:
        name_or_path = str(target_folder)
        eos_token_ids = (3,)

    found, stopped = (
        [r.token for r in tokalign.stream_generate(pair["model"], given, PROMPT, **PLAIN)]
        for given in (target_folder, Wrapper())
    )
    assert found == plain(pair, 8)[: len(found)]
    assert stopped == found[: len(stopped)]


@pytest.fixture
def tables(pair: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where tables are looked for: an alignment, and dictionaries of two languages.

    The Polish one knows the output, the other one nothing.
    """
    target, draft = pair["tokenizer"], pair["draft_tokenizer"]
    output = plain(pair, 24)
    known = {tuple(output[i : i + 2]): ((output[i + 2],), 1.0) for i in range(22)}
    for language, entries in (("pl", known), ("uk", {})):
        size, known_as = len(target.vocabulary), target.fingerprint
        bundle = dictionary_bundle(entries, size, known_as, language)
        write_bundle(tmp_path / f"{language}.dictionary.tok", bundle)
    write_bundle(tmp_path / "draft.alignment.tok", build_alignment(draft, target, []))
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path))
    return tmp_path


def test_a_dictionary_is_chosen_by_language(pair: dict[str, Any], tables: Path) -> None:
    def sources(**given: Any) -> set[str]:
        how = {"max_tokens": 24, "method": "dictionary", **given}
        how["num_draft_tokens"] = 4  # on a busy machine `auto` may draft nothing
        responses = tokalign.stream_generate(pair["model"], pair["tokenizer"], PROMPT, **how)
        return {r.source for r in responses}

    assert "dictionary" in sources(language="pl")
    assert sources(language="uk") == {"target"}
    with pytest.raises(MissingAssetError, match="language: pl, uk"):
        sources(language="de")
    assert "dictionary:pl" in sources(), "both are followed, and one knows the text"
    assert "dictionary:pl" in sources(language="uk,pl")


def test_the_tokenizer_of_a_draft_model_has_to_be_given(pair: dict[str, Any]) -> None:
    models = {"model": pair["model"], "tokenizer": pair["tokenizer"], "draft_model": pair["model"]}
    with pytest.raises(UsageError, match="draft_tokenizer=tokenizer"):
        tokalign.stream_generate(prompt=PROMPT, **models)
    given = {"draft_tokenizer": pair["tokenizer"], "max_tokens": 8, **models}
    found = [r.token for r in tokalign.stream_generate(prompt=PROMPT, **given)]
    assert found == plain(pair, 8)[: len(found)]


def test_stop_ids_are_also_those_of_the_models_configuration(
    pair: dict[str, Any], target_folder: Path
) -> None:
    """A path to a folder stops where mlx-lm's tokenizer of that folder stops."""
    last = plain(pair, 4)[-1]
    (target_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [last]}))
    try:
        found = list(tokalign.stream_generate(pair["model"], target_folder, PROMPT, **PLAIN))
    finally:
        (target_folder / "generation_config.json").unlink()
    assert found[-1].token == last
    assert found[-1].finish_reason == "stop"


@pytest.mark.parametrize("method", ["plain", "auto"])
def test_an_output_matches_its_grammar(pair: dict[str, Any], method: str) -> None:
    grammar = tokalign.Grammar.choice(["żółty", "zielony"])
    for sampler in (None, lambda logprobs: mx.argmax(logprobs, axis=-1)):
        text = tokalign.generate(
            prompt=PROMPT, max_tokens=24, grammar=grammar, sampler=sampler, method=method, **pair
        )
        assert text in ("żółty", "zielony")
    with pytest.raises(UsageError, match="grammar has to be"):
        tokalign.stream_generate(prompt=PROMPT, grammar={"type": "object"}, **pair)


@pytest.mark.parametrize(("draft_seed", "count"), [(0, 270), (1, 20)])
def test_speculative_generate_step_is_a_drop_in(draft_seed: int, count: int) -> None:
    """Same ids, whether the draft model is the target itself or another one.

    `generate_step` does not look at `max_position_embeddings`, here 256; nor may this one.
    """
    model, draft = random_model(), random_model(draft_seed)
    prompt = mx.array([5, 17, 3, 8])
    expected = [token for token, _ in generate_step(prompt, model, max_tokens=count)]
    steps = list(tokalign.speculative_generate_step(prompt, model, draft, max_tokens=count))
    assert [token for token, _, _ in steps] == expected
    assert all(int(mx.argmax(logprobs).item()) == token for token, logprobs, _ in steps)
    drafted = [from_draft for _, _, from_draft in steps]
    assert any(drafted) if draft_seed == 0 else not all(drafted)


def test_a_prompt_cache_is_left_as_mlx_lm_leaves_it() -> None:
    """A second call goes on where the first one ended."""
    model = random_model()
    expected = [t for t, _ in generate_step(mx.array([5, 17, 3]), model, max_tokens=16)]
    cache = make_prompt_cache(model) + make_prompt_cache(model)

    def eight_more(ids: list[int]) -> list[int]:
        how = {"max_tokens": 8, "prompt_cache": cache}
        steps = tokalign.speculative_generate_step(mx.array(ids), model, model, **how)
        return [token for token, _, _ in steps]

    first = eight_more([5, 17, 3])
    assert {c.offset for c in cache} == {3 + 7}
    assert first + eight_more(first[-1:]) == expected


def test_the_package_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tokalign.nothing  # noqa: B018
