"""Measure tokalign on a GPU (or any machine), in steps that fit into a few minutes each.

    python -m lab.gpu.measure curves --shape CONFIG.json [--model FOLDER] --out FILE
    python -m lab.gpu.measure answers TARGET DRAFT --out FILE [--dtype bfloat16] [--limit N]

`curves`: seconds of passes of 1 to 64 rows after contexts of 128 to 32k ids, of a model or of a
model's shape with random weights (`--shape`, a config.json; `lab/gpu/` has Bielik 11B's in 4 and 16
bits). `answers`: plain and drafted decoding of the real prompts by the clock, and after how many
ids they differ, if they do; in half precision they may. FILE gets a JSON object a line. Everything
runs where mlx runs by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import mlx.core as mx

from lab.benchmarks.real_models import Condition, Runner
from lab.benchmarks.real_prompts import prompts
from tokalign.api.assemble import load_models
from tokalign.evaluate.calibrate import time_passes
from tokalign.evaluate.timed_passes import TimedPasses
from tokalign.runtime.mlx.machine import device_name, mlx_version, peak_memory
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.shape import fill, model_of_shape
from tokalign.runtime.mlx.weights import load_weights, weight_bytes
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import common_prefix

ROWS = (1, 2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48)
CONTEXTS = (128, 1024, 4096, 8192, 32768)

out_option = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Lines are appended to it."
)


@click.group()
def main() -> None:
    """See the module."""


@main.command()
@click.option("--shape", "shapes", multiple=True, type=click.Path(path_type=Path, exists=True))
@click.option("--model", "folders", multiple=True, type=click.Path(path_type=Path, exists=True))
@click.option("--context", "contexts", multiple=True, type=int, default=CONTEXTS)
@click.option("--dtype", help="Number format of a model's weights; default: that of its files.")
@click.option("--budget", default=20.0, show_default=True, help="Seconds of each curve.")
@out_option
def curves(
    shapes: Sequence[Path],
    folders: Sequence[Path],
    contexts: Sequence[int],
    dtype: str | None,
    budget: float,
    out: Path,
) -> None:
    """Seconds of passes by their rows and the length of the context."""
    for path in (*shapes, *folders):
        if path in folders:
            model, _ = load_weights(path, dtype=dtype)
        else:
            model = model_of_shape(json.loads(path.read_text()), dtype=dtype)
            fill(model)
        room = TargetModelSession(model).context_length
        for length in (length for length in contexts if length + max(ROWS) <= room):
            passes = TimedPasses(model, None, length)
            passes.read_context(budget)
            times = time_passes(passes.passes(ROWS), budget, lambda _: None, perf_counter)
            write(
                out,
                {
                    "what": "curve",
                    "model": path.stem,
                    "bytes": weight_bytes(model),
                    "context": passes.length,
                    "seconds": {str(rows): median(seconds) for rows, seconds in times.items()},
                },
            )
        del model
        mx.clear_cache()


@main.command()
@click.argument("target", type=click.Path(path_type=Path, exists=True))
@click.argument("draft", type=click.Path(path_type=Path, exists=True))
@click.option("--dtype", help="Number format to compute in; default: that of the files.")
@click.option("--limit", default=16, show_default=True, help="How many prompts.")
@click.option("--tokens", default=128, show_default=True)
@click.option("--temp", default=0.0, show_default=True)
@out_option
def answers(
    target: Path, draft: Path, dtype: str | None, limit: int, tokens: int, temp: float, out: Path
) -> None:
    """Plain and drafted decoding by turns, prompt by prompt."""
    ours, theirs = load_models([str(target), str(draft)], dtype=dtype)
    free = DraftingOptions(method="hybrid")
    conditions = (
        Condition("plain", DraftingOptions(method="plain")),
        Condition("free sources", free),
        Condition("hybrid with the draft", free, drafts=True),
    )
    runner = Runner(ours, theirs, temp, tokens, out)
    for asked in prompts()[:limit]:
        lines = runner.run(asked, *conditions)
        plain = lines[0]
        for line in lines:
            write(
                out,
                {
                    "what": "answer",
                    "models": [target.name, draft.name],
                    "dtype": dtype,
                    "temp": temp,
                    "prompt": f"{asked.kind} {asked.number}",
                    "condition": line["condition"],
                    "tokens_per_pass": round(sum(line["tokens"]) / len(line["tokens"]), 3),
                    "speed": round(plain["seconds"] / line["seconds"], 3),
                    "host_ms": median(line["host_ms"]),
                    "ids": len(line["ids"]),
                    "equal_ids": common_prefix(plain["ids"], line["ids"]),
                },
            )


def write(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line, with the machine that it was measured on."""
    about = {"device": device_name(), "mlx": mlx_version(), "peak_gb": round(peak_memory(), 2)}
    with path.open("a") as file:
        print(json.dumps({**line, **about}), file=file)
    click.echo(json.dumps(line))


if __name__ == "__main__":
    main()
