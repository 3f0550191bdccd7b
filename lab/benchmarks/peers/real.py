"""Other programs on two real models: each way to draft against the same program's plain decoding.

    python -m lab.benchmarks.peers.real TARGET DRAFT --peer transformers --results FILE.jsonl
        [--prompts-per-kind 3] [--held-out] [--tokens 64] [--threads 2] [--only REGEX] [--table]
        [--dtype bfloat16]
    ... --peer mlx ...
    ... --peer dspark ...  (mlx-dspark 0.20.3 and what it imports, on PYTHONPATH)
    ... --peer llama --node FOLDER --gguf TARGET.gguf --draft-gguf DRAFT.gguf ...

Float32, or for Transformers what --dtype says, and for llama.cpp what its files hold. The prompts
are those of `lab/prompts/real/`, the first ones of every kind, or those that `real_models.py` holds
out. For every prompt all ways of a program run one after another, in an order that rotates. Greedy,
but for those ways of Transformers that run at T = 0.7, beside plain sampling. Two models with one
tokenizer are measured in the ways that need it, others in the ways across tokenizers. Every
generation is a line of FILE, so a killed run goes on with the prompts that are not there; --table
shows the lines of all programs. `in_llama.mjs` says what `--node` is for.

Columns: tokens per pass of the target, passes of the draft model per pass of the target, speed by
the clock relative to the same program's plain decoding, with its 95 % interval over prompts, and
how many outputs are those of plain decoding. All are of whole generations, with the pass that reads
the prompt.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from lab.benchmarks.paired_lines import PLAIN, interval, table
from lab.benchmarks.peers.outcome import Asked, Run
from lab.benchmarks.real_models import opened
from lab.benchmarks.real_prompts import KINDS, prompts
from lab.fingerprint import model_fingerprint
from tokalign.runtime.chat import encode_chat, find_template
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

SAMPLED = ", T = 0.7"
"""Ends the names of ways that sample; plain decoding among them is `PLAIN` with it."""

Ways = dict[str, Callable[..., Run]]
"""By name: each takes an `Asked`, and `tokens` for a shorter answer than usual."""

_WARM_UP_TOKENS = 4


def transformers_ways(
    target: Path, draft: Path, tokens: int, threads: int, dtype: str, *, shared: bool
) -> Ways:
    """Plain, by prompt lookup and with the draft model, greedy and sampled. shared: both models
    have one tokenizer. Else it drafts with re-encoding (greedy) or in the common vocabulary
    (sampled), which is measured with its columns in order, too: see `sampled.py`."""
    import torch

    from lab.benchmarks.peers.in_transformers import Counted, Transformers

    torch.set_num_threads(threads)
    ours = Counted(target, dtype)
    sampling = {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 1.0}
    same = Counted(draft, dtype) if shared else None

    def pair(k: int | None = None) -> Transformers:
        # The library prunes a draft model's head to the common vocabulary: each way has its own.
        theirs = same or Counted(draft, dtype)
        return Transformers(
            ours, theirs, tokens=tokens, num_draft_tokens=k, endless=False, shared=shared
        )

    def sampled(
        pair: Transformers, asked: Asked, *, assisted: bool, tokens: int | None = None
    ) -> Run:
        torch.manual_seed(len(asked.ids))
        return pair.generate(asked, assisted=assisted, tokens=tokens, **sampling)

    greedy, few = pair(), pair(4)
    name = "draft model" if shared else "assisted across tokenizers"
    ways: Ways = {
        PLAIN: partial(greedy.generate, assisted=False),
        name: partial(greedy.generate, assisted=True),
        f"{name}, 4 ids": partial(few.generate, assisted=True),
        "prompt lookup, 10 ids": partial(
            greedy.generate, assisted=False, prompt_lookup_num_tokens=10
        ),
        PLAIN + SAMPLED: partial(sampled, greedy, assisted=False),
    }
    if shared:
        return ways | {name + SAMPLED: partial(sampled, greedy, assisted=True)}
    common, ordered = pair(), pair()
    by_id = sorted(ordered.draft.tokenizer.get_vocab().items(), key=lambda item: item[1])
    ordered.draft.tokenizer.get_vocab = lambda: dict(by_id)
    return ways | {
        "vocabulary intersection" + SAMPLED: partial(sampled, common, assisted=True),
        "the same, columns in order" + SAMPLED: partial(sampled, ordered, assisted=True),
    }


def mlx_ways(
    target: Path, draft: Path, tokens: int, dictionaries: Sequence[Path], *, shared: bool
) -> Ways:
    """mlx-lm and tokalign. mlx-lm refuses a draft model with another tokenizer."""
    from lab.benchmarks.peers.in_mlx import MlxLm, Tokalign
    from tokalign.api.assemble import assemble, load_models
    from tokalign.runtime.options import DraftingOptions

    ours, theirs = load_models([str(target), str(draft)], dtype="float32")
    own = MlxLm(target, ours, theirs, tokens=tokens)
    hybrid = DraftingOptions(method="hybrid", dictionary=dictionaries or None)
    free, joined = (
        Tokalign(assemble(ours, other, hybrid), tokens=tokens, endless=False)
        for other in (None, theirs)
    )
    ways: Ways = {PLAIN: partial(own.generate, drafted=0)}
    if shared:
        ways |= {f"draft model, {k} ids": partial(own.generate, drafted=k) for k in (2, 4)}
    return ways | {
        "tokalign, free sources": free.generate,
        "tokalign, hybrid with the draft": joined.generate,
    }


def dspark_ways(target: Path, tokens: int) -> Ways:
    """mlx-dspark: plain, and what it looks up, as it is by default."""
    from lab.benchmarks.peers.in_mlx import Dspark

    own = Dspark(target, tokens=tokens)
    return {
        PLAIN: partial(own.generate, "greedy_generate"),
        "lookup": partial(own.generate, "lookup_generate"),
    }


def asked_prompts(
    target: Path, per_kind: int, *, held_out: bool
) -> Iterator[tuple[str, int, Asked]]:
    """The first prompts of every kind, as the target's chat template renders them."""
    tokenizer: Tokenizer[TargetId] = read_tokenizer(target)
    template = find_template(target)
    assert template is not None, "a model that answers has one"
    taken = Counter[str]()
    for one in prompts(held_out=held_out):
        taken[one.kind] += 1
        if taken[one.kind] <= per_kind:
            messages = [{"role": "user", "content": one.text}]
            ids = encode_chat(tokenizer, template, messages)
            yield one.kind, one.number, Asked(one.text, [int(token) for token in ids])


