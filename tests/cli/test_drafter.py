"""A recurrent drafter in the commands and the API: found, named, refused, pushed, pulled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from command_lines import run
from places import DEMO
from random_drafters import random_drafter, write_drafter
from random_models import write_model
from ticking import ticking

import tokalign
from tokalign.api.assemble import load_decoder
from tokalign.errors import BundleError, FingerprintError, IncompatibleError, MissingAssetError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.drafting import PLAINLY
from tokalign.runtime.mlx.drafter_folder import find_drafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Round

PROMPT = "Wisła jest"
TOKENS = 30
TARGET, DRAFTER, DRAFT = (DEMO / name for name in ("target", "drafter", "draft"))


def decoded(target: Path, *words: object) -> Any:
    given = ("--target", target, "-p", PROMPT, "--ignore-chat-template", "-m", TOKENS, "--json")
    return run("decode", *given, *words).json


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path / "tables"))
    return tmp_path / "tables"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--method", "drafter"),
        ("--method", "drafter", "--num-draft-tokens", "3"),
        ("--method", "hybrid", "--num-draft-tokens", "3"),
        (),
    ],
    ids=" ".join,
)
def test_it_saves_passes_and_changes_nothing(arguments: tuple[str, ...]) -> None:
    plain = decoded(TARGET, "--method", "plain")
    found = decoded(TARGET, "--drafter", DRAFTER, *arguments)
    assert found["token_ids"] == plain["token_ids"]
    if len(arguments) > 2:  # else every round decides by its clock whether to draft
        assert found["tokens_per_round"] > 1.3
        assert found["per_source"]["drafter"]["accepted"] > 5


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("how", ["rows", "length", "by gain"])
def test_a_draft_model_and_a_drafter_draft_together(how: str, temperature: float) -> None:
    """With given rows both are asked in every round, else the one that pays."""
    given: dict[str, Any] = {"rows": {"draft_rows": 15}, "length": {"num_draft_tokens": 3}}
    options = DraftingOptions(drafter=DRAFTER, **given.get(how, {}))
    sampler = Sampling(temperature=temperature, seed=3)
    decoder = load_decoder(str(TARGET), str(DRAFT), options, dtype="float32")
    if how == "by gain":
        assert decoder.drafting.knowledge is not None
        assert {*decoder.drafting.knowledge.models} == {"draft", "drafter"}
    prompt = decoder.prompt(PROMPT, use_template=False)
    request = Request(prompt, max_tokens=60, sampler=sampler, stop_ids=frozenset())
    decoding = decoder.begin(replace(request, options=PLAINLY))
    expected, events = decoding.context, iter(decoding)
    assert [*events]
    decoding = decoder.begin(request)
    context, events = decoding.context, iter(decoding)
    rounds = [event for event in events if isinstance(event, Round)]
    assert context.emitted == expected.emitted
    if how == "rows":
        together = [{"draft", "drafter"} <= {*one.tree.sources} for one in rounds]
        assert sum(together) > len(rounds) / 4


@pytest.mark.parametrize("place", ["beside", "pushed", "pulled"])
def test_it_is_found(place: str, tmp_path: Path, tables: Path) -> None:
    """Beside the model, where `push` puts it there, or in the table folder after `pull`."""
    model, repository = copytree(TARGET, tmp_path / "model"), tmp_path / "repository"
    if place == "beside":
        copytree(DRAFTER, model / "drafter")
    elif place == "pushed":
        mine = copytree(DRAFTER, tmp_path / "mine")
        assert "mine.drafter" in run("tables", "push", mine, model).out
        assert (model / "tokalign" / "mine.drafter" / "config.json").is_file()
    else:
        repository.mkdir()
        run("tables", "push", DRAFTER, repository)
        pulled = Path(run("tables", "pull", repository).out.strip())
        assert pulled == tables / "pulled" / "repository" / "drafter"
    found = decoded(model, "--method", "drafter", "--num-draft-tokens", "4")
    assert found["tokens_per_round"] > 1.3
    notes: list[str] = []
    loaded, tokenizer = mlx_lm.load(str(model))
    options: dict[str, Any] = {"max_tokens": TOKENS, "note": notes.append, "num_draft_tokens": 4}
    responses = list(tokalign.stream_generate(loaded, tokenizer, PROMPT, **options))
    assert any(note.startswith("drafter -> ") for note in notes)
    assert any("trained drafter" in note for note in notes)
    assert {one.source for one in responses} > {"target"}


def test_a_model_s_drafter_is_loaded_once(tmp_path: Path) -> None:
    model = copytree(TARGET, tmp_path / "model")
    copytree(DRAFTER, model / "x.drafter")
    other = copytree(DRAFTER, model / "drafter") / "training.json"
    other.write_text(json.dumps({"target": {"tokenizer": "another"}}))
    target: LanguageModel[Any] = LanguageModel.from_folder(model)
    assert find_drafter(target) is find_drafter(target) is not None


def test_a_drafter_that_does_not_fit_is_refused_by_name_and_passed_over_if_found(
    tmp_path: Path,
) -> None:
    other = copytree(TARGET, tmp_path / "other")
    weights = mx.load(str(TARGET / "model.safetensors"))
    mx.save_safetensors(str(other / "model.safetensors"), {n: 2 * w for n, w in weights.items()})
    for folder, error in ((other, IncompatibleError), (DRAFT, FingerprintError)):
        with pytest.raises(error, match="drafter"):
            load_decoder(str(folder), None, DraftingOptions(drafter=DRAFTER))
        model, notes = copytree(folder, tmp_path / "model" / folder.name), list[str]()
        copytree(DRAFTER, model / "drafter")
        decoder = load_decoder(str(model), None, DraftingOptions(), note=notes.append)
        assert decoder.drafter is None
        assert sum("it is not used" in note for note in notes) == (folder == other)


def test_a_damaged_drafter_is_neither_pushed_nor_used(tmp_path: Path) -> None:
    broken = copytree(DRAFTER, tmp_path / "broken")
    [weights] = broken.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-3])
    decode = ("decode", "--target", TARGET, "-p", PROMPT, "--drafter", broken)
    run(*decode).is_refused(3, "model.safetensors", "fetch it again")
    weights.unlink()
    run("tables", "push", broken, tmp_path).is_refused(3, "broken lacks its weights")
    assert not (tmp_path / "tokalign").exists()


def test_what_cannot_be_done_is_one_line() -> None:
    for options, error, told in (
        ({"method": "drafter"}, MissingAssetError, "tokalign train"),
        ({"drafter": DRAFTER / "missing"}, MissingAssetError, "does not exist"),
        ({"drafter": DRAFT}, BundleError, "give another one, or a draft model"),
    ):
        given: dict[str, Any] = options
        with pytest.raises(error, match=told) as caught:
            load_decoder(str(TARGET), None, DraftingOptions(**given))
        assert "\n" not in str(caught.value)


def test_with_a_draft_model_none_is_looked_for(tmp_path: Path) -> None:
    model = copytree(TARGET, tmp_path / "model")
    copytree(DRAFTER, model / "drafter")
    decoder = load_decoder(str(model), str(DRAFT), DraftingOptions())
    assert decoder.draft is not None
    assert decoder.drafter is None


def test_calibrate_times_the_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    target = write_model(tmp_path / "target", vocabulary_size=340)
    loaded: LanguageModel[Any] = LanguageModel.from_folder(target)
    write_drafter(tmp_path / "mine", random_drafter(loaded.model), loaded)
    calibrate: list[object] = ["calibrate", "--target", target, "--drafter", tmp_path / "mine"]
    calibrate += ["--budget", 2, "--json"]
    with ticking():
        measured = run(*calibrate).json
    assert measured["draft_pass"][0] > 0
    assert measured["tree_pass"][0] >= 0
    assert "nothing has changed" in run(*calibrate).err


@pytest.mark.parametrize("place", ["named", "beside"])
def test_chat_times_the_drafter_before_the_first_turn(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the target was measured before: what a beam search costs is not known then."""
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    target, named = copytree(TARGET, tmp_path / "target"), ("--drafter", DRAFTER)

    def measured(*arguments: str | Path) -> list[Any]:
        """The curves after a chat that ends at once."""
        with ticking(0.02):
            ended = run("chat", "--target", target, *arguments)
        assert ended.code == 0, ended.err
        folder = tmp_path / "cache" / "curves"
        return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]

    assert measured("--method", "plain") == [], "nothing is chosen by what passes cost"
    [alone] = measured()
    assert alone["draft_pass"] is None
    if place == "beside":
        copytree(DRAFTER, target / "drafter")
        named = ()
    [curve] = [curve for curve in measured(*named) if curve != alone]
    first, further = curve["draft_pass"][0], curve["tree_pass"][0]
    decoder = load_decoder(str(target), None, DraftingOptions(drafter=named[1] if named else None))
    assert decoder.drafting.knowledge is not None
    known = decoder.drafting.knowledge
    times = known.models["drafter"].times(4, known.costs.plain)
    assert [times[0], times[3]] == pytest.approx([first, first + 3 * further])
    assert len(measured(*named)) == 2, "once"
