"""EAGLE-3 drafters: folders in the published layouts, and that no guess changes the output."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
import zoo
from drafter_cases import ARCHITECTURES, PROMPT, SAMPLINGS, rounds_that_lose_nothing
from eagle_drafters import KnowingEagle, eagle_config, knowing_eagle, random_eagle, write_eagle
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from mlx_lm.models.cache import KVCache
from random_models import generate, random_model, rounds_of

from tokalign.errors import BundleError, IncompatibleError
from tokalign.evaluate.calibrate import measure_briefly
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.knowledge import Knowledge
from tokalign.runtime.draft.trained import with_trained
from tokalign.runtime.draft.tree import FREE_ROWS, TreeDrafter
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.beam_search import SOURCE, BeamShape, of_beams
from tokalign.runtime.mlx.cache import kinds_without_rewinding
from tokalign.runtime.mlx.drafter_folder import named_drafter, read_drafter
from tokalign.runtime.mlx.eagle3 import Eagle3Drafter
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import Drafter
from tokalign.tables.eagle3_config import Eagle3Config
from tokalign.tokenizer.vocabulary import TargetId

model = partial(random_model, layers=3)


def opened(network: TrainedDrafter, **options: Any) -> TargetModelSession:
    return TargetModelSession(model(), CacheOptions(**options), watch=network.watch)


def made(how: str, session: TargetModelSession, network: Eagle3Drafter, how_chosen: Any) -> Drafter:
    sampler = how_chosen.draft_sampler
    branches = how != "chain"
    drafter = with_trained(network.session(session), sampler=sampler, branches=branches)
    if how != "joined":
        return drafter
    free = TreeDrafter([ContextCopy()], rows=12)
    return Controller(Knowledge.given(FREE_ROWS), free, drafter, timed=False)


@pytest.mark.parametrize("how", ["beams", "chain", "joined"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_its_guesses_never_change_the_output(sampling: str, how: str) -> None:
    """Through rounds that accept all, a part or nothing, and a prompt that is read in steps."""
    chosen, target = SAMPLINGS[sampling], model()
    plain = generate(NoDrafter(), chosen, tokens=60, session=TargetModelSession(target))
    text = [*plain[:20], *[9] * 6, *plain[26:]]
    networks = random_eagle(target, eagle_config(target)), knowing_eagle(target, text, len(PROMPT))
    for network in networks:
        session = opened(network, prefill_step_size=2)
        drafter = made(how, session, network, chosen)
        emitted, rounds = rounds_of(drafter, session, chosen, limits=Limits(max_tokens=60))
        assert emitted == plain
        assert any(SOURCE in one.tree.sources for one in rounds)
    assert max(one.accepted for one in rounds) >= 3, "a text that it knows"


REFUSED = {
    "gemma3n": "a layer gives several outputs for an id",
    "iquestloopcoder": "a layer is called more than once",
    "nanbeige": "a layer is called more than once",
    "talkie": "no module gives the logits",
}
EVERY = [
    *ARCHITECTURES,
    *(pytest.param(n, marks=pytest.mark.long) for n in zoo.zoo() if n not in ARCHITECTURES),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_kind_of_architecture_loses_anything(name: str, temperature: float) -> None:
    target = zoo.zoo_model(name)
    if name in REFUSED or kinds_without_rewinding(target):
        return
    rounds = rounds_that_lose_nothing(
        target,
        temperature,
        lambda plain, after: [
            random_eagle(target, eagle_config(target)),
            knowing_eagle(target, plain, after),
        ],
    )
    assert len(rounds) < 20


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_architectures_whose_layers_cannot_be_read_are_refused(name: str) -> None:
    target = zoo.zoo_model(name)
    with pytest.raises(IncompatibleError, match=name):
        random_eagle(target, eagle_config(target)).watch(target)


def test_beams_are_rows_of_one_cache_that_do_not_see_each_other() -> None:
    """Every listed id has the probability that a chain of its own gives it."""
    target = model()
    network = random_eagle(target, eagle_config(target))
    session = opened(network)
    ids = [TargetId(i * 5 % 90) for i in range(12)]
    session.logits(ids[:-1])
    found = network.session(session).search(ids, BeamShape(3, 3), count=5)
    assert found is not None
    tree = found.tree(SOURCE)
    leaf = max(range(len(tree)), key=lambda index: (tree.depths[index], index))
    path = [tree.ids[index] for index in tree.path_to(leaf)]
    session = opened(network)
    session.logits(ids[:-1])
    chain = network.session(session)
    begun = chain.begin(ids)
    assert begun is not None
    state, logits = begun
    for place, token in enumerate(path):
        node = tree.path_to(leaf)[place]
        expected = mx.softmax(logits[0])[token].item()
        assert tree.probabilities[node] == pytest.approx(expected, rel=1e-4)
        state, logits = chain.step(of_beams(state, mx.array([0])), mx.array([token]))


def test_what_its_searches_cost_is_measured() -> None:
    target = model()
    curve = measure_briefly(target, random_eagle(target, eagle_config(target)))
    assert curve.draft_pass
    assert curve.tree_pass


@pytest.mark.parametrize("layout", ["midlayer.", "layers.0."])
def test_a_folder_in_a_published_layout_is_read(layout: str, tmp_path: Path) -> None:
    target = model()
    unused = {"layer_types": ["full_attention"], "temperature": 1.0, "sliding_window": None}
    config = eagle_config(target, **unused)
    network = random_eagle(target, config, embedding=True)
    folder = write_eagle(tmp_path, network, config, layout)
    (folder / "._model.safetensors").write_bytes(b"\0\x05\x16\x07")  # of macOS on another's disk
    read = read_drafter(folder, target)
    ids = [TargetId(i) for i in (*PROMPT, 9)]
    found = []
    for one in (network, read):
        session = opened(one)
        session.logits(ids[:-1])
        found.append(one.session(session).search(ids, BeamShape(2, 3), count=4))
    assert found[0] == found[1]
    assert found[0] is not None


def test_queries_and_keys_may_be_normed(tmp_path: Path) -> None:
    """As in those that speculators trains with layers of Qwen3; the weights tell."""
    target = model()
    config = eagle_config(target, num_hidden_layers=2, head_dim=16)
    network = random_eagle(target, config, qwen3.Attention)
    read = read_drafter(write_eagle(tmp_path, network, config, "layers.0."), target)
    greedy = SAMPLINGS["greedy"]
    plain = generate(NoDrafter(), greedy, tokens=40, session=TargetModelSession(target))
    session = opened(read)
    drafter = made("beams", session, read, greedy)
    assert rounds_of(drafter, session, greedy, limits=Limits(max_tokens=40))[0] == plain
    ids, states = mx.arange(5), mx.random.normal((5, 32))
    outputs = [one.read(ids, states, [None, None], "causal") for one in (network, read)]
    assert mx.allclose(*outputs)
    assert "q_norm" in read.layers[0].self_attn
    assert "q_norm" in read.layers[1].self_attn


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_head_of_deepspec_is_read(prefix: str, tmp_path: Path) -> None:
    """All its keys at the top, norms of queries, a head of all ids. NeMo's names begin with
    `model.`"""
    target, taps = random_model(layers=8), [1, 2, 4, 5, 7]
    size = vocabulary_size(target)
    own = {"head_dim": 16, "draft_vocab_size": size}
    inside = {"eagle_aux_hidden_state_layer_ids": taps}
    network = random_eagle(
        target, eagle_config(target, eagle_config=inside, **own), qwen3.Attention, embedding=True
    )
    config = eagle_config(target, head_dim=16, target_layer_ids=taps, num_target_layers=8)
    config |= {"architectures": ["Qwen3Eagle3Model"], "ttt_length": 7, "step_loss_decay": 0.8}
    config |= {"draft_num_hidden_layers": 1, "target_model_name_or_path": "Qwen/Qwen3-4B"}
    for key in ("eagle_config", "draft_vocab_size"):
        del config[key]
    weights = {
        name if name.startswith("lm_head") else prefix + name: of
        for name, of in tree_flatten(network.parameters())
    }
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = read_drafter(tmp_path, target)
    assert read.config.taps(8) == tuple(taps)
    ids = mx.arange(5)
    states = network.states(mx.random.normal((5, 5 * 32)))
    outputs = [one.logits(one.read(ids, states, [None], "causal")) for one in (network, read)]
    assert mx.allclose(*outputs, atol=1e-5)


def test_logits_of_all_ids_are_not_moved_about(tmp_path: Path) -> None:
    """SpecForge writes a `d2t` of zeros for a head that knows all ids."""
    target = model()
    config = eagle_config(target, draft_vocab_size=vocabulary_size(target))
    folder = write_eagle(tmp_path, random_eagle(target, config), config)
    weights = dict(mx.load(str(folder / "model.safetensors")).items())
    mx.eval(weights)
    weights["d2t"] = mx.zeros((config["draft_vocab_size"],), mx.int64)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    logits = mx.zeros((2, config["draft_vocab_size"]))
    assert read_drafter(folder, target).among_all(logits) is logits


def test_a_norm_before_fc_may_be_told_beside_the_layers(tmp_path: Path) -> None:
    """As NVIDIA's heads for gpt-oss do (vLLM #42143)."""
    target = model()
    config = eagle_config(target, norm_before_fc=True)
    network = random_eagle(target, config)
    del config["norm_before_fc"]
    config["eagle_config"]["norm_before_fc"] = True
    read = read_drafter(write_eagle(tmp_path, network, config), target)
    watched = mx.random.normal((3, 3 * 32))
    assert mx.allclose(read.states(watched), network.states(watched), atol=1e-5)


