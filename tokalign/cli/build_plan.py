"""What `tokalign build` reads, which files it writes, and what builds each of them."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from tokalign.assemble import load_models
from tokalign.atomic_file import unwritable
from tokalign.build.cluster import plan_dictionary, run_job
from tokalign.build.compile_pack import compile_pack
from tokalign.build.corpus import Corpus, Stage
from tokalign.build.counting.token_ngrams import Encodes
from tokalign.build.counting.word_list import find_words
from tokalign.build.counting.workers import peak_memory, plan_processes
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.build.pack import build_pack
from tokalign.build.pipeline import Builder, BuildReport, build_pair, write_table
from tokalign.build.sources import Source, find_sources
from tokalign.cli.output import reading_stdin
from tokalign.errors import UsageError
from tokalign.names.registry import Resolved, resolve_tokenizer
from tokalign.tables.bundle import Bundle, read_bundle
from tokalign.tables.finding import table_folder
from tokalign.tokenizer.vocabulary import DraftId, TargetId
from tokalign.train.options import Writing


def plan_tables(
    draft: str | None,
    target: str,
    *,
    output: Path | None,
    language: str,
    dictionary: BackoffOptions | None,
    tell: Callable[[str], None],
) -> dict[Path, Builder]:
    """Resolve the names, and map each file to be written to what builds its bundle.

    draft: None for no alignment. dictionary: None for no dictionary.
    """
    ours: Resolved[TargetId] = resolve_tokenizer(target)
    tell(ours.description)
    folder = (output or table_folder()) / ours.slug
    builders: dict[Path, Builder] = {}
    if dictionary is not None:
        workspace = dictionary.workspace or folder / f"{language}.counting"
        options = replace(dictionary, workspace=workspace)
        builders[folder / f"{language}.dictionary.tok"] = lambda corpus, stage: build_dictionary(
            ours.tokenizer, corpus, options, language=language, stage=stage
        )
    if draft is not None:
        theirs: Resolved[DraftId] = resolve_tokenizer(draft)
        tell(theirs.description)
        builders[folder / f"{theirs.slug}.alignment.tok"] = lambda corpus, stage: build_pair(
            theirs.tokenizer, ours.tokenizer, corpus, stage=stage
        )
    return builders


def plan_pack(
    options: BackoffOptions, *, output: Path | None, language: str
) -> dict[Path, Builder]:
    """Map the file of a pack to what builds it."""
    folder = output or table_folder()
    options = replace(options, workspace=options.workspace or folder / f"{language}.counting")
    return {
        folder / f"{language}.pack.tok": lambda corpus, stage: build_pack(
            corpus, options, language=language, stage=stage
        )
    }


def build_from_pack(
    target: str,
    pack: Path,
    options: BackoffOptions,
    *,
    output: Path | None,
    stage: Stage,
    tell: Callable[[str], None],
) -> BuildReport:
    """Compile a pack for the tokenizer of TARGET, and write the dictionary."""
    started = time.monotonic()
    ours: Resolved[TargetId] = resolve_tokenizer(target)
    tell(ours.description)
    bundle = compile_pack(ours.tokenizer, read_bundle(pack), options, stage=stage)
    path = (output or table_folder()) / ours.slug / f"{bundle.language}.dictionary.tok"
    return BuildReport(
        tables=(write_table(path, bundle),),
        text_bytes=0,
        lines_skipped=0,
        seconds=time.monotonic() - started,
        peak_memory=peak_memory(),
    )


def plan_reading(
    target: str,
    positions: int,
    *,
    output: Path | None,
    language: str,
    tell: Callable[[str], None],
) -> dict[Path, Builder]:
    """Load the model, and map the file to be written to what builds its bundle."""
    from tokalign.train.logit_table import build_logit_table

    [model] = load_models([target], note=tell)
    path = (output or table_folder()) / resolve_tokenizer(target).slug / f"{language}.logits.tok"
    return {
        path: lambda corpus, stage: build_logit_table(
            model, corpus, language=language, positions=positions, stage=stage
        )
    }


def plan_writing(
    target: str,
    writing: Writing,
    options: BackoffOptions,
    *,
    output: Path | None,
    language: str,
    tell: Callable[[str], None],
) -> dict[Path, Builder]:
    """Load the model, and map the dictionary of what it writes to what builds it."""
    from tokalign.train.own_texts import write_texts

    [model] = load_models([target], note=tell)
    folder = (output or table_folder()) / resolve_tokenizer(target).slug
    texts = folder / f"{language}.written.jsonl"
    options = replace(options, workspace=options.workspace or folder / f"{language}.counting")

    def build(corpus: Corpus, stage: Stage) -> Bundle:
        written = write_texts(model, corpus, texts, writing, stage=stage)
        tell(f"what the target wrote -> {texts}")
        return build_dictionary(model.tokenizer, written, options, language=language, stage=stage)

    return {folder / f"{language}.dictionary.tok": build}


def build_on_datatrove(
    target: str | None,
    corpus: Corpus,
    options: BackoffOptions,
    *,
    language: str,
    output: Path | None,
    tasks: int | None,
    workers: int | None,
    local_tasks: int | None,
    first: int,
    tell: Callable[[str], None],
) -> BuildReport:
    """Build a dictionary on datatrove; no table in the report if another machine makes it.

    target: None for a pack; then each machine counts the words first.
    tasks, workers: by default one per core. local_tasks: of this machine, from number `first` on;
        by default all the rest.
    Raises: UsageError for tasks that do not fit together.
    """
    folder, name = output or table_folder(), f"{language}.pack.tok"
    if target is None:
        tell("counting the words of the corpus")
        counted: Encodes = find_words(corpus)
    else:
        ours: Resolved[TargetId] = resolve_tokenizer(target)
        tell(ours.description)
        counted = ours.tokenizer
        folder, name = folder / ours.slug, f"{language}.dictionary.tok"
    options = replace(options, workspace=options.workspace or folder / f"{language}.job")
    wanted = workers or os.cpu_count() or 1
    processes, max_words = plan_processes(
        options.memory, jobs=wanted, vocabulary_size=len(counted.vocabulary)
    )
    tasks = tasks or wanted
    here = local_tasks or tasks - first
    if not 0 < here <= tasks - first:
        raise UsageError(
            f"the tasks of this machine ({first} to {first + here - 1}) are not among --tasks "
            f"{tasks}; give a lower --local-rank-offset or fewer --local-tasks"
        )
    if len(corpus.weights) < tasks:
        tell(f"{tasks} tasks share {len(corpus.weights)} corpus files; some of them encode nothing")
    job = plan_dictionary(
        counted,
        corpus,
        options,
        language=language,
        path=folder / name,
        shares=tasks,
        jobs=processes,
        max_words=max_words,
    )
    built = run_job(job, processes=processes, first=first, tasks=here)
    if not built.tables:
        tell(f"tasks {first} to {first + here - 1} are done; the machine with task 0 goes on")
    return built


_ROOM = "set TMPDIR to a folder with room for all of standard input"


def find_corpus(
    names: Sequence[str], *, stdin: bool, note: Callable[[str], object]
) -> list[Source]:
    """The corpus files that are meant; names, note: as in `find_sources`.

    stdin: whether `-` may stand for lines on standard input. They are kept in a file while the
    command runs, because a corpus is read more than once.
    """
    return find_sources(names, stdin=_save_stdin if stdin else None, note=note)


def _save_stdin() -> Path:
    temporary = tempfile.TemporaryDirectory(prefix="tokalign-")
    path = Path(click.get_current_context().with_resource(temporary)) / "stdin.txt"
    try:
        with path.open("wb") as file:
            while chunk := _read_chunk():
                file.write(chunk)
    except OSError as error:
        raise unwritable(path, error, _ROOM) from error
    return path


def _read_chunk() -> bytes:
    with reading_stdin("give a FILE"):
        return sys.stdin.buffer.read(1 << 20)


def read_weights(texts: Sequence[str], files: Sequence[Source]) -> dict[str, float]:
    """Read `NAME=W` options as file name -> weight.

    Raises: UsageError for a text that is not NAME=W with the name of one of the files.
    """
    weights = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        matching = [file.name for file in files if name in (file.name, _stem(file.name))]
        if len(matching) != 1 or not re.fullmatch(r"[0-9]*\.?[0-9]+", value):
            raise UsageError(
                f"--weight {text} is not NAME=W with the name of one corpus file and a number"
            )
        weights[matching[0]] = float(value)
    return weights


def _stem(name: str) -> str:
    """The name of a corpus file without its suffixes."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.split(".")[0]