def in_python(ways: Ways, left: Sequence[tuple[str, int, Asked]]) -> Iterator[dict[str, Any]]:
    """A line for each generation."""
    for way in ways.values():
        way(left[0][2], tokens=_WARM_UP_TOKENS)  # tables are made now
    for turn, (kind, number, asked) in enumerate(left):
        names = list(ways)
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            run = ways[name](asked)
            yield {"kind": kind, "number": number, "condition": name, **run._asdict()}


def in_node(
    command: Sequence[str], left: Sequence[tuple[str, int, Asked]]
) -> Iterator[dict[str, Any]]:
    """The lines of `in_llama.mjs`."""
    given = json.dumps([{"kind": k, "number": n, "ids": asked.ids} for k, n, asked in left])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdin.write(given)
        node.stdin.close()
        yield from map(json.loads, node.stdout)


def show(lines: Sequence[dict[str, Any]]) -> None:
    """Print one table of all programs."""
    head = ["program", "way", "prompts", "tokens per pass", "draft passes", "speed by the clock"]
    rows = []
    for peer, name in dict.fromkeys((line["peer"], line["condition"]) for line in lines):
        of = [x for x in lines if (x["peer"], x["condition"]) == (peer, name)]
        if error := next((line["error"] for line in of if "error" in line), None):
            rows.append([peer, name, "", f"refused: {error}", "", "", ""])
            continue
        sampled = name.endswith(SAMPLED)
        plain = {
            (x["kind"], x["number"]): x
            for x in lines
            if (x["peer"], x["condition"]) == (peer, PLAIN + SAMPLED * sampled)
        }
        of = [x for x in of if (x["kind"], x["number"]) in plain]  # or the run was killed before
        beside = [(x, plain[x["kind"], x["number"]]) for x in of]
        tokens, passes, seconds = (
            np.array([float(measure(x)) for x in of])
            for measure in (lambda x: len(x["ids"]), _of("passes"), _of("seconds"))
        )
        usual = np.array([p["seconds"] / len(p["ids"]) for _, p in beside])
        drafted = sum(x["draft_passes"] for x in of) / passes.sum()
        equal = sum(x["ids"] == p["ids"] for x, p in beside)
        cells = [peer, name, str(len(of)), interval(tokens, passes), f"{drafted:.2f}"]
        same = "drawn anew" if sampled else f"{equal} of {len(of)}"
        rows.append([*cells, interval(tokens * usual, seconds), same])
    print(table([*head, "equal to plain"], rows))


