"""What `tokalign build --from-model` has a target do: write a corpus, and give a logit store the
table that it begins with.

The corpus has answers to prompts, or what follows openings of other text. Its texts are lines of a
file, which `tokalign build` counts like any corpus. mlx-lm writes several at once: where one ends,
the next begins. They come in parts of `TEXTS`, and each part depends on its number alone. So a
killed run goes on after its last whole part and ends with the same bytes.

The table has what the target finds likely where it reads a corpus, which the store would otherwise
have to learn in each conversation anew. Each place of the text gives a row under the last one, two
and three ids; rows under equal ids are averaged, and those are kept that came most often.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator
from numpy.typing import NDArray

from tokalign.build.corpus import Corpus, Progress, Stage, silent
from tokalign.errors import CorpusError
from tokalign.runtime.chat import as_messages, encode_chat, encode_prompt, with_bos
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.lookup import SLOTS, tail_of
from tokalign.runtime.mlx.drafter_folder import target_fingerprints
from tokalign.storage import locked, unwritable
from tokalign.tables.bundle import Bundle
from tokalign.tables.logit_rows import KEPT, KIND, LONGEST_KEY, LogitRows, codes_of, keys_of
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labelled_corpus import draw_windows, most_probable
from tokalign.train.options import Writing

TEXTS = 128
"""Texts of a part; at its end fewer than `AT_ONCE` are written at once."""

AT_ONCE = 32
"""Texts that are written at once. All of them read the weights together."""

LENGTH = 256
"""Ids of a text, after its opening, if it does not end by itself."""

_OPENING = 16
"""Ids of the corpus after which the target writes by itself, where lines are no prompts."""

_FEWEST_TOKENS = 8
"""A part with fewer for each text shows that the target has nothing to say here."""


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
    Raises: as `Corpus.lines`; CorpusError for a corpus without openings, and for a
        target that ends its texts at once; UsageError while another process writes this file.
    """
    recipe = {"target": target_fingerprints(target), "corpus": corpus.listing, **asdict(options)}
    head = _record(text="", written=recipe)
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(head)) == head:
            return Corpus([path])
    begun = path.with_name(f"{path.name}.part")
    with locked(begun.with_suffix(".lock"), f"writing {path}", "wait until it has ended"):
        openings = _openings(target, corpus, options, stage)
        try:
            with stage(options.tokens, "the target writes") as advance:
                _grow(begun, head, target, openings, options, advance)
            if path.exists():
                os.replace(path, path.with_name(f"{path.name}.previous"))
            os.replace(begun, path)
        except OSError as error:
            raise unwritable(path, error) from error
    return Corpus([path])


