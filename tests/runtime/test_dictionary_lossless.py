"""With one dictionary or several, alone or in a hybrid, the output is the target's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from places import DEMO
from small_tables import table_of

from tokalign.build.counting.windows import TokenNgrams
from tokalign.build.dictionary.backoff import make_table
from tokalign.build.dictionary.ngram_tree import grow_tree
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.tables.dictionary import Dictionaries, Dictionary

TARGET_FOLDER = DEMO / "target"
PROMPT, TOKENS = "Wczoraj rano", 36
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95, seed=4)}


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return LanguageModel.from_folder(TARGET_FOLDER, dtype="float32")


def generate(target: LanguageModel, sampling: Sampling, **how: Any) -> tuple[list[int], int]:
    """The ids emitted, and how many of them were drafted."""
    decoder = Decoder(target=target, drafting=Drafting(**how), sampler=sampling)
    prompt = decoder.prompt(PROMPT, use_template=False)
    generation = Generation(decoder, prompt, max_tokens=TOKENS)
    drafted = sum(piece.from_draft for piece in generation)
    return list(generation.context.emitted), drafted


def tables(text: list[int], size: int) -> dict[str, Dictionary]:
    """Tables of the text with every fourth stretch changed, so that some proposals are wrong."""
    spoilt = [token if i % 12 < 9 else (token + 1) % size for i, token in enumerate(text)]
    orders, lines = [], [spoilt[i : i + 12] for i in range(0, len(spoilt), 6)]
    for n in range(1, 5):
        windows = [tuple(line[i : i + n]) for line in lines for i in range(len(line) - n + 1)] * 9
        ids, counts = np.unique(np.array(windows, dtype=np.uint16), axis=0, return_counts=True)
        orders.append(TokenNgrams(ids, counts))
    one = make_table(grow_tree(orders), vocabulary_size=size, max_bytes=50_000)
    other = table_of({tuple(line[:2]): (tuple(line[2:6]), 0.8) for line in lines if line[5:]}, size)
    both = Dictionaries({"dictionary:one": one, "dictionary:other": other})
    return {"counted": one, "written": other, "both": both}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("method", ["dictionary", "hybrid"])
@pytest.mark.parametrize("kind", ["counted", "written", "both"])
@pytest.mark.slow
def test_a_dictionary_changes_the_rounds_and_not_the_output(
    target: LanguageModel, kind: str, method: str, sampling: str
) -> None:
    plain, _ = generate(target, SAMPLINGS[sampling], method="plain")
    table = tables(plain, len(target.tokenizer.vocabulary))[kind]
    emitted, drafted = generate(target, SAMPLINGS[sampling], method=method, dictionary=table)
    assert emitted == plain
    assert 0 < drafted < len(plain)
