"""A target's top-k logits are kept between processes, privately, and never gets in the way."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from click.testing import CliRunner
from trees import ids
from written_tables import write_bundle

import tokalign
from tokalign.api.assemble import assemble
from tokalign.cli.tables import command as tables
from tokalign.runtime import remembered
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.context_copy import SEPARATOR, ContextCopy
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.remembered import (
    OutputStore,
    RememberedStore,
    forget_remembered,
    open_remembered,
    remembered_folder,
    session_store,
)
from tokalign.runtime.rounds import Context
from tokalign.runtime.written_later import WrittenLater
from tokalign.tables.bundle import read_bundle
from tokalign.tables.logit_rows import KEPT
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

TOKENIZER, WIDTH = "ab" * 32, 1000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path))


def reopened(notes: list[str], *, model: str = "cd" * 32, width: int = WIDTH) -> RememberedStore:
    """The store of a new process. notes: get what it says."""
    remembered._open.clear()
    store = open_remembered(model, TOKENIZER, width, note=notes.append)
    assert isinstance(store, RememberedStore)
    return store


def teach(store: LogitStore, *texts: tuple[int, int]) -> None:
    """For each pair of ids a row of its own after them."""
    for one, two in texts:
        likely = (np.arange(KEPT)[None] + 7 * one + two) % WIDTH
        logprobs = np.log(0.5) * (1 + np.arange(KEPT))[None]
        store.learn([TargetId(one), TargetId(two)], TokenTree(), likely, logprobs)


def content(store: LogitStore) -> list[Any]:
    rows = store.rows
    return [rows.keys.tolist(), rows.ids.tolist(), rows.codes.tolist()]


def test_a_new_process_begins_with_exactly_the_old_rows_in_a_private_folder() -> None:
    notes: list[str] = []
    store = reopened(notes)
    assert len(store) == 0
    teach(store, *[(n, n + 1) for n in range(0, 900, 3)])
    trust = store.mixing.trust(("copy", "logits:2"))
    trust.learn([(0.5, trust.of[1, 3, 0], True)])
    store.save()
    again = reopened(notes)
    assert content(again) == content(store)
    learned = [one.mixing.trust(("copy", "logits:2")).learned() for one in (store, again)]
    assert learned[0] == learned[1] != []
    assert len(again) > 500
    assert stat.S_IMODE(again.path.parent.stat().st_mode) == 0o700
    assert again.path.stat().st_size <= store.nbytes + 4096
    written = again.path.stat().st_mtime_ns
    again.save()
    assert again.path.stat().st_mtime_ns == written, "there was nothing new"
    assert len(notes) == 2
    assert len(reopened(notes, model="ef" * 32)) == 0, "another target has other rows"
    assert len(reopened(notes, width=900)) == 0, "this one lacks some of the ids"
    assert "cannot be used" in notes[-2]
    left = again.path.with_name(".left by a killed process.partial")
    left.touch()
    os.utime(left, (0, 0))
    reopened(notes)
    assert [*again.path.parent.iterdir()] == [again.path]


def flip(path: Path) -> None:
    data = path.read_bytes()
    at = len(data) // 2
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def with_trust(section: bytes) -> Callable[[Path], object]:
    """Puts this in the place of what was learned about sources."""

    def forge(path: Path) -> None:
        bundle = read_bundle(path)
        sections = {**bundle.sections, "logits.trust": section}
        write_bundle(path, replace(bundle, sections=sections))

    return forge


FORGED = (5, [[1, 2]], [[["a"], [[1, 2]]]], [[["a"], [[1, 2, 3, -1.0, 1.0]]]], {"a": 1})
BROKEN: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "a bit": flip,
    "huge": lambda path: os.truncate(path, 1 << 40),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "unreadable": lambda path: path.write_bytes(b"tokalign" + bytes(1000)),
    "no trust": with_trust(b"\xc1"),
    **{f"trust {forged}": with_trust(msgpack.packb(forged)) for forged in FORGED},
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_said_once_and_the_store_begins_empty(how: str) -> None:
    notes: list[str] = []
    store = reopened(notes)
    teach(store, (1, 2), (3, 4))
    store.save()
    BROKEN[how](store.path)
    notes.clear()
    again = reopened(notes)
    assert len(again) == 0
    assert len([line for line in notes if "cannot be used" in line]) == 1
    assert all("\n" not in line for line in notes)
    teach(again, (5, 6))
    again.save()
    again.save()
    usable = how not in ("folder", "pipe")
    assert len(notes) == (2 if usable else 3)
    assert (len(reopened(notes)) > 0) == usable


def test_two_processes_keep_what_both_have_learned() -> None:
    notes: list[str] = []
    one, other = reopened(notes), reopened(notes)
    teach(one, (1, 2))
    teach(other, (300, 400))
    one.save()
    other.save()
    teach(one, (5, 6))
    one.save()
    rows = content(reopened(notes))[0]
    for store in (one, other):
        assert set(content(store)[0]) <= set(rows)
    assert len(rows) == 9 == len(one)


def test_a_forgotten_target_stays_forgotten_by_processes_that_run() -> None:
    store = reopened([])
    teach(store, (1, 2))
    store.save()
    (remembered_folder() / ".DS_Store").touch()  # as Finder does in each folder that it shows
    done = CliRunner().invoke(tables, ["forget", "--remembered"], catch_exceptions=False)
    assert done.output == f"forgotten  {store.path.parent}\n"
    teach(store, (3, 4))
    store.save()
    assert not store.path.parent.exists()
    assert forget_remembered() == []


def test_an_earlier_output_is_copied_to_its_end() -> None:
    store = OutputStore()
    store.add(ids(1, 2, 3, 4))
    store.add(ids(5, 6, 1, 2))
    drafter = TreeDrafter([ContextCopy(store.text)])
    proposal = drafter.propose(Context(ids(9, 5, 6)), 8)
    assert proposal.tree.ids[:2] == (1, 2)
    assert SEPARATOR not in proposal.tree.ids
    assert set(proposal.tree.sources) == {"session"}
    assert TreeDrafter([ContextCopy(store.text)]).propose(Context(ids(9, 3, 4)), 8).tree.ids == ()


def test_the_newer_outputs_are_kept() -> None:
    store = OutputStore(most_ids=40)
    for first in range(0, 300, 10):
        store.add(ids(*range(first, first + 9)))
        assert len(store.text) <= 40
        assert list(store.text.ids[-10:]) == [*range(first, first + 9), SEPARATOR]
    assert len(store.text) >= 20
    store.add(ids(*range(1000, 1100)))
    assert list(store.text.ids[-21:]) == [*range(1080, 1100), SEPARATOR]


def test_a_store_is_of_use_after_an_interrupt_at_any_place(monkeypatch: pytest.MonkeyPatch) -> None:
    add, output = SuffixAutomaton._add, ids(1, 2, 1, 2, 2, 1, 2, 1, 1)
    for calls in range(1, 12):
        store, left = OutputStore(), count(calls, -1)

        def interrupted(self: Any, *state: Any, left: Iterator[int] = left) -> int:
            if next(left) == 0:
                raise KeyboardInterrupt
            return add(self, *state)

        monkeypatch.setattr(SuffixAutomaton, "_add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.add(output)
        store.add(output)
        expected = SuffixAutomaton([*output, SEPARATOR])
        for size in range(1, len(output)):
            copies = [ContextCopy(text) for text in (store.text, expected)]
            found, known = (copy.expect(copy.follow(output[:size])) for copy in copies)
            assert found == known


def test_a_known_session_is_found_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    tokalign.clear_session()
    made: list[OutputStore] = []

    class Counted(OutputStore):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(remembered, "OutputStore", Counted)
    known = session_store("known", "f", 1000)
    for user in range(100):
        session_store(f"user {user}", "f", 1000)
        assert session_store("known", "f", 1000) is known, "it was used lately"
        assert len(remembered._SESSIONS._stores) <= 16
    assert len(made) == 101, "no store is made for a session that has one"
    assert session_store("user 0", "f", 1000) is not made[1], "it was dropped"
    tokalign.clear_session("known")
    assert session_store("known", "f", 1000) is not known
    tokalign.clear_session()


def test_a_decoder_has_it_written_by_another_thread(
    target: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokalign.runtime.decoder.LATER", later := WrittenLater(pause=0.0))
    model: LanguageModel[Any] = LanguageModel(**target)
    decoder = assemble(model, None, DraftingOptions(method="hybrid", remember=True))
    store = decoder.drafting.logits
    assert isinstance(store, RememberedStore)
    teach(store, (1, 2))
    decoder.remember()
    later.write_now()
    assert store.path.exists()


@pytest.fixture(scope="module")
def target(models: dict[str, str]) -> dict[str, Any]:
    model: LanguageModel[Any] = LanguageModel.from_folder(Path(models["target"]))
    return {"model": model.model, "tokenizer": model.tokenizer}


def test_a_session_is_off_by_default_scoped_and_clearable(target: dict[str, Any]) -> None:
    def tokens_and_sources(**more: Any) -> tuple[list[int], set[str]]:
        # The length is fixed, because on a busy machine the controller may draft nothing.
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
