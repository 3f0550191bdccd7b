"""What `tokalign train` does with its options: labels, estimate and learner of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokalign.cli.output import note, progress
from tokalign.errors import UsageError
from tokalign.names.model_shape import ModelShape
from tokalign.runtime.options import take
from tokalign.train.estimate import Work, estimate, layers_work, recurrent_work, teaching_work
from tokalign.train.options import (
    MOST_PROBABLE,
    BlockShape,
    DrafterKind,
    FitOptions,
    Labelling,
    LabelOptions,
    Writing,
)

if TYPE_CHECKING:
    from tokalign.build.corpus import Corpus
    from tokalign.runtime.decoder import LanguageModel
    from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig
    from tokalign.tokenizer.vocabulary import TargetId
    from tokalign.train.labelled_corpus import LabelledCorpus
    from tokalign.train.run import Learner

MOST_STATES_GB = 20.0
"""Layer outputs that take more are computed again in every step, unless that is chosen."""

WIDEST, RANK, SMALL, RATE_OF_LAYERS = 2_048, 16, 500_000_000, 0.0003

_UTILIZATION = 0.5
"""The share of the speed of large matrix products that passes and steps reach."""


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """The options of a run, and the kind of drafter that they are about.

    taught: sizes of the draft model. begun: the configuration of the drafter to be continued, if it
    reads layers.
    """

    kind: DrafterKind
    values: Mapping[str, Any]
    fit: FitOptions
    draft: str | None
    taught: ModelShape | None
    begun: Any

    @classmethod
    def of(cls, draft: str | None, output: Path, values: Mapping[str, Any]) -> TrainPlan:
        """Raises: UsageError for options that do not go together; as `DFlashConfig.from_json`."""
        kind: DrafterKind = values["drafter_kind"] or ("redrafter" if draft is None else "model")
        if kind == "model" and draft is None:
            raise UsageError("--kind model needs --draft; give a model to teach")
        taught = None if draft is None else _draft_shape(draft, output)
        fit = _fit_options(values, taught)
        begun = None
        if values["begin_with"] is not None:  # else it is refused after hours of labelling
            kind, begun = _begun(values["begin_with"], values["drafter_kind"])
        return cls(kind=kind, values=values, fit=fit, draft=draft, taught=taught, begun=begun)

    @property
    def begins_trained(self) -> bool:
        return self.kind == "model" or self.values["begin_with"] is not None

    @property
    def writing(self) -> Writing | None:
        values = self.values
        if values["tokens"] is None:
            return None
        return take(Writing, {**values, "prompts": values["prompts"] is not None})

    def _block(self, layers: int, sizes: tuple[int, int] | None = None) -> BlockShape:
        """The shape of a drafter that reads layers, for a target with so many: as the options say,
        or that of the one to be continued, which has to fit the target's width and number of ids if
        these `sizes` are known. Raises: UsageError for layers that the target does not have."""
        shape = take(BlockShape, {**self.values})
        if (made := self.begun) is None:
            return self._new_block(shape, layers)
        if self.kind == "dflash":
            if shape.block not in (BlockShape().block, made.block_size):
                raise UsageError(
                    f"--block {shape.block}: the drafter that --begin-with names has blocks of "
                    f"{made.block_size}; leave --block out"
                )
            shape = BlockShape(layers=made.num_hidden_layers, block=made.block_size)
        if sizes is not None:
            made.require_fit(layers=layers, width=sizes[0], vocabulary=sizes[1])
        return replace(shape, taps=made.taps(layers))

    def _new_block(self, shape: BlockShape, layers: int) -> BlockShape:
        if self.kind == "dflash":
            if shape.layers > layers:
                raise UsageError(
                    f"--layers {shape.layers}: a drafter begins as the target's last layers, and "
                    f"it has {layers}; give no more than these"
                )
            return replace(shape, taps=shape.read_of(layers))
        if layers < 3:
            raise UsageError(
                f"an EAGLE-3 drafter reads three layers, and the target has {layers}; give another "
                "--kind"
            )
        return replace(shape, taps=(1, layers // 2, layers - 1) if layers > 3 else (0, 1, 2))

    def _recurrent(self, hidden_size: int, vocabulary_size: int) -> DrafterConfig:
        from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig

        width = self.values["width"] or min(hidden_size, WIDEST)
        return DrafterConfig(
            hidden_size=hidden_size,
            vocabulary_size=vocabulary_size,
            width=width,
            exit_width=width,
            blocks=self.values["blocks"],
        )

    @property
    def reads_layers(self) -> bool:
        return self.kind in ("dflash", "eagle3")

    @property
    def learns_own(self) -> bool:
        """Whether the ids that the target writes are learned in turn with its greedy ones."""
        chosen = self.values["kind"] or self.values["losses"]
        return self.values["tokens"] is not None and self.draft is None and not chosen

    def labels(self, hidden_size: int, ids: int, layers: int) -> tuple[LabelOptions, ...]:
        """How the corpus is labelled for a target of this size, and what the target wrote, if that
        is learned in turn."""
        values = {**self.values, "taps": (), "kind": self.values["kind"] or Labelling().kind}
        own = min(values["tokens"] or 0, values["positions"]) * self.learns_own
        if self.draft is not None or {*self.fit.losses} - {"marginal"}:
            values["probable"] = MOST_PROBABLE
        if self.draft is not None:
            values["future"] = 0
        if self.reads_layers:
            block = self._block(layers, (hidden_size, ids))
            states_gb = 2 * len(block.taps) * hidden_size * (values["positions"] + own) / 1e9
            where = values["states"] or ("disk" if states_gb <= MOST_STATES_GB else "again")
            values |= {"future": block.block, "taps": block.taps, "keeps_states": where == "disk"}
        labelling = take(Labelling, {**values})
        labels = take(LabelOptions, {**values, "labelling": labelling})
        if not own:
            return (labels,)
        labelling = replace(labelling, kind="text", probable=MOST_PROBABLE)
        return labels, replace(labels, positions=own, held_out=1, labelling=labelling)

    @property
    def needs_sizes(self) -> bool:
        """Whether a target that does not tell its sizes cannot be trained for."""
        return self.reads_layers and self.begun is None

    def estimated(self, target: str) -> dict[str, Any]:
        """What a run takes; no model is loaded. Raises: as `ModelShape.from_folder`, and UsageError
        for layers that the target does not have."""
        from tokalign.names.registry import resolve_model
        from tokalign.runtime.mlx.machine import machine_tflops

        remedy = "give --kind redrafter" if self.needs_sizes else "train without --dry-run"
        shape = _shape_in(resolve_model(target).folder, remedy)
        labels = self.labels(shape.hidden_size, shape.vocabulary_size, shape.layers)
        parts = [(one, self._work(shape, one)) for one in labels]
        taken = asdict(estimate(shape, parts, self.fit))
        rounded = {name: round(value, 2) for name, value in taken.items()}
        speed = _UTILIZATION * machine_tflops()
        hours = {
            f"{part}_hours": round(rounded[f"{part}_tflop"] / speed / 3600, 2)
            for part in ("labelling", "training")
        }
        return {"trained_parameters": round(parts[0][1].parameters), **rounded, **hours}

    def _work(self, shape: ModelShape, labels: LabelOptions) -> Work:
        if self.taught is not None:
            return teaching_work(self.taught, labels, self.fit)
        if self.reads_layers:
            block, reads = self._block(shape.layers), 2 if self.kind == "eagle3" else 1
            return layers_work(shape, block, labels, self.fit, reads)
        config = self._recurrent(shape.hidden_size, shape.vocabulary_size)
        return recurrent_work(shape, config, labels, self.fit)

    def label(
        self, model: LanguageModel[TargetId], corpora: Sequence[Corpus], workspace: Path
    ) -> LabelledCorpus:
        """Label a corpus, or find its labels. corpora: it, and what the target wrote, if it did."""
        from tokalign.runtime.mlx.trained_drafter import TargetEnds

        ends = TargetEnds.of(model.model)
        how = self.labels(ends.hidden_size, ends.vocabulary_size, len(model.model.layers))
        # In folders of their own, so that each set is found again whatever the other is.
        places = workspace, workspace / "own"
        first, *own = map(partial(self._label, model), how, corpora, places)
        return replace(first, own=own[0]) if own else first

    def _label(
        self, model: LanguageModel[TargetId], options: LabelOptions, corpus: Corpus, workspace: Path
    ) -> LabelledCorpus:
        from tokalign.train.labelled_corpus import label_corpus

        labelled = label_corpus(model, corpus, workspace, options, stage=progress)
        count, wanted = len(labelled.training.ids), options.positions
        few = "" if count > 0.95 * wanted else f", not {wanted:,}: give more text to get as many"
        note(f"{count:,} positions are labelled{few}; labels and state in {workspace}")
        return labelled

    def learner(
        self,
        model: LanguageModel[TargetId],
        labelled: LabelledCorpus,
        load: Callable[[list[str]], list[LanguageModel[Any]]],
    ) -> Learner:
        """What is trained. load: loads the draft model."""
        if self.draft is not None:
            from tokalign.runtime.translation.base import Pair
            from tokalign.train.teaching import DraftLearner

            [draft] = load([self.draft])
            pair = Pair(model.tokenizer, draft.tokenizer)
            return DraftLearner(draft, pair, labelled, self.fit)
        from tokalign.runtime.mlx.trained_drafter import TargetEnds
        from tokalign.train.kinds import LEARNERS

        ends, layers = TargetEnds.of(model.model), len(model.model.layers)
        shape: Any = (
            self._block(layers)
            if self.reads_layers
            else self._recurrent(ends.hidden_size, ends.vocabulary_size)
        )
        begin_with = self.values["begin_with"]
        learner = LEARNERS[self.kind](model, shape, labelled, self.fit, begin_with)
        for remark in learner.remarks:
            note(remark)
        return learner


def require_own_folder(output: Path, target: str) -> None:
    """Raises: UsageError for a folder with files that would be replaced, which training has not
    written, and for the target's own."""
    from tokalign.names.registry import local_folder
    from tokalign.tables.finding import TRAINING_RECORD

    names = ("config.json", "README.md", "model*.safetensors")
    taken = sorted(path.name for name in names for path in output.glob(name))
    is_own, folder = (output / TRAINING_RECORD).is_file(), local_folder(target)
    if (taken and not is_own) or (folder is not None and folder.resolve() == output.resolve()):
        raise UsageError(
            f"{output} has files that training would replace and did not write "
            f"({', '.join(taken)}); give another --output"
        )


