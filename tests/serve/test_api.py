"""OpenAI's own client against the server: every endpoint and option, streaming and not."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from compared_names import compared_names
from places import DEMO
from scripted_scheduler import scripted
from served import (
    LOOP,
    WEATHER,
    ask,
    complete,
    demo_settings,
    echo_folder,
    metric,
    openai,
    request,
    serving,
    text_of,
)

from tokalign.conversation.tools import ANY_TOOL
from tokalign.errors import UsageError
from tokalign.serve import Settings, app
from tokalign.serve.completions import Chats
from tokalign.serve.json_body import as_form
from tokalign.serve.messages import Messages
from tokalign.serve.responses import Responses
from tokalign.serve.server import Server
from tokalign.serve.structured import allowed_tools
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer


def said(server: Server, *text: str, **more: Any) -> str:
    return str(ask(server, *text, **more).choices[0].message.content)


def streamed(server: Server, *text: str, **more: Any) -> list[Any]:
    return list(ask(server, *text, stream=True, **more))


def test_models(server: Server) -> None:
    (model,) = openai(server).models.list()
    for name in (model.id, "default_model"):
        assert openai(server).models.retrieve(name).id == model.id
    assert said(server, model=model.id) == said(server)
    listed = request(server, "GET", "/v1/models").json
    assert listed["first_id"] == listed["last_id"] == model.id


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/model"])
def test_questions_wait_a_moment_for_models_that_load(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who asks again without a pause uses up all attempts at once, and no model tells its
    context's length."""
    with scripted(monkeypatch, lambda asked, put: None) as (server, scheduler):
        scheduler.is_loading, scheduler.is_healthy = True, False
        monkeypatch.setattr(scheduler, "model_list", list)
        monkeypatch.setattr(app, "_PATIENCE", 0.0)
        early = request(server, "GET", path)
        assert early.status != 200 or early.json["data"] == []

        def load() -> None:
            monkeypatch.setattr(scheduler, "model_list", lambda: [{"id": "model"}])
            scheduler.is_loading, scheduler.is_healthy = False, True

        monkeypatch.setattr(app, "_PATIENCE", 6.0)
        Timer(0.2, load).start()
        ready = request(server, "GET", path)
        assert ready.status == 200
        assert path == "/health" or "model" in json.dumps(ready.json)


def test_health_and_metrics(server: Server) -> None:
    assert request(server, "GET", "/health").json == {"status": "ok"}
    said(server)
    metrics = request(server, "GET", "/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain")
    for name in (
        'tokalign_requests_total{path="/v1/chat/completions",status="200"}',
        "tokalign_prompt_tokens_total",
        "tokalign_output_tokens_total",
        "tokalign_time_to_first_token_seconds_count",
        "tokalign_tokens_per_round_sum",
        'tokalign_proposed_tokens_total{source="draft"}',
        "tokalign_queue_length 0.0",
        "tokalign_running_requests 0.0",
    ):
        assert f"\n{name}" in metrics.text, name
    assert metric(server, "tokalign_prompt_cache_bytes") > 0


def test_metrics_count_what_usage_says(server: Server) -> None:
    names = ("prompt_tokens", "cached_prompt_tokens", "output_tokens", "accepted_tokens")
    before = [metric(server, f"tokalign_{name}_total") for name in names]
    usage = ask(server, "Wisła i Odra", max_tokens=40, **LOOP).usage
    after = [metric(server, f"tokalign_{name}_total") for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [
        usage.prompt_tokens,
        usage.prompt_tokens_details.cached_tokens,
        usage.completion_tokens,
        usage.completion_tokens_details.accepted_prediction_tokens,
    ]


def test_the_path_without_v1(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "Kto?"}], "max_tokens": 24}
    reply = request(server, "POST", "/chat/completions", body)
    assert reply.json["choices"][0]["message"]["content"] == said(server, "Kto?")
    for path in ("/models", "/models/default_model"):
        assert request(server, "GET", path).json == request(server, "GET", f"/v1{path}").json
    reply = request(server, "POST", "/responses", {"input": "Kto?", "max_output_tokens": 24})
    assert reply.json["output"][0]["content"][0]["text"] == said(server, "Kto?")


