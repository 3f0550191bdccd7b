"""Up to how many rows passes are exact, found on models whose larger passes are made to differ."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.llama import Model
from random_models import random_model

from tokalign.runtime.draft.hybrid import Hybrid
from tokalign.runtime.draft.lookup import LogitStore, logit_sources
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits, TargetVerifier, decode
from tokalign.runtime.mlx.exact_rows import COUNTS, exact_rows
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.rounds import UNBOUNDED, Context, Drafter, Round
from tokalign.tokenizer.vocabulary import TargetId

MOST = 2
"""Few enough for OpenBLAS, with which four rows differ already."""


class Coarse(Model):
    """The random model, which computes something else in passes of more than `MOST` rows."""

    def __call__(self, inputs: mx.array, cache: Any = None, **given: Any) -> mx.array:
        logits: mx.array = super().__call__(inputs, cache, **given)
        return logits if inputs.shape[1] <= MOST else self.changed(logits, cache)

    def changed(self, logits: mx.array, cache: Any) -> mx.array:
        """One bit of one id."""
        return logits + mx.where(mx.arange(logits.shape[-1]) == 7, mx.abs(logits) * 1e-6, 0)


class ForgetfulCache(Coarse):
    """It gives the right logits, and leaves the last key of a large pass wrong."""

    def changed(self, logits: mx.array, cache: Any) -> mx.array:
        layer = cache[0]
        layer.keys = layer.keys.at[..., layer.offset - 1, :].multiply(1.001)
        return logits


class Reversed(Coarse):
    """It chooses other ids."""

    def changed(self, logits: mx.array, cache: Any) -> mx.array:
        return logits[..., ::-1]


def made_of(kind: type[Model]) -> Any:
    model = kind(random_model().args)
    model.update(random_model().parameters())
    return model


@pytest.fixture(scope="module")
def limit() -> int:
    """That of the random model itself, which depends on the machine."""
    return exact_rows(made_of(Model), budget=1e9)


@pytest.mark.parametrize("kind", [Coarse, ForgetfulCache, Reversed])
def test_a_difference_in_logits_or_in_the_cache_is_found(kind: type[Model], limit: int) -> None:
    assert exact_rows(made_of(kind), budget=1e9) == min(MOST, limit)


def test_what_could_not_be_tried_in_time_is_not_called_exact(limit: int) -> None:
    assert limit in (1, *COUNTS)
    assert exact_rows(made_of(Model), budget=1e-9) == min(COUNTS[0], limit)
    assert exact_rows(made_of(Model), budget=1e9, limit=0.0) is None
    clock = map(float, range(1000))
    exact_rows(made_of(Model), limit=40.0, clock=lambda: next(clock))
    assert next(clock) < 45, "no pass begins after the limit"


def emitted(model: Any, drafter: Drafter, store: LogitStore, most: int) -> tuple[list[int], int]:
    """The output, and the most rows of a pass after that of the prompt."""
    context = Context([TargetId(i) for i in (5, 17, 3)])
    session = TargetModelSession(model)
    limits = Limits(max_tokens=60, most_rows=most, target=session)
    verifier = TargetVerifier(session, Sampling(), store)
    events = decode(context, drafter, verifier, limits=limits)
    _, *rounds = [event for event in events if isinstance(event, Round)]
    return list(context.emitted), max(one.rows for one in rounds)


def test_with_as_many_rows_as_are_exact_the_output_is_plain_decodings() -> None:
    """Without that bound it is not: larger passes of this model choose other ids."""
    model, store = made_of(Reversed), LogitStore()
    plain, _ = emitted(model, NoDrafter(), store, UNBOUNDED)
    exact, rows = emitted(model, Hybrid(logit_sources(store), rows=15), store, MOST)
    assert (exact, rows) == (plain, MOST)
    store = LogitStore()
    emitted(model, NoDrafter(), store, UNBOUNDED)
    other, rows = emitted(model, Hybrid(logit_sources(store), rows=15), store, UNBOUNDED)
    assert rows > MOST
    assert other != plain
