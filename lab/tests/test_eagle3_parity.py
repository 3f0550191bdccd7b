"""Our EAGLE-3 network beside that of `mlx-vlm` 0.7.10: the same logits.

Without that package (`pip install --no-deps mlx-vlm==0.7.10`) nothing is compared. It takes the
target's embedding where its shape is that of the drafter's own, so the drafter with an embedding of
its own has another width here.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from eagle_drafters import eagle_config, known_ids, random_eagle, write_eagle
from mlx.utils import tree_flatten
from random_models import random_model

from tokalign.runtime.mlx.beam_search import of_beams
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import taps_of
from tokalign.tokenizer.vocabulary import TargetId

DRAFTED, PROMPT = 4, 21
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "all ids": ({"draft_vocab_size": 96}, {}),
    "several layers": ({"num_hidden_layers": 3}, {}),
    "norms": ({"norm_before_residual": True, "norm_before_fc": True}, {}),
    "own embedding": ({"hidden_size": 24, "target_hidden_size": 32}, {"embedding": True}),
    "8 bits": ({"quantization": {"group_size": 32, "bits": 8}}, {}),
    "4 bits": ({"quantization": {"group_size": 32, "bits": 4}}, {}),
    "biases": ({"attention_bias": True, "head_dim": 16}, {}),
}


def reference_of(theirs: Any, model: Any, config: dict[str, Any], weights: Any) -> Any:
    """Their network for a configuration of ours. They know the packaging of speculators."""
    made = theirs.Model(theirs.ModelConfig.from_dict(config))
    if quantization := config["transformer_layer_config"].get("quantization"):
        nn.quantize(
            made, **quantization, class_predicate=lambda path, _: f"{path}.scales" in weights
        )
    made.load_weights([*made.sanitize(dict(weights)).items()], strict=False)
    made.reset(model)
    return made


def nested(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration in the packaging of speculators, with ids of layers' inputs."""
    own = {key: value for key, value in config.items() if key != "eagle_config"}
    layers = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    kept = ("norm_before_residual", "norm_before_fc", "draft_vocab_size", "target_hidden_size")
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {"model_type": "llama", **own},
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers],
        **{key: config[key] for key in kept if key in config},
    }


@pytest.mark.parametrize("layout", ["SafeAILab", "speculators"])
@pytest.mark.parametrize("network", NETWORKS)
def test_logits_are_those_of_mlx_vlm(network: str, layout: str, tmp_path: Path) -> None:
    theirs: Any = pytest.importorskip("mlx_vlm.speculative.drafters.eagle3")
    model, (changed, own) = random_model(layers=3), NETWORKS[network]
    flat = eagle_config(model, rope_theta=5000.0, **changed)
    drafter = random_eagle(model, flat, **own)
    weights = dict(tree_flatten(drafter.parameters()))
    if flat["draft_vocab_size"] < 96:
        weights["d2t"] = known_ids(flat) - mx.arange(flat["draft_vocab_size"])
    reference = reference_of(theirs, model, nested(flat), weights)
    config, first = (flat, "midlayer.") if layout == "SafeAILab" else (nested(flat), "layers.0.")
    config = {**config, "vocab_size": 96}
    ours = read_drafter(write_eagle(tmp_path, drafter, config, first), model)
    compare(model, ours, reference, flat)


def compare(model: Any, ours: Any, reference: Any, config: dict[str, Any]) -> None:
    """Over rounds that accept nothing, a part and all of a chain."""
    watch = partial(taps_of, layers=config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    target, features = (TargetModelSession(model, watch=watch) for _ in range(2))
    session, logits = ours.session(target), reference._logits
    known = mx.arange(96) if config["draft_vocab_size"] == 96 else known_ids(config)
    mx.random.seed(1)
    ids: list[TargetId] = mx.random.randint(0, 90, (PROMPT,)).tolist()
    expected: list[mx.array] = []
    reference._logits = lambda hidden: expected.append(logits(hidden)[0, -1]) or logits(hidden)
    target.logits(ids)
    features.logits(ids)
    accepted, drafted = 0, mx.array([[]])
    for count in (0, 4, 2, 0, 3, 4, 1):
        begin = 0 if len(ids) == PROMPT else len(ids) - 1 - accepted
        ids.append(TargetId((13 * len(ids)) % 90))
        _, hidden = features.take_taps(ids, begin)
        assert hidden is not None
        told = {"sampler": None, "greedy": True}
        if len(ids) == PROMPT + 1:
            prompt = mx.array([ids[:-1]])
            reference.prefill_from_target_hidden(prompt, hidden[None], int(ids[-1]), **told)
        else:
            new = [int(token) for token in ids[-1 - accepted :]]
            reference.accept_verified_tokens(hidden[None], drafted, accepted, new, **told)
        drafted = reference.draft_block(int(ids[-1]), hidden, None, DRAFTED + 1, **told)
        chain: list[TargetId] = drafted[0].tolist()
        begun = session.begin(ids)
        assert begun is not None
        state, found = begun
        for place, token in enumerate(chain):
            logprobs = found[0] - found[0].logsumexp()
            theirs = expected[place] - expected[place].logsumexp()
            assert mx.allclose(logprobs[known], theirs, atol=1e-5)
            assert found.shape == (1, 96)
            if place + 1 < len(chain):
                state, found = session.step(of_beams(state, mx.array([0])), mx.array([token]))
        expected.clear()
        target.logits([*ids, *chain], last=1 + len(chain))
        ids, accepted = [*ids, *chain[:count]], count
        features.logits(ids)