def test_a_norm_for_each_layer_has_an_older_name(tmp_path: Path) -> None:
    """SGLang reads both names."""
    target = model()
    network = random_eagle(target, eagle_config(target, fc_norm=True))
    config = eagle_config(target, use_aux_norm=True)
    assert read_drafter(write_eagle(tmp_path, network, config), target).config == network.config


@pytest.mark.parametrize(("layers", "stated"), [(1, 40), (2, 2)])
def test_a_midlayer_without_others_is_the_only_layer(
    layers: int, stated: int, tmp_path: Path
) -> None:
    """SafeAILab's head for Vicuna 13B states the number of the target's layers."""
    target = model()
    config = eagle_config(target, num_hidden_layers=layers)
    network = random_eagle(target, config)
    folder = write_eagle(tmp_path, network, config | {"num_hidden_layers": stated})
    assert read_drafter(folder, target).config == network.config


def test_of_rotary_embeddings_by_kinds_of_layers_that_of_windows_is_taken() -> None:
    """As `speculators` does with what it copied of such a target."""
    target = model()
    kinds = {"sliding_attention": {"rope_theta": 500.0}, "full_attention": {"rope_theta": 9e5}}
    for told, theta in ((kinds, 500.0), ({"full_attention": kinds["full_attention"]}, 9e5)):
        config = eagle_config(target, rope_parameters=told)
        assert Eagle3Config.from_json(config).rope_theta == theta