def in_words(estimated: Mapping[str, Any]) -> str:
    """An estimate in one line."""
    memory = max(estimated["labelling_memory_gb"], estimated["training_memory_gb"])
    labelling, training = (
        f"{hours:g} h"
        if (hours := estimated[f"{part}_hours"]) >= 1
        else f"{60 * hours + 1:.0f} min"
        for part in ("labelling", "training")
    )
    return (
        f"about {labelling} for labels and {training} of training at most, {memory:.1f} GB of "
        f"memory, {estimated['labels_on_disk_gb']:.2f} GB on disk"
    )


def _begun(folder: Path, named: DrafterKind | None) -> tuple[DrafterKind, Any]:
    """The kind of the drafter to be continued, and its configuration; None for one without layers.
    Raises: BundleError; UsageError for one that cannot be continued, or not as the kind `named`."""
    from tokalign.evaluate.drafter_fit import drafter_shape
    from tokalign.tables.drafter_formats import BLOCK_FORMATS, DrafterFormat
    from tokalign.tables.finding import read_drafter_json

    found, made = drafter_shape(read_drafter_json(folder), str(folder))
    kinds: dict[DrafterFormat, DrafterKind] = {
        DrafterFormat.EAGLE_3: "eagle3",
        DrafterFormat.REDRAFTER: "redrafter",
    }
    kind: DrafterKind | None = "dflash" if found in BLOCK_FORMATS else kinds.get(found)
    if kind is None or named not in (None, kind):
        by = f"--kind {named}" if named else "training"
        raise UsageError(
            f"the drafter in {folder} is of the format {found}, which {by} does not continue; give "
            "another one"
        )
    if kind == "redrafter":
        return kind, None
    if kind == "eagle3" and (made.quantization or made.num_hidden_layers != 1 or any(made.windows)):
        raise UsageError(
            f"{folder} is quantized, or has several layers or a window; give one of one layer "
            "that sees all, in 16 bits"
        )
    return kind, made


