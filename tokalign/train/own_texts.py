"""A corpus that the target writes: answers to prompts, or what follows openings of other text.

The texts are lines of a file, which `tokalign build` counts like any corpus. They are written in
batches, and each batch depends on its number alone. So a killed run goes on after its last whole
batch and ends with the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple

import mlx.core as mx
import numpy as np

from tokalign.atomic_file import locked, unwritable
from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.errors import CorpusError
from tokalign.runtime.chat import as_messages, encode_chat, encode_prompt, with_bos
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import target_fingerprints
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labelled_corpus import draw_windows
from tokalign.train.options import OPENING, Writing
from tokalign.train.writing import before_stop, write

AT_ONCE = 32
"""Texts of a batch. On a Mac a pass over so many takes little more than one over a single text."""

LENGTH = 256
"""Ids of a text, after its opening, if it does not end by itself."""

_FEWEST_TOKENS = 8
"""A batch with fewer for each text shows that the target has nothing to say here."""


class Opening(NamedTuple):
    """What the target reads, and which end of that belongs to the text."""

    ids: list[TargetId]
    kept: list[TargetId]


def write_texts(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    path: Path,
    options: Writing,
    *,
    stage: Stage = silent,
) -> Corpus:
    """The corpus of what the target writes; it is written to `path`, unless it is there already.

    path: a .jsonl file. Another text in its place is kept as `*.previous`.
    Raises: as `Corpus.lines` and `write`; CorpusError for a corpus without openings, and for a
        target that ends its texts at once; UsageError while another process writes this file.
    """
    head = _record(text="", written=_recipe(target, corpus, options))
    if not _begins_with(path, head):
        begun = path.with_name(f"{path.name}.part")
        with locked(begun.with_suffix(".lock"), f"writing {path}", "wait until it has ended"):
            openings = _openings(target, corpus, options, stage)
            try:
                with stage(options.tokens, "the target writes") as advance:
                    for written in _grow(begun, head, target, openings, options):
                        advance(written)
                if path.exists():
                    os.replace(path, path.with_name(f"{path.name}.previous"))
                os.replace(begun, path)
            except OSError as error:
                raise unwritable(path, error) from error
    return Corpus([path])


def _recipe(target: LanguageModel[TargetId], corpus: Corpus, options: Writing) -> dict[str, Any]:
    return {"target": target_fingerprints(target), "corpus": corpus.listing, **asdict(options)}


def _record(**values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def _begins_with(path: Path, head: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(head)) == head
    except OSError:
        return False


def _grow(
    path: Path,
    head: bytes,
    target: LanguageModel[TargetId],
    openings: Sequence[Opening],
    options: Writing,
) -> Iterator[int]:
    """Append batches until there are enough tokens; yields how many each has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with path.open("r+b") as file:
        batch, tokens = _go_on(file, head)
        yield tokens
        order = _order(len(openings), options.seed, start=batch * AT_ONCE)
        while tokens < options.tokens:
            some = [openings[next(order)] for _ in range(AT_ONCE)]
            key = mx.random.key((options.seed << 32) + batch)
            lines, written = _write_batch(target, some, options, key)
            if written < AT_ONCE * _FEWEST_TOKENS:
                raise CorpusError(
                    f"{AT_ONCE} texts of the target had {written} tokens in all, so it has nothing "
                    "to say after these lines; give others, with --prompts if they are prompts"
                )
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
            batch, tokens = batch + 1, tokens + written
            yield written


def _go_on(file: BinaryIO, head: bytes) -> tuple[int, int]:
    """How many whole batches are in a file and their tokens; what is not of a whole one is cut."""
    lines = file.read().split(b"\n")[:-1]
    if [line + b"\n" for line in lines[:1]] != [head]:
        lines = []
        file.seek(0)
        file.write(head)
    batches = max(0, len(lines) - 1) // AT_ONCE
    whole = lines[1 : 1 + batches * AT_ONCE]
    file.truncate(len(head) + sum(len(line) + 1 for line in whole))
    file.seek(0, os.SEEK_END)
    return batches, sum(int(json.loads(line)["tokens"]) for line in whole)


def _order(openings: int, seed: int, *, start: int) -> Iterator[int]:
    """Which opening comes when, from the place `start` on: all in one order, then in another."""
    for turn in count(start // openings):
        order = list(range(openings))
        Random(f"{seed} {turn}").shuffle(order)
        yield from order[start % openings :] if turn == start // openings else order


def _write_batch(
    target: LanguageModel[TargetId], openings: Sequence[Opening], options: Writing, key: Any
) -> tuple[bytes, int]:
    """The lines of a batch, one for each opening, and how many tokens the target wrote."""
    columns = write(
        target.model,
        [opening.ids for opening in openings],
        key,
        length=LENGTH,
        temperature=options.temperature,
        stop_ids=target.stop_ids,
    )
    ids = np.array(mx.stack(list(columns), axis=1))
    lengths = before_stop(ids, target.stop_ids).sum(axis=1).tolist()
    texts = [
        target.tokenizer.decode([*opening.kept, *map(TargetId, row[:length])])
        for opening, row, length in zip(openings, ids.tolist(), lengths, strict=True)
    ]
    records = [_record(text=text, tokens=n) for text, n in zip(texts, lengths, strict=True)]
    return b"".join(records), sum(lengths)


def _openings(
    target: LanguageModel[TargetId], corpus: Corpus, options: Writing, stage: Stage
) -> list[Opening]:
    """Raises: CorpusError for a corpus without any."""
    tokenizer, opening = target.tokenizer, with_bos(target.tokenizer, [])
    if options.prompts:
        template = target.template
        return [
            Opening(
                encode_prompt(tokenizer, line)
                if template is None
                else encode_chat(tokenizer, template, as_messages(line)),
                [],
            )
            for line in corpus.lines()
        ]
    with stage(2 * corpus.size, "reading the corpus") as advance:
        windows = draw_windows(
            corpus,
            tokenizer,
            length=len(opening) + OPENING,
            positions=(len(opening) + OPENING) * -(-8 * options.tokens // LENGTH),
            seed=options.seed,
            progress=advance,
        )
    if not windows:
        raise CorpusError(f"the corpus has fewer than {OPENING} tokens; give more text")
    return [Opening(window, window[len(opening) :]) for window in windows]
