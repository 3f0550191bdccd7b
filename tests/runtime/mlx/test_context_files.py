"""Contexts on disk: they change no id that is emitted, and no broken file is used."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import zoo

from tokalign.runtime.mlx import context_files
from tokalign.runtime.mlx.context_file import digest_of, read_header
from tokalign.runtime.mlx.context_files import ContextFiles
from tokalign.runtime.mlx.contexts import NOTHING, Held
from tokalign.runtime.mlx.layers import forgets, leaves_of, remember, remembered
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.remembered import forget_remembered
from tokalign.storage import contexts_folder
from tokalign.tokenizer.vocabulary import TargetId

QUANTIZED = CacheOptions(kv_bits=8, kv_group_size=32, quantized_kv_start=0, prefill_step_size=8)
KINDS = {
    "full": ("gpt2", CacheOptions()),
    "sliding": ("gemma3_text", CacheOptions()),
    "rotating": ("qwen2", CacheOptions(max_kv_size=48)),
    "recurrent": ("mamba2", CacheOptions()),
    "hybrid": ("qwen3_next", CacheOptions()),
    "both in a layer": ("falcon_h1", CacheOptions()),
    "latent": ("deepseek_v32", CacheOptions()),
    "chunks": ("llama4", CacheOptions()),
    "quantized": ("qwen2", QUANTIZED),
}
WALKED = [kind for kind in KINDS if kind != "rotating"]
"""With `max_kv_size` a fresh run emits something else anyway: what a row sees of a full ring
depends on where its pass begins, as in mlx-lm."""

TURNS, IDS = 5, 400


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path))


def opened(kind: str = "full", owner: str = "a", **given: Any) -> ContextFiles:
    name, options = KINDS[kind]
    given = {"note": pytest.fail, **given}
    return ContextFiles(zoo.zoo_model(name), options, owner=owner, **given)


def read(kind: str, ids: list[int], held: Held = NOTHING) -> tuple[list[int], Held]:
    """Eight ids after these ones, and what the cache holds then."""
    name, options = KINDS[kind]
    session = TargetModelSession(zoo.zoo_model(name), options, rewinds=False)
    if held.layers:
        session.adopt(held.layers, [TargetId(i) for i in held.ids])
    text = [TargetId(i) for i in ids]
    for _ in range(8):
        text.append(TargetId(int(mx.argmax(session.logits(text)).item())))
    session.settle(text[:-1])
    return list(text[len(ids) :]), Held(list(session.layers), list(text[:-1]))


def text_of(draw: Random, least: int, most: int) -> list[int]:
    return [draw.randrange(1, 60) for _ in range(draw.randint(least, most))]


def next_prompt(draw: Random, systems: list[list[int]], prompt: list[int]) -> list[int]:
    match draw.choice(["append", "append", "edit", "regenerate", "system", "trim"]):
        case "append":
            return prompt + text_of(draw, 5, 60)
        case "edit":
            place = draw.randrange(len(prompt))
            return [*prompt[:place], draw.randrange(1, 60), *prompt[place + 1 :]]
        case "system":
            return draw.choice(systems) + text_of(draw, 5, 60)
        case "trim":
            return prompt[: draw.randint(1, len(prompt))]
        case _:
            return prompt


def walk(kind: str, seed: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yields for each turn: ids found on disk, what was emitted, and what a fresh run emits."""
    draw = Random(f"{kind} {seed}")
    systems = [text_of(draw, 20, 60) for _ in range(2)]
    files, prompt = opened(kind), draw.choice(systems) + text_of(draw, 5, 60)
    for _ in range(TURNS):
        held = files.fetch(prompt)
        assert held.ids == prompt[: len(held.ids)]
        answer, left = read(kind, prompt, held)
        yield len(held.ids), answer, read(kind, prompt)[0]
        files.keep(left)
        match draw.choice(["go on", "restart", "kill"]):
            case "restart":
                files.save()
                files = opened(kind)
            case "kill":
                files._due.clear()
                files = opened(kind)
            case _:
                files.save()
        prompt = next_prompt(draw, systems, prompt + answer)[:IDS]


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 25))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", WALKED)
def test_a_walk_emits_what_fresh_runs_emit(kind: str, seed: int) -> None:
    """With appended, edited and cut prompts, regenerated answers, restarts and kills."""
    for _, answer, expected in walk(kind, seed):
        assert answer == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_found_after_a_restart_is_what_was_kept(kind: str) -> None:
    files, ids = opened(kind), text_of(Random(1), 100, 100)
    left = read(kind, ids)[1]
    files.keep(left)
    files.save()
    held = opened(kind).fetch([*left.ids, 5])
    assert held.ids == left.ids
    assert left.layers is not None
    assert held.layers is not None
    before, after = leaves_of(left.layers), leaves_of(held.layers)
    assert [type(leaf) for leaf in before] == [type(leaf) for leaf in after]
    size = sum(path.stat().st_size for path in contexts_folder().rglob("*.safetensors"))
    assert size <= 1.1 * sum(leaf.nbytes for leaf in before) + 20_000
    edited = opened(kind).fetch([*left.ids[:60], 5, 6])
    assert len(edited.ids) == (0 if forgets(left.layers) else 60)


