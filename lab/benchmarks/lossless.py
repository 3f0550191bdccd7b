"""Whether an output ever changes with all that drafts at once: every id is compared.

    python -m lab.benchmarks.lossless --target MODEL [--draft MODEL] [--drafter FOLDER ...] \
        [--tokens 50000] [--seed 0]

Ways to draft: each drafter alone and beside the free sources, a draft model, the free sources, and
`auto`. Each is asked for the same outputs, greedy and sampled, without and with a grammar, until
that many ids have been compared. A tenth of them comes from a server that answers several requests
at once, chats of two turns among them, beside a server that decodes plainly. The exit code is 1 if
an id differs. Weights are float32, where choices do not depend on how many rows a pass has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, product
from random import Random
from typing import Any
from urllib import request as http

import click

from tokalign.api.assemble import assemble, load_models
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.serve import Settings
from tokalign.serve.server import Server
from tokalign.storage import sample_text
from tokalign.tokenizer.vocabulary import TargetId

LENGTH, SERVED = 160, 64  # ids of an output
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 12},
        "kind": {"enum": ["river", "town", "mountain"]},
    },
    "required": ["name", "sizes", "kind"],
    "additionalProperties": False,
}
GRAMMARS: Mapping[str, Grammar | None] = {
    "none": None,
    "JSON": Grammar.json_schema(SCHEMA),
    "pattern": Grammar.regex(r"([A-Z][a-z]{2,9}( [a-z]{1,9}){3,12}\. ){2,9}"),
}
SAMPLINGS: Mapping[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8},
    "filtered": {"temperature": 1.1, "top_p": 0.9, "min_p": 0.02},
}


@dataclass
class Compared:
    """What was compared: outputs, their ids, and how many outputs differ. passes: of the target."""

    outputs: int = 0
    ids: int = 0
    differing: int = 0
    passes: int = 0

    def add(self, ids: int, *, equal: bool, passes: int = 0) -> None:
        self.outputs, self.ids, self.passes = self.outputs + 1, self.ids + ids, self.passes + passes
        self.differing += not equal


@click.command()
@click.option("--target", required=True)
@click.option("--draft")
@click.option("--drafter", "drafters", multiple=True)
@click.option("--tokens", type=click.IntRange(1), default=50_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def benchmark(
    target: str, draft: str | None, drafters: tuple[str, ...], tokens: int, seed: int
) -> None:
    """Compare outputs until so many ids were compared."""
    results = dict(compare_decoders(target, draft, drafters, tokens * 9 // 10, seed))
    results["server"] = compare_servers(target, drafters, tokens // 10, seed)
    print("| drafted by | outputs | ids | ids per pass | differing outputs |")
    print("|---|---|---|---|---|")
    for name, one in results.items():
        rate = f"{one.ids / one.passes:.3f}" if one.passes else ""
        print(f"| {name} | {one.outputs:,} | {one.ids:,} | {rate} | {one.differing} |")
    total = sum(one.ids for one in results.values())
    differing = sum(one.differing for one in results.values())
    print(f"{total:,} ids, {differing} outputs differ")
    sys.exit(differing > 0)


def compare_decoders(
    target: str, draft: str | None, drafters: tuple[str, ...], tokens: int, seed: int
) -> Iterator[tuple[str, Compared]]:
    """Results by the way to draft. tokens: to be compared by all of them together."""
    ours, *theirs = load_models([target] if draft is None else [target, draft], dtype="float32")
    model = theirs[0] if theirs else None
    prompts = [ours.tokenizer.encode(text)[:48] for text in _texts()]
    plain = assemble(ours, None, DraftingOptions(method="plain"))
    ways = {
        name: assemble(ours, model if with_model else None, options)
        for name, options, with_model in _ways(drafters, model=model is not None)
    }
    results = {name: Compared() for name in ways}
    random = Random(seed)
    settings = [*product(SAMPLINGS, GRAMMARS)]
    for number in count():
        compared = sum(one.ids for one in results.values())
        click.echo(f"{compared:,} of {tokens:,} ids", err=True)
        if compared >= tokens:
            break
        sampling, grammar = settings[number % len(settings)]
        how: dict[str, Any] = {
            "sampler": Sampling(seed=seed + number, **SAMPLINGS[sampling]),
            "grammar": GRAMMARS[grammar],
        }
        prompt = random.choice(prompts)
        expected, _ = _output(plain, prompt, **how)
        for name, decoder in ways.items():
            ids, passes = _output(decoder, prompt, **how)
            results[name].add(len(ids), equal=ids == expected, passes=passes)
            if ids != expected:
                click.echo(f"{name}, {sampling}, grammar {grammar}, output {number}", err=True)
    yield from results.items()


def _ways(drafters: tuple[str, ...], *, model: bool) -> Iterator[tuple[str, DraftingOptions, bool]]:
    for folder in drafters:
        for method in ("drafter", "hybrid"):
            options = DraftingOptions(method=method, drafter=folder, num_draft_tokens=7)
            yield f"{folder}, {method}", options, False
        yield f"{folder}, auto", DraftingOptions(drafter=folder), False
    if model:
        yield "draft model, hybrid", DraftingOptions(method="hybrid", num_draft_tokens=4), True
        yield "draft model, auto", DraftingOptions(), True
    yield "free sources", DraftingOptions(method="hybrid", draft_rows=9), False


def _output(decoder: Decoder, prompt: list[TargetId], **how: Any) -> tuple[list[TargetId], int]:
    """The ids that follow a prompt, and how many passes of the target they took."""
    generation = Generation(decoder, Request(Prompt(target=prompt), max_tokens=LENGTH, **how))
    for _ in generation:
        pass
    return list(generation.context.emitted), generation.statistics.rounds


def _texts() -> list[str]:
    """Openings of lines in three languages."""
    lines = [
        line
        for code in ("pl", "en", "uk")
        for line in sample_text(code).read_text("utf-8").splitlines()
    ]
    return [line for line in lines if len(line) > 60][:60]


# -- the server ------------------------------------------------------------------------------------


def compare_servers(target: str, drafters: tuple[str, ...], tokens: int, seed: int) -> Compared:
    """Answers of a server that drafts, and of one that decodes plainly, to the same requests."""
    compared = Compared()
    drafting = DraftingOptions(drafter=drafters[0] if drafters else None)
    given: dict[str, Any] = {"model": target, "dtype": "float32"}
    with (
        Server(Settings(**given, drafting=DraftingOptions(method="plain")), port=0) as plain,
        Server(Settings(**given, drafting=drafting), port=0) as drafted,
        ThreadPoolExecutor(4) as pool,
    ):
        for number in count(0, 4):
            if compared.ids >= tokens:
                return compared
            asked = range(number, number + 4)
            expected = [_conversation(plain, one, seed) for one in asked]
            answers = pool.map(lambda one: _conversation(drafted, one, seed), asked)
            for (text, ids), (right, _) in zip(answers, expected, strict=True):
                compared.add(ids, equal=text == right)
    raise AssertionError


def _conversation(server: Server, number: int, seed: int) -> tuple[list[str], int]:
    """The answers of two turns, and how many ids they have."""
    texts = _texts()
    more = dict([*SAMPLINGS.values()][number % 3]) | {"seed": seed + number}
    if number % 2:
        more["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "place", "schema": SCHEMA, "strict": True},
        }
    messages: list[dict[str, str]] = []
    ids = 0
    for turn in range(2):
        messages.append({"role": "user", "content": texts[(number + 7 * turn) % len(texts)]})
        body = {"messages": messages, "max_tokens": SERVED, **more}
        request = http.Request(
            f"{server.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with http.urlopen(request) as response:
            answer = json.load(response)
        messages.append(
            {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
        )
        ids += answer["usage"]["completion_tokens"]
    return [message["content"] for message in messages[1::2]], ids


if __name__ == "__main__":
    benchmark()