def test_a_stream_ends_with_the_usage_if_that_is_wanted(server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "Wisła?"}]}
    for api, given, kinds in (
        (openai(server).completions, {"prompt": "Wisła jest"}, ("text_completion",) * 2),
        (openai(server).chat.completions, chat, ("chat.completion", "chat.completion.chunk")),
    ):
        given = {"model": "default_model", "max_tokens": 12, **given, **LOOP}
        whole = api.create(**given)
        chunks = list(api.create(**given, stream=True, stream_options={"include_usage": True}))
        used = [
            (one.usage.prompt_tokens, one.usage.completion_tokens) for one in (whole, chunks[-1])
        ]
        assert used[0] == used[1]
        assert used[0][1] == 12
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert not any(chunk.usage for chunk in api.create(**given, stream=True))
        every: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(api.create(**given, stream=True, stream_options=every))
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts)
        assert (counts[0] <= 1, counts[-1]) == (True, 12)
        assert {chunk.usage.prompt_tokens for chunk in chunks} == {used[0][0]}
        assert (whole.object, {chunk.object for chunk in chunks}) == (kinds[0], {kinds[1]})


def test_seeds(server: Server) -> None:
    def drawn(seed: int | None) -> str:
        return said(server, temperature=1.0, seed=seed, **LOOP)

    assert drawn(3) == drawn(3)
    assert len({drawn(seed) for seed in range(4)}) > 1
    for none in (None, -1):  # -1 is none in vLLM and llama.cpp
        assert len({drawn(none) for _ in range(4)}) > 1
    assert drawn(3) == text_of(streamed(server, temperature=1.0, seed=3, **LOOP))


@pytest.mark.parametrize(
    ("option", "is_greedy"),
    [
        # what leaves one id
        *(({"temperature": 0.7, "top_p": top_p, "seed": 4}, True) for top_p in (0, 0.01)),
        ({"temperature": 0.7, "seed": 4, "extra_body": {"top_k": 1}}, True),
        ({"temperature": 0.7, "seed": 4, "extra_body": {"min_p": 1.0}}, True),
        ({"presence_penalty": 2.0}, False),
        ({"frequency_penalty": 2.0}, False),
        ({"extra_body": {"repetition_penalty": 1.5}}, False),
        ({"extra_body": {"repeat_penalty": 1.5, "repeat_last_n": -1}}, False),
        ({"temperature": 1, "extra_body": {"xtc_probability": 1.0, "xtc_threshold": 0.0}}, False),
    ],
)
def test_options_of_sampling_take_effect(
    server: Server, option: dict[str, Any], is_greedy: bool
) -> None:
    greedy = said(server, max_tokens=30, **LOOP)
    assert (said(server, max_tokens=30, **option, **LOOP) == greedy) == is_greedy


def test_an_answer_has_as_many_tokens_as_llama_cpps_field_says(server: Server) -> None:
    for more in ({}, {"max_tokens": 9}):
        body: dict[str, Any] = {"prompt": "Wisła", "n_predict": 3, **more, **LOOP}
        body["messages"] = [{"role": "user", "content": "Wisła"}]
        for path in ("/v1/completions", "/v1/chat/completions"):
            assert request(server, "POST", path, body).json["usage"]["completion_tokens"] == 3


IM_START = "<|im_start|>"


@pytest.mark.parametrize(("skips", "shown"), [(None, False), (True, False), (False, True)])
def test_special_tokens_are_text_where_that_is_asked(
    server: Server, skips: bool | None, shown: bool
) -> None:
    """A completion's text is what its ids say, unless another is asked."""
    asked = {"max_tokens": 3, "logit_bias": {"3": 1000}, "skip_special_tokens": skips}
    assert (said(server, extra_body=asked) == 3 * IM_START) == shown
    text = complete(server, "Wisła", **asked).json["choices"][0]["text"]
    assert text == ("" if skips else 3 * IM_START)


@pytest.mark.parametrize("stop", [IM_START, f"{IM_START} "])
def test_a_stop_text_may_be_a_special_token(server: Server, stop: str) -> None:
    """Whoever names one wants it seen, though the text of no chat has it."""
    bias = {"logit_bias": {"3": 1000}, "max_tokens": 3}
    answer = ask(server, stop=stop, **bias)
    ends = stop == IM_START
    assert answer.choices[0].finish_reason == ("stop" if ends else "length")
    assert answer.usage.completion_tokens == (1 if ends else 3)


def test_a_logit_bias_rules(server: Server) -> None:
    answer = ask(server, max_tokens=6, logit_bias={"300": 1000}, logprobs=True)
    assert [token.id for token in answer.choices[0].logprobs.content] == [300] * 6


