"""How new drafters begin: as the target's last layers do, and unsure of every id."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from block_drafters import random_block_drafter
from mlx_lm.models.gemma3_text import RMSNorm
from random_models import random_model

from tokalign.train.begun import _factors, begin_as_target


@pytest.mark.parametrize("kind", [nn.RMSNorm, RMSNorm, nn.LayerNorm])
def test_a_norm_is_known_by_what_it_multiplies_by(kind: Any) -> None:
    norm, factors = kind(8), mx.random.uniform(0.5, 2, (8,))
    norm.weight = factors - 1 if kind is RMSNorm else factors
    assert mx.allclose(_factors(norm), factors, 1e-3, 1e-3)


def test_a_new_drafter_has_the_last_layers_and_is_unsure_whatever_the_head_is() -> None:
    model = random_model.__wrapped__()  # the cached one is shared
    model.model.norm.weight = 100 * model.model.norm.weight
    drafter = random_block_drafter(model)
    begin_as_target(drafter, model)
    ours, theirs = drafter.layers[-1].mlp.down_proj.weight, model.layers[-1].mlp.down_proj.weight
    assert ours.shape != theirs.shape or mx.array_equal(ours, theirs)
    outputs = drafter.norm(mx.random.normal((64, drafter.norm.weight.size)))
    assert 1 < drafter.own_logits(outputs).std().item() < 3
    shares = drafter.norm.weight / model.model.norm.weight
    assert mx.allclose(shares, shares[0])
