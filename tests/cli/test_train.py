"""`tokalign train`: a folder that loads, killed or not; an estimate; and its errors."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from shlex import split
from shutil import copytree
from typing import Any

import mlx.core as mx
import pytest
from command_lines import Ended, start
from command_lines import run as tokalign
from killed_runs import files
from random_models import random_model, write_model

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import named_drafter

SMALL = ["--positions=600", "--held-out=64", "--window=32", "--width=32", "--candidates=0"]
QUICK = ["--batch=64", "--epochs=40", "--learning-rate=0.01", "--evaluations=20"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("m") / "target", vocabulary_size=340)


def arguments(target: Path, sentences: Path, output: Path, *more: str) -> list[str]:
    given = ["--target", str(target), str(sentences), "--output", str(output)]
    return [*given, *SMALL, *QUICK, *more]


def run(target: Path, sentences: Path, output: Path, *more: str) -> Ended:
    return tokalign("train", *arguments(target, sentences, output, *more))


@pytest.fixture(scope="module")
def trained(
    target: Path, sentences: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Ended]:
    output = tmp_path_factory.mktemp("d") / "drafter"
    return output, run(target, sentences, output, "--json")


def test_it_writes_a_drafter_of_the_target(target: Path, trained: tuple[Path, Ended]) -> None:
    output, result = trained
    model: LanguageModel[Any] = LanguageModel.from_folder(target)
    found = result.json
    assert named_drafter(output, model).config.parameters == found["parameters"]
    told = json.loads((output / "training.json").read_bytes())
    assert sum(told["accepted_by_depth"]) == pytest.approx(found["accepted_per_round"], abs=1e-3)
    assert found["accepted_per_round"] > 0.1
    assert (output.parent / "drafter.training" / "labels" / "labels.bin").is_file()


def test_it_tells_how_far_it_is(trained: tuple[Path, Ended]) -> None:
    lines = [line for line in trained[1].err.splitlines() if line.startswith("step ")]
    assert len(lines) >= 5
    assert all("accepted per round" in line for line in lines)


def test_a_killed_process_is_resumed_by_the_same_command(
    target: Path, sentences: Path, trained: tuple[Path, Ended], tmp_path: Path
) -> None:
    given = arguments(target, sentences, tmp_path / "drafter")
    with start("train", *given, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step "):
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    assert list((tmp_path / "drafter").iterdir()) == []
    assert run(target, sentences, tmp_path / "drafter").code == 0
    assert files(tmp_path / "drafter") == files(trained[0])


def test_labels_of_other_texts_are_refused_before_the_target_writes(
    target: Path, sentences: Path, trained: tuple[Path, Ended]
) -> None:
    ended = run(target, sentences, trained[0], "--from-model=1000")
    ended.is_refused(3, "drafter.training/held-out", "another --workspace")
    assert not list((trained[0].parent / "drafter.training").glob("written*"))


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(
    target: Path, sentences: Path, tmp_path: Path
) -> None:
    more = ("--dry-run", "--json")
    found = run(target, sentences, tmp_path / "drafter", *more).json
    assert found["rows_of_the_target"] == 5 * 664
    assert found["trained_parameters"] > 0
    more += ("--from-model=100",)
    own = run(target, sentences, tmp_path / "drafter", *more).json
    one = run(target, sentences, tmp_path / "drafter", *more, "--labels=greedy").json
    assert one == {**found, **{key: one[key] for key in one if key.endswith("_hours")}}
    assert own["rows_of_the_target"] == 5 * 664 + 101
    for key in ("labels_on_disk_gb", "training_tflop", "labelling_tflop"):
        assert own[key] >= found[key]
    assert list(tmp_path.iterdir()) == []


def test_text_is_needed_to_train_and_not_to_estimate(target: Path, tmp_path: Path) -> None:
    given = ("--target", target, "--output", tmp_path / "drafter")
    tokalign("train", *given).is_refused(2, "FILEs")
    ended = tokalign("train", *given[2:], "text.txt")
    assert (ended.code, "Missing option '--target'" in ended.err) == (2, True)
    assert tokalign("train", *given, "--dry-run").code == 0


def test_lines_that_cannot_be_read_are_skipped_and_named_once(
    target: Path, sentences: Path, tmp_path: Path
) -> None:
    texts = tmp_path / "a.txt"
    texts.write_bytes(b"\xff\n" + sentences.read_bytes())
    ended = run(target, texts, tmp_path / "drafter", "--epochs=1")
    assert ended.code == 0, ended.err
    assert ended.err.count(f"skipped {texts}:1: not UTF-8") == 1


def test_what_cannot_be_trained_on_is_refused(
    target: Path, sentences: Path, tmp_path: Path
) -> None:
    output = tmp_path / "drafter"
    taught = ("train", "--target", target, "--draft", target, "--output", output, sentences)
    tokalign(*taught, "--loss", "kl", "--labels", "text").is_refused(2, "give other --labels")
    tokalign(*taught, "--width", "8").is_refused(2, "--draft")
    assert list(tmp_path.iterdir()) == []
    run(target, tmp_path / "none.txt", output).is_refused(1, "none.txt")
    run(target, sentences, sentences / "drafter").is_refused(2, "cannot be written")
    run(target, sentences, output, "--held-out", "1000000").is_refused(1, "held out")


def test_texts_are_given_as_to_build_and_looked_for_before_anything_loads(
    target: Path, sentences: Path, trained: tuple[Path, Ended], tmp_path: Path
) -> None:
    output = tmp_path / "drafter"
    prompted = ("--from-model", "99", "--prompts", str(sentences))
    for more in ((), ("--dry-run",), prompted):
        ended = run(target, tmp_path / "none.txt", output, *more)
        assert (ended.code, ended.err.splitlines()) == (1, ended.err.splitlines()[:1])
        assert not output.exists()
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / sentences.name).symlink_to(sentences)
    assert run(target, folder, output).code == 0
    assert files(output) == files(trained[0])


def test_the_current_folder_may_be_that_of_the_drafter(
    target: Path, sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (output := tmp_path / "drafter").mkdir()
    monkeypatch.chdir(output)
    assert run(target, sentences, Path(), "--epochs=1", "--evaluations=1").code == 0
    assert (output / "config.json").is_file()
    assert (tmp_path / "drafter.training").is_dir()


@pytest.mark.parametrize("name", ["config.json", "README.md", "model-00001-of-00002.safetensors"])
def test_files_that_it_did_not_write_are_not_replaced(
    name: str, target: Path, sentences: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("of someone")
    run(target, sentences, tmp_path).is_refused(2, name, "give another --output")
    assert (tmp_path / name).read_text() == "of someone"


@pytest.mark.parametrize("kind", [(), ("--kind", "redrafter")])
def test_what_is_no_drafter_is_not_continued(
    kind: tuple[str, ...], target: Path, sentences: Path, tmp_path: Path
) -> None:
    small = ("--target", target, sentences, "--output", tmp_path / "more", *SMALL[:1], *kind)
    refused = tokalign("train", *small, "--begin-with", target)
    refused.is_refused(3, "is no drafter of a known format", "tokalign train")
    assert not list(tmp_path.iterdir()), "before anything is labelled"


def test_neither_its_target_is_replaced_nor_a_drafter_that_it_wrote_kept(
    target: Path, sentences: Path, trained: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = copytree(target, tmp_path / "model")
    (model / "training.json").write_text("{}")
    before = files(model)
    run(model, sentences, model).is_refused(2, "give another --output")
    assert files(model) == before
    again = copytree(trained[0], tmp_path / "drafter")
    assert run(target, sentences, again, "--seed=1").code == 0
    assert files(again) != files(trained[0])


TEACHING = ["--positions=128", "--held-out=32", "--window=32", "--candidates=0", "--epochs=1"]


def test_a_draft_model_with_another_tokenizer_is_taught_and_drafts(
    target: Path, sentences: Path, tmp_path: Path
) -> None:
    draft, output = write_model(tmp_path / "draft", vocabulary_size=300), tmp_path / "taught"
    pair = ("--target", target, "--draft", draft)
    own = tokalign("train", *pair, "--output", draft, sentences)
    own.is_refused(2, "give another --output")
    teach = ("train", *pair, "--output", output, sentences, *TEACHING, "--json")
    estimated = tokalign(*teach, "--dry-run").json
    ended = tokalign(*teach, "--lora=4")
    found = ended.json
    assert "accepted per round before training" in ended.err
    assert found["positions"] > 100
    assert found["parameters"] < estimated["trained_parameters"]
    told = json.loads((output / "training.json").read_text("utf-8"))
    assert told["options"]["losses"] == ["marginal"]
    decode = ("decode", "--target", target, "-p", "Zażółć", "-m", "8", "--json")
    plain, drafted = tokalign(*decode).json, tokalign(*decode, "--draft", output).json
    assert plain["text"] == drafted["text"]


def test_the_command_that_is_advised_can_be_pasted(
    target: Path, sentences: Path, tmp_path: Path
) -> None:
    output = tmp_path / "a drafter"
    ended = run(target, sentences, output, "--epochs=1", "--evaluations=1")
    [line] = [line for line in ended.out.splitlines() if line.startswith("tokalign decode")]
    assert split(line)[-3:] == ["--drafter", str(output), "..."]


def test_training_that_only_harms_says_so(target: Path, sentences: Path, tmp_path: Path) -> None:
    own = ("--target", target, "--draft", target, "--output", tmp_path / "taught")
    ended = tokalign("train", *own, sentences, *TEACHING, "--learning-rate=0.5")
    assert ended.code == 0
    assert "it accepts less than before training, " in ended.err
    assert "the best so far" not in ended.err


def needs_of_others(folder: Path, target: Path) -> None:
    """vLLM asks for the activation and a name of the target, `speculators` for all of this."""
    config = json.loads((folder / "config.json").read_text())
    assert config["transformer_layer_config"]["hidden_act"] == "silu"
    packaged = config["speculators_config"]
    assert packaged["verifier"] == {"name_or_path": str(target.resolve()), "architectures": []}
    [method] = packaged["proposal_methods"]
    assert method["proposal_type"] == packaged["default_proposal_method"] == "greedy"
    assert method["speculative_tokens"] == 3
    weights: Any = mx.load(str(folder / "model.safetensors"))
    assert weights["d2t"].dtype == mx.int64


@pytest.mark.parametrize("kind", ["dflash", "eagle3"])
def test_a_drafter_in_a_published_format_is_written_with_a_card_and_drafts(
    sentences: Path, tmp_path: Path, kind: str
) -> None:
    output = tmp_path / "drafter"
    target = write_model(
        tmp_path / "target",
        vocabulary_size=340,
        make=lambda size, seed: random_model(seed, vocabulary=size, layers=3),
    )
    small = ("--positions=128", "--held-out=32", "--window=32", "--block=4", "--epochs=2")
    more = ("--kind", kind, "--from-model=300", "--candidates=0", "--batch=32", "--json")
    more += ("--states=again",) if kind == "dflash" else ("--draft-vocabulary=300",)
    train = ("train", "--target", target, sentences, "--output", output, *small, *more)
    estimated = tokalign(*train, "--dry-run").json
    ended = tokalign(*train)
    assert ended.json["kind"] == kind
    assert ended.json["parameters"] <= 1.2 * estimated["trained_parameters"]
    assert "about 1 min for labels and 1 min of training at most" in ended.err
    card = (output / "README.md").read_text("utf-8")
    assert f"- {kind}" in card
    assert "# A drafter for target\n" in card
    assert str(tmp_path) not in card, "a path says nothing elsewhere"
    assert "written.jsonl" in card
    assert "Two of five steps learned what the target wrote at temperature 0.7" in card
    if kind == "eagle3":
        needs_of_others(output, target)
    decode = ("decode", "--target", target, "-p", "Zażółć", "-m", "12", "--json")
    plain, drafted = tokalign(*decode).json, tokalign(*decode, "--drafter", output).json
    assert plain["text"] == drafted["text"]
    again = ("--begin-with", output, "--output", tmp_path / "more", *small[:3], "--epochs=1")
    if kind == "dflash":
        other = ("--kind=dflash", "--block=3", *again)
        refused = tokalign("train", "--target", target, sentences, *other)
        refused.is_refused(2, "has blocks of", "leave --block out")
    continued = tokalign("train", "--target", target, sentences, *again, "--candidates=0", "--json")
    assert continued.json["kind"] == kind
    assert "accepted per round before training" in continued.err
    assert ("its head knew 300 of" in continued.err) == (kind == "eagle3")


def test_options_of_another_kind_of_drafter_are_refused(
    target: Path, sentences: Path, tmp_path: Path
) -> None:
    given = ("train", "--target", target, sentences, "--output", tmp_path / "drafter")
    tokalign(*given, "--kind", "model").is_refused(2, "needs --draft")
    tokalign(*given, "--kind", "dflash", "--draft", target).is_refused(2, "leave one of them out")
    tokalign(*given, "--kind", "dflash", "--loss", "text").is_refused(2, "--labels text")
    tokalign(*given, "--layers", "2").is_refused(2, "--kind dflash")
    none = tokalign(*given, "--kind", "dflash", "--begin-with", tmp_path)
    none.is_refused(4, "there is no drafter in")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layers", "options", "told"),
    [
        (2, ["--kind=dflash", "--layers=3"], "it has 2; give no more"),
        (2, ["--kind=eagle3"], "reads three layers, and the target has 2"),
        (3, ["--labels=text", "--window=5"], "give --window 6 or more"),
    ],
)
def test_an_estimate_refuses_what_training_would(
    layers: int, options: list[str], told: str, sentences: Path, tmp_path: Path
) -> None:
    target = write_model(
        tmp_path / "target",
        vocabulary_size=340,
        make=lambda size, seed: random_model(seed, vocabulary=size, layers=layers),
    )
    train = ("train", "--target", target, sentences, "--output", tmp_path / "drafter", *options)
    tokalign(*train, "--dry-run").is_refused(2, told)
    tokalign(*train).is_refused(2, told)
    assert not (tmp_path / "drafter").exists()


def test_a_drafter_of_layers_needs_sizes_and_a_recurrent_one_does_not(
    target: Path, sentences: Path, tmp_path: Path
) -> None:
    nameless = copytree(target, tmp_path / "target")
    config = json.loads((nameless / "config.json").read_text())
    config["heads"] = config.pop("num_attention_heads")
    own = f"""