def test_an_answer_is_json_whatever_the_numbers_are(server: Server) -> None:
    """Divided by this penalty, scores leave float32, and JSON has no NaN."""
    body = {"messages": [{"role": "user", "content": "Kto?"}], "max_tokens": 3, "logprobs": True}
    for more in ({"top_logprobs": 3}, {"temperature": 1}):
        sent = {**body, "repetition_penalty": 1e-300, **more}
        reply = request(server, "POST", "/v1/chat/completions", sent)
        assert reply.status == 200
        json.loads(reply.text, parse_constant=pytest.fail)


@pytest.mark.parametrize("top", [None, 3])
def test_logprobs(server: Server, top: int | None) -> None:
    given = {"logprobs": True, **({} if top is None else {"top_logprobs": top}), **LOOP}
    whole = ask(server, **given)
    content = whole.choices[0].logprobs.content
    assert len(content) == whole.usage.completion_tokens
    data = b"".join(bytes(token.bytes) for token in content)
    assert data.decode("utf-8", "replace").strip() == whole.choices[0].message.content.strip()
    for token in content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == (top or 0)
        if top:
            assert token.top_logprobs[0].token == token.token  # greedy
            assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-4)
            assert token.top_logprobs == sorted(token.top_logprobs, key=lambda t: -t.logprob)
    parts = [c.choices[0].logprobs for c in streamed(server, **given)]
    tokens = [token.token for part in parts if part for token in part.content or ()]
    assert tokens == [token.token for token in content]


def test_logprobs_of_a_completion(server: Server) -> None:
    given = {"model": "default_model", "prompt": "Wisła jest", "max_tokens": 5, "logprobs": 2}
    answer = openai(server).completions.create(**given)
    found = answer.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == answer.usage.completion_tokens
    assert [len(top) for top in found.top_logprobs] == [2] * len(found.tokens)
    text = "".join(found.tokens)
    assert text == answer.choices[0].text
    assert text.startswith(" "), "what goes on in a prompt's line begins where that ends"
    assert all(
        text.startswith(token, at)
        for token, at in zip(found.tokens, found.text_offset, strict=True)
    )
    parts = openai(server).completions.create(**given, stream=True)
    streamed_offsets = [at for part in parts for at in part.choices[0].logprobs.text_offset]
    assert streamed_offsets == found.text_offset


def test_the_chosen_token_is_among_the_likely_ones_whatever_its_rank(server: Server) -> None:
    for top in (0, 1):
        reply = complete(server, "Wisła", logprobs=top, temperature=2, seed=1).json
        found = reply["choices"][0]["logprobs"]
        for token, logprob, likely in zip(
            found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
        ):
            assert likely[token] == logprob
            assert len(likely) <= top + 1


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_are_parts_of_a_character_have_names_and_places(
    server: Server, stream: bool
) -> None:
    of_bytes = {str(5 + byte): 100 for byte in "ą".encode()}
    asked = {"max_tokens": 6, "logprobs": 3, "logit_bias": of_bytes, "stream": stream}
    reply = complete(server, "Wisła", **asked)
    parts = [one["choices"][0] for one in (reply.events if stream else [reply.json])]
    text = "".join(part["text"] for part in parts)
    logprobs = [part["logprobs"] for part in parts]
    names = [name for one in logprobs for name in one["tokens"]]
    assert {*names} <= {"bytes:\\xc4", "bytes:\\x85"}
    assert {len(top) for one in logprobs for top in one["top_logprobs"]} == {3}
    offsets = [at for one in logprobs for at in one["text_offset"]]
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(text)


def test_a_prediction_is_copied_from(server: Server) -> None:
    prompt: dict[str, Any] = {"max_tokens": 60, "temperature": 1.0, "seed": 8, **LOOP}
    whole = said(server, "Rzeki", **prompt)

    def passes(**more: Any) -> tuple[str, float]:
        before = metric(server, "tokalign_tokens_per_round_count")
        text = said(server, "Rzeki", **prompt, **more)
        return text, metric(server, "tokalign_tokens_per_round_count") - before

    settings = demo_settings(draft_model=None, reuse_outputs=False, num_draft_tokens=8)
    with serving(settings) as server:
        without = passes()
        predicted = passes(prediction={"type": "content", "content": whole})
        parts = [{"type": "text", "text": whole}]
        in_parts = passes(prediction={"type": "content", "content": parts})
        other = passes(prediction={"type": "content", "content": "zupełnie coś innego"})
    assert {text for text, _ in (without, predicted, in_parts, other)} == {whole}
    assert predicted[1] < without[1] / 2
    assert in_parts[1] < without[1] / 2


