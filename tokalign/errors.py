"""Every error that tokalign raises on purpose, who can fix it, and checks that raise them.

    TokalignError                 exit 1   something went wrong at run time
    ├── UsageError                exit 2   the caller: an argument is wrong
    ├── ContextLengthError        exit 2   the caller: shorten the prompt
    ├── GrammarError              exit 2   the caller: simplify the grammar
    ├── CorpusError               exit 1   the owner of the corpus
    ├── OutputError               exit 1   the machine: make room, or keep the stream open
    │   └── StdoutError           exit 1   the same: nothing more of a command can be read
    ├── DisturbedError            exit 1   the machine: measure again when it has less to do
    ├── VocabularyError           exit 3   the owner of the tokenizer file
    ├── IncompatibleError         exit 3   the pair: these parts do not fit together
    │   ├── FingerprintError      exit 3   rebuild the table for this tokenizer
    │   └── CacheError            exit 3   choose another model, method or cache option
    ├── BundleError               exit 3   rebuild or re-download the table
    └── MissingAssetError         exit 4   fetch the file, or go online

A message is one line: what was expected, what arrived, what to do. `ValueError` is for values that
break the rule of a type, `assert` for our own mistakes. In the checks numpy's numbers count as
numbers, truth values do not.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Collection
from math import inf, isfinite
from numbers import Integral, Real
from textwrap import shorten
from typing import Any


class TokalignError(Exception):
    """Base of all deliberate errors; `exit_code` is what the command line returns."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process makes a copy of the message and the fields, without `__init__`, which
        takes other arguments in some of these classes."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__ or None  # type: ignore[attr-defined]


class UsageError(TokalignError, ValueError):
    """An argument that cannot be honoured. mlx-lm raises a `ValueError` for those, so it is one."""

    exit_code = 2


class ContextLengthError(UsageError):
    """A prompt that leaves no room in the model's context window."""

    remedy = "shorten the prompt or choose a model with a longer context"

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        self.prompt_tokens, self.limit = prompt_tokens, limit
        super().__init__(
            f"the prompt has {prompt_tokens} tokens but the model's context holds {limit}; "
            f"{self.remedy}"
        )


class GrammarError(UsageError):
    """A grammar that an output cannot follow any further. The output ends there."""

    def __init__(self) -> None:
        super().__init__(
            "the grammar became too complex to follow, or no text goes on from here, so the output "
            "ends; simplify it: fewer optional parts and alternatives, shorter repetitions, less "
            "nesting"
        )


class CorpusError(TokalignError):
    """A corpus that cannot be read as asked; carries the file and line where known."""

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None) -> None:
        self.path, self.line = path, line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + message)


class OutputError(TokalignError):
    """The disk is full or the stream is closed; the data is valid."""


class StdoutError(OutputError):
    """Stdout is closed or full, so nothing more of a command can be read."""


class DisturbedError(TokalignError):
    """A measurement that says nothing, because other programs ran or there was too little time."""


class VocabularyError(TokalignError):
    """A tokenizer file that is broken or of a kind tokalign does not model."""

    exit_code = 3


class IncompatibleError(TokalignError):
    """Parts that are each sound but do not fit together."""

    exit_code = 3


class FingerprintError(IncompatibleError):
    """A table that was built for another tokenizer."""

    def __init__(self, what: str, *, expected: str, found: str, remedy: str) -> None:
        self.expected, self.found = expected, found
        super().__init__(
            f"{what} was built for tokenizer {expected[:12]} but this one is {found[:12]}; "
            f"rebuild it with: {remedy}"
        )


class CacheError(IncompatibleError):
    """A KV cache that cannot be rewound, quantized or gone on with as it was asked."""


class BundleError(TokalignError):
    """A table file that is damaged, truncated, or of an unknown format version."""

    exit_code = 3


class MissingAssetError(TokalignError):
    """A tokenizer, model or table that is not on this machine."""

    exit_code = 4


