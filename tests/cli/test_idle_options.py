"""An option that the others leave without effect is refused in one line, before anything loads."""

from __future__ import annotations

from importlib import import_module

import pytest
from click.testing import CliRunner, Result

from tokalign.errors import MissingAssetError, UsageError

NOWHERE = "./no-such-model"
DECODE = f"decode --target {NOWHERE} -p x"
SERVE = f"serve --target {NOWHERE}"
BENCH = f"bench --target {NOWHERE}"
TRAIN = f"train --target {NOWHERE} no.txt --output out"
BUILD = "build --target bielik"

DRAFTING = (
    ("--alignment a.tok", "without --draft"),
    ("--translation context:5", "without --draft"),
    ("--draft D --method copy --translation context:5", "with --method copy"),
    ("--draft D --method drafter --alignment a.tok", "with --method drafter"),
    ("--draft D --translation context:5 --alignment a.tok", "with --translation context:*"),
    ("--method copy --dictionary d.tok", "with --method copy"),
    ("--method plain --language pl", "with --method plain"),
    ("--method plain --num-draft-tokens 3", "with --method plain"),
)
GENERATION = (
    ("--top-p 0.9", "without --temp"),
    ("--top-k 5", "without --temp"),
    ("--min-p 0.1", "without --temp"),
    ("--xtc-probability 0.5", "without --temp"),
    ("--temp 0.7 --xtc-threshold 0.2", "without --xtc-probability"),
    ("--kv-group-size 32", "without --kv-bits"),
    ("--quantized-kv-start 9", "without --kv-bits"),
    ('--ignore-chat-template --chat-template-config {"a":1}', "with --ignore-chat-template"),
)
IDLE = [
    *((f"{DECODE} {typed}", told) for typed, told in (*DRAFTING, *GENERATION)),
    *((f"{SERVE} {typed}", told) for typed, told in DRAFTING),
    (f"{DECODE} --json --color", "with --json"),
    (f"{DECODE} --json --verbose", "with --json"),
    (f"{DECODE} --draft D --drafter F", "with --draft"),
    (f"{DECODE} --quiet --verbose", "with --quiet"),
    (f"chat --target {NOWHERE} --translation context:5", "without --draft NAME"),
    (f"chat --target {NOWHERE} --json --color", "with --json"),
    (f"chat --target {NOWHERE} --quiet --verbose", "with --quiet"),
    (f"{SERVE} --kv-group-size 32", "without --kv-bits"),
    (f"{SERVE} --chat-template T --use-default-chat-template", "with --chat-template"),
    ("serve --allow-model-switching --adapter-path .", "without --target NAME"),
    ("serve --allow-model-switching --draft D", "without --target NAME"),
    ("serve --allow-model-switching --drafter D", "without --target NAME"),
    ("bench --results r.jsonl --draft D", "without --target NAME"),
    ("bench --results r.jsonl --max-tokens 3", "without --target NAME"),
    (f"{BENCH} --field body", "without FILE"),
    (f"{BENCH} p.txt --prompt-language uk", "with FILE"),
    (f"{BENCH} p.txt --prompt-tokens 3", "without --text or --ignore-chat-template"),
    (f"{BENCH} --ignore-chat-template", "without FILE"),
    (f"{BENCH} --alignment a.tok", "without --draft"),
    (f"{BENCH} a.txt --text --max-tokens 3", "with --text"),
    (f"{BENCH} --cost flat", "without --text"),
    ("check --target bielik --draft llama3.2 --field body", "without FILE"),
    ("check --target bielik --draft llama3.2 --language uk a.txt", "with FILE"),
    (f"{BUILD} --draft llama3.2 --field body", "without FILE"),
    (f"{BUILD} --draft llama3.2 --alignment-only --language pl", "with --alignment-only"),
    (f"{BUILD} --draft llama3.2 --alignment-only --p-min 0.1", "with --alignment-only"),
    (f"{TRAIN} --label-temp 0.5", "without --labels sampled or --labels generated"),
    (f"{TRAIN} --rank 9", "without --head factored"),
    ("learn --list --name notes", "with --list"),
    ("learn --list folder", "with FOLDER"),
]


def run(line: str) -> Result:
    name, *arguments = line.split()
    command = import_module(f"tokalign.cli.{name.replace('-', '_')}").command
    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize(("line", "told"), IDLE, ids=[line for line, _ in IDLE])
def test_it_is_refused_before_anything_loads(line: str, told: str) -> None:
    error = run(line).exception
    assert isinstance(error, UsageError), error
    assert f" does nothing {told}" in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "typed",
    [
        "--draft D --alignment a.tok --translation exact",
        "--temp 0 --top-p 0.9",
        "--top-p 1 --kv-group-size 64",
        "--method plain --num-draft-tokens auto",
        "--no-color --json",
        "--verbose False --quiet",
        "--seed 3",
    ],
)
def test_what_has_an_effect_or_asks_for_nothing_is_let_pass(typed: str) -> None:
    assert isinstance(run(f"{DECODE} {typed}").exception, MissingAssetError)


def test_a_server_whose_requests_may_name_a_draft_model_takes_its_options() -> None:
    line = f"{SERVE} --allow-model-switching --translation context:5 --port 0"
    assert isinstance(run(line).exception, MissingAssetError)


def test_an_empty_api_key_would_leave_the_server_open() -> None:
    error = (
        CliRunner()
        .invoke(
            import_module("tokalign.cli.serve").command, ["--target", NOWHERE, "--api-key", " "]
        )
        .exception
    )
    assert isinstance(error, UsageError)
    assert "--api-key" in str(error)