def test_a_layer_may_have_a_window() -> None:
    """As in those of speculators since 2026: a row sees no key before it, committed or not."""
    target = model()
    windows = {"layer_types": ["sliding_attention"], "sliding_window": 4}
    config = eagle_config(target, use_sliding_window=True, **windows)
    network, whole = random_eagle(target, config), random_eagle(target, eagle_config(target))
    plain = generate(
        NoDrafter(), SAMPLINGS["greedy"], tokens=40, session=TargetModelSession(target)
    )
    knowing = KnowingEagle(Eagle3Config.from_json(config), target).know(plain, len(PROMPT))
    for one in (network, knowing):
        session = opened(one, prefill_step_size=2)
        drafter = made("beams", session, one, SAMPLINGS["greedy"])
        limits = Limits(max_tokens=40)
        assert rounds_of(drafter, session, SAMPLINGS["greedy"], limits=limits)[0] == plain
    ids, states = mx.arange(9), mx.random.normal((9, 32))
    beams = mx.eye(2, dtype=mx.bool_)
    found = []
    for one, begins in ((network, (0, 0)), (whole, (5, 6))):  # what is left of nine keys
        read, cache = [], [KVCache()]
        for begin in begins:
            cache = [KVCache()]
            read.append(one.read(ids[begin:], states[begin:], cache, "causal")[-1])
        sees = mx.concatenate([mx.ones((2, cache[0].offset), mx.bool_), beams], axis=1)
        found.append((read[0], one.read(ids[:2], states[:2], cache, sees)))
    assert all(mx.allclose(*pair, atol=1e-5) for pair in zip(*found, strict=True))


