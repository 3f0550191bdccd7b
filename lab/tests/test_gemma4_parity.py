"""Our Gemma 4 assistants beside those of `mlx-vlm` 0.7.10: the same logits.

Without that package (`pip install --no-deps mlx-vlm==0.7.10`) nothing is compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import zoo
from assistants import ORDERED, assistant_config, random_assistant, write_assistant
from mlx_lm.models.cache import KVCache

from tokalign.runtime.mlx.beam_search import of_beams
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.hidden_states import HiddenStates
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.tokenizer.vocabulary import TargetId


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("prompt", [21, 83])
def test_logits_are_those_of_mlx_vlm(prompt: int, ordered: bool, tmp_path: Path) -> None:
    """Over rounds that accept nothing, a part and all of a chain, within a window and past it."""
    theirs: Any = pytest.importorskip("mlx_vlm.speculative.drafters.gemma4_assistant")
    target = zoo.zoo_model("gemma4_text")
    config = assistant_config(target, **(ORDERED if ordered else {}))
    assistant = random_assistant(target, ordered=ordered)
    ours = read_drafter(write_assistant(tmp_path, assistant, config), target)
    reference = theirs.Model(theirs.ModelConfig.from_dict(config))
    weights = mx.load(str(tmp_path / "model.safetensors"))
    assert isinstance(weights, dict)
    reference.load_weights([*weights.items()])
    reference.reset(target)
    session = TargetModelSession(target, watch=ours.watch)
    drafter = ours.session(session)
    ids = [TargetId(n * 11 % zoo.VOCABULARY) for n in range(prompt)]
    session.logits(ids)
    for accepted in (0, 4, 2, 0, 3):
        ids.append(TargetId(len(ids) * 13 % zoo.VOCABULARY))
        states, cache = HiddenStates(target), [KVCache(), KVCache()]
        states.model(mx.array([ids[:-1]]), cache=cache)
        kinds = ("sliding_attention", "full_attention")
        shared = {
            kind: (of.keys[..., : of.offset, :], of.values[..., : of.offset, :])
            for kind, of in zip(kinds, cache, strict=True)
        }
        reference.set_shared_kv(shared, len(ids) - 1)
        token, hidden = mx.array([ids[-1:]]), states.take()[None, -1:]
        begun, chain = drafter.begin(ids), list[TargetId]()
        assert begun is not None
        state, found = begun
        while True:
            embedded = target.model.embed_tokens(token) * target.model.embed_scale
            inputs = mx.concatenate([embedded, hidden], axis=-1)
            hidden, logits = reference(inputs, shared, mx.array([[len(ids) - 1]]))
            # Theirs has a number below all others where ours has none.
            known = found[0] > -mx.inf
            assert int(known.sum()) == (20 if ordered else zoo.VOCABULARY)
            assert mx.allclose(
                mx.where(known, found[0] - logits[0, -1], 0), mx.array(0.0), atol=1e-5
            )
            assert not ordered or (logits[0, -1] <= logits[0, -1].min()).sum() == 44
            if len(chain) == 4:
                break
            chain.append(TargetId(int(mx.argmax(logits[0, -1]).item())))
            token = mx.array([chain[-1:]])
            state, found = drafter.step(of_beams(state, mx.array([0])), mx.array(chain[-1:]))
        session.logits([*ids, *chain], last=5)
        ids += chain[:accepted]
