"""`tokalign decode`: the target's own output, its statistics, and every error."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import mlx.core as mx
import pytest
from command_lines import Ended, start
from command_lines import run as tokalign
from mlx_lm.generate import generate_step
from mlx_lm.models.llama import Model
from places import DEMO
from small_tables import write_dictionary

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.session import ModelSession
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer

KEYS = (  # the first six are vLLM's names
    "mean_acceptance_length draft_acceptance_rate acceptance_histogram num_spec_steps "
    "num_draft_tokens num_accepted_draft_tokens text token_ids tokens_per_second "
    "prompt_tokens_per_second peak_memory_gb tokens_per_round host_ms_per_round "
    "per_source finish_reason"
)
PROMPT = "Zażółć gęślą"


def run(*words: object, typed: str | None = None) -> Ended:
    return tokalign("decode", *words, typed=typed)


def decode(models: dict[str, str], *words: object) -> dict[str, Any]:
    given = ("--target", models["target"], "-p", PROMPT, "-m", "20", "--json", "--quiet")
    return dict(run(*given, *words).json)


_LONG = "9" * 5_000  # Python reads no such number


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        *((["-m", wrong], 2, "-1 for no limit") for wrong in ("0", "-2", _LONG)),
        *(
            (["--num-draft-tokens", wrong], 2, "draft")
            for wrong in ("0", "-1", "two", "1.5", _LONG)
        ),
        (["-p", ""], 2, "the prompt is empty; give some text"),
        (["-p", "żółw " * 200], 2, "holds 256"),
        (["-p", "@nothing.txt"], 2, "write @@nothing.txt for a text"),
        (["--chat-template-config", "[1]"], 2, "JSON object"),
        (["--chat-template-config", '{"messages": 1, "a": 2}'], 2, "may not have messages"),
        *(
            (["--extra-eos-token", wrong], 2, "no single token")
            for wrong in ("dwa żółwie", "", _LONG)
        ),
        (["--max-kv-size", "16", "--kv-bits", "8"], 2, "exclude each other"),
        (["--target", "."], 4, "config.json"),
    ],
)
def test_what_cannot_be_honoured_is_one_line(
    models: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    run("--target", models["target"], "-p", PROMPT, *words).is_refused(code, said)


def test_an_output_follows_a_schema(models: dict[str, str], tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"enum": [1, 23]}, "maxItems": 3}', "utf-8")
    made = decode(models, "--json-schema", str(schema))
    assert set(json.loads(made["text"])) <= {1, 23}
    assert made["finish_reason"] == "stop"
    schema.write_text('{"type": "strng"}', "utf-8")
    for path in (schema, tmp_path / "none.json"):
        run("--target", models["target"], "-p", "x", "--json-schema", path).is_refused(2, str(path))


def test_every_method_gives_mlx_lms_output(models: dict[str, str], tmp_path: Path) -> None:
    target = LanguageModel.from_folder(Path(models["target"]))
    prompt = mx.array(target.tokenizer.encode(PROMPT))
    expected = [token for token, _ in generate_step(prompt, target.model, max_tokens=20)]
    table = str(write_dictionary(tmp_path / "pl.dictionary.tok", target.tokenizer))
    found = {
        name: decode(models, *arguments)["token_ids"]
        for name, arguments in {
            "plain": ["--method", "plain"],
            "auto": [],
            "auto with a draft": ["--draft", models["draft"]],
            "auto with a table": ["--dictionary", table],
            "dictionary": ["--method", "dictionary", "--dictionary", table],
            "copy": ["--method", "copy"],
            "context:4": ["--draft", models["draft"], "--translation", "context:4"],
            "hybrid": ["--method", "hybrid", "--draft", models["draft"], "--dictionary", table],
            "same": ["--draft", models["target"], "--num-draft-tokens", "4"],
        }.items()
    }
    length = len(found["plain"])
    assert found == dict.fromkeys(found, expected[:length])


def test_the_keys_are_the_documented_ones(models: dict[str, str]) -> None:
    asked = ["--draft", models["target"], "--method", "draft", "--num-draft-tokens", "3"]
    found = decode(models, *asked)
    assert set(found) >= set(KEYS.split())
    assert found["method"] == "draft"
    assert found["translation"] == "none"
    assert found["draft_acceptance_rate"] == 1.0
    assert set(found["host_ms_per_round"]) == {"p50", "p99"}
    documented = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
    assert [key for key in found if f"`{key}`" not in documented] == []


def test_sampling_is_reproduced_whatever_drafts(models: dict[str, str]) -> None:
    sampling = ["--temp", "0.9", "--top-p", "0.95", "--top-k", "50", "--min-p", "0.01"]
    plain = decode(models, "--method", "plain", "--seed", "7", *sampling)
    drafted = decode(models, "--draft", models["draft"], "--seed", "7", *sampling)
    other = decode(models, "--method", "plain", "--seed", "8", *sampling)
    assert plain["token_ids"] == drafted["token_ids"] != other["token_ids"]
    assert plain["seed"] == 7


def test_xtc_leaves_line_feeds_and_the_end_alone(models: dict[str, str]) -> None:
    """With a threshold of 0, all other ids but the least likely one are ruled out."""
    ruled_out = ("--xtc-probability", "1", "--xtc-threshold", "0")
    drawn = decode(models, "--temp", "1", "--seed", "1", *ruled_out)
    tokenizer: Tokenizer[Any] = read_tokenizer(models["target"])
    assert {*tokenizer.encode("\n"), *tokenizer.vocabulary.roles.eos} & {*drawn["token_ids"]}


def test_minus_one_token_is_as_many_as_the_context_holds(models: dict[str, str]) -> None:
    found = decode(models, "-m", "-1", "--method", "plain")
    longer = decode(models, "-m", "500", "--method", "plain")
    assert found["token_ids"] == longer["token_ids"]
    assert found["generation_tokens"] > 20


def test_the_chat_template_gets_its_variables(models: dict[str, str], tmp_path: Path) -> None:
    folder = copytree(models["target"], tmp_path / "chat")
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}{{ ending }}")
    arguments = ["--target", str(folder), "--chat-template-config"]
    longer = decode(models, *arguments, '{"ending": "jaźń i żółw"}')
    shorter = decode(models, *arguments[:2])
    assert longer["prompt_tokens"] > shorter["prompt_tokens"]
    plain = decode(models, *arguments[:2], "--ignore-chat-template")
    assert plain["token_ids"] == shorter["token_ids"] == decode(models)["token_ids"]


def test_text_goes_to_stdout_and_the_rest_to_stderr(models: dict[str, str]) -> None:
    result = run("--target", models["target"], "-p", "-", "-m", "5", "--color", typed=PROMPT)
    assert result.code == 0
    assert "generation       5 tokens\n" in result.err, "too few to tell the speed"
    assert "(plain decoding: 1)" in result.err
    assert "of the output" in result.err
    before = result.err[: result.err.index("\nprompt ")].splitlines()
    (sources,) = [line for line in before if line and "accepted draft" not in line]
    assert f"{Path(models['target']).name}: guesses come from context copy; no" in sources
    assert "tokens/s" not in result.out


GREEN, MAGENTA, CYAN = "\x1b[32m", "\x1b[4;35m", "\x1b[36m"


def test_every_outcome_has_its_own_style_on_request(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--target", models["target"], "-p", PROMPT, "-m", "12", "--num-draft-tokens", "2"]
    same = [*arguments, "--draft", models["target"], "--method", "draft"]
    assert "\x1b[" not in (plain := run(*same)).out
    assert "rejected and corrected" not in plain.err
    assert "\x1b[" not in run(*same, "--no-color").out
    assert "\x1b[" not in run(*same, "--color", "--quiet").err
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" not in run(*same).out
    coloured = run(*same, "--color")
    assert GREEN in coloured.out
    assert CYAN in coloured.out  # after a proposal accepted to its end
    assert MAGENTA not in coloured.out
    assert coloured.err.count("rejected and corrected") == 1
    other = run(*arguments, "--draft", models["draft"], "--translation", "context:5", "--color")
    assert MAGENTA in other.out
    assert "\x1b[" not in run(*arguments, "--method", "plain", "--color").out


def test_host_times_are_printed_on_request(models: dict[str, str]) -> None:
    arguments = ["--target", models["target"], "-p", PROMPT, "-m", "9", "--method", "plain"]
    assert "tokens/s" in (usual := run(*arguments).err)
    assert "beside the passes" not in usual
    for asked in ([*arguments, "--verbose"], ["--verbose", *arguments]):
        assert "beside the passes" in run(*asked).err
    assert run(*arguments, "--verbose", "False").err == ""


def test_a_prompt_may_come_from_a_file(models: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT, "utf-8")
    from_file = decode(models, "-p", f"@{tmp_path / 'prompt.txt'}")
    assert from_file["token_ids"] == decode(models)["token_ids"]
    at_sign = decode(models, "-p", "@@jan")
    assert at_sign["prompt_tokens"] == len(read_tokenizer(models["target"]).encode("@jan"))


@pytest.mark.parametrize("words", [(), ("-p", "-")])
def test_stdin_without_a_prompt_is_refused(words: tuple[str, ...]) -> None:
    """Its model has a template, under which a prompt that somebody types may be empty."""
    given = ("--target", DEMO / "target", "-m", "2", *words)
    run(*given, typed="").is_refused(2, "there is no prompt; give one: tokalign decode")
    assert run("--target", DEMO / "target", "-m", "2", "-p", "").code == 0


def test_a_page_shows_how_the_tokens_came_about(models: dict[str, str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = decode(models, "--draft", models["draft"], "--html", str(page))
    assert page.read_text("utf-8").count('class="t ') >= len(found["token_ids"])
    assert (found["target"], found["draft"]) == (models["target"], models["draft"])
    assert (found["drafter"], found["prompt"]) == (None, PROMPT)


def test_further_tokens_may_end_the_output(models: dict[str, str]) -> None:
    whole = decode(models, "--method", "plain")["token_ids"]
    last = whole[4]
    ended = decode(models, "--method", "plain", "--extra-eos-token", str(last))
    assert ended["token_ids"] == whole[: whole.index(last) + 1]
    assert ended["finish_reason"] == "stop"
    decode(models, "--extra-eos-token", "</s>", "--extra-eos-token", "a")
    assert decode(models, "--method", "plain", "--ends", "mlx-lm")["token_ids"] == whole


def test_drafting_stops_once_a_bounded_cache_is_full(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a model that, unlike Llama, leaves its cache to mlx-lm."""
    bounded = ("--target", models["target"], "-p", PROMPT, "-m", "4", "--max-kv-size", "16")
    assert run(*bounded).err.count("has no effect, as in mlx-lm") == 1
    monkeypatch.delattr(Model, "make_cache")
    arguments = ["--max-kv-size", "24", "-m", "60", "--num-draft-tokens", "3"]
    plain = decode(models, "--method", "plain", *arguments[:4])
    drafted = decode(models, "--draft", models["target"], "--method", "draft", *arguments)
    assert drafted["token_ids"] == plain["token_ids"]
    assert plain["token_ids"] != decode(models, "--method", "plain", "-m", "60")["token_ids"]
    assert 0 < drafted["num_spec_steps"] < drafted["rounds"] - 30
    said = run("--target", models["target"], "-p", PROMPT, *arguments[:4]).err
    assert said.count("drafting stops when the context has 23 tokens") == 1


