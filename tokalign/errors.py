"""Every error that tokalign raises on purpose, and who can fix it.

    TokalignError                 exit 1   something went wrong at run time
    ├── UsageError                exit 2   the caller: an argument is wrong
    ├── ContextLengthError        exit 2   the caller: shorten the prompt
    ├── CorpusError               exit 1   the owner of the corpus
    ├── OutputError               exit 1   the machine: make room, or keep the stream open
    ├── VocabularyError           exit 3   the owner of the tokenizer file
    ├── IncompatibleError         exit 3   the pair: these parts do not fit together
    │   ├── FingerprintError      exit 3   rebuild the table for this tokenizer
    │   └── CacheError            exit 3   pick a model whose cache can be trimmed
    ├── BundleError               exit 3   rebuild or re-download the table
    └── MissingAssetError         exit 4   fetch the file, or go online

A message is one line: what was expected, what arrived, what to do. `ValueError` is for values that
break the rule of a type, `assert` for our own mistakes.
"""

from __future__ import annotations


class TokalignError(Exception):
    """Base of all deliberate errors; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(TokalignError, ValueError):
    """An argument that cannot be honoured. mlx-lm raises a `ValueError` for those, so it is one."""

    exit_code = 2


class ContextLengthError(UsageError):
    """A prompt that leaves no room in the model's context window."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        self.prompt_tokens, self.limit = prompt_tokens, limit
        super().__init__(
            f"the prompt has {prompt_tokens} tokens but the model's context holds {limit}; "
            "shorten the prompt or choose a model with a longer context"
        )


class CorpusError(TokalignError):
    """A corpus that cannot be read as asked; carries the file and line where known."""

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None) -> None:
        self.path, self.line = path, line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + message)


class OutputError(TokalignError):
    """A full disk, or a stream that takes no more: what was to be written is not wrong."""


class StdoutError(OutputError):
    """Stdout takes no more, so that nothing a command still has to say can be read."""


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
    """A model whose KV cache cannot be rewound, so nothing can be verified on it."""


class BundleError(TokalignError):
    """A table file that is damaged, truncated, or of an unknown format version."""

    exit_code = 3


class MissingAssetError(TokalignError):
    """A tokenizer, model or table that is not on this machine."""

    exit_code = 4
