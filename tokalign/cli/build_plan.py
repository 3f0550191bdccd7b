"""What `tokalign build` reads, which files it writes, and what builds each of them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokalign.api.assemble import load_models
from tokalign.build.alignment import build_alignment
from tokalign.build.cluster import ClusterJob, run_job
from tokalign.build.compile_pack import compile_pack
from tokalign.build.corpus import Corpus, Stage
from tokalign.build.counting.workers import plan_processes
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.build.logits import build_logit_table
from tokalign.build.pack import build_pack
from tokalign.build.pipeline import Builder, BuildReport
from tokalign.build.sources import CorpusFile, find_sources
from tokalign.build.text_files import Report
from tokalign.cli.output import note, reading_stdin
from tokalign.errors import BundleError, IncompatibleError, MissingAssetError, UsageError
from tokalign.names.registry import Resolved, resolve_tokenizer
from tokalign.storage import POLISH, sample_text
from tokalign.tables.bundle import Bundle, read_bundle, read_header
from tokalign.tables.dictionary import LANGUAGE
from tokalign.tables.finding import find_packs, table_folder
from tokalign.tables.logit_rows import KEPT
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.vocabulary import DraftId, TargetId
from tokalign.train.options import Writing

if TYPE_CHECKING:
    from tokalign.runtime.decoder import LanguageModel

Builders = dict[Path, Builder]


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """The tables of a target in a language; without a target, a pack of the language. Models are
    loaded when the outputs are checked."""

    target: str | None
    language: str
    output: Path | None
    options: BackoffOptions
    trust_remote_code: bool = False

    @cached_property
    def _resolved(self) -> Resolved[TargetId]:
        assert self.target is not None
        return resolve_tokenizer(self.target, trust_remote_code=self.trust_remote_code)

    @property
    def _folder(self) -> Path:
        folder = self.output or table_folder()
        return folder if self.target is None else folder / self._resolved.slug

    @property
    def _dictionary(self) -> Path:
        return self._folder / f"{self.language}.dictionary.tok"

    def table_of_more(self) -> Path | None:
        """The dictionary that one of the bundled text would replace, if it counts more text."""
        with suppress(BundleError, MissingAssetError):  # what cannot be read is replaced
            return None if read_header(self._dictionary).is_of_sample else self._dictionary
        return None

    def _counting(self, kind: str = "counting") -> BackoffOptions:
        workspace = self.options.workspace or self._folder / f"{self.language}.{kind}"
        return replace(self.options, workspace=workspace)

    def _load(self) -> LanguageModel[TargetId]:
        assert self.target is not None
        model: LanguageModel[TargetId]
        [model] = load_models([self.target], trust_remote_code=self.trust_remote_code, note=note)
        return model

    def pack(self) -> Builders:
        build = partial(build_pack, options=self._counting(), language=self.language)
        return {self._folder / f"{self.language}.pack.tok": build}

    def pair(self, draft: str | None, *, dictionary: bool) -> Builders:
        """The dictionary of a corpus, and the alignment with a draft, which reads no corpus."""
        target, builders = self._resolved.tokenizer, Builders()
        note(self._resolved.description)
        if dictionary:
            builders[self._dictionary] = partial(
                build_dictionary, target, options=self._counting(), language=self.language
            )
        if draft is not None:
            theirs: Resolved[DraftId] = resolve_tokenizer(
                draft, trust_remote_code=self.trust_remote_code
            )
            note(theirs.description)
            for whose, one in (("target", target), ("draft", theirs.tokenizer)):
                if one.level is Level.IDS_ONLY:
                    raise IncompatibleError(
                        f"the {whose}'s tokenizer is used by its ids only ({one.spec.why}), so no "
                        "alignment helps a draft model; give --dictionary-only instead"
                    )
            packs = find_packs(note=note)
            builders[self._folder / f"{theirs.slug}.alignment.tok"] = lambda _, stage: (
                build_alignment(theirs.tokenizer, target, packs=packs, stage=stage)
            )
        return builders

    def compiled(self, packs: Sequence[Path]) -> Builders:
        target, builders = self._resolved.tokenizer, Builders()
        note(self._resolved.description)
        for pack in packs:
            header = read_header(pack)
            header.require_kind("pack")
            path = self._folder / f"{header.language}.dictionary.tok"
            if path in builders:
                raise UsageError(f"two packs are of {header.language!r}; give one of them")
            builders[path] = lambda _, stage, pack=pack: compile_pack(
                target, read_bundle(pack), self.options, stage=stage
            )
        return builders

    def logits(self, positions: int) -> Builders:
        """The table of the target's top-k logits at about this many positions of a corpus."""
        from tokalign.runtime.mlx.session import expected_after

        def build(corpus: Corpus, stage: Stage) -> Bundle:
            target = self._load()
            return build_logit_table(
                target.tokenizer,
                corpus,
                lambda ids: expected_after(target.model, ids, KEPT),
                model="" if target.folder is None else target.folder.name,
                language=self.language,
                positions=positions,
                stage=stage,
            )

        return {self._folder / f"{self.language}.logits.tok": build}

    def written(self, writing: Writing) -> Builders:
        """The dictionary of what the target writes."""
        from tokalign.train.from_model import write_texts

        texts = self._folder / f"{self.language}.written.jsonl"

        def build(corpus: Corpus, stage: Stage) -> Bundle:
            model = self._load()
            written = write_texts(model, corpus, texts, writing, stage=stage)
            note(f"what the target wrote -> {texts}")
            return build_dictionary(
                model.tokenizer, written, self._counting(), language=self.language, stage=stage
            )

        return {self._dictionary: build}

    def count_on_datatrove(
        self,
        path: Path,
        corpus: Corpus,
        *,
        tasks: int | None = None,
        workers: int | None = None,
        local_tasks: int | None = None,
        local_rank_offset: int = 0,
    ) -> BuildReport:
        """Count on datatrove; no table in the report if another machine makes it."""
        target = None if self.target is None else self._resolved.tokenizer
        first, options = local_rank_offset, self._counting("job")
        wanted = workers or os.cpu_count() or 1
        processes, max_words = plan_processes(
            options.memory,
            jobs=wanted,
            vocabulary_size=0 if target is None else len(target.vocabulary),
        )
        tasks = tasks or wanted
        here = local_tasks or tasks - first
        if not 0 < here <= tasks - first:
            raise UsageError(
                f"the tasks of this machine ({first} to {first + here - 1}) are not among --tasks "
                f"{tasks}; give a lower --local-rank-offset or fewer --local-tasks"
            )
        if len(corpus.weights) < tasks:
            files = len(corpus.weights)
            note(f"{tasks} tasks share {files} corpus files; some of them encode nothing")
        job = ClusterJob(
            target=target,
            corpus=corpus,
            options=options,
            language=self.language,
            path=path,
            shares=tasks,
            jobs=processes,
            max_words=max_words,
        )
        built = run_job(job, processes=processes, first=first, tasks=here)
        if not built.tables:
            note(f"tasks {first} to {first + here - 1} are done; the machine with task 0 goes on")
        return built


