"""Block drafters: what they read of the target, and that nothing they guess changes the output."""

from __future__ import annotations

import json
from functools import partial
from itertools import product
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import pytest
import zoo
from block_drafters import (
    KINDS,
    KnowingDrafter,
    block_config,
    random_block_drafter,
    second_config,
    write_block_drafter,
)
from drafter_cases import ARCHITECTURES, PROMPT, SAMPLINGS
from random_models import WildDrafter, generate, plainly, random_model, rounds_of

from tokalign.errors import BundleError, IncompatibleError
from tokalign.evaluate.calibrate import measure_briefly
from tokalign.runtime.cost import read_curve
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.costs import LearnedCosts, PassTimes
from tokalign.runtime.draft.growth import BlockAnswer
from tokalign.runtime.draft.knowledge import Knowledge, ModelKnowledge
from tokalign.runtime.draft.neural import DRAFTER
from tokalign.runtime.draft.opening_knowledge import knowledge_from
from tokalign.runtime.draft.trained import BLOCK, BlockDrafter
from tokalign.runtime.draft.tree import FREE_ROWS, TreeDrafter
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.dflash import DFlashDrafter
from tokalign.runtime.mlx.dflash_session import DFlashSession
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import taps_of
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import Array, Context, Drafter, Proposal, Round
from tokalign.tokenizer.vocabulary import TargetId

TAPS = (0, 1)
WATCH = partial(taps_of, layers=TAPS)


def opened(**options: Any) -> TargetModelSession:
    return TargetModelSession(random_model(), CacheOptions(**options), watch=WATCH)


def layer_outputs(ids: list[int]) -> Array:
    """The outputs of the tapped layers over a whole text, f[n, 2 * width]."""
    model = random_model().model
    h, found = model.embed_tokens(mx.array([ids])), []
    mask = mx.triu(mx.full((len(ids), len(ids)), -mx.inf), k=1)
    for layer in model.layers:
        h = layer(h, mask, None)
        found.append(h[0])
    return mx.concatenate(found, axis=-1)


class Reading(Drafter):
    """Proposes wildly, and takes the taps now and then, as a drafter does."""

    def __init__(self, session: TargetModelSession, seed: int, *, trees: bool = True) -> None:
        self._wild, self._session = WildDrafter(trees=trees, seed=seed), session
        self._random = Random(seed)
        self.end, self.rows = 0, list[Array]()

    def propose(self, context: Context, limit: int) -> Proposal:
        if self._random.random() < 0.6:
            begin, taps = self._session.take_taps(context.ids, self.end)
            if taps is not None:
                assert begin == self.end, "nothing is lost"
                self.rows.append(taps)
                self.end = len(context.ids) - 1
        return self._wild.propose(context, limit)

    def observe(self, one: Round) -> None:
        self._wild.observe(one)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("step", [4, 2048])