@pytest.mark.parametrize(
    "published",
    [
        {  # ModelOpt: those of nvidia
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [],
                "next_layer_regular": True,
                "parallel_draft_heads_num_layers": 1,
                "parallel_draft_step": 1,
                "use_aux_hidden_state": True,
                "use_input_layernorm_in_first_layer": True,
                "use_last_layernorm": True,
                "use_mtp_layernorm": False,
            },
            "mlp_bias": False,
            "sep_token_id": None,
        },
        {  # AngelSlim: for Qwen3-VL, and a copy of Hunyuan's configuration
            "target_model_type": "qwen3_vl",
            "modal_type": "VLM",
            "video_token_id": 90,
            "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20]},
            "attention_head_dim": 8,
            "cla_share_factor": 2,
            "dense_list": [32, 0],
            "norm_type": "rms",
            "org_vocab_size": 96,
            "pool_type": "last",
            "im_end_id": 5,
            "use_qk_norm": True,
            "use_rotary_pos_emb": True,
        },
        {  # nebius, for gpt-oss
            "architectures": ["LlamaForCausalLM"],
            "truncated_vocab_size": 48,
            "rope_scaling": {"factor": 32.0, "rope_type": "yarn", "truncate": False},
        },
        {
            "is_neox_style": True,
            "decoder_sparse_step": 1,
            "router_aux_loss_coef": 0.001,
        },  # SpecForge, for Qwen3 MoE
        {"num_aux_hidden_states": 3, "_attn_implementation_autoset": True},  # TorchSpec
    ],
)
def test_a_published_configuration_is_read(published: dict[str, Any], tmp_path: Path) -> None:
    target = random_model(layers=8)
    config = eagle_config(target, head_dim=8, **published)
    network = random_eagle(target, config)
    read = named_drafter(write_eagle(tmp_path, network, config), SimpleNamespace(model=target))
    assert read.config == network.config
    assert read.config.taps(8) in ((1, 3, 4), (0, 3, 7))


def quantize_ends(target: Any, bits: int) -> None:
    ends = (target.model.embed_tokens, target.lm_head)
    nn.quantize(target, 32, bits, class_predicate=lambda _, part: any(part is o for o in ends))


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_copies_of_the_targets_ends_are_not_kept(
    own: bool, whole: bool, bits: int | None, tmp_path: Path
) -> None:
    """As in DeepSpec's folders, for a target in any number format. A head of some ids is kept."""
    target = random_model.__wrapped__(layers=3)
    size = vocabulary_size(target)
    config = eagle_config(target, **({"draft_vocab_size": size} if whole else {}))
    network = random_eagle(target, config, embedding=True)
    copies = {"embed_tokens": target.model.embed_tokens, "lm_head": target.lm_head}
    for name, part in copies.items() if not own else ():
        if whole or name == "embed_tokens":
            network.update({name: {"weight": part.weight.astype(mx.float16)}})
    if bits:
        quantize_ends(target, bits)
    read = read_drafter(write_eagle(tmp_path, network, config), target)
    assert ("embed_tokens" in read, "lm_head" in read) == (own, own or not whole)


@pytest.mark.parametrize("bits", [None, 4])
def test_ends_of_which_a_row_was_trained_are_kept(bits: int | None, tmp_path: Path) -> None:
    target = random_model.__wrapped__(layers=3)
    size = vocabulary_size(target)
    config = eagle_config(target, draft_vocab_size=size)
    network = random_eagle(target, config, embedding=True)
    copies = {"embed_tokens": target.model.embed_tokens, "lm_head": target.lm_head}
    for name, part in copies.items():
        trained = mx.array(part.weight)
        trained[7] *= 1.2
        network.update({name: {"weight": trained}})
    if bits:
        quantize_ends(target, bits)
    read = read_drafter(write_eagle(tmp_path, network, config), target)
    assert "embed_tokens" in read
    assert "lm_head" in read


