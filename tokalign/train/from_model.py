"""A target writes a corpus: what `--from-model` of `tokalign train` and `tokalign build` reads.

The corpus has answers to prompts, or continuations of other text, as lines of a file that is read
like any corpus. They are written in parts of at most `TEXTS`, each a file until all are there. A
part depends on those before it alone, so a killed run goes on after its last part and ends with the
same bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tokalign.build.corpus import Corpus, Progress, Stage, draw_windows, silent
from tokalign.errors import CorpusError, IncompatibleError
from tokalign.locks import making
from tokalign.runtime.chat import Prompt, as_messages, encode_chat, encode_prompt, with_bos
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation, together
from tokalign.runtime.mlx.drafter_folder import target_fingerprints
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Context
from tokalign.storage import write_file
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labels import shuffled
from tokalign.train.options import Writing

TEXTS, AT_ONCE = 128, 32
"""Most texts of a part, and how many are written at once, which is the fewest of a part."""

LENGTH = 256
"""Ids of a text, after its opening, if it does not end by itself."""

_OPENING = 16
"""Ids of the corpus that the target continues, if lines are no prompts."""

_FEWEST_TOKENS = 8
"""A part with fewer for each text shows that the target has nothing to say here."""


def write_texts(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    path: Path,
    options: Writing,
    *,
    labels: Path | None = None,
    stage: Stage = silent,
) -> Corpus:
    """The corpus of what the target writes; it is written to `path`, unless it is there already.

    path: a .jsonl file. Another text in its place is kept as `*.previous`. labels: a folder that
    must not be there yet, as its labels would be of other texts.
    Raises: as `Corpus.lines`; CorpusError for a corpus without openings, and for a target that ends
        its texts at once; UsageError while another process writes this file; IncompatibleError.
    """
    recipe = {"target": target_fingerprints(target), "corpus": corpus.identity, **asdict(options)}
    head = _record(text="", written=recipe)
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(head)) == head:
            return Corpus([path])
    if labels is not None and labels.exists():  # else refused after hours of writing
        raise IncompatibleError(
            f"the labels in {labels} were made of other texts, or {path.name} was removed since; "
            "give the same as then, another --workspace, or remove that folder"
        )
    folder = path.with_name(f"{path.name}.parts")
    with making(path, "writing"):
        openings = _openings(target, corpus, options, stage)
        parts, tokens, digest = list[bytes](), 0, sha256(head).hexdigest()[:12]
        with stage(options.tokens, "the target writes", "tokens") as advance:
            while tokens < options.tokens:
                part = folder / f"{digest}-{len(parts)}.jsonl"
                if is_new := not part.exists():
                    missing = -(-(options.tokens - tokens) // LENGTH)
                    count = min(TEXTS, max(AT_ONCE, missing))
                    texts = _write(target, openings, options, len(parts), count, advance)
                    lines = [_record(text=text, tokens=count) for text, count in texts]
                    write_file(part, b"".join(lines), parents=True)
                parts.append(part.read_bytes())
                written = sum(json.loads(line)["tokens"] for line in parts[-1].splitlines())
                advance(0 if is_new else written)
                tokens += written
        with suppress(FileNotFoundError):
            path.replace(path.with_name(f"{path.name}.previous"))
        write_file(path, b"".join([head, *parts]))
        shutil.rmtree(folder, ignore_errors=True)
    return Corpus([path])


def _record(**values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def _write(
    target: LanguageModel[TargetId],
    openings: Sequence[list[TargetId]],
    options: Writing,
    part: int,
    size: int,
    advance: Progress,
) -> list[tuple[str, int]]:
    """The texts of a part, each with a seed of its own, and how many tokens the target wrote.

    size: how many texts. advance: called with how many tokens are new. Raises: CorpusError if they
        are too few.
    """
    numbers = range(part * TEXTS, part * TEXTS + size)
    some = [
        openings[shuffled(len(openings), options.seed, epoch)[index]]
        for epoch, index in (divmod(number, len(openings)) for number in numbers)
    ]
    seeds = np.random.default_rng((options.seed, part)).integers(1 << 32, size=size)
    decoder, contexts = Decoder(target=target, drafting=Drafting()), list[Context]()

    def begin() -> Iterator[Generation]:
        for opening, seed in zip(some, seeds.tolist(), strict=True):
            sampler = Sampling(temperature=options.temperature, seed=seed)
            request = Request(Prompt(target=opening), max_tokens=LENGTH, sampler=sampler)
            generation = Generation(decoder, request)
            contexts.append(generation.context)
            yield generation

    for results in together(begin(), decoder.open_batch(), at_once=AT_ONCE):
        advance(sum(len(pieces) for _, pieces in results))
    written = [[id_ for id_ in one.emitted if id_ not in target.stop_ids] for one in contexts]
    count = sum(map(len, written))
    if count < size * _FEWEST_TOKENS:
        raise CorpusError(
            f"{size} texts of the target had {count} tokens in all, so it has nothing to say "
            "after these lines; give others, with --prompts if they are prompts"
        )
    # An answer is a text by itself; what is continued is a part of it, without BOS.
    own = slice(0) if options.prompts else slice(len(with_bos(target.tokenizer, [])), None)
    return [
        (target.tokenizer.decode([*opening[own], *ids]), len(ids))
        for opening, ids in zip(some, written, strict=True)
    ]


def _openings(
    target: LanguageModel[TargetId], corpus: Corpus, options: Writing, stage: Stage
) -> list[list[TargetId]]:
    """What the target reads before each text. Raises: CorpusError for a corpus without any."""
    tokenizer, template = target.tokenizer, target.template
    if not options.prompts:
        length = len(with_bos(tokenizer, [])) + _OPENING
        positions = length * -(-8 * options.tokens // LENGTH)
        how = {"length": length, "positions": positions, "seed": options.seed}
        return draw_windows(corpus, tokenizer, **how, stage=stage)
    prompts = corpus.lines(whole=True)
    if template is None:
        return [encode_prompt(tokenizer, prompt) for prompt in prompts]
    return [encode_chat(tokenizer, template, as_messages(prompt)) for prompt in prompts]