from mlx_lm.models.llama import Model, ModelArgs as Args
class ModelArgs:
    @staticmethod
    def from_dict(config):
        return Args.from_dict(config | dict(num_attention_heads={config["heads"]}))
"""
    (nameless / "own.py").write_text(own)
    (nameless / "config.json").write_text(json.dumps({**config, "model_file": "own.py"}))
    given = ("train", "--target", nameless, sentences, "--output", tmp_path / "drafter")
    given += ("--trust-remote-code", *SMALL[:3], "--epochs=1")
    for kind in ("dflash", "eagle3"):
        for more in ((), ("--dry-run",)):
            refused = tokalign(*given, "--kind", kind, *more)
            refused.is_refused(3, "num_attention_heads", "give --kind redrafter")
    tokalign(*given, "--dry-run").is_refused(3, "train without --dry-run")
    assert tokalign(*given).code == 0


def test_a_window_that_is_advised_is_taken(sentences: Path, tmp_path: Path) -> None:
    target = write_model(
        tmp_path / "target",
        vocabulary_size=340,
        make=lambda size, seed: random_model(seed, vocabulary=size, sliding_window=60),
    )
    train = ("train", "--target", target, sentences, "--output", tmp_path / "drafter")
    train += ("--positions=64", "--held-out=32", "--epochs=1")
    refused = tokalign(*train)
    refused.is_refused(2, "give --window 12")
    assert tokalign(*train, "--window=12").code == 0


def test_a_drafter_of_another_target_is_refused_before_anything_is_labelled(
    target: Path, trained: tuple[Path, Ended], sentences: Path, tmp_path: Path
) -> None:
    weights = write_model(tmp_path / "weights", vocabulary_size=340, seed=7)
    words = copytree(target, tmp_path / "words")
    written = json.loads((words / "tokenizer.json").read_text("utf-8"))
    vocabulary = written["model"]["vocab"]
    one, other = [piece for piece in vocabulary if len(piece) == 1][-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (words / "tokenizer.json").write_text(json.dumps(written), "utf-8")
    for model, told in ((weights, "on another model"), (words, "tokenizer")):
        output = tmp_path / f"{model.name}.drafter"
        given = ("train", "--target", model, sentences, "--output", output)
        refused = tokalign(*given, "--begin-with", trained[0], *SMALL[:3])
        refused.is_refused(3, told)
        assert not output.exists()
        assert not Path(f"{output}.training").exists()


@pytest.mark.parametrize(
    "option", ["train --epochs", "train --held-out", "build --p-min", "calibrate --budget"]
)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused(option: str, number: str) -> None:
    refused = tokalign(*option.split(), number)
    assert refused.code == 2
    assert f"Invalid value for '{option.split()[1]}'" in refused.err
