"""How to draft, as a caller asks for it, checked. `assemble.py` makes a decoder of it.

The command line, the Python API and the server all hand over this one value, so that equal options
mean the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from tokalign.arguments import require_integer, require_text, require_texts, shown
from tokalign.errors import UsageError
from tokalign.runtime.draft.recurrent import DEFAULT_SHAPE, BeamShape
from tokalign.runtime.methods import (
    AUTO,
    DEFAULT_ALTERNATIVES,
    DRAFTER_METHODS,
    MODEL_METHODS,
    TABLE_METHODS,
    check_draft_tokens,
    check_translation,
    choose_method,
)
from tokalign.tables.opening import FilePath

_MOST_ALTERNATIVES = 1024
_MOST_ROWS = 256
_WIDEST_BEAM, _LONGEST_BEAM = 64, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingOptions:
    """How to draft, as asked for; what is left open is chosen when a decoder is assembled.

    method: "auto" or one of METHODS.
    translation: one of TRANSLATIONS; None to choose it by the tokenizers.
    num_draft_tokens: None to have every round choose its own by expected gain, zero included.
    alternatives, draft_rows: as in `Drafting`.
    drafter: the folder of a recurrent drafter; None to look for one, unless there is a draft model.
    beam_width, beam_length: of the drafter's beam, which is then proposed whole; with neither, the
        rows are chosen by their gain.
    dictionary: a file or several. language: one or several, also in one text, as in "pl,en"; the
        dictionaries of these languages are looked for besides. With neither, one of every language.
    alignment: a file; None to look for it.
    exact: whether drafts end where a pass would give other last bits than a pass of a single row.
    remember: whether what the target found likely is kept for later processes.
    Raises: UsageError for a name or number that cannot be honoured.
    """

    method: str = AUTO
    translation: str | None = None
    num_draft_tokens: int | None = None
    alternatives: int = DEFAULT_ALTERNATIVES
    draft_rows: int | None = None
    drafter: FilePath | None = None
    beam_width: int | None = None
    beam_length: int | None = None
    dictionary: FilePath | Sequence[FilePath] | None = None
    language: str | Sequence[str] | None = None
    alignment: FilePath | None = None
    exact: bool = False
    remember: bool = False

    def __post_init__(self) -> None:
        require_text("method", self.method)
        if self.num_draft_tokens is not None:
            require_integer("num_draft_tokens", self.num_draft_tokens, least=0)
        require_integer("alternatives", self.alternatives, least=0, most=_MOST_ALTERNATIVES)
        if self.draft_rows is not None:
            require_integer("draft_rows", self.draft_rows, least=1, most=_MOST_ROWS)
        for name, most in (("beam_width", _WIDEST_BEAM), ("beam_length", _LONGEST_BEAM)):
            if getattr(self, name) is not None:
                require_integer(name, getattr(self, name), least=1, most=most)
        if self.translation is not None:
            require_text("translation", self.translation)
        require_texts("language", _several(self.language))
        if not all(self.languages):
            given = ",".join(_several(self.language))
            raise UsageError(
                f"language {shown(given)} has an empty name; give names such as pl or "
                "pl,en, or leave it out for every language"
            )
        for name, files in (
            ("dictionary", self.dictionaries),
            ("alignment", (self.alignment,)),
            ("drafter", (self.drafter,)),
        ):
            for file in files:
                if not isinstance(file, str | PathLike | None):
                    raise UsageError(f"{name} has to be a path, not {shown(file)}")
                if file == "":
                    raise UsageError(f"{name} is empty; give a path, or leave it out")
        choose_method(self.method, draft=True, dictionary=True, drafter=True)
        check_translation(self.translation)
        check_draft_tokens(self.num_draft_tokens)

    @property
    def dictionaries(self) -> tuple[FilePath, ...]:
        """The dictionary files that are named."""
        return _several(self.dictionary)

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that are named."""
        given = _several(self.language)
        return tuple(name.strip() for names in given for name in names.split(","))

    @property
    def uses_model(self) -> bool:
        """Whether a draft model is used if there is one."""
        return self.method in (AUTO, *MODEL_METHODS)

    @property
    def uses_drafter(self) -> bool:
        """Whether a recurrent drafter is used if there is one."""
        return self.method in (AUTO, *DRAFTER_METHODS)

    @property
    def beam(self) -> BeamShape | None:
        """The beam that is asked for; None if neither its width nor its length is given."""
        if self.beam_width is None and self.beam_length is None:
            return None
        width, length = DEFAULT_SHAPE
        return BeamShape(self.beam_width or width, self.beam_length or length)

    @property
    def fixes_lengths(self) -> bool:
        """Whether what a round drafts is given, so that nothing is left to choose by gain."""
        given = self.num_draft_tokens, self.draft_rows, self.beam
        return any(value is not None for value in given)

    @property
    def uses_dictionary(self) -> bool:
        """Whether a dictionary is used if there is one."""
        return self.method in (AUTO, *TABLE_METHODS)


def _several(given: Any) -> tuple[Any, ...]:
    """One value or several as a tuple; None stands for none."""
    single = given is None or isinstance(given, str | PathLike) or not isinstance(given, Iterable)
    return (() if given is None else (given,)) if single else tuple(given)
