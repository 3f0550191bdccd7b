"""Our MTP layers beside those of `mlx-vlm` 0.7.10 (Qwen3.5) and `mtplx` 2.12.2 (GLM-4): the same
logits, within 1e-5 of the largest.

Without those packages (`pip install --no-deps`) nothing is compared. Both keep what was read of
guesses that were accepted; here they read the target's own states instead, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import zoo
from mtp_layers import published_weights, random_mtp, write_mtp

from tokalign.runtime.mlx.beam_search import of_beams
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.tokenizer.vocabulary import TargetId

Read = Callable[[list[int], mx.array], tuple[mx.array, mx.array]]
"""(ids, states f[n, width]) -> the logits f[vocabulary] after the last one, outputs f[n, width]."""


def of_mlx_vlm(target: Any, weights: dict[str, mx.array], _: Path) -> tuple[Read, Any]:
    theirs: Any = pytest.importorskip("mlx_vlm.speculative.drafters.qwen3_5_mtp")
    config = {"text_config": vars(target.language_model.args)}
    made = theirs.Model(theirs.ModelConfig.from_dict(config))
    own = {name: of for name, of in weights.items() if name.startswith("mtp.")}
    made.load_weights([*made.sanitize(own).items()])
    cache = made.reset(target)

    def read(ids: list[int], states: mx.array) -> tuple[mx.array, mx.array]:
        made._next_position = cache[0].offset
        outputs = made._forward_tokens(mx.array([ids]), states[None], mx.int32)
        return made._lm_head_fn(outputs)[0, -1], outputs[0]

    return read, cache[0]


def of_mtplx(target: Any, _: Any, folder: Path) -> tuple[Read, Any]:
    theirs: Any = pytest.importorskip("mtplx.glm_mtp_patch")
    config = {"model_type": target.model_type, "num_nextn_predict_layers": 1}
    lent = zoo.make_model(target.model_type)  # they change it
    config["num_hidden_layers"] = len(lent.layers)
    weights = dict(mx.load(str(folder / "model.safetensors")))
    weights["lm_head.weight"] = lent.lm_head.weight
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    assert theirs.inject_glm_mtp_support(lent, folder, config)
    cache = lent.make_mtp_cache()

    def read(ids: list[int], states: mx.array) -> tuple[mx.array, mx.array]:
        logits, outputs = lent.mtp_forward(
            states[None], mx.array([ids]), mtp_cache=cache, return_hidden=True
        )
        return logits[0, -1], outputs[0]

    return read, cache[0]


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("qwen3_5", of_mlx_vlm),
        ("qwen3_5_moe", of_mlx_vlm),
        ("glm4_moe", of_mtplx),
        ("glm4_moe_lite", of_mtplx),
    ],
)
def test_logits_are_those_of_others(name: str, reference: Any, tmp_path: Path) -> None:
    """Over rounds that accept nothing, a part and all of a chain."""
    target = zoo.zoo_model(name)
    weights = published_weights(random_mtp(target), target)
    folder = write_mtp(tmp_path, weights, target)
    ours = read_drafter(folder, target)
    read, cache = reference(target, weights, folder)
    session = TargetModelSession(target, watch=ours.watch)
    features = TargetModelSession(target, watch=ours.watch)
    drafter = ours.session(session)
    ids = [TargetId(n * 11 % zoo.VOCABULARY) for n in range(17)]
    end = 0  # of the ids whose states theirs has read
    for accepted in (0, 4, 2, 0, 3, 4, 1):
        session.logits(ids)
        features.logits(ids)
        ids.append(TargetId(len(ids) * 13 % zoo.VOCABULARY))
        cache.trim(cache.offset - end)
        begin, states = features.take_taps(ids, end)
        assert states is not None
        assert begin == end
        theirs, outputs = read(ids[end + 1 :], states)
        end = len(ids) - 1
        begun = drafter.begin(ids)
        assert begun is not None
        state, found = begun
        chain: list[TargetId] = []
        while True:
            size = mx.abs(theirs).max().item()
            assert mx.abs(found[0] - theirs).max().item() <= 1e-5 * size
            if len(chain) == 4:
                break
            chain.append(TargetId(int(mx.argmax(theirs).item())))
            theirs, outputs = read(chain[-1:], outputs[-1:])
            state, found = drafter.step(of_beams(state, mx.array([0])), mx.array(chain[-1:]))
        session.logits([*ids, *chain], last=5)
        ids += chain[:accepted]
