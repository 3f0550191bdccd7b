"""Prompts and chats of tokenizer folders, beside those that mlx-lm's own tokenizer gives.

For each folder: the level at which it is used; processor time of its first opening and of the next
one (median of `--repeats` new processes; the import of tokalign left out, that of transformers
counted), and what transformers alone takes to open it; how many of 500 prompts and 50 conversations
are encoded as mlx-lm encodes them. `control` is the time of a fixed computation, timed between the
openings: on a busy machine it tells how far times of two runs can be compared. Each folder has a
process of its own.

python -m lab.benchmarks.tokenizers FOLDER...
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click

from tokalign.runtime.chat import ChatTemplate, encode_chat, encode_prompt
from tokalign.tokenizer.self_check import read_tokenizer

PARTS = (
    *("Zażółć", " gęślą", "jaźń", " the", " quick", "it's", "I'M", "x_1", "def f(a):", "\treturn"),
    *(" ", "  ", "     ", "\n", "\n\n", "\t\t\t", "\r\n", " \n ", "\u00a0", "\u2003", "\u3000"),
    *("0", "12", "1234567", "3.14", "２", "²", "中文", "北京2024", "カナ", "مرحبا", "١٢", "한국"),
    *("🐟", "👍🏽", "e\u0301", "ﬁ", "ß", "...", "!?", "--", "/", "</b>", "<b>", "a\x04b", "\x1d"),
    *("<s>", "</s>", "<|im_end|>", "<tool_call>", "<unk>", "[INST]", "▁", "\u200b", "\ufeff"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row of the record. chats: None for a tokenizer without a template."""

    level: str
    prompts: int
    chats: int | None
    differs: str


def texts(count: int, seed: int) -> list[str]:
    """Texts of every kind, put together at random; the same for the same seed."""
    draw = Random(seed)
    return ["".join(draw.choices(PARTS, k=draw.randint(1, 9))) for _ in range(count)]


def compare(folder: Path, *, trust_remote_code: bool) -> Comparison:
    """Encode prompts and conversations with tokalign and with mlx-lm."""
    from mlx_lm.utils import load_tokenizer

    theirs = load_tokenizer(folder, {"trust_remote_code": trust_remote_code})
    ours = read_tokenizer(folder, trust_remote_code=trust_remote_code)

    def expected(text: str) -> list[int]:
        begun = theirs.bos_token is not None and text.startswith(theirs.bos_token)
        return [*theirs.encode(text, add_special_tokens=not begun)]

    prompts = texts(500, seed=1)
    wrong = [text for text in prompts if encode_prompt(ours, text) != expected(text)]
    chats = None
    if getattr(theirs, "chat_template", None):
        template = ChatTemplate(theirs)
        conversations = [[{"role": "user", "content": text}] for text in texts(50, seed=2)]
        chats = sum(
            encode_chat(ours, template, chat)
            == [*theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)]
            for chat in conversations
        )
    return Comparison(
        level=str(ours.level),
        prompts=len(prompts) - len(wrong),
        chats=chats,
        differs=ascii(wrong[0])[:60] if wrong else "",
    )


def opening(folder: Path, *, trust_remote_code: bool) -> float:
    """Processor seconds until a tokenizer is open and has encoded a prompt."""
    start = time.process_time()
    tokenizer: Any = read_tokenizer(folder, trust_remote_code=trust_remote_code)
    encode_prompt(tokenizer, "Zażółć gęślą jaźń")
    assert tokenizer.fingerprint
    return time.process_time() - start


def reference_alone(folder: Path, *, trust_remote_code: bool) -> float:
    """Processor seconds that transformers alone takes to open a tokenizer, its import included."""
    start = time.process_time()
    from transformers import AutoTokenizer

    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    AutoTokenizer.from_pretrained(folder, **options)
    return time.process_time() - start


def control() -> float:
    """Processor seconds of a fixed computation."""
    start = time.process_time()
    sum(len(str(number)) for number in range(1_000_000))
    return time.process_time() - start


def in_new_process(step: str, folder: Path, cache: str, options: Sequence[str]) -> Any:
    """What a step prints that runs alone, with its notes in `cache`."""
    command = [sys.executable, "-m", "lab.benchmarks.tokenizers", "--step", step, *options]
    environment = {**os.environ, "TOKALIGN_CACHE": cache}
    ran = subprocess.run([*command, str(folder)], env=environment, capture_output=True, text=True)
    if ran.returncode:
        raise click.ClickException(f"{folder}: {ran.stderr.strip().splitlines()[-1]}")
    return json.loads(ran.stdout.splitlines()[-1])


def row(folder: Path, repeats: int, options: Sequence[str]) -> str:
    """One row of the record, as Markdown."""
    first, alone, noted, controls = [], [], [], []
    for _ in range(repeats):
        with TemporaryDirectory() as cache:
            controls.append(control())
            first.append(in_new_process("open", folder, cache, options))
            alone.append(in_new_process("alone", folder, cache, options))
            noted.append(in_new_process("open", folder, cache, options))
    with TemporaryDirectory() as cache:
        found = in_new_process("compare", folder, cache, options)
    times = " | ".join(f"{median(values):.2f}" for values in (first, alone, noted, controls))
    chats = "" if found["chats"] is None else found["chats"]
    return f"| {folder.name} | {found['level']} | {times} | {found['prompts']} | {chats} |" + (
        f" {found['differs']}" if found["differs"] else ""
    )


@click.command(help=__doc__)
@click.argument("folders", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--repeats", default=5, show_default=True)
@click.option("--trust-remote-code", is_flag=True, help="Run programs in the folders.")
@click.option("--step", type=click.Choice(["open", "alone", "compare"]), hidden=True)
def main(folders: Sequence[Path], repeats: int, trust_remote_code: bool, step: str | None) -> None:
    """Print a table, or run one step of one row."""
    if step == "open":
        print(opening(folders[0], trust_remote_code=trust_remote_code))
    elif step == "alone":
        print(reference_alone(folders[0], trust_remote_code=trust_remote_code))
    elif step == "compare":
        print(json.dumps(asdict(compare(folders[0], trust_remote_code=trust_remote_code))))
    else:
        times = "first opening, s | transformers alone, s | from the note, s | control, s"
        print(f"| files | level | {times} | prompts | chats |")
        print("|---|---|---|---|---|---|---|---|")
        options = ["--trust-remote-code"] if trust_remote_code else []
        for folder in folders:
            try:
                print(row(folder, repeats, options), flush=True)
            except click.ClickException as error:
                print(f"| {folder.name} | failed: {error.message} |", flush=True)


if __name__ == "__main__":
    main()