_LONGEST_VALUE = 60


def require_integer(name: str, value: Any, *, least: float = -inf, most: float = inf) -> None:
    """Raises: UsageError for what is no integer from `least` to `most`."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or not least <= int(value) <= most:
        raise UsageError(f"{name} has to be an integer {_range(least, most)}, not {shown(value)}")


def require_number(name: str, value: Any, *, least: float, most: float = inf) -> None:
    """Raises: UsageError for what is no finite number from `least` to `most`."""
    is_number = not isinstance(value, bool) and isinstance(value, Real) and isfinite(value)
    if not is_number or not least <= value <= most:
        raise UsageError(f"{name} has to be a number {_range(least, most)}, not {shown(value)}")


def require_text(name: str, value: object) -> None:
    """Raises: UsageError for what is no text, or one that UTF-8 cannot hold."""
    require(is_text(value), f"{name} has to be a text without lone surrogates, not {{}}", value)


def require_texts(name: str, value: object) -> None:
    """Raises: UsageError for what is no sequence of texts: a single text, or a generator, which
    would be empty afterwards."""
    _require_each(name, value, "texts", require_text)


def require_kind(name: str, value: object, kind: type) -> None:
    """Raises: UsageError for what is not of this type; None is left out."""
    message = f"{name} has to be of type {kind.__name__}, not {{}}"
    require(isinstance(value, kind | None), message, value)


def require_callable(name: str, value: object) -> None:
    """Raises: UsageError for what cannot be called."""
    require(callable(value), f"{name} has to be a function, not {{}}", value)


def require_callables(name: str, value: object) -> None:
    """Raises: UsageError for what is no sequence of functions; see `require_texts`."""
    _require_each(name, value, "functions", require_callable)


def _require_each(
    name: str, value: object, items: str, require_item: Callable[[str, object], None]
) -> None:
    if not isinstance(value, Collection) or isinstance(value, str):
        raise UsageError(f"{name} has to be a sequence of {items}, not {shown(value)}")
    for place, item in enumerate(value):
        require_item(f"{name}[{place}]", item)


def shown(value: object) -> str:
    """A value as an error message shows it: short, and on one line."""
    is_plain = isinstance(value, str | int | float | None)
    kind = type(value).__name__
    article = "an" if kind.lower().startswith(tuple("aeiou")) else "a"
    text = repr(value) if is_plain else f"{article} {kind}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def in_one_line(error: BaseException) -> str:
    """What an error of a library says; mlx names every weight that a file lacks, one a line, and
    every type that a function takes."""
    text = str(error).partition(" The following argument types")[0] or type(error).__name__
    missing = "no " if isinstance(error, KeyError) else ""  # its text is only the key
    return shorten(missing + text, 300, placeholder=" …")


def is_complaint(error: BaseException) -> bool:
    """Whether a library says by it that it cannot do with what it was given: an exception, or a
    panic in Rust. Neither the end of the program nor of memory is the input's fault."""
    is_panic = type(error).__name__ == "PanicException"
    return is_panic or (isinstance(error, Exception) and not isinstance(error, MemoryError))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or mlx had no memory left. mlx raises a RuntimeError where it makes an array,
    and another one with Metal's words where a pass finds none."""
    told = str(error)
    return isinstance(error, MemoryError) or "malloc]" in told or "Insufficient Memory" in told


def require(fits: bool, message: str, value: object = None) -> None:
    """Raises: UsageError with the message, in which {} stands for the value, unless that fits."""
    if not fits:
        raise UsageError(message.replace("{}", shown(value)))


def shown_path(path: object) -> str:
    """A path on one line, whatever its name holds."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def is_text(value: object) -> bool:
    """Whether it is a text that UTF-8 can hold; a lone surrogate is half a character."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _range(least: float, most: float) -> str:
    if most < inf:
        return f"from {least} to {most}"
    return f"of at least {least}" if least > -inf else "of any size"