def test_a_copy_that_is_the_head_too_is_kept(tmp_path: Path) -> None:
    """The target's own head may be another matrix."""
    target = model()
    size = vocabulary_size(target)
    config = eagle_config(target, draft_vocab_size=size, tie_word_embeddings=True)
    network = random_eagle(target, config, embedding=True, head=False)
    network.update({"embed_tokens": {"weight": target.model.embed_tokens.weight}})
    read = read_drafter(write_eagle(tmp_path, network, config), target)
    outputs = mx.random.normal((3, network.config.hidden_size))
    assert mx.allclose(read.logits(outputs), network.logits(outputs), 1e-3, 1e-3)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"parallel_drafting": True}, BundleError, "parallel_drafting"),
        ({"ptd_token_id": 95}, BundleError, "ptd_token_id"),
        ({"architectures": ["PEagleDraftModel"]}, BundleError, "PEagleDraftModel"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, BundleError, "use_mtp_layernorm: True"),
        ({"eagle_config": {"parallel_draft_step": 4}}, BundleError, "parallel_draft_step: 4"),
        ({"use_sliding_window": True}, BundleError, "use_sliding_window"),
        ({"layer_types": ["sliding_attention"]}, BundleError, "no sliding_window"),
        ({"layer_types": ["chunked_attention"]}, BundleError, "chunked_attention"),
        (
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4},
            BundleError,
            "its 1 layers",
        ),
        ({"hidden_act": "gelu"}, BundleError, "silu"),
        ({"hidden_size": 64}, IncompatibleError, "width 64"),
        ({"eagle_config": None}, IncompatibleError, "layers 1, 0, -1"),
        ({"draft_vocab_size": 47}, BundleError, "d2t"),
        ({"vocab_size": None}, BundleError, "vocab_size"),
        ({"vocab_size": 95}, IncompatibleError, "with 95 ids"),
        ({"intermediate_size": 8}, BundleError, "shape"),
        ({"fc_norm": True, "norm_before_fc": True}, BundleError, "beside norm_before_fc"),
        ({"fc_norm": "yes"}, BundleError, "bool"),
        ({"fc_norm": True}, BundleError, "fc_norm.0.weight"),
        ({"norm_output": [1]}, BundleError, "bool"),
        ({"transformer_layer_config": [1]}, BundleError, "lacks or garbles"),
        ({"eagle_config": [1]}, BundleError, "lacks or garbles"),
        ({"layer_types": 5}, BundleError, "lacks or garbles"),
        ({"eagle_aux_hidden_state_layer_ids": ["1"]}, BundleError, "lacks or garbles"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1, 2]}, IncompatibleError, "one of them twice"),
        ({"num_hidden_layers": 10**9}, BundleError, "1000"),
        ({"intermediate_size": 10**12}, BundleError, "10000000"),
        ({"rope_scaling": [1]}, BundleError, "lacks or garbles"),
        ({"rope_scaling": {"type": "zzz"}}, BundleError, "zzz"),
        ({"rope_scaling": {"type": "mrope"}}, BundleError, "lacks or garbles MRoPE"),
    ],
)
def test_a_folder_that_cannot_be_run_is_refused(
    changed: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    target = model()
    config = eagle_config(target)
    folder = write_eagle(tmp_path, random_eagle(target, config), config)
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(error, match=message):
        named_drafter(folder, SimpleNamespace(model=target))


@pytest.mark.parametrize(
    ("key", "wrong", "told"),
    [
        ("fc.weight", lambda weight: weight.astype(mx.int32), "its fc.weight is of the type"),
        ("d2t", lambda ids: ids + 0.5, "d2t"),
        ("d2t", lambda ids: ids.astype(mx.int64) + (1 << 32), "d2t"),
    ],
)
def test_weights_of_another_type_are_refused(
    key: str, wrong: Callable[[mx.array], mx.array], told: str, tmp_path: Path
) -> None:
    target = model()
    config = eagle_config(target)
    folder = write_eagle(tmp_path, random_eagle(target, config), config)
    weights = dict(mx.load(str(folder / "model.safetensors")).items())
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights | {key: wrong(weights[key])})
    with pytest.raises(BundleError, match=told):
        read_drafter(folder, target)


def test_a_quantized_one_is_read_as_mlx_lm_writes_it(tmp_path: Path) -> None:
    target, settings = model(), {"group_size": 32, "bits": 4}
    config = eagle_config(target, quantization=settings)
    folder = write_eagle(tmp_path, random_eagle(target, config), config)
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    read_drafter(folder, target)
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 4}}))
    with pytest.raises(BundleError, match="quantization_config"):
        read_drafter(folder, target)


def test_a_quantized_one_computes_in_the_number_format_of_its_target(tmp_path: Path) -> None:
    """Scales in another one would have every row computed in float32."""
    target = random_model.__wrapped__(layers=3)
    target.set_dtype(mx.bfloat16)
    config = eagle_config(target, quantization={"group_size": 32, "bits": 4})
    drafter = random_eagle(target, config)
    drafter.set_dtype(mx.float16)
    read = read_drafter(write_eagle(tmp_path, drafter, config), target)
    (cache,) = read.layers_after(mx.zeros((1, 3 * 32), mx.bfloat16))
    assert cache.keys.dtype == mx.bfloat16
