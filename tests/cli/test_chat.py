"""`tokalign chat`: turns, commands, interrupts, and what is computed for them."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any
from weakref import ref

import pytest
from command_lines import Ended, run, start
from places import DEMO
from processes import HUNG, is_running, wait_for
from random_drafters import random_drafter
from served import echo_folder
from ticking import ticking

from tokalign.api.assemble import assemble, keep_loaded
from tokalign.cli.chat import ChatSession
from tokalign.cli.dialogue import ChatCommand
from tokalign.cli.generation import PromptOptions, closing_line, times_plain
from tokalign.errors import CacheError
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.mlx.context_files import ContextFiles
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import ModelSession, TargetModelSession
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Round
from tokalign.storage import cache_folder, contexts_folder
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

PLAIN = ["--method", "plain"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """A test run in the background of a shell ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def target(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = copytree(models["target"], tmp_path_factory.mktemp("chat") / "target")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No curve is known, and none is left behind."""
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))


def talk(target: str, *typed: str, options: Sequence[object] = ()) -> Ended:
    """A chat in which these lines are typed."""
    text = "".join(line + "\n" for line in typed)
    return run("chat", "--target", target, "-m", "10", "--no-calibrate", *options, typed=text)


def answers(target: str, *typed: str, options: Sequence[object] = ()) -> list[Any]:
    """The answers to these lines, as --json prints them."""
    ended = talk(target, *typed, options=["--json", *options])
    return [json.loads(line) for line in ended.out.splitlines()]


def decoded(target: str, prompt: str, *options: object) -> Any:
    given = ("--ignore-chat-template", "-p", prompt, "-m", "10", "--json", "--quiet", *options)
    return run("decode", "--target", target, *given).json


@pytest.mark.parametrize("draft", [True, False])
def test_every_answer_is_that_of_the_whole_conversation(
    target: str, models: dict[str, str], draft: bool, tmp_path: Path
) -> None:
    options = ["--draft", models["draft"]] if draft else []
    said = ["Dzień dobry", "Co to jest?", "A tamto?"]
    (tmp_path / "system.txt").write_text("Odpowiadaj.")
    options += ["--system-prompt", f"@{tmp_path / 'system.txt'}" if draft else "Odpowiadaj."]
    found = answers(target, *said, options=options)
    prompt = "<system>Odpowiadaj.\n"
    for text, answer in zip(said, found, strict=True):
        prompt += f"<user>{text}\n<assistant>"
        assert answer["token_ids"] == decoded(target, prompt)["token_ids"]
        assert answer["prompt_tokens"] == decoded(target, prompt)["prompt_tokens"]
        prompt += answer["text"] + "\n"


def test_what_goes_to_stdout_and_what_to_stderr(target: str) -> None:
    result = talk(target, "Dzień dobry", "/help", "/stats", "exit", "nothing more")
    assert result.code == 0
    assert "/retry" in result.err
    assert "tokens of context are kept" in result.err
    assert "beside the passes" not in result.err
    assert "\x1b[" not in result.out + result.err
    text = answers(target, "Dzień dobry")[0]["text"]
    assert result.out == text + "\n"
    assert result.err.count("[10 tokens, ") == 1
    assert result.err.count("cut off by max_tokens") == 1
    assert talk(target, "Dzień dobry", "/help", options=["--quiet"]).err == ""
    refused = talk(target, "/nothing", "Dzień dobry", options=["--quiet"])
    assert (refused.code, refused.out) == (2, result.out)
    assert refused.err.startswith("tokalign: there is no command /nothing")


def test_system_clear_and_retry(target: str) -> None:
    said = ["Kto to?", "/system Mów krótko.", "/clear", "Kto to?", "/retry", "/system", "/clear"]
    found = answers(target, *said, "Kto to?")
    first, with_system, again, without = (answer["token_ids"] for answer in found)
    assert with_system == again != first
    assert without == first
    prompt = "<system>Mów krótko.\n<user>Kto to?\n<assistant>"
    assert with_system == decoded(target, prompt)["token_ids"]


DROPS, REFUSES = "", "{{ raise_exception('no system') }}"


@pytest.mark.parametrize(("of_target", "of_draft"), [(DROPS, REFUSES), (REFUSES, DROPS)])
def test_the_user_says_the_system_message_where_a_template_has_no_such_role(
    models: dict[str, str], tmp_path: Path, of_target: str, of_draft: str
) -> None:
    folders = {}
    for name, system in (("target", of_target), ("draft", of_draft)):
        folders[name] = copytree(models[name], tmp_path / name)
        beginning = f"{{% for m in messages %}}{{% if m.role == 'system' %}}{system}{{% else %}}"
        template = TEMPLATE.replace("{% for m in messages %}", beginning)
        template = template.replace("{% endfor %}", "{% endif %}{% endfor %}")
        (folders[name] / "chat_template.jinja").write_text(template)
    target, options = str(folders["target"]), ["--system-prompt", "Krótko."]
    [answer] = answers(target, "Kto to?", options=[*options, "--draft", folders["draft"]])
    expected = decoded(target, "<user>Krótko.\n\nKto to?\n<assistant>")
    assert answer["token_ids"] == expected["token_ids"]
    assert answer["prompt_tokens"] == expected["prompt_tokens"]


def test_a_template_of_the_draft_model_refuses_no_conversation(
    target: str, models: dict[str, str], tmp_path: Path
) -> None:
    draft = copytree(models["draft"], tmp_path / "draft")
    (draft / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    [answer] = answers(target, "Kto to?", options=["--draft", draft])
    assert answer["token_ids"] == decoded(target, "<user>Kto to?\n<assistant>")["token_ids"]


@pytest.mark.parametrize("headers", ["gpt-oss", "muse"])
def test_of_an_answer_in_messages_only_texts_are_shown_and_kept(
    headers: str, tmp_path: Path
) -> None:
    """As gpt-oss and Muse write it; a template refuses the marks in a history. What is said around
    a thought is two paragraphs."""
    refusal = "{% if '<|message|>' in m.content %}{{ raise_exception('marks') }}{% endif %}"
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}" + refusal + "{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    end, *begins = {
        "gpt-oss": ("<|end|>", *(f"<|channel|>{to}" for to in ("commentary", "analysis", "final"))),
        "muse": ("<|eom|>", " to=user", " to=self", " to=user"),
    }[headers]
    marks = {"<|start|>", "<|message|>", end, *(["<|channel|>"] if headers == "gpt-oss" else [])}
    folder = echo_folder(tmp_path / "echo", template=template, marks=sorted(marks))
    texts = zip(begins, ("Tak.", "Hm.", "Wisła."), strict=True)
    said = f"{end}<|start|>assistant".join(f"{begin}<|message|>{text}" for begin, text in texts)
    file = tmp_path / "a.json"
    options = ["--trust-remote-code", "-m", "80"]
    ended = talk(str(folder), said, "Kto to?", f"/save {file}", options=options)
    assert "tokalign: " not in ended.err, ended.err
    assert ended.out == "Tak.\n\nHm.\n\nWisła.\nKto to?\n"
    saved = [message["content"] for message in json.loads(file.read_text("utf-8"))]
    assert saved == [said, "Tak.\n\nWisła.", "Kto to?", "Kto to?"]


def test_another_try_draws_other_tokens(target: str) -> None:
    sampling = ["--temp", "1", "--seed", "5"]
    first, second, third = answers(target, "Kto to?", "/retry", "/retry", options=sampling)
    assert len({first["text"], second["text"], third["text"]}) == 3
    plain = decoded(target, "<user>Kto to?\n<assistant>", *sampling)
    assert first["token_ids"] == plain["token_ids"]
    assert talk(target, "Kto to?", "/retry").err.count("same answer again") == 1


def test_a_message_is_taken_back_or_changed(target: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    said = ["Kto to?", "A to?", "/undo", "Kto?", "/edit A to?", f"/save {file}", "/edit", "/undo"]
    found = answers(target, *said)
    assert [found[1]["text"], found[0]["text"]] == [found[3]["text"], found[0]["text"]]
    saved = [one["content"] for one in json.loads(file.read_text("utf-8"))]
    assert saved == ["Kto to?", found[0]["text"], "A to?", found[1]["text"]]
    result = talk(target, *said, "/undo", "/undo")
    assert result.err.count("change the message and send it") == 1
    assert result.err.count("no message to take back") == 1


def test_a_message_that_was_opened_stays_until_it_is_sent(target: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    first, second = answers(target, "Kto to?", "/edit", "", f"/save {file}", "/edit", "A to?")
    saved = [one["content"] for one in json.loads(file.read_text("utf-8"))]
    assert saved == ["Kto to?", first["text"]]
    assert second["token_ids"] == answers(target, "A to?")[0]["token_ids"]
    assert talk(target, "/edit").err.count("say something first") == 1


def test_another_model_goes_on_with_the_conversation(
    target: str, models: dict[str, str], tmp_path: Path
) -> None:
    file, other = tmp_path / "a.json", models["draft"]
    said = ["Kto to?", "/model", "/model nowhere", f"/model {other}", "A to?", f"/save {file}"]
    result = talk(target, *said, f"/model {target}", "Kto?", options=["--ignore-chat-template"])
    assert result.err.count("tokalign: ") == 1, result.err
    assert f"the model is {target}" in result.err
    assert f"the model is {other}" in result.err
    first, _, second, answer = (one["content"] for one in json.loads(file.read_text("utf-8")))
    texts = [first, json.loads(file.read_text("utf-8"))[1]["content"], second]
    assert answer == decoded(other, "\n".join(texts))["text"]


def _fail(_model: object) -> None:
    raise ValueError


def test_another_model_finds_the_memory_of_the_one_before(target: str) -> None:
    """Its recurrent drafter too, which leads back to itself and was kept from being collected."""
    drafters = list[ref[Any]]()

    def load(name: str) -> tuple[Decoder, Sampling]:
        assert all(drafter() is None for drafter in drafters)
        model: LanguageModel[TargetId] = LanguageModel.from_folder(Path(name))
        drafter = random_drafter(model.model)
        drafters.append(ref(drafter))
        if len(drafters) == 3:
            try:
                _fail(model)
            except ValueError as error:
                raise CacheError("too late") from error
        decoder = replace(assemble(model, None, DraftingOptions(method="copy")), drafter=drafter)
        keep_loaded()
        return decoder, Sampling()

    options = PromptOptions(
        stop=(),
        system_prompt=None,
        ignore_chat_template=False,
        chat_template_config={},
        prefill_response=None,
    )
    chat = ChatSession(
        load, target, options, color=False, max_tokens=9, markdown=False, keeps=False
    )
    try:
        chat._carry_out(ChatCommand("model", target))
        with pytest.raises(CacheError, match="too late"):
            chat._carry_out(ChatCommand("model", target))
        assert chat._answering  # the one before is back
    finally:
        gc.unfreeze()
    assert len(drafters) == 4


def test_a_conversation_is_saved_and_loaded(target: str, tmp_path: Path) -> None:
    file = tmp_path / "rozmowa.json"
    found = answers(target, "Kto to?", f"/save {file}", "A to?")
    saved = json.loads(file.read_text("utf-8"))
    assert saved == [
        {"role": "user", "content": "Kto to?"},
        {"role": "assistant", "content": found[0]["text"]},
    ]
    [again] = answers(target, f"/load {file}", "A to?")
    assert again["token_ids"] == found[1]["token_ids"]
    assert not contexts_folder().exists(), "only a chat at a terminal keeps contexts"
    wrong = (
        f"/load {tmp_path}",
        "/save",
        "/nic",
        "/save ~no-such-user/x.json",
        "/save a.txt",
        "/save /",
        f"/save {'a' * 300}.json",
        f"/model {'a' * 300}",
        "/load a\0",
    )
    wrong = (*wrong, f"/save {file}")  # of another chat
    result = talk(target, *wrong, "Kto?")
    assert result.err.count("tokalign: ") == 10
    assert json.loads(file.read_text("utf-8")) == saved
    assert result.out.count("\n") >= 1, "the conversation goes on"


def test_a_loaded_message_without_an_answer_gets_one(target: str, tmp_path: Path) -> None:
    """By /retry, or together with what is said next; either way it can be saved and loaded."""
    file = tmp_path / "begun.json"
    file.write_text(json.dumps([{"role": "user", "content": "Kto to?"}]), "utf-8")
    [answer] = answers(target, f"/load {file}", "/retry")
    assert answer["token_ids"] == answers(target, "Kto to?")[0]["token_ids"]
    assert talk(target, f"/load {file}", "/retry", "/retry").err.count("same answer again") == 1
    result = talk(target, f"/load {file}", "A to?", f"/save {file}", f"/load {file}")
    assert "tokalign: " not in result.err
    assert result.err.count("no answer yet; /retry") == 1
    saved = json.loads(file.read_text("utf-8"))
    assert [one["role"] for one in saved] == ["user", "assistant"]
    assert saved[0]["content"] == "Kto to?\n\nA to?"


def test_a_retry_that_fails_loses_nothing(target: str, tmp_path: Path) -> None:
    file = tmp_path / "rozmowa.json"
    (tmp_path / "system.txt").write_text("Zażółć gęślą jaźń. " * 3000, "utf-8")
    too_long = f"/system @{tmp_path / 'system.txt'}"
    result = talk(target, "Kto to?", too_long, "/retry", "/system", f"/save {file}")
    assert result.err.count("context holds") == 1
    assert [one["role"] for one in json.loads(file.read_text("utf-8"))] == ["user", "assistant"]
    assert result.out.count("\n") == 1


def test_who_guessed_what_is_shown_on_request(target: str) -> None:
    options = ["--draft", target, "--num-draft-tokens", "2", "--method", "draft"]
    result = talk(target, "Kto?", "/who", "Kto?", "/who", "Kto?", options=options)
    plain, coloured, again = result.out.rstrip("\n").split("\n")
    assert "\x1b[32m" in coloured
    assert "\x1b[" not in plain + again
    assert result.err.count("rejected and corrected") == 1
    assert "\x1b[32m" in talk(target, "Kto?", options=[*options, "--color"]).out


def test_the_beginning_of_an_answer_belongs_to_it(target: str) -> None:
    found = answers(target, "Kto?", "A to?", options=["--prefill-response", "Otóż "])
    assert all(answer["text"].startswith("Otóż ") for answer in found)
    prompt = f"<user>Kto?\n<assistant>{found[0]['text']}\n<user>A to?\n<assistant>Otóż "
    assert found[1]["token_ids"] == decoded(target, prompt)["token_ids"]


def test_the_oldest_turns_leave_a_full_context_and_the_system_message_stays(
    target: str, tmp_path: Path
) -> None:
    """What is answered then is the conversation without them; /save has all of it."""
    said, file = [f"{n}: " + "Zażółć gęślą jaźń. " * 9 for n in range(6)], tmp_path / "a.json"
    options = ["--system-prompt", "Mów krótko."]
    result = talk(target, *said, f"/save {file}", options=options)
    assert result.err.count("the context is full: the model no longer reads the oldest ") >= 1
    assert "tokalign: " not in result.err
    assert len(json.loads(file.read_text("utf-8"))) == 1 + 2 * len(said)
    found = answers(target, *said, options=options)
    turns = [
        f"<user>{text}\n<assistant>{one['text']}\n" for text, one in zip(said, found, strict=True)
    ]
    for number, answer in enumerate(found):
        asked = f"<user>{said[number]}\n<assistant>"
        for first in range(number, -1, -1):  # the turns that were read, as their tokens tell
            read = "<system>Mów krótko.\n" + "".join(turns[first:number]) + asked
            if (plain := decoded(target, read))["prompt_tokens"] == answer["prompt_tokens"]:
                break
        assert answer["token_ids"] == plain["token_ids"]
        assert answer["generation_tokens"] == 10
    assert first > 0, "some have left in the end"


def test_a_message_that_can_never_fit_is_one_error(target: str) -> None:
    result = talk(target, "Kto?", "żółw " * 300, "/clear", "Kto?")
    assert result.err.count("say it in fewer words") == 1
    first, second = result.out.splitlines()
    assert first == second


def test_settings_change_the_next_answer_and_a_wrong_one_changes_nothing(target: str) -> None:
    right = ["temperature 1", "seed=5", "max_tokens 6"]
    wrong = [
        "temperature hot",
        "top_p 2",
        "max_tokens 0",
        "seed -1",
        "markdown maybe",
        "colour red",
    ]
    said = [f"/set {one}" for one in (*right, *wrong)]
    greedy, sampled = answers(target, "Kto to?", "/clear", *said, "Kto to?")
    prompt, sampling = "<user>Kto to?\n<assistant>", ["--temp", "1", "--seed", "5"]
    assert greedy["token_ids"] == decoded(target, prompt)["token_ids"]
    assert sampled["token_ids"] == decoded(target, prompt, *sampling)["token_ids"][:6]
    result = talk(target, *said, "/set", options=["--top-p", "0.9"])
    assert result.err.count("tokalign: ") == len(wrong)
    assert "max_tokens: '0' is not a count; give one, or -1 for no limit; nothing has" in result.err
    assert "temperature: 'hot' is not a valid number; nothing has changed\n" in result.err
    shown = dict(line.split(maxsplit=1) for line in result.err.splitlines()[-7:])
    assert shown["temperature"] == "1.0"
    assert (shown["seed"], shown["max_tokens"], shown["top_p"]) == ("5", "6", "0.9")
    assert result.err.count("max_tokens  6\n") == 1, "what was changed is said"
    assert "\nmax_tokens  10\n" in talk(target, "/set max_tokens").err


@pytest.mark.parametrize(
    ("rounds", "speed", "line"),
    [
        (1, 0.0, "[1 token]"),
        (7, 14389.0, "[7 tokens]"),
        (8, 12.25, "[8 tokens, 12.2 tokens/s]"),
    ],
)
def test_few_rounds_say_nothing_about_the_speed(rounds: int, speed: float, line: str) -> None:
    figures = {"generation_tokens": rounds, "rounds": rounds, "tokens_per_second": speed}
    assert closing_line({**figures, "finish_reason": "stop"}) == line


def test_a_factor_of_speed_has_its_uncertainty_or_is_left_out() -> None:
    def rounds(plain: list[float], drafted: list[float]) -> list[Round]:
        one, two = (TokenTree.chain(ids, "copy") for ids in ((), (TargetId(1),)))
        emitted = (TargetId(1), TargetId(2))
        return [
            Round(limit=0, tree=one, path=(), emitted=emitted[:1], seconds=9.0),  # the prompt
            *(Round(limit=0, tree=one, path=(), emitted=emitted[:1], seconds=s) for s in plain),
            *(Round(limit=1, tree=two, path=(0,), emitted=emitted, seconds=s) for s in drafted),
        ]

    steady = times_plain(rounds([0.1] * 8, [0.1] * 8))
    assert steady == pytest.approx((1.5, 1.5))
    low, high = times_plain(rounds([0.08, 0.12] * 4, [0.1] * 8)) or (0.0, 0.0)
    assert low < 1.5 < high
    assert times_plain(rounds([0.1] * 7, [0.1] * 8)) is None, "few plain rounds are chance"
    assert times_plain(rounds([0.1] * 20, [])) is None, "nothing was drafted"


def test_a_machine_is_measured_once(target: str) -> None:
    given = ["--target", target, "-m", "40"]
    results, written = [], []
    for _ in range(2):
        with ticking():
            results.append(run("chat", *given, typed="Kto?\n"))
        (curve,) = (cache_folder() / "curves").glob("*.json")
        written.append(curve.stat().st_mtime_ns)
    assert written[0] == written[1]
    sources, keys = results[0].err.splitlines()[:2]
    assert sources.startswith(f"{Path(target).name}: guesses come from ")
    assert keys.startswith("/help lists the commands")


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sends so many signals while the third round is computed."""
    reads, read = iter(range(100)), ModelSession.read

    def send(signals: int) -> None:
        def interrupted(session: ModelSession[Any], array: Any) -> list[int]:
            for _ in range(signals if next(reads) == 3 else 0):
                signal.raise_signal(signal.SIGINT)
            return read(session, array)

        monkeypatch.setattr(ModelSession, "read", interrupted)

    return send


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(
    target: str, interrupt: Callable[[int], None], signals: int, tmp_path: Path
) -> None:
    """The first one ends the answer after the round; the second ends a pass, and caches are new."""
    interrupt(signals)
    file = tmp_path / "a.json"
    first, second = answers(target, "Kto?", f"/save {file}", "A to?", options=PLAIN)
    assert first["finish_reason"] == "interrupted"
    if signals == 1:
        assert first["generation_tokens"] == 4
    assert json.loads(file.read_text("utf-8"))[1]["content"] == first["text"]
    prompt = f"<user>Kto?\n<assistant>{first['text']}\n<user>A to?\n<assistant>"
    assert second["token_ids"] == decoded(target, prompt)["token_ids"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_at_the_end_of_an_answer_does_not_take_it_back(
    target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever means to stop an answer may come too late, when its context is being copied."""

    def interrupted(_decoder: Decoder) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Decoder, "remember", interrupted)
    file = tmp_path / "a.json"
    [answer] = answers(target, "Kto?", f"/save {file}")
    assert answer["finish_reason"] == "length"
    assert json.loads(file.read_text("utf-8"))[1]["content"] == answer["text"]


@pytest.mark.parametrize("error", [MemoryError(), CacheError("it cannot be rewound")])
def test_an_answer_stays_where_its_context_cannot_be_kept(
    target: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(ContextFiles, "keep_of", fail)
    found = talk(target, "Kto?", "A to?", options=["--json", *PLAIN])
    assert (found.code, found.err.count("its context is not kept: ")) == (0, 2)
    first, second = map(json.loads, found.out.splitlines())
    prompt = f"<user>Kto?\n<assistant>{first['text']}\n<user>A to?\n<assistant>"
    assert second["token_ids"] == decoded(target, prompt)["token_ids"]


def the_second_model_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Iterator[int]:
    """Have the second model that is loaded raise an error. Returns: numbers, of which each loading
    takes the next one."""
    loads, load = iter(range(9)), LanguageModel.from_folder

    def loaded(*of: Any, **how: Any) -> LanguageModel[Any]:
        if next(loads) == 1:
            raise error
        return load(*of, **how)

    monkeypatch.setattr(LanguageModel, "from_folder", loaded)
    return loads


def test_figures_load_no_model(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = the_second_model_fails(monkeypatch, MemoryError())
    told = talk(target, "Kto?", f"/model {target}", "/stats", options=PLAIN)
    assert "tokens per pass" in told.err
    assert next(loads) == 2
    assert told.code == 1, "one of the entries failed"


def test_a_conversation_goes_on_after_full_memory(
    target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In an answer, and where another model is loaded."""
    reads, read = iter(range(100)), ModelSession.read
    full = RuntimeError("[metal::malloc] Attempting to allocate 9 bytes which is ...")

    def limited(session: ModelSession[Any], array: Any) -> list[int]:
        if next(reads) == 13:
            raise full
        return read(session, array)

    monkeypatch.setattr(ModelSession, "read", limited)
    the_second_model_fails(monkeypatch, full)
    said = ["Kto?", "A to?", f"/model {target}", f"/save {tmp_path / 'a.json'}", "A to?"]
    result = talk(target, *said, options=["--json", *PLAIN])
    assert (result.code, result.err.count("not enough memory")) == (1, 2)
    first, second = map(json.loads, result.out.splitlines())
    prompt = f"<user>Kto?\n<assistant>{first['text']}\n<user>A to?\n<assistant>"
    assert second["token_ids"] == decoded(target, prompt)["token_ids"]
    assert len(json.loads((tmp_path / "a.json").read_text("utf-8"))) == 2


def test_an_edit_that_got_no_answer_is_one_still(
    target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reads, read = iter(range(100)), ModelSession.read

    def limited(session: ModelSession[Any], array: Any) -> list[int]:
        if next(reads) == 13:
            raise RuntimeError("[metal::malloc] Attempting to allocate 9 bytes which is ...")
        return read(session, array)

    monkeypatch.setattr(ModelSession, "read", limited)
    said = ["Kto?", "/edit", "A to?", "A to?", f"/save {tmp_path / 'a.json'}"]
    result = talk(target, *said, options=["--json", *PLAIN])
    assert result.err.count("not enough memory") == 1
    saved = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert [one["content"] for one in saved if one["role"] == "user"] == ["A to?"]


def test_ctrl_c_while_a_long_prompt_is_read_keeps_what_was_read_before(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[TargetModelSession] = []
    reading = ModelSession.reading

    def interrupted(session: TargetModelSession, ids: Any, **stops: Any) -> Iterator[int]:
        sessions.append(session)
        for read in reading(session, ids, **stops):
            if len(sessions) == 2:  # the second prompt is being read
                signal.raise_signal(signal.SIGINT)
            yield read

    monkeypatch.setattr(ModelSession, "reading", interrupted)
    options = [*PLAIN, "--prefill-step-size", "16"]
    long = "Zażółć gęślą jaźń, " * 4
    first, second, third = answers(target, "Kto?", long, "A to?", options=options)
    assert (second["finish_reason"], second["text"]) == ("interrupted", "")
    assert len({id(session) for session in sessions}) == 1
    prompt = f"<user>Kto?\n<assistant>{first['text']}\n<user>A to?\n<assistant>"
    assert third["token_ids"] == decoded(target, prompt)["token_ids"]


DEMO_CHAT = ("chat", "--target", DEMO / "target", "--no-calibrate")


@pytest.mark.parametrize("from_terminal", [True, False])
def test_ctrl_c_leaves_a_pack_out_while_it_is_compiled(tmp_path: Path, from_terminal: bool) -> None:
    """A terminal sends it to the process that compiles, too. Nothing stays of its work."""
    places = {"TOKALIGN_TABLES": "tables", "XDG_DATA_HOME": "data", "TOKALIGN_CACHE": "cache"}
    environment = os.environ | {name: str(tmp_path / place) for name, place in places.items()}
    environment |= {"TOKALIGN_PACKS": ""}
    ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start(*DEMO_CHAT, "-m", "4", env=environment, start_new_session=True, **ends) as chat:
        chat.stdin.write(b"Please write a letter about the sea and the old man.\n")
        chat.stdin.flush()
        told = [chat.stderr.readline()]
        while told[-1] and b"Ctrl-C stops that" not in told[-1]:
            told.append(chat.stderr.readline())
        wait_for(lambda: bool(children_of(chat.pid)))
        (compiling,) = children_of(chat.pid)
        (os.killpg if from_terminal else os.kill)(chat.pid, signal.SIGINT)
        answer, rest = chat.communicate(timeout=HUNG)
    assert chat.returncode == 0, rest
    assert rest.splitlines()[0].startswith(b"left out; this chat goes on")
    assert answer.strip()
    wait_for(lambda: not is_running(compiling))
    assert [path for path in (tmp_path / "tables").rglob("*") if path.is_file()] == []


def children_of(process: int) -> list[int]:
    """The processes that one has started."""
    listed = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, check=False)
    return [int(pid) for pid in listed.stdout.split()]


def test_ctrl_c_before_an_answer_opens_the_message_again(
    target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At a terminal; elsewhere nobody could send it again, and the chat ends."""

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        monkeypatch.setattr("sys.stdin.isatty", lambda: at_terminal)
        signal.raise_signal(signal.SIGINT)

    for at_terminal in (True, False):
        monkeypatch.setattr("tokalign.runtime.mlx.context_files.ContextFiles.resume", interrupted)
        ended = talk(target, "Kto?", f"/save {tmp_path}/a.json")
        assert ended.code == (0 if at_terminal else 130)
        assert ("interrupted" in ended.err.splitlines()) == at_terminal


PROMPTS = b"\x1b[?2004h"
"""What a prompt begins with: from here on pasted text can be told from typed text."""


def test_a_person_at_a_terminal(tmp_path: Path) -> None:
    """With line editing: a message of two lines, a command that does not exist, and Ctrl-D.

    Words stay whole, and bold words are bold.
    """
    pytest.importorskip("prompt_toolkit")
    person, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm", "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    options = ["-m", 20, "--prefill-response", "**Zażółć** gęślą jaźń i idź do domu " * 2]
    ends = {"stdin": terminal, "stdout": terminal, "stderr": (tmp_path / "stderr").open("wb")}
    chat = start(*DEMO_CHAT, *options, env=environment, **ends)
    os.close(terminal)
    os.set_blocking(person, False)
    shown = b""

    def shows(wanted: bytes) -> bool:
        nonlocal shown
        with suppress(OSError):
            shown += os.read(person, 4096)
        return wanted in shown

    def told(wanted: str) -> bool:
        shows(b"")
        return wanted in (tmp_path / "stderr").read_text("utf-8")

    wait_for(lambda: shows(PROMPTS))
    os.write(person, "Zażółć\x1b\rgęślą\r".encode())
    wait_for(lambda: told("\n["))
    os.write(person, b"/nothing\r")
    wait_for(lambda: told("there is no command /nothing") and shown.count(PROMPTS) == 3)
    os.write(person, b"\x04")
    wait_for(lambda: (shows(b""), chat.poll())[1] is not None)
    before = -1
    while before < len(shown):  # what is left in the terminal
        before = len(shown)
        shows(b"")
    os.close(person)
    assert chat.returncode == 0
    answer = shown.decode().replace("\r", "").split("\x1b[1mZażółć\x1b[0m gęślą jaźń i idź do\n")[1]
    assert answer.startswith("domu \x1b[1mZażółć\x1b[0m gęślą jaźń i idź\n")
    kept = "".join(path.read_text("utf-8") for path in tmp_path.rglob("chat-history"))
    assert "+Zażółć\n+gęślą\n" in kept


def test_a_chat_whose_stdin_cannot_be_read_ends(target: str) -> None:
    with Path(os.devnull).open("w") as closed:
        process = start("chat", target, *PLAIN, stdin=closed, stderr=subprocess.PIPE, text=True)
        try:
            _, told = process.communicate(timeout=HUNG)
        finally:
            process.kill()
    assert process.returncode == 2
    assert told.count("stdin cannot be read") == 1
