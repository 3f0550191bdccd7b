"""What a study is made of: models with their tables, cost curves, and a description of it all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokalign import __version__
from tokalign.cli.study_prompts import PromptFiles, StudyPrompts
from tokalign.errors import UsageError
from tokalign.evaluate.study.protocol import Arm, Drafts, Protocol

if TYPE_CHECKING:
    from tokalign.cost.curve import CostCurve
    from tokalign.evaluate.study.result import Setting
    from tokalign.evaluate.study.run import Study
    from tokalign.runtime.decoder import Decoder

CURVES = "curves"
"""The folder of cost curves in the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What to study. note: told what was found or is done, one line at a time."""

    target: str
    draft: tuple[str, ...]
    protocol: Protocol
    files: PromptFiles
    output: Path
    dtype: str | None
    dictionary: tuple[Path, ...]
    language: tuple[str, ...]
    note: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Models with their tables: alone, and with each draft model by its name in conditions."""

    alone: Decoder
    pairs: Mapping[str, Decoder]
    dictionaries: Mapping[str, str]

    @property
    def all(self) -> Mapping[str, Decoder]:
        """Every decoder; the empty name is for the target alone."""
        return {"": self.alone, **self.pairs}


def load(options: StudyOptions) -> Loaded:
    """Load the models, and open the tables that fit them. Raises: as `assemble`; UsageError."""
    from tokalign.assemble import DraftingOptions, assemble, load_models
    from tokalign.runtime.methods import DEFAULT_DRAFT_TOKENS

    names = _short_names(options.draft)
    ours, *theirs = load_models(
        [options.target, *options.draft], dtype=options.dtype, note=options.note
    )
    drafting = DraftingOptions(
        method="hybrid",  # which opens every table; each condition has a method of its own
        num_draft_tokens=DEFAULT_DRAFT_TOKENS,
        dictionary=options.dictionary,
        language=options.language,
    )
    return Loaded(
        alone=assemble(ours, None, drafting, note=options.note),
        pairs={
            name: assemble(ours, draft, drafting) for name, draft in zip(names, theirs, strict=True)
        },
        dictionaries=_dictionary_digests(options, ours.tokenizer.fingerprint, ours.folder),
    )


def _short_names(drafts: Sequence[str]) -> list[str]:
    """The last part of each name, where these differ."""
    short = [name.rstrip("/").rpartition("/")[2] for name in drafts]
    if len(set(drafts)) < len(drafts):
        raise UsageError("the same draft model is given twice; give each --draft once")
    return short if len(set(short)) == len(short) else list(drafts)


def _dictionary_digests(options: StudyOptions, target: str, beside: Path | None) -> dict[str, str]:
    from tokalign.tables.finding import find_tables

    paths = list(options.dictionary)
    if options.language or not paths:
        paths += [path for path, _ in find_tables("dictionary", target=target, beside=beside)]
    return {path.name: sha256(path.read_bytes()).hexdigest()[:16] for path in paths}


def drafts_of(loaded: Loaded) -> Drafts:
    """What there is to draft with."""
    target = loaded.alone.target.tokenizer.fingerprint
    models = {name: pair.draft for name, pair in loaded.pairs.items()}
    return Drafts(
        models=tuple(
            (name, draft is not None and draft.tokenizer.fingerprint == target)
            for name, draft in models.items()
        ),
        methods=("dictionary",) if loaded.alone.drafting.dictionary is not None else (),
    )


def cost_curves(options: StudyOptions, loaded: Loaded) -> dict[str, CostCurve]:
    """A cost curve for each draft model, from the output folder or else measured now.

    The empty name is for the target alone.
    """
    from tokalign.cost.curve import read_curve
    from tokalign.cost.store import store_curve
    from tokalign.evaluate.calibrate import measure_curve
    from tokalign.runtime.mlx.machine import machine_of

    curves: dict[str, CostCurve] = {}
    for name, decoder in (loaded.pairs or {"": loaded.alone}).items():
        model = decoder.draft and decoder.draft.model
        path = options.output / CURVES / f"{sha256(name.encode()).hexdigest()[:8]}.json"
        curve = read_curve(str(path)) if path.exists() else None
        if curve is None or curve.is_stale(machine_of(decoder.target.model, model)):
            options.note(f"measuring what passes cost{f' with {name}' if name else ''}")
            seconds = options.protocol.curve_seconds
            store_curve(measure_curve(decoder.target.model, model, budget=seconds), path)
            curve = read_curve(str(path))  # as it is rounded in the file
        curves[name] = curve
    return {"": next(iter(curves.values())).without_draft(), **curves}


def assembled(
    options: StudyOptions,
    loaded: Loaded,
    chosen: Sequence[Arm],
    prompts: StudyPrompts,
    curves: Mapping[str, CostCurve],
) -> Study:
    """The study of these models, conditions and prompts."""
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.study.run import Study
    from tokalign.evaluate.study.watch import MachineWatch
    from tokalign.runtime.draft_length.knowledge import Knowledge
    from tokalign.runtime.draft_length.opening_knowledge import knowledge_from

    by_draft = {id(decoder.draft): name for name, decoder in loaded.all.items()}

    def knowledge(decoder: Decoder) -> Knowledge:
        curve = curves[by_draft[id(decoder.draft)]]
        return knowledge_from(curve, decoder.target.model, decoder.draft and decoder.draft.model)

    protocol = options.protocol
    bench = Bench(
        decoder=loaded.alone,
        others=loaded.pairs,
        prompts=prompts.by_block,
        conditions=[arm.condition for arm in chosen],
        max_tokens=protocol.max_tokens,
        seed=protocol.seed,
        knowledge=knowledge,
        watch=MachineWatch(),
    )
    return Study(protocol=protocol, arms=chosen, bench=bench)


def setting_of(options: StudyOptions, loaded: Loaded, prompts: StudyPrompts) -> Setting:
    """What the study is made on and with."""
    import platform
    from importlib.metadata import version

    from tokalign.evaluate.measurements import model_fingerprint
    from tokalign.evaluate.study.result import Model, Setting
    from tokalign.evaluate.study.watch import MachineWatch, memory_gb, power_source, system_name
    from tokalign.runtime.mlx.weights import device_name, mlx_version, number_format, weight_bytes

    def described(name: str, model: Any) -> Model:
        dtype, bits = number_format(model.model)
        return Model(
            name=name,
            weights=model_fingerprint(model.folder),
            tokenizer=model.tokenizer.fingerprint,
            bytes=weight_bytes(model.model),
            bits=bits,
            dtype=dtype,
        )

    return Setting(
        chip=device_name(),
        system=system_name(),
        memory_gb=memory_gb(),
        python=platform.python_version(),
        mlx=mlx_version(),
        mlx_lm=version("mlx-lm"),
        tokalign=__version__,
        power=power_source(),
        energy=MachineWatch().measures_energy,
        target=described(options.target, loaded.alone.target),
        drafts={
            name: described(given, decoder.draft)
            for given, (name, decoder) in zip(options.draft, loaded.pairs.items(), strict=True)
        },
        dictionaries=loaded.dictionaries,
        prompts=prompts.digests,
        own_prompts=options.files.own,
        protocol=options.protocol,
    )
