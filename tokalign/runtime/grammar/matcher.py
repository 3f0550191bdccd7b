"""llguidance with a vocabulary of ours: the tokenizer it reads, and a matcher for a grammar.

Making either may be asked of any thread. A matcher is compiled without the global interpreter lock;
the tokenizer is not, so make it (`engine_of`) before others wait for ids.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from tokalign.child_processes import end_once
from tokalign.errors import UsageError, in_one_line, is_complaint
from tokalign.runtime.rounds import UNBOUNDED
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_STACK = 128 << 20
"""Bytes of stack to compile on. llguidance recurses by up to 4 KB for each level that `bounds.py`
counts. Pages that nothing touches cost no memory."""

_FORCED_TOKENS = 8
"""Tokens of a forced text that are encoded, which is enough to know the next one."""

_AFTERWARDS = 0.1
"""Seconds until Ctrl-C or SIGTERM is repeated that came while llguidance asked for an encoding."""

_ENGINE, _THREADS = threading.Lock(), threading.Lock()

T = TypeVar("T")


def limits() -> LLParserLimits:
    """What a matcher may need in a step and in all, so that none stalls or fills a process."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=5_000,  # 4 for each optional property, of which 1,000 are taken
        max_lexer_states=50_000,  # 2 KB each; also the longest text that a regex can force
        verbose_errors=False,  # no tokens in messages
    )


@lru_cache(maxsize=512)
def invalid(definition: str) -> tuple[str, tuple[str, ...]]:
    """What is wrong with a grammar, "" for nothing, and warnings. Cost: 0.5 ms for a short one,
    1.4 s for a schema of 100 KB, once: an agent sends the same tools with every request."""
    from llguidance import LLMatcher

    try:
        failed, messages = on_deep_stack(
            lambda: LLMatcher.validate_grammar_with_warnings(definition, limits=limits())
        )
    except UsageError as error:
        return str(error), ()
    return (messages[0], ()) if failed else ("", tuple(messages))


def matcher_of(definition: str, engine: LLTokenizer) -> LLMatcher:
    """A matcher before the first id. Raises: UsageError for a grammar that cannot be used."""
    from llguidance import LLMatcher

    matcher = on_deep_stack(lambda: LLMatcher(engine, definition, log_level=0, limits=limits()))
    if matcher.is_error():
        raise UsageError(f"the grammar cannot be used: {first_line(matcher.get_error())}")
    return matcher


@lru_cache(maxsize=1)
def _byte_engine() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def matches_nothing(lark: str) -> bool:
    """Whether no text matches a grammar in Lark's format, or it cannot be used."""
    definition = json.dumps({"grammars": [{"lark_grammar": lark}]})
    try:
        matcher = matcher_of(definition, _byte_engine())
    except UsageError:
        return True
    matcher.compute_bitmask()  # what is not matched shows once something may follow
    return matcher.is_error()


def first_line(message: str) -> str:
    """The beginning of what llguidance says about a grammar that it cannot compile, and the cause,
    which stands below a regular expression."""
    first, *others = message.split("\n")
    causes = [line.removeprefix("error: ") for line in others if line.startswith("error: ")]
    return " ".join(" ".join([first[:200], *causes]).split())


def on_deep_stack(work: Callable[[], T]) -> T:
    """What `work` returns in a thread of its own, where deep recursion has room. Raises: UsageError
    where llguidance panics, as version 1.9 does at `b|c(cb)|ccb`."""
    with ThreadPoolExecutor(1, "grammar") as pool:
        with _THREADS:  # a thread that another one starts meanwhile gets a large stack as well
            usual = threading.stack_size(_STACK)
            try:
                result = pool.submit(work)
            finally:
                threading.stack_size(usual)
        try:
            return result.result()
        except BaseException as error:
            if not is_complaint(error) or isinstance(error, Exception):
                raise
            raise UsageError(
                f"llguidance gives up on the grammar ({in_one_line(error)}); write it another way"
            ) from error


class _Tokens:
    """A vocabulary as llguidance reads one, without the ids from `size` on."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, tokenizer: Tokenizer[TargetId], stop_ids: frozenset[TargetId], size: int
    ) -> None:
        tokens, specials = tokenizer.vocabulary.tokens[:size], tokenizer.vocabulary.specials
        self.eos_token_id = min(stop_ids)
        self.tokens = [
            token or specials.get(TargetId(i), "").encode() for i, token in enumerate(tokens)
        ]
        self.special_token_ids = [i for i, token in enumerate(tokens) if not token]
        self._vocabulary, self._encoder = tokenizer.vocabulary, tokenizer.encoder
        self._enough = 4 * max(map(len, self.tokens))

    def __call__(self, text: bytes | str) -> list[TargetId]:
        """The canonical encoding, without a dummy prefix; of a long text, that of its beginning."""
        try:
            return self._beginning(text)
        except (KeyboardInterrupt, SystemExit) as end:  # llguidance would say its grammar failed
            number = signal.SIGINT if isinstance(end, KeyboardInterrupt) else signal.SIGTERM
            if signal.getsignal(number) == signal.SIG_IGN:  # as `end_once` leaves it
                signal.signal(number, end_once)
            # A real signal, which ends what the main thread waits for by then.
            again = threading.get_ident(), number
            threading.Timer(_AFTERWARDS, signal.pthread_kill, again).start()
            return self._beginning(text)

    def _beginning(self, text: bytes | str) -> list[TargetId]:
        """All that is forced is encoded at every id, which costs 50 ms for a text of 10 KB."""
        data = text.encode() if isinstance(text, str) else text
        ids = self._encode(data[: self._enough])
        if len(data) <= self._enough:
            return ids
        if len(ids) < 2 * _FORCED_TOKENS:
            return self._encode(data)
        return ids[:_FORCED_TOKENS]

    def _encode(self, data: bytes) -> list[TargetId]:
        """The canonical encoding; a token that is left out is spelled by those of its bytes."""
        size, known = len(self.tokens), self._vocabulary
        return [
            part
            for token in self._encoder.encode(data)
            for part in (
                [token] if token < size else [known.id_of[bytes([b])] for b in known.tokens[token]]
            )
        ]


def engine_of(
    tokenizer: Tokenizer[TargetId], stop_ids: frozenset[TargetId], size: int = UNBOUNDED
) -> LLTokenizer:
    """A tokenizer as llguidance has it; the last few are kept. Cost: 0.4 s for 49,000 tokens, 2.3 s
    for 262,000, once, with the global interpreter lock held."""
    with _ENGINE:
        return _engine(tokenizer, stop_ids, size)


@lru_cache(maxsize=4)
def _engine(
    tokenizer: Tokenizer[TargetId], stop_ids: frozenset[TargetId], size: int
) -> LLTokenizer:
    from llguidance import LLTokenizer

    # The type that is asked for would wrap a tokenizer of another library.
    wrapped: Any = _Tokens(tokenizer, stop_ids, size)
    return LLTokenizer(wrapped, eos_token=[int(token) for token in sorted(stop_ids)])
