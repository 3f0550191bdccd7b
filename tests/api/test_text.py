"""The Python API: mlx-lm's responses and mlx-lm's output."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from shutil import copytree
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from places import DEMO
from random_models import plainly, random_model

import tokalign
from tokalign.api.objects import OF_A_DRAFT_MODEL
from tokalign.errors import UsageError
from tokalign.runtime.draft.opening_knowledge import shared_knowledge
from tokalign.runtime.mlx.sampling import Sampling

PROMPT = "Zażółć gęślą"
PLAIN: dict[str, Any] = {"max_tokens": 8, "method": "plain"}


def plain(pair: dict[str, Any], count: int) -> list[int]:
    """mlx-lm's own greedy output."""
    return plainly(pair["model"], pair["tokenizer"].encode(PROMPT), count)


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
    assert knowledge.rounds > 0
    assert shared_knowledge(pair["model"], pair["draft_model"]) is knowledge
    assert shared_knowledge(pair["model"]) is not knowledge


def test_tokenizers_are_taken_from_folders_and_wrappers(
    pair: dict[str, Any], models: dict[str, str]
) -> None:
    class Wrapper:
        name_or_path = models["target"]
        eos_token_ids = (3,)

    found, stopped = (
        [r.token for r in tokalign.stream_generate(pair["model"], given, PROMPT, **PLAIN)]
        for given in (Path(models["target"]), Wrapper())
    )
    assert found == plain(pair, 8)[: len(found)]
    assert stopped == found[: len(stopped)]


@pytest.mark.parametrize("options", [{"method": "plain"}, {}], ids=str)
def test_a_stop_text_changes_nothing_before_it(options: dict[str, Any]) -> None:
    """mlx-lm drops the space of a first token, so the text with `stop` begins without it too."""
    model, tokenizer = tokalign.load(str(DEMO / "target"))
    given = {"max_tokens": 12, **options}
    whole = tokalign.generate(model, tokenizer, "Wisła jest", **given)
    assert not whole.startswith(" ")
    for stop in ("nowhere", whole[4:6]):
        found = tokalign.generate(model, tokenizer, "Wisła jest", stop=stop, **given)
        assert found == whole.partition(stop)[0]


def test_the_tokenizer_of_a_draft_model_has_to_be_given(pair: dict[str, Any]) -> None:
    models = {"model": pair["model"], "tokenizer": pair["tokenizer"], "draft_model": pair["model"]}
    with pytest.raises(UsageError, match="draft_tokenizer=tokenizer"):
        tokalign.stream_generate(prompt=PROMPT, **models)
    given = {"draft_tokenizer": pair["tokenizer"], "max_tokens": 8, **models}
    found = [r.token for r in tokalign.stream_generate(prompt=PROMPT, **given)]
    assert found == plain(pair, 8)[: len(found)]


@pytest.mark.parametrize("name", OF_A_DRAFT_MODEL)
def test_what_only_a_draft_model_uses_is_not_ignored_without_one(
    pair: dict[str, Any], name: str
) -> None:
    alone = {"model": pair["model"], "tokenizer": pair["tokenizer"], name: "exact"}
    refused = pytest.raises(UsageError, match=f"^{name} does nothing without draft_model; pass")
    with refused:
        tokalign.stream_generate(prompt=PROMPT, **alone)
    if name != "draft_prompt":
        with refused:
            tokalign.batch_generate(prompts=[PROMPT], **alone)


def test_no_draft_tokens_are_drafted_as_in_mlx_lm(pair: dict[str, Any]) -> None:
    for how in ({}, {"method": "draft"}):
        given = {"max_tokens": 8, "num_draft_tokens": 0, **pair, **how}
        responses = list(tokalign.stream_generate(prompt=PROMPT, **given))
        assert [r.token for r in responses] == plain(pair, 8)[: len(responses)]
        assert not any(r.from_draft for r in responses)


def test_a_wrong_prompt_cache_is_told_whose_caches_it_needs(pair: dict[str, Any]) -> None:
    def refusal(**given: Any) -> str:
        with pytest.raises(UsageError, match=r"^prompt_cache has to be a list of \d+ caches") as e:
            tokalign.stream_generate(prompt=PROMPT, prompt_cache=[], **given)
        return str(e.value)

    assert "the draft model's" in refusal(**pair)
    alone = {name: pair[name] for name in ("model", "tokenizer")}
    assert "draft" not in refusal(**alone)