def _wanted(name: str, only: str) -> bool:
    return name == PLAIN or re.search(only, name) is not None


def _of(name: str) -> Callable[[dict[str, Any]], float]:
    return lambda line: float(line[name])


_PATH = click.Path(path_type=Path, exists=True)


@click.command()
@click.argument("target", type=_PATH)
@click.argument("draft", type=_PATH)
@click.option("--peer", type=click.Choice(["transformers", "mlx", "dspark", "llama"]))
@click.option("--results", type=click.Path(path_type=Path), required=True)
@click.option("--prompts-per-kind", "per_kind", default=3, show_default=True)
@click.option("--held-out", is_flag=True, help="Prompts that nothing was fitted to.")
@click.option("--tokens", default=64, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--only", default="", help="Only ways whose names match, and plain decoding.")
@click.option("--dtype", default="float32", show_default=True, help="Of Transformers' models.")
@click.option("--dictionary", "dictionaries", type=_PATH, multiple=True, help="For tokalign.")
@click.option("--node", type=_PATH, help="The folder in which node-llama-cpp is installed.")
@click.option("--gguf", type=_PATH)
@click.option("--draft-gguf", type=_PATH)
@click.option("--table", "shown", is_flag=True, help="Run nothing; show what is in the file.")
def main(
    target: Path,
    draft: Path,
    peer: str | None,
    results: Path,
    per_kind: int,
    held_out: bool,
    tokens: int,
    threads: int,
    only: str,
    dtype: str,
    dictionaries: Sequence[Path],
    node: Path | None,
    gguf: Path | None,
    draft_gguf: Path | None,
    shown: bool,
) -> None:
    """Measure a program on the prompts that are not in the file yet, and show the table."""
    about = {"models": [model_fingerprint(target), model_fingerprint(draft)], "tokens": tokens}
    lines = opened(results, about)
    done = {(x["kind"], x["number"]) for x in lines if x["peer"] == peer}
    left = [
        one for one in asked_prompts(target, per_kind, held_out=held_out) if one[:2] not in done
    ]
    if left and peer and not shown:
        shared = read_tokenizer(target).fingerprint == read_tokenizer(draft).fingerprint
        if peer == "llama":
            script = str(Path(__file__).with_name("in_llama.mjs"))
            words = [node, gguf, draft_gguf, tokens, threads, only]
            found = in_node(["node", script, *map(str, words)], left)
        else:
            if peer == "dspark":
                ways = dspark_ways(target, tokens)
            elif peer == "mlx":
                ways = mlx_ways(target, draft, tokens, dictionaries, shared=shared)
            else:
                ways = transformers_ways(target, draft, tokens, threads, dtype, shared=shared)
            found = in_python({n: w for n, w in ways.items() if _wanted(n, only)}, left)
        with results.open("a") as file:
            for line in found:
                lines.append({"peer": peer, **line})
                print(json.dumps(lines[-1]), file=file, flush=True)
                print(peer, line["kind"], line["number"], line["condition"], flush=True)
    show([line for line in lines if line["kind"] in KINDS])


if __name__ == "__main__":
    main()