def _record(**values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def _grow(
    path: Path,
    head: bytes,
    target: LanguageModel[TargetId],
    openings: Sequence[Opening],
    options: Writing,
    advance: Progress,
) -> None:
    """Append parts until there are enough tokens. advance: called with how many tokens are new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with path.open("r+b") as file:
        part, tokens = _go_on(file, head)
        advance(tokens)
        order = _order(len(openings), options.seed, start=part * TEXTS)
        while tokens < options.tokens:
            some = [openings[next(order)] for _ in range(TEXTS)]
            mx.random.seed((options.seed << 32) + part)
            written = _write(target, some, options.temperature, advance)
            count = sum(map(len, written))
            if count < TEXTS * _FEWEST_TOKENS:
                raise CorpusError(
                    f"{TEXTS} texts of the target had {count} tokens in all, so it has nothing to "
                    "say after these lines; give others, with --prompts if they are prompts"
                )
            for opening, ids in zip(some, written, strict=True):
                text = target.tokenizer.decode([*opening.kept, *ids])
                file.write(_record(text=text, tokens=len(ids)))
            file.flush()
            os.fsync(file.fileno())
            part, tokens = part + 1, tokens + count


def _go_on(file: BinaryIO, head: bytes) -> tuple[int, int]:
    """How many whole parts are in a file and their tokens; what is not of a whole one is cut."""
    lines = file.read().split(b"\n")[:-1]
    if [line + b"\n" for line in lines[:1]] != [head]:
        lines = []
        file.seek(0)
        file.write(head)
    parts = max(0, len(lines) - 1) // TEXTS
    whole = lines[1 : 1 + parts * TEXTS]
    file.truncate(len(head) + sum(len(line) + 1 for line in whole))
    file.seek(0, os.SEEK_END)
    return parts, sum(int(json.loads(line)["tokens"]) for line in whole)


def _order(openings: int, seed: int, *, start: int) -> Iterator[int]:
    """Which opening comes when, from the place `start` on: all in one order, then in another."""
    for turn in count(start // openings):
        order = list(range(openings))
        Random(f"{seed} {turn}").shuffle(order)
        yield from order[start % openings :] if turn == start // openings else order


def _write(
    target: LanguageModel[TargetId],
    openings: Sequence[Opening],
    temperature: float,
    advance: Progress,
) -> list[list[TargetId]]:
    """What the target writes after each opening, without the id that ends it."""
    generator = BatchGenerator(
        target.model,
        max_tokens=LENGTH,
        stop_tokens=[[token] for token in sorted(target.stop_ids)],
        # mlx-lm's own sampler is compiled anew for every number of texts.
        sampler=lambda logprobs: mx.random.categorical(logprobs / temperature),
        completion_batch_size=AT_ONCE,
    )
    numbers = generator.insert([opening.ids for opening in openings])
    written: dict[int, list[TargetId]] = {number: [] for number in numbers}
    while came := generator.next_generated():
        kept = [one for one in came if one.finish_reason != "stop"]
        for one in kept:
            written[one.uid].append(TargetId(one.token))
        advance(len(kept))
    generator.close()
    return [written[number] for number in numbers]


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
            length=len(opening) + _OPENING,
            positions=(len(opening) + _OPENING) * -(-8 * options.tokens // LENGTH),
            seed=options.seed,
            progress=advance,
        )
    if not windows:
        raise CorpusError(f"the corpus has fewer than {_OPENING} tokens; give more text")
    return [Opening(window, window[len(opening) :]) for window in windows]


# -- a table of what is likely ---------------------------------------------------------------------

ROWS = SLOTS // 2
"""Rows of a table, 3.1 MB: about a fifth of them fall to slots of a store that others fill."""

WINDOW = 256
"""Ids that the target reads at once."""


def build_logit_table(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    *,
    language: str,
    positions: int,
    stage: Stage = silent,
) -> Bundle:
    """Have a target read about `positions` ids of a corpus, from everywhere in it.

    language: of the corpus.
    Cost: that of reading as long a prompt, and 90 bytes of memory for each position and key.
    Raises: CorpusError as `Corpus.lines`, and for a corpus without a window of text.
    """
    with stage(2 * corpus.size, "reading the corpus") as advance:
        windows = draw_windows(
            corpus,
            target.tokenizer,
            length=WINDOW,
            positions=positions,
            seed=0,
            progress=advance,
        )
    if not windows:
        raise CorpusError(f"the corpus has fewer than {WINDOW} tokens; give more text")
    gathered = GatheredRows()
    with stage(len(windows) * WINDOW, "the target reads") as advance:
        for window in windows:
            ids, logprobs = most_probable(target.model(mx.array([window]))[0], KEPT)
            gathered.learn(window, np.array(ids), np.array(logprobs))
            advance(WINDOW)
    size = len(target.tokenizer.vocabulary)
    table = gathered.most_frequent(ROWS, vocabulary_size=size)
    return Bundle(
        kind=KIND,
        fingerprints={"target": target.tokenizer.fingerprint},
        corpus=corpus.stamp,
        parameters={
            "language": language,
            "vocabulary_size": size,
            "model": "" if target.folder is None else target.folder.name,
            "positions": len(windows) * WINDOW,
        },
        statistics={"rows": len(table)},
        sections=table.to_sections(),
    )


class GatheredRows:
    """All rows of some texts."""

    def __init__(self) -> None:
        self._keys: list[NDArray[np.uint64]] = []
        self._ids: list[NDArray[Any]] = []
        self._logprobs: list[NDArray[Any]] = []

    def learn(self, text: Sequence[TargetId], likely: NDArray[Any], logprobs: NDArray[Any]) -> None:
        """Gather the rows after the last ids of `text`: ids i[n, KEPT] and log-probabilities."""
        ends = range(len(text) - len(likely) + 1, len(text) + 1)
        tails = [tail_of(text[max(0, end - LONGEST_KEY) : end]) for end in ends]
        self._keys.append(keys_of(np.array(tails, dtype=np.uint64)))
        self._ids.append(likely)
        self._logprobs.append(logprobs)

    def most_frequent(self, most: int, *, vocabulary_size: int) -> LogitRows:
        """The rows of the `most` keys that came most often, averaged, the rarest first.

        Where rows are written one after the other, the frequent ones then come last and stay.
        vocabulary_size: ids from this on, with which models pad their vocabularies, are left out.
        """
        keys = np.concatenate(self._keys, axis=1).reshape(-1)
        different, number, counts = np.unique(keys, return_inverse=True, return_counts=True)
        kept = np.sort(np.argsort(-counts, kind="stable")[:most])
        place = np.full(len(different), -1)
        place[kept] = np.arange(len(kept))
        ids = np.tile(np.concatenate(self._ids), (LONGEST_KEY, 1))
        probabilities = np.tile(np.exp(np.concatenate(self._logprobs)), (LONGEST_KEY, 1))
        rows = np.repeat(place[number.reshape(-1)], KEPT)
        known = (rows >= 0) & (ids.reshape(-1) < vocabulary_size)
        found_ids, found = _top(
            rows[known], ids.reshape(-1)[known], probabilities.reshape(-1)[known], len(kept)
        )
        with np.errstate(divide="ignore"):
            codes = codes_of(np.log(found / counts[kept][:, None]))
        order = np.argsort(counts[kept], kind="stable")
        return LogitRows(different[kept][order], found_ids[order], codes[order])


def _top(
    rows: NDArray[Any], ids: NDArray[Any], probabilities: NDArray[Any], count: int
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """For each of `count` rows the `KEPT` ids with the largest sums, and these; 0 for no more."""
    pairs, number = np.unique(
        rows.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64), return_inverse=True
    )
    sums = np.bincount(number.reshape(-1), weights=probabilities, minlength=len(pairs))
    row = (pairs >> np.uint64(32)).astype(np.int64)
    order = np.lexsort((-sums, row))
    row = row[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    best = rank < KEPT
    found = np.zeros((count, KEPT), dtype=np.uint32)
    likely = np.zeros((count, KEPT))
    found[row[best], rank[best]] = (pairs[order] & np.uint64(0xFFFFFFFF))[best]
    likely[row[best], rank[best]] = sums[order][best]
    return found, likely
