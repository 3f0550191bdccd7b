"""What chat models write, as the text of the pack `chat`.

    python -m lab.benchmarks.chat_texts gather FOLDER OUTPUT.jsonl
    python -m lab.benchmarks.chat_texts prompts [--number 6000] > PROMPTS
    python -m lab.benchmarks.chat_texts write FOLDER PROMPTS OUTPUT.jsonl

`gather` collects answers that openly licensed repositories hold; FOLDER has clones of them:
`git clone https://github.com/allenai/WildBench`, and so on for each of `REPOSITORIES`.

A prompt is a template of `lab/prompts/chat/` with a topic; none is among those of `free/`. `write`
has the model of a folder answer them with Transformers, at T = 0.7, in bfloat16, in batches of 96.
It goes on after the answers that OUTPUT has. The text depends on the processor's last bits. On a
CPU it takes less than half the time of `tokalign build --from-model --prompts` with mlx.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

PROMPTS = Path(__file__).resolve().parents[1] / "prompts" / "chat"
_LANGUAGES = [*4 * ["Python"], *2 * ["JavaScript"]]
_LANGUAGES += ["TypeScript", "Java", "C++", "C", "Go", "Rust", "C#", "PHP", "Ruby", "Kotlin"]
_LANGUAGES += ["Swift", "Bash"]
_AT_ONCE, _LENGTH = 96, 256

REPOSITORIES = {
    "WildBench": "d6b8dcaf377d173d031980f97c16e1a82618c03d",
    "ZeroEval": "8c1485edf12c6efb5f69135a562927c5ad484059",
    "GPTeacher": "481075123c29854bddb82655badeef6a438f2436",
}
"""The commit that is read of allenai/WildBench and WildEval/ZeroEval (both Apache 2.0), and of
teknium1/GPTeacher (MIT)."""

_JUDGED = {
    "gpt-4-turbo-2024-04-09": (
        *("Llama-3-8B-OpenHermes-243K", "Llama-3-8B-ShareGPT-112K", "Llama-3-8B-Tulu-330K"),
        *("Llama-3-8B-Ultrachat-200K", "Llama-3-8B-WildChat", "Llama-3-8B-WizardLM-196K"),
        *("Phi-3-mini-128k-instruct", "gemma-2b-it", "gemma-7b-it", "gpt-3.5-turbo-0125"),
        "reka-flash-20240226",
    ),
    "gpt-4o-2024-05-13": ("Qwen1.5-72B-Chat", "reka-core-20240501", "reka-edge"),
}
"""Models whose answers WildBench keeps, by who judged them."""

_ANSWERS = 6
"""Answers that are taken to a prompt of WildBench: more of them repeat its topic, and bring the
pack little but size."""


def prompts(number: int) -> list[str]:
    """So many different prompts, of all kinds in turn. Equal numbers give equal prompts."""
    shuffling, kinds = random.Random(0), list[list[str]]()
    for kind in ("explaining", "general", "code", "records", "setups"):
        templates, topics = (PROMPTS / f"{kind}.txt").read_text("utf-8").split("\n\n")
        languages = sorted(_LANGUAGES) if kind == "code" else [""]
        kinds.append(
            [
                template.format(topic=topic, language=language)
                for topic in topics.splitlines()
                for language in dict.fromkeys(languages)
                for template in templates.splitlines()
                for _ in range(languages.count(language))
            ]
        )
    for of in kinds:
        shuffling.shuffle(of)
    rounds = zip(*(of * -(-number // len(of)) for of in kinds), strict=False)
    return [*dict.fromkeys(one for group in rounds for one in group)][:number]


@click.group()
def benchmark() -> None:
    """Texts for the pack of chat models' answers."""


@benchmark.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("output", type=click.Path(path_type=Path))
def gather(folder: Path, output: Path) -> None:
    """Collect the answers that the clones in FOLDER hold."""
    with output.open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"text": text}) + "\n" for text in gathered(folder) if text.strip()
        )


def gathered(folder: Path) -> Iterator[str]:
    """The answers that clones of `REPOSITORIES` hold."""
    answers = defaultdict[str, list[str]](list)
    for judge, models in _JUDGED.items():
        for model in models:
            path = f"eval_results/v2.0522/score.v2/eval={judge}/{model}.json"
            for one in _read(folder, "WildBench", path):
                if one["model_output"]:
                    answers[one["session_id"]].append(one["model_output"])
    drawing = random.Random(0)
    for session in sorted(answers):
        of = answers[session]
        yield from drawing.sample(of, min(len(of), _ANSWERS))
    for size in ("0.5B", "1.5B"):
        path = f"result_dirs/alpaca_eval/sampling/Qwen2-{size}-Instruct.json"
        yield from (one["output"][0] for one in _read(folder, "ZeroEval", path))
    for path in (
        "Codegen/codegen-instruct.json",
        "Roleplay/roleplay-simple-deduped-roleplay-instruct.json",
    ):
        yield from (one["response"] for one in _read(folder, "GPTeacher", path))


def _read(folder: Path, repository: str, path: str) -> list[dict[str, Any]]:
    """A JSON file of the commit that is read of a repository."""
    show = "git", "-C", str(folder / repository), "show", f"{REPOSITORIES[repository]}:{path}"
    found: list[dict[str, Any]] = json.loads(
        subprocess.run(show, check=True, capture_output=True).stdout
    )
    return found


@benchmark.command("prompts")
@click.option("--number", type=click.IntRange(1), default=6000, show_default=True)
def print_prompts(number: int) -> None:
    """Print the prompts, one a line."""
    click.echo("\n".join(prompts(number)))


@benchmark.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("lines", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("output", type=click.Path(path_type=Path))
def write(folder: Path, lines: Path, output: Path) -> None:
    """Have the model of FOLDER answer LINES."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    asked = lines.read_text("utf-8").splitlines()
    done = len(output.read_text("utf-8").splitlines()) if output.exists() else 0
    for begin in range(done, len(asked), _AT_ONCE):
        some = asked[begin : begin + _AT_ONCE]
        rendered = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": line}], tokenize=False, add_generation_prompt=True
            )
            for line in some
        ]
        read = tokenizer(rendered, return_tensors="pt", padding=True, add_special_tokens=False)
        torch.manual_seed(begin)
        with torch.inference_mode():
            ids = model.generate(
                **read, do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=_LENGTH
            )
        texts = tokenizer.batch_decode(
            ids[:, read["input_ids"].shape[1] :], skip_special_tokens=True
        )
        with output.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)


if __name__ == "__main__":
    benchmark()
