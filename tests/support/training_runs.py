"""A run that trains a drafter of any kind, for tests of training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from killed_runs import killed_when
from labelled import small_config

from tokalign.build.corpus import Corpus
from tokalign.runtime.decoder import LanguageModel
from tokalign.train.kinds import LEARNERS
from tokalign.train.labelled_corpus import label_corpus
from tokalign.train.options import BlockShape, DrafterKind, FitOptions, Labelling, LabelOptions
from tokalign.train.run import Evaluation, Training, fit

FIT = FitOptions(epochs=3, batch=32, candidates=None, learning_rate=1e-2, evaluations=6)


@dataclass(frozen=True)
class Train:
    """Labels and trains into a folder; killed when `kill` says so of a stage and its units done.

    begin_with: a drafter to be continued. learns_own: the text's own ids are learned in turn with
    the labels. draft_vocabulary: ids of an EAGLE-3's head. labelling: fields of it to change.
    """

    target: LanguageModel[Any]
    text: Path

    def __call__(
        self,
        folder: Path,
        kind: DrafterKind = "redrafter",
        options: FitOptions = FIT,
        *,
        begin_with: Path | None = None,
        learns_own: bool = False,
        kill: Callable[[str, int], bool] = lambda _label, _done: False,
        report: Callable[[Evaluation], None] = lambda _: None,
        draft_vocabulary: int = 300,
        **labelling: Any,
    ) -> Training:
        target, stage, workspace = self.target, killed_when(kill), folder / "workspace"
        shape = BlockShape(block=4, taps=(0, 1, 2), draft_vocabulary=draft_vocabulary)
        layers = {} if kind == "redrafter" else {"future": 4, "taps": shape.taps}
        how = LabelOptions(
            positions=400, held_out=64, window=32, labelling=Labelling(**layers, **labelling)
        )
        corpus = Corpus([self.text])
        labelled = label_corpus(target, corpus, workspace, how, stage=stage)
        if learns_own:
            own = replace(how, labelling=replace(how.labelling, kind="text", probable=5))
            texts = label_corpus(target, corpus, workspace / "own", own, stage=stage)
            labelled = replace(labelled, own=texts)
        made = LEARNERS[kind](
            target,
            shape if layers else small_config(target.model),
            labelled,
            options,
            begin_with,
        )
        return fit(made, folder / "drafter", workspace, stage=stage, report=report)
