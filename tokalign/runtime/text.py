"""Text from output ids, as they come: whole characters only, and nothing from a stop string on."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tokalign.errors import UsageError
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_BEFORE = 8
"""With how many tokens before it a token is decoded where its bytes are not known."""


def token_bytes(tokens: Sequence[bytes], token: int) -> bytes:
    """A token's bytes; b"" for ids beyond the vocabulary, which padded models have."""
    return tokens[token] if token < len(tokens) else b""


def opens_segment(tokenizer: Tokenizer[TargetId], prompt: Sequence[TargetId]) -> bool:
    """Whether the text after `prompt` begins a segment, where the tokenizer puts a dummy prefix."""
    if tokenizer.level is Level.IDS_ONLY:
        return not prompt
    tokens = tokenizer.vocabulary.tokens
    if tokenizer.spec.prefix_once:
        return not any(token_bytes(tokens, token) for token in prompt)
    return not prompt or not token_bytes(tokens, prompt[-1])


class TextStream:
    """Turns output ids into text.

    A character is released with its last byte. Text that may be the beginning of a stop string is
    held back until it cannot be one any more. Special tokens release their spelling, except the
    `silent` ones (stop ids). The dummy prefix of a segment is dropped: after every special token,
    and at the start if `prompt` ends a segment.
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
        self._at_start = opens_segment(tokenizer, prompt)
        self._silent = silent
        self._stop_strings = tuple(stop_strings)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokenizer = tokenizer if tokenizer.level is Level.IDS_ONLY else None
        self._pending: list[TargetId] = []  # ids whose text is not known yet, after some before it
        self._written = ""
        self._held = ""
        self.stopped = False

    def push(self, token: TargetId) -> str:
        """The text that can be released now: often none, sometimes that of earlier tokens too."""
        return self._release(self._spell(token))

    def finish(self) -> str:
        """The text still held back; bytes that never became a character are U+FFFD."""
        if self.stopped:
            return ""
        if self._tokenizer is not None:
            self._held += self._tokenizer.decode(self._pending)[len(self._written) :]
        self._held += self._decoder.decode(b"", final=True)
        text, self._held = self._held, ""
        return text

    def _decode(self, tokenizer: Tokenizer[TargetId], token: TargetId) -> str:
        """The text that a token adds, where only the tokenizer itself can tell.

        A few tokens before it are decoded with it, since what they are decides about spaces.
        """
        if token in self._silent:
            return ""
        self._pending.append(token)
        text = tokenizer.decode(self._pending)
        if text.endswith("\ufffd"):
            return ""
        added = text[len(self._written) :]
        del self._pending[:-_BEFORE]
        self._written = tokenizer.decode(self._pending)
        return added

    def _spell(self, token: TargetId) -> str:
        if self._tokenizer is not None:
            return self._decode(self._tokenizer, token)
        data = token_bytes(self._tokens, token)
        if not data:
            self._at_start = self._at_start or not self._prefix_once
            broken = self._decoder.decode(b"", final=True)
            return broken + ("" if token in self._silent else self._specials.get(token, ""))
        if self._at_start and self._dummy_prefix:
            data = data.removeprefix(b" ")
        self._at_start = False
        return self._decoder.decode(data)

    def _release(self, text: str) -> str:
        """Add `text` to the held text and return the part that can be released."""
        if self.stopped:
            return ""
        self._held += text
        found = [at for stop in self._stop_strings if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._held[: min(found)]
        certain = len(self._held) - self._possible_stop()
        text, self._held = self._held[:certain], self._held[certain:]
        return text

    def _possible_stop(self) -> int:
        """Length of the longest suffix of the held text that begins a stop string."""
        longest = max((min(len(s) - 1, len(self._held)) for s in self._stop_strings), default=0)
        for length in range(longest, 0, -1):
            if any(s.startswith(self._held[-length:]) for s in self._stop_strings):
                return length
        return 0
