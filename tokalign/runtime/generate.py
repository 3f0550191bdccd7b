"""One generation: its output tokens with their text, in whole characters, and its statistics."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from tokalign.errors import UsageError
from tokalign.runtime.batch import Batch
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.held_back import held_back
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.machine import peak_memory, wired
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Array, Event, FinishReason, Outcome, Reading, Round, Started
from tokalign.runtime.statistics import Statistics
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_BEFORE = 8
"""With how many tokens before it a token is decoded where its bytes are not known."""

_UNKNOWN = frozenset({"<unk>", "[UNK]", "<UNK>"})
"""How tokens are spelled that stand for text outside of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One output token. text: what can be printed by now, see `TextStream.push`.

    source: the drafter that proposed it, or "target". logprobs: f[vocabulary], lazy, if a model was
    asked. ends: of the last token, why.
    """

    token: TargetId
    text: str
    source: str
    outcome: Outcome
    logprobs: Array | None = None
    ends: FinishReason | None = None

    @property
    def from_draft(self) -> bool:
        return self.outcome is Outcome.ACCEPTED


class Generation:
    """The output of a request. Iterate over its pieces; text, ids and statistics so far can be read
    any time.

    target_session, draft_session: ones to reuse. stops: as of `Limits`. reading: how far a long
    prompt was read. rounds: those that `by_round` ran.
    Raises: as `Decoder.begin`; UsageError for an empty stop text.
    """

    def __init__(
        self,
        decoder: Decoder,
        request: Request,
        *,
        target_session: TargetModelSession | None = None,
        draft_session: DraftModelSession | None = None,
        stops: Collection[int] = (),
    ) -> None:
        self._text = TextStream(
            decoder.target.tokenizer,
            prompt=request.prompt.target,
            silent=request.silent | decoder.ends_of(request),
            stop_strings=request.stop_texts,
        )
        self._decoder, self._request = decoder, request
        self.decoding = decoder.begin(
            request,
            target=target_session,
            draft=draft_session,
            completes_stop=self._text.completes_stop if request.stop else None,
            stops=stops,
        )
        self.context = self.decoding.context
        self.reading: Reading | None = None
        self._shown: list[str] = []
        self.statistics = Statistics()
        self.rounds: list[Round] = []

    def __iter__(self) -> Iterator[Piece]:
        """One piece per token; after the last one, `rest` has the text that no token completed."""
        for pieces in self.by_round():
            yield from pieces

    def by_round(self) -> Generator[list[Piece], None, None]:
        """The pieces of each round; none after a step of reading the prompt, see `reading`. Between
        two rounds or steps a generation may be left for good."""
        with wired(self._decoder.target.model):
            for event in self.decoding:
                pieces = self.take(event)
                if isinstance(event, Round):
                    self.rounds.append(replace(event, logprobs=None))  # too large to keep
                if isinstance(event, Reading | Round):
                    yield pieces

    def take(self, event: Event) -> list[Piece]:
        """Count an event of `decoding`. Returns: the pieces of a round; none of other events."""
        self.statistics.observe(event)
        if isinstance(event, Reading):
            self.reading = event
        return list(self._pieces(event)) if isinstance(event, Round) else []

    @property
    def stop_text(self) -> str | None:
        """The stop text that ended the output, if one did."""
        return self._text.stop_string

    def rest(self) -> str:
        """The text that was still held back when the output ended."""
        self._shown.append(self._text.finish())
        return self._shown[-1]

    def summary(self) -> dict[str, Any]:
        """Text, ids and all statistics so far, under the names of `docs/metrics.md`."""
        options = self._request.options or self._decoder.drafting.options
        return {
            "text": "".join(self._shown),
            "token_ids": list(self.context.emitted),
            "method": options.method,
            "translation": options.translation if self._decoder.draft is not None else None,
            **self.statistics.summary(),
            "peak_memory_gb": peak_memory(),
            "seed": self._request.seed,
        }

    def _pieces(self, round_: Round) -> Iterator[Piece]:
        for index, (token, source) in enumerate(zip(round_.emitted, round_.sources, strict=True)):
            self._shown.append(self._text.push(token))
            yield Piece(
                token=token,
                text=self._shown[-1],
                source=source,
                outcome=round_.outcome(index),
                logprobs=None if round_.logprobs is None else round_.logprobs[index],
                ends=round_.ends if index == len(round_.emitted) - 1 else None,
            )


def together(
    generations: Iterable[Generation], batch: Batch, *, at_once: int
) -> Iterator[list[tuple[Generation, list[Piece]]]]:
    """What each round gave several generations of one decoder; nothing yet, if it was a step in
    which one of them read its prompt.

    batch: of the decoder. at_once: how many are under way; the next one is taken from `generations`
    when one has ended.
    Raises: what ends any of them.
    """
    waiting, running = iter(generations), list[Generation]()
    while True:
        for new in islice(waiting, at_once - len(running)):
            new.take(Started(len(new.context.ids)))
            for step in new.decoding.reading():
                yield [(new, new.take(step))]
            running.append(new)
        if not running:
            return
        results = []
        rounds = batch.round([one.decoding for one in running])
        for generation, outcome in zip(running, rounds, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            results.append((generation, generation.take(outcome)))
        yield results
        running = [one for one in running if one.decoding.ends is None]


class TextStream:
    """Turns output ids into text.

    A character is released with its last byte. Text that may be the beginning of a stop string is
    held back until it cannot be one any more. Special tokens release their spelling, and `silent`
    tokens (stop ids) nothing. The dummy prefix of a segment is dropped: after every special token
    but the unknown one, which stands within a text, and at the start if `prompt` ends a segment.
    Otherwise the text is what the tokenizer itself decodes from the ids, wherever these are cut.
    stop_string: the one that ended the text, if one did.
    Raises: UsageError for an empty stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer[TargetId],
        *,
        prompt: Sequence[TargetId] = (),
        silent: frozenset[TargetId] = frozenset(),
        stop_strings: Sequence[str] = (),
    ) -> None:
        if not all(stop_strings):
            raise UsageError("a stop string is empty; give at least one character")
        self._tokens = tokenizer.vocabulary.tokens
        self._specials = tokenizer.vocabulary.specials
        self._dummy_prefix = tokenizer.spec.dummy_prefix
        self._prefix_once = tokenizer.spec.prefix_once
        self._unknown = {i for i, spelling in self._specials.items() if spelling in _UNKNOWN}
        self._at_start = tokenizer.opens_segment(prompt) and self._unknown.isdisjoint(prompt[-1:])
        self._silent = silent
        self._stop_strings = tuple(stop_strings)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokenizer = tokenizer if tokenizer.level is Level.IDS_ONLY else None
        # Ids whose text is not known yet, after some before them, whose text is written.
        ended = set(self._specials.keys() - self._unknown).intersection(prompt[-1:])
        self._pending, self._written = list[TargetId](), ""
        if not ended and self._tokenizer is not None:
            self._pending, self._written = _last_of(prompt, tokenizer)
        self._held = ""
        self._decoded: deque[str] = deque()  # texts of tokens that are not pushed yet
        self.stop_string: str | None = None

    def push(self, token: TargetId) -> str:
        """The text that can be released now: often none, sometimes that of earlier tokens too."""
        return self._decoded.popleft() if self._decoded else self._release(self._spell(token))

    def completes_stop(self, token: TargetId) -> bool:
        """Whether this token completes a stop string; it has to be pushed afterwards."""
        self._decoded.append(self._release(self._spell(token)))
        return self.stop_string is not None

    def finish(self) -> str:
        """The text still held back; bytes that never became a character are U+FFFD."""
        if self.stop_string is not None:
            return ""
        if self._tokenizer is not None:
            self._held += self._tokenizer.decode_whole(self._pending)[len(self._written) :]
        self._held += self._decoder.decode(b"", final=True)
        text, self._held = self._held, ""
        return text

    def _decode(self, tokenizer: Tokenizer[TargetId], token: TargetId) -> str:
        """The text that a token adds, where only the tokenizer itself can tell. A few tokens before
        it are decoded with it, since what they are decides about spaces."""
        if token in self._silent:
            return ""
        self._pending.append(token)
        text = tokenizer.decode_whole(self._pending)
        if text.endswith("\ufffd"):
            return ""
        added = text[len(self._written) :]
        self._pending, self._written = _last_of(self._pending, tokenizer)
        return added

    def _spell(self, token: TargetId) -> str:
        if self._tokenizer is not None:
            return self._decode(self._tokenizer, token)
        data = self._tokens[token] if token < len(self._tokens) else b""
        if not data or token in self._silent:
            opens = self._at_start or not self._prefix_once
            self._at_start = opens and token not in self._unknown
            broken = self._decoder.decode(b"", final=True)
            return broken + ("" if token in self._silent else self._specials.get(token, ""))
        if self._at_start and self._dummy_prefix:
            data = data.removeprefix(b" ")
        self._at_start = False
        return self._decoder.decode(data)

    def _release(self, text: str) -> str:
        if not self._stop_strings:
            return text
        if self.stop_string is not None:
            return ""
        self._held += text
        found = [(at, stop) for stop in self._stop_strings if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.stop_string = min(found)
            return self._held[:at]
        certain = len(self._held) - held_back(self._held, self._stop_strings)
        text, self._held = self._held[:certain], self._held[certain:]
        return text


def _last_of(ids: Sequence[TargetId], tokenizer: Tokenizer[TargetId]) -> tuple[list[TargetId], str]:
    """The last few ids, from the first byte of a character on, and their text. Some decoders find
    no character in a run of bytes that begins inside one."""
    for length in range(_BEFORE, _BEFORE + 4):
        last = list(ids[-length:])
        text = tokenizer.decode_whole(last)
        if not text.startswith("\ufffd"):
            break
    return last, text
