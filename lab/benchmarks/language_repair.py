"""Language repair: a drafter trained on English, its dictionaries, and more training on a language.

    tokalign build --from-pack tables/pl.pack.tok --target MODEL --output TABLES    # and others
    python -m lab.benchmarks.language_repair --target MODEL --work FOLDER --english FILE [...] \
        [--language pl=FILE ...] [--tables TABLES/MODEL] [--positions 16000] [--epochs 1]

An EAGLE-3 drafter is trained on English text, and that drafter is continued on each `--language`,
whose text gives it another draft vocabulary. The target goes on greedily from the prompts of
`lab/prompts/repair/` in seven languages, and its text plays it afterwards, because drafting never
changes it. Printed are ids accepted per pass in every language and as a share of English: by chains
of the drafter, in a tree with the language's dictionary, and both again with the continued drafter.
Everything that is done is kept in FOLDER, so a killed run goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from lab.baselines.whole_beams import WholeBeams
from tokalign.cli.train import command as train
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.knowledge import Knowledge
from tokalign.runtime.draft.lookup import dictionary_sources
from tokalign.runtime.draft.trained import BeamDrafter
from tokalign.runtime.draft.tree import FREE_ROWS, TreeDrafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.mlx.beam_search import BeamShape
from tokalign.runtime.mlx.cached_drafter import CachedSession
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.eagle3 import Eagle3Drafter
from tokalign.runtime.mlx.taps import LayerOutputs
from tokalign.runtime.rounds import Array, Context, Drafter, Round
from tokalign.storage import write_file
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.vocabulary import TargetId

PROMPTS = Path(__file__).parents[1] / "prompts" / "repair"
LANGUAGES = "en", "de", "pl", "cs", "uk", "crh", "code"
_GIVEN, _DEPTH, _ROWS = 8, 4, 8
"""Ids of a prompt that are read, its last ones; guesses of a chain; rows of a tree's pass."""

_PATH = click.Path(path_type=Path, exists=True)


class TapsOfText:
    """Gives an EAGLE-3 drafter the layers' outputs f[n, width] of a text, as a session does."""

    def __init__(self, rows: Array, prompt: int) -> None:
        self._rows, self._prompt = rows, prompt

    def take_taps(self, ids: Sequence[TargetId], first: int) -> tuple[int, Array | None]:
        """See `TargetModelSession.take_taps`; before the first pass there is nothing."""
        return first, None if len(ids) <= self._prompt else self._rows[first : len(ids) - 1]


def written(target: LanguageModel[TargetId], language: str, tokens: int) -> list[list[TargetId]]:
    """What the target writes greedily after each prompt of a language, with the prompt."""
    bos = target.tokenizer.vocabulary.roles.bos
    lines = (PROMPTS / f"{language}.txt").read_text("utf-8").splitlines()
    given = [target.tokenizer.encode(line.replace("\\n", "\n"))[-_GIVEN:] for line in lines]
    columns = [mx.array([[*([] if bos is None else [bos]), *ids] for ids in given])]
    cache = make_prompt_cache(target.model)
    for _ in range(tokens):
        columns.append(mx.argmax(target.model(columns[-1], cache=cache)[:, -1], -1, keepdims=True))
        mx.eval(columns[-1])
    ids: list[list[TargetId]] = np.array(mx.concatenate(columns, axis=1)).tolist()
    return ids


def counted(
    drafter: Eagle3Drafter | None,
    target: LanguageModel[TargetId],
    texts: Sequence[Sequence[TargetId]],
    prompt: int,
    dictionary: Any,
) -> float:
    """Ids accepted per pass: by a chain of the drafter, by a dictionary's tree, or by both."""
    accepted, passes = 0, 0
    for ids in texts:
        block: BeamDrafter | None = None
        if drafter is not None:
            outputs = LayerOutputs(target.model, drafter.config.taps(len(target.model.layers)))
            outputs.model(mx.array([ids]))
            rows = TapsOfText(outputs.take(), prompt)
            session = CachedSession(drafter, rows)  # type: ignore[arg-type]
            if dictionary is None:
                block = WholeBeams(session, BeamShape(1, _DEPTH))
            else:
                block = BeamDrafter(session, _DEPTH, branches=False)
        made: Drafter | None = block
        if dictionary is not None:
            free = TreeDrafter(dictionary_sources(dictionary), rows=_ROWS - 1)
            known = Knowledge.given(FREE_ROWS)
            made = free if block is None else Controller(known, free, block, timed=False)
        assert made is not None
        limits = Limits(max_tokens=len(ids) - prompt - _DEPTH - _ROWS)
        events = Decoding(Context(ids[:prompt]), made, ReplayVerifier(ids), limits=limits)
        rounds = [event for event in events if isinstance(event, Round)][1:]
        accepted += sum(len(one.emitted) - 1 for one in rounds)
        passes += len(rounds)
    return accepted / passes