# -- what is read ----------------------------------------------------------------------------------


def open_corpus(
    names: Sequence[str], report: Report, *, field: str, weights: Sequence[str], on_datatrove: bool
) -> Corpus:
    """The corpus of these names, as in `find_sources`; without any, the bundled sample. weights:
    as typed."""
    if not names:
        names = (str(sample_text(POLISH)),)
        note(
            f"corpus -> the bundled {Path(names[0]).name}, for a first try; "
            "real tables need FILEs of your own"
        )
    sources = find_sources(names, stdin=None if on_datatrove else _save_stdin, note=note)
    return Corpus(sources, field=field, weights=read_weights(weights, sources), report=report)


def _save_stdin() -> Path:
    temporary = tempfile.TemporaryDirectory(prefix="tokalign-")
    path = Path(click.get_current_context().with_resource(temporary)) / "stdin.txt"
    remedy = "give a FILE, or set TMPDIR to a folder with room for all of it"
    with reading_stdin(remedy), path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def read_weights(texts: Sequence[str], files: Sequence[CorpusFile]) -> dict[str, float]:
    """Read `NAME=W` options as file name -> weight. Raises: UsageError."""
    weights = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        matching = [file.name for file in files if name in (file.name, _stem(file.name))]
        if (
            len(matching) != 1
            or matching[0] in weights
            or not re.fullmatch(r"[0-9]*\.?[0-9]+", value)
        ):
            raise UsageError(
                f"--weight {text} is not NAME=W with a number and the name of one corpus file, "
                "which has no other weight"
            )
        weights[matching[0]] = float(value)
    return weights


def _stem(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.split(".")[0]


def check_language(language: str | None, *, bundled: bool) -> str:
    """The language that names the table. bundled: whether the corpus is the bundled, Polish one.
    Raises: UsageError if it is missing, no name of a file, or does not fit the corpus."""
    if language is None and not bundled:
        raise UsageError(
            "a dictionary is named after the language of its corpus, and none was given; "
            "say which it is with --language CODE, such as uk"
        )
    language = language or POLISH
    if not LANGUAGE.fullmatch(language):
        raise UsageError(f"--language {language!r} cannot name a table; give a code such as pl")
    if bundled and language != POLISH:
        raise UsageError(
            f"--language {language} needs a corpus in that language (the bundled one is Polish); "
            "give FILEs; corpora/manifest.toml in the repository names public ones"
        )
    return language
