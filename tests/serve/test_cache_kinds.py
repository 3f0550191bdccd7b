"""Models whose caches forget or cannot be cut back: requests move with them all the same."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from block_drafters import block_config, random_block_drafter, write_block_drafter
from eagle_drafters import eagle_config, random_eagle, write_eagle
from places import DEMO
from random_models import random_model, write_model
from served import (
    assert_both_ways,
    complete,
    demo_settings,
    ids_of,
    metric,
    plain_ids,
    request,
    serving,
)
from zoo import make_model

from tokalign.errors import CacheError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.contexts import Contexts
from tokalign.runtime.mlx.layers import Layers
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.written_later import LATER
from tokalign.serve import Settings
from tokalign.serve.server import Server


def hybrid(size: int, _seed: int) -> Any:
    """A model with recurrent and attention layers."""
    return make_model("lfm2", vocab_size=size)


def windowed(size: int, _seed: int) -> Any:
    return random_model(5, vocabulary=size, sliding_window=24)


@pytest.mark.parametrize("make", [windowed, hybrid])
def test_staggered_requests_get_what_plain_decoding_gives(tmp_path: Path, make: Any) -> None:
    folder = write_model(tmp_path, vocabulary_size=300, make=make)
    target: LanguageModel[Any] = LanguageModel.from_folder(folder, dtype="float32")
    chance = random.Random(2)
    texts = ["ab ab ab", "ba ba ba ba ba", "to ja, to ja, to ja"]
    asked = [(chance.choice(texts) * chance.randint(1, 3), chance.randint(2, 70)) for _ in range(9)]
    asked += asked[:4]
    waits = [chance.uniform(0, 0.3) for _ in asked]
    drafting = DraftingOptions(num_draft_tokens=3)
    settings = Settings(model=str(folder), dtype="float32", drafting=drafting)
    with serving(settings) as server:
        encode = server.scheduler.models.loaded.prompts.library.encode

        @cache
        def plain(prompt: str, tokens: int) -> list[int]:
            return plain_ids(target, encode(prompt), tokens)

        def ask(number: int) -> list[int]:
            time.sleep(waits[number])
            prompt, tokens = asked[number]
            return ids_of(complete(server, prompt, max_tokens=tokens, logprobs=True))

        with ThreadPoolExecutor(len(asked)) as pool:
            found = list(pool.map(ask, range(len(asked))))
        assert found == [plain(*one) for one in asked]
        for number in range(4):  # alone, with what the others left
            assert ask(number) == plain(*asked[number])
        assert metric(server, "tokalign_accepted_tokens_total") > 0
        assert_both_ways(server)


@pytest.mark.parametrize("make", [windowed, hybrid])
def test_a_server_that_starts_again_goes_on_from_disk(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the same, for the same owner alone, and nothing is read again.

    A prompt that goes on otherwise begins with what was kept on the way.
    """
    monkeypatch.setattr("tokalign.serve.preparing._STRIDE", 24)
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    folder = write_model(tmp_path, vocabulary_size=300, make=make)
    settings = Settings(
        model=str(folder), dtype="float32", disk_cache_bytes=1 << 30, api_keys=("a", "b")
    )
    prompt, answers = "to ja, to ja, to ja i ba, ba i ja " * 3, []
    other = f"{prompt[: len(prompt) // 2]} ab"
    for key, text in (("a", prompt), ("a", prompt), ("b", prompt), ("a", other)):
        with serving(settings) as server:
            own = {"Authorization": f"Bearer {key}"}
            body = {"prompt": text, "max_tokens": 24, "logprobs": True}
            answers.append(request(server, "POST", "/v1/completions", body, own))
        LATER.write_now()
    usages = [answer.json["usage"] for answer in answers]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[:3] == [0, usages[0]["prompt_tokens"] - 1, 0]
    assert cached[3] >= 24
    assert ids_of(answers[0]) == ids_of(answers[1]) == ids_of(answers[2])


def test_a_prompt_of_which_no_part_can_be_kept_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokalign.serve.preparing._STRIDE", 24)
    folder = write_model(tmp_path, vocabulary_size=300, make=hybrid)
    with serving(Settings(model=str(folder), dtype="float32")) as server:
        monkeypatch.setattr(Contexts, "keep", lambda *_, **__: 1 // 0)
        assert complete(server, "to ja, to ja, to ja i ba " * 3, max_tokens=3).status == 200


def test_a_model_that_is_loaded_again_goes_on_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path))
    settings = demo_settings(
        allow_model_switching=True, prompt_cache_size=1, disk_cache_bytes=1 << 30
    )
    prompt, found = "to ja, to ja, to ja i ba, ba i ja " * 9, []
    with serving(settings) as server:
        for more in ({}, {"draft_model": ""}, {"model": str(DEMO / "draft")}, {}):
            found.append(complete(server, prompt, max_tokens=9, **more).json)
            LATER.write_now()
    first, alone, _, again = found
    assert first["choices"] == alone["choices"] == again["choices"]
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == first["usage"]["prompt_tokens"] - 1


