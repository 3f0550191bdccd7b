"""Earlier outputs: copied inside their session only, and dropped on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from random_models import write_model

import tokalign
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.context_copy import SEPARATOR, ContextCopy
from tokalign.runtime.draft.hybrid import Hybrid
from tokalign.runtime.mlx.model_arguments import vocabulary_size
from tokalign.runtime.remembered import OutputStore, session_store
from tokalign.runtime.rounds import Context
from tokalign.tokenizer.vocabulary import TargetId


def ids(*numbers: int) -> tuple[TargetId, ...]:
    return tuple(map(TargetId, numbers))


def test_an_earlier_output_is_copied_to_its_end() -> None:
    store = OutputStore()
    store.add(ids(1, 2, 3, 4))
    store.add(ids(5, 6, 1, 2))
    drafter = Hybrid([ContextCopy(store.text)])
    proposal = drafter.propose(Context(ids(9, 5, 6)), 8)
    assert proposal.tree.ids[:2] == (1, 2)
    assert SEPARATOR not in proposal.tree.ids
    assert set(proposal.tree.sources) == {"session"}
    assert Hybrid([ContextCopy(store.text)]).propose(Context(ids(9, 3, 4)), 8).tree.ids == ()


def test_the_newer_outputs_are_kept() -> None:
    store = OutputStore(most_ids=40)
    for first in range(0, 300, 10):
        store.add(ids(*range(first, first + 9)))
        assert len(store.text) <= 40
        assert list(store.text.ids[-10:]) == [*range(first, first + 9), SEPARATOR]
    assert len(store.text) >= 20
    store.add(ids(*range(1000, 1100)))
    assert list(store.text.ids[-21:]) == [*range(1080, 1100), SEPARATOR]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = write_model(tmp_path_factory.mktemp("m") / "target", vocabulary_size=420)
    model = LanguageModel.from_folder(folder)
    return {"model": model.model, "tokenizer": model.tokenizer}


def test_a_session_is_off_by_default_scoped_and_clearable(target: dict[str, Any]) -> None:
    def tokens_and_sources(**more: Any) -> tuple[list[int], set[str]]:
        # The length is fixed, because on a busy machine the planner may draft nothing.
        how = {"max_tokens": 24, "num_draft_tokens": 4, **target, **more}
        responses = list(tokalign.stream_generate(prompt="Zażółć", **how))
        return [r.token for r in responses], {r.source for r in responses}

    tokalign.clear_session()
    plain, sources = tokens_and_sources()
    assert "session" not in sources
    first, sources = tokens_and_sources(session="a")
    assert "session" not in sources, "there was nothing earlier"
    again, sources = tokens_and_sources(session="a")
    assert "session" in sources
    assert plain == first == again
    assert "session" not in tokens_and_sources()[1]
    assert "session" not in tokens_and_sources(session="b")[1]
    tokalign.clear_session("a")
    assert "session" not in tokens_and_sources(session="a")[1]
    tokalign.clear_session()


def test_an_interrupted_output_is_kept_as_far_as_it_came(target: dict[str, Any]) -> None:
    tokalign.clear_session()
    responses = tokalign.stream_generate(prompt="Zażółć", max_tokens=24, session="c", **target)
    shown = [next(responses).token for _ in range(3)]
    responses.close()
    width = vocabulary_size(target["model"])
    kept = list(session_store("c", target["tokenizer"].fingerprint, width).text.ids)
    assert kept[:3] == shown
    assert kept[-1] == SEPARATOR
    tokalign.clear_session()