def test_taps_are_the_outputs_of_layers_for_the_committed_ids(seed: int, step: int) -> None:
    """Through trees, rejected ids, passes that ran ahead, and prompts read in steps."""
    session = opened(prefill_step_size=step)
    reading = Reading(session, seed)
    prompt = [n * 7 % 90 for n in range(19)]
    emitted, _ = rounds_of(reading, session, prompt=prompt, limits=Limits(max_tokens=40))
    assert reading.end > 30
    rows = mx.concatenate(reading.rows)
    expected = layer_outputs([*prompt, *emitted])[: reading.end]
    assert mx.allclose(rows, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_taps_of_every_kind_of_architecture_lose_nothing_and_change_nothing(name: str) -> None:
    model = zoo.zoo_model(name)
    prompt = [(i * 7 + 3) % zoo.VOCABULARY for i in range(70)]
    session = TargetModelSession(model, watch=partial(taps_of, layers=(0, len(model.layers) - 1)))
    reading = Reading(session, 1, trees=session.can_branch)
    emitted, _ = rounds_of(reading, session, prompt=prompt, limits=Limits(max_tokens=24))
    assert emitted == plainly(model, prompt, 24)
    assert reading.end > 70


def test_layers_with_several_outputs_for_an_id_are_refused() -> None:
    with pytest.raises(IncompatibleError, match="gemma3n"):
        TargetModelSession(zoo.zoo_model("gemma3n"), watch=WATCH)


def test_of_a_long_context_the_latest_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokalign.runtime.mlx.taps.MOST_ROWS", 12)
    session = opened(prefill_step_size=4)
    ids = [TargetId(n % 90) for n in range(30)]
    session.logits(ids)
    begin, taps = session.take_taps([*ids, TargetId(1)], 0)
    assert taps is not None
    assert begin >= 18
    assert len(taps) == 30 - begin


def test_what_was_read_before_the_session_is_not_known() -> None:
    """A cache that another conversation brings along: the drafter begins after it."""
    before = TargetModelSession(random_model())
    ids = [TargetId(n % 90) for n in range(20)]
    before.settle(ids[:12])
    session = TargetModelSession(random_model(), cache=before.layers, watch=WATCH)
    session.logits(ids)
    begin, taps = session.take_taps([*ids, TargetId(1)], 0)
    assert begin == 12
    assert taps is not None
    assert mx.allclose(taps, layer_outputs([*ids])[12:], atol=1e-4)


def made(
    how: str, session: TargetModelSession, network: DFlashDrafter, sampling: Sampling
) -> Drafter:
    drafter = BlockDrafter(DFlashSession(network, session), sampler=sampling)
    if how == "alone":
        return drafter
    free = TreeDrafter([ContextCopy()], rows=12 if how == "tree" else None)
    if how == "tree":
        return Controller(Knowledge.given(FREE_ROWS), free, drafter, timed=False)
    rows = PassTimes([1.0 + 0.001 * row for row in range(40)], weight=4)
    models = {DRAFTER: ModelKnowledge(PassTimes([0.001] * 16, weight=4))}
    known = Knowledge(costs=LearnedCosts(rows), models=models)
    return Controller(known, free, drafter)


@pytest.mark.parametrize(("kind", "how"), [("DFlash", "auto"), *product(KINDS, ["alone", "tree"])])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_its_guesses_never_change_the_output(sampling: str, kind: str, how: str) -> None:
    model, chosen = random_model(), SAMPLINGS[sampling]
    config = KINDS[kind](model)
    plain = generate(NoDrafter(), chosen, tokens=60)
    knowing = KnowingDrafter(model, [*plain[:20], *[9] * 6, *plain[26:]], len(PROMPT), config)
    for network in (random_block_drafter(model, config=config), knowing):
        session = opened()
        drafter = made(how, session, network, chosen)
        emitted, rounds = rounds_of(drafter, session, chosen, limits=Limits(max_tokens=60))
        assert emitted == plain
        assert how == "auto" or any(one.draft_passes for one in rounds)
    accepted = [one.accepted for one in rounds]
    assert how == "auto" or max(accepted) >= 5, "the ids of a block"


@pytest.mark.parametrize("how", ["alone", "tree", "auto"])
@pytest.mark.parametrize("vocabulary", [96, 256])
def test_one_whose_numbers_overflow_drafts_nothing(vocabulary: int, how: str) -> None:
    model, chosen = random_model(vocabulary=vocabulary), SAMPLINGS["greedy"]
    network = random_block_drafter(model)
    network.norm.weight = network.norm.weight * nan
    session = TargetModelSession(model, watch=WATCH)
    plain, _ = rounds_of(NoDrafter(), TargetModelSession(model), chosen)
    emitted, rounds = rounds_of(made(how, session, network, chosen), session, chosen)
    assert emitted == plain
    assert not {source for one in rounds for source in one.tree.sources} & {BLOCK, DRAFTER}


def test_a_block_joins_every_branch() -> None:
    """Where a table knows two paths, the block says at each depth which of their ids is likely."""
    positions = [
        [(TargetId(1), -0.7), (TargetId(2), -0.8)],
        [(TargetId(5), -0.1)],
        [(TargetId(6), -0.1)],
    ]
    tree, _ = TreeDrafter([], max_tokens=8).offer(
        [TargetId(0)], 8, [1.0] * 9, answers=[BlockAnswer(positions, "drafter", [])]
    )
    paths = {tuple(tree.ids[i] for i in tree.path_to(index)) for index in range(len(tree))}
    assert {(1, 5, 6), (2, 5, 6)} <= paths


def test_what_its_pass_costs_is_measured_and_believed() -> None:
    model, drafter = random_model(), random_block_drafter(random_model())
    curve = measure_briefly(model, drafter)
    assert curve.draft_pass is not None
    known = knowledge_from([curve], model, drafter)
    [first] = known.models[DRAFTER].times(1, curve.row_times[0])
    assert first == pytest.approx(curve.draft_pass.median)
    assumed = knowledge_from([read_curve("24-percent-per-row")], model, drafter)
    assert 0 < assumed.models[DRAFTER].times(1, assumed.costs.plain)[0] < 10


def test_a_folder_in_the_published_layout_is_read(tmp_path: Path) -> None:
    model = random_model()
    drafter, config = random_block_drafter(model), block_config(model)
    read = read_drafter(write_block_drafter(tmp_path, drafter, config), model)
    session, other = opened(), opened()
    for one in (session, other):
        one.logits([TargetId(i) for i in PROMPT])
    ids = [TargetId(i) for i in (*PROMPT, 9)]
    found = DFlashSession(drafter, session).draft(ids, 4)
    assert found == DFlashSession(read, other).draft(ids, 4)
    assert len(found.positions) == config["block_size"] - 1


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"dflash_config": {"gated_slots": 8}}, BundleError, "gated_slots"),
        ({"attention_bias": True}, BundleError, "bias"),
        ({"layer_types": ["linear", "full_attention"]}, BundleError, "linear"),
        ({"layer_types": ["sliding_attention"] * 2}, BundleError, "sliding_window"),
        ({"head_dim": -4}, BundleError, "head_dim"),
        ({"hidden_size": None}, BundleError, "hidden_size"),
        ({"num_target_layers": 40}, IncompatibleError, "40 layers"),
        ({"target_layer_ids": [0, 7]}, IncompatibleError, "layers 0, 7"),
        ({"vocab_size": 95, "draft_vocab_size": 96}, IncompatibleError, "with 95 ids"),
        ({"dflash_config": {"mask_token_id": 96}}, IncompatibleError, "mask is the id 96"),
        ({"rope_theta": 0.0}, BundleError, "rope_theta"),
        ({"rms_norm_eps": inf}, BundleError, "rms_norm_eps"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": -1}, BundleError, "window"),
        ({"intermediate_size": 8}, BundleError, "shape"),
    ],
)
def test_a_folder_that_cannot_be_run_is_refused(
    changed: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    model = random_model()
    folder = write_block_drafter(tmp_path, random_block_drafter(model), block_config(model))
    own = block_config(model, **changed)
    (folder / "config.json").write_text(json.dumps(own))
    with pytest.raises(error, match=message):
        read_drafter(folder, model)


def test_weights_in_parts_are_read_and_missing_parts_named(tmp_path: Path) -> None:
    model = random_model()
    folder = write_block_drafter(tmp_path, random_block_drafter(model), block_config(model))
    first, last = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    weights = list(mx.load(str(folder / "model.safetensors")).items())
    mx.save_safetensors(str(folder / first), dict(weights[:5]))
    mx.save_safetensors(str(folder / last), dict(weights[5:]))
    (folder / "model.safetensors").unlink()
    read_drafter(folder, model)
    (folder / last).unlink()
    with pytest.raises(BundleError, match=f"lacks {last}; fetch"):
        read_drafter(folder, model)


def test_a_selector_finds_its_candidates_without_sorting_all_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU mlx sorts all that it is to partition, in a dozen kernels one after another."""
    model, widths, partition = random_model(vocabulary=4096), list[int](), mx.argpartition
    selector = random_block_drafter(model, config=second_config(model)).candidate_selector

    def noted(values: Array, *arguments: Any, **named: Any) -> Array:
        widths.append(values.shape[-1])
        return partition(values, *arguments, **named)

    monkeypatch.setattr(mx, "argpartition", noted)
    hidden, logits = (mx.random.normal((3, width), key=mx.random.key(2)) for width in (32, 4096))
    after = selector.after(hidden, logits, mx.array([[5, 9]] * 3))
    assert max(widths) < 4096
    best = mx.argsort(-logits, axis=-1)[:, :5]
    found = mx.argsort(-mx.isfinite(after).astype(mx.int32), axis=-1)[..., :5]
    assert mx.isfinite(after).sum(axis=-1).tolist() == [[5, 5]] * 3
    for row, ids in zip(found.tolist(), best.tolist(), strict=True):
        assert [set(one) for one in row] == [set(ids)] * 2