def test_chat_template_variables(tmp_path: Path) -> None:
    template = (
        "{{ flavour }}<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n"
        "{{ '<|im_start|>assistant\\n' }}"
    )
    folder = echo_folder(tmp_path / "echo")
    settings = Settings(
        model=str(folder),
        trust_remote_code=True,
        chat_template=template,
        chat_template_args={"flavour": "ab"},
    )
    with serving(settings) as server:
        own = ask(server, "sól")
        more = ask(server, "sól", extra_body={"chat_template_kwargs": {"flavour": "ab " * 20}})
    assert own.choices[0].message.content == "sól"
    assert more.usage.prompt_tokens > own.usage.prompt_tokens


_THINKING = (
    "{% if reasoning_effort == 'max' %}{{ raise_exception('unknown') }}{% endif %}"
    "<|im_start|>user\n{{ messages[0].content }}{{ reasoning_effort }} {{ enable_thinking }} "
    "{{ thinking }}<|im_end|>\n{{ '<|im_start|>assistant\\n' }}"
)


def test_templates_are_told_how_much_to_think(tmp_path: Path) -> None:
    folder = echo_folder(tmp_path / "echo")
    given = {"chat_template": _THINKING, "chat_template_args": {"reasoning_effort": "low"}}
    with serving(Settings(model=str(folder), trust_remote_code=True, **given)) as server:

        def answer(path: str, **more: Any) -> tuple[str, Any]:
            body = {"messages": [{"role": "user", "content": "a "}], "max_tokens": 90, **more}
            read = request(server, "POST", path, body).json
            text = read["choices"][0]["message"] if "choices" in read else read["content"][0]
            return text.get("content") or text["text"], read.get("tokalign")

        chat, messages = "/v1/chat/completions", "/v1/messages"
        assert answer(chat) == ("a low False ", None)
        assert answer(chat, reasoning_effort="high") == ("a high True True", None)
        assert answer(chat, reasoning_effort="none") == ("a none False False", None)
        own = {"enable_thinking": False, "thinking": 5}
        told = answer(chat, reasoning_effort="high", chat_template_kwargs=own)
        assert told == ("a high False 5", None)
        refused = {"not_enforced": ["reasoning_effort"]}
        assert answer(chat, reasoning_effort="max") == ("a low True True", refused)
        told = answer(chat, reasoning_effort="max", enable_thinking=False)
        assert told == ("a low False False", refused)
        assert answer(chat, reasoning={"effort": "high"}) == ("a high True True", None)
        effort = {"output_config": {"effort": "medium"}}
        assert answer(messages, **effort) == ("a medium True True", None)
        adaptive = {"thinking": {"type": "adaptive"}}
        assert answer(messages, **adaptive) == ("a low True True", None)
        bounded = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
        told = {"not_enforced": ["thinking.budget_tokens"]}
        assert answer(messages, **bounded) == ("a low True True", told)
        disabled = {"thinking": {"type": "disabled"}}
        assert answer(messages, **disabled, **effort) == ("a medium False False", None)
        response = openai(server).responses.create(
            model="default_model", input="a ", reasoning={"effort": "low"}
        )
        assert response.output_text == "a low True True"
        for off in ({"enable_thinking": False}, disabled):
            assert answer(chat, **off) == ("a low False False", None)
            assert answer(chat, reasoning_effort="high", **off) == ("a high False False", None)
        enabled = {"thinking": {"type": "enabled"}}
        assert answer(chat, **enabled) == ("a low True True", None)
        wrong = {"messages": [{"role": "user", "content": "a"}], "reasoning_effort": 5}
        assert (
            request(server, "POST", chat, wrong).json["error"]["message"].startswith("reasoning_")
        )


def test_a_variable_of_thinking_that_is_given_twice_has_the_template_s_own_value() -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "enable_thinking": True}
    body["chat_template_kwargs"] = {"enable_thinking": False}
    (asked,) = as_form(body, Chats.form).requests(Settings(), "")
    assert asked.effort == {"enable_thinking": False, "thinking": True}


def test_an_effort_that_a_template_does_not_read_is_told(echo: Server) -> None:
    told = ask(echo, "sól", reasoning_effort="low").model_dump()
    assert told["tokalign"] == {"not_enforced": ["reasoning_effort"]}
    told = ask(echo, "sól", extra_body={"enable_thinking": False}).model_dump()
    assert told["tokalign"] == {"not_enforced": ["enable_thinking"]}
    told = complete(echo, "sól", max_tokens=1, thinking={"type": "disabled"}).json
    assert told["tokalign"] == {"not_enforced": ["enable_thinking"]}
    assert "tokalign" not in ask(echo, "sól").model_dump()


