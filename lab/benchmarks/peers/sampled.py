"""Does Transformers' sampled assisted generation across tokenizers keep the target's distribution?

    pip install -e '.[mlx,peers]'
    python -m lab.benchmarks.peers.sampled --target MODEL --draft MODEL --prompts FILE

With `do_sample` and two tokenizers, Transformers uses universal speculative decoding: the draft
model samples among the tokens that both vocabularies have, and each is accepted with probability
min(1, p/q). If q is what the draft sampled from, the output has the target's distribution, and the
mean negative log-likelihood of outputs under the target is that of plain sampling. The conditions:

* plain: the target alone.
* as it is: the library as it was installed.
* columns in order: the same, but with the draft's vocabulary sorted by id before the library makes
  its tables of it.

Why the order should matter, read in the source of 5.23.0: the pruned output head of the draft has
its columns in the order of `get_vocab()` (`assistant_overlap_token_ids`), and `get_target_logits`
takes them to be in the order of ids. `get_vocab()` of a fast tokenizer has no order. So q belongs
to other tokens than those that were sampled.

The interval is a bootstrap over prompts, 95 %. All runs are at one temperature, without top-k and
top-p.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers.generation.candidate_generator import AssistantVocabTranslatorCache

from lab.benchmarks.paired_lines import bounds
from lab.benchmarks.peers.in_transformers import Counted, Transformers
from lab.benchmarks.peers.outcome import Asked
from tokalign.cli.texts import read_texts
from tokalign.runtime.chat import encode_prompt
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@contextmanager
def sorted_vocabulary(tokenizer: Any) -> Iterator[None]:
    """Within this context the tokenizer lists its vocabulary in the order of ids."""
    by_id = dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    with patch.object(tokenizer, "get_vocab", lambda: by_id):
        yield


@click.command()
@click.option("--target", type=_FOLDER, required=True)
@click.option("--draft", type=_FOLDER, required=True)
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--limit", default=12, show_default=True)
@click.option("--tokens", default=96, show_default=True)
@click.option("--num-draft-tokens", default=2, show_default=True)
@click.option("--temp", default=0.8, show_default=True)
@click.option("--threads", default=torch.get_num_threads(), show_default=True, help="PyTorch's.")
def main(
    target: Path,
    draft: Path,
    prompts: Path,
    limit: int,
    tokens: int,
    num_draft_tokens: int,
    temp: float,
    threads: int,
) -> None:
    """Print tokens per pass and the target's negative log-likelihood of its outputs."""
    torch.set_num_threads(threads)
    tokenizer: Tokenizer[TargetId] = read_tokenizer(target)
    texts = read_texts(prompts, limit=limit)
    asked = [Asked(text, [int(one) for one in encode_prompt(tokenizer, text)]) for text in texts]
    table = Table("", "tokens per pass", "nats per token under the target")
    for name in ("plain", "as it is", "columns in order"):
        AssistantVocabTranslatorCache._cache.clear()
        models = Counted(target), Counted(draft)
        pair = Transformers(*models, tokens=tokens, num_draft_tokens=num_draft_tokens)
        ordered = name == "columns in order"
        passes, nats = 0, []
        with sorted_vocabulary(pair.draft.tokenizer) if ordered else nullcontext():
            for number, one in enumerate(asked):
                torch.manual_seed(number)
                options: dict[str, Any] = {
                    "do_sample": True,
                    "temperature": temp,
                    "top_k": 0,
                    "top_p": 1.0,
                }
                run = pair.generate(one, assisted=name != "plain", **options)
                passes += run.passes
                nats.append(float(np.mean(pair.negative_log_likelihood(one.ids, run.ids))))
        mean, (low, high) = float(np.mean(nats)), bounds(nats, np.ones(len(nats)))
        per_pass = tokens * len(asked) / passes
        table.add_row(name, f"{per_pass:.2f}", f"{mean:.2f} ({low:.2f} to {high:.2f})")
    Console().print(table)
    Console().print(f"Transformers {transformers.__version__}, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
