"""What a study is made of: models with their tables, cost curves, and a description of it all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.study.prompts import PromptFiles, StudyPrompts
from lab.study.protocol import Arm, Drafts, Protocol
from tokalign.errors import UsageError
from tokalign.storage import as_path, write_file

if TYPE_CHECKING:
    from lab.study.result import Setting
    from lab.study.run import Study
    from tokalign.runtime.cost import CostCurve
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.options import DraftingOptions
    from tokalign.tokenizer.tokenizer import Tokenizer

DRAFTER = "drafter"
"""The name of a recurrent drafter in conditions."""

CURVES = "curves"
"""The folder of cost curves in the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What to study. note: told what was found or is done, one line at a time."""

    target: str
    draft: tuple[str, ...]
    drafter: Path | None
    protocol: Protocol
    files: PromptFiles
    output: Path
    dtype: str | None
    dictionary: tuple[Path, ...]
    language: tuple[str, ...]
    note: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Models with their tables: alone, and with each draft model by its name in conditions.

    A recurrent drafter is one of the pairs, under the name `DRAFTER`.
    """

    alone: Decoder
    pairs: Mapping[str, Decoder]
    dictionaries: Mapping[str, str]

    @property
    def all(self) -> Mapping[str, Decoder]:
        """Every decoder; the empty name is for the target alone."""
        return {"": self.alone, **self.pairs}


def load(options: StudyOptions) -> Loaded:
    """Load the models, and open the tables that fit them. Raises: as `assemble`; UsageError."""
    from lab.baselines.decoder import BaselineDecoder
    from tokalign.api.assemble import assemble, load_models
    from tokalign.runtime.options import DEFAULT_DRAFT_TOKENS, DraftingOptions

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
    like = BaselineDecoder.like
    alone = like(
        assemble(ours, None, replace(drafting, drafter=options.drafter), note=options.note)
    )
    pairs: dict[str, Decoder] = {
        name: like(assemble(ours, draft, drafting))
        for name, draft in zip(names, theirs, strict=True)
    }
    if alone.drafter is not None:
        pairs[DRAFTER] = alone
        alone = replace(alone, drafter=None)
    digests = _table_digests(drafting, ours.tokenizer.fingerprint, ours.folder)
    return Loaded(alone=alone, pairs=pairs, dictionaries=digests)


def _short_names(drafts: Sequence[str]) -> list[str]:
    """The last part of each name, where these differ."""
    short = [name.rstrip("/").rpartition("/")[2] for name in drafts]
    if len(set(drafts)) < len(drafts):
        raise UsageError("the same draft model is given twice; give each --draft once")
    unique = len({*short, DRAFTER}) == len(short) + 1
    return short if unique else list(drafts)


def _table_digests(drafting: DraftingOptions, target: str, beside: Path | None) -> dict[str, str]:
    """A digest of each dictionary and each table of logits in use, by its file's name.

    The name of a private one is left out. Of tables of one language and name the first one found is
    used, as in `open_dictionary`; where a name stands for two tables, the second has a number.
    """
    from tokalign.tables.finding import find_tables

    digests: dict[str, str] = {}

    def add(name: str, digest: str) -> None:
        taken = sum(other.partition(" ")[0] == name for other in digests)
        digests[f"{name} {taken + 1}" if taken else name] = digest

    for given in drafting.dictionaries:
        add(Path(given).name, _file_digest(Path(given)))
    seen = set()
    kinds = ["dictionary"] if drafting.languages or not digests else []
    for kind in (*kinds, "logits"):
        for path, bundle in find_tables(kind, target=target, model_folder=beside):
            language = bundle.parameters.get("language")
            if drafting.languages and language not in drafting.languages:
                continue
            if (kind, language, path.name) not in seen:
                seen.add((kind, language, path.name))
                digest = _file_digest(path)
                private = any(file.get("private") for file in bundle.corpus.get("files", []))
                add(f"private-{digest[:4]}" if private else path.name, digest)
    return digests


def _file_digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]


def drafts_of(loaded: Loaded) -> Drafts:
    """What there is to draft with."""
    target = loaded.alone.target.tokenizer.fingerprint
    models = {name: pair.draft for name, pair in loaded.pairs.items() if pair.draft is not None}
    return Drafts(
        models=tuple((n, draft.tokenizer.fingerprint == target) for n, draft in models.items()),
        drafters=tuple(name for name in loaded.pairs if name not in models),
        methods=("dictionary",) if loaded.alone.drafting.dictionary is not None else (),
    )


