"""DFlash 2, DSpark and the packagings: what they guess, and that it never changes the output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import zoo
from block_drafters import (
    KINDS,
    block_config,
    dspark_config,
    nested_config,
    random_block_drafter,
    second_config,
    write_block_drafter,
)
from drafter_cases import PROMPT, SAMPLINGS
from mlx.utils import tree_flatten
from random_models import random_model, write_model

from tokalign.errors import BundleError, IncompatibleError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.growth import BlockAnswer
from tokalign.runtime.draft.trained import BLOCK, BlockDrafter
from tokalign.runtime.mlx.dflash import DFlashDrafter
from tokalign.runtime.mlx.dflash_session import DFlashSession, Guess
from tokalign.runtime.mlx.drafter_folder import named_drafter, read_drafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import taps_of
from tokalign.runtime.mlx.weights import embedding_of
from tokalign.runtime.rounds import Context
from tokalign.tables.dflash_config import DFlashConfig
from tokalign.tokenizer.vocabulary import TargetId


def opened() -> TargetModelSession:
    return TargetModelSession(random_model(), watch=partial(taps_of, layers=(0, 1)))


def guessed(network: DFlashDrafter, *ids: int, sampler: Sampling | None = None) -> Guess:
    """What follows the prompt and these ids."""
    session, text = opened(), [TargetId(one) for one in (*PROMPT, *ids)]
    session.logits(text[:-1])
    told: list[Sequence[TargetId]] = []
    guess = DFlashSession(network, session).draft(text, 5, sampler, told.append)
    assert told == [text], "what is done meanwhile is done once"
    return guess


@pytest.mark.parametrize("sampling", [None, "sampled"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "DFlash"])
def test_alone_each_guess_follows_the_one_before(kind: str, sampling: str | None) -> None:
    """The chain is that of the most probable ids after those before, by the network itself."""
    model = random_model()
    network = random_block_drafter(model, config=KINDS[kind](model))
    sampler = None if sampling is None else SAMPLINGS[sampling]
    session, ids = opened(), [TargetId(one) for one in (*PROMPT, 9)]
    session.logits(ids[:-1])
    drafter = BlockDrafter(DFlashSession(network, session), sampler=sampler)
    chain = drafter.find(Context(ids), 6).tree.ids
    other = opened()
    other.logits(ids[:-1])
    _, taps = other.take_taps(ids, 0)
    hidden = network.hidden(9, taps, network.new_cache(0))
    logits, last = network.own_logits(hidden), 9
    assert len(chain) == network.config.guesses == 6 - (kind[:6] == "DFlash")
    for place, token in enumerate(chain):
        at = slice(place, place + 1)
        row = network.after(hidden[at], logits[at], mx.array([[last]]))[0]
        if sampler is not None:
            row = sampler.expect(row, [len(ids) + place])
        assert token == row.argmax().item()
        last = token


def test_a_linked_answer_goes_on_from_what_was_read() -> None:
    a, b, c, d = map(TargetId, (1, 2, 3, 4))
    block = Guess([[(a, -0.1)], [(b, -0.5)], [(c, -0.5)]], [{a: [(d, -0.2)]}, {d: [(a, -0.3)]}])
    answer = BlockAnswer(block.positions, BLOCK, block.links)

    def expected(*path: TargetId) -> list[TargetId]:
        state = answer.root
        for token in path:
            state = None if state is None else answer.after(state, token)
        return [] if state is None else [token for token, _ in answer.expect(state)]

    assert expected() == [a]
    assert expected(a) == [d]
    assert expected(c) == [b], "whatever comes before"
    assert expected(a, d) == [a]
    assert expected(a, b) == [c]
    assert expected(c, d) == [a]
    assert expected(a, d, a) == []


def test_a_nested_configuration_is_the_same_network(tmp_path: Path) -> None:
    model = random_model()
    for kind, config in (
        ("dflash", block_config(model)),
        ("dflash2", second_config(model)),
        ("dspark", dspark_config(model)),
    ):
        drafter = random_block_drafter(model, config=config)
        nested = nested_config(config, kind, max_anchors=3072)
        folder = write_block_drafter(tmp_path / kind, drafter, nested, t2d=mx.ones(96, mx.bool_))
        assert guessed(read_drafter(folder, model), 9, 4) == guessed(drafter, 9, 4)


def test_the_first_slot_of_an_older_dspark_of_speculators_does_not_guess() -> None:
    """Those that were written before `sample_from_anchor` have no other way."""
    config = nested_config(dspark_config(random_model()), "dspark", speculators_config={})
    assert DFlashConfig.from_json(config).guesses == config["block_size"] - 1
    assert DFlashConfig.from_json(config | {"sample_from_anchor": True}).guesses == 6


def test_a_window_of_speculators_has_a_key_more(tmp_path: Path) -> None:
    """All slots of a block see the window that ends before it, and no slot less."""
    model = random_model()
    window = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}
    config = block_config(model, **window)
    nested = nested_config(config, "dflash")
    drafter = random_block_drafter(model, config=config)
    read = read_drafter(write_block_drafter(tmp_path, drafter, nested), model)
    assert [layer.self_attn.most for layer in read.layers] == [4, 4]
    ids = [1, 2, 6, 7, 8]
    assert guessed(read, *ids) != guessed(drafter, *ids)
    full = random_block_drafter(model, config=nested_config(block_config(model), "dflash"))
    full.update(drafter.parameters())
    free = read_drafter(
        write_block_drafter(tmp_path / "b", drafter, {**nested, "sliding_window_non_causal": True}),
        model,
    )
    assert guessed(free, 9) == guessed(full, 9), "a context within the window"


def test_ids_that_its_head_does_not_know_are_never_guessed(tmp_path: Path) -> None:
    model, known = random_model(), mx.arange(48) * 2 + 1
    config = dspark_config(model, draft_vocab_size=48)
    drafter = random_block_drafter(model, config=config, own={"head": True, "ids": known})
    nested = nested_config(config, "dspark")
    folder = write_block_drafter(tmp_path, drafter, nested, d2t=known - mx.arange(48))
    block = guessed(read_drafter(folder, model), 9)
    listed = [*block.positions, *(one for links in block.links for one in links.values())]
    assert listed
    assert all(token % 2 for one in listed for token, _ in one)
    write_block_drafter(tmp_path / "b", drafter, nested)
    with pytest.raises(BundleError, match="knows 48 of 96 ids, and no d2t"):
        read_drafter(tmp_path / "b", model)


def test_doubt_makes_guesses_less_probable() -> None:
    """A position that the confidence head thinks hopeless counts less, whatever its logits."""
    model = random_model()
    sure, unsure = (random_block_drafter(model, config=dspark_config(model)) for _ in range(2))
    for drafter, bias in ((sure, 40.0), (unsure, -40.0)):
        drafter.confidence_head["proj"].bias = mx.array([bias])
    for before, after in zip(guessed(sure, 9).positions, guessed(unsure, 9).positions, strict=True):
        assert [token for token, _ in before] == [token for token, _ in after]
        assert before[0][1] - after[0][1] == pytest.approx(40.0, abs=20)


@pytest.mark.parametrize(
    ("changed", "error", "told"),
    [
        ({"markov_head_type": "rnn"}, BundleError, "of the type 'rnn'"),
        ({"speculators_model_type": "medusa"}, BundleError, "says 'medusa'"),
        ({"gated_slots": True}, BundleError, "gated_slots"),
        ({"is_causal": True}, BundleError, "is_causal"),
        ({"aux_hidden_state_layer_ids": [0, 1]}, IncompatibleError, "layers -1, 0"),
        ({"target_hidden_size": 64}, IncompatibleError, "of width 64"),
        ({"block_size": 0}, BundleError, "block_size"),
        ({"block_size": 2, "sample_from_anchor": False}, BundleError, "blocks of a single guess"),
        ({"transformer_layer_config": None}, BundleError, "lacks or garbles"),
        ({"markov_rank": 7}, BundleError, "shape"),
        ({"draft_vocab_size": 12}, BundleError, "no d2t"),
    ],
)
def test_what_cannot_be_run_is_refused(
    changed: dict[str, Any], error: type[Exception], told: str, tmp_path: Path
) -> None:
    model = random_model()
    config = dspark_config(model)
    folder = write_block_drafter(
        tmp_path,
        random_block_drafter(model, config=config),
        nested_config(config, "dspark") | changed,
    )
    with pytest.raises(error, match=told) as caught:
        read_drafter(folder, model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"log_snr_conditioning": True}, "log_snr_conditioning"),
        ({"model_type": "qwen3_5"}, "layers of a qwen3_5"),
        ({"model_type": "gemma4_text", "attention_k_eq_v": True}, "layers of a gemma4_text"),
        ({"model_type": "laguna", "gating": "per-head"}, "layers of a laguna"),
        ({"attention_k_eq_v": True}, "attention_k_eq_v"),
        ({"dflash_config": {"attention_sink_bias": True}}, "attention_sink_bias"),
        ({"dflash_config": {"projector_type": "domino", "emb_dim": 4}}, "has projector_type 'do"),
    ],
)
def test_networks_of_other_kinds_are_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DFlashConfig.from_json(dspark_config(random_model(), **changed))


def test_a_published_configuration_is_read() -> None:
    """That of DSpark for Qwen3-4B, without the keys of libraries."""
    config = DFlashConfig.from_json(
        {
            "architectures": ["Qwen3DSparkModel"],
            "block_size": 7,
            "confidence_head_with_markov": True,
            "enable_confidence_head": True,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "layer_types": ["full_attention"] * 5,
            "markov_head_type": "vanilla",
            "markov_rank": 256,
            "mask_token_id": 151669,
            "max_position_embeddings": 40960,
            "num_anchors": 512,
            "num_attention_heads": 32,
            "num_hidden_layers": 5,
            "num_key_value_heads": 8,
            "num_target_layers": 36,
            "rms_norm_eps": 1e-06,
            "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
            "target_layer_ids": [1, 9, 17, 25, 33],
            "vocab_size": 151936,
        },
    )
    assert config.guesses == 7
    assert config.rope_theta == 1_000_000
    assert config.enable_confidence_head


def test_that_the_outputs_of_layers_are_read_may_be_stated() -> None:
    """As vLLM's programs state it."""
    config = block_config(random_model(), dflash_config={"use_aux_hidden_state": True})
    assert DFlashConfig.from_json(config).target_layer_ids