def test_a_stop_string_ends_the_text(models: dict[str, str]) -> None:
    whole = decode(models, "--method", "plain")["text"]
    stop = whole[3:5]
    found = decode(models, "--stop", stop, "--draft", models["draft"])
    assert found["text"] == whole[: whole.find(stop)]
    assert found["finish_reason"] == "stop"


def test_an_interrupt_still_prints_the_statistics(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = iter(range(100))
    read = ModelSession.read

    def interrupted(session: ModelSession, array: Any) -> list[int]:
        if next(reads) == 4:
            raise KeyboardInterrupt
        return read(session, array)

    monkeypatch.setattr(ModelSession, "read", interrupted)
    ended = run(
        "--target", models["target"], "-p", PROMPT, "--method", "plain", "--json", "--quiet"
    )
    assert (ended.code, ended.err.strip()) == (130, "tokalign: interrupted")
    found = json.loads(ended.out)
    assert found["finish_reason"] == "interrupted"
    assert found["generation_tokens"] == len(found["token_ids"]) == 4


def test_a_terminal_shows_how_far_a_long_prompt_is_read(models: dict[str, str]) -> None:
    person, terminal = os.openpty()
    long = "Zażółć gęślą jaźń. " * 20
    given = ("--target", models["target"], "-p", long, "-m", 3, "--prefill-step-size", 8)
    decode = start("decode", *given, stderr=terminal, stdout=subprocess.PIPE)
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # the end, on Linux
        while part := os.read(person, 4096):
            shown += part
    os.close(person)
    out = decode.stdout.read()
    decode.wait()
    steps = re.findall(rb"\r\x1b\[Kreading (\d+) of (\d+)", shown)
    assert len(steps) > 5
    assert [int(done) for done, _ in steps] == sorted(int(done) for done, _ in steps)
    assert shown.rindex(b"reading") < shown.index(b"\r\x1b[K", shown.rindex(b"reading"))
    assert out.strip()
    assert b"reading" not in out


def test_two_lines_at_most_come_before_the_text_and_the_paths_on_request() -> None:
    target = str(DEMO / "target")
    typed = ("decode", target, "Ala", "-m", "3", "--ignore-chat-template")
    before = tokalign(*typed).err.partition("\n\n")[0].splitlines()
    assert 1 <= len(before) <= 2
    assert not any(target in line for line in before)
    assert target in tokalign(*typed, "--verbose").err