@pytest.mark.parametrize("stream", ["gpu", True, mx.gpu])
def test_a_stream_that_is_none_of_this_machine_is_refused(
    pair: dict[str, Any], monkeypatch: pytest.MonkeyPatch, stream: Any
) -> None:
    def no_gpu(of: Any) -> None:
        raise TypeError("a text") if isinstance(of, str) else ValueError("no gpu")

    monkeypatch.setattr(mx, "stream", no_gpu)  # as where there is none
    given: dict[str, Any] = {**pair, "stream": stream}
    refused = pytest.raises(UsageError, match=r"^stream has to be a stream of mlx on this machine")
    with refused:
        tokalign.stream_generate(prompt=PROMPT, **given)
    with refused:
        tokalign.batch_generate(prompts=[PROMPT], **given)


def test_messages_for_callers_name_no_option_of_the_command_line() -> None:
    """What both meet is called by its name alone; commands are spelled as they are typed."""
    typed_only = {"chat.py", "cost.py", "decoder.py", "options.py", "weights.py"}
    package = Path(tokalign.__file__).parent
    for file in (*package.glob("api/**/*.py"), *package.glob("runtime/**/*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        pages = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in pages:
                option = re.search(r"(?<![\w-])--[a-z]", str(node.value))
                is_command = "tokalign " in str(node.value)
                assert not option or is_command or file.name in typed_only, (file, node.value)


def test_stop_ids_are_also_those_of_the_models_configuration(
    pair: dict[str, Any], models: dict[str, str], tmp_path: Path
) -> None:
    """A path to a folder stops where mlx-lm's tokenizer of that folder stops."""
    last, folder = plain(pair, 4)[-1], copytree(models["target"], tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [last]}))
    found = list(tokalign.stream_generate(pair["model"], folder, PROMPT, **PLAIN))
    assert (found[-1].token, found[-1].finish_reason) == (last, "stop")


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


@pytest.mark.parametrize("prompt", ["", "Wczoraj"])
@pytest.mark.parametrize("pattern", [" a|b", r"\s\d", ".{3}", "  ?x"])
def test_a_space_that_a_grammar_demands_stays(prompt: str, pattern: str) -> None:
    """The text is what the grammar matched, without the tokenizer's own first space."""
    model, tokenizer = tokalign.load(str(DEMO / "target"))
    for seed in range(4):
        parts = list(
            tokalign.stream_generate(
                model,
                tokenizer,
                prompt,
                max_tokens=8,
                grammar=tokalign.Grammar.regex(pattern),
                sampling=Sampling(temperature=1.5, seed=seed),
            )
        )
        text = "".join(part.text for part in parts)
        assert parts[-1].finish_reason == "length" or re.fullmatch(pattern, text), text


@pytest.mark.parametrize(("draft_seed", "count"), [(0, 270), (1, 20)])
def test_speculative_generate_step_is_a_drop_in(draft_seed: int, count: int) -> None:
    """Same ids, whether the draft model is the target itself or another one.

    `generate_step` does not look at `max_position_embeddings`, here 256; nor may this one.
    """
    model, draft = random_model(), random_model(draft_seed)
    prompt = [5, 17, 3, 8]
    expected = plainly(model, prompt, count)
    steps = list(
        tokalign.speculative_generate_step(mx.array(prompt), model, draft, max_tokens=count)
    )
    assert [token for token, _, _ in steps] == expected
    assert all(int(mx.argmax(logprobs).item()) == token for token, logprobs, _ in steps)
    drafted = [from_draft for _, _, from_draft in steps]
    assert any(drafted) if draft_seed == 0 else not all(drafted)


def test_a_prompt_cache_is_left_as_mlx_lm_leaves_it() -> None:
    """A second call goes on where the first one ended."""
    model = random_model()
    expected = plainly(model, [5, 17, 3], 16)
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


def test_what_is_loaded_on_first_use_is_listed() -> None:
    """By `dir`, and so by an editor that completes names and by `help`."""
    assert {*tokalign.__all__} <= {*dir(tokalign)}
    assert all(getattr(tokalign, name).__name__ == name for name in tokalign.__all__)