def test_turns_share_the_file_of_their_beginning() -> None:
    files, ids = opened(), text_of(Random(2), 200, 200)
    for length in (80, 120, 200):
        files.keep(read("full", ids[:length])[1])
        files.save()
    files.keep(read("full", [*ids[:50], *text_of(Random(3), 40, 40)])[1])
    files.save()
    sizes = [path.stat().st_size for path in contexts_folder().rglob("*.safetensors")]
    whole = 2 * sum(leaf.keys[..., :1, :].nbytes for leaf in read("full", ids[:20])[1].layers or [])
    assert len(sizes) == 4
    assert sum(sizes) < 1.1 * whole * (207 + 50) + 20_000
    assert opened().fetch(ids).ids == ids[:199]


@pytest.mark.parametrize("kind", ["full", "hybrid"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "renamed", "other header"])
def test_a_file_that_was_changed_is_refused_and_made_again(kind: str, damage: str) -> None:
    files, ids = opened(kind), text_of(Random(4), 60, 60)
    answer, left = read(kind, ids)
    files.keep(left)
    files.save()
    (path,) = contexts_folder().rglob("*.safetensors")
    data = bytearray(path.read_bytes())
    match damage:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "flipped":
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
        case "empty":
            path.write_bytes(b"")
        case "renamed":
            path.rename(path.with_name(path.name.replace(path.stem[-5:], "00000")))
        case _:
            mx.save_safetensors(str(path), {"ids": mx.array([1, 2])}, {"format": "another"})
    notes: list[str] = []
    again = opened(kind, note=notes.append)
    assert again.fetch([*left.ids, 5]) == NOTHING
    assert len(notes) == 1
    assert "made again" in notes[0]
    assert not list(contexts_folder().rglob("*.safetensors"))
    assert again.keep(read(kind, ids, again.fetch(ids))[1])
    again.save()
    assert read(kind, ids, opened(kind).fetch(ids))[0] == answer