def _draft_shape(draft: str, output: Path) -> ModelShape:
    """The sizes of the draft model; nothing is loaded. Raises: UsageError for its own folder."""
    from tokalign.names.registry import resolve_model

    folder = resolve_model(draft).folder
    if output.resolve() == folder.resolve():
        raise UsageError(f"{output} is the draft model's own folder; give another --output")
    return _shape_in(folder, "give another --draft")


def _shape_in(folder: Path, remedy: str) -> ModelShape:
    from tokalign.runtime.mlx.shape import full_config
    from tokalign.runtime.mlx.weights import read_config

    return ModelShape.from_folder(folder, full_config(read_config(folder)), remedy=remedy)


def _fit_options(given: Mapping[str, Any], draft: ModelShape | None) -> FitOptions:
    """Raises: UsageError for a loss that the labels or the kind do not have, and for quantized
    weights."""
    values, defaults = dict(given), FitOptions()
    values["losses"] = values["losses"] or defaults.losses
    rate = defaults.learning_rate
    soft = [loss for loss in values["losses"] if loss not in ("text", "marginal")]
    if draft is None and "text" in values["losses"]:
        raise UsageError("--loss text is a draft model's; a drafter learns text by --labels text")
    if draft is not None:
        is_small = draft.parameters <= SMALL and not draft.is_quantized
        rank = values["lora"] if values["lora"] is not None else (0 if is_small else RANK)
        values["lora"] = rank or None
        rate = rate if rank else RATE_OF_LAYERS
        if draft.is_quantized and not rank:
            raise UsageError("quantized weights cannot be trained; leave out --lora 0")
        if soft and values["kind"] == "text":
            raise UsageError(
                f"--loss {soft[0]} learns what the target finds probable, and --labels text does "
                "not ask it; give other --labels"
            )
    values["learning_rate"] = values["learning_rate"] or rate
    values["candidates"] = values["candidates"] or None
    return take(FitOptions, values)
