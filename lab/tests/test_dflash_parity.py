"""Our DFlash network beside `dflash` 0.1.0: the same logits.

Without that package (`pip install --no-deps dflash==0.1.0`) nothing is compared. Where a round
accepts nothing and a layer's window is full, the two differ: the ring that `dflash` keeps is masked
as if its keys were in order, so the newest key is left out instead of the oldest. Such rounds are
not compared.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from block_drafters import block_config, random_block_drafter, write_block_drafter
from random_models import random_model

from tokalign.runtime.mlx.dflash_session import DFlashSession
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import taps_of
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

TAPS, PROMPT = [0, 1], 33
WINDOWS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 24},
    "8 bits": {"quantization": {"group_size": 32, "bits": 8}},
    "4 bits": {"quantization": {"group_size": 32, "bits": 4}},
    "both": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
}


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("accepted", [(0, 5, 0, 1, 3), (3, 1, 5, 2, 4)])
def test_logits_are_those_of_the_authors(
    accepted: tuple[int, ...], windows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over rounds that accept nothing, a part and all of a block, by chains and by trees."""
    theirs: Any = pytest.importorskip("dflash.model_mlx")
    monkeypatch.setattr(theirs, "snapshot_download", lambda folder, **_: folder)
    if "layer_types" in WINDOWS[windows] and 0 in accepted:
        pytest.skip("the ring of dflash is out of order")
    model, shape = random_model(), WINDOWS[windows]
    drafter = random_block_drafter(model, **shape)
    folder = write_block_drafter(tmp_path, drafter, block_config(model, **shape))
    ours = read_drafter(folder, model)
    whole = {name: value for name, value in shape.items() if name != "quantization"}
    write_block_drafter(folder, random_block_drafter(model, **whole), block_config(model, **whole))
    reference = theirs.load_draft(str(folder))
    if quantization := shape.get("quantization"):  # which it does not read
        nn.quantize(reference, **quantization)
    reference.bind(model)
    own_cache = reference.make_cache()
    mx.random.seed(1)
    ids: list[TargetId] = mx.random.randint(0, 90, (80,)).tolist()
    watch = partial(taps_of, layers=TAPS)
    features, target = (TargetModelSession(model, watch=watch) for _ in range(2))
    session, n = DFlashSession(ours, target), PROMPT
    features.logits(ids[:n])
    target.logits(ids[:n])
    for number, count in enumerate(accepted):
        begin, hidden = features.take_taps(ids[: n + 1], 0)
        assert hidden is not None
        if number == 0 and windows == "sliding":  # as its prefill does
            hidden, begin = hidden[-23:], n - 23
            for layer in own_cache:
                layer.offset = begin
        block = mx.array([[ids[n], *[1] * 5]])
        expected = reference(block, hidden[None], own_cache, logits_start=1)[0]
        listed = session.draft(ids[: n + 1], 96).positions
        logprobs = expected - expected.logsumexp(axis=-1, keepdims=True)
        found = mx.array([[of for _, of in sorted(row)] for row in listed])
        assert mx.allclose(found, logprobs, atol=1e-5)
        right = ids[n + 1 : n + 1 + count]
        if number % 2:
            wrong = (TargetId(91), TargetId(92))
            parents = (*range(-1, count - 1), -1, count)
            tree = TokenTree((*right, *wrong), parents, ("it",) * (count + 2))
            target.tree(ids[: n + 1], tree)
        else:
            proposed = [*right, *[TargetId(91)] * (5 - count)]
            target.logits([*ids[: n + 1], *proposed], last=6)
        features.logits(ids[: n + 1 + count])
        n += 1 + count
