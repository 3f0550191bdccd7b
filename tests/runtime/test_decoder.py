"""Where an output ends: alike for every way to load a model, and as in mlx-lm if that is asked."""

from __future__ import annotations

import json
from pathlib import Path

import mlx_lm
import pytest
from random_models import random_model, write_model
from tokenizer_files import added

import tokalign
from tokalign.api.assemble import load_decoder
from tokalign.api.objects import language_model
from tokalign.errors import UsageError
from tokalign.runtime.options import DraftingOptions

PLAIN = DraftingOptions(method="plain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`</s>` is the tokenizer's end, id 5 the configuration's; two further tokens end a text."""
    folder = write_model(
        tmp_path_factory.mktemp("model"),
        vocabulary_size=300,
        make=lambda size, seed: random_model(seed, vocabulary=size + 3),
    )
    document = json.loads((folder / "tokenizer.json").read_text())
    size = len(document["model"]["vocab"])
    ends = "<|endoftext|>", "<|im_end|>", "<|other|>"
    document["added_tokens"] += [added(size + i, spelling) for i, spelling in enumerate(ends)]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5]}))
    return folder


def test_every_way_to_load_a_model_ends_at_the_same_ids(folder: Path) -> None:
    model, tokenizer = tokalign.load(str(folder))
    size = len(tokenizer) - 3
    decoder = load_decoder(str(folder), None, PLAIN)
    ends = decoder.target.stop_ids
    assert ends == {0, 5, size, size + 1}
    assert language_model(model, tokenizer, "tokenizer").stop_ids == ends
    assert language_model(model, folder, "tokenizer").stop_ids == ends


def test_one_switch_gives_the_ends_of_mlx_lm(folder: Path) -> None:
    theirs = mlx_lm.load(str(folder))[1].eos_token_ids
    assert theirs == {0, 5}
    model, tokenizer = tokalign.load(str(folder), ends="mlx-lm")
    decoder = load_decoder(str(folder), None, PLAIN, ends="mlx-lm")
    assert decoder.target.stop_ids == theirs
    assert language_model(model, tokenizer, "tokenizer").stop_ids == theirs


def test_other_ends_are_refused(folder: Path) -> None:
    for load in (tokalign.load, lambda name, ends: load_decoder(name, None, PLAIN, ends=ends)):
        with pytest.raises(UsageError, match="ends has to be 'all' or 'mlx-lm', not 'both'"):
            load(str(folder), ends="both")