def cost_curves(options: StudyOptions, loaded: Loaded) -> dict[str, CostCurve]:
    """A cost curve for each draft model, from the output folder or else measured now.

    The empty name is for the target alone.
    """
    from tokalign.evaluate.calibrate import measure_curve
    from tokalign.runtime.cost import read_curve
    from tokalign.runtime.mlx.machine import machine_of

    curves: dict[str, CostCurve] = {}
    for name, decoder in (loaded.pairs or {"": loaded.alone}).items():
        (model,), (ids,) = decoder.drafting_models or (None,), decoder.heads or (None,)
        path = options.output / CURVES / f"{sha256(name.encode()).hexdigest()[:8]}.json"
        curve = read_curve(str(path)) if path.exists() else None
        if curve is None or curve.machine != machine_of(decoder.target.model, model):
            options.note(f"measuring what passes cost{f' with {name}' if name else ''}")
            seconds = options.protocol.curve_seconds
            measured = measure_curve(decoder.target.model, model, ids, budget=seconds)
            write_file(path, json.dumps(measured.to_json()) + "\n", parents=True)
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
    from lab.study.bench import StudyBench
    from lab.study.run import Study
    from tokalign.runtime.draft.knowledge import Knowledge
    from tokalign.runtime.draft.opening_knowledge import knowledge_from

    name_of = {id(decoder.draft): name for name, decoder in loaded.all.items()}

    def knowledge(decoder: Decoder) -> Knowledge:
        curve = curves[name_of[id(decoder.draft)]]
        models, heads = decoder.drafting_models, decoder.heads
        return knowledge_from([curve], decoder.target.model, *models, heads=heads)

    protocol = options.protocol
    bench = StudyBench(
        decoder=loaded.alone,
        others=loaded.pairs,
        prompts=prompts.by_block,
        conditions=[arm.condition for arm in chosen],
        max_tokens=protocol.max_tokens,
        seed=protocol.seed,
        knowledge=knowledge,
    )
    return Study(protocol=protocol, arms=chosen, bench=bench)


def _public(name: str) -> str:
    """A model's name for a result that may be shared: of a local folder its own name alone."""
    path = as_path(name)
    return path.resolve().name if path.exists() else name


def setting_of(options: StudyOptions, loaded: Loaded, prompts: StudyPrompts) -> Setting:
    """What the study is made on and with."""
    import platform
    from importlib.metadata import version

    from lab.fingerprint import model_fingerprint
    from lab.study.result import Model, Setting
    from lab.study.watch import MachineWatch, memory_gb, power_source, system_name
    from tokalign.runtime.mlx.machine import device_name, mlx_version
    from tokalign.runtime.mlx.weights import content_fingerprint, number_format, weight_bytes

    def described(name: str, model: Any, tokenizer: Tokenizer[Any], weights: str) -> Model:
        dtype, bits = number_format(model)
        return Model(
            name=_public(name),
            weights=weights,
            tokenizer=tokenizer.fingerprint,
            bytes=weight_bytes(model),
            bits=bits,
            dtype=dtype,
        )

    def loaded_as(name: str, model: LanguageModel[Any]) -> Model:
        assert model.folder is not None, "models of a study are loaded from folders"
        return described(name, model.model, model.tokenizer, model_fingerprint(model.folder))

    target = loaded.alone.target
    drafts = {
        name: loaded_as(given, pair.draft)
        for given, (name, pair) in zip(options.draft, loaded.pairs.items(), strict=False)
        if pair.draft is not None
    }
    if DRAFTER in loaded.pairs:
        drafter: Any = loaded.pairs[DRAFTER].drafter
        weights = content_fingerprint(drafter)[:16]
        drafts[DRAFTER] = described(
            str(options.drafter or DRAFTER), drafter, target.tokenizer, weights
        )
    return Setting(
        chip=device_name(),
        system=system_name(),
        memory_gb=memory_gb(),
        python=platform.python_version(),
        mlx=mlx_version(),
        mlx_lm=version("mlx-lm"),
        tokalign=version("tokalign"),
        power=power_source(),
        energy=MachineWatch().measures_energy,
        target=loaded_as(options.target, target),
        drafts=drafts,
        dictionaries=loaded.dictionaries,
        prompts=prompts.digests,
        own_prompts=options.files.own,
        prompt_language=options.files.language,
        protocol=options.protocol,
    )