def known_share(folder: Path, texts: Sequence[Sequence[TargetId]], prompt: int) -> float:
    """The share of what the target wrote that a drafter's head knows."""
    weights: Any = mx.load(str(folder / "model.safetensors"))
    if "t2d" not in weights:
        return 1.0
    ids = np.concatenate([np.array(text[prompt:]) for text in texts])
    return float(np.array(weights["t2d"])[ids].mean())


def table(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Rows of the table. Shares are of what the drafter trained on English accepts in English:
    with the English dictionary, if there is one, where the language has its own."""
    head = ["", "ids its head knows", "alone", "+ dictionary (a)", "dictionary alone"]
    head += ["continued (b): ids known", "alone", "(a) + (b)"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    english = found["en"]
    with_dictionary = english.get("a", english["alone"])
    for language in LANGUAGES:
        values, cells = found[language], [language]
        for name in ("known", "alone", "a", "dictionary", "known b", "b", "a + b"):
            value = values.get(name)
            if value is None:
                cells.append("")
            elif name.startswith("known"):
                cells.append(f"{value:.1%}")
            else:
                like = english["alone"] if name in ("alone", "b") else with_dictionary
                cells.append(f"{value:.3f} ({value / like:.0%})")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


@click.command()
@click.option("--target", type=_PATH, required=True)
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--english", type=_PATH, multiple=True, required=True)
@click.option("--language", "languages", multiple=True, help="pl=FILE; repeatable.")
@click.option(
    "--tables",
    type=_PATH,
    help="Has pl.dictionary.tok, pl-WHAT.dictionary.tok and others for the target.",
)
@click.option("--positions", default=16_000, show_default=True, help="Of each text.")
@click.option("--epochs", default=1.0, show_default=True)
@click.option("--vocabulary", default=16_000, show_default=True)
@click.option("--tokens", default=48, show_default=True, help="That the target writes.")
def main(
    *,
    target: Path,
    work: Path,
    english: tuple[Path, ...],
    languages: tuple[str, ...],
    tables: Path | None,
    positions: int,
    epochs: float,
    vocabulary: int,
    tokens: int,
) -> None:
    """Print the table."""
    corpora: dict[str, list[str]] = {"en": [str(file) for file in english]}
    for text in languages:
        name, _, file = text.partition("=")
        corpora.setdefault(name, []).append(file)
    for name, files in corpora.items():
        if not (work / name / "model.safetensors").is_file():
            begin = [] if name == "en" else ["--begin-with", str(work / "en")]
            how = ["--labels=text", "--block=5", "--window=96", "--batch=64", "--held-out=512"]
            how += [f"--positions={positions}", f"--epochs={epochs}", "--candidates=1024"]
            how += [f"--draft-vocabulary={vocabulary}", "--evaluations=4", "--dtype=float32"]
            given = ["--kind=eagle3", "--target", str(target), "--output", str(work / name)]
            train.main([*given, *begin, *how, *files], standalone_mode=False)
    ours: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
    path = work / "measured.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    prompt = _GIVEN + (ours.tokenizer.vocabulary.roles.bos is not None)
    for language in LANGUAGES:
        values = found.setdefault(language, {})
        if "ids" not in values:
            values["ids"] = written(ours, language, tokens)
        names = (f"{language}.dictionary.tok", f"{language}-*.dictionary.tok")
        built = [file for name in names for file in sorted((tables or work).glob(name))]
        dictionary = open_dictionary(ours.tokenizer, files=built) if built else None
        if dictionary is not None and "dictionary" not in values:
            values["dictionary"] = counted(None, ours, values["ids"], prompt, dictionary)
        for suffix, drafter in (("", "en"), (" b", language)):
            if drafter not in corpora or (suffix and language == "en"):
                continue
            network = read_drafter(work / drafter, ours.model)
            alone, both = ("b", "a + b") if suffix else ("alone", "a")
            values[f"known{suffix}"] = known_share(work / drafter, values["ids"], prompt)
            if alone not in values:
                values[alone] = counted(network, ours, values["ids"], prompt, None)
            if dictionary is not None and both not in values:
                values[both] = counted(network, ours, values["ids"], prompt, dictionary)
        write_file(path, json.dumps(found))
        click.echo(f"{language}: { {k: v for k, v in values.items() if k != 'ids'} }", err=True)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
