"""From a target and a corpus to labels: positions to train on, and positions held out.

Paragraphs in a random order are joined and cut into windows of one length, which are labelled. The
labels lie in a workspace, where another run with the same target, corpus and options finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from tokalign.build.corpus import Corpus, Progress, Stage, silent
from tokalign.errors import CorpusError
from tokalign.runtime.chat import with_bos
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import target_fingerprints
from tokalign.storage import locked
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labellers import FutureIds, NextIds, can_label_itself
from tokalign.train.labels import Labels, are_complete, open_labels, write_labels
from tokalign.train.options import Kind, Labelling, LabelOptions

Makes: TypeAlias = type[FutureIds] | type[NextIds]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCorpus:
    """Labels to train on and labels held out. recipe: what they depend on, as JSON."""

    training: Labels
    held_out: Labels
    recipe: Mapping[str, Any]


def label_corpus(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    workspace: Path,
    options: LabelOptions,
    *,
    labeller: Makes = FutureIds,
    stage: Stage = silent,
) -> LabelledCorpus:
    """Label a corpus; what is in the workspace already is not made again.

    labeller: `FutureIds` for a recurrent drafter, `NextIds` for a draft model.
    Raises: as `Corpus.lines`, `FutureIds` and `write_labels`; CorpusError for a corpus that is too
        short; UsageError while another process labels into the workspace.
    """
    training, held_out = workspace / "labels", workspace / "held-out"
    recipe = _label_recipe(target, corpus, options, labeller)
    if not (are_complete(training, recipe) and are_complete(held_out, recipe)):
        doing, remedy = f"labelling into {workspace}", "wait until it has ended"
        with locked(workspace / "labels.lock", doing, remedy):
            _label_windows(target, corpus, workspace, recipe, options, labeller, stage)
    return LabelledCorpus(
        training=open_labels(training), held_out=open_labels(held_out), recipe=recipe
    )


def _label_windows(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    workspace: Path,
    recipe: Mapping[str, Any],
    options: LabelOptions,
    labeller: Makes,
    stage: Stage,
) -> None:
    """Label what is not in the workspace yet."""
    count = -(-options.held_out // options.window)
    labelling = options.labelling
    training_windows = -(-options.positions // labelling.positions_of(options.window))
    with stage(2 * corpus.size, "reading the corpus") as advance:
        windows = draw_windows(
            corpus,
            target.tokenizer,
            length=options.window,
            positions=options.window * (count + training_windows),
            seed=options.seed,
            progress=advance,
        )
    if len(windows) <= count:
        raise CorpusError(
            f"the corpus has {len(windows)} windows of {options.window} tokens, and {count} "
            "have to be held out; give more text, or fewer --held-out positions"
        )
    held_out = _held_out(target, options, labeller)
    for name, some, how in (
        ("held-out", windows[:count], held_out),
        ("labels", windows[count:], labelling),
    ):
        label = labeller(target.model, how).label
        with stage(how.positions_of(options.window) * len(some), f"labelling {name}") as advance:
            for positions in write_labels(workspace / name, recipe, some, label):
                advance(positions)


def _label_recipe(
    target: LanguageModel[TargetId], corpus: Corpus, options: LabelOptions, labeller: Makes
) -> dict[str, Any]:
    return {
        **({} if labeller is FutureIds else {"labeller": labeller.__name__}),
        "target": target_fingerprints(target),
        "corpus": corpus.listing,
        **asdict(options),
    }


def _held_out(target: LanguageModel[TargetId], options: LabelOptions, labeller: Makes) -> Labelling:
    """The labelling of the positions held out: greedy, where that can be had.

    A draft model that learns the text's own ids is measured by these.
    """
    own = options.labelling
    if labeller is not FutureIds:
        return own if own.kind == "text" else replace(own, kind="greedy")
    kind: Kind = "greedy" if can_label_itself(target.model) else "text"
    return replace(own, kind=kind)


_BYTES_DRAWN_PER_TOKEN = 6.5
"""Bytes of text. Tokenizers in use have 3 to 5 bytes in a token, so enough is drawn."""


def draw_windows(
    corpus: Corpus,
    tokenizer: Tokenizer[TargetId],
    *,
    length: int,
    positions: int,
    seed: int,
    progress: Progress = lambda _: None,
) -> list[list[TargetId]]:
    """Draw paragraphs from everywhere in a corpus and cut them into windows.

    length: ids in a window, BOS included if the tokenizer adds one. positions: about how many ids
    to draw, all windows together; fewer if the corpus has fewer.
    progress: called with bytes of the corpus on disk, of which two readings are made: one to learn
    its size, one to draw. Only what is drawn is kept in memory.
    Raises: CorpusError as `Corpus.lines`.
    """
    for _ in corpus.lines(progress):
        pass
    share = positions * _BYTES_DRAWN_PER_TOKEN / corpus.text_bytes
    random = Random(seed)
    drawn = [line for line in corpus.lines(progress) if random.random() < share]
    random.shuffle(drawn)
    ids = chain.from_iterable(tokenizer.encode(line + "\n") for line in drawn)
    opening = with_bos(tokenizer, [])
    windows: list[list[TargetId]] = []
    while len(windows) * length < positions:
        window = [*opening, *islice(ids, length - len(opening))]
        if len(window) < length:
            break
        windows.append(window)
    return windows