QUESTION, OTHER_QUESTION = "Wisła? " * 9, "Kraków? " * 9


def ringed(size: int, _seed: int) -> Any:
    return random_model(5, vocabulary=size)


@pytest.mark.parametrize(
    ("make", "cache"), [(windowed, {}), (hybrid, {}), (ringed, {"max_kv_size": 64}), (ringed, {})]
)
@pytest.mark.parametrize("together", [False, True])
def test_a_prompt_again_and_another_last_question_reuse_what_they_share(
    tmp_path: Path, make: Any, cache: dict[str, Any], together: bool
) -> None:
    """The template writes the messages' texts; a later question follows the same beginning."""
    folder = write_model(tmp_path, vocabulary_size=300, make=make)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    settings = demo_settings(
        model=str(folder), draft_model=None, chat_template=template + "assistant: ", **cache
    )
    plain = {"num_draft_tokens": 0} if together else {}

    def ask(server: Server, *texts: str) -> tuple[str, int, int]:
        roles = ["system", "user", "assistant", "user"]
        messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
        body = {"messages": messages, "max_tokens": 6, **plain}
        reply = request(server, "POST", "/v1/chat/completions", body).json
        usage = reply.get("usage") or pytest.fail(str(reply))
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return reply["choices"][0]["message"]["content"], usage["prompt_tokens"], cached

    system, answer = "Krótko. " * 9, "Długa. " * 2
    with serving(settings) as server:
        text, length, cached = ask(server, system, QUESTION)
        assert cached == 0
        again, _, cached = ask(server, system, QUESTION)
        assert again == text
        assert length - 16 <= cached < length
        _, _, cached = ask(server, system, QUESTION, answer, OTHER_QUESTION)
        assert cached >= length - 16
        _, other, cached = ask(server, system, QUESTION, answer, QUESTION)
        assert cached >= other - len(QUESTION) - 32
        _, _, cached = ask(server, system, OTHER_QUESTION)
        assert cached > len("system: ")
        if cache:
            assert length > 64


@pytest.mark.parametrize("kv", [{"kv_bits": 8}, {"kv_bits": 8, "kv_group_size": 128}])
def test_a_cache_that_cannot_be_quantized_is_refused_at_the_start(
    tmp_path: Path, kv: dict[str, int]
) -> None:
    make = windowed if len(kv) == 1 else ringed
    folder = write_model(tmp_path, vocabulary_size=300, make=make)
    for given in ({"model": str(folder), "draft_model": None}, {"draft_model": str(folder)}):
        refused = pytest.raises(CacheError, match="cannot be quantized")
        with refused, serving(demo_settings(**given, **kv)):
            pass


def test_a_method_asked_for_by_name_decodes_plainly_where_nothing_can_be_rewound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Layers, "unknown_kinds", ["NewCache"])
    notes: list[str] = []
    settings = demo_settings(draft_model=None, drafting=DraftingOptions(method="copy"))
    with Server(settings, port=0, note=notes.append) as server:
        assert complete(server, "Wisła", max_tokens=4).status == 200
    assert [note for note in notes if note.startswith("decoding plainly: ")]


PROMPT, OTHER = "Wisła jest", "Zima w górach"


GRAMMARS: tuple[dict[str, Any], ...] = ({}, {"guided_regex": "[a-z]{3,9}( [a-z]{2,7}){4,9}"})
WAYS: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"temperature": 0.9, "seed": 4})


@pytest.mark.parametrize(
    "kind", ["recurrent", *(pytest.param(k, marks=pytest.mark.slow) for k in ("eagle3", "dflash"))]
)
def test_drafters_of_any_format_draft_for_requests_and_change_nothing(
    kind: str, tmp_path: Path
) -> None:
    """With and without a grammar, greedy and sampled, in turns; all but the first are random."""
    target: LanguageModel[Any] = LanguageModel.from_folder(DEMO / "target", dtype="float32")
    folder = DEMO / "drafter" if kind == "recurrent" else tmp_path
    if kind == "eagle3":
        shape = eagle_config(target.model)
        write_eagle(tmp_path, random_eagle(target.model, shape), shape)
    elif kind == "dflash":
        shape = block_config(target.model)
        write_block_drafter(tmp_path, random_block_drafter(target.model), shape)
    asked = [(text, given | how) for text in (PROMPT, OTHER) for given in GRAMMARS for how in WAYS]
    with serving(demo_settings(draft_model=None)) as server:
        expected = [complete(server, text, **given).json["choices"] for text, given in asked]
    drafting = DraftingOptions(method="drafter", drafter=folder, num_draft_tokens=3)
    with serving(demo_settings(draft_model=None, drafting=drafting)) as server:
        alone = [complete(server, text, **given) for text, given in asked]
        assert metric(server, "tokalign_proposed_tokens_total") > 100
        assert kind != "recurrent" or metric(server, "tokalign_accepted_tokens_total") > 3
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(lambda one: complete(server, one[0], **one[1]), asked))
    for replies in (alone, together):
        texts = [reply.json["choices"][0]["text"] for reply in replies]
        assert texts == [choices[0]["text"] for choices in expected]