@pytest.mark.parametrize("reads", ["read_header", "read_arrays"])
@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(), OSError(24, "Too many open files"), RuntimeError("[malloc] no room")],
    ids=repr,
)
def test_a_sound_file_that_cannot_be_read_now_is_read_later(
    error: Exception, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors does not find a file that there are too many open files for."""
    files, left = opened(), read("full", [1] * 60)[1]
    files.keep(left)
    files.save()

    def fails(_: Path) -> Any:
        raise error

    again = opened()
    with monkeypatch.context() as patch:
        patch.setattr(context_files, reads, fails)
        assert again.fetch([*left.ids, 5]) == NOTHING
    assert again.fetch([*left.ids, 5]).ids == left.ids


def test_a_file_that_mlx_cannot_open_now_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises the same error for too many open files as for damaged ones."""
    files, left = opened(), read("full", [1] * 60)[1]
    files.keep(left)
    files.save()

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("[load_safetensors] Failed to open file")

    again = opened()
    with monkeypatch.context() as patch:
        patch.setattr("mlx.core.load", fails)
        assert again.fetch([*left.ids, 5]) == NOTHING
    assert again.fetch([*left.ids, 5]).ids == left.ids


def test_a_forged_file_with_a_right_digest_is_refused() -> None:
    """Somebody who may enter the folder: shapes, kinds and parts that do not belong together."""
    files, ids = opened(), text_of(Random(5), 60, 60)
    left = read("full", ids)[1]
    files.keep(left)
    files.save()
    (path,) = contexts_folder().rglob("*.safetensors")
    loaded: Any = mx.load(str(path), return_metadata=True)
    arrays, header = loaded
    fields = json.loads(header["node"])
    mx.eval(arrays)
    forged = path.with_name("forged.safetensors")
    changes: tuple[tuple[dict[int, Any], str | None], ...] = (
        ({3: ["ArraysCache"] * len(fields[3])}, None),
        ({3: fields[3][:1]}, None),
        ({2: 30}, None),
        ({}, "0.1"),
        ({3: ["RotatingKVCache"] * len(fields[3])}, None),
    )
    for changed, without in changes:
        path.unlink(missing_ok=True)
        new = {name: array for name, array in arrays.items() if name != without}
        said = [changed.get(place, field) for place, field in enumerate(fields)]
        mx.save_safetensors(str(forged), new, header | {"node": json.dumps(said)})
        path = path.with_name(f"{said[0]}-{digest_of(forged)}.safetensors")
        forged.rename(path)
        notes: list[str] = []
        assert opened(note=notes.append).fetch([*left.ids, 5]) == NOTHING
        assert len(notes) == 1, said


def test_another_owner_model_window_or_quantization_finds_nothing() -> None:
    files, ids = opened(), text_of(Random(6), 60, 60)
    left = read("full", ids)[1]
    files.keep(left)
    files.save()
    assert opened().fetch([*left.ids, 5]) != NOTHING
    assert opened(owner="b").fetch([*left.ids, 5]) == NOTHING
    qwen2, changed = zoo.zoo_model("qwen2"), {"owner": "a", "note": pytest.fail}
    read_ids = read("rotating", ids)[1]
    ContextFiles(qwen2, KINDS["rotating"][1], **changed).keep(read_ids)
    for options in (CacheOptions(), QUANTIZED, CacheOptions(max_kv_size=64)):
        assert ContextFiles(qwen2, options, **changed).fetch([*read_ids.ids, 5]) == NOTHING


def test_only_the_user_may_enter_the_folders() -> None:
    files = opened()
    files.keep(read("full", text_of(Random(7), 60, 60))[1])
    files.save()
    folders = [contexts_folder(), *(p for p in contexts_folder().rglob("*") if p.is_dir())]
    assert len(folders) == 3
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_the_bytes_are_bounded_and_the_latest_stay() -> None:
    draw = Random(8)
    lefts = [read("full", text_of(draw, 60, 60))[1] for _ in range(4)]
    files = opened()
    files.keep(lefts[0])
    files.save()
    (path,) = contexts_folder().rglob("*.safetensors")
    size = path.stat().st_size
    files = opened(most_bytes=3 * size + 100)
    for number, left in enumerate(lefts[1:3], 1):
        files.keep(left)
        files.save()
        os.utime(files._chain(list(files._nodes.values())[-1])[0].path, (number, number))  # type: ignore[union-attr]
    assert files.fetch([*lefts[0].ids, 5]) != NOTHING  # which is used again, so it stays
    files.keep(lefts[3])
    files.save()
    found = [opened().fetch([*left.ids, 5]) != NOTHING for left in lefts]
    assert found == [True, False, True, True]
    assert sum(p.stat().st_size for p in contexts_folder().rglob("*.safetensors")) <= 3 * size + 100
    assert [len(read_header(path).ids) for path in contexts_folder().rglob("*.safetensors")] == [
        67
    ] * 3
    forget_remembered()
    assert not [*contexts_folder().rglob("*.safetensors")]


def test_a_context_is_not_kept_where_memory_has_no_room_for_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, held = read("full", [1] * 40)
    notes, room = list[str](), mx.get_active_memory() + 30_000
    monkeypatch.setattr(context_files, "working_set", lambda: room)
    files = opened(note=notes.append)
    assert not files.keep(held)
    assert not files.keep(held)
    assert len(notes) == 1


def test_the_draft_model_s_context_comes_back_beside_the_target_s() -> None:
    draft = opened("rotating", owner="a")  # of qwen2
    files = opened(draft=draft)
    left, theirs = (read(kind, text_of(Random(9), 40, 40))[1] for kind in ("full", "rotating"))
    assert theirs.layers is not None
    remember(theirs.layers, theirs.ids)
    files.keep(left._replace(draft=theirs.layers))
    files.save()
    draft.save()
    again = opened(draft=opened("rotating"))
    held = again.fetch([*left.ids[:40], 5])
    assert held.ids == left.ids[:40]
    assert remembered(held.draft) == theirs.ids[: len(theirs.ids) - (len(left.ids) - 40)]
    own = np.array(leaves_of(held.draft)[0].keys)
    assert np.array_equal(own[..., :30, :], np.array(theirs.layers[0].keys)[..., :30, :])


def test_sessions_go_on_from_disk_as_if_they_had_read_it() -> None:
    model, ids = zoo.zoo_model("gpt2"), text_of(Random(10), 90, 90)
    first = TargetModelSession(model)
    expected = int(mx.argmax(first.logits([TargetId(i) for i in ids])).item())
    files = opened()
    files.keep_of(first, None)
    files.save()
    again = TargetModelSession(model)
    assert opened().resume(ids, again, None) == len(ids) - 1
    assert int(mx.argmax(again.logits([TargetId(i) for i in ids])).item()) == expected
    assert again.rows == 1
    assert files.resume(ids, first, None) == len(ids) - 1


def test_what_cannot_be_rewound_makes_way_for_an_earlier_turn_on_disk() -> None:
    """After `/retry`, `chat` reads the turns after it, not the whole conversation."""
    session, files = TargetModelSession(zoo.zoo_model("qwen3_next")), opened("hybrid")
    ids = [TargetId(i) for i in text_of(Random(11), 140, 140)]
    for end in (70, 140):
        mx.eval(session.logits(ids[:end]))
        files.keep_of(session, None)
        files.save()
    edited = [*ids[:100], TargetId(5)]
    assert files.resume(ids, session, None) == 70  # of all that it holds, none is left to read
    assert files.resume(edited, session, None) == 70
    rows = session.logits(edited)
    alone = TargetModelSession(zoo.zoo_model("qwen3_next")).logits(edited)
    assert mx.allclose(rows, alone, atol=1e-4)