def test_rotary_embeddings_may_be_interleaved() -> None:
    """As in Liquid's DSpark for LFM2.5, whose configuration also says how many slots to use."""
    model = random_model()
    own = {"num_target_layers": 2, "runtime_block_size": 4, "attention_mode": "gqa"}
    config = dspark_config(model, dflash_config={**own, "confidence_head_alpha": 1.0})
    network = random_block_drafter(model, config=config)
    for key in ("rope_is_neox_style", "is_neox_style"):
        turned = random_block_drafter(model, config=config | {key: False})
        assert turned.layers[0].self_attn.rope.traditional
        assert guessed(turned, 9) != guessed(network, 9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma4_text", "gemma4"])
def test_embeddings_are_scaled_as_those_of_the_target(name: str) -> None:
    """Wherever the factor of a Gemma 4 is, in a model of text alone or of several parts."""
    target = zoo.zoo_model(name)
    network = random_block_drafter(target)
    raw = embedding_of(target)(mx.array([3]))
    assert mx.allclose(network.embedded(mx.array([3])), raw * raw.shape[-1] ** 0.5)


@pytest.mark.slow
def test_speculators_does_not_scale_embeddings() -> None:
    target = zoo.zoo_model("gemma4_text")
    network = random_block_drafter(target, config=nested_config(block_config(target), "dflash"))
    assert mx.allclose(network.embedded(mx.array([3])), embedding_of(target)(mx.array([3])))


def test_heads_may_be_in_a_part_of_their_own(tmp_path: Path) -> None:
    """As in the first DSpark drafters of SpecForge. Some programs write a buffer, too."""
    model = random_model()
    config = dspark_config(model)
    drafter = random_block_drafter(model, config=config)
    weights = {
        f"logit_head.{name}" if "_head." in name else name: of
        for name, of in tree_flatten(drafter.parameters())
    } | {"rotary_emb.inv_freq": mx.ones(8)}
    folder = write_block_drafter(tmp_path, drafter, config)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    assert guessed(read_drafter(folder, model), 9) == guessed(drafter, 9)


def test_dspark_is_read_as_modelopt_writes_it(tmp_path: Path) -> None:
    model, heads = random_model(), {"markov_rank": 6, "markov_head_type": "vanilla"}
    drafter = random_block_drafter(model, config=dspark_config(model))
    own = heads | {"projector_type": "dspark", "shift_label": True, "use_confidence_head": True}
    folder = write_block_drafter(tmp_path, drafter, block_config(model, dflash_config=own))
    weights = {
        name.replace("markov_head.", "").replace("confidence_head.", "confidence_"): of
        for name, of in tree_flatten(drafter.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    assert guessed(read_drafter(folder, model), 9) == guessed(drafter, 9)


def test_muse_glimmers_own_drafter_is_read(tmp_path: Path) -> None:
    """Its slots see each other, and as many positions before them as its window has."""
    model, types = random_model(), {"layer_types": ["sliding_attention"] * 2}
    config = block_config(model, sliding_window=4, **types)
    config |= config.pop("dflash_config") | {"model_type": "muse_glimmer_assistant"}
    usual = block_config(model, sliding_window=5, is_causal=False, **types)
    drafter = random_block_drafter(model, config=usual)
    theirs = {"hidden_norm.weight": "encoder.output_norm_enc.weight"}
    theirs["fc.weight"] = "encoder.fc.weight"
    weights = {theirs.get(name, name): of for name, of in tree_flatten(drafter.parameters())}
    folder = write_block_drafter(tmp_path, drafter, config)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    ids = [1, 2, 6, 7, 8]
    assert guessed(read_drafter(folder, model), *ids) == guessed(drafter, *ids)
    left_out = {"vocab_size", "layer_types", "rope_parameters", "rope_theta"}
    given = {key: config[key] for key in config.keys() - left_out}
    read = DFlashConfig.from_json(given | {"rope_theta": None})
    assert (read.vocab_size, read.rope_theta) == (202_048, 500_000)
    assert read.layer_types == ("sliding_attention",) * 2


@pytest.mark.parametrize(
    ("changed", "own", "types", "window", "is_causal"),
    [
        ({"layer_types": ["full_attention"] * 2}, {"use_swa": True}, "sliding", 9, False),
        ({}, {"use_swa": True, "swa_window_size": 5}, "sliding", 5, False),
        ({}, {"use_swa": True, "causal": True}, "sliding", 9, True),
        ({"layer_types": ["sliding_attention"] * 2}, {"causal": False}, "sliding", 9, False),
        ({"layer_types": ["sliding_attention"] * 2}, {}, "sliding", 9, None),
        ({}, {"shift_label": False}, "full", 9, None),
    ],
)
def test_windows_as_modelopt_writes_them(
    changed: dict[str, Any], own: dict[str, Any], types: str, window: int, is_causal: bool | None
) -> None:
    """`use_swa` is for all layers, whose slots then see each other unless `causal` says no."""
    config = block_config(random_model(), sliding_window=9, dflash_config=own, **changed)
    made = DFlashConfig.from_json(config)
    assert made.layer_types == (f"{types}_attention",) * 2
    assert (made.sliding_window, made.is_causal) == (window, is_causal)


def test_every_layout_is_known_by_its_config(tmp_path: Path) -> None:
    target: Any = LanguageModel.from_folder(write_model(tmp_path / "target", vocabulary_size=340))
    for number, make in enumerate(KINDS.values()):
        config = make(target.model)
        drafter = random_block_drafter(target.model, config=config)
        folder = write_block_drafter(tmp_path / str(number), drafter, config)
        read = named_drafter(folder, target)
        assert isinstance(read, DFlashDrafter)
        assert read.config == drafter.config