TOOLS = [{"type": "function", "function": WEATHER}]


def test_tools_that_may_not_be_called_are_not_told(echo: Server) -> None:
    with_tools = ask(echo, "x", tools=TOOLS).usage.prompt_tokens
    assert ask(echo, "x", tools=TOOLS, tool_choice="none").usage.prompt_tokens < with_tools


def test_of_allowed_tools_the_others_are_not_told() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "fgh"]
    for api, given, named in (
        (Chats, tools, [tools[0], tools[2]]),
        (
            Responses,
            [{"type": "function", "name": name} for name in "fgh"],
            [{"name": "f"}, {"name": "h"}],
        ),
    ):
        for mode, choice in (("auto", None), ("required", ANY_TOOL)):
            inner = {"mode": mode, "tools": named}
            body = {"messages": [{"role": "user", "content": "x"}], "input": "x", "tools": given}
            body["tool_choice"] = {"type": "allowed_tools"} | (
                {"allowed_tools": inner} if api is Chats else inner
            )
            (asked,) = as_form(body, api.form).requests(Settings(), "")
            assert [tool["function"]["name"] for tool in asked.tools] == ["f", "h"]
            assert asked.tool_choice == choice
            body["tool_choice"] = {"type": "allowed_tools", "tools": [5]}
            with pytest.raises(UsageError, match="allowed_tools"):
                as_form(body, api.form).requests(Settings(), "")


def test_deferred_tools_are_told_last() -> None:
    """Loaded during a conversation, they leave the kept context of the other tools valid."""
    tools = [{"name": name, "input_schema": {}} for name in "fgh"]
    tools[1]["defer_loading"] = True
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
    (asked,) = as_form(body, Messages.form).requests(Settings(), "")
    assert [tool["function"]["name"] for tool in asked.tools] == ["f", "h", "g"]


def test_each_tool_is_looked_for_once_among_those_that_are_allowed() -> None:
    names, compared = compared_names(range(500))
    tools = [(str(name), {"function": {"name": name}}) for name in names]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [tool for _, tool in tools[1:]]}
    assert allowed_tools(tools, choice) == (tools[1:], "auto")
    assert len(compared) < 3 * len(tools)


def test_errors_are_those_of_openais_client(server: Server) -> None:
    from openai import BadRequestError, NotFoundError

    with pytest.raises(BadRequestError, match="temperature"):
        ask(server, temperature=-1)
    with pytest.raises(NotFoundError, match="someone/else"):
        ask(server, model="someone/else")
    with pytest.raises(NotFoundError):
        openai(server).models.retrieve("someone/else")


def test_defaults_that_mlx_lms_server_has_no_flags_for(server: Server) -> None:
    tokenizer: Tokenizer[Any] = read_tokenizer(DEMO / "target")
    answer = ask(server, max_tokens=40, logprobs=True, **LOOP)
    ids = [token.id for token in answer.choices[0].logprobs.content]
    last = next(i for i in ids[5:] if tokenizer.vocabulary.tokens[i])
    with serving(demo_settings(draft_model=None, extra_eos_token=(str(last),))) as ending:
        ended = ask(ending, max_tokens=40, logprobs=True, **LOOP)
    found = [token.id for token in ended.choices[0].logprobs.content]
    assert found == ids[: ids.index(last) + 1]
    assert ended.choices[0].finish_reason == "stop"
    settings = demo_settings(draft_model=None, xtc_probability=1.0, xtc_threshold=0.01)
    with serving(settings) as drawing:
        drawn = {"temperature": 0.2, "seed": 2, "max_tokens": 40}
        off = {"extra_body": {"xtc_probability": 0.0}}
        assert said(drawing, **drawn, **LOOP) != said(drawing, **drawn, **LOOP, **off)


def test_a_cache_of_bounded_size(server: Server) -> None:
    """What fits into it is decoded as without a bound; what does not comes to its end all the same.

    A full rotating cache is rewound by nobody, alone or together.
    """
    with serving(demo_settings(max_kv_size=48, num_draft_tokens=2)) as small:
        assert said(small, max_tokens=8) == said(server, max_tokens=8)
        with ThreadPoolExecutor(3) as pool:
            replies = list(
                pool.map(lambda i: ask(small, f"Wisła {i}", max_tokens=60, **LOOP), range(3))
            )
        alone = [ask(small, f"Wisła {i}", max_tokens=60, **LOOP) for i in range(3)]
    assert [r.usage.completion_tokens for r in replies + alone] == [60] * 6
