"""Whether `tokalign decode` ends, with a preloaded OpenBLAS: 300 tokens, plain and drafted.

    LD_PRELOAD=/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0 \\
        python -m lab.benchmarks.endings --target smollm2 --runs 50

Each run is a process of its own, with one OpenBLAS thread or two. A run has ended if the process is
gone within `PATIENCE` seconds after its statistics. Record: `lab/results/endings.md`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from time import perf_counter

PATIENCE = 60.0
CONDITIONS = [(method, threads) for method in ("plain", "auto") for threads in (1, 2)]
PROMPT = "Tell a long story about a lighthouse."


def waited(target: str, method: str, threads: int) -> float:
    """Seconds from the statistics of the output to the end of the process.

    Raises: subprocess.TimeoutExpired for a process that does not end.
    """
    words = ["decode", "--target", target, "--method", method, "--prompt", PROMPT, "-m", "300"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tokalign", *words],
        env=os.environ | {"OPENBLAS_NUM_THREADS": str(threads)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("finished "):  # the last line of the statistics
            break
    began = perf_counter()
    try:
        if process.wait(PATIENCE):
            raise RuntimeError(f"it failed with status {process.returncode}")
    finally:
        process.kill()
    return perf_counter() - began


def main() -> None:
    """Run all conditions in turn, and print how many ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--runs", type=int, default=50)
    given = parser.parse_args()
    ended, slowest = Counter[tuple[str, int]](), 0.0
    for run in range(given.runs):
        condition = CONDITIONS[run % len(CONDITIONS)]
        slowest = max(slowest, waited(given.target, *condition))
        ended[condition] += 1
        print(f"run {run + 1}: {condition}, slowest end {slowest:.2f} s", flush=True)
    for (method, threads), count in ended.items():
        print(f"{method}, {threads} threads: {count} runs, all ended")


if __name__ == "__main__":
    main()
